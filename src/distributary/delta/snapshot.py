"""A Delta table as it is now: its columns, files, properties and marks.

A table is loaded once in a process and then followed, commit by commit: loading it with a library
takes longer than merging a small batch into it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from distributary.delta.columns import ColumnConflictError, Field, fields_in
from distributary.delta.commit import Identity, commit_path, identity_of, is_trusted, metadata_of
from distributary.delta.tables import as_publish_error
from distributary.errors import DistributaryError, OutsideLakeError, PublishError
from distributary.evolve.align import align
from distributary.evolve.types import fits
from distributary.model.cache import Cache
from distributary.model.table import Fill, is_below
from distributary.store.base import local_folder

# Rows of one file in the columns of another time: missing ones are null, narrower ones wider.


def conform(table: pa.Table, schema: pa.Schema, *, rows: int, lenient: bool = False) -> pa.Table:
    """The table with exactly these columns, in this order and of these types.

    Raises ColumnConflictError where values would be lost; they are null instead when `lenient`.
    """
    have = set(table.column_names)
    columns = [
        _column(table.column(field.name), field, lenient=lenient)
        if field.name in have
        else pa.nulls(rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema) if columns else table.select([])


def _column(column: pa.ChunkedArray, field: pa.Field, *, lenient: bool) -> pa.ChunkedArray:
    if column.type == field.type:
        return column
    if fits(column.type, field.type):
        source, target = pa.schema([(field.name, column.type)]), pa.schema([field])
        fill = (Fill(field.name, field.name, field.type),)
        batches = pa.table([column], schema=source).to_batches()
        return pa.chunked_array(
            [align(batch, fill, target).column(0) for batch in batches], field.type
        )
    try:
        return column.cast(field.type)
    except pa.ArrowException as error:
        if not lenient:
            raise ColumnConflictError(field.name, str(field.type), str(column.type)) from error
    return pa.chunked_array([pa.array(map(_Cast(field.type), column), field.type)])


class _Cast:
    """One value in another type, or null where that type has no such value."""

    def __init__(self, type_: pa.DataType) -> None:
        self._type = type_

    def __call__(self, value: pa.Scalar) -> object:
        try:
            return value.cast(self._type).as_py()
        except pa.ArrowException:
            return None


def read_file(path: str, schema: pa.Schema, *, lenient: bool = False) -> pa.Table:
    """A Parquet file with exactly the columns of a schema: what it lacks is null."""
    with pq.ParquetFile(path) as file:
        have = set(file.schema_arrow.names)
        names = [name for name in schema.names if name in have]
        rows, size = file.read(columns=names), file.metadata.num_rows
    # a name with a dot in it also picks fields of other columns
    return conform(rows.select(names), schema, rows=size, lenient=lenient)


MOST_TABLES = 4096
"""Tables that a process follows; the one that waited longest is loaded anew next time."""
_NOT_READ = ('{"commitInfo"', "\n", "\r")
_LONGEST_EVIDENCE = 300
_LOG_START = 40
"""Commits: a log up to this long, and without a checkpoint, is read from its beginning."""


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


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A file that the table consists of."""

    path: str
    """Relative to the table's folder."""
    size: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One version of a table."""

    folder: str
    version: int
    fields: list[Field]
    metadata: dict[str, Any]
    """As the log spells it."""
    protocol: dict[str, Any]
    files: tuple[LiveFile, ...]
    marks: Mapping[str, int | None]
    """The newest batch of applications that were asked about."""
    all_marks: bool = False
    """The log was read from its beginning: an application without a mark has none."""
    identity: Identity | None = None
    """Of the newest commit's file: a table that was deleted and made again has another one."""

    @property
    def size(self) -> int:
        """Bytes in all files."""
        return sum(file.size for file in self.files)

    def knows(self, app_id: str) -> bool:
        """Whether the application's mark is known, if it has one."""
        return self.all_marks or not app_id or app_id in self.marks

    def has(self, app_id: str, batch: int) -> bool:
        """Whether the application has committed the batch, or a later one."""
        mark = self.marks.get(app_id)
        return mark is not None and mark >= batch

    def property(self, name: str) -> str | None:
        """A property of the table."""
        found: str | None = self.metadata["configuration"].get(name)
        return found

    def read(self, file: LiveFile, schema: pa.Schema, *, lenient: bool = False) -> pa.Table:
        """A file with the columns of a schema."""
        return read_file(f"{self.folder}/{file.path}", schema, lenient=lenient)

    def rows(self, schema: pa.Schema) -> pa.Table:
        """All rows."""
        parts = [self.read(file, schema) for file in self.files]
        return pa.concat_tables(parts) if parts else schema.empty_table()


