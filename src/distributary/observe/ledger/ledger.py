"""The ledger: three Delta tables in the lake that record each settled batch exactly once."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import numpy.typing as npt
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

from distributary.delta.compact import (
    BusyError,
    RowsLostError,
    Sizes,
    bins,
    exchange_all,
    refusal,
    rewritten,
)
from distributary.delta.log import BrokenLogError, load
from distributary.delta.tables import (
    OvertakenError,
    conflict_attempts,
    dataset,
    load_table,
    open_table,
    reaching_table,
    read_rows,
    scanner,
    update_table,
)
from distributary.errors import DistributaryError, LakeUnavailableError
from distributary.model import layout
from distributary.model.change import OP_COLUMNS
from distributary.model.manifest import Counts, Manifest, Mark, SourceRange, TableEntry
from distributary.model.record import TIMESTAMP
from distributary.observe.ledger.ledger_rows import (
    ACCEPTED,
    BATCH_KEY,
    BY_LANE,
    NUMBERING_SQL,
    PARKED,
    RESUMED,
    BatchKey,
    BatchRow,
    FoundBatch,
    LaneKey,
    LastCommit,
    NewestBatch,
    SchemaRow,
    TableRow,
    TableRule,
    TableSummary,
    batches_of,
    both,
    covering,
    may_hold,
    ranges_with,
    rules_sql,
    same,
    schema_ids_sql,
    schemas_of,
    summaries,
    table_rules,
    tables_of,
    text,
)
from distributary.observe.ledger.recording import (
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
    table_rows,
    total,
    waiting,
)
from distributary.observe.ledger.sums import (
    BLOCK,
    LANES_VIEW,
    PARKED_VIEW,
    RANGES_VIEW,
    RULES_VIEW,
    SCHEMA_IDS_VIEW,
    TOTALS_VIEW,
    Sums,
    Views,
)
from distributary.publish.base import Published
from distributary.store.base import at, options_of

_log = logging.getLogger(__name__)

UPKEEP_EVERY = 25
"""Commits between two compactions, and so the most small files that a reader opens."""
TARGET_FILE_SIZE = 4 << 20
"""The target size of files: a compromise between cheap compaction and fast reading."""

_UPKEEP_ERRORS = (DistributaryError, DeltaError, OSError, pa.ArrowException, BrokenLogError)
"""Errors of upkeep, which must not fail a batch that is recorded already."""
_SUMS = "_sums"
"""The folder of the sums in the table's folder; readers of Delta ignore such names."""
_SUMS_MARK = "distributary/ledger/sums/newest"
"""The application id of the mark that names the sums of a version."""
_SUMS_KEPT_NS = 3_600 * 10**9
_PORTION_ROWS = 262_144
_MERGED_ROWS = 65_536
"""The number of rows of a view that are collected before they are merged."""

_WHOLE = "arrow_cast(NULL, 'Int64')"
_NULLS = {
    pa.int64(): _WHOLE,
    pa.float64(): "arrow_cast(NULL, 'Float64')",
    TIMESTAMP: """arrow_cast(NULL, 'Timestamp(Microsecond, Some("UTC"))')""",
    pa.list_(RULE): "CASE WHEN false THEN make_array(named_struct("
    f"'rule', '', 'action', '', 'checked', {_WHOLE}, 'violated', {_WHOLE}, "
    "'unfit', '', 'example', '')) END",
}
"""The SQL of null for the types of columns that were added to the ledger later."""

PROPERTIES = {
    # opening a table costs as much as there are commits after its newest checkpoint, and a
    # commit as much as there are files in its log (2,000 of them: 20 ms). Readers of the ledger
    # hold a version for seconds, and no reader asks for its past: neither has to be kept for long
    "delta.checkpointInterval": "20",
    "delta.logRetentionDuration": "interval 10 minutes",
    "delta.deletedFileRetentionDuration": "interval 1 hour",
}


class LedgerVersion(NamedTuple):
    """An opened version of a ledger table."""

    table: DeltaTable
    files: ds.Dataset | None
    """None for a table that only the engine inside deltalake can read."""
    sums: int | None
    """The number of the sums of this version."""


