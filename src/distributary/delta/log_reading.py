"""Reading of the files in a Delta table's log: their names, commits, and checkpoints.

Commits are lines of JSON, an action each. Checkpoints are Parquet files; their list of files may be
in sidecar files. `log.py` replays the actions of both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from distributary.delta.damage import commit_damage, damaged, footer_damage, reading
from distributary.delta.parquet import opened
from distributary.model.manifest import parsed
from distributary.store.base import Info, Store

LOG = "_delta_log"
HINT = f"{LOG}/_last_checkpoint"
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")
_NAMED_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.[0-9a-fA-F-]{36}\.(?:parquet|json)")
"""Checkpoints of the feature `v2Checkpoint`: each is complete, and all of one version are equal."""
_FILES = (b'{"add"', b'{"remove"', b'{"cdc"')
_READERS = 16

Action = Mapping[str, Any]
"""One action, which is one line of a commit."""
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
"""The actions and fields that are read from checkpoints."""
_SIDECAR: dict[str, Sequence[str]] = {"sidecar": ("path", "sizeInBytes")}
_MAPS = ("partitionValues", "configuration", "options", "tags")


class BrokenLogError(Exception):
    """An error for a log with missing or garbled commits: the table's state is unknown."""


def commit_name(version: int) -> str:
    """Return the path of a version's commit, within the table's folder."""
    return f"{LOG}/{version:020d}.json"


@dataclass(frozen=True, slots=True)
class LogNames:
    """The files in a log folder, by their versions."""

    commits: Mapping[int, Info]
    checkpoints: Mapping[int, tuple[Info, ...]]
    """The versions with a complete checkpoint, and its parts."""

    @property
    def checkpoint(self) -> int:
        """Return the version of the newest checkpoint, or -1."""
        return max(self.checkpoints, default=-1)

    def until(self, version: int) -> LogNames:
        """Return the commits and checkpoints up to a version."""
        commits = {v: info for v, info in self.commits.items() if v <= version}
        return LogNames(commits, {v: p for v, p in self.checkpoints.items() if v <= version})


def log_names(store: Store, *, since: int = -1) -> LogNames:
    """List the commits and checkpoints in a table's log folder, starting with version `since`."""
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
        version: tuple(sorted(infos, key=lambda info: info.name))
        for (version, count), infos in parts.items()
        if len(infos) == count
    }
    return LogNames(dict(sorted(commits.items())), named | whole)


@dataclass(frozen=True, slots=True)
class Commit:
    """The content of a commit, without its files."""

    info: dict[str, Any]
    metadata: dict[str, Any] | None
    marks: dict[str, int]


def actions_in(data: bytes, *, files: bool = True, last: bool = False) -> list[Action]:
    """Return the actions of a commit, one for each line; without `files`, those that name no file.

    Raises BrokenLogError for a commit without any action: no writer creates one, so its content is
    lost, and with it the rows that it added. The `last` commit of a log may be empty, as a power
    cut leaves it: then the table ends with the commit before it, and its pipeline notices the
    missing mark.
    """
    if is_lost(data) and not last:
        raise BrokenLogError("a commit in the table's log is empty")
    lines = (line for line in data.split(b"\n") if not line.isspace())
    return [parsed(line) for line in lines if line and (files or not line.startswith(_FILES))]


def is_lost(data: bytes) -> bool:
    """Return whether a commit has no action."""
    return not data or data.isspace()


def commits_in(data: Sequence[bytes], *, files: bool) -> list[list[Action]]:
    """Return the actions of consecutive commits, of which the last is the table's newest."""
    return [actions_in(one, files=files, last=at == len(data)) for at, one in enumerate(data, 1)]


def check_commit(store: Store, name: str, data: bytes) -> bytes:
    """Return the text of a commit; raise BrokenLogError if its checksum does not match."""
    damage = commit_damage(data)
    if damage is not None:
        raise BrokenLogError(f"the commit {store.address}/{name} is damaged: {damage}")
    return data


def read_commit(store: Store, version: int) -> bytes:
    """Read a commit. Raises FileNotFoundError, and BrokenLogError if it is damaged."""
    name = commit_name(version)
    return check_commit(store, name, store.read(name))