_followed: Cache[Snapshot] = Cache(MOST_TABLES)


def load(folder: str, *, app_id: str = "") -> Snapshot | None:
    """The newest version of a table, or None where there is none."""
    seen = _followed.find(folder)
    if (
        seen is None
        or not is_trusted(folder, seen.version, seen.identity)
        or not seen.knows(app_id)
    ):
        seen = _beginning(folder) or _loaded(folder, app_id)
    while seen is not None:
        following = _follow(seen)
        if following is None:
            break
        seen = following
    _followed.keep(folder, seen)
    return seen


def _beginning(folder: str) -> Snapshot | None:
    """The first commit of a young log, if the log is one."""
    log = f"{folder}/_delta_log"
    if os.path.exists(f"{log}/_last_checkpoint") or os.path.exists(commit_path(folder, _LOG_START)):
        return None
    nothing = Snapshot(folder, -1, [], {}, {}, (), {}, all_marks=True)
    first = _follow(nothing)
    return first if first is not None and first.metadata and first.protocol else None


def _loaded(folder: str, app_id: str) -> Snapshot | None:
    if not os.path.isdir(f"{folder}/_delta_log"):
        return None
    try:
        table = DeltaTable(folder)
    except TableNotFoundError:
        return None
    protocol, version, metadata = table.protocol(), table.version(), metadata_of(table)
    return Snapshot(
        folder=folder,
        version=version,
        fields=fields_in(metadata["schemaString"]),
        metadata=metadata,
        protocol=_protocol(protocol),
        files=_files(folder, pa.table(table.get_add_actions())),
        marks={app_id: table.transaction_version(app_id)} if app_id else {},
        identity=identity_of(commit_path(folder, version)),
    )


def _follow(seen: Snapshot) -> Snapshot | None:
    """The next version, or None if there is none."""
    path = commit_path(seen.folder, seen.version + 1)
    identity = identity_of(path)
    if identity is None:
        return None
    with open(path, encoding="utf-8") as file:
        # what a commit says of itself is of no interest here, and long
        actions = [json.loads(line) for line in file if not line.startswith(_NOT_READ)]
    return replace(_after(seen, actions), version=seen.version + 1, identity=identity)


def _after(seen: Snapshot, actions: list[dict[str, Any]]) -> Snapshot:
    files = {file.path: file for file in seen.files}
    metadata, protocol, marks = seen.metadata, seen.protocol, dict(seen.marks)
    for action in actions:
        if "remove" in action:
            files.pop(unquote(action["remove"]["path"]), None)
        metadata = action.get("metaData", metadata)
        protocol = action.get("protocol", protocol)
        if "txn" in action:
            marks[action["txn"]["appId"]] = action["txn"]["version"]
    for add in (action["add"] for action in actions if "add" in action):
        path = in_table(seen.folder, unquote(add["path"]))
        files[path] = LiveFile(path, add["size"])
    known = metadata is seen.metadata
    fields = seen.fields if known else fields_in(metadata["schemaString"])
    return replace(
        seen,
        fields=fields,
        metadata=metadata,
        protocol=protocol,
        files=tuple(files.values()),
        marks=marks,
    )


def _protocol(protocol: Any) -> dict[str, Any]:
    spelled: dict[str, Any] = {
        "minReaderVersion": protocol.min_reader_version,
        "minWriterVersion": protocol.min_writer_version,
    }
    if protocol.reader_features:
        spelled["readerFeatures"] = list(protocol.reader_features)
    if protocol.writer_features:
        spelled["writerFeatures"] = list(protocol.writer_features)
    return spelled


def _files(folder: str, actions: pa.Table) -> tuple[LiveFile, ...]:
    pairs = zip(
        actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist(), strict=True
    )
    return tuple(LiveFile(in_table(folder, path), size) for path, size in pairs)


# What a table must be like for us to replace its files, and what we say when something fails.

_FEATURES = frozenset({"appendOnly", "invariants", "timestampNtz"})
"""What a table may ask of its writers, beyond the oldest protocol, for us to be one."""


def folder_of(path: str) -> str:
    """The folder on this machine that a table's path means."""
    folder = local_folder(path)
    if folder is None:
        raise PublishError(
            "cannot merge into a table that is not in a folder of this machine",
            where=path,
            evidence="the path names another store",
            next_step="put the lake on a file system that all workers see",
            reason="store",
        )
    return folder


