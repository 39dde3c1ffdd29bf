"""The same merge with Spark's MERGE: for tables that are too large for one process.

Spark finds the last event of each key, and rewrites what changes, in as many tasks as it takes.
What is rare in large tables is left to `apply`: several definitions of a key in play, keys that
Spark cannot compare, column names that its writer refuses, columns that are taken away.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from distributary.evolve.types import is_map
from distributary.merge.apply import look_at, merge_table
from distributary.merge.commit import Changeset, commit
from distributary.merge.definitions import PROPERTY, Span, definitions_of, from_text, to_text
from distributary.merge.events import CHANGE_SCHEMA, left_out_names, read_file
from distributary.merge.keys import Definition
from distributary.merge.order import MergeCounts, MergeOrder, MergeResult
from distributary.merge.sequence import Place, highest
from distributary.merge.shape import Shape
from distributary.merge.snapshot import Snapshot, load
from distributary.merge.spark_events import Winners, read_frame, winners_of, with_stale
from distributary.merge.spark_moves import Settled, settle_moves
from distributary.merge.spark_statement import merge_statement
from distributary.merge.tombstones import TRUNCATE, Tombstones, made, open_tombstones, remember
from distributary.merge.usable import folder_of, merging, refuse_unusable, unusable
from distributary.publish.commit_file import commit_path, read_commit
from distributary.publish.provenance import facts
from distributary.publish.races import OvertakenError, until_not_overtaken

_REFUSED = re.compile(r"[ ,;{}()\n\t=]")
"""What Delta's writer does not take in a column's name, unless the table maps its columns."""
_RACE = re.compile(r"io\.delta\.exceptions\.\w+|\[DELTA_CONCURRENT_\w+")


@dataclass(frozen=True, slots=True)
class _Survey:
    """What a batch holds, as far as it decides how to merge it."""

    keys: tuple[Definition, ...]
    left_out: Mapping[str, tuple[str, ...]]
    truncates: pa.Table
    """These events."""
    events: int
    keyless: int
    strange: bool
    """Some events name a key that the table does not have."""


def merge_table_with_spark(spark: SparkSession, order: MergeOrder) -> MergeResult:
    """Like `merge_table`, by a session. Raises PublishError.

    Rows that are marked as deleted count as updated: Spark does not tell them apart.
    """
    started = time.perf_counter()
    with merging(order.path, doing="merge into a table with Spark"):
        result = until_not_overtaken(lambda: _attempt(spark, order))
    return replace(result, seconds=time.perf_counter() - started)


def _attempt(spark: SparkSession, order: MergeOrder) -> MergeResult:
    before, columns = look_at(order)
    if before is not None and before.has(order.app_id, order.batch):
        return MergeResult(order.table, before.version, skipped=True)
    survey = _survey(order, columns)
    spans = from_text(before.property(PROPERTY)) if before else ()
    if not _suits(survey, spans, columns):
        return merge_table(order)
    _prepare(order, before, columns, Span(survey.keys[0]))
    about = Winners(tuple(columns.names), survey.keys[0], survey.left_out)
    tombstones = open_tombstones(
        folder_of(order.tombstones), app_id=order.app_id, now_us=order.now_us, horizon=order.horizon
    )
    remembered = tombstones.rows.filter(pc.equal(tombstones.rows.column("kind"), TRUNCATE))
    known, new = highest(remembered.column("_seq")), highest(survey.truncates.column("_seq"))
    empties = new is not None and (known is None or new > known)
    emptied = new if empties else known
    session = spark.newSession()
    try:
        moves = settle_moves(
            session, order, columns, about.key, tombstones, exists=before is not None
        )
        return _merge(session, order, columns, survey, about, tombstones, moves, emptied, empties)
    except (Py4JError, PySparkException) as error:
        if _RACE.search(str(error)):
            raise OvertakenError(str(error)) from error
        raise


def _merge(
    session: SparkSession,
    order: MergeOrder,
    columns: Shape,
    survey: _Survey,
    about: Winners,
    tombstones: Tombstones,
    moves: Settled | None,
    emptied: Place | None,
    empties: bool,
) -> MergeResult:
    frame = read_frame(session, order.files, columns)
    frame = frame if moves is None else moves.applied(session, frame)
    winners = winners_of(frame, about, soft=order.soft, emptied=emptied)
    if tombstones.rows.num_rows > 0:
        stones = session.read.format("delta").load(order.tombstones)
        winners = with_stale(winners, stones, about, since_us=tombstones.since_us)
    else:
        winners = winners.withColumn("stale", F.lit(False))
    winners = winners.persist()
    try:
        count = winners.count()
        fresh = winners.filter("NOT stale")
        kept = [] if moves is None else [moves.memories]
        _remember(order, fresh, about, survey, tombstones, kept, empties=empties)
        view = f"winners_{uuid.uuid4().hex}"
        fresh.createTempView(view)
        session.conf.set("spark.databricks.delta.write.txnAppId", order.app_id)
        session.conf.set("spark.databricks.delta.write.txnVersion", str(order.batch))
        session.conf.set(
            "spark.databricks.delta.commitInfo.userMetadata", json.dumps(facts(order.mark))
        )
        statement = merge_statement(
            folder_of(order.path),
            view,
            columns=about.columns,
            key=about.key,
            left_out=about.left_out,
            soft=order.soft,
            emptied=emptied,
            empties=empties,
        )
        session.sql(statement)
        session.catalog.dropTempView(view)
    finally:
        winners.unpersist()
    return _result(order, survey, count)


def _survey(order: MergeOrder, columns: Shape) -> _Survey:
    names = ("_op", "_key", "_seq", "_unchanged")
    schema = pa.schema([CHANGE_SCHEMA.field(name) for name in names])
    own = [name for name in columns.names if name not in CHANGE_SCHEMA.names]
    rows = pa.concat_tables([schema.empty_table(), *(read_file(f, schema) for f in order.files)])
    truncates = pc.equal(rows.column("_op"), "truncate").fill_null(False)
    given = rows.filter(pc.invert(truncates)).column("_key")
    keys, owner = definitions_of(given, own)
    named = pc.greater(pc.list_value_length(given).fill_null(0), 0)
    left_out: dict[str, tuple[str, ...]] = {}
    for name, column in left_out_names(rows.column("_unchanged"), own).items():
        left_out[column] = (*left_out.get(column, ()), name)
    return _Survey(
        keys,
        left_out,
        rows.filter(truncates),
        events=rows.num_rows,
        keyless=int((owner < 0).sum()),
        strange=bool(((owner < 0) & named.to_numpy(zero_copy_only=False)).any()),
    )


def _suits(survey: _Survey, spans: tuple[Span, ...], columns: Shape) -> bool:
    """Whether Spark can do it, with the events and the columns being what they are."""
    if len(survey.keys) != 1 or survey.strange or columns.rewritten:
        return False
    if _REFUSED.search("".join(columns.names)):
        return False
    if spans not in ((), (Span(survey.keys[0]),)):
        return False
    return not any(_has_map(columns.schema.field(name).type) for name in survey.keys[0])


def _has_map(type_: pa.DataType) -> bool:
    fields = [type_.field(at) for at in range(type_.num_fields)]
    return is_map(type_) or any(_has_map(field.type) for field in fields)


def _prepare(order: MergeOrder, before: Snapshot | None, columns: Shape, span: Span) -> None:
    """Make the table, or give it its columns, in a commit of its own that does no harm alone."""
    keyed = before is not None and before.property(PROPERTY) is not None
    if keyed and not columns.changed:
        return
    if before is not None and unusable(before):
        if columns.changed:
            refuse_unusable(before, order.table)
        return
    change = Changeset(
        "MERGE",
        order.table,
        comment=order.comment,
        fields=columns.fields if columns.changed else None,
        properties={PROPERTY: to_text((span,))},
    )
    commit(folder_of(order.path), before, change)


def _remember(
    order: MergeOrder,
    winners: DataFrame,
    about: Winners,
    survey: _Survey,
    tombstones: Tombstones,
    kept: Sequence[pa.Table],
    *,
    empties: bool,
) -> None:
    """First: a row that is gone without a memory could come back."""
    new = [made(survey.truncates.slice(0, 0), None, now_us=order.now_us), *kept]
    if not order.soft:
        gone = winners.filter("gone").select(*about.key_columns(), "_seq").toArrow()
        gone = gone.rename_columns([*about.key, "_seq"])
        new.append(made(gone, about.key, now_us=order.now_us))
    if empties:
        new.append(made(survey.truncates, None, now_us=order.now_us))
    remember(tombstones, pa.concat_tables(new), table=order.table, mark=order.mark)


def _result(order: MergeOrder, survey: _Survey, winners: int) -> MergeResult:
    """What the commit with our mark says that it did."""
    folder = folder_of(order.path)
    after = load(folder, app_id=order.app_id)
    version = -1 if after is None else after.version
    told: Mapping[str, str] = {}
    for number in range(version, -1, -1):
        found = read_commit(commit_path(folder, number))
        if found is None or found.marks.get(order.app_id) == order.batch:
            told = {} if found is None else found.info.get("operationMetrics", {})
            break
    inserted, updated = (int(told.get(f"numTargetRows{n}", 0)) for n in ("Inserted", "Updated"))
    deleted = int(told.get("numTargetRowsDeleted", 0))
    emptied = int(told.get("numTargetRowsNotMatchedBySourceDeleted", 0))
    changed = inserted + updated + deleted - emptied
    counts = MergeCounts(
        events=survey.events,
        inserted=inserted,
        updated=updated,
        deleted=deleted,
        superseded=survey.events - survey.keyless - survey.truncates.num_rows - winners,
        ignored=max(0, winners - changed),
        keyless=survey.keyless,
        truncates=survey.truncates.num_rows,
    )
    return MergeResult(order.table, version, counts, way="spark")