def fetch_commit(store: Store, version: int) -> tuple[bytes, str]:
    """Read a commit and the identity of its file, as `read_commit` does."""
    name = commit_name(version)
    data, identity = store.fetch(name)
    return check_commit(store, name, data), identity


def parse_commit(data: bytes, *, last: bool = False) -> Commit:
    """Parse a commit's description, metadata and marks."""
    info: dict[str, Any] = {}
    metadata = None
    marks: dict[str, int] = {}
    for action in actions_in(data, files=False, last=last):
        info = action.get("commitInfo", info)
        metadata = action.get("metaData", metadata)
        if "txn" in action:
            marks[action["txn"]["appId"]] = action["txn"]["version"]
    return Commit(info, metadata, marks)


def hinted_version(store: Store) -> int:
    """Return the version that the file `_last_checkpoint` names; -1 if it is missing or garbled."""
    try:
        version = json.loads(store.read(HINT))["version"]
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return -1
    return version if isinstance(version, int) else -1


def fetch_commits(store: Store, versions: Sequence[int]) -> list[tuple[bytes, str]]:
    """Read commits and the identities of their files, in parallel from a bucket.

    Raises BrokenLogError for a damaged commit.
    """
    if store.asks_for_free or len(versions) <= 1:
        return [fetch_commit(store, version) for version in versions]
    with ThreadPoolExecutor(min(_READERS, len(versions))) as pool:
        return list(pool.map(partial(fetch_commit, store), versions))


def checkpoint_actions(store: Store, part: Info, *, files: bool) -> list[Action]:
    """Read the actions in one file of a checkpoint and in its sidecar files."""
    wanted = {a: n for a, n in _WANTED.items() if files or a not in ("add", "remove")}
    actions = _actions(store, part, {**wanted, **_SIDECAR})
    sidecars = _sidecars(actions) if files else ()
    return [*actions, *(a for sidecar in sidecars for a in _actions(store, sidecar, wanted))]


def with_sidecars(store: Store, parts: Sequence[Info]) -> tuple[Info, ...]:
    """Return the files of a checkpoint and their sidecar files."""
    named = [_sidecars(_actions(store, part, _SIDECAR)) for part in parts]
    return (*parts, *(sidecar for sidecars in named for sidecar in sidecars))


def _sidecars(actions: Sequence[Action]) -> list[Info]:
    """Return the sidecar files that actions of a checkpoint name."""
    sidecars = [action["sidecar"] for action in actions if "sidecar" in action]
    # Sidecar files are always in this folder, whatever path the log spells.
    names = [unquote(sidecar["path"]).rpartition("/")[2] for sidecar in sidecars]
    sizes = [int(sidecar["sizeInBytes"]) for sidecar in sidecars]
    return [Info(f"{LOG}/_sidecars/{n}", s, 0.0, "") for n, s in zip(names, sizes, strict=True)]


def _actions(store: Store, part: Info, wanted: Mapping[str, Sequence[str]]) -> list[Action]:
    """Read the `wanted` actions and fields from one file of a checkpoint."""
    if part.name.endswith(".json"):
        return actions_in(store.read(part.name))
    with checkpoint_file(store, part.name, part.size) as file:
        rows = file.read(columns=columns_in(file.schema_arrow, wanted))
    return [
        {action: _plain(fields)}
        for action in rows.column_names
        for fields in rows.column(action).drop_null().to_pylist()
    ]


@contextmanager
def checkpoint_file(store: Store, name: str, size: int) -> Iterator[pq.ParquetFile]:
    """Open a file of a checkpoint in Parquet. Raises DamagedFileError, also while it is read."""
    with reading(store, name, size=size, expected=None):
        content = opened(store, name, size=size)
        damage = footer_damage(content)
        if damage is not None:
            raise damaged(store.address, name, damage)
        with pq.ParquetFile(content, page_checksum_verification=True) as file:
            yield file


def columns_in(have: pa.Schema, wanted: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the `wanted` fields of actions that a file of a checkpoint has, as column paths."""
    return [
        f"{action}.{name}"
        for action, names in wanted.items()
        if action in have.names
        for name in names
        if have.field(action).type.get_field_index(name) >= 0
    ]


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a struct as commits spell it: with dicts for Arrow's maps, and without nulls."""
    return {
        key: dict(value) if key in _MAPS else _plain(value) if isinstance(value, dict) else value
        for key, value in fields.items()
        if value is not None
    }
