"""Merging into a table that only Spark may write, for example with a change data feed.

The same code decides which events win. Spark finds the rows that events are about, and a `MERGE`
deletes, marks and inserts rows as decided.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from distributary.changes.apply import MergePlan, events_schema, look_at, prepare
from distributary.changes.contest import Known
from distributary.changes.events.log_events import KeyIndex, Span, read_in_turn
from distributary.changes.merge_order import MergedColumns, MergeOrder, MergeResult
from distributary.changes.merge_target import MemoryTarget, Part
from distributary.delta.column_merge import merge_fields, schema_string
from distributary.delta.commit import facts
from distributary.delta.log import Snapshot, snapshot_of
from distributary.delta.parquet import conform
from distributary.delta.tables import OvertakenError, committing, until_not_overtaken
from distributary.evolve.types import is_map
from distributary.model.manifest import Mark
from distributary.model.names import literal_sql, quote_sql
from distributary.publish.spark_publisher import ENABLE_WIDENING, RACE
from distributary.store.base import is_remote


def needs_spark(order: MergeOrder) -> bool:
    """Return whether a table has a feature that only Spark writes. Raises PublishError."""
    if is_remote(order.path):
        # the session need not know the bucket
        return False
    with committing(order.path, doing="look at a table"):
        snapshot = snapshot_of(order.path)
    return snapshot is not None and bool(snapshot.no_changes())


def merge_table_with_spark(spark: SparkSession, order: MergeOrder) -> MergeResult:
    """Merge into an existing table as `merge_table` does, with Spark. Raises PublishError.

    In the commit, rows that are marked as deleted count as updated, because Spark counts no kinds.
    """
    with committing(order.path, doing="merge into a table with Spark"):
        return until_not_overtaken(lambda: _attempt(spark.newSession(), order))


def _attempt(session: SparkSession, order: MergeOrder) -> MergeResult:
    before, columns = look_at(order)
    if before is None:
        raise OvertakenError("the table is gone")
    if before.has(order.app_id, order.batch):
        return MergeResult(order.table, before.version, skipped=True)
    if columns.rewritten:
        # if a column changes its type or is removed, files must be rewritten, which Spark does not
        # do
        before.refuse_unusable(order.table)
    try:
        if columns.changed:
            _give_columns(session, before, columns)
        for events, last in read_in_turn(order.files, events_schema(columns)):
            target = SparkTarget(session, order.path, columns)
            made, properties, _ = prepare(order, before, columns, events, target)
            for name, text in properties.items():
                _set(session, order.path, name, text)
            _merge(session, order, before, columns, target, made, order.mark if last else None)
            before = snapshot_of(order.path) or before
    except (Py4JError, PySparkException) as error:
        if RACE.search(str(error)):
            raise OvertakenError(str(error)) from error
        raise
    return MergeResult(order.table, before.version)


class SparkTarget(MemoryTarget):
    """A table's rows, read by Spark on request."""

    def __init__(self, session: SparkSession, path: str, columns: MergedColumns) -> None:
        super().__init__(columns.schema.empty_table())
        self._session = session
        self._path = path
        self._schema = columns.schema
        self.known = columns.schema.empty_table()
        """The rows that were found, by number."""
        self.identity: tuple[str, ...] = ()
        """The columns that, with the place, identify a row."""

    def find(
        self,
        keys: Sequence[KeyIndex],
        *,
        spans: Sequence[Span],
        extra: Sequence[str],
        everything: bool,
    ) -> tuple[Known, list[Part], pa.Table]:
        """Find rows as `MergeTarget.find` does; there is one part."""
        self.identity = tuple(sorted({name for index in keys for name in index.definition}))
        deleted = ["_deleted"] if "_deleted" in self._schema.names else []
        names = list(dict.fromkeys([*self.identity, "_seq", *deleted, *extra]))
        table = self._table()
        few = len(keys) == 1 and not everything
        self.rows = self._fetched(self._about(table, keys[0]) if few else table, names)
        found = super().find(keys, spans=spans, extra=extra, everything=everything)
        self.known = self.rows.take(found[1][0].places)
        return found

    def places(self) -> Iterator[pa.ChunkedArray]:
        """Return the place of every row."""
        yield self._fetched(self._table(), ["_seq"]).column("_seq")

    def _table(self) -> DataFrame:
        return self._session.read.format("delta").load(self._path)

    def _about(self, table: DataFrame, index: KeyIndex) -> DataFrame:
        firsts = np.unique(index.groups, return_index=True)[1]
        # names from outside may contain characters with a meaning in Spark
        names = [f"k{number}" for number in range(len(index.definition))]
        keys = _frame(self._session, index.rows.take(firsts).rename_columns(names))
        same: Expression = F.lit(True)
        for name, own in zip(index.definition, names, strict=True):
            same &= table[quote_sql(name)].eqNullSafe(keys[own])
        return table.join(keys, same, "left_semi")

    def _fetched(self, frame: DataFrame, names: Sequence[str]) -> pa.Table:
        have = [name for name in names if name in frame.columns]
        rows: pa.Table = frame.select(*map(quote_sql, have)).toArrow()
        schema = pa.schema([self._schema.field(name) for name in names])
        return conform(rows, schema, rows=rows.num_rows)


