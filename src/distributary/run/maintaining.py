"""`maintain`: the tables of a lake are looked after, many at once, beside running pipelines.

One process at a time does it, under a claim of its own. It may be killed at any moment: what it had
written and not committed is nobody's, and is deleted by a later one.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.compute as pc

from distributary.errors import CheckpointError, DistributaryError, OwnedError
from distributary.observe import layout
from distributary.observe.delta import open_table, read_rows
from distributary.observe.ledger import Expired, Ledger
from distributary.observe.pipelines import Registration, registrations
from distributary.observe.trust import trusted_checkpoint
from distributary.run.checkpoint import Checkpoint
from distributary.run.claim import Claim, current_owner
from distributary.run.maintenance import Job, Report, Step, TableReport, Wishes
from distributary.run.table_care import TOMBSTONES, Care
from distributary.run.watching import Watched, is_owned, lanes, watch
from distributary.stores.known import leads_outside

CLAIMED = "maintenance"
"""The folder, in the lake's own one, that is claimed."""
_LEASE_SECONDS = 60.0
_THREADS = 4

OnTable = Callable[[TableReport, int, int], None]
"""Hears of each table that is done, how many are, and of how many."""


def jobs_of(lake: str, *, pipeline: str | None = None) -> tuple[Job, ...]:
    """The tables of a lake, or of one pipeline, and those that remember what these have lost."""
    cards = {card.name: card.checkpoint for card in registrations(lake)}
    found: dict[str, Job] = {}
    for table in Ledger(lake).tables(pipeline, schema_ids=False):
        folder = layout.place(lake, table.path)
        checkpoint = cards.get(table.pipeline, "")
        found[folder] = Job(table.table, table.role, table.pipeline, folder, checkpoint)
        memory = layout.tombstones(lake, table.table)
        if os.path.isdir(memory):
            found[memory] = Job(table.table, TOMBSTONES, table.pipeline, memory, checkpoint)
    return tuple(found.values())


def maintain(
    lake: str,
    jobs: Sequence[Job],
    wishes: Wishes,
    *,
    whole_lake: bool = True,
    on_table: OnTable = lambda report, done, total: None,
) -> Report:
    """Look after tables, and what is remembered of them. Raises OwnedError, CheckpointError.

    Without `whole_lake` only the tables are looked at, and nothing of the ledger.
    """
    started = time.perf_counter()
    with _claimed(lake, dry_run=wishes.dry_run) as check:
        watched = watch(lake)
        care = Care(wishes, watched, layout.join(lake, layout.HOME), check)
        tables = _all(care, jobs, on_table)
        ledger, leftovers, error = None, 0, None
        if whole_lake and Step.EXPIRE in wishes.steps:
            try:
                check()
                ledger = expire_ledger(lake, wishes)
                leftovers = remove_leftovers(lake, wishes)
            except DistributaryError as failure:
                error = failure.as_dict()
    return Report(
        lake,
        tables,
        ledger,
        leftovers,
        _notes(watched, wishes),
        error,
        time.perf_counter() - started,
    )


def _notes(watched: Watched, wishes: Wishes) -> tuple[str, ...]:
    return watched.notes if Step.VACUUM in wishes.steps else ()


def _all(care: Care, jobs: Sequence[Job], on_table: OnTable) -> tuple[TableReport, ...]:
    done: dict[int, TableReport] = {}
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
        waiting = {pool.submit(care.look_after, job): at for at, job in enumerate(jobs)}
        try:
            for future in as_completed(waiting):
                done[waiting[future]] = future.result()
                on_table(done[waiting[future]], len(done), len(jobs))
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return tuple(done[at] for at in range(len(jobs)))


@contextmanager
def _claimed(lake: str, *, dry_run: bool) -> Iterator[Callable[[], None]]:
    """Hold the right to maintain a lake; whoever only looks needs none."""
    if dry_run:
        yield lambda: None
        return
    home = Path(layout.join(lake, layout.HOME, CLAIMED))
    try:
        claim = Claim.take(home, lease=_LEASE_SECONDS)
    except OwnedError as error:
        holder = current_owner(home)
        who = holder.describe() if holder else "another process"
        raise OwnedError(
            f"this lake is being maintained by {who}",
            where=str(home),
            evidence=error.evidence,
            next_step="wait until it has ended; --dry-run can be used meanwhile",
            owner=who,
        ) from error
    try:
        yield claim.check
    finally:
        claim.release()


def expire_ledger(lake: str, wishes: Wishes) -> Expired:
    """Sum old rows of the ledger up, a whole day at a time: each time all sums are written anew."""
    day = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    moment = day - wishes.expire.ledger
    old = _old_rows(lake, "batches", "finished_at", moment)
    if not old or wishes.dry_run:
        return Expired(old, _old_rows(lake, "tables", "at", moment)) if old else Expired(0, 0)
    return Ledger(lake).expire(moment)


def _old_rows(lake: str, name: str, column: str, moment: datetime) -> int:
    """Rows of detail from before a moment: sums of several batches are none any more."""
    table = open_table(layout.ledger_table(lake, name))
    if table is None:
        return 0
    where = (pc.field(column) < pc.scalar(moment)) & (pc.field("batches") == 1)
    return len(read_rows(table, columns=["batches"], where=where))


def remove_leftovers(lake: str, wishes: Wishes) -> int:
    """What processes that were killed have left beside the checkpoints of this lake."""
    before = time.time() - max(wishes.retention, timedelta(days=1)).total_seconds()
    found = [path for card in registrations(lake) for path in _leftovers(lake, card, before)]
    if not wishes.dry_run:
        for path in found:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
    return len(found)


def _leftovers(lake: str, card: Registration, before: float) -> Iterator[Path]:
    """What can go; nothing where only the lake says that it is a checkpoint."""
    checkpoint = trusted_checkpoint(card, lake)
    # and it must be that pipeline's own by its own word
    if checkpoint is None or not _is_checkpoint(checkpoint, card.name):
        return
    for lane, manifests in lanes(checkpoint):
        # batches that were staged again because their files were gone, and drafts of files
        runs = checkpoint / "runs" / ("stream" if lane == checkpoint else lane.name)
        if any(leads_outside(str(checkpoint), str(path)) for path in (manifests.folder, runs)):
            continue
        for pattern in ("*.broken-*", ".*.draft"):
            yield from (p for p in manifests.folder.glob(pattern) if _older(p, before))
        if not is_owned(lane) and _older(runs, before):
            yield runs


def _is_checkpoint(folder: Path, pipeline: str) -> bool:
    try:
        return folder.is_dir() and Checkpoint.find(folder, pipeline=pipeline) is not None
    except CheckpointError:
        return False


def _older(path: Path, moment: float) -> bool:
    try:
        return path.stat().st_mtime < moment
    except FileNotFoundError:
        return False
