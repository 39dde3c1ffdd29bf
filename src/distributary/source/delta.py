"""A Delta table as a topic of one partition: its rows, in the order of commits, are the offsets.

The first thing read is a snapshot of the table, the oldest files first, then commit after commit. A
position is `{snapshot, index, rows}` inside of the snapshot and `{version, index, rows}` after it:
how many files of that version are done, and how many rows that makes in all. `table` is the id of
the table that it is about. When another table is in its place, and that is to be read, it begins
with a snapshot of that one: the batch's end says where under `from`, rows count on, so that no
offset comes twice, and `before` says how many of them are of tables before. `from` also says where
a batch begins that has passed commits without records: the log may lose those at any time. Files
are opened by the tasks, with Arrow, on a disk or in a bucket: no record passes through the JVM.

A table that was put back from an older copy has the same id, and may have grown past the position
since. So a position also holds under `commit` the version and the digest of the last commit that
was read, and under `files` a fingerprint of the files that the table had there: where the log has
lost commits, it tells whether these were all files of the table before the commits that are left.
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

from distributary.config.document import printable
from distributary.config.source import DeltaSource as DeltaSourceConfig
from distributary.delta.log import Action, BrokenLogError, actions_in, commit_name
from distributary.delta.parquet import INT96_UNIT
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

# What the log of a Delta table says, as a source needs it: files in the order of commits.

_ELSEWHERE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")
"""How a path begins that is not one within the table's folder."""
_UNREADABLE_FEATURES = {"deletionVectors", "columnMapping"}


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A file that a commit added."""

    path: str
    rows: int
    modified_us: int
    size: int | None = None


class DeltaLog:
    """Reads a table's log: commit after commit, and whole versions through deltalake.

    A source is often another engine's table, with more features than we write ourselves.
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
        """At the newest version that is known."""
        self._rows: dict[str, int] = {}
        self._commits: Cache[tuple[AddedFile, ...]] = Cache(1000)
        self._digests: Cache[str] = Cache(1000)
        self._rewritten: Cache[int] = Cache(1000)
        self._snapshots: Cache[tuple[AddedFile, ...]] = Cache(1)
        self.passed: dict[_Place, _Place] = {}
        """Of the place that was asked for last: the one up to which nothing comes behind it."""
        self._newest = -1
        self._identity = ""
        self._newest_file: Info | None = None
        """The newest commit's file when the table was read."""

    def known(self) -> tuple[int, str]:
        """The newest version, and the id that the table was given when it was made.

        As of when the newest version was asked for last.
        """
        if self._newest < 0:
            self.newest_version()
        return self._newest, self._identity

    def table(self, version: int | None = None) -> DeltaTable:
        """The table, if it is there and this source can read it."""
        try:
            table = DeltaTable(
                self.path, version=version, storage_options=self.storage_options or None
            )
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
        """The table's version now; cheap where nothing has happened, for it is asked often."""
        rewritten = False
        if self._newest >= 0 and self._newest_file is not None:
            with self._reaching():
                following = self._store.look(commit_name(self._newest + 1))
                found = self._look(self._newest)
                if following is None and found == self._newest_file:
                    return self._newest
            rewritten = found is not None and found != self._newest_file
        table = self.table()
        identity = str(table.metadata().id)
        if identity != self._identity or int(table.version()) <= self._newest or rewritten:
            # versions of another table, or of a copy, are other versions
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
        """All files of a version, the oldest first."""
        return self._snapshots.get(version, lambda: self._read_snapshot(version))

    def commit(self, version: int) -> tuple[AddedFile, ...]:
        """The files of new records that one commit added, in the commit's order."""
        return self._commits.get(version, lambda: self._read_commit(version))

    def digest(self, version: int) -> str:
        """Return the digest of a commit as it stands in the log; empty where it is gone."""

        def read() -> str:
            try:
                return _digest(self._commit_text(version))
            except FileNotFoundError:
                return ""

        # kept also where it is gone: a snapshot asks for each of its files
        return self._digests.get(version, read)

    def fingerprint_before(self, version: int) -> int:
        """Return the fingerprint of the table's files before a commit and all behind it."""
        found = sum(map(self.fingerprint, self.snapshot(self._newest)))
        for each in range(version, self._newest + 1):
            found -= sum(map(self.fingerprint, self.commit(each))) + self.rewritten_by(each)
        return found % _FINGERPRINTS

    def fingerprint(self, file: AddedFile) -> int:
        """Return the part of a file in the fingerprint of many."""
        return _fingerprint(file.path.removeprefix(f"{self.root}/"))

    def rewritten_by(self, version: int) -> int:
        """Return what a commit did to the fingerprint beside its new records: a compaction."""
        return self._rewritten.get(version, lambda: _rewritten(self._commit_text(version)))

    def count(self) -> int:
        """Rows of the table at the newest version that is known."""
        return int((self._table or self.table()).count())

    def oldest_behind(self, version: int) -> int:
        """The oldest version whose commit is still in the log, where that of this one is not."""
        gone, there = version, self._newest
        with self._reaching():
            while there - gone > 1:
                middle = (gone + there) // 2
                gone, there = (middle, there) if self._look(middle) is None else (gone, middle)
        return there

    def rows_before(self, version: int) -> int:
        """Rows of the table without those of a commit and of all behind it."""
        behind = range(version, self._newest + 1)
        return self.count() - sum(file.rows for each in behind for file in self.commit(each))

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
            if add.get("dataChange", True)
        )

    def _commit_text(self, version: int) -> bytes:
        with self._reaching():
            return self._store.read(commit_name(version))

    def unclear(self, version: int, oldest: int) -> SourceError:
        """Say that what a lost commit did cannot be told from the files that are left."""
        return SourceError(
            f"version {version} of the source table is no longer in its log, and its files are not "
            "those that were read: rows were added and deleted since, or files were compacted",
            code=ErrorCode.SOURCE_DATA_LOST,
            where=f"{self.root}/{commit_name(version)}",
            evidence=f"the oldest commit in its log is {oldest}",
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
            "`reset` it and read the table again from the start",
        )

    def _refuse_changes(self, version: int, actions: Sequence[Action]) -> None:
        removed = [a["remove"] for a in actions if "remove" in a]
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
                next_step="find out who wrote this commit; a table whose files are elsewhere, such "
                "as a shallow clone, is read where its files are",
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
        """What a store says against it may pass; that a file is gone may not."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> SourceUnavailableError:
        return SourceUnavailableError(
            "the source table cannot be read",
            where=self.path,
            evidence=without_secrets(clean(str(error)), self.path)[:300],
            next_step="nothing is half done: it is tried again; check source.path, the network and "
            "the credentials in source.storage_options",
        )

    def _refuse_unreadable(self, table: DeltaTable) -> None:
        names = {f.name for f in table.schema().fields}
        if self._value not in names:
            raise SourceError(
                f"the source table has no column {self._value!r}",
                where=self.path,
                evidence=f"its columns are {', '.join(sorted(names))}",
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
    """Return the summand of a file: a sum does not depend on the order, and can be taken back."""
    data = path.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(data).digest()[:16], "big")


def _rewritten(commit: bytes) -> int:
    """Return the effect of the files in a commit that hold no new records, or no longer count."""
    found = 0
    for action in actions_in(commit):
        if "add" in action and not action["add"].get("dataChange", True):
            found += _fingerprint(unquote(action["add"]["path"]))
        if "remove" in action:
            found -= _fingerprint(unquote(action["remove"]["path"]))
    return found % _FINGERPRINTS


_log = logging.getLogger(__name__)
_ROWS_PER_ARROW_BATCH = 65_536
_AT_ONCE = 8 * 1024 * 1024
"""A file of a bucket up to this size is one request: most of it is the column that is wanted."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of the source table, with the offset of its first row."""

    path: str
    rows: int
    offset: int
    modified_us: int
    size: int | None = None


