"""The state of a Delta table by its log, on a disk or in a bucket.

The log is replayed from its newest checkpoint. A process that has seen a version continues from it,
commit by commit: when nothing is new, that costs two system calls on a disk and one request to a
bucket. Writers that only append load the log without its list of files, which can hold thousands of
entries.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from distributary.delta.column_merge import Field, fields_in
from distributary.delta.damage import TAG
from distributary.delta.log_reading import (
    Action,
    BrokenLogError,
    Commit,
    LogNames,
    actions_in,
    checkpoint_actions,
    commit_name,
    commits_in,
    fetch_commit,
    fetch_commits,
    hinted_version,
    log_names,
    parse_commit,
    read_commit,
)
from distributary.delta.parquet import read_file, read_pieces
from distributary.delta.vectors import FEATURE, BrokenVectorError, Ints, Vector, read_vector
from distributary.errors import OutsideLakeError, PublishError, clean
from distributary.model.cache import Cache
from distributary.model.table import is_below
from distributary.store.base import Store, at

SIDECARS = "v2Checkpoint"
"""The table feature under which a checkpoint may keep its list of files in sidecar files."""
FEATURES = frozenset({"appendOnly", "invariants", "timestampNtz", SIDECARS, FEATURE})
"""The table features, beyond the oldest protocol, that this code can read and write."""
FORGETS_MARKS = "delta.setTransactionRetentionDuration"
"""The property of a table whose log may lack the marks of applications after a while."""
PLAIN_PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}
"""The protocol of the tables that we create: every Delta engine supports it."""
TRUSTED_SECONDS = 3600
"""Other processes clean up logs, but never commits as young as this: a snapshot whose newest commit
is older is loaded again."""
ASK_AGAIN_SECONDS = 600.0
"""The time after which a bucket is asked again whether a table is still the same table."""
LARGE_FILE = 32 * 2**20
"""Size in bytes above which a file is read in pieces and not held in memory whole."""
MOST_TABLES = 4096
"""The number of tables that a process follows; the least recently used table is dropped."""

_TRIES = 3
_LONGEST_EVIDENCE = 300


def in_table(folder: str, path: str) -> str:
    """Return a path that a table's log names; raise OutsideLakeError if it leaves the folder."""
    if not is_below(path):
        raise OutsideLakeError(
            "the log of a table names a file outside of the table's folder",
            where=folder,
            evidence=path[:_LONGEST_EVIDENCE],
            next_step="find out which program wrote this commit",
        )
    return path


