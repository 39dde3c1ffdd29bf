"""The ledger: three Delta tables in the lake that say what was done, exactly once each."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import (
    CommitProperties,
    DeltaTable,
    QueryBuilder,
    Schema,
    Transaction,
    write_deltalake,
)
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction

from distributary.delta.tables import (
    conflict_attempts,
    dataset,
    open_table,
    reaching,
    read_rows,
)
from distributary.model import layout
from distributary.model.change import OP_COLUMNS
from distributary.model.manifest import Counts, Manifest, SourceRange, TableEntry
from distributary.model.record import TIMESTAMP
from distributary.observe.recording import (
    BATCHES,
    ROLLED_TABLES_SQL,
    RULE,
    SCHEMAS,
    TABLES,
    Accepted,
    BatchTimes,
    accepted_row,
    batch_key,
    batch_row,
    check_balance,
    outcomes,
    roll_batches,
    roll_tables,
    schema_rows,
    still_parked,
    table_rows,
    total,
    waiting,
)
from distributary.observe.rows import (
    ACCEPTED,
    BATCH_KEY,
    BY_LANE,
    BY_TABLE,
    LAST_COMMITS_SQL,
    LETTERS_SQL,
    PARKED,
    PLACES_SQL,
    RESUMED,
    SCHEMA_USE_SQL,
    SUMMARY_SQL,
    BatchKey,
    BatchRow,
    FoundBatch,
    LastCommit,
    SchemaRow,
    TableRow,
    TableRule,
    TableSummary,
    batches_of,
    both,
    covering,
    flat_ranges,
    may_hold,
    rules_sql,
    same,
    schema_ids_sql,
    schemas_of,
    summaries,
    table_rules,
    tables_of,
    text,
)
from distributary.publish.base import Published
from distributary.store.base import at, options_of

_log = logging.getLogger(__name__)

UPKEEP_EVERY = 50
"""Commits between two compactions."""
TARGET_FILE_SIZE = 4 << 20
"""Small enough that compacting again and again rewrites little, large enough to read fast."""

_WHOLE = "arrow_cast(NULL, 'Int64')"
_NULLS = {
    pa.int64(): _WHOLE,
    pa.float64(): "arrow_cast(NULL, 'Float64')",
    TIMESTAMP: """arrow_cast(NULL, 'Timestamp(Microsecond, Some("UTC"))')""",
    pa.list_(RULE): "CASE WHEN false THEN make_array(named_struct("
    f"'rule', '', 'action', '', 'checked', {_WHOLE}, 'violated', {_WHOLE}, "
    "'unfit', '', 'example', '')) END",
}
"""Null, in the engine's words, of the types of columns that were added to the ledger later."""

PROPERTIES = {
    # opening a table costs as much as there are commits after its newest checkpoint, and a
    # commit as much as there are files in its log (2,000 of them: 20 ms). Readers of the ledger
    # hold a version for seconds, and nobody asks for its past: neither has to be kept for long
    "delta.checkpointInterval": "20",
    "delta.logRetentionDuration": "interval 10 minutes",
    "delta.deletedFileRetentionDuration": "interval 1 hour",
}


