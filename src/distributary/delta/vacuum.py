"""Files that no reader of a table needs any more, and files that were never part of it.

A file goes when the commit that took it out of the table is older than the retention. A file that
no commit names goes when it is older than the retention, too, and nobody can be about to commit it:
no decided batch names it, and no batch that runs was there to write it. The batches are looked at
first, then the files, then the table: what becomes part of it in between is found there.
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

from distributary.delta.checkpoint import retention_of
from distributary.delta.compact import Exchange, exchange, rewritten
from distributary.delta.log import (
    DataFile,
    Snapshot,
    actions_in,
    fetch_commits,
    load,
    log_names,
    replayed,
)
from distributary.model.deadletter import DEAD_LETTER_SCHEMA, DeadLetterStatus
from distributary.model.table import STAGED, STAGING
from distributary.store.base import Info, Store

_LEFT_BEHIND = re.compile(r"\..*\.(?:[0-9a-f]{32}|[0-9a-f]{16}\.draft)")
"""Copies and drafts that a killed process has left half written."""
_VECTORS = re.compile(r"deletion_vector_[0-9a-f-]{36}\.bin")
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


def refusal(state: Snapshot) -> str:
    """Why it cannot be told which files of a table are needed; empty when it can."""
    beyond = state.beyond_us()
    if beyond:
        return f"needs another engine, {beyond}"
    if any(_ELSEWHERE.match(file.spelled) for file in state.files.values()):
        return "its log names files by their full addresses"
    return ""


def vacuum(
    store: Store,
    retention: Callable[[Snapshot], timedelta],
    kept: Keepers,
    *,
    dry_run: bool = False,
) -> Vacuumed:
    """Delete the files of a Delta table that nobody needs. Raises OSError, BrokenLogError."""
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
    """Files that were taken out of a table since a moment, by commits that are still in its log.

    Checkpoints tell no more of those that are older than the table's own retention.
    """
    commits = log_names(state.store).commits.items()
    since = moment - _SLACK_SECONDS
    young = [n for n, info in commits if n <= state.checkpoint and info.modified >= since]
    told = [actions_in(data) for data, _ in fetch_commits(state.store, young)]
    table = replayed(Snapshot(state.store), told, state.checkpoint, None, loading=True)
    return {path for path, when in table.removed.items() if when / 1000 >= moment}


def vacuum_staging(
    store: Store, retention: timedelta, kept: Keepers, *, dry_run: bool = False
) -> Vacuumed:
    """The same for a plain Parquet table, of which only what waits for a commit can be left over.

    A commit links a file and removes the staged one: what has not gone then is nobody's.
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
    """Files of rows and of deletion vectors, in the table's folder and in those of partitions."""
    for file in store.files(recursive=True, drafts=True):
        *folders, name = PurePosixPath(file.name).parts
        # what begins like this is hidden from readers, unless it is a partition by such a column
        if any(part.startswith(("_", ".")) and "=" not in part for part in folders):
            continue
        hidden = name.startswith(("_", "."))
        ours = name.endswith(".parquet") or _VECTORS.fullmatch(name)
        if _LEFT_BEHIND.fullmatch(name) or (ours and not hidden):
            yield file


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
    state: Snapshot,
    expiry: Expiry,
    *,
    ready: Callable[[], None] = lambda: None,
    dry_run: bool = False,
) -> tuple[Snapshot, ExpiredLetters]:
    """Remove letters from their table. Raises BusyError, OvertakenError and OSError."""
    counts = {path: _count(state, file, expiry) for path, file in state.files.items()}
    held = [file for path, file in state.files.items() if counts[path]]
    found = sum(counts.values())
    if dry_run or not held:
        return state, ExpiredLetters(found)
    swaps = rewritten(state, [(file,) for file in held], ready, keep=expiry.keep)
    after, done = exchange(state, swaps, Exchange("DELETE", True, ready))
    gone = sum(counts[file.path] for swap in done for file in swap.removed)
    return after, ExpiredLetters(gone, after.version if done else None, found - gone)


def _count(state: Snapshot, file: DataFile, expiry: Expiry) -> int:
    wanted = pa.schema([DEAD_LETTER_SCHEMA.field(name) for name in _LOOKED_AT])
    rows = state.read(file, wanted)
    return int(pc.sum(expiry.gone(rows)).as_py() or 0)
