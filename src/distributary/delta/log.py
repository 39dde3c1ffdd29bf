"""The log of a Delta table, read: what the table is now, in a folder or in a bucket alike.

A log is replayed from its newest checkpoint. Whoever has seen a version reads on from there, commit
by commit: that takes two looks at a folder, and one request to a bucket, when nothing is new.
Those who only add files need not know the thousands that are there, and do not read them.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from distributary.delta.columns import Field, fields_in
from distributary.delta.damage import TAG, reading
from distributary.delta.parquet import opened, read_file, read_pieces
from distributary.delta.vectors import FEATURE, BrokenVectorError, Ints, Vector, read_vector
from distributary.errors import OutsideLakeError, PublishError
from distributary.model.cache import Cache
from distributary.model.manifest import parsed
from distributary.model.table import is_below
from distributary.store.base import Info, Store, at

LOG = "_delta_log"
HINT = f"{LOG}/_last_checkpoint"
SIDECARS = "v2Checkpoint"
"""What a table asks for whose checkpoints may leave its files to others beside them."""
FEATURES = frozenset({"appendOnly", "invariants", "timestampNtz", SIDECARS, FEATURE})
"""What a table may ask of its readers and writers, beyond the oldest protocol, for us to be one."""
PLAIN_PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}
"""What our own tables ask of their readers and writers: every engine can do this."""
TRUSTED_SECONDS = 3600
"""Somebody may clean a log up behind us, though never so soon: look at an older one again."""
ASK_AGAIN_SECONDS = 600.0
"""A bucket is asked this often whether a table that we write to is still the same one."""
LARGE_FILE = 32 * 2**20
"""Bytes: a larger file is not held in memory whole."""
MOST_TABLES = 4096
"""Tables that a process follows; the one that waited longest is loaded again next time."""

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")
_NAMED_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.[0-9a-fA-F-]{36}\.(?:parquet|json)")
"""Of `v2Checkpoint`: each is whole, and those of one version say the same."""
_FILES = (b'{"add"', b'{"remove"', b'{"cdc"')
_TRIES = 3
_READERS = 16
_LONGEST_EVIDENCE = 300

Action = Mapping[str, Any]
"""One line of a commit."""


class BrokenLogError(Exception):
    """A log with commits missing or garbled: nobody can tell what the table is."""


def commit_name(version: int) -> str:
    """The commit of a version, within the table's folder."""
    return f"{LOG}/{version:020d}.json"


def in_table(folder: str, path: str) -> str:
    """The path of a file that a table's log names; OutsideLakeError if it is not in the folder."""
    if not is_below(path):
        raise OutsideLakeError(
            "the log of a table names a file outside of the table's folder",
            where=folder,
            evidence=path[:_LONGEST_EVIDENCE],
            next_step="find out who wrote this commit",
        )
    return path