class Store:
    """A table that only Distributary writes. Thread-safe."""

    def __init__(
        self,
        path: str,
        *,
        schema: pa.Schema,
        indexed: Sequence[str],
        description: str,
    ) -> None:
        """`indexed` are texts and numbers by which files can be skipped when reading."""
        self.path = path
        self.schema = schema
        self._indexed = tuple(indexed)
        self._description = description
        self._lock = threading.Lock()
        self._table: DeltaTable | None = None
        self._held: tuple[DeltaTable | None, ds.Dataset | None] | None = None
        """The version that all reads see, where one is held, and its files."""

    def hold(self, *, version: int | None = None) -> None:
        """Make all reads see one version, the newest unless another is given.

        Opening a table costs more than reading it.
        """
        table = open_table(self.path, version=version)
        with reaching(self.path):
            self._held = (table, None if table is None else dataset(table))

    def append_once(self, rows: pa.Table, *, app_id: str, version: int) -> bool:
        """Appends the rows in one commit marked (app_id, version), unless that mark is there.

        A commit whose answer was lost, a second call after a crash, and a second process with
        the same mark all end with the rows in the table once. False: they were there before.
        """
        with self._writing():
            for attempt in conflict_attempts():
                with attempt:
                    table = self._newest()
                    mark = table.transaction_version(app_id)
                    if mark is not None and mark >= version:
                        return False
                    marks = CommitProperties(app_transactions=[Transaction(app_id, version)])
                    table.create_write_transaction(
                        [self._file_of(rows)], "append", table.schema(), commit_properties=marks
                    )
            if (table.version() + 1) % UPKEEP_EVERY == 0:
                self._upkeep()
            return True

    def replace_before(
        self, column: str, moment: datetime, rows: Callable[[], pa.Table | None]
    ) -> None:
        """Replaces every row whose `column` is before the moment, in one commit.

        `rows` reads the table and says what to put there (None: leave it). It is asked again when
        somebody else has added such rows meanwhile, so that none is lost.
        """
        with self._writing():
            for attempt in conflict_attempts():
                with attempt:
                    # the handle first: what is added after it, read or not, is a conflict
                    table = self._newest()
                    replacement = rows()
                    if replacement is None:
                        return
                    write_deltalake(
                        table,
                        replacement,
                        mode="overwrite",
                        # a name from our own schema and a time: nothing from outside
                        predicate=f"{column} < '{moment.isoformat()}'",
                    )

    def forget(self, pipeline: str) -> None:
        """Deletes the rows of a pipeline."""
        if open_table(self.path) is None:
            return
        with self._writing():
            for attempt in conflict_attempts():
                with attempt:
                    delete_pipeline(self._newest(), pipeline)

    def read(
        self, columns: Sequence[str] | None = None, where: pc.Expression | None = None
    ) -> pa.Table:
        """Rows at the newest version; none where the table was never written."""
        table, files = self._held or (open_table(self.path), None)
        if table is None:
            return self.schema.empty_table().select(list(columns or self.schema.names))
        return read_rows(table, columns=columns, where=where, files=files)

    def query(self, sql: str) -> pa.Table | None:
        """A fixed query over the table `ledger`, by the engine inside deltalake.

        For sums over millions of rows. Never put a value from outside into `sql`.
        """
        table, _ = self._held or (open_table(self.path), None)
        if table is None:
            return None
        if missing := self._missing(table):
            # with nulls for what the stored table has no columns for
            nulls = ", ".join(f"{_NULLS[field.type]} AS {field.name}" for field in missing)
            sql = f"WITH ledger AS (SELECT *, {nulls} FROM stored) {sql}"  # noqa: S608
        with reaching(self.path):
            query = QueryBuilder().register("stored" if missing else "ledger", table)
            return pa.table(query.execute(sql).read_all())

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._lock, reaching(self.path):
            try:
                yield
            except BaseException:
                # what this handle believes about the table may be wrong now
                self._table = None
                raise

    def _newest(self) -> DeltaTable:
        if self._table is None:
            self._table = open_table(self.path) or self._create()
            missing = self._missing(self._table)
            if missing:
                # a lake from before these columns: its rows have nothing to say about them
                self._table.alter.add_columns(Schema.from_arrow(pa.schema(missing)).fields)
        else:
            self._table.update_incremental()
        return self._table

    def _missing(self, table: DeltaTable) -> list[pa.Field]:
        """Columns that the table does not have yet."""
        known = {field.name for field in table.schema().fields}
        return [field for field in self.schema if field.name not in known]

    def _create(self) -> DeltaTable:
        return DeltaTable.create(
            self.path,
            self.schema,
            # of two processes that create it at once, the second takes the first's
            mode="ignore",
            description=self._description,
            configuration=PROPERTIES | {"delta.dataSkippingStatsColumns": ",".join(self._indexed)},
            storage_options=options_of(self.path) or None,
        )

    def _file_of(self, rows: pa.Table) -> AddAction:
        # writing the file here and only committing it is twice as fast as the general writer,
        # whose cost grows with the number of files in the table
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, compression="zstd")
        data = sink.getvalue().to_pybytes()
        name = f"part-{uuid4().hex}.parquet"
        at(self.path).write(name, data, durable=False)
        now = time.time_ns() // 1_000_000
        ends = {name: pc.min_max(rows[name]).as_py() for name in self._indexed}
        statistics = {
            "numRecords": len(rows),
            "minValues": {name: end["min"] for name, end in ends.items()},
            "maxValues": {name: end["max"] for name, end in ends.items()},
            "nullCount": {name: rows[name].null_count for name in self._indexed},
        }
        # deltalake 1.6 takes an escaped character from above U+1FFFF for another one
        bounds = json.dumps(statistics, ensure_ascii=False)
        return AddAction(name, len(data), {}, now, True, bounds)

    def _upkeep(self) -> None:
        table = self._newest()
        try:
            table.optimize.compact(target_size=TARGET_FILE_SIZE)
            table.create_checkpoint()
            table.vacuum(dry_run=False, full=True)
            table.cleanup_metadata()
        except (DeltaError, OSError) as error:
            # another process tidies up at the same moment: the next turn makes good for it
            _log.info("ledger not compacted this time: %s", error)


