"""Whether a table still holds what was committed to it: asked of its own log, as little as will do.

The commit of the newest batch is a small file with a known name. Where it is there and carries the
batch's mark, the table is not behind, and nothing else has to be read: a thousand tables take a few
hundredths of a second. Where it is not, the log may have been cleaned up, or the table may be
another one: then the table is loaded and asked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from distributary.model.compact_json import compact
from distributary.publish.commit_file import commit_path, parse_commit
from distributary.publish.parquet_table import HOME, ParquetTable, app_key
from distributary.stores.known import local_folder

_COMMIT = re.compile(r"(\d{20})\.json")
_FORGETS_MARKS = "delta.setTransactionRetentionDuration"


@dataclass(frozen=True, slots=True)
class Expected:
    """The newest commit that a lane of a pipeline has made to a table."""

    path: str
    app_id: str
    batch: int
    version: int
    marked: bool = True
    """Whether the commit of a batch always carries its mark: a merge that changes nothing makes
    no commit, and is only known to have seen a version."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a table has of a lane."""

    exists: bool
    version: int = -1
    mark: int | None = None
    """The newest batch of the lane."""


class Loss(StrEnum):
    """What can be wrong with a table at a glance."""

    MISSING = "missing"
    BEHIND = "behind"


def lacking(expected: Expected, options: Mapping[str, str] | None = None) -> Held | None:
    """What a table has, if that is less than it must have; None where nothing is missing.

    A table that cannot be read is none of the questions here: whoever commits to it will say so.
    """
    folder = local_folder(expected.path)
    try:
        if folder is not None and _carries(folder, expected):
            return None
        held = _held(folder, expected, options)
    except (DeltaError, OSError, ValueError):
        return Held(True) if _is_blank(folder, expected) else None
    if held is None or not held.exists:
        return held
    if expected.marked:
        return None if held.mark is not None and held.mark >= expected.batch else held
    return held if held.version < expected.version or _is_blank(folder, expected) else None


def loss_at_a_glance(path: str, version: int | None) -> Loss | None:
    """The same by names and sizes of files only, for tables on this machine; None: nothing seen."""
    folder = local_folder(path)
    if folder is None or version is None:
        return None
    log = f"{folder}/_delta_log"
    try:
        if os.stat(f"{log}/{version:020d}.json").st_size:
            return None
        return Loss.BEHIND
    except FileNotFoundError:
        pass
    except OSError:
        return None
    if not os.path.isdir(log):
        return None if os.path.isfile(f"{folder}/{HOME}/table.json") else Loss.MISSING
    # a log that was cleaned up goes on behind the version; one that was put back ends before it
    names = filter(None, map(_COMMIT.fullmatch, os.listdir(log)))
    newest = max((int(name[1]) for name in names), default=-1)
    return Loss.BEHIND if newest < version else None


def newest_told(path: str, version: int | None) -> int | None:
    """The newest version, up to this one, whose commit says anything; None: there is none."""
    folder = local_folder(path)
    while folder is not None and version is not None and _is_empty(folder, version):
        version = version - 1 if version else None
    return version


def _carries(folder: str, expected: Expected) -> bool:
    path = commit_path(folder, expected.version)
    if not expected.marked:
        return os.path.isfile(path) and os.path.getsize(path) > 0
    try:
        with open(path, "rb", buffering=0) as file:
            text = file.read()
    except FileNotFoundError:
        return _has_commit(folder, expected)
    # as our own commits spell it: to look for it is quicker than to read all that they say, and a
    # number that only begins like this one is past it
    mark = compact({"appId": expected.app_id, "version": expected.batch})[:-1]
    if f'"txn":{mark}'.encode() in text:
        return True
    return parse_commit(text.decode()).marks.get(expected.app_id, -1) >= expected.batch


def _has_commit(folder: str, expected: Expected) -> bool:
    """The same of a plain Parquet table, whose commits are known by their names."""
    name = f"{expected.version:012d}-{app_key(expected.app_id)}-{expected.batch:012d}.json"
    return os.path.isfile(f"{folder}/{HOME}/log/{name}")


def _held(folder: str | None, expected: Expected, options: Mapping[str, str] | None) -> Held | None:
    if folder is not None and os.path.isfile(f"{folder}/{HOME}/table.json"):
        log = ParquetTable(folder).log()
        return Held(True, log.version, log.newest(expected.app_id))
    if folder is not None and not os.path.isdir(f"{folder}/_delta_log"):
        return Held(False)
    try:
        table = DeltaTable(expected.path, storage_options=dict(options or {}))
    except TableNotFoundError:
        return Held(False)
    mark = table.transaction_version(expected.app_id)
    if mark is None and _FORGETS_MARKS in table.metadata().configuration:
        # its owner lets it forget marks: nobody can tell
        return None
    return Held(True, table.version(), mark)


def _is_blank(folder: str | None, expected: Expected) -> bool:
    return folder is not None and _is_empty(folder, expected.version)


def _is_empty(folder: str, version: int) -> bool:
    """Whether the very commit is there without a word in it."""
    path = commit_path(folder, version)
    return os.path.isfile(path) and not os.path.getsize(path)
