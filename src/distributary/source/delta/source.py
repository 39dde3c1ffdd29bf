"""Delta tables as sources: a table is a topic of one partition, and its rows are the offsets.

Reading begins with a snapshot of the table, the oldest files first, and continues commit by commit.
A position is `{snapshot, index, rows}` within the snapshot and `{version, index, rows}` after it:
the number of files of that version that are done, and the number of rows read in all. `table` is
the id of the table. If another table takes its place and is to be read, reading begins with a
snapshot of the new table: the batch's end names this start under `from`. Rows count on, so that no
offset comes twice, and `before` is the number of rows of earlier tables. `from` also names the
start of a batch that has passed commits without records, because the log may lose those at any
time. Tasks open the files with Arrow, on a disk or in a bucket: no record passes through the JVM.

A table that was restored from an older copy has the same id, and may have grown past the position
since. A position therefore also holds, under `commit`, the version and digest of the last commit
that was read and, under `files`, a fingerprint of the table's files at that point. If the log has
lost commits, the fingerprint shows whether these were all files of the table before the commits
that are left.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyspark.sql import SparkSession

from distributary.config.sources.delta import DeltaSourceConfig
from distributary.delta.compact import REMOVED
from distributary.delta.log import Action, BrokenLogError, actions_in, commit_name, read_commit
from distributary.delta.parquet import INT96_UNIT
from distributary.delta.tables import load_table
from distributary.errors import (
    DistributaryError,
    DivergedError,
    ErrorCode,
    SourceError,
    SourceUnavailableError,
    clean,
)
from distributary.model.cache import Cache
from distributary.model.manifest import SourceRange
from distributary.model.names import printable
from distributary.model.record import RAW, TIMESTAMP
from distributary.source.base import (
    BatchInput,
    Position,
    files_of,
    line_with,
    parallelism,
    replaced,
    spread,
    unverified,
)
from distributary.store.base import Info, at, introduce, leads_outside, without_secrets

# The log of a Delta table, as a source needs it: files in the order of commits.

_ELSEWHERE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")
"""The beginning of a path that is not within the table's folder."""
_UNREADABLE_FEATURES = {"deletionVectors", "columnMapping"}


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A file that a commit added."""

    path: str
    rows: int
    modified_us: int
    size: int | None = None


class DeltaLog:
    """A reader of a table's log: commit by commit, and whole versions through deltalake.

    A source is often another engine's table, with more features than our own tables.
    """

    def __init__(
        self, path: str, *, value: str, storage_options: Mapping[str, str] | None = None
    ) -> None:
        self.path = path.rstrip("/")
        self._value = value
        self.storage_options = dict(storage_options or {})
        introduce(self.path, self.storage_options)
        self._store = at(self.path)
        self.root = self._store.address
        self._table: DeltaTable | None = None
        """The table at the newest known version."""
        self._rows: dict[str, int] = {}
        self._commits: Cache[tuple[AddedFile, ...]] = Cache(1000)
        self._digests: Cache[str] = Cache(1000)
        self._rewritten: Cache[int] = Cache(1000)
        self._snapshots: Cache[tuple[AddedFile, ...]] = Cache(1)
        self.passed: dict[_Place, _Place] = {}
        """For the position that was asked for last, the position up to which no records follow."""
        self._newest = -1
        self._identity = ""
        self._newest_file: Info | None = None
        """The newest commit's file when the table was read."""

    def known(self) -> tuple[int, str]:
        """Return the newest version and the table's id, as of the last call of `newest_version`."""
        if self._newest < 0:
            self.newest_version()
        return self._newest, self._identity

    def table(self, version: int | None = None) -> DeltaTable:
        """Open the table; raise SourceError if it is missing or this source cannot read it."""
        try:
            table = load_table(self.path, version=version, options=self.storage_options)
        except TableNotFoundError as error:
            raise SourceUnavailableError(
                "the source table does not exist",
                where=self.path,
                next_step="create it (for a trial: `distributary produce games --to delta`), "
                "or correct source.path",
                reason="missing",
            ) from error
        except (DeltaError, OSError) as error:
            raise self._unavailable(error) from error
        self._refuse_unreadable(table)
        return table

    def newest_version(self) -> int:
        """Return the table's current version; cheap if nothing has changed, for frequent calls."""
        rewritten = False
        if self._newest >= 0 and self._newest_file is not None:
            with self._reaching():
                following = self._store.look(commit_name(self._newest + 1))
                current = self._look(self._newest)
                if following is None and current == self._newest_file:
                    return self._newest
            rewritten = current is not None and current != self._newest_file
        table = self.table()
        identity = str(table.metadata().id)
        if identity != self._identity or int(table.version()) <= self._newest or rewritten:
            # Versions of another table, or of an older copy, are other versions.
            self._commits.clear()
            self._digests.clear()
            self._rewritten.clear()
            self._snapshots.clear()
            self.passed.clear()
        self._newest, self._identity, self._table = int(table.version()), identity, table
        with self._reaching():
            self._newest_file = self._look(self._newest)
        return self._newest

    def snapshot(self, version: int) -> tuple[AddedFile, ...]:
        """Return all files of a version, the oldest first."""
        return self._snapshots.get(version, lambda: self._read_snapshot(version))

    def commit(self, version: int) -> tuple[AddedFile, ...]:
        """Return the files of new records that one commit added, in the commit's order."""
        return self._commits.get(version, lambda: self._read_commit(version))

    def digest(self, version: int) -> str:
        """Return the digest of a commit in the log; empty if the commit is gone."""

        def read() -> str:
            try:
                return _digest(self._commit_text(version))
            except FileNotFoundError:
                return ""

        # Missing commits are cached too: a snapshot asks for each of its files.
        return self._digests.get(version, read)

    def fingerprint_before(self, version: int) -> int:
        """Return the fingerprint of the table's files before a commit and all later ones."""
        fingerprint = sum(map(self.fingerprint, self.snapshot(self._newest)))
        for number in range(version, self._newest + 1):
            fingerprint -= sum(map(self.fingerprint, self.commit(number))) + self.rewritten_by(
                number
            )
        return fingerprint % _FINGERPRINTS

    def fingerprint(self, file: AddedFile) -> int:
        """Return the part of a file in the fingerprint of many."""
        return _fingerprint(file.path.removeprefix(f"{self.root}/"))

    def rewritten_by(self, version: int) -> int:
        """Return the effect of a commit's rewritten files on the fingerprint."""
        return self._rewritten.get(version, lambda: _rewritten(self._commit_text(version)))

    def count(self) -> int:
        """Return the number of rows of the table at the newest known version."""
        return int((self._table or self.table()).count())

    def oldest_behind(self, version: int) -> int:
        """Return the oldest version after a lost one whose commit is still in the log."""
        gone, there = version, self._newest
        with self._reaching():
            while there - gone > 1:
                middle = (gone + there) // 2
                gone, there = (middle, there) if self._look(middle) is None else (gone, middle)
        return there

    def rows_before(self, version: int) -> int:
        """Return the rows of the table before a commit and all later ones."""
        behind = range(version, self._newest + 1)
        return self.count() - sum(file.rows for number in behind for file in self.commit(number))

    def _read_snapshot(self, version: int) -> tuple[AddedFile, ...]:
        try:
            table = self.table(version)
        except SourceUnavailableError as error:
            with self._reaching():
                gone = self._look(version) is None and self._look(self._newest) is not None
            if gone:
                raise self._lost(version) from error
            raise
        actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        actions.sort(key=lambda a: (int(a["modification_time"]), a["path"]))
        return tuple(
            self._added(
                a["path"], a.get("num_records"), int(a["modification_time"]), a.get("size_bytes")
            )
            for a in actions
        )

    def _read_commit(self, version: int) -> tuple[AddedFile, ...]:
        try:
            text = self._commit_text(version)
        except FileNotFoundError as error:
            raise self._lost(version) from error
        try:
            actions = actions_in(text)
        except BrokenLogError as error:
            raise self._unavailable(error) from error
        self._digests.get(version, lambda: _digest(text))
        self._rewritten.get(version, lambda: _rewritten(text))
        self._refuse_changes(version, actions)
        adds = [action["add"] for action in actions if "add" in action]
        return tuple(
            self._added(
                add["path"],
                json.loads(add.get("stats") or "{}").get("numRecords"),
                int(add["modificationTime"]),
                add.get("size"),
            )
            for add in adds
            if add.get("dataChange", True) and not _removes_rows(actions)
        )

    def _commit_text(self, version: int) -> bytes:
        with self._reaching():
            return read_commit(self._store, version)

    def unclear(self, version: int, oldest: int) -> SourceError:
        """Return the error for a lost commit whose effect cannot be derived from the files."""
        return SourceError(
            f"version {version} of the source table is no longer in its log, and the table's files "
            "differ from those that were read: rows were added and deleted, or files compacted",
            code=ErrorCode.SOURCE_DATA_LOST,
            where=f"{self.root}/{commit_name(version)}",
            evidence=f"the oldest commit in the log is {oldest}",
            next_step="`reset` the pipeline with its tables and read the table again from the "
            "start; if nothing but compaction has happened since, `reset` it without its tables "
            f"and set source.starting_version: {oldest}",
        )

    def _lost(self, version: int) -> SourceError:
        return SourceError(
            f"version {version} of the source table is no longer in its log",
            code=ErrorCode.SOURCE_DATA_LOST,
            where=f"{self.root}/{commit_name(version)}",
            next_step="the pipeline was away for longer than the log's retention: "
            "`reset` the pipeline and read the table again from the start",
        )

    def _refuse_changes(self, version: int, actions: Sequence[Action]) -> None:
        removed = [a["remove"] for a in actions if "remove" in a]
        if _removes_rows(actions):
            return
        if any(action.get("dataChange", True) for action in removed):
            raise SourceError(
                f"version {version} of the source table deletes or changes records",
                where=self.path,
                evidence=f"the commit removes {len(removed)} files",
                next_step="a source must be append-only; to read the table as it is now, "
                "`reset` the pipeline",
            )

    def _added(self, path: str, rows: int | None, modified_ms: int, size: int | None) -> AddedFile:
        name = unquote(path)
        full = f"{self.root}/{name}"
        named_elsewhere = ".." in name.split("/") or _ELSEWHERE.match(name) is not None
        if named_elsewhere or leads_outside(self.root, full):
            raise SourceError(
                "the log of the source table names a file outside of the table's folder, or a link",
                where=self.path,
                evidence=printable(path),
                next_step="find out which program wrote this commit; read a table whose files are "
                "elsewhere, such as a shallow clone, at the place of its files",
            )
        if rows is None:
            rows = self._rows.get(full)
        if rows is None:
            try:
                with self._reaching(), self._store.open(name, size=size) as file:
                    rows = int(pq.read_metadata(file).num_rows)
            except FileNotFoundError as error:
                raise vanished(full) from error
            self._rows[full] = rows
        return AddedFile(full, rows, modified_ms * 1000, size)

    def _look(self, version: int) -> Info | None:
        return self._store.look(commit_name(version))

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """Turn errors of reading into SourceUnavailableError, but let FileNotFoundError pass."""
        try:
            yield
        except FileNotFoundError:
            raise
        except (OSError, BrokenLogError) as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> SourceUnavailableError:
        return SourceUnavailableError(
            "the source table cannot be read",
            where=self.path,
            evidence=without_secrets(clean(str(error)), self.path)[:300],
            next_step="reading is tried again, and nothing is half done; check source.path, the "
            "network and the credentials in source.storage_options",
        )

    def _refuse_unreadable(self, table: DeltaTable) -> None:
        names = {f.name for f in table.schema().fields}
        if self._value not in names:
            raise SourceError(
                f"the source table has no column {self._value!r}",
                where=self.path,
                evidence=f"the columns are {', '.join(sorted(names))}",
                next_step="set source.value to the column that holds the message",
            )
        features = set(table.protocol().reader_features or ()) & _UNREADABLE_FEATURES
        if features:
            raise SourceError(
                f"the source table uses {', '.join(sorted(features))}, which this source "
                "does not read",
                where=self.path,
                next_step="point source.path at an append-only table without these features",
            )