# The state of a table at one version.


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file of a table."""

    path: str
    """The path within the table's folder."""
    spelled: str
    """The path as the log spells it, percent-encoded."""
    size: int
    modified_ms: int = 0
    values: Mapping[str, str | None] = field(default_factory=dict)
    """The values of the partition columns, as the log spells them."""
    stats: str | None = None
    vector: Vector | None = None
    """The deletion vector: the rows of the file that are no longer part of the table."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags from the file's writer."""

    @property
    def checksum(self) -> str | None:
        """Return the checksum of the file's bytes; None if another program wrote the file."""
        return self.tags.get(TAG)

    @property
    def written(self) -> int | None:
        """Return how many rows were written to the file; None without statistics."""
        count = self.statistics().get("numRecords")
        return count if isinstance(count, int) else None

    @property
    def rows(self) -> int | None:
        """Return how many rows of the file are part of the table; None without statistics."""
        written = self.written
        return None if written is None else written - self.lost

    @property
    def lost(self) -> int:
        """Return how many rows of the file are deleted by its deletion vector."""
        return 0 if self.vector is None else self.vector.cardinality

    def statistics(self) -> dict[str, Any]:
        """Return the statistics that the log has for the file.

        Empty if they are missing or garbled.
        """
        try:
            statistics = json.loads(self.stats or "{}")
        except ValueError:
            return {}
        return statistics if isinstance(statistics, dict) else {}

    def bounds(self, column: str) -> tuple[Any, Any]:
        """Return the lowest and the highest value of a column; None where the log has no bound."""
        statistics = self.statistics()
        low, high = (statistics.get(name) or {} for name in ("minValues", "maxValues"))
        return low.get(column), high.get(column)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One version of a table."""

    store: Store
    """The store of the table's folder."""
    version: int = -1
    identity: str | None = None
    """The identity of the newest commit's file; it differs if the table was deleted and made
    again."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """The `metaData` action of the log."""
    protocol: Mapping[str, Any] = field(default_factory=dict)
    fields: Sequence[Field] = ()
    """The columns."""
    invariants: bool = False
    """True if a column has conditions that writers must check."""
    marks: Mapping[str, int] = field(default_factory=dict)
    """The newest committed batch of each application."""
    checkpoint: int = -1
    """The version of the checkpoint that the log was read from."""
    has_files: bool = True
    """True if `files` was loaded."""
    files: Mapping[str, DataFile] = field(default_factory=dict)
    """The data files by their paths."""
    removed: Mapping[str, int] = field(default_factory=dict)
    """Removed files and the times of their removal in milliseconds since 1970, as far as the log
    knows them. Files of deletion vectors are included, even if another vector in the same file is
    in use. Filled only when a table is loaded: while a table is followed, it would grow with every
    commit."""
    tail: tuple[bytes, ...] = ()
    """The newest commits that this process wrote to a bucket, kept because reading them back costs
    requests."""

    @property
    def folder(self) -> str:
        """Return the address of the table's folder."""
        return self.store.address

    @property
    def size(self) -> int:
        """Return the bytes of all data files."""
        return sum(file.size for file in self.files.values())

    @property
    def count(self) -> int | None:
        """Return the number of rows by statistics; None if a file has none."""
        counts = [file.rows for file in self.files.values()]
        known_counts = [rows for rows in counts if rows is not None]
        return sum(known_counts) if len(known_counts) == len(counts) else None

    @property
    def properties(self) -> dict[str, str]:
        """Return the table properties that users and engines have set."""
        return dict(self.metadata.get("configuration") or {})

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """Return the names of the partition columns."""
        return tuple(self.metadata.get("partitionColumns") or ())

    def has(self, app_id: str, batch: int) -> bool:
        """Return whether the application has committed the batch or a later one."""
        return self.marks.get(app_id, -1) >= batch

    def property(self, name: str) -> str | None:
        """Return the value of a table property; None if it is not set."""
        return self.properties.get(name)

    def addresses(self) -> list[str]:
        """Return the addresses of the data files, for readers that open the files themselves.

        Raises OutsideLakeError, and PublishError if the table's rows cannot be read from its files
        alone.
        """
        self.refuse_unreadable(self.folder.rpartition("/")[2])
        return [f"{self.folder}/{in_table(self.folder, path)}" for path in self.files]

    def read(
        self,
        file: DataFile,
        schema: pa.Schema,
        *,
        lenient: bool = False,
        checked: bool | None = None,
    ) -> pa.Table:
        """Read the columns of `schema` from a data file. Raises DamagedFileError.

        The file's checksum is compared when all columns are read, unless `checked` says otherwise:
        the rows are then written again, and damaged bytes must not get a valid checksum.
        """
        address = f"{self.folder}/{in_table(self.folder, file.path)}"
        checked = len(schema) >= len(self.fields) if checked is None else checked
        expected = file.checksum if checked else None
        rows = read_file(address, schema, lenient=lenient, size=file.size, expected=expected)
        (rows,) = self.left(file, [rows])
        return rows

    def gone(self, file: DataFile) -> Ints:
        """Return the numbers of the deleted rows of a file.

        Raises BrokenVectorError.
        """
        none = np.zeros(0, np.int64)
        return none if file.vector is None else read_vector(self.store, file.vector)

    def left(self, file: DataFile, pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Yield the pieces of a file without its deleted rows.

        The pieces are in the file's order.
        """
        if file.vector is None:
            yield from pieces
            return
        gone, at = self.gone(file), 0
        for piece in pieces:
            low, high = np.searchsorted(gone, [at, at + piece.num_rows])
            keep = np.ones(piece.num_rows, np.bool_)
            keep[gone[low:high] - at] = False
            at += piece.num_rows
            yield piece.filter(pa.array(keep)) if low < high else piece
        if len(gone) and gone[-1] >= at:
            raise BrokenVectorError(
                f"{file.path} has {at} rows, but its deletion vector names row {gone[-1]}"
            )

    def pieces(
        self, file: DataFile, schema: pa.Schema, *, lenient: bool = False
    ) -> Iterator[pa.Table]:
        """Read a file of any size: a small one whole, a large one piece by piece."""
        if file.size <= LARGE_FILE:
            yield self.read(file, schema, lenient=lenient)
            return
        path = in_table(self.folder, file.path)
        pieces = read_pieces(
            self.store,
            path,
            schema,
            size=file.size,
            lenient=lenient,
            expected=file.checksum,
        )
        yield from self.left(file, pieces)

    def rows(self, schema: pa.Schema) -> pa.Table:
        """Read the columns of `schema` from all data files."""
        parts = [self.read(file, schema) for file in self.files.values()]
        return pa.concat_tables(parts) if parts else schema.empty_table()

    def beyond_us(self) -> str:
        """Return the reason why only another engine can write this table; empty if we can."""
        reader = int(self.protocol.get("minReaderVersion", 1))
        writer = int(self.protocol.get("minWriterVersion", 1))
        if reader <= 1 and writer <= 2:
            return ""
        features = {*(self.protocol.get("readerFeatures") or ())}
        features |= {*(self.protocol.get("writerFeatures") or ())}
        if reader in (1, 3) and writer == 7 and not features - FEATURES:
            return ""
        return f"features: {', '.join(sorted(features - FEATURES)) or f'writer version {writer}'}"

    def no_new_rows(self) -> str:
        """Return the reason why we cannot add rows; empty if we can."""
        return "columns have invariants" if self.invariants else self.beyond_us()

    def no_changes(self) -> str:
        """Return the reason why rows cannot be replaced by files that we write.

        Empty if they can.
        """
        if self.partition_columns:
            return "the table is partitioned"
        if self.property("delta.appendOnly") == "true":
            return "rows may only be added: delta.appendOnly"
        return self.no_new_rows()

    def refuse_unusable(self, table: str) -> None:
        """Raise PublishError for a table that only another engine can change."""
        self._refuse(table, self.no_changes())

    def refuse_unreadable(self, table: str) -> None:
        """Raise PublishError for a table whose rows cannot be read from its files alone."""
        features = {*(self.protocol.get("readerFeatures") or ())} - FEATURES
        if any(file.vector for file in self.files.values()):
            features.add(FEATURE)
        self._refuse(table, f"features: {sorted(features)}" if features else "")

    def _refuse(self, table: str, reason: str) -> None:
        if reason:
            raise PublishError(
                f"table {table} has protocol features that only another engine supports",
                where=self.folder,
                evidence=reason,
                next_step="use Spark for this table, or remove the feature from the table",
                reason="features",
            )


# Commits, and the snapshot that follows from them.


def added_by(store: Store, version: int) -> list[str] | None:
    """Return the files that a version added; None if its commit is no longer in the log."""
    try:
        actions = actions_in(read_commit(store, version))
    except FileNotFoundError:
        return None
    return [in_table(store.address, unquote(a["add"]["path"])) for a in actions if "add" in a]


def commits_back(snapshot: Snapshot) -> Iterator[Commit]:
    """Yield the commits of a table, the newest first, until one is no longer in the log."""
    for version in range(snapshot.version, -1, -1):
        try:
            data = read_commit(snapshot.store, version)
        except FileNotFoundError:
            return
        yield parse_commit(data, last=version == snapshot.version)


def replayed(
    seen: Snapshot,
    commits: Sequence[Iterable[Action]],
    version: int,
    identity: str | None,
    *,
    loading: bool = False,
) -> Snapshot:
    """Return the snapshot that results from `seen` after `commits`.

    Removed files are kept in `Snapshot.removed` only while a table is `loading`.
    """
    metadata, protocol = seen.metadata, seen.protocol
    marks: dict[str, int] = {}
    files: dict[str, DataFile | None] = {}
    removed: dict[str, int] = {}
    for actions in commits:
        added: list[DataFile] = []
        for action in actions:
            if "txn" in action:
                marks[action["txn"]["appId"]] = action["txn"]["version"]
            elif "add" in action:
                if seen.has_files:
                    added.append(data_file(action["add"]))
            elif "remove" in action:
                if seen.has_files:
                    path = unquote(action["remove"]["path"])
                    vector = Vector.parse(action["remove"].get("deletionVector"))
                    when = int(action["remove"].get("deletionTimestamp") or 0)
                    present = files[path] if path in files else seen.files.get(path)
                    # A checkpoint may also hold the removal of this file with an earlier deletion
                    # vector.
                    if present is None or file_key(path, present.vector) == file_key(path, vector):
                        files[path], removed[path] = None, when
                    if vector is not None and vector.path is not None:
                        removed[vector.path] = when
            else:
                metadata = action.get("metaData", metadata)
                protocol = action.get("protocol", protocol)
        # A file that one commit both adds and removes is part of the table.
        files.update((file.path, file) for file in added)
    fields, invariants = seen.fields, seen.invariants
    if metadata is not seen.metadata:
        fields = fields_in(metadata["schemaString"])
        invariants = '"delta.invariants"' in metadata["schemaString"]
    there = seen.files
    gone = seen.removed if loading else {}
    if files:
        both = {**seen.files, **files}
        there = {path: file for path, file in both.items() if file is not None}
        old = {**seen.removed, **removed} if loading else {}
        gone = {path: when for path, when in old.items() if path not in there}
    # `dataclasses.replace` takes longer than all else here, and this runs for each table and batch.
    return Snapshot(
        store=seen.store,
        version=version,
        identity=identity,
        metadata=metadata,
        protocol=protocol,
        fields=fields,
        invariants=invariants,
        marks={**seen.marks, **marks} if marks else seen.marks,
        checkpoint=seen.checkpoint,
        has_files=seen.has_files,
        files=there,
        removed=gone,
    )


def file_key(path: str, vector: Vector | None) -> str:
    """Return the identity of a file in a log: its path, and its deletion vector if it has one."""
    return path if vector is None else f"{path} {vector.id}"


def data_file(add: Mapping[str, Any]) -> DataFile:
    """Return the data file that an `add` action names."""
    return DataFile(
        path=unquote(add["path"]),
        spelled=add["path"],
        size=int(add["size"]),
        modified_ms=int(add.get("modificationTime") or 0),
        values=add.get("partitionValues") or {},
        stats=add.get("stats"),
        vector=Vector.parse(add.get("deletionVector")),
        tags=add.get("tags") or {},
    )


# Loading of a table that is new to this process, and following of a known table.


def load(store: Store, *, files: bool = True, version: int | None = None) -> Snapshot | None:
    """Load a table at its newest version, or at `version`; None if there is no table.

    Raises BrokenLogError.
    """
    with _parsing():
        for _ in range(_TRIES - 1):
            with suppress(FileNotFoundError):
                return _load(store, files=files, version=version)
            # Another process cleans up the log: the log has a newer checkpoint then.
        return _load(store, files=files, version=version)


@contextmanager
def _parsing() -> Iterator[None]:
    """Raise BrokenLogError in place of the errors that a log without sense causes."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BrokenLogError(
            f"the table's log cannot be parsed: {type(error).__name__}: {error}"
        ) from error