def refuse_unusable(snapshot: Snapshot, table: str) -> None:
    """Raises PublishError for a table that only another engine can change."""
    _refuse(snapshot, table, unusable(snapshot))


def refuse_unreadable(snapshot: Snapshot, table: str) -> None:
    """Raises PublishError for a table whose files do not tell all of its rows."""
    features = {*snapshot.protocol.get("readerFeatures", ())} - _FEATURES
    old = snapshot.protocol["minReaderVersion"] == 1
    _refuse(snapshot, table, "" if old or not features else f"features: {sorted(features)}")


def _refuse(snapshot: Snapshot, table: str, reason: str) -> None:
    if reason:
        raise PublishError(
            f"table {table} needs an engine that knows more of the protocol",
            where=snapshot.folder,
            evidence=reason,
            next_step="use Spark for this table, or take the feature off it",
            reason="features",
        )


def unusable(snapshot: Snapshot) -> str:
    """Why rows of this table cannot be replaced by files that we write; empty when they can."""
    wanted = {*snapshot.protocol.get("readerFeatures", ())}
    wanted |= {*snapshot.protocol.get("writerFeatures", ())}
    old = snapshot.protocol["minReaderVersion"] == 1 and snapshot.protocol["minWriterVersion"] <= 2
    if not old and (not wanted or wanted - _FEATURES):
        return f"features: {', '.join(sorted(wanted - _FEATURES)) or 'of an old writer version'}"
    if snapshot.metadata.get("partitionColumns"):
        return "it is partitioned"
    if '"delta.invariants"' in snapshot.metadata["schemaString"]:
        return "columns have invariants"
    if snapshot.property("delta.appendOnly") == "true":
        return "rows may only be added: delta.appendOnly"
    return ""


@contextmanager
def merging(path: str, *, doing: str) -> Iterator[None]:
    """Errors of the libraries below become ours."""
    try:
        yield
    except DistributaryError:
        raise
    except Exception as error:
        raise as_publish_error(error, doing=doing, path=path) from error


# A Delta table as its log tells it, file by file, word for word.
#
# A library gives partition values back as it understands them, and leaves out which files were
# taken away and when. To replace files one has to spell them as the log does, and to delete files
# one has to know both. So the newest checkpoint is read here, and each commit after it.

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")
_WANTED = {
    "add": ("path", "partitionValues", "size", "modificationTime", "stats"),
    "remove": ("path", "deletionTimestamp"),
    "metaData": ("id", "schemaString", "partitionColumns", "configuration"),
    "protocol": ("minReaderVersion", "minWriterVersion", "readerFeatures", "writerFeatures"),
}
_TRIES = 3
FEATURES = frozenset({"appendOnly", "invariants", "timestampNtz"})
"""What a table may ask of its writers, beyond the oldest protocol, for us to replace its files."""


class BrokenLogError(Exception):
    """A log with commits missing: nobody can tell what the table is."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file that the table consists of."""

    path: str
    """In the table's folder."""
    spelled: str
    """The same as the log has it."""
    size: int
    modified_ms: int
    values: Mapping[str, str | None]
    """Of the partition columns, as the log has them."""
    stats: str | None

    def told(self) -> dict[str, Any]:
        """The statistics in the log."""
        try:
            found = json.loads(self.stats or "{}")
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class LogNames:
    """The files of a log, by their names."""

    commits: tuple[int, ...]
    checkpoints: Mapping[int, tuple[str, ...]]
    """Versions with a whole checkpoint, and the names of its parts."""

    @property
    def checkpoint(self) -> int:
        """The version of the newest checkpoint, or -1."""
        return max(self.checkpoints, default=-1)


@dataclass(frozen=True, slots=True)
class TableState:
    """One version of a table."""

    folder: str
    version: int
    metadata: Mapping[str, Any]
    protocol: Mapping[str, Any]
    files: Mapping[str, DataFile] = field(default_factory=dict)
    """By their paths."""
    removed: Mapping[str, int] = field(default_factory=dict)
    """Files that were taken away and when, in milliseconds since 1970, as far as the log tells."""
    checkpoint: int = -1

    @property
    def properties(self) -> dict[str, str]:
        """What people and engines have set on the table."""
        return dict(self.metadata.get("configuration") or {})

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """The columns that the table is partitioned by."""
        return tuple(self.metadata.get("partitionColumns") or ())

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(file.size for file in self.files.values())

    def beyond_us(self) -> str:
        """Why files of this table cannot be replaced by us; empty when they can."""
        reader = int(self.protocol.get("minReaderVersion", 1))
        writer = int(self.protocol.get("minWriterVersion", 1))
        asked = {*(self.protocol.get("readerFeatures") or ())}
        asked |= {*(self.protocol.get("writerFeatures") or ())}
        if reader <= 1 and writer <= 2:
            return ""
        if reader in (1, 3) and writer == 7 and not asked - FEATURES:
            return ""
        return f"features: {', '.join(sorted(asked - FEATURES)) or f'writer version {writer}'}"


