"""A Delta table as it is now: its columns, files, properties and marks.

A table is loaded once in a process and then followed, commit by commit: loading it with a library
takes longer than merging a small batch into it.
"""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from distributary.errors import OutsideLakeError
from distributary.merge.events import read_file
from distributary.model.table import is_below
from distributary.publish.columns import Field, fields_in
from distributary.publish.commit_file import (
    Identity,
    commit_path,
    identity_of,
    is_trusted,
    metadata_of,
)

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


_followed: OrderedDict[str, Snapshot] = OrderedDict()
_lock = threading.Lock()


def load(folder: str, *, app_id: str = "") -> Snapshot | None:
    """The newest version of a table, or None where there is none."""
    with _lock:
        seen = _followed.get(folder)
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
    _keep(folder, seen)
    return seen


def _keep(folder: str, seen: Snapshot | None) -> None:
    with _lock:
        _followed.pop(folder, None)
        if seen is not None:
            _followed[folder] = seen
        while len(_followed) > MOST_TABLES:
            _followed.popitem(last=False)


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
