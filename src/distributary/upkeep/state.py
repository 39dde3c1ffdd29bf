"""A Delta table as its log tells it, file by file, word for word.

A library gives partition values back as it understands them, and leaves out which files were taken
away and when. To replace files one has to spell them as the log does, and to delete files one has
to know both. So the newest checkpoint is read here, and each commit after it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq

from distributary.publish.commit_file import commit_path

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


def load(folder: str) -> TableState | None:
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
        state = _after(state, actions)
    return state


def _load(folder: str) -> TableState | None:
    names = log_names(folder)
    if names is None:
        return None
    start = names.checkpoint
    state = TableState(folder, start, {}, {}, checkpoint=start)
    for name in names.checkpoints.get(start, ()):
        state = replace(_after(state, _checkpointed(f"{folder}/_delta_log/{name}")), version=start)
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


def _after(state: TableState, actions: Iterable[dict[str, Any]]) -> TableState:
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