def delete_pipeline(table: DeltaTable, pipeline: str) -> None:
    """Delete the rows of a pipeline, whose name never becomes part of a text."""
    wanted, same_name = pa.table({"pipeline": [pipeline]}), "t.pipeline = s.pipeline"
    merge = table.merge(wanted, same_name, source_alias="s", target_alias="t")
    merge.when_matched_delete().execute()


@dataclass(frozen=True, slots=True)
class Expired:
    """How many rows of detail an expiry has turned into sums."""

    batches: int
    tables: int


class Ledger:
    """Writes and reads the ledger of a lake. A lake without one reads as empty."""

    def __init__(self, lake: str) -> None:
        self.lake = lake

        def store(name: str, schema: pa.Schema, description: str, *indexed: str) -> Store:
            return Store(
                layout.ledger_table(lake, name),
                schema=schema,
                indexed=("pipeline", "batch", *indexed),
                description=description,
            )

        self._batches = store("batches", BATCHES, "one row per finished batch")
        self._tables = store("tables", TABLES, "one row per batch and table", "outcome")
        self._schemas = store("schemas", SCHEMAS, "one row per change that a schema brought")

    def hold(self, *, tables: int | None = None) -> Ledger:
        """Read batches and tables as they are now, again and again; for one answer.

        With `tables` the rows of tables are those of that version.
        """
        # in the order in which they are written, so that no batch lacks its tables
        self._batches.hold()
        self._tables.hold(version=tables)
        return self

    def record(
        self,
        manifest: Manifest,
        published: Sequence[Published],
        *,
        times: BatchTimes,
        counts: Counts,
        lag_records: int | None = None,
        lag_seconds: float | None = None,
        event_seconds: float | None = None,
        stages: int = 1,
        requests: int | None = None,
    ) -> None:
        """Settles a batch. After a crash anywhere in here, call it again with the same batch."""
        check_balance(manifest, counts)
        results = outcomes(manifest, published)
        at = times.finished_at or datetime.now(UTC)
        app_id, number = manifest.app_id, manifest.batch
        # the batch's own row comes last: where it is, all others are
        if manifest.schemas:
            self._schemas.append_once(schema_rows(manifest, at=at), app_id=app_id, version=number)
        if results:
            rows = table_rows(
                batch_key(app_id, number), results, at=at, counted=manifest.primary_role
            )
            self._tables.append_once(rows, app_id=app_id, version=number)
        lag = {
            "lag_records": lag_records,
            "lag_seconds": lag_seconds,
            "event_seconds": event_seconds,
        }
        row = batch_row(manifest, results, times=times, finished_at=at)
        row |= asdict(counts) | lag | {"stages": stages, "requests": requests}
        batch = pa.Table.from_pylist([row], schema=BATCHES)
        self._batches.append_once(batch, app_id=app_id, version=number)

    def record_resumed(
        self, app_id: str, entry: TableEntry, result: Published, *, batch: int
    ) -> None:
        """Says of a table that was parked in a settled batch that it has the batch after all.

        In order of batches, please. A result that is `parked` again is passed over, and so is what
        was said before.
        """
        if result.outcome == PARKED:
            return
        key, at = batch_key(app_id, batch), datetime.now(UTC)
        rows = table_rows(key, [(entry, result)], at=at, outcome=RESUMED)
        mark = f"{app_id}/resumed/{entry.table.name}"
        self._tables.append_once(rows, app_id=mark, version=batch)

    def settled(self, pipeline: str, life: str, lane: str, batch: int) -> str | None:
        """The fingerprint of a settled batch's source ranges, or None if it is not settled."""
        where = _of((pipeline, life, lane, batch))
        hashes = self._batches.read(["source_hash"], where)["source_hash"]
        return str(hashes[0].as_py()) if len(hashes) else None

    def settled_ranges(
        self, pipeline: str, life: str, lane: str, batch: int
    ) -> tuple[SourceRange, ...] | None:
        """What a settled batch covered, or None if it is not settled."""
        where = _of((pipeline, life, lane, batch))
        found = self._batches.read(["ranges"], where)["ranges"].to_pylist()
        return tuple(SourceRange(**one) for one in found[0] or ()) if found else None

    def pipelines(self) -> tuple[str, ...]:
        """Names of all pipelines that ever settled a batch."""
        return tuple(sorted(pc.unique(self._batches.read(["pipeline"])["pipeline"]).to_pylist()))

    def batches(
        self, pipeline: str | None = None, *, lane: str | None = None, last: int | None = None
    ) -> tuple[BatchRow, ...]:
        """Settled batches, the newest last."""
        where = same(pipeline=pipeline, lane=lane)
        if last is not None:
            where = both(where, self._newest(last, where))
        rows = self._batches.read(where=where)
        rows = rows.sort_by([("finished_at", "ascending"), ("batch", "ascending")])
        return batches_of(rows if last is None else rows.slice(max(len(rows) - last, 0)))

    def tables(
        self, pipeline: str | None = None, *, schema_ids: bool = True
    ) -> tuple[TableSummary, ...]:
        """Every table with its sums over all batches, by name.

        `schema_ids=False` saves half of the time where nobody looks at them.
        """
        sums = self._tables.query(SUMMARY_SQL)
        if sums is None:
            return ()
        ids = self._tables.query(schema_ids_sql(BY_TABLE)) if schema_ids else None
        parked = self.parked(pipeline) if pc.sum(sums["parked"]).as_py() else ()
        return summaries(sums, ids, parked, pipeline=pipeline)

    def places(self) -> list[tuple[str, str]]:
        """Name and folder of every table: what nobody has to add up."""
        found = self._tables.query(PLACES_SQL)
        return [] if found is None else [(row["table"], row["path"]) for row in found.to_pylist()]

    def dead_letters(self) -> dict[str, str]:
        """The folder of each pipeline's dead letters."""
        found = self._tables.query(LETTERS_SQL)
        rows = [] if found is None else found.to_pylist()
        return {row["pipeline"]: row["path"] for row in rows}

    def last_commits(self, pipeline: str | None = None) -> tuple[LastCommit, ...]:
        """What each lane of each life has written to each table."""
        found = self._tables.query(LAST_COMMITS_SQL)
        rows = () if found is None else (LastCommit(**row) for row in found.to_pylist())
        return tuple(row for row in rows if pipeline in (None, row.pipeline))

    def table_batches(self, commit: LastCommit) -> pa.Table:
        """What a lane did to a table, batch by batch: batch, rows, version, outcome, batches."""
        key = {"pipeline": commit.pipeline, "life": commit.life, "lane": commit.lane}
        columns = ["batch", "rows", "version", "outcome", "batches"]
        return self._tables.read(columns, same(**key, table=commit.table)).sort_by("batch")

    def accept(self, taken: Sequence[Accepted]) -> None:
        """Says of tables that they count as they are now, whatever was written to them before."""
        moment = datetime.now(UTC)
        for one in taken:
            app = f"{one.commit.app_id}/{ACCEPTED}/{one.commit.table}"
            # there may be several in the time between two batches
            number = int(moment.timestamp() * 1_000_000)
            self._tables.append_once(accepted_row(one, at=moment), app_id=app, version=number)

    def batch(self, pipeline: str, number: int) -> tuple[BatchRow, ...]:
        """Settled batches of this number: lanes and lives count for themselves. The newest last."""
        rows = self._batches.read(where=same(pipeline=pipeline, batch=number))
        return batches_of(rows.sort_by([("finished_at", "ascending")]))

    def timeline(self, columns: Sequence[str]) -> pa.Table:
        """Some columns of all batches of the streams; sums of old batches are left out."""
        rows = self._batches.read(columns, both(same(lane="stream"), pc.field("batches") == 1))
        return rows.sort_by([("finished_at", "ascending")])

    def commits(self, table: str, *, pipeline: str, since: int) -> pa.Table:
        """What batches from number `since` on did to one table, the newest last."""
        columns = ["lane", "batch", "at", "records", "rows", "bytes", "outcome", "version", "error"]
        columns += OP_COLUMNS.values()
        where = both(same(pipeline=pipeline, table=table), pc.field("batch") >= since)
        return self._tables.read(columns, where).sort_by([("at", "ascending")])

    def batch_tables(self, batch: BatchRow) -> tuple[TableRow, ...]:
        """What one batch did to each of its tables."""
        where = both(_of(batch.key), text("outcome") != ACCEPTED)
        return tables_of(self._tables.read(where=where))

    def parked(self, pipeline: str | None = None) -> tuple[TableRow, ...]:
        """What waits for parked tables: one row per batch and table, oldest first."""
        where = both(text("outcome").isin([PARKED, RESUMED]), same(pipeline=pipeline))
        rows = self._tables.read(where=where).sort_by([("table", "ascending"), ("at", "ascending")])
        return still_parked(tables_of(rows))

    def schema_history(
        self, type_or_table: str | None = None, *, pipeline: str | None = None
    ) -> tuple[SchemaRow, ...]:
        """What schemas changed, oldest first."""
        where = same(pipeline=pipeline)
        if type_or_table is not None:
            named = (text("type") == type_or_table) | (text("table") == type_or_table)
            where = both(where, named)
        return schemas_of(self._schemas.read(where=where).sort_by([("at", "ascending")]))

    def totals(self, pipeline: str) -> Counts:
        """The equation over everything this pipeline ever did, as it stands now."""
        counts = [each.name for each in fields(Counts)]
        rows = self._batches.read([*BATCH_KEY, *counts], same(pipeline=pipeline)).to_pylist()
        batches = [
            (
                (row["pipeline"], row["life"], row["lane"], row["batch"]),
                Counts(*(row[name] for name in counts)),
            )
            for row in rows
        ]
        any_parked = any(each.parked for _, each in batches)
        return total(batches, waiting(self.parked(pipeline)) if any_parked else {})

    def find_batch(self, topic: str, partition: int, offset: int) -> tuple[FoundBatch, ...]:
        """The batches that read this record, each with the tables that may hold it."""
        found = covering(self._batches.read(), topic=topic, partition=partition, offset=offset)
        batches = batches_of(found)
        return tuple(FoundBatch(b, self._tables_at(b, offset)) for b in batches)

    def replayed_tables(self, pipeline: str, offset: int) -> tuple[TableRow, ...]:
        """Rows of replayed batches in which a dead letter with this offset may have ended."""
        where = both(same(pipeline=pipeline, lane="replay"), may_hold(offset))
        return tables_of(self._tables.read(where=where))

    def shared_tables(self, pipeline: str, offset: int) -> tuple[TableRow, ...]:
        """Rows of the jobs that share a pipeline's types, where a record may have ended."""
        jobs = rf"^{re.escape(pipeline)}-(shard-[0-9]+|unified)$"
        theirs = pc.match_substring_regex(pc.field("pipeline"), jobs)
        where = both(both(same(lane="stream"), may_hold(offset)), theirs)
        return tables_of(self._tables.read(where=where))

    def schema_use(self) -> pa.Table | None:
        """Which schemas each table has records of, as `schema_use.uses_of` reads it."""
        return self._tables.query(SCHEMA_USE_SQL)

    def rules(self, pipeline: str | None = None) -> tuple[TableRule, ...]:
        """What every rule has found in every table, over all batches."""
        found = self._tables.query(rules_sql(BY_TABLE))
        rows = () if found is None else table_rules(found)
        return tuple(row for row in rows if pipeline in (None, row.pipeline))

    def read_ranges(self, pipeline: str | None = None, *, life: str | None = None) -> pa.Table:
        """How far each partition was read: topic, partition, first, end, records."""
        rows = self._batches.read(["ranges"], same(lane="stream", pipeline=pipeline, life=life))
        sums = [("start", "min"), ("end", "max"), ("records", "sum")]
        return (
            flat_ranges(rows)
            .group_by(["topic", "partition"])
            .aggregate(sums)
            .select(["topic", "partition", "start_min", "end_max", "records_sum"])
            .rename_columns(["topic", "partition", "first", "end", "records"])
        )

    def covered(self) -> pa.Table:
        """What each life of each pipeline has read: its topics, partitions, starts and ends."""
        rows = self._batches.read(["pipeline", "life", "ranges"], same(lane="stream"))
        flat = flat_ranges(rows)
        for name in ("pipeline", "life"):
            flat = flat.append_column(name, rows[name].take(flat["row"]))
        ends = flat.group_by(["pipeline", "life", "topic", "partition"]).aggregate(
            [("start", "min"), ("end", "max")]
        )
        return ends.rename_columns({"start_min": "start", "end_max": "end"})

    def expire(self, before: datetime) -> Expired:
        """Turns rows from before this moment into sums. Totals stay what they were.

        A crash in the middle leaves all sums right: run it again.
        """
        moment = before.astimezone(UTC)
        if not self.pipelines():
            return Expired(0, 0)
        summed = {"batches": 0, "tables": 0}

        def tables() -> pa.Table | None:
            old = f"outcome <> 'parked' AND at < '{moment.isoformat()}'"
            sums = self._tables.query(ROLLED_TABLES_SQL.replace("{where}", old))
            ids = self._tables.query(schema_ids_sql(BY_LANE, old))
            rules = self._tables.query(rules_sql(BY_LANE, old))
            if sums is None or ids is None or rules is None or not len(sums):
                return None
            summed["tables"] = pc.sum(sums["summed"]).as_py()
            waits = [row for row in self.parked() if row.at < moment]
            return roll_tables(sums, ids, rules, keep=waits)

        def batches() -> pa.Table | None:
            old = pc.field("finished_at") < pc.scalar(moment)
            rows = batches_of(self._batches.read(where=old))
            summed["batches"] = len(rows)
            return roll_batches(rows, keep=set(waiting(self.parked()))) if rows else None

        self._tables.replace_before("at", moment, tables)
        self._batches.replace_before("finished_at", moment, batches)
        return Expired(**summed)

    def forget(self, pipeline: str) -> None:
        """Removes everything the ledger says about a pipeline, as `clean` does with its tables."""
        for store in (self._batches, self._tables, self._schemas):
            store.forget(pipeline)

    def _newest(self, count: int, where: pc.Expression | None) -> pc.Expression | None:
        """A condition that lets (at least) the newest batches through, from one narrow column."""
        ends = self._batches.read(["finished_at"], where)["finished_at"]
        if len(ends) <= count or count < 1:
            return None
        oldest = ends.take(pc.array_sort_indices(ends, order="descending"))[count - 1]
        return pc.field("finished_at") >= oldest

    def _tables_at(self, batch: BatchRow, offset: int) -> tuple[TableRow, ...]:
        where = _of(batch.key)
        if batch.batches > 1:
            # in a sum, each table stands with the last batch that touched it
            lane = same(pipeline=batch.pipeline, life=batch.life, lane=batch.lane)
            where = both(lane, pc.field("batch") <= batch.batch)
        return tables_of(self._tables.read(where=both(where, may_hold(offset))))


def _of(key: BatchKey) -> pc.Expression | None:
    """Rows of one batch."""
    pipeline, life, lane, batch = key
    return same(pipeline=pipeline, life=life, lane=lane, batch=batch)