def log_names(folder: str) -> LogNames | None:
    """What is in a table's log folder; None where there is no table."""
    try:
        names = os.listdir(f"{folder}/_delta_log")
    except (FileNotFoundError, NotADirectoryError):
        return None
    commits = sorted(int(m[1]) for m in map(_COMMIT.fullmatch, names) if m)
    parts: dict[tuple[int, int], list[str]] = {}
    for match in filter(None, map(_CHECKPOINT.fullmatch, names)):
        parts.setdefault((int(match[1]), int(match[3] or 1)), []).append(match[0])
    whole = {v: tuple(sorted(found)) for (v, count), found in parts.items() if len(found) == count}
    return LogNames(tuple(commits), whole) if commits or whole else None


def load_state(folder: str) -> TableState | None:
    """The newest version of a table, or None where there is none. Raises BrokenLogError."""
    for _ in range(_TRIES - 1):
        try:
            return _load(folder)
        except FileNotFoundError:
            # somebody cleans the log up: it has a newer checkpoint then
            continue
    return _load(folder)


def follow(state: TableState) -> TableState:
    """The same table at its newest version, by the commits since."""
    while (actions := _actions(state.folder, state.version + 1)) is not None:
        state = _state_at(state, actions)
    return state


def _load(folder: str) -> TableState | None:
    names = log_names(folder)
    if names is None:
        return None
    start = names.checkpoint
    state = TableState(folder, start, {}, {}, checkpoint=start)
    for name in names.checkpoints.get(start, ()):
        state = replace(
            _state_at(state, _checkpointed(f"{folder}/_delta_log/{name}")), version=start
        )
    state = follow(state)
    newest = max(names.commits, default=start)
    if not state.metadata or not state.protocol or state.version < newest:
        raise BrokenLogError(f"its log ends at {state.version}, but has a commit {newest}")
    return state


def _actions(folder: str, version: int) -> list[dict[str, Any]] | None:
    try:
        with open(commit_path(folder, version), encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.strip()]
    except FileNotFoundError:
        return None


def _state_at(state: TableState, actions: Iterable[dict[str, Any]]) -> TableState:
    files, removed = dict(state.files), dict(state.removed)
    metadata, protocol = state.metadata, state.protocol
    added: list[DataFile] = []
    for action in actions:
        if "remove" in action:
            path = unquote(action["remove"]["path"])
            files.pop(path, None)
            removed[path] = int(action["remove"].get("deletionTimestamp") or 0)
        elif "add" in action:
            added.append(_file(action["add"]))
        metadata = action.get("metaData", metadata)
        protocol = action.get("protocol", protocol)
    for file in added:
        files[file.path] = file
        removed.pop(file.path, None)
    return replace(
        state,
        version=state.version + 1,
        metadata=metadata,
        protocol=protocol,
        files=files,
        removed=removed,
    )


def _file(add: Mapping[str, Any]) -> DataFile:
    return DataFile(
        path=unquote(add["path"]),
        spelled=add["path"],
        size=int(add["size"]),
        modified_ms=int(add.get("modificationTime") or 0),
        values=dict(add.get("partitionValues") or {}),
        stats=add.get("stats"),
    )


def _checkpointed(path: str) -> list[dict[str, Any]]:
    """The actions in one file of a checkpoint."""
    with pq.ParquetFile(path) as file:
        have = file.schema_arrow
        names = [
            f"{action}.{name}"
            for action, wanted in _WANTED.items()
            if action in have.names
            for name in wanted
            if have.field(action).type.get_field_index(name) >= 0
        ]
        rows = file.read(columns=names)
    found: list[dict[str, Any]] = []
    for action in rows.column_names:
        told = rows.column(action).drop_null()
        # a file that is there goes last: a checkpoint names each file once, in any order
        found += [{action: _plain(each)} for each in told.to_pylist()]
    return sorted(found, key=lambda each: "add" in each)


def _plain(told: dict[str, Any]) -> dict[str, Any]:
    """Maps, which Arrow gives as lists of pairs, as commits have them."""
    maps = ("partitionValues", "configuration")
    return {key: dict(value or ()) if key in maps else value for key, value in told.items()}
