"""Deletion of files that no reader of a table needs, and of files that were never committed.

A file is deleted when the commit that removed it is older than the retention. A file that no commit
names is deleted when it is older than the retention and no batch can commit it any more: no decided
batch names it, and no running batch had begun when it was written. The batches are read first, then
the list of files, then the table's log: a file that is committed in between is found in the log.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import PurePosixPath

import pyarrow as pa
import pyarrow.compute as pc

from distributary.delta.compact import FileExchange, exchange, rewritten
from distributary.delta.log import DataFile, Snapshot, load, replayed
from distributary.delta.log_checkpoint import retention_of
from distributary.delta.log_reading import actions_in, fetch_commits, log_names
from distributary.model.deadletter import DEAD_LETTER_SCHEMA, DeadLetterStatus
from distributary.model.table import STAGED, STAGING
from distributary.store.base import Info, Store

_LEFT_BEHIND = re.compile(r"\..*\.(?:[0-9a-f]{32}|[0-9a-f]{16}\.draft)")
"""Names of copies and drafts that a killed process left half written."""
_VECTORS = re.compile(r"deletion_vector_[0-9a-f-]{36}\.bin")
_ELSEWHERE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:")
_SLACK_SECONDS = 600.0
"""The tolerance for clocks of machines that differ."""


@dataclass(frozen=True, slots=True)
class Keepers:
    """Files that must stay, whatever their age."""

    paths: Collection[str] = ()
    """Files that a decided batch is about to commit or a pinned cut needs, each as the table's
    folder and the path in it."""
    running_since: float = float("inf")
    """The start of the oldest running batch, which may commit any file written since; at the latest
    the time at which the batches were read."""
    read_since: float = float("inf")
    """The time since which another pipeline, or readers of cuts, may still read files that were
    removed from the table."""


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """The number of deleted files, or of files that would be deleted."""

    removed: int = 0
    """Files that commits had removed from the table."""
    orphans: int = 0
    """Files that were never part of the table."""
    bytes: int = 0
    refused: str = ""
    """The reason why nothing can be deleted."""


def refusal(state: Snapshot) -> str:
    """Return the reason why the needed files of a table cannot be determined; empty if they can."""
    beyond = state.beyond_us()
    if beyond:
        return f"needs another engine, {beyond}"
    if any(_ELSEWHERE.match(file.spelled) for file in state.files.values()):
        return "the log names files by absolute addresses"
    return ""


def vacuum(
    store: Store,
    retention: Callable[[Snapshot], timedelta],
    kept: Keepers,
    *,
    dry_run: bool = False,
) -> Vacuumed:
    """Delete unneeded files of a Delta table. Raises OSError and BrokenLogError."""
    listed = list(_listed(store))
    state = load(store)
    refused = "there is no table" if state is None else refusal(state)
    if state is None or refused:
        return Vacuumed(refused=refused)
    now = time.time()
    before = now - retention(state).total_seconds()
    needed = min(before, kept.read_since - _SLACK_SECONDS)
    gone, orphans = [], []
    vectors = {file.vector.path for file in state.files.values() if file.vector}
    for file in listed:
        if file.name in state.files or file.name in vectors:
            continue
        if f"{store.address}/{file.name}" in kept.paths:
            continue
        taken = state.removed.get(file.name)
        if taken:
            if taken / 1000 < needed:
                gone.append(file)
        elif _is_orphan(file, store.address, before, kept):
            orphans.append(file)
    if orphans and needed < now - retention_of(state).total_seconds():
        young = _taken_since(needed, state)
        orphans = [file for file in orphans if file.name not in young]
    return _deleted(store, gone, orphans, dry_run=dry_run)


def _taken_since(moment: float, state: Snapshot) -> set[str]:
    """Return the files that were removed from a table since a moment, by the commits in its log.

    Checkpoints no longer list removals that are older than the table's retention.
    """
    log = log_names(state.store).commits.items()
    since = moment - _SLACK_SECONDS
    young = [n for n, info in log if n <= state.checkpoint and info.modified >= since]
    commits = [actions_in(data) for data, _ in fetch_commits(state.store, young)]
    table = replayed(Snapshot(state.store), commits, state.checkpoint, None, loading=True)
    return {path for path, when in table.removed.items() if when / 1000 >= moment}


def vacuum_staging(
    store: Store, retention: timedelta, kept: Keepers, *, dry_run: bool = False
) -> Vacuumed:
    """Delete leftover staged files of a plain Parquet table.

    A commit links a staged file into the table and removes the staged name. A staged file that is
    older than the retention therefore belongs to no commit.
    """
    listed = [f for f in store.files(STAGING, recursive=True) if f.name.endswith(STAGED)]
    before = time.time() - retention.total_seconds()
    orphans = [file for file in listed if _is_orphan(file, store.address, before, kept)]
    return _deleted(store, [], orphans, dry_run=dry_run)


def _is_orphan(file: Info, folder: str, before: float, kept: Keepers) -> bool:
    young = min(before, kept.running_since - _SLACK_SECONDS, kept.read_since - _SLACK_SECONDS)
    return file.modified < young and f"{folder}/{file.name}" not in kept.paths


def _deleted(store: Store, gone: list[Info], orphans: list[Info], *, dry_run: bool) -> Vacuumed:
    if not dry_run:
        store.remove_files([file.name for file in (*gone, *orphans)])
    size = sum(file.size for file in (*gone, *orphans))
    return Vacuumed(len(gone), len(orphans), size)


def _listed(store: Store) -> Iterator[Info]:
    """Yield the files of rows and deletion vectors, in the table's folder and its partitions."""
    for file in store.files(recursive=True, drafts=True):
        *folders, name = PurePosixPath(file.name).parts
        # Readers skip folders with these names, except for partitions by a column of that name.
        if any(part.startswith(("_", ".")) and "=" not in part for part in folders):
            continue
        hidden = name.startswith(("_", "."))
        of_table = name.endswith(".parquet") or _VECTORS.fullmatch(name)
        if _LEFT_BEHIND.fullmatch(name) or (of_table and not hidden):
            yield file