_FINGERPRINTS = 1 << 128


def _digest(commit: bytes) -> str:
    return hashlib.sha256(commit).hexdigest()[:32]


def _fingerprint(path: str) -> int:
    """Return the summand of a file: a sum does not depend on the order, and can be subtracted."""
    data = path.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(data).digest()[:16], "big")


def _removes_rows(actions: Sequence[Action]) -> bool:
    """Return whether a commit is ours and only removes rows, so that none of them is a record."""
    return any((action.get("txn") or {}).get("appId") == REMOVED for action in actions)


def _rewritten(commit: bytes) -> int:
    """Return the effect of the files in a commit that hold no new records, or are removed."""
    effect = 0
    actions = actions_in(commit)
    no_records = _removes_rows(actions)
    for action in actions:
        if "add" in action and (no_records or not action["add"].get("dataChange", True)):
            effect += _fingerprint(unquote(action["add"]["path"]))
        if "remove" in action:
            effect -= _fingerprint(unquote(action["remove"]["path"]))
    return effect % _FINGERPRINTS


_log = logging.getLogger(__name__)
_ROWS_PER_ARROW_BATCH = 65_536
_AT_ONCE = 8 * 1024 * 1024
"""The size up to which a file of a bucket is read in one request: most of it is the needed
column."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of the source table, with the offset of its first row."""

    path: str
    rows: int
    offset: int
    modified_us: int
    size: int | None = None