def _frame(session: SparkSession, rows: pa.Table) -> DataFrame:
    # Spark would read nothing of a table whose first chunk is empty
    return session.createDataFrame(rows.combine_chunks())


def _give_columns(session: SparkSession, before: Snapshot, columns: MergedColumns) -> None:
    """Add columns in a separate commit, which is harmless without the merge."""
    path = before.folder
    if merge_fields(before.fields, columns.fields).widened:
        _set(session, path, ENABLE_WIDENING, "true")
    schema = StructType.fromJson(json.loads(schema_string(columns.fields)))
    nothing = session.createDataFrame([], schema).write.format("delta").mode("append")
    nothing.option("mergeSchema", "true").save(path)


def _set(session: SparkSession, path: str, name: str, value: str) -> None:
    pair = f"{literal_sql(name)} = {literal_sql(value)}"
    session.sql(f"ALTER TABLE delta.{quote_sql(path)} SET TBLPROPERTIES ({pair})")


def _merge(
    session: SparkSession,
    order: MergeOrder,
    before: Snapshot,
    columns: MergedColumns,
    target: SparkTarget,
    made: MergePlan,
    mark: Mark | None,
) -> None:
    if any(_has_map(columns.schema.field(name).type) for name in target.identity):
        # Spark cannot compare maps
        before.refuse_unusable(order.table)
    rows = _changes(target, made)
    if not rows.num_rows:
        return
    view = f"changes_{uuid.uuid4().hex}"
    _frame(session, rows).createTempView(view)
    if mark is not None:
        session.conf.set("spark.databricks.delta.write.txnAppId", mark.app_id)
        session.conf.set("spark.databricks.delta.write.txnVersion", str(mark.batch))
        facts_text = json.dumps(facts(mark))
        session.conf.set("spark.databricks.delta.commitInfo.userMetadata", facts_text)
    session.sql(_statement(order.path, view, columns.names, target.identity, soft=order.soft))
    session.catalog.dropTempView(view)


def _has_map(type_: pa.DataType) -> bool:
    fields = [type_.field(at) for at in range(type_.num_fields)]
    return is_map(type_) or any(_has_map(field.type) for field in fields)


def _changes(target: SparkTarget, made: MergePlan) -> pa.Table:
    """Return the changes of rows, identified by keys `k0`, `k1` and so on, and `place`.

    A changed row has its new values in `c0`, `c1` and so on; a new row has no key.
    """
    decision, winners = made.decision, made.winners
    gone = target.known.filter(pa.array(decision.gone))
    marked = target.known.filter(pa.array(decision.marked))
    # a row with the key of a winner is updated to the winner; of several, any may be chosen
    heirs = np.full(gone.num_rows, -1)
    if made.spans and winners.num_rows and gone.num_rows:
        index = KeyIndex(winners, made.spans[-1].key)
        firsts = np.full(index.count + 1, -1)
        firsts[index.groups[::-1]] = np.arange(winners.num_rows)[::-1]
        found, at = np.unique(firsts[index.find(gone)], return_index=True)
        heirs[at[found >= 0]] = found[found >= 0]
    new = np.setdiff1d(np.arange(winners.num_rows), heirs)
    nobody, nothing = target.known.schema.empty_table(), winners.schema.empty_table()
    parts = [
        _named("put", gone.filter(pa.array(heirs >= 0)), winners.take(heirs[heirs >= 0]), target),
        _named("put", nobody, winners.take(new), target),
        _named("remove", gone.filter(pa.array(heirs < 0)), nothing, target),
        _named("mark", marked, nothing, target),
    ]
    return pa.concat_tables(parts)


def _named(what: str, rows: pa.Table, values: pa.Table, target: SparkTarget) -> pa.Table:
    size = max(rows.num_rows, values.num_rows)

    def filled(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
        return column if len(column) == size else pa.nulls(size, column.type)

    names = [*target.identity, "_seq"]
    columns = {f"k{number}": filled(rows.column(name)) for number, name in enumerate(names)}
    columns |= {f"c{number}": filled(column) for number, column in enumerate(values.columns)}
    columns["what"] = pa.repeat(pa.scalar(what), size)
    columns["known"] = pa.repeat(pa.scalar(rows.num_rows == size), size)
    return pa.table(columns)


def _statement(
    path: str, view: str, columns: Sequence[str], identity: Sequence[str], *, soft: bool
) -> str:
    """Apply a view of changes. Names from outside only ever appear quoted."""
    met = [
        f"t.{quote_sql(name)} <=> s.k{number}" for number, name in enumerate([*identity, "_seq"])
    ]
    values = {quote_sql(name): f"s.c{number}" for number, name in enumerate(columns)}
    sets = ", ".join(f"{name} = {value}" for name, value in values.items())
    inserts = f"({', '.join(values)}) VALUES ({', '.join(values.values())})"
    lines = [
        f"MERGE INTO delta.{quote_sql(path)} t USING {view} s ON s.known AND {' AND '.join(met)}",
        "WHEN MATCHED AND s.what = 'remove' THEN DELETE",
        *(["WHEN MATCHED AND s.what = 'mark' THEN UPDATE SET _deleted = true"] if soft else []),
        f"WHEN MATCHED THEN UPDATE SET {sets}",
        f"WHEN NOT MATCHED AND s.what = 'put' THEN INSERT {inserts}",
    ]
    return "\n".join(lines)