def follow(seen: Snapshot, *, loading: bool = False) -> Snapshot:
    """Return the snapshot of the newest version, by reading the commits since `seen`."""
    commits: list[bytes] = []
    identity = seen.identity
    while True:
        try:
            data, identity = fetch_commit(seen.store, seen.version + len(commits) + 1)
        except (FileNotFoundError, NotADirectoryError):
            break
        commits.append(data)
    if not commits:
        return seen
    actions = commits_in(commits, files=seen.has_files)
    return replayed(seen, actions, seen.version + len(commits), identity, loading=loading)


def _load(store: Store, *, files: bool, version: int | None) -> Snapshot | None:
    hint = hinted_version(store) if version is None else -1
    names = log_names(store, since=hint)
    if hint >= 0 and names.checkpoint < hint:
        names = log_names(store)
    if version is not None:
        names = names.until(version)
    if not names.commits and not names.checkpoints:
        return None
    state = _replayed(store, names, files=files)
    return follow(state, loading=True) if version is None else state


def _replayed(store: Store, names: LogNames, *, files: bool = True) -> Snapshot:
    """Replay the commits of a log from its newest checkpoint on."""
    start = names.checkpoint
    state = Snapshot(store, start, checkpoint=start, has_files=files)
    if start >= 0:
        checkpoint = [
            checkpoint_actions(store, part, files=files) for part in names.checkpoints[start]
        ]
        commit = names.commits.get(start)
        identity = None if commit is None else commit.version
        state = replayed(state, checkpoint, start, identity, loading=True)
    tail = [version for version in names.commits if version > start]
    if tail == list(range(start + 1, start + 1 + len(tail))) and tail:
        fetched = fetch_commits(store, tail)
        commits = commits_in([data for data, _ in fetched], files=files)
        state = replayed(state, commits, tail[-1], fetched[-1][1], loading=True)
    elif tail:
        raise BrokenLogError(f"the log lacks commits between versions {start} and {tail[-1]}")
    if not state.metadata or not state.protocol:
        raise BrokenLogError(
            f"the log ends at version {state.version} without metadata or protocol"
        )
    return state