def vanished(where: str) -> SourceError:
    """Return the error for a file that the log names and that does not exist."""
    return SourceError(
        "a file of the source table vanished before it was read",
        code=ErrorCode.SOURCE_DATA_LOST,
        where=where,
        next_step="vacuum the source table with a longer retention; to read the current table, "
        "`reset` the pipeline",
    )


def read_file(file: SourceFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Read the rows of a file, in a task. Raises FileNotFoundError with the path if it is gone."""
    folder, _, name = file.path.rpartition("/")
    try:
        with (
            at(folder).open(name, ahead=_AT_ONCE, size=file.size) as opened,
            pq.ParquetFile(opened, coerce_int96_timestamp_unit=INT96_UNIT) as parquet,
        ):
            yield from parquet.iter_batches(_ROWS_PER_ARROW_BATCH, columns=list(columns))
    except FileNotFoundError:
        raise FileNotFoundError(file.path) from None
    except OSError as error:
        raise SourceUnavailableError(
            "a file of the source table cannot be read", where=file.path, evidence=clean(str(error))
        ) from None


@dataclass(frozen=True, slots=True)
class _Place:
    """A parsed position."""

    version: int
    index: int
    """Files of this version that are done."""
    rows: int
    """Rows before this position: the next offset."""
    snapshot: bool = False
    table: str = ""
    """The id of the table; empty in positions of earlier versions of Distributary."""
    before: int = 0
    """Rows of tables that were in this table's place before."""
    commit: tuple[int, str] | None = None
    """Version and digest of the last commit that was read; None in positions of earlier
    versions."""
    files: int | None = 0
    """The fingerprint of the table's files at this position; None in positions of earlier
    versions."""

    @property
    def rank(self) -> tuple[bool, int, int]:
        # A snapshot comes before all commits.
        return not self.snapshot, self.version, self.index

    @classmethod
    def of(cls, position: Position) -> _Place:
        snapshot = "snapshot" in position
        version, index, rows = (
            int(position[name]) for name in ("snapshot" if snapshot else "version", "index", "rows")
        )
        table, before = str(position.get("table", "")), int(position.get("before", 0))
        last, files = position.get("commit"), position.get("files")
        return cls(
            version,
            index,
            rows,
            snapshot=snapshot,
            table=table,
            before=before,
            commit=None if last is None else (int(last["version"]), str(last["sha256"])),
            files=int(files, 16) if files is not None else 0 if rows == before else None,
        )

    def through(self, version: int, log: DeltaLog) -> _Place:
        """Return the position before a commit, with the effect of the commits in between."""
        files = self.files
        if files is not None:
            first = self.version + (1 if self.snapshot else 0)
            files += sum(map(log.rewritten_by, range(first, version)))
            files %= _FINGERPRINTS
        return replace(self.behind(version), files=files)

    def after(self, file: AddedFile, log: DeltaLog) -> _Place:
        """Return the position after a file of this version."""
        files = None if self.files is None else self.files + log.fingerprint(file)
        digest = log.digest(self.version)
        return replace(
            self,
            index=self.index + 1,
            rows=self.rows + file.rows,
            commit=(self.version, digest) if digest else None,
            files=None if files is None else files % _FINGERPRINTS,
        )

    def behind(self, version: int) -> _Place:
        """Return the position before all files of a commit, with the same rows."""
        return replace(self, version=version, index=0, snapshot=False)

    def position(self) -> dict[str, Any]:
        key = "snapshot" if self.snapshot else "version"
        position = {key: self.version, "index": self.index, "rows": self.rows}
        more: dict[str, Any] = {"table": self.table, "before": self.before}
        if self.commit is not None:
            version, digest = self.commit
            more["commit"] = {"version": version, "sha256": digest}
        if self.files is not None and self.rows != self.before:
            more["files"] = f"{self.files:032x}"
        return position | {name: value for name, value in more.items() if value}


class DeltaEnds:
    """The current end of the table, read through a log of its own by another thread."""

    def __init__(
        self, config: DeltaSourceConfig, *, storage_options: Mapping[str, str] | None = None
    ) -> None:
        self._place = f"{config.topic_name}/0"
        self._log = DeltaLog(config.path, value=config.value, storage_options=storage_options)
        self._counted: tuple[tuple[int, str], int] | None = None

    def ask(self) -> dict[str, int]:
        """Return the number of rows of the table. Raises SourceUnavailableError."""
        self._log.newest_version()
        version_and_id = self._log.known()
        if self._counted is None or self._counted[0] != version_and_id:
            self._counted = version_and_id, self._log.count()
        return {self._place: self._counted[1]}

    def reached(self, position: Position) -> dict[str, int]:
        """Return the number of rows of this table before a position."""
        place = _Place.of(position)
        return {self._place: place.rows - place.before}


class DeltaSource:
    """A source that reads the message column of a Delta table as it grows."""

    def __init__(
        self, config: DeltaSourceConfig, *, storage_options: Mapping[str, str] | None = None
    ) -> None:
        self._config = config
        self.topic = config.topic_name
        self._log = DeltaLog(config.path, value=config.value, storage_options=storage_options)
        self._opened: _Place | None = None
        """The end of the batch that was opened last."""
        self._warned_about = ""
        """The id of the new table for which a warning was logged."""

    def first(self) -> Position:
        """Return the start: the current snapshot, or the version that the settings name."""
        if self._config.starting_version is not None:
            return _Place(self._config.starting_version, 0, 0).position()
        moment = self._config.starting_timestamp
        if moment is not None:
            table, since = self._log.table(), moment.timestamp() * 1000
            later = [int(h["version"]) for h in table.history() if h.get("timestamp", 0) >= since]
            version = min(later, default=int(table.version()) + 1)
            return _Place(version, 0, 0, table=self._log.known()[1]).position()
        self._log.newest_version()
        newest, identity = self._log.known()
        return _Place(newest, 0, 0, snapshot=True, table=identity).position()

    def newest(self) -> Position:
        """Return the position after the newest commit; its number of rows is not needed."""
        return {"version": self._log.newest_version() + 1, "index": 0, "rows": -1}

    def advance(self, start: Position, until: Position) -> Position | None:
        """Return the end of a batch of whole files, as many as the limit allows, at least one."""
        left = self._config.max_records_per_batch
        begin, jump = self._begin(start)
        end: _Place | None = None
        limit = _Place.of(until)
        for file, after in self._files(begin, limit):
            if end is not None and file.rows > left:
                break
            left -= file.rows
            end = after
        if end is None:
            if limit.version > begin.version:
                self._log.passed = {_Place.of(start): begin.through(limit.version, self._log)}
            return None
        return end.position() | jump

    def retrace(self, start: Position, ranges: Sequence[SourceRange]) -> Position:
        """Return the position after the last row of a batch that covered these ranges."""
        newest = _Place.of(self.newest())
        begin, jump = self._begin(start)
        rows = max((r.end for r in ranges), default=begin.rows)
        for _, after in self._files(begin, newest):
            if after.rows >= rows:
                if after.rows == rows:
                    return after.position() | jump
                break
        raise DivergedError(
            "an earlier batch does not end at the end of a file of the source table",
            where=self._log.path,
            evidence=f"the batch ended before offset {rows}",
            next_step="the table was rewritten: `reset` the pipeline",
        )

    def open(self, spark: SparkSession, start: Position, end: Position) -> BatchInput:
        """Open the files between two positions, spread over tasks by rows."""
        begun, ended = _Place.of(end.get("from", start)), _Place.of(end)
        self._log.newest_version()
        self._opened = ended
        # A decided batch only needs its ranges, unless it must be read again.
        there = self._is_there(ended)
        files = self.files(start, end) if there else []
        most = parallelism(spark)
        tasks = spread(files, most, weight=lambda f: f.rows, order=lambda f: f.offset)
        rows = ended.rows - begun.rows
        read = SourceRange(self.topic, 0, begun.rows, ended.rows, rows)
        lag = self._lag(ended) if there else None
        return BatchInput(
            tasks=max(1, len(tasks)),
            reader=self._reader(tasks),
            ranges=(read,) if rows else (),
            end=end,
            counted=there,
            newest_us=max((f.modified_us for f in files), default=None),
            lag=lag,
            lag_by_partition={} if lag is None else {f"{self.topic}/0": lag},
            identities={self.topic: ended.table} if ended.table else {},
            verify=unverified if there else partial(self._refuse, ended),
        )

    def files(self, start: Position, end: Position) -> list[SourceFile]:
        """Return the files between two positions, in order."""
        between = self._files(_Place.of(end.get("from", start)), _Place.of(end))
        return [_source_file(*pair) for pair in between]

    def peek(self, start: Position) -> Iterator[pa.RecordBatch]:
        """Read the next rows of the table, at most one batch of them."""
        newest = _Place.of(self.newest())
        left = self._config.max_records_per_batch
        files: list[SourceFile] = []
        for pair in self._files(self._begin(start)[0], newest):
            files.append(_source_file(*pair))
            if sum(file.rows for file in files) >= left:
                break
        try:
            for batch in self._reader([files])(iter([pa.record_batch({"task": [0]})])):
                yield batch.slice(0, left)
                left -= batch.num_rows
                if left <= 0:
                    return
        except FileNotFoundError as error:
            raise vanished(str(error)) from error

    def explain(self, error: Exception) -> DistributaryError | None:
        """Return the source's error for a failed job: a missing file, or an unreachable store."""
        text = str(error)
        missing = [line for line in text.splitlines() if "FileNotFoundError" in line]
        if not missing and "SourceUnavailableError" in text:
            return SourceUnavailableError(
                "the source table could not be read in the middle of a batch",
                where=self._log.path,
                evidence=line_with("seen:", text),
                next_step="the batch is tried again: no part of it was written",
            )
        if not missing:
            return None
        try:
            self._log.newest_version()
            if self._opened is not None and not self._is_there(self._opened):
                self._refuse(self._opened, decided=False)
        except SourceError as cause:
            return cause
        if not any(f"{self._log.root}/" in line for line in missing):
            return None
        return vanished(self._log.path)

    def _begin(self, start: Position) -> tuple[_Place, dict[str, Any]]:
        """Return the start of the batch after a position, and the `from` that its end needs.

        Raises SourceError if another table is in the place, unless that one is to be read.
        """
        place = _Place.of(start)
        newest, table = self._log.known()
        if self._is_there(place):
            begin = replace(self._onward(place), table=table)
            moved = begin.rank != place.rank
            return begin, {"from": begin.position()} if moved else {}
        if self._config.on_replaced == "stop":
            self._refuse(place, decided=False)
        if self._warned_about != table:
            self._warned_about = table
            _log.warning(
                "another table is in the place of the table that was read: the new table is read "
                "from its beginning; unread records of the old table are lost: %s: %s",
                self._log.path,
                self._before_and_now(place),
            )
        rows = place.rows
        begin = _Place(newest, 0, rows, snapshot=True, table=table, before=rows)
        return begin, {"from": begin.position()}

    def _onward(self, place: _Place) -> _Place:
        """Return the position, or a later one if no unread record is in between.

        A log loses its oldest commits, also those that were read. The rows of the table, less the
        rows of the commits that are left, show what the lost commits added.
        """
        passed = self._log.passed.get(place)
        if passed is not None or place.version > self._log.known()[0]:
            return passed or place
        try:
            self._listed(place)
        except SourceError as error:
            if error.code is not ErrorCode.SOURCE_DATA_LOST:
                raise
            oldest = self._log.oldest_behind(place.version)
            # A table that only grows had at least as many rows as were read of it.
            if self._log.rows_before(oldest) != place.rows - place.before:
                raise
            # The same number of rows may also result from deleted and newly added rows.
            files = self._log.fingerprint_before(oldest)
            if place.files not in (None, files):
                raise self._log.unclear(place.version, oldest) from error
            passed = replace(place.behind(oldest), files=files)
            self._log.passed = {place: passed}
            return passed
        return place

    def _is_there(self, place: _Place) -> bool:
        """Return whether the table is that of a position, and has come as far."""
        newest, table = self._log.known()
        if not place.table and not place.rows:
            # Nothing was read: a version that the settings name may not exist yet.
            return True
        past = place.version - (0 if place.snapshot else 1)
        return place.table in ("", table) and past <= newest and self._has_commit_of(place)

    def _has_commit_of(self, place: _Place) -> bool:
        """Return whether the last commit that was read is unchanged, or lost.

        A table that was restored from an older copy and has grown since has another commit there.
        """
        if place.commit is None:
            return True
        version, digest = place.commit
        return self._log.digest(version) in ("", digest)

    def _refuse(self, place: _Place, *, decided: bool) -> None:
        read, evidence = self._config.on_replaced == "read", self._before_and_now(place)
        raise replaced("table", where=self._log.path, evidence=evidence, read=read, decided=decided)

    def _before_and_now(self, place: _Place) -> str:
        newest, table = self._log.known()
        begun = place.snapshot or place.index > 0
        read = place.version if begun else place.version - 1
        other = "" if self._has_commit_of(place) else ", and this version has another commit"
        return (
            f"read up to version {read} and row {place.rows:,} with id "
            f"{place.table or 'unknown'}; now the table ends with version {newest} and has id "
            f"{table}{other}"
        )

    def _files(self, start: _Place, end: _Place) -> Iterator[tuple[AddedFile, _Place]]:
        """Yield the files between two positions, each with the position after it."""
        place = start
        while place.rank < end.rank:
            files = self._listed(place)
            if place.index >= len(files):
                place = place.through(place.version + 1, self._log)
                continue
            file = files[place.index]
            place = place.after(file, self._log)
            if place.index == len(files):
                # The log may lose a version that is done, so the position moves on to the next one.
                place = place.through(place.version + 1, self._log)
            yield file, place

    def _listed(self, place: _Place) -> tuple[AddedFile, ...]:
        """Return the files of the version of a position."""
        files_of_version = self._log.snapshot if place.snapshot else self._log.commit
        return files_of_version(place.version)

    def _reader(self, tasks: Sequence[Sequence[SourceFile]]) -> DeltaReader:
        return DeltaReader(
            topic=self.topic,
            value=self._config.value,
            key=self._config.key,
            headers=self._config.headers,
            timestamp=self._config.timestamp,
            tasks=tasks,
            table=self._log.path,
            storage_options=self._log.storage_options,
        )

    def _lag(self, place: _Place) -> int | None:
        """Return the rows of the table after a position.

        None if the stream did not start at row 0.
        """
        if not self._config.reads_all:
            return None
        return max(0, self._log.count() - (place.rows - place.before))


def _source_file(file: AddedFile, after: _Place) -> SourceFile:
    return SourceFile(file.path, file.rows, after.rows - file.rows, file.modified_us, file.size)


@dataclass(frozen=True, slots=True)
class DeltaReader:
    """A reader that opens a task's files and yields their rows as raw records."""

    topic: str
    value: str
    key: str | None
    headers: str | None
    timestamp: str | None
    tasks: Sequence[Sequence[SourceFile]]
    table: str
    storage_options: Mapping[str, str] = field(repr=False)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the files of the tasks whose numbers are in `batches`."""
        introduce(self.table, self.storage_options)
        for file in files_of(batches, self.tasks):
            yield from self._read(file)

    def _read(self, file: SourceFile) -> Iterator[pa.RecordBatch]:
        columns = [c for c in (self.value, self.key, self.headers, self.timestamp) if c]
        offset = file.offset
        for rows in read_file(file, columns):
            yield self._as_raw(rows, file, offset)
            offset += rows.num_rows

    def _as_raw(self, rows: pa.RecordBatch, file: SourceFile, offset: int) -> pa.RecordBatch:
        count = rows.num_rows
        time = (
            rows.column(self.timestamp).cast(TIMESTAMP)
            if self.timestamp
            else pa.repeat(pa.scalar(file.modified_us, TIMESTAMP), count)
        )
        arrays = [
            rows.column(self.key).cast(pa.binary()) if self.key else pa.nulls(count, pa.binary()),
            rows.column(self.value).cast(pa.binary()),
            rows.column(self.headers).cast(RAW.field("headers").type)
            if self.headers
            else pa.nulls(count, RAW.field("headers").type),
            pa.repeat(pa.scalar(self.topic, pa.string()), count),
            pa.repeat(pa.scalar(0, pa.int32()), count),
            pa.array(np.arange(offset, offset + count, dtype=np.int64)),
            time,
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=RAW)
