"""Files that no reader of a table needs any more, and files that were never part of it.

A file goes when the commit that took it out of the table is older than the retention. A file that
no commit names goes when it is older than the retention, too, and nobody can be about to commit it:
no decided batch names it, and no batch that runs was there to write it. The batches are looked at
first, then the files, then the table: what becomes part of it in between is found there.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import PurePosixPath

from distributary.model.table import STAGED, STAGING
from distributary.upkeep.intervals import parse_interval
from distributary.upkeep.state import TableState, load

_LEFT_BEHIND = re.compile(r"\..*\.(?:[0-9a-f]{32}|[0-9a-f]{16}\.draft)")
"""Copies and drafts that a killed process has left half written."""
_ELSEWHERE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:")
_SLACK_SECONDS = 600.0
"""Clocks of several machines differ."""


@dataclass(frozen=True, slots=True)
class Keepers:
    """What must stay, whatever its age."""

    paths: Collection[str] = ()
    """Files that a decided batch is going to commit: the table's folder and the path in it."""
    running_since: float = float("inf")
    """Since when files may have been written that a running batch is going to commit; not later
    than the moment at which the batches were looked at."""
    read_since: float = float("inf")
    """Since when files were taken out of this table that another pipeline has still to read."""


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """What was deleted, or would be."""

    removed: int = 0
    """Files that commits had taken out of the table."""
    orphans: int = 0
    """Files that were never part of it."""
    bytes: int = 0
    refused: str = ""
    """Why nothing can be deleted."""


@dataclass(frozen=True, slots=True)
class _Found:
    path: str
    size: int
    written: float


def refusal(state: TableState) -> str:
    """Why it cannot be told which files of a table are needed; empty when it can."""
    beyond = state.beyond_us()
    if beyond:
        return f"needs another engine, {beyond}"
    if any(_ELSEWHERE.match(file.spelled) for file in state.files.values()):
        return "its log names files by their full addresses"
    return ""


def retention_of(state: TableState, usual: timedelta) -> timedelta:
    """How long files are kept that were taken out: what the table says goes first."""
    told = parse_interval(state.properties.get("delta.deletedFileRetentionDuration"))
    return usual if told is None else told


def vacuum(
    folder: str,
    retention: Callable[[TableState], timedelta],
    kept: Keepers,
    *,
    dry_run: bool = False,
) -> Vacuumed:
    """Delete the files of a Delta table that nobody needs. Raises OSError, BrokenLogError."""
    listed = list(_listed(folder))
    state = load(folder)
    refused = "there is no table" if state is None else refusal(state)
    if state is None or refused:
        return Vacuumed(refused=refused)
    before = time.time() - retention(state).total_seconds()
    gone, orphans = [], []
    for file in listed:
        if file.path in state.files:
            continue
        taken = state.removed.get(file.path)
        if taken:
            if taken / 1000 < min(before, kept.read_since - _SLACK_SECONDS):
                gone.append(file)
        elif _is_orphan(file, folder, before, kept):
            orphans.append(file)
    return _deleted(folder, gone, orphans, dry_run=dry_run)


def vacuum_staging(
    folder: str, retention: timedelta, kept: Keepers, *, dry_run: bool = False
) -> Vacuumed:
    """The same for a plain Parquet table, of which only what waits for a commit can be left over.

    A commit links a file and removes the staged one: what has not gone then is nobody's.
    """
    listed = [f for f in _walked(folder, f"{folder}/{STAGING}") if f.path.endswith(STAGED)]
    before = time.time() - retention.total_seconds()
    orphans = [file for file in listed if _is_orphan(file, folder, before, kept)]
    return _deleted(folder, [], orphans, dry_run=dry_run)


def _is_orphan(file: _Found, folder: str, before: float, kept: Keepers) -> bool:
    young = min(before, kept.running_since - _SLACK_SECONDS, kept.read_since - _SLACK_SECONDS)
    return file.written < young and f"{folder}/{file.path}" not in kept.paths


def _deleted(folder: str, gone: list[_Found], orphans: list[_Found], *, dry_run: bool) -> Vacuumed:
    if not dry_run:
        for file in (*gone, *orphans):
            try:
                os.unlink(f"{folder}/{file.path}")
            except FileNotFoundError:
                continue
    size = sum(file.size for file in (*gone, *orphans))
    return Vacuumed(len(gone), len(orphans), size)


def _listed(folder: str) -> Iterator[_Found]:
    """Parquet files of the table's folder and of the folders of its partitions."""
    for file in _walked(folder, folder):
        *folders, name = PurePosixPath(file.path).parts
        # what begins like this is hidden from readers, unless it is a partition by such a column
        if any(part.startswith(("_", ".")) and "=" not in part for part in folders):
            continue
        hidden = name.startswith(("_", "."))
        if _LEFT_BEHIND.fullmatch(name) or (name.endswith(".parquet") and not hidden):
            yield file


def _walked(folder: str, start: str) -> Iterator[_Found]:
    for place, folders, names in os.walk(start):
        folders[:] = [name for name in folders if name != "_delta_log"]
        for name in names:
            path = f"{place}/{name}"
            try:
                found = os.lstat(path)
            except FileNotFoundError:
                continue
            yield _Found(os.path.relpath(path, folder), found.st_size, found.st_mtime)