def checkpoint_damage(store: Store) -> tuple[str, str] | None:
    """Compare the newest checkpoint with the commits before it: its name, and what differs.

    A checkpoint of another engine may have no checksums, and writers read it instead of the
    commits. None if they agree, or if the log no longer has these commits.
    """
    names = log_names(store)
    start = names.checkpoint
    older = {v: parts for v, parts in names.checkpoints.items() if v < start}
    bases = [-1, max(older, default=-1)]
    base = next(
        (b for b in bases if all(v in names.commits for v in range(b + 1, start + 1))), None
    )
    if start < 0 or base is None:
        return None
    commits = {v: info for v, info in names.commits.items() if base < v <= start}
    with _parsing():
        by_commits = _replayed(store, LogNames(commits, older if base >= 0 else {}))
        difference = _difference(_replayed(store, names.until(start)), by_commits)
    return None if difference is None else (names.checkpoints[start][0].name, difference)


def _difference(listed: Snapshot, replayed: Snapshot) -> str | None:
    """Describe the first difference between a checkpoint and the commits it stands for."""
    if listed.files.keys() != replayed.files.keys():
        return _other_files(listed.files, replayed.files)
    for path, file in replayed.files.items():
        if _identity(listed.files[path]) != _identity(file):
            return f"its entry for the file {path} differs from that of the commits"
    for app in sorted({*listed.marks, *replayed.marks}):
        has, committed = listed.marks.get(app), replayed.marks.get(app)
        if has != committed and (has is not None or FORGETS_MARKS not in replayed.properties):
            return f"its newest batch of {clean(app)} is {has}, that of the commits {committed}"
    if _meaning(listed) != _meaning(replayed):
        return "it has other columns, properties or features than the commits"
    return None