# The expiry of dead letters: letters that were replayed or discarded leave their table after a
# while; open letters stay. Only files that hold such letters are rewritten, while pipelines append
# and commands mark letters. A file that was marked in the meantime is left for the next time.

_LOOKED_AT = ("status", "first_seen", "last_seen")


@dataclass(frozen=True, slots=True)
class Expiry:
    """The condition under which letters expire."""

    before: datetime
    """Letters that were last seen before this time expire."""
    open_too: bool = False
    """True if letters expire that were neither replayed nor discarded."""

    def keep(self, file: DataFile, rows: pa.Table) -> pa.Table:
        """Return the letters of a file that stay."""
        return rows.filter(pc.invert(self.gone(rows)))

    def gone(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return a mask of the letters that expire; a letter without a time or a status stays."""
        seen = pc.coalesce(rows.column("last_seen"), rows.column("first_seen"))
        old = pc.less(seen, pa.scalar(self.before, seen.type))
        if not self.open_too:
            done = [str(DeadLetterStatus.REPLAYED), str(DeadLetterStatus.DISCARDED)]
            old = pc.and_(old, pc.is_in(rows.column("status"), pa.array(done)))
        return pc.fill_null(old, False)


@dataclass(frozen=True, slots=True)
class ExpiredLetters:
    """The number of removed letters, or of letters that would be removed."""

    letters: int = 0
    version: int | None = None
    left: int = 0
    """Letters in files that another writer has changed in the meantime."""


def expire_letters(
    state: Snapshot,
    expiry: Expiry,
    *,
    ready: Callable[[], None] = lambda: None,
    dry_run: bool = False,
) -> tuple[Snapshot, ExpiredLetters]:
    """Remove expired letters from their table. Raises BusyError, OvertakenError and OSError."""
    counts = {path: _count(state, file, expiry) for path, file in state.files.items()}
    held = [file for path, file in state.files.items() if counts[path]]
    expired = sum(counts.values())
    if dry_run or not held:
        return state, ExpiredLetters(expired)
    swaps = rewritten(state, [(file,) for file in held], ready, keep=expiry.keep)
    after, done = exchange(state, swaps, FileExchange("DELETE", True, ready))
    gone = sum(counts[file.path] for swap in done for file in swap.removed)
    return after, ExpiredLetters(gone, after.version if done else None, expired - gone)


def _count(state: Snapshot, file: DataFile, expiry: Expiry) -> int:
    wanted = pa.schema([DEAD_LETTER_SCHEMA.field(name) for name in _LOOKED_AT])
    rows = state.read(file, wanted)
    return int(pc.sum(expiry.gone(rows)).as_py() or 0)