class LedgerTable:
    """A ledger table, which only Distributary writes. Thread-safe."""

    def __init__(
        self,
        path: str,
        *,
        schema: pa.Schema,
        indexed: Sequence[str],
        description: str,
        views: Views = MappingProxyType({}),
    ) -> None:
        """`indexed` are texts and numbers by which files can be skipped when reading.

        `views` are kept as sums beside the table: see `sums`.
        """
        self.path = path
        self.schema = schema
        self._views = views
        self._looked = False
        """Whether this process has counted the files that are not in the sums."""
        self._indexed = tuple(indexed)
        self._description = description
        self._lock = threading.Lock()
        self._table: DeltaTable | None = None
        self._holds = False
        self._held: LedgerVersion | None = None
        """The version that all reads use, if one is held."""
        self._held_sums: Mapping[str, pa.Table] | None = None

    def hold(self, *, version: int | None = None) -> None:
        """Make all reads use one version; the newest by default.

        Opening a table costs more than reading it.
        """
        self._holds, self._held, self._held_sums = True, self._open(version), None

    def _open(self, number: int | None = None) -> LedgerVersion | None:
        """Open a version with its marks, before other processes shorten the log."""
        for last in (False, False, True):
            table = open_table(self.path, version=number)
            if table is None:
                return None
            try:
                with reaching_table(self.path):
                    return LedgerVersion(
                        table, dataset(table), table.transaction_version(_SUMS_MARK)
                    )
            except LakeUnavailableError:
                # a writer may have removed the commits with the mark meanwhile
                if last:
                    raise
        return None

    def sums(self) -> Mapping[str, pa.Table]:
        """Return the views over all rows, from the stored sums and the rows since then."""
        if self._held_sums is not None:
            return self._held_sums
        version = self._held if self._holds else self._open()
        if version is None:
            return {name: view.schema.empty_table() for name, view in self._views.items()}
        with reaching_table(self.path):
            found = self._summed(version)
        if self._holds:
            self._held_sums = found
        return found

    def _summed(self, version: LedgerVersion) -> Mapping[str, pa.Table]:
        kept, fresh = self._uncovered(version)
        gathered: dict[str, list[pa.Table]] = {
            name: [kept.views[name]] if kept else [] for name in self._views
        }
        for rows in self._portions(version.table, fresh):
            for name, view in self._views.items():
                parts = gathered[name]
                parts.append(view.lift(rows.select(view.needs)))
                if sum(map(len, parts)) > _MERGED_ROWS:
                    parts[:] = [view.merge(parts)]
        return {name: view.merge(gathered[name]) for name, view in self._views.items()}

    def _uncovered(self, version: LedgerVersion) -> tuple[Sums | None, ds.Dataset | None]:
        """Return the sums of this version, and the files whose rows are not in them.

        Sums that contain a file which is no longer in the table are invalid: its rows are in
        another file.
        """
        files, number = version.files, version.sums
        if files is None or number is None:
            return None, files
        try:
            kept = Sums.from_bytes(bytes(at(self.path).read(_sums_name(number))), self._views)
        except FileNotFoundError:
            return None, files
        fragments = {fragment.path: fragment for fragment in files.get_fragments()}
        if kept is None or not kept.covered <= fragments.keys():
            return None, files
        fresh = [fragment for path, fragment in fragments.items() if path not in kept.covered]
        return kept, ds.FileSystemDataset(
            fresh, schema=files.schema, format=files.format, filesystem=files.filesystem
        )

    def _portions(self, table: DeltaTable, files: ds.Dataset | None) -> Iterator[pa.Table]:
        """Yield rows of some files with all columns, as many at once as fit into memory."""
        read = scanner(table, None) if files is None else files.scanner()
        batches: list[pa.RecordBatch] = []
        rows = 0
        for batch in read.to_batches():
            batches.append(batch)
            rows += batch.num_rows
            if rows >= _PORTION_ROWS:
                yield self._completed(pa.Table.from_batches(batches))
                batches, rows = [], 0
        if batches:
            yield self._completed(pa.Table.from_batches(batches))

    def _completed(self, rows: pa.Table) -> pa.Table:
        """Return rows with all current columns, in the types that the views expect."""
        have = set(rows.column_names)
        columns = [
            rows[field.name].cast(field.type)
            if field.name in have
            else pa.nulls(len(rows), field.type)
            for field in self.schema
        ]
        return pa.table(columns, schema=self.schema)

    def append_once(self, rows: pa.Table, *, app_id: str, version: int) -> bool:
        """Append rows in one commit with the mark (app_id, version), unless the mark exists.

        After a lost answer, a second call or a second process with the same mark, the rows are in
        the table once. Return False if they were there before.
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
            if (table.version() + 1) % UPKEEP_EVERY == 0 or self._is_behind():
                self._upkeep()
            return True

    def _is_behind(self) -> bool:
        """Return whether many files are not in the sums; checked once, at a process's first commit.

        This is so in lakes from before there were sums, and if processes end after few batches.
        """
        if self._looked:
            return False
        self._looked = True
        # a new handle, because the log may have been shortened since this one's commit
        version = self._open()
        _, fresh = (None, None) if version is None else self._uncovered(version)
        return fresh is not None and len(fresh.files) > UPKEEP_EVERY

    def replace_before(
        self, column: str, moment: datetime, rows: Callable[[], pa.Table | None]
    ) -> None:
        """Replace all rows whose `column` is before a moment, in one commit.

        `rows` reads the table and returns the replacement, or None for no change. It is called
        again if another process has added such rows meanwhile.
        """
        with self._writing():
            for attempt in conflict_attempts():
                with attempt:
                    # the handle is opened first: rows that are added later are a conflict
                    table = self._newest()
                    replacement = rows()
                    if replacement is None:
                        return
                    write_deltalake(
                        table,
                        replacement,
                        mode="overwrite",
                        # only a name from our own schema and a time, no text from outside
                        predicate=f"{column} < '{moment.isoformat()}'",
                    )
            self._upkeep()

    def forget(self, pipeline: str) -> None:
        """Delete the rows of a pipeline."""
        if open_table(self.path) is None:
            return
        with self._writing():
            for attempt in conflict_attempts():
                with attempt:
                    delete_pipeline(self._newest(), pipeline)
            self._upkeep()

    def tidy(self) -> None:
        """Compact small files and bring the sums up to date, if the table exists."""
        if open_table(self.path) is not None:
            with self._writing():
                self._upkeep()

    def read(
        self, columns: Sequence[str] | None = None, where: pc.Expression | None = None
    ) -> pa.Table:
        """Read rows of the newest version; none if the table does not exist."""
        table, files = self._read_version()
        if table is None:
            return self.schema.empty_table().select(list(columns or self.schema.names))
        return read_rows(table, columns=columns, where=where, files=files)

    def _read_version(self) -> tuple[DeltaTable | None, ds.Dataset | None]:
        """Return the held version, or the newest one, with its files."""
        if not self._holds:
            return open_table(self.path), None
        return (None, None) if self._held is None else (self._held.table, self._held.files)

    def query(self, sql: str) -> pa.Table | None:
        """Run a fixed query over the table `ledger`, with deltalake's engine.

        For sums over millions of rows. Never put a value from outside into `sql`.
        """
        table, _ = self._read_version()
        if table is None:
            return None
        if missing := self._missing(table):
            # with null for columns that the stored table lacks
            nulls = ", ".join(f"{_NULLS[field.type]} AS {field.name}" for field in missing)
            sql = f"WITH ledger AS (SELECT *, {nulls} FROM stored) {sql}"  # noqa: S608
        with reaching_table(self.path):
            query = QueryBuilder().register("stored" if missing else "ledger", table)
            return pa.table(query.execute(sql).read_all())

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._lock, reaching_table(self.path):
            try:
                yield
            except BaseException:
                # the state of this handle may be outdated now
                self._table = None
                raise

    def _newest(self) -> DeltaTable:
        if self._table is None:
            self._table = open_table(self.path) or self._create()
            missing = self._missing(self._table)
            if missing:
                # rows of an earlier version lack these columns
                self._table.alter.add_columns(Schema.from_arrow(pa.schema(missing)).fields)
        else:
            update_table(self._table, self.path)
        return self._table

    def _missing(self, table: DeltaTable) -> list[pa.Field]:
        """Return the columns that the table lacks."""
        known = {field.name for field in table.schema().fields}
        return [field for field in self.schema if field.name not in known]

    def _create(self) -> DeltaTable:
        return DeltaTable.create(
            self.path,
            self.schema,
            # if two processes create the table at once, the second uses that of the first
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
        """Compact small files, bring the sums up to date, and remove outdated files.

        Each step is one commit or none, so that the table is valid after a crash.
        """
        try:
            self._compact()
            table = self._newest()
            table.create_checkpoint()
            place = at(self.path)
            place.listed_by(lambda: table.vacuum(dry_run=False, full=True))
            place.listed_by(table.cleanup_metadata)
        except (BusyError, OvertakenError, RowsLostError, *_UPKEEP_ERRORS) as error:
            # another process does the same now; the next turn catches up
            _log.info("ledger not compacted this time: %s", error)

    def _compact(self) -> None:
        place = at(self.path)
        state = load(place)
        if state is None or refusal(state):
            return
        table = load_table(self.path, version=state.version)
        version = LedgerVersion(table, dataset(table), state.marks.get(_SUMS_MARK))
        _, uncovered = self._uncovered(version)
        fresh = uncovered is None or uncovered.files
        views = self._summed(version)
        groups = bins(state.files.values(), Sizes(TARGET_FILE_SIZE, min_files=2))
        if not groups and not fresh:
            return
        swaps = rewritten(state, groups, lambda: None)
        gone = {file.path for swap in swaps for file in swap.removed}
        new = {swap.added.path for swap in swaps if swap.added is not None}
        # names of sums are never reused, because sums of a failed attempt belong to no version
        number = max(time.time_ns(), state.marks.get(_SUMS_MARK, 0) + 1)
        sums = Sums(frozenset(state.files.keys() - gone | new), views)
        place.write(_sums_name(number), sums.to_bytes())
        exchange_all(state, swaps, Mark(_SUMS_MARK, number, ""))
        self._forget_sums(number)

    def _forget_sums(self, newest: int) -> None:
        """Remove sums that only readers of old versions could need."""
        folder = at(self.path).below(_SUMS)
        oldest = newest - _SUMS_KEPT_NS
        for info in folder.files():
            stem = info.name.partition(".")[0]
            if stem.isdigit() and int(stem) < oldest:
                folder.remove(info.name)


def _sums_name(number: int) -> str:
    return f"{_SUMS}/{number}.arrow"


def delete_pipeline(table: DeltaTable, pipeline: str) -> None:
    """Delete the rows of a pipeline, whose name never becomes part of SQL text."""
    wanted, same_name = pa.table({"pipeline": [pipeline]}), "t.pipeline = s.pipeline"
    merge = table.merge(wanted, same_name, source_alias="s", target_alias="t")
    merge.when_matched_delete().execute()


@dataclass(frozen=True, slots=True)
class Expired:
    """The number of detail rows that an expiry has replaced by sums."""

    batches: int
    tables: int


class Ledger:
    """Writes and reads the ledger of a lake. A lake without one reads as empty."""

    def __init__(self, lake: str) -> None:
        self.lake = lake

        def store(
            name: str, schema: pa.Schema, description: str, *indexed: str, views: Views
        ) -> LedgerTable:
            return LedgerTable(
                layout.ledger_table(lake, name),
                schema=schema,
                indexed=("pipeline", "batch", *indexed),
                description=description,
                views=views,
            )

        self._batches = store(
            "batches",
            BATCHES,
            "one row per finished batch",
            views={"totals": TOTALS_VIEW, "ranges": RANGES_VIEW},
        )
        self._tables = store(
            "tables",
            TABLES,
            "one row per batch and table",
            "outcome",
            views={
                "lanes": LANES_VIEW,
                "rules": RULES_VIEW,
                "schema_ids": SCHEMA_IDS_VIEW,
                "parked": PARKED_VIEW,
            },
        )
        self._schemas = store(
            "schemas", SCHEMAS, "one row per change that a schema brought", views={}
        )

    def hold(self, *, tables: int | None = None) -> Ledger:
        """Make further reads use the current version, for one consistent answer.

        With `tables` the rows of tables are those of that version.
        """
        # in the order of writing, so that no batch lacks its tables
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
        """Record a settled batch. After a crash in here, call it again with the same batch."""
        check_balance(manifest, counts)
        results = outcomes(manifest, published)
        at = times.finished_at or datetime.now(UTC)
        app_id, number = manifest.app_id, manifest.batch
        # the batch's own row is written last, so it proves that all others exist
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
        """Record that tables have got batches for which they were parked.

        Call it in the order of batches. Results that are still `parked`, or recorded before, are
        ignored.
        """
        if result.outcome == PARKED:
            return
        key, at = batch_key(app_id, batch), datetime.now(UTC)
        rows = table_rows(key, [(entry, result)], at=at, outcome=RESUMED)
        mark = f"{app_id}/resumed/{entry.table.name}"
        self._tables.append_once(rows, app_id=mark, version=batch)

    def settled(self, pipeline: str, life: str, lane: str, batch: int) -> str | None:
        """Return the fingerprint of a settled batch's source ranges; None if it is not settled."""
        where = _of((pipeline, life, lane, batch))
        hashes = self._batches.read(["source_hash"], where)["source_hash"]
        return str(hashes[0].as_py()) if len(hashes) else None

    def newest_settled(self, app_id: str) -> int:
        """Return the newest settled batch of a lane, or -1.

        It is read from the mark of the last commit, without reading rows.
        """
        table = open_table(self._batches.path)
        if table is None:
            return -1
        with reaching_table(self._batches.path):
            mark = table.transaction_version(app_id)
        if mark is not None:
            return int(mark)
        pipeline, life, lane, _ = batch_key(app_id, 0)
        totals = self._batches.sums()["totals"]
        found = totals.filter(_of_lane(pipeline, life, lane))["batch"].to_pylist()
        return int(found[0]) if found else -1

    def settled_ranges(
        self, pipeline: str, life: str, lane: str, batch: int
    ) -> tuple[SourceRange, ...] | None:
        """Return the ranges of a settled batch, or None if it is not settled."""
        where = _of((pipeline, life, lane, batch))
        found = self._batches.read(["ranges"], where)["ranges"].to_pylist()
        return tuple(SourceRange(**one) for one in found[0] or ()) if found else None

    def pipelines(self) -> tuple[str, ...]:
        """Return the names of all pipelines that have settled a batch."""
        return tuple(sorted(set(self._batches.sums()["totals"]["pipeline"].to_pylist())))

    def batches(
        self, pipeline: str | None = None, *, lane: str | None = None, last: int | None = None
    ) -> tuple[BatchRow, ...]:
        """Return settled batches, the newest last."""
        where = same(pipeline=pipeline, lane=lane)
        rows = self._batches.read(where=where) if last is None else self._newest(last, where)
        rows = rows.sort_by([("finished_at", "ascending"), ("batch", "ascending")])
        return batches_of(rows if last is None else rows.slice(max(len(rows) - last, 0)))

    def tables(
        self, pipeline: str | None = None, *, schema_ids: bool = True
    ) -> tuple[TableSummary, ...]:
        """Return every table with its sums over all batches, by name."""
        views = self._tables.sums()
        sums = LANES_VIEW.merge([views["lanes"]], keys=("pipeline", "table"))
        ids = views["schema_ids"] if schema_ids else None
        return summaries(sums, ids, tables_of(views["parked"]), pipeline=pipeline)

    def places(self) -> list[tuple[str, str]]:
        """Return name and folder of every table, without sums."""
        rows = self._tables.sums()["lanes"].select(["table", "path"]).to_pylist()
        return sorted({row["table"]: row["path"] for row in rows}.items())

    def dead_letters(self) -> dict[str, str]:
        """Return the folder of each pipeline's dead letters."""
        lanes = self._tables.sums()["lanes"].filter(pc.field("role") == "dead_letters")
        rows = lanes.sort_by([("pipeline", "ascending"), ("path", "ascending")]).to_pylist()
        return {row["pipeline"]: row["path"] for row in rows}

    def last_commits(self, pipeline: str | None = None) -> tuple[LastCommit, ...]:
        """Return the last commit of each lane of each life to each table."""
        lanes = self._tables.sums()["lanes"]
        if pipeline is not None:
            lanes = lanes.filter(pc.field("pipeline") == pipeline)
        named = {"batch": "commit_batch", "version": "commit_version", "since": "first_seen"}
        names = [each.name for each in fields(LastCommit)]
        rows = pa.table({name: lanes[named.get(name, name)] for name in names})
        return tuple(LastCommit(**row) for row in rows.to_pylist())

    def newest_batches(self) -> tuple[NewestBatch, ...]:
        """Return the newest settled batch of each lane of each life, the oldest first."""
        names = [each.name for each in fields(NewestBatch)]
        rows = self._batches.sums()["totals"].select(names).sort_by("finished_at")
        return tuple(NewestBatch(**row) for row in rows.to_pylist())

    def numbered(self, lane: LaneKey, first: int, last: int) -> pa.Table:
        """Return the batches of a lane whose numbers lie between two, in order.

        Columns: batch, finished_at, read, rows, tables, batches. Files without such numbers are not
        read.
        """
        columns = ["batch", "finished_at", "read", "rows", "tables", "batches"]
        where = both(_of_lane(*lane), _between(first, last))
        return self._batches.read(columns, where).sort_by("batch")

    def versions(self, lane: LaneKey, first: int, last: int) -> pa.Table:
        """Return the commits of the batches of a lane between two: batch, table, version."""
        live = pc.field("version").is_valid() & (text("outcome") != ACCEPTED)
        where = both(both(_of_lane(*lane), _between(first, last)), live)
        return self._tables.read(["batch", "table", "version"], where).sort_by("batch")

    def table_batches(self, commit: LastCommit) -> pa.Table:
        """Return a lane's batches of a table: batch, rows, version, outcome, batches."""
        key = {"pipeline": commit.pipeline, "life": commit.life, "lane": commit.lane}
        columns = ["batch", "rows", "version", "outcome", "batches"]
        return self._tables.read(columns, same(**key, table=commit.table)).sort_by("batch")

    def accept(self, taken: Sequence[Accepted]) -> None:
        """Record that tables are accepted in their current state."""
        moment = datetime.now(UTC)
        for one in taken:
            app = f"{one.commit.app_id}/{ACCEPTED}/{one.commit.table}"
            # a table may be accepted several times between two batches
            number = int(moment.timestamp() * 1_000_000)
            self._tables.append_once(accepted_row(one, at=moment), app_id=app, version=number)

    def batch(self, pipeline: str, number: int) -> tuple[BatchRow, ...]:
        """Return the settled batches with a number, of all lanes and lives, the newest last."""
        rows = self._batches.read(where=same(pipeline=pipeline, batch=number))
        return batches_of(rows.sort_by([("finished_at", "ascending")]))

    def timeline(self, columns: Sequence[str]) -> pa.Table:
        """Return some columns of all batches of the streams, without sums of old batches."""
        rows = self._batches.read(columns, both(same(lane="stream"), pc.field("batches") == 1))
        return rows.sort_by([("finished_at", "ascending")])

    def commits(self, table: str, *, pipeline: str, since: int) -> pa.Table:
        """Return the commits of batches from number `since` on to one table, the newest last."""
        columns = ["lane", "batch", "at", "records", "rows", "bytes", "outcome", "version", "error"]
        columns += OP_COLUMNS.values()
        where = both(same(pipeline=pipeline, table=table), pc.field("batch") >= since)
        return self._tables.read(columns, where).sort_by([("at", "ascending")])

    def batch_tables(self, batch: BatchRow) -> tuple[TableRow, ...]:
        """Return the row of each table of one batch."""
        where = both(_of(batch.key), text("outcome") != ACCEPTED)
        return tables_of(self._tables.read(where=where))

    def parked(self, pipeline: str | None = None) -> tuple[TableRow, ...]:
        """Return the parked batches: one row per batch and table, oldest first."""
        rows = self._tables.sums()["parked"]
        if pipeline is not None:
            rows = rows.filter(pc.field("pipeline") == pipeline)
        return tables_of(rows.sort_by([("table", "ascending"), ("at", "ascending")]))

    def schema_history(
        self, type_or_table: str | None = None, *, pipeline: str | None = None
    ) -> tuple[SchemaRow, ...]:
        """Return the schema changes, oldest first."""
        where = same(pipeline=pipeline)
        if type_or_table is not None:
            named = (text("type") == type_or_table) | (text("table") == type_or_table)
            where = both(where, named)
        return schemas_of(self._schemas.read(where=where).sort_by([("at", "ascending")]))

    def totals(self, pipeline: str) -> Counts:
        """Return the current equation over all batches of this pipeline."""
        lanes = self._batches.sums()["totals"].filter(pc.field("pipeline") == pipeline)
        names = [each.name for each in fields(Counts)]
        sums = [
            (
                (row["pipeline"], row["life"], row["lane"]),
                Counts(*(row[name] or 0 for name in names)),
            )
            for row in lanes.to_pylist()
        ]
        still: dict[BatchKey | LaneKey, int] = {}
        if any(counts.parked for _, counts in sums):
            still = self._still_parked(pipeline)
        return total(sums, still)

    def _still_parked(self, pipeline: str) -> dict[BatchKey | LaneKey, int]:
        """Return the number of records of each lane that are still parked."""
        still: dict[BatchKey | LaneKey, int] = defaultdict(int)
        due = waiting(self.parked(pipeline))
        if not due:
            return still
        where = both(same(pipeline=pipeline), pc.field("parked") > 0)
        for row in self._batches.read([*BATCH_KEY, "parked"], where).to_pylist():
            *lane, number = (row[name] for name in BATCH_KEY)
            key = (lane[0], lane[1], lane[2])
            still[key] += min(row["parked"], due.get((*key, number), 0))
        return still

    def find_batch(self, topic: str, partition: int, offset: int) -> tuple[FoundBatch, ...]:
        """Find the batches that read this record, each with the tables that may hold it."""
        ranges = self._batches.sums()["ranges"]
        blocks = ranges_with(ranges, topic=topic, partition=partition, offset=offset)
        found: list[BatchRow] = []
        for row in blocks.select(["pipeline", "life", "lane", "block"]).to_pylist():
            first, lane = row.pop("block") * BLOCK, same(**row)
            number = pc.field("batch")
            within = both(lane, both(number >= first, number < first + BLOCK))
            rows = self._batches.read(where=within)
            found += batches_of(covering(rows, topic=topic, partition=partition, offset=offset))
        batches = sorted({b.key: b for b in found}.values(), key=lambda b: b.finished_at)
        return tuple(FoundBatch(b, self._tables_at(b, offset)) for b in batches)

    def replayed_tables(self, pipeline: str, offset: int) -> tuple[TableRow, ...]:
        """Return rows of replayed batches that may contain a dead letter with this offset."""
        lanes = self._tables.sums()["lanes"].filter(
            (pc.field("pipeline") == pipeline) & (pc.field("lane") == "replay")
        )
        if not len(lanes):
            return ()
        where = both(same(pipeline=pipeline, lane="replay"), may_hold(offset))
        return tables_of(self._tables.read(where=where))

    def shared_tables(self, pipeline: str, offset: int) -> tuple[TableRow, ...]:
        """Return rows of jobs that share a pipeline's types and may have written a record."""
        jobs = rf"^{re.escape(pipeline)}-(shard-[0-9]+|unified)$"
        theirs = pc.match_substring_regex(pc.field("pipeline"), jobs)
        if not len(self._tables.sums()["lanes"].filter(theirs)):
            return ()
        where = both(both(same(lane="stream"), may_hold(offset)), theirs)
        return tables_of(self._tables.read(where=where))

    def schema_use(self) -> pa.Table:
        """Return the schemas of each table's records, as `schema_use.uses_of` reads them."""
        rows = self._tables.sums()["schema_ids"].filter(~pc.field("parked"))
        return pa.table(
            {
                **{name: rows[name] for name in ("pipeline", "table", "id")},
                # known unless a batch mixed schemas; a sum of old batches has no first batch
                "rows": _only(pc.equal(rows["mixed"], 1), rows["rows"]),
                "first_batch": _only(pc.equal(rows["batches"], 1), rows["first_batch"]),
                **{name: rows[name] for name in ("last_batch", "first_seen", "last_seen")},
            }
        )

    def rules(self, pipeline: str | None = None) -> tuple[TableRule, ...]:
        """Return the results of every rule in every table, over all batches."""
        rows = table_rules(self._tables.sums()["rules"])
        return tuple(row for row in rows if pipeline in (None, row.pipeline))

    def read_ranges(self, pipeline: str | None = None, *, life: str | None = None) -> pa.Table:
        """Return the read range of each partition: topic, partition, first, end, records."""
        rows = RANGES_VIEW.merge([self._ranges(pipeline, life)], keys=("topic", "partition"))
        return rows.select(["topic", "partition", "start", "end", "records"]).rename_columns(
            ["topic", "partition", "first", "end", "records"]
        )

    def numbering(self) -> list[dict[str, Any]]:
        """Count the batches of each lane: pipeline, life, lane, newest number, batches."""
        found = self._batches.query(NUMBERING_SQL)
        return [] if found is None else found.to_pylist()

    def batch_numbers(self, pipeline: str, life: str, lane: str) -> npt.NDArray[np.int64]:
        """Return the numbers of a lane's batches in order; for a sum, all that it may cover."""
        rows = self._batches.read(
            ["batch", "batches"], same(pipeline=pipeline, life=life, lane=lane)
        )
        single = rows.filter(pc.field("batches") == 1)["batch"].to_numpy()
        sums = rows.filter(pc.field("batches") > 1)["batch"].to_pylist()
        return np.union1d(single, np.arange(max(sums, default=-1) + 1))

    def ranges(self, pipeline: str, life: str, *, last: int | None = None) -> pa.Table:
        """Read the source ranges of the batches of a life, or of its newest batches."""
        where = same(lane="stream", pipeline=pipeline, life=life)
        if last is not None:
            return self._newest(last, where).select(["ranges"])
        return self._batches.read(["ranges"], where)

    def covered(self) -> pa.Table:
        """Return the read ranges of each life of each pipeline."""
        keys = ("pipeline", "life", "topic", "partition")
        return RANGES_VIEW.merge([self._ranges()], keys=keys).select([*keys, "start", "end"])

    def _ranges(self, pipeline: str | None = None, life: str | None = None) -> pa.Table:
        where = both(same(lane="stream"), same(pipeline=pipeline, life=life))
        return self._batches.sums()["ranges"].filter(where)

    def expire(self, before: datetime) -> Expired:
        """Replace rows from before a moment by sums; totals do not change.

        After a crash all sums are correct: run it again.
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

    def tidy(self) -> None:
        """Compact the ledger's small files and bring its sums up to date."""
        for store in (self._batches, self._tables, self._schemas):
            store.tidy()

    def forget(self, pipeline: str) -> None:
        """Remove all rows about a pipeline, for `clean`."""
        for store in (self._batches, self._tables, self._schemas):
            store.forget(pipeline)

    def _newest(self, count: int, where: pc.Expression | None) -> pa.Table:
        """Read at least the newest batches; files with lower numbers are skipped."""
        lanes = self._batches.sums()["totals"]
        lanes = lanes if where is None else lanes.filter(where)
        found = [BATCHES.empty_table()]
        oldest: datetime | None = None
        for lane in lanes.sort_by([("finished_at", "descending")]).to_pylist():
            if oldest is not None and lane["finished_at"] < oldest:
                break
            # batches of a lane are numbered one after the other
            recent = pc.field("batch") > lane["batch"] - count
            key = same(**{name: lane[name] for name in ("pipeline", "life", "lane")})
            found.append(self._batches.read(where=both(key, recent)))
            ends = sorted(t for part in found for t in part["finished_at"].to_pylist())
            oldest = ends[-count] if 0 < count <= len(ends) else None
        return pa.concat_tables(found, promote_options="permissive")

    def _tables_at(self, batch: BatchRow, offset: int) -> tuple[TableRow, ...]:
        where = _of(batch.key)
        if batch.batches > 1:
            # in a sum, each table has the last batch that wrote to it
            lane = same(pipeline=batch.pipeline, life=batch.life, lane=batch.lane)
            where = both(lane, pc.field("batch") <= batch.batch)
        return tables_of(self._tables.read(where=both(where, may_hold(offset))))


def _of_lane(pipeline: str, life: str, lane: str) -> pc.Expression | None:
    """Return the condition for rows of one lane."""
    return same(pipeline=pipeline, life=life, lane=lane)


def _between(first: int, last: int) -> pc.Expression:
    """Return the condition for rows of the batches from `first` to `last`."""
    return (pc.field("batch") >= first) & (pc.field("batch") <= last)


def _only(mask: pa.ChunkedArray, values: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.if_else(mask, values, pa.scalar(None, values.type))


def _of(key: BatchKey) -> pc.Expression | None:
    """Return the condition for rows of one batch."""
    pipeline, life, lane, batch = key
    return same(pipeline=pipeline, life=life, lane=lane, batch=batch)