def _other_files(listed: Iterable[str], replayed: Iterable[str]) -> str:
    more, fewer = sorted({*listed} - {*replayed}), sorted({*replayed} - {*listed})
    texts = [f"files that are in no commit: {clean(', '.join(more[:3]))}"] if more else []
    texts += [f"files of the commits missing in it: {', '.join(fewer[:3])}"] if fewer else []
    return "; ".join(texts)


def _identity(file: DataFile) -> tuple[object, ...]:
    return file_key(file.path, file.vector), file.size, dict(file.values), file.written


def _meaning(table: Snapshot) -> tuple[object, ...]:
    metadata, protocol = table.metadata, table.protocol
    lists = (protocol.get("readerFeatures"), protocol.get("writerFeatures"))
    return (
        json.loads(metadata["schemaString"]),
        list(metadata.get("partitionColumns") or ()),
        dict(metadata.get("configuration") or {}),
        protocol.get("minReaderVersion"),
        protocol.get("minWriterVersion"),
        *(sorted(features or ()) for features in lists),
    )


class Log:
    """The log of one table, followed version by version. Not thread-safe: its owner locks it."""

    def __init__(self, store: Store, *, files: bool = True, seen: Snapshot | None = None) -> None:
        """Follow the log in `store`; without `files`, load only what an append needs."""
        self.store = store
        self._files = files
        self._seen = seen
        self._asked_at = float("-inf")

    def newest(self) -> Snapshot | None:
        """Return the newest version, or None if there is no table. Raises BrokenLogError."""
        seen, self._seen = self._seen, None
        if seen is not None and self._is_there(seen):
            self._seen = follow(seen)
        else:
            self._seen = load(self.store, files=self._files)
        self._asked_at = time.monotonic()
        return self._seen

    def likely(self) -> Snapshot | None:
        """Return the newest known version, for a caller that commits on top of it.

        A bucket is not asked for newer commits each time: a commit is created exclusively, so a
        caller with an outdated snapshot fails when it commits.
        """
        if self.store.asks_for_free or time.monotonic() - self._asked_at > ASK_AGAIN_SECONDS:
            return self.newest()
        return self._seen

    @property
    def seen(self) -> Snapshot | None:
        """Return the version that was seen last."""
        return self._seen

    def committed(self, snapshot: Snapshot) -> None:
        """Continue from a snapshot that the owner has just committed.

        The snapshot of a new table has files, whether this log follows them or not: one more with
        each commit, as long as the process lives.
        """
        if snapshot.has_files and not self._files:
            snapshot = replace(snapshot, has_files=False, files={})
        self._seen, self._asked_at = snapshot, time.monotonic()

    def forget(self) -> None:
        """Forget the version that was seen, so that the table is loaded again."""
        self._seen, self._asked_at = None, float("-inf")

    def _is_there(self, seen: Snapshot) -> bool:
        """Return whether the log can be followed from a version."""
        commit = self.store.look(commit_name(seen.version))
        if commit is None or commit.version != seen.identity:
            return False
        return time.time() - commit.modified < TRUSTED_SECONDS


_followed: Cache[Snapshot] = Cache(MOST_TABLES)


def snapshot_of(address: str, *, version: int | None = None) -> Snapshot | None:
    """Return a table's newest version, read on from the last one known here; None: no table.

    With `version`, return that version.
    """
    store = at(address)
    if version is not None:
        return load(store, version=version)
    snapshot = Log(store, seen=_followed.find(store.address)).newest()
    _followed.keep(store.address, snapshot)
    return snapshot


def keep_following(snapshot: Snapshot) -> None:
    """Make `snapshot_of` continue from this snapshot the next time."""
    _followed.keep(snapshot.folder, snapshot)
