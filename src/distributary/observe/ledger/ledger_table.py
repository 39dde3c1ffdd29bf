"""A Delta table of the ledger: rows are appended once, and kept with their sums."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple
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

from distributary.delta.compact import (
    BusyError,
    RowsLostError,
    Sizes,
    bins,
    exchange_all,
    refusal,
    rewritten,
)
from distributary.delta.log import load
from distributary.delta.log_reading import BrokenLogError
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
from distributary.model.manifest import Mark
from distributary.model.record import TIMESTAMP
from distributary.observe.ledger.recording import RULE
from distributary.observe.ledger.sums import Sums, Views
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
            if (table.version() + 1) % UPKEEP_EVERY == 0 or self._is_behind(table.version()):
                self._upkeep()
            return True

    def _is_behind(self, commits: int) -> bool:
        """Return whether many files are not in the sums; checked once, at a process's first commit.

        This is so in lakes from before there were sums, and if processes end after few batches.
        """
        if self._looked:
            return False
        self._looked = True
        # a commit adds one file: files of few commits are few, and need not be counted
        if commits < UPKEEP_EVERY:
            return False
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

    def mark(self, app_id: str) -> int | None:
        """Return the version of the last commit with a mark; None if it is unknown."""
        table, _ = self._read_version()
        if table is None:
            return None
        with reaching_table(self.path):
            return table.transaction_version(app_id)

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