# What a version of a table is.


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file that the table consists of."""

    path: str
    """In the table's folder."""
    spelled: str
    """The same as the log has it."""
    size: int
    modified_ms: int = 0
    values: Mapping[str, str | None] = field(default_factory=dict)
    """Of the partition columns, as the log has them."""
    stats: str | None = None
    vector: Vector | None = None
    """Rows of it that are no longer part of the table."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """What its writer says of it besides."""

    @property
    def checksum(self) -> str | None:
        """The checksum of its bytes, if its writer was ours."""
        return self.tags.get(TAG)

    @property
    def written(self) -> int | None:
        """How many rows were written to it, if the log tells."""
        count = self.told().get("numRecords")
        return count if isinstance(count, int) else None

    @property
    def rows(self) -> int | None:
        """How many of them are part of the table."""
        written = self.written
        return None if written is None else written - self.lost

    @property
    def lost(self) -> int:
        """How many are not."""
        return 0 if self.vector is None else self.vector.cardinality

    def told(self) -> dict[str, Any]:
        """The statistics in the log."""
        try:
            found = json.loads(self.stats or "{}")
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def bounds(self, column: str) -> tuple[Any, Any]:
        """The lowest and the highest value of a column, None where the log does not tell."""
        told = self.told()
        low, high = (told.get(name) or {} for name in ("minValues", "maxValues"))
        return low.get(column), high.get(column)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One version of a table."""

    store: Store
    """Its folder."""
    version: int = -1
    identity: str | None = None
    """Of the newest commit's file: a table that was deleted and made again has another one."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """As the log spells it."""
    protocol: Mapping[str, Any] = field(default_factory=dict)
    fields: Sequence[Field] = ()
    """The columns."""
    invariants: bool = False
    """Whether a column has conditions that its writers must check."""
    marks: Mapping[str, int] = field(default_factory=dict)
    """The newest batch of each application."""
    checkpoint: int = -1
    """The version of the checkpoint that the log was read from."""
    has_files: bool = True
    """Whether the files are known."""
    files: Mapping[str, DataFile] = field(default_factory=dict)
    """By their paths."""
    removed: Mapping[str, int] = field(default_factory=dict)
    """Files that were taken away and when, in milliseconds since 1970, as far as the log tells;
    those of deletion vectors too, even if another vector in them is still in use. Of a table that
    was just loaded: who follows it would have more of them with every commit."""
    tail: tuple[bytes, ...] = ()
    """The newest commits as this process has written them, in a bucket: reading them costs."""

    @property
    def folder(self) -> str:
        """The address of its folder."""
        return self.store.address

    @property
    def size(self) -> int:
        """Bytes in all files."""
        return sum(file.size for file in self.files.values())

    @property
    def count(self) -> int | None:
        """How many rows it has, by statistics; None where a writer of a file did not count."""
        told = [file.rows for file in self.files.values()]
        counted = [rows for rows in told if rows is not None]
        return sum(counted) if len(counted) == len(told) else None

    @property
    def properties(self) -> dict[str, str]:
        """What people and engines have set on the table."""
        return dict(self.metadata.get("configuration") or {})

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """The columns that the table is partitioned by."""
        return tuple(self.metadata.get("partitionColumns") or ())

    def has(self, app_id: str, batch: int) -> bool:
        """Whether the application has committed the batch, or a later one."""
        return self.marks.get(app_id, -1) >= batch

    def property(self, name: str) -> str | None:
        """A property of the table."""
        return self.properties.get(name)

    def addresses(self) -> list[str]:
        """Where its files are, for whoever reads them by themselves.

        Raises OutsideLakeError, and PublishError where files alone do not tell its rows.
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
        """A file with the columns of a schema. Raises DamagedFileError.

        Its bytes are `checked` where all columns are asked for, unless the caller says otherwise:
        such rows are written again, and damage must not get a checksum of its own.
        """
        address = f"{self.folder}/{in_table(self.folder, file.path)}"
        checked = len(schema) >= len(self.fields) if checked is None else checked
        expected = file.checksum if checked else None
        rows = read_file(address, schema, lenient=lenient, size=file.size, expected=expected)
        (rows,) = self.left(file, [rows])
        return rows

    def gone(self, file: DataFile) -> Ints:
        """The numbers of the rows of a file that are no longer part of the table.

        Raises BrokenVectorError.
        """
        none = np.zeros(0, np.int64)
        return none if file.vector is None else read_vector(self.store, file.vector)

    def left(self, file: DataFile, pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Pieces of a file as they were written, without the rows that are gone."""
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
            raise BrokenVectorError(f"{file.path} has {at} rows, and number {gone[-1]} is gone")

    def pieces(
        self, file: DataFile, schema: pa.Schema, *, lenient: bool = False
    ) -> Iterator[pa.Table]:
        """The same for a file of any size: whole, or in pieces if it is a large one."""
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
        """All rows."""
        parts = [self.read(file, schema) for file in self.files.values()]
        return pa.concat_tables(parts) if parts else schema.empty_table()

    def beyond_us(self) -> str:
        """Why only another engine can write this table; empty when we can."""
        reader = int(self.protocol.get("minReaderVersion", 1))
        writer = int(self.protocol.get("minWriterVersion", 1))
        if reader <= 1 and writer <= 2:
            return ""
        asked = {*(self.protocol.get("readerFeatures") or ())}
        asked |= {*(self.protocol.get("writerFeatures") or ())}
        if reader in (1, 3) and writer == 7 and not asked - FEATURES:
            return ""
        return f"features: {', '.join(sorted(asked - FEATURES)) or f'writer version {writer}'}"

    def no_new_rows(self) -> str:
        """Why rows cannot be added by us; empty when they can."""
        return "columns have invariants" if self.invariants else self.beyond_us()

    def no_changes(self) -> str:
        """Why rows cannot be replaced by files that we write; empty when they can."""
        if self.partition_columns:
            return "it is partitioned"
        if self.property("delta.appendOnly") == "true":
            return "rows may only be added: delta.appendOnly"
        return self.no_new_rows()

    def refuse_unusable(self, table: str) -> None:
        """Raises PublishError for a table that only another engine can change."""
        self._refuse(table, self.no_changes())

    def refuse_unreadable(self, table: str) -> None:
        """Raises PublishError for a table whose files alone do not tell its rows."""
        features = {*(self.protocol.get("readerFeatures") or ())} - FEATURES
        if any(file.vector for file in self.files.values()):
            features.add(FEATURE)
        self._refuse(table, f"features: {sorted(features)}" if features else "")

    def _refuse(self, table: str, reason: str) -> None:
        if reason:
            raise PublishError(
                f"table {table} needs an engine that knows more of the protocol",
                where=self.folder,
                evidence=reason,
                next_step="use Spark for this table, or take the feature off it",
                reason="features",
            )


# Commits, and what they make of a version.


@dataclass(frozen=True, slots=True)
class Commit:
    """What a commit says, except for its files."""

    info: dict[str, Any]
    metadata: dict[str, Any] | None
    marks: dict[str, int]


def actions_in(data: bytes, *, files: bool = True, last: bool = False) -> list[Action]:
    """Return the actions of a commit, one a line; without `files` those that name no file.

    Raises BrokenLogError for a commit without any action: no writer makes one, so its content is
    lost, and with it the rows that it added. The `last` one may be empty, as a power cut leaves it:
    then the table ends with the commit before, and lacks a mark that its pipeline looks for.
    """
    if is_lost(data) and not last:
        raise BrokenLogError("a commit in its log is empty")
    lines = (line for line in data.split(b"\n") if not line.isspace())
    return [parsed(line) for line in lines if line and (files or not line.startswith(_FILES))]


def is_lost(data: bytes) -> bool:
    """Return whether a commit has no action."""
    return not data or data.isspace()


def commits_in(data: Sequence[bytes], *, files: bool) -> list[list[Action]]:
    """Return the actions of commits, of which the last is the newest of the table."""
    return [actions_in(each, files=files, last=at == len(data)) for at, each in enumerate(data, 1)]


def parse_commit(data: bytes, *, last: bool = False) -> Commit:
    """Return what a commit says of itself."""
    info: dict[str, Any] = {}
    metadata = None
    marks: dict[str, int] = {}
    for action in actions_in(data, files=False, last=last):
        info = action.get("commitInfo", info)
        metadata = action.get("metaData", metadata)
        if "txn" in action:
            marks[action["txn"]["appId"]] = action["txn"]["version"]
    return Commit(info, metadata, marks)


def added_by(store: Store, version: int) -> list[str] | None:
    """The files that a version has added; None where it is no longer told."""
    try:
        actions = actions_in(store.read(commit_name(version)))
    except FileNotFoundError:
        return None
    return [in_table(store.address, unquote(a["add"]["path"])) for a in actions if "add" in a]


def commits_back(snapshot: Snapshot) -> Iterator[Commit]:
    """The commits of a table, the newest first, as far back as its log tells."""
    for version in range(snapshot.version, -1, -1):
        try:
            data = snapshot.store.read(commit_name(version))
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
    """A version of a table, after commits that lead to another.

    Files that were taken away are kept in mind while a table is `loading`.
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
                    vector = Vector.told(action["remove"].get("deletionVector"))
                    when = int(action["remove"].get("deletionTimestamp") or 0)
                    known = files[path] if path in files else seen.files.get(path)
                    # a checkpoint also tells that it went with a vector of before
                    if known is None or file_key(path, known.vector) == file_key(path, vector):
                        files[path], removed[path] = None, when
                    if vector is not None and vector.path is not None:
                        removed[vector.path] = when
            else:
                metadata = action.get("metaData", metadata)
                protocol = action.get("protocol", protocol)
        # a file that a commit names twice, once to remove it, is there
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
    # not `replace`, which takes longer than all else here: this is once a table and batch
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
    """What tells a file in a log from all others: its path, and the vector it is read with."""
    return path if vector is None else f"{path} {vector.id}"


def data_file(add: Mapping[str, Any]) -> DataFile:
    """A file as an action of a log names it."""
    return DataFile(
        path=unquote(add["path"]),
        spelled=add["path"],
        size=int(add["size"]),
        modified_ms=int(add.get("modificationTime") or 0),
        values=add.get("partitionValues") or {},
        stats=add.get("stats"),
        vector=Vector.told(add.get("deletionVector")),
        tags=add.get("tags") or {},
    )


# A table that is seen for the first time, and one that was seen before.


@dataclass(frozen=True, slots=True)
class LogNames:
    """The files of a log, by their names."""

    commits: Mapping[int, Info]
    checkpoints: Mapping[int, tuple[Info, ...]]
    """Versions with a whole checkpoint, and its parts."""

    @property
    def checkpoint(self) -> int:
        """The version of the newest checkpoint, or -1."""
        return max(self.checkpoints, default=-1)

    def until(self, version: int) -> LogNames:
        """Those that tell what the table was at a version."""
        commits = {v: info for v, info in self.commits.items() if v <= version}
        return LogNames(commits, {v: p for v, p in self.checkpoints.items() if v <= version})


def log_names(store: Store, *, since: int = -1) -> LogNames:
    """What is in a table's log folder, from a version on."""
    commits: dict[int, Info] = {}
    parts: dict[tuple[int, int], list[Info]] = {}
    named: dict[int, tuple[Info, ...]] = {}
    for info in store.files(LOG, after=f"{since:020d}" if since > 0 else ""):
        name = info.name.removeprefix(f"{LOG}/")
        if match := _COMMIT.fullmatch(name):
            commits[int(match[1])] = info
        elif match := _CHECKPOINT.fullmatch(name):
            parts.setdefault((int(match[1]), int(match[3] or 1)), []).append(info)
        elif match := _NAMED_CHECKPOINT.fullmatch(name):
            named[int(match[1])] = (info,)
    whole = {
        version: tuple(sorted(found, key=lambda info: info.name))
        for (version, count), found in parts.items()
        if len(found) == count
    }
    return LogNames(dict(sorted(commits.items())), named | whole)


def load(store: Store, *, files: bool = True, version: int | None = None) -> Snapshot | None:
    """A table at its newest version or another, or None where there is none.

    Raises BrokenLogError.
    """
    try:
        for _ in range(_TRIES - 1):
            with suppress(FileNotFoundError):
                return _load(store, files=files, version=version)
            # somebody cleans the log up: it has a newer checkpoint then
        return _load(store, files=files, version=version)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BrokenLogError(f"its log is no log: {type(error).__name__}: {error}") from error


def follow(seen: Snapshot, *, loading: bool = False) -> Snapshot:
    """The same table at its newest version, by the commits since."""
    commits: list[bytes] = []
    identity = seen.identity
    while True:
        try:
            data, identity = seen.store.fetch(commit_name(seen.version + len(commits) + 1))
        except (FileNotFoundError, NotADirectoryError):
            break
        commits.append(data)
    if not commits:
        return seen
    actions = commits_in(commits, files=seen.has_files)
    return replayed(seen, actions, seen.version + len(commits), identity, loading=loading)


def _load(store: Store, *, files: bool, version: int | None) -> Snapshot | None:
    hint = _hinted(store) if version is None else -1
    names = log_names(store, since=hint)
    if hint >= 0 and names.checkpoint < hint:
        names = log_names(store)
    if version is not None:
        names = names.until(version)
    if not names.commits and not names.checkpoints:
        return None
    start = names.checkpoint
    state = Snapshot(store, start, checkpoint=start, has_files=files)
    if start >= 0:
        told = [_checkpointed(store, part, files=files) for part in names.checkpoints[start]]
        known = names.commits.get(start)
        identity = None if known is None else known.version
        state = replayed(state, told, start, identity, loading=True)
    tail = [version for version in names.commits if version > start]
    if tail == list(range(start + 1, start + 1 + len(tail))) and tail:
        found = fetch_commits(store, tail)
        commits = commits_in([data for data, _ in found], files=files)
        state = replayed(state, commits, tail[-1], found[-1][1], loading=True)
    elif tail:
        raise BrokenLogError(f"its log goes from {start} to {tail[-1]}, and not all is there")
    if not state.metadata or not state.protocol:
        raise BrokenLogError(f"its log ends at {state.version}, and does not name its columns")
    return follow(state, loading=True) if version is None else state


def _hinted(store: Store) -> int:
    """The version of a checkpoint of which somebody said that it is the newest."""
    try:
        version = json.loads(store.read(HINT))["version"]
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return -1
    return version if isinstance(version, int) else -1


def fetch_commits(store: Store, versions: Sequence[int]) -> list[tuple[bytes, str]]:
    """Commits with the versions of their files, many at once from a bucket."""
    names = [commit_name(version) for version in versions]
    if store.asks_for_free or len(names) <= 1:
        return [store.fetch(name) for name in names]
    with ThreadPoolExecutor(min(_READERS, len(names))) as pool:
        return list(pool.map(store.fetch, names))


_WANTED: dict[str, Sequence[str]] = {
    "add": (
        "path",
        "partitionValues",
        "size",
        "modificationTime",
        "stats",
        "tags",
        "deletionVector",
    ),
    "remove": ("path", "deletionTimestamp", "deletionVector"),
    "metaData": (
        "id",
        "name",
        "description",
        "format",
        "schemaString",
        "partitionColumns",
        "configuration",
        "createdTime",
    ),
    "protocol": ("minReaderVersion", "minWriterVersion", "readerFeatures", "writerFeatures"),
    "txn": ("appId", "version"),
}
_SIDECAR: dict[str, Sequence[str]] = {"sidecar": ("path", "sizeInBytes")}
_MAPS = ("partitionValues", "configuration", "options", "tags")


def _checkpointed(store: Store, part: Info, *, files: bool) -> list[Action]:
    """The actions in one file of a checkpoint, and in those that it names."""
    wanted = {a: n for a, n in _WANTED.items() if files or a not in ("add", "remove")}
    found = _actions(store, part, {**wanted, **_SIDECAR})
    beside = _sidecars(found) if files else ()
    return [*found, *(action for each in beside for action in _actions(store, each, wanted))]


def with_sidecars(store: Store, parts: Sequence[Info]) -> tuple[Info, ...]:
    """The files of a checkpoint, and those that they name."""
    named = [_sidecars(_actions(store, part, _SIDECAR)) for part in parts]
    return (*parts, *(each for found in named for each in found))


def _sidecars(actions: Sequence[Action]) -> list[Info]:
    """Files that hold what a table consists of, if its checkpoint leaves that to them."""
    told = [action["sidecar"] for action in actions if "sidecar" in action]
    # they are always in this folder, however a log spells that
    names = [unquote(each["path"]).rpartition("/")[2] for each in told]
    sizes = [int(each["sizeInBytes"]) for each in told]
    return [Info(f"{LOG}/_sidecars/{n}", s, 0.0, "") for n, s in zip(names, sizes, strict=True)]


def _actions(store: Store, part: Info, wanted: Mapping[str, Sequence[str]]) -> list[Action]:
    """Some of the actions in one file of a checkpoint."""
    if part.name.endswith(".json"):
        return actions_in(store.read(part.name))
    with (
        reading(store, part.name, size=part.size, expected=None),
        pq.ParquetFile(opened(store, part.name, size=part.size)) as file,
    ):
        rows = file.read(columns=columns_in(file.schema_arrow, wanted))
    return [
        {action: _plain(told)}
        for action in rows.column_names
        for told in rows.column(action).drop_null().to_pylist()
    ]


def columns_in(have: pa.Schema, wanted: Mapping[str, Sequence[str]]) -> list[str]:
    """Which of these fields of actions a file of a checkpoint has."""
    return [
        f"{action}.{name}"
        for action, names in wanted.items()
        if action in have.names
        for name in names
        if have.field(action).type.get_field_index(name) >= 0
    ]


def _plain(told: dict[str, Any]) -> dict[str, Any]:
    """A struct as a commit has it: maps, which Arrow gives as lists of pairs, and nothing null."""
    return {
        key: dict(value) if key in _MAPS else _plain(value) if isinstance(value, dict) else value
        for key, value in told.items()
        if value is not None
    }


class Log:
    """The log of one table, followed. Not thread-safe: its owner holds a lock."""

    def __init__(self, store: Store, *, files: bool = True, seen: Snapshot | None = None) -> None:
        """Without `files` only what an append needs is read."""
        self.store = store
        self._files = files
        self._seen = seen
        self._asked = float("-inf")

    def newest(self) -> Snapshot | None:
        """The newest version, or None where there is no table. Raises BrokenLogError."""
        seen, self._seen = self._seen, None
        if seen is not None and self._is_there(seen):
            self._seen = follow(seen)
        else:
            self._seen = load(self.store, files=self._files)
        self._asked = time.monotonic()
        return self._seen

    def likely(self) -> Snapshot | None:
        """The newest version as far as it is known, for whoever commits on top of it.

        A commit is created exclusively: whoever knows too little is told then, and a bucket need
        not be asked before.
        """
        if self.store.asks_for_free or time.monotonic() - self._asked > ASK_AGAIN_SECONDS:
            return self.newest()
        return self._seen

    @property
    def seen(self) -> Snapshot | None:
        """The version that was seen last."""
        return self._seen

    def committed(self, snapshot: Snapshot) -> None:
        """What the owner has made of the table itself."""
        self._seen, self._asked = snapshot, time.monotonic()

    def forget(self) -> None:
        """Trust nothing seen so far."""
        self._seen, self._asked = None, float("-inf")

    def _is_there(self, seen: Snapshot) -> bool:
        """Whether the log can be followed from a version."""
        found = self.store.look(commit_name(seen.version))
        if found is None or found.version != seen.identity:
            return False
        return time.time() - found.modified < TRUSTED_SECONDS


_followed: Cache[Snapshot] = Cache(MOST_TABLES)


def snapshot_of(address: str) -> Snapshot | None:
    """The newest version of a table that this process may have seen before; None: there is none."""
    store = at(address)
    found = Log(store, seen=_followed.find(store.address)).newest()
    _followed.keep(store.address, found)
    return found


def keep_following(snapshot: Snapshot) -> None:
    """The next time, `snapshot_of` reads on from here."""
    _followed.keep(snapshot.folder, snapshot)