def vanished(where: str) -> SourceError:
    """What it means that the log names a file that is not there."""
    return SourceError(
        "a file of the source table vanished before it was read",
        code=ErrorCode.SOURCE_DATA_LOST,
        where=where,
        next_step="vacuum the source table with a longer retention; to read what is there now, "
        "`reset` the pipeline",
    )


def read_file(file: SourceFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Rows of a file, in a task. Raises FileNotFoundError with its path where it is gone."""
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
    """A position, parsed."""

    version: int
    index: int
    """Files of this version that are done."""
    rows: int
    """Rows before this place: the next offset."""
    snapshot: bool = False
    table: str = ""
    """Id of the table; empty in positions of before it was kept."""
    before: int = 0
    """Rows of tables that were in this one's place before."""
    commit: tuple[int, str] | None = None
    """Version and digest of the last commit that was read; None in positions of before."""
    files: int | None = 0
    """Fingerprint of the files of the table at this place; None in positions of before."""

    @property
    def rank(self) -> tuple[bool, int, int]:
        # a snapshot comes before all commits
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
        """Return the same rows before all files of a commit, with what is done in between."""
        files = self.files
        if files is not None:
            first = self.version + (1 if self.snapshot else 0)
            files += sum(map(log.rewritten_by, range(first, version)))
            files %= _FINGERPRINTS
        return replace(self.behind(version), files=files)

    def after(self, file: AddedFile, log: DeltaLog) -> _Place:
        """Return the place behind a file of this version."""
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
        """The same rows, before all files of a commit."""
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
    """Where the table ends now, read over a log of its own: by another thread."""

    def __init__(
        self, config: DeltaSourceConfig, *, storage_options: Mapping[str, str] | None = None
    ) -> None:
        self._place = f"{config.topic_name}/0"
        self._log = DeltaLog(config.path, value=config.value, storage_options=storage_options)
        self._counted: tuple[tuple[int, str], int] | None = None

    def ask(self) -> dict[str, int]:
        """Rows of the table. Raises SourceUnavailableError."""
        self._log.newest_version()
        known = self._log.known()
        if self._counted is None or self._counted[0] != known:
            self._counted = known, self._log.count()
        return {self._place: self._counted[1]}

    def reached(self, position: Position) -> dict[str, int]:
        """Rows of this table that are read at a position."""
        place = _Place.of(position)
        return {self._place: place.rows - place.before}


class DeltaSource:
    """Reads the message column of a Delta table as it grows."""

    def __init__(
        self, config: DeltaSourceConfig, *, storage_options: Mapping[str, str] | None = None
    ) -> None:
        self._config = config
        self.topic = config.topic_name
        self._log = DeltaLog(config.path, value=config.value, storage_options=storage_options)
        self._opened: _Place | None = None
        """Where the batch ends that was opened last."""
        self._told = ""
        """Id of the new table that the log has been told about."""

    def first(self) -> Position:
        """The table as it is now, or the version that the settings name."""
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
        """Behind the newest commit; how many rows that is nobody needs to know."""
        return {"version": self._log.newest_version() + 1, "index": 0, "rows": -1}

    def advance(self, start: Position, until: Position) -> Position | None:
        """As many whole files as the limit allows, one at least."""
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
        """The place behind the row with which the batch ended."""
        newest = _Place.of(self.newest())
        begin, jump = self._begin(start)
        rows = max((r.end for r in ranges), default=begin.rows)
        for _, after in self._files(begin, newest):
            if after.rows >= rows:
                if after.rows == rows:
                    return after.position() | jump
                break
        raise DivergedError(
            "a batch of before does not end where a file of the source table ends",
            where=self._log.path,
            evidence=f"it ended before offset {rows}",
            next_step="the table was written again: `reset` the pipeline",
        )

    def open(self, spark: SparkSession, start: Position, end: Position) -> BatchInput:
        """The files between two positions, spread over tasks by rows."""
        begun, ended = _Place.of(end.get("from", start)), _Place.of(end)
        self._log.newest_version()
        self._opened = ended
        # a batch that is decided needs its ranges only, unless it must be read again
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
        """The files between two positions, in order."""
        between = self._files(_Place.of(end.get("from", start)), _Place.of(end))
        return [_source_file(*found) for found in between]

    def peek(self, start: Position) -> Iterator[pa.RecordBatch]:
        """The next rows of the table, at most one batch of them."""
        newest = _Place.of(self.newest())
        left = self._config.max_records_per_batch
        files: list[SourceFile] = []
        for found in self._files(self._begin(start)[0], newest):
            files.append(_source_file(*found))
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
        """A file that was there when the batch was planned and is gone now."""
        text = str(error)
        missing = [line for line in text.splitlines() if "FileNotFoundError" in line]
        if not missing and "SourceUnavailableError" in text:
            return SourceUnavailableError(
                "the source table could not be read in the middle of a batch",
                where=self._log.path,
                evidence=line_with("seen:", text),
                next_step="nothing of the batch is half done: it is tried again",
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
        """Where the batch behind a position begins, and what its end says if that is elsewhere.

        Raises SourceError if the table is another one now, unless that one is to be read.
        """
        place = _Place.of(start)
        newest, table = self._log.known()
        if self._is_there(place):
            begin = replace(self._onward(place), table=table)
            moved = begin.rank != place.rank
            return begin, {"from": begin.position()} if moved else {}
        if self._config.on_replaced == "stop":
            self._refuse(place, decided=False)
        if self._told != table:
            self._told = table
            _log.warning(
                "another table is in the place of the one that was read: reading it from its "
                "beginning; what was not read of the old one is lost: %s: %s",
                self._log.path,
                self._before_and_now(place),
            )
        rows = place.rows
        begin = _Place(newest, 0, rows, snapshot=True, table=table, before=rows)
        return begin, {"from": begin.position()}

    def _onward(self, place: _Place) -> _Place:
        """The place itself, or one further on, where nothing is between them that was not read.

        A log loses its oldest commits, also those that were read: what they brought is known by
        the rows of the table less those of the commits that are left.
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
            # a table that only grows had as many rows as were read of it, or more
            if self._log.rows_before(oldest) != place.rows - place.before:
                raise
            # as many rows may also be what was deleted and what came instead
            files = self._log.fingerprint_before(oldest)
            if place.files not in (None, files):
                raise self._log.unclear(place.version, oldest) from error
            passed = replace(place.behind(oldest), files=files)
            self._log.passed = {place: passed}
            return passed
        return place

    def _is_there(self, place: _Place) -> bool:
        """Whether the table is the one of a place, and has come as far."""
        newest, table = self._log.known()
        if not place.table and not place.rows:
            # nothing was read: a version that the settings name may be yet to come
            return True
        past = place.version - (0 if place.snapshot else 1)
        return place.table in ("", table) and past <= newest and self._has_commit_of(place)

    def _has_commit_of(self, place: _Place) -> bool:
        """Whether the last commit that was read is still the same; one that is gone tells nothing.

        That of an older copy which has grown since is another one.
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
        other = "" if self._has_commit_of(place) else ", and this version is another commit"
        return (
            f"read up to version {read} and row {place.rows:,} with id "
            f"{place.table or 'unknown'}; now it ends with version {newest} and has id {table}"
            f"{other}"
        )

    def _files(self, start: _Place, end: _Place) -> Iterator[tuple[AddedFile, _Place]]:
        """Files between two places, each with the place behind it."""
        place = start
        while place.rank < end.rank:
            files = self._listed(place)
            if place.index >= len(files):
                place = place.through(place.version + 1, self._log)
                continue
            file = files[place.index]
            place = place.after(file, self._log)
            if place.index == len(files):
                # nothing more is asked of a version that is done: the log may lose it
                place = place.through(place.version + 1, self._log)
            yield file, place

    def _listed(self, place: _Place) -> tuple[AddedFile, ...]:
        """The files of the version that a place is in."""
        known = self._log.snapshot if place.snapshot else self._log.commit
        return known(place.version)

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
        """Rows of the table past a place; unknown when the stream did not start at row 0."""
        if not self._config.reads_all:
            return None
        return max(0, self._log.count() - (place.rows - place.before))


def _source_file(file: AddedFile, after: _Place) -> SourceFile:
    return SourceFile(file.path, file.rows, after.rows - file.rows, file.modified_us, file.size)


@dataclass(frozen=True, slots=True)
class DeltaReader:
    """Opens a task's files and gives their rows as raw records."""

    topic: str
    value: str
    key: str | None
    headers: str | None
    timestamp: str | None
    tasks: Sequence[Sequence[SourceFile]]
    table: str
    storage_options: Mapping[str, str] = field(repr=False)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Each incoming row is the number of a task."""
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
