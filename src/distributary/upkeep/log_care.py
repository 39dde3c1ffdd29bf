"""The log of one table: a checkpoint where many commits came since the last, old commits removed.

Readers begin at the newest checkpoint. What is removed lies before a checkpoint that is itself
older than all that has to be kept, so that every version that is kept can still be read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from distributary.publish.commit_file import TRUSTED_SECONDS, commit_path
from distributary.publish.failures import clean
from distributary.upkeep.intervals import parse_interval
from distributary.upkeep.state import LogNames, TableState, log_names

LOG_RETENTION = timedelta(days=30)
"""Where the table says nothing: as Delta has it."""
_LEAST_SECONDS = 2 * TRUSTED_SECONDS
"""A pipeline follows a log from a commit that it has seen within the trusted time."""


@dataclass(frozen=True, slots=True)
class LogCare:
    """What was done to a log, or would be."""

    checkpoint: int | None = None
    """The version of a new checkpoint."""
    removed: int = 0
    """Commits and checkpoints that are gone."""
    failed: str = ""


def care_for_log(
    state: TableState, *, every: int, keep_from: int | None = None, dry_run: bool = False
) -> LogCare:
    """Write a checkpoint if one is due, then remove what has expired.

    `keep_from` is the oldest version that a reader of this table still needs.
    """
    due = _is_due(state, every)
    if due and not dry_run:
        try:
            DeltaTable(state.folder).create_checkpoint()
        except (DeltaError, OSError) as error:
            # a table with features that the library does not know: it can be read all the same
            return LogCare(failed=clean(str(error)) or type(error).__name__)
    names = expired(state, keep_from=keep_from)
    if not dry_run:
        for name in names:
            _remove(f"{state.folder}/_delta_log/{name}")
    return LogCare(state.version if due else None, len(names))


def expired(state: TableState, *, keep_from: int | None = None) -> list[str]:
    """The names of files of a log that nobody needs any more, the oldest first."""
    names = log_names(state.folder)
    if names is None or state.properties.get("delta.enableExpiredLogCleanup", "") == "false":
        return []
    since = time.time() - _retention(state).total_seconds()
    oldest = _oldest_kept(state.folder, names, since)
    oldest = oldest if keep_from is None else min(oldest, keep_from)
    floor = max((v for v in names.checkpoints if v <= oldest), default=-1)
    return [*_before(names, floor)]


def _is_due(state: TableState, every: int) -> bool:
    text = state.properties.get("delta.checkpointInterval", "")
    own = int(text) if text.isdecimal() and int(text) else every
    return state.version - state.checkpoint >= own


def _retention(state: TableState) -> timedelta:
    told = parse_interval(state.properties.get("delta.logRetentionDuration"))
    return max(LOG_RETENTION if told is None else told, timedelta(seconds=_LEAST_SECONDS))


def _oldest_kept(folder: str, names: LogNames, since: float) -> int:
    """The first version that is younger than the retention; the newest one is always kept."""
    for version in names.commits:
        try:
            if os.stat(commit_path(folder, version)).st_mtime >= since:
                return version
        except FileNotFoundError:
            continue
    return max([*names.commits, names.checkpoint])


def _before(names: LogNames, floor: int) -> Iterator[str]:
    yield from (f"{version:020d}.json" for version in names.commits if version < floor)
    for version, parts in sorted(names.checkpoints.items()):
        if version < floor:
            yield from parts


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
