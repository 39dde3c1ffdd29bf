"""The log of a Delta table that is a source, and positions in it.

A position is `{snapshot, index, rows}` within the first snapshot and `{version, index, rows}` after
it: the number of files of that version that are done, and the number of rows read in all. `table`
is the id of the table. Rows count on when another table is read, so that no offset comes twice, and
`before` is the number of rows of earlier tables.

A table that was restored from an older copy has the same id, and may have grown past the position
since. A position therefore also holds, under `commit`, the version and digest of the last commit
that was read and, under `files`, a fingerprint of the table's files at that point. If the log has
lost commits, the fingerprint shows whether these were all files of the table before the commits
that are left.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from distributary.delta.compact import REMOVED
from distributary.delta.log_reading import (
    Action,
    BrokenLogError,
    actions_in,
    commit_name,
    read_commit,
)
from distributary.delta.tables import load_table
from distributary.errors import ErrorCode, SourceError, SourceUnavailableError, clean
from distributary.model.cache import Cache
from distributary.model.names import printable
from distributary.source.base import Position
from distributary.store.base import Info, at, introduce, leads_outside, without_secrets

_ELSEWHERE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")
"""The beginning of a path that is not within the table's folder."""
_UNREADABLE_FEATURES = {"deletionVectors", "columnMapping"}
_PARTITION = "partition."
"""The beginning of deltalake's names for the values of partition columns."""
_FINGERPRINTS = 1 << 128
"""The modulus of fingerprints, which are sums of 128 bits."""


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A file that a commit added."""

    path: str
    rows: int
    modified_us: int
    size: int | None = None
    partition: Mapping[str, Any] = field(default_factory=dict)
    """The values of the table's partition columns."""


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
        self.passed: dict[LogPosition, LogPosition] = {}
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
                a["path"],
                a.get("num_records"),
                int(a["modification_time"]),
                a.get("size_bytes"),
                {
                    name.removeprefix(_PARTITION): value
                    for name, value in a.items()
                    if name.startswith(_PARTITION)
                },
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
                add.get("partitionValues") or {},
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

    def _added(
        self,
        path: str,
        rows: int | None,
        modified_ms: int,
        size: int | None,
        partition: Mapping[str, Any],
    ) -> AddedFile:
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
        return AddedFile(full, rows, modified_ms * 1000, size, partition)

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
            next_step="reading is tried again, and no batch is half written; check source.path, "
            "the network and the credentials in source.storage_options",
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


def vanished(where: str) -> SourceError:
    """Return the error for a file that the log names and that does not exist."""
    return SourceError(
        "a file of the source table vanished before it was read",
        code=ErrorCode.SOURCE_DATA_LOST,
        where=where,
        next_step="vacuum the source table with a longer retention; to read the current table, "
        "`reset` the pipeline",
    )


@dataclass(frozen=True, slots=True)
class LogPosition:
    """A position in the log: a version, and a number of its files."""

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
        """Return a value that orders positions: a snapshot comes before all commits."""
        return not self.snapshot, self.version, self.index

    @classmethod
    def of(cls, position: Position) -> LogPosition:
        """Parse a position from its document in the checkpoint."""
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

    def through(self, version: int, log: DeltaLog) -> LogPosition:
        """Return the position before a commit, with the effect of the commits in between."""
        files = self.files
        if files is not None:
            first = self.version + (1 if self.snapshot else 0)
            files += sum(map(log.rewritten_by, range(first, version)))
            files %= _FINGERPRINTS
        return replace(self.behind(version), files=files)

    def after(self, file: AddedFile, log: DeltaLog) -> LogPosition:
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

    def behind(self, version: int) -> LogPosition:
        """Return the position before all files of a commit, with the same rows."""
        return replace(self, version=version, index=0, snapshot=False)

    def position(self) -> dict[str, Any]:
        """Return the document of the position for the checkpoint."""
        key = "snapshot" if self.snapshot else "version"
        position = {key: self.version, "index": self.index, "rows": self.rows}
        more: dict[str, Any] = {"table": self.table, "before": self.before}
        if self.commit is not None:
            version, digest = self.commit
            more["commit"] = {"version": version, "sha256": digest}
        if self.files is not None and self.rows != self.before:
            more["files"] = f"{self.files:032x}"
        return position | {name: value for name, value in more.items() if value}
