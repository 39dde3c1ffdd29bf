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
from datetime import datetime, timedelta
from pathlib import PurePosixPath

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from distributary.delta.commit import TRUSTED_SECONDS, commit_path
from distributary.delta.compact import Exchange, Swap, drop, exchange, stored_schema, write_together
from distributary.delta.snapshot import (
    DataFile,
    LogNames,
    TableState,
    load_state,
    log_names,
    read_file,
)
from distributary.errors import clean
from distributary.model.deadletter import DEAD_LETTER_SCHEMA, DeadLetterStatus
from distributary.model.table import STAGED, STAGING

# Spans of time in the properties of Delta tables: `interval 1 days`.

_PART = re.compile(r"([0-9]{1,9}) (week|day|hour|minute|second|millisecond|microsecond)s?")


def parse_interval(text: str | None) -> timedelta | None:
    """The span that a property means; None where it is not set or says something else."""
    words = " ".join((text or "").lower().removeprefix("interval").split())
    total, rest = timedelta(0), words
    while rest:
        match = _PART.match(rest)
        if match is None:
            return None
        total += timedelta(**{f"{match[2]}s": int(match[1])})
        rest = rest[match.end() :].lstrip()
    return total if words else None


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
    state = load_state(folder)
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


# The log of one table: a checkpoint where many commits came since the last, old commits removed.
#
# Readers begin at the newest checkpoint. What is removed lies before a checkpoint that is itself
# older than all that has to be kept, so that every version that is kept can still be read.

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


# Dead letters that are done with leave their table after a while; open ones stay.
#
# Only files that hold such letters are written again, without them, beside pipelines that append
# and commands that mark: a file that was marked meanwhile is left for the next time.

_LOOKED_AT = ("status", "first_seen", "last_seen")


@dataclass(frozen=True, slots=True)
class Expiry:
    """Which letters go."""

    before: datetime
    """Those that were last seen earlier."""
    open_too: bool = False
    """Also letters that nobody has replayed or discarded."""

    def keep(self, rows: pa.Table) -> pa.Table:
        """The letters that stay."""
        return rows.filter(pc.invert(self.gone(rows)))

    def gone(self, rows: pa.Table) -> pa.ChunkedArray:
        """Which letters go; one without a time or a status stays."""
        seen = pc.coalesce(rows.column("last_seen"), rows.column("first_seen"))
        old = pc.less(seen, pa.scalar(self.before, seen.type))
        if not self.open_too:
            done = [str(DeadLetterStatus.REPLAYED), str(DeadLetterStatus.DISCARDED)]
            old = pc.and_(old, pc.is_in(rows.column("status"), pa.array(done)))
        return pc.fill_null(old, False)


@dataclass(frozen=True, slots=True)
class ExpiredLetters:
    """What was removed, or would be."""

    letters: int = 0
    version: int | None = None
    left: int = 0
    """Letters in files that somebody else has changed meanwhile."""


def expire_letters(
    state: TableState,
    expiry: Expiry,
    *,
    ready: Callable[[], None] = lambda: None,
    dry_run: bool = False,
) -> tuple[TableState, ExpiredLetters]:
    """Remove letters from their table. Raises BusyError, OvertakenError and OSError."""
    counts = {path: _count(state, file, expiry) for path, file in state.files.items()}
    held = [file for path, file in state.files.items() if counts[path]]
    found = sum(counts.values())
    if dry_run or not held:
        return state, ExpiredLetters(found)
    ready()
    schema = stored_schema(state)
    swaps: list[Swap] = []
    try:
        for file in held:
            made = write_together(state, [file], schema, keep=expiry.keep)
            swaps.append(Swap((file,), made.file))
    except BaseException:
        drop(state.folder, swaps)
        raise
    after, done = exchange(state, swaps, Exchange("DELETE", True, ready))
    gone = sum(counts[file.path] for swap in done for file in swap.removed)
    return after, ExpiredLetters(gone, after.version if done else None, found - gone)


def _count(state: TableState, file: DataFile, expiry: Expiry) -> int:
    wanted = pa.schema([DEAD_LETTER_SCHEMA.field(name) for name in _LOOKED_AT])
    rows = read_file(f"{state.folder}/{file.path}", wanted)
    return int(pc.sum(expiry.gone(rows)).as_py() or 0)
