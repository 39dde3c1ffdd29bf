"""`maintain`: maintenance of a lake's tables, many at once, beside running pipelines.

Only one process at a time does it, protected by a claim. It may be killed at any moment: files that
it has written but not committed belong to no table, and a later maintenance deletes them.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from distributary.changes.apply import compaction
from distributary.config.lake import LEAST_RETENTION, Maintain, Retention
from distributary.delta.column_merge import UnsupportedTypeError
from distributary.delta.compact import (
    OPTIMIZE,
    BusyError,
    Compacted,
    FileExchange,
    Sizes,
    compact,
    planned,
    refusal,
)
from distributary.delta.log import Snapshot, load
from distributary.delta.log_checkpoint import LogCare, care_for_log, retention_of
from distributary.delta.removal.holds import (
    Holds,
    KeptCuts,
    read_holds,
    remove_expired_pins,
    write_kept,
)
from distributary.delta.removal.row_removal import (
    OlderRows,
    RemovedRows,
    removal_refusal,
    remove_rows,
)
from distributary.delta.removal.vacuum import (
    ExpiredLetters,
    Expiry,
    Vacuumed,
    expire_letters,
    vacuum,
    vacuum_staging,
)
from distributary.delta.tables import OvertakenError, as_publish_error, open_table, read_rows
from distributary.engine.progress.checkpoint import Checkpoint
from distributary.engine.progress.claim import Claim, current_owner, living_owner
from distributary.engine.progress.erasure import finish_erasures
from distributary.errors import CheckpointError, DistributaryError, FencedError, OwnedError
from distributary.model import layout
from distributary.model.table import STAGING, Role
from distributary.model.table_format import DELTA, TABLE_FORMATS
from distributary.observe.cards import (
    Registration,
    UpkeepState,
    read_upkeep_state,
    registrations,
    trusted_checkpoint,
    write_upkeep_state,
)
from distributary.observe.cuts import Cuts
from distributary.observe.ledger.ledger import Expired, Ledger
from distributary.observe.status.health import DERIVED
from distributary.operations.needed_files import FOR_EVER, Watched, batch_under_way, lanes, watch
from distributary.publish.formats.table_format_entry import format_at
from distributary.store.base import at, is_remote, leads_outside

# The request and the report of a maintenance.


class UpkeepStep(StrEnum):
    """The steps of maintenance."""

    OPTIMIZE = "optimize"
    CHECKPOINT = "checkpoint"
    VACUUM = "vacuum"
    EXPIRE = "expire"


@dataclass(frozen=True, slots=True)
class Wishes:
    """The steps to do, with their settings."""

    settings: Maintain
    chosen: Collection[UpkeepStep] = ()
    """The steps to run; if empty, the steps of the settings."""
    retention: timedelta | None = None
    """The retention of this one call, which overrides the settings and a table's own."""
    force: bool = False
    """Whether to delete files that readers may still use."""
    dry_run: bool = False
    at_most: timedelta | None = None
    """The time after which no further table is begun."""
    pipeline: str | None = None
    """The pipeline whose file the settings are from; None for the defaults."""

    @property
    def steps(self) -> frozenset[UpkeepStep]:
        """Return the steps to do."""
        return frozenset(self.chosen or map(UpkeepStep, self.settings.steps))

    def keep(self, state: Snapshot | None = None) -> timedelta:
        """Return the time for which files are kept that a table no longer has."""
        wanted, usual = self.retention, self.settings.vacuum.retention
        if wanted is None:
            wanted = usual if state is None else retention_of(state, usual)
        return wanted if self.force else max(wanted, LEAST_RETENTION)

    def retention_of_rows(self, table: str) -> Retention | None:
        """Return how long rows of a table stay; None if they stay for ever."""
        entries = self.settings.retention
        fits = (e for e in entries if any(fnmatchcase(table, pattern) for pattern in e.tables))
        return next(fits, None)

    def passes_over(self, table: str) -> bool:
        """Return whether the settings exclude a table."""
        return any(fnmatchcase(table, pattern) for pattern in self.settings.skip)


@dataclass(frozen=True, slots=True)
class TableJob:
    """A table to maintain."""

    table: str
    role: str
    pipeline: str
    folder: str
    checkpoint: str = ""
    """The checkpoint of its pipeline."""


@dataclass(frozen=True, slots=True)
class TableReport:
    """The result of maintaining one table, or of a dry run."""

    table: str
    role: str
    pipeline: str
    path: str
    optimize: Compacted | None = None
    checkpoint: LogCare | None = None
    vacuum: Vacuumed | None = None
    expire: ExpiredLetters | None = None
    rows: RemovedRows | None = None
    """The rows that were too old."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Skipped steps with their reasons."""
    error: Mapping[str, Any] | None = None
    left: bool = False
    """Whether the table was skipped because no time was left."""
    seconds: float = 0.0

    @property
    def changed(self) -> bool:
        """Return whether anything was changed."""
        return bool(
            (self.optimize and self.optimize.files_after < self.optimize.files_before)
            or (self.optimize and self.optimize.rows)
            or (self.checkpoint and (self.checkpoint.checkpoint is not None))
            or (self.checkpoint and self.checkpoint.removed)
            or (self.vacuum and (self.vacuum.removed or self.vacuum.orphans))
            or (self.expire and self.expire.letters)
            or (self.rows and self.rows.rows)
        )


@dataclass(frozen=True, slots=True)
class Totals:
    """The sums over all tables."""

    tables: int
    changed: int
    failed: int
    left: int
    """The tables that wait for the next time, because no time was left."""
    files_before: int
    """The files of the compacted tables."""
    files_after: int
    bytes_before: int
    bytes_after: int
    checkpoints: int
    log_files: int
    files_deleted: int
    bytes_deleted: int
    dead_letters: int
    rows_removed: int
    """The rows that were too old."""
    row_bytes: int
    """The bytes of these rows, by their share of their files."""


@dataclass(frozen=True, slots=True)
class Report:
    """The result of maintaining a lake, or of a dry run."""

    lake: str
    tables: tuple[TableReport, ...]
    ledger: Expired | None = None
    """The rows of detail that were replaced by sums."""
    leftovers: int = 0
    """The files that killed processes left beside the checkpoints."""
    notes: tuple[str, ...] = ()
    error: Mapping[str, Any] | None = None
    """The failure outside of the tables."""
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """Return whether any part failed."""
        return self.error is not None or any(table.error for table in self.tables)

    def totals(self) -> Totals:
        """Return the sums over all tables."""
        compacted = [t.optimize for t in self.tables if t.optimize]
        logs = [t.checkpoint for t in self.tables if t.checkpoint]
        vacuumed = [t.vacuum for t in self.tables if t.vacuum]
        return Totals(
            tables=len(self.tables),
            changed=sum(t.changed for t in self.tables),
            failed=sum(t.error is not None for t in self.tables),
            left=sum(t.left for t in self.tables),
            files_before=sum(c.files_before for c in compacted),
            files_after=sum(c.files_after for c in compacted),
            bytes_before=sum(c.bytes_before for c in compacted),
            bytes_after=sum(c.bytes_after for c in compacted),
            checkpoints=sum(log.checkpoint is not None for log in logs),
            log_files=sum(log.removed for log in logs),
            files_deleted=sum(v.removed + v.orphans for v in vacuumed),
            bytes_deleted=sum(v.bytes for v in vacuumed),
            dead_letters=sum(t.expire.letters for t in self.tables if t.expire),
            rows_removed=sum(t.rows.rows for t in self.tables if t.rows),
            row_bytes=sum(t.rows.bytes for t in self.tables if t.rows),
        )


# The maintenance of one table: dead letters, files, log, and leftovers, in this order.

_ARRIVAL = {str(Role.BRONZE): "_arrived_at"}
"""The column with the time of a row's arrival, by role, where it is not that of the record."""
_OF_LOG = "its rows are computed from its log, and a rebuild would bring them back"
_ROWS_STAY = {
    str(Role.LOG): "its current rows are computed from all of its events",
    str(Role.MERGED): _OF_LOG,
    str(Role.HISTORY): _OF_LOG,
    str(Role.DEAD_LETTERS): "dead letters go by maintain.expire",
}
"""The reasons why rows of these roles are never removed by their age."""


def oldest_moment(age: timedelta, now: datetime) -> datetime:
    """Return the moment before which rows are removed; for a day or more, the start of a day."""
    moment = now - age
    if age < timedelta(days=1):
        return moment
    return moment.replace(hour=0, minute=0, second=0, microsecond=0)


TOMBSTONES = "tombstones"
"""The role of the tables with the tombstones of others."""


@dataclass(frozen=True, slots=True)
class Care:
    """The context for maintaining the tables of a lake."""

    wishes: Wishes
    watched: Watched
    home: str
    """The lake's own folder, in which only pipelines have tables."""
    check: Callable[[], None]
    """Raises FencedError if another process has taken over."""
    until: float = FOR_EVER
    """The time, on the clock of `time.monotonic`, after which no table is begun."""

    def look_after(self, job: TableJob) -> TableReport:
        """Maintain one table; failures are reported, not raised."""
        started = time.perf_counter()
        report = TableReport(job.table, job.role, job.pipeline, job.folder)
        if time.monotonic() > self.until:
            return replace(_without(report, self.wishes.steps, "no time was left"), left=True)
        try:
            report = self._steps(job, report)
        except FencedError:
            raise
        except Exception as error:
            known = as_publish_error(error, doing="look after a table", path=job.folder)
            report = replace(report, error=_error_document(error, known))
        return replace(report, seconds=time.perf_counter() - started)

    def _steps(self, job: TableJob, report: TableReport) -> TableReport:
        wishes = self.wishes
        if wishes.passes_over(job.table):
            return _without(report, wishes.steps, "the pipeline file excludes it")
        lake = os.path.dirname(self.home)
        if any(leads_outside(lake, f"{job.folder}/{name}") for name in ("_delta_log", STAGING)):
            return _without(report, wishes.steps, "it leads out of the lake")
        kind = DELTA if is_remote(job.folder) else format_at(job.folder)
        if kind is None:
            return _without(report, wishes.steps, "there is no table")
        format_ = TABLE_FORMATS[kind]
        if format_.not_kept:
            return _without(report, wishes.steps, f"{format_.label} {format_.not_kept}")
        if format_.no_rewrites:
            return self._plain(job, report, f"{format_.label}: {format_.no_rewrites}")
        state = load(at(job.folder))
        if state is None:
            return _without(report, wishes.steps, "there is no table")
        if UpkeepStep.EXPIRE in wishes.steps and job.role == Role.DEAD_LETTERS:
            state, report = self._expire(state, report)
        if UpkeepStep.EXPIRE in wishes.steps:
            state, report = self._remove_old_rows(job, state, report)
        if UpkeepStep.OPTIMIZE in wishes.steps:
            state, report = self._optimize(job, state, report)
        if UpkeepStep.CHECKPOINT in wishes.steps:
            report = self._checkpoint(job, state, report)
        if UpkeepStep.VACUUM in wishes.steps:
            report = self._vacuum(job, report)
        return report

    def _plain(self, job: TableJob, report: TableReport, why: str) -> TableReport:
        """Tidy a table whose files must not be written again: only staged files can go."""
        steps = {UpkeepStep.OPTIMIZE}
        steps |= {UpkeepStep.EXPIRE} if self.wishes.retention_of_rows(job.table) else set()
        report = _without(report, self.wishes.steps & steps, why)
        if UpkeepStep.VACUUM not in self.wishes.steps:
            return report
        kept = self.watched.keepers(job.folder)
        store, keep = at(job.folder), self.wishes.keep()
        done = vacuum_staging(store, keep, kept, dry_run=self.wishes.dry_run)
        return replace(report, vacuum=done)

    def _expire(self, state: Snapshot, report: TableReport) -> tuple[Snapshot, TableReport]:
        total = ExpiredLetters()
        for expiry in self._expiries():
            try:
                state, done = expire_letters(
                    state, expiry, ready=self.check, dry_run=self.wishes.dry_run
                )
            except (BusyError, OvertakenError):
                return state, _without(report, {UpkeepStep.EXPIRE}, "other writers committed first")
            total = ExpiredLetters(
                total.letters + done.letters, done.version or total.version, total.left + done.left
            )
        return state, replace(report, expire=total)

    def _remove_old_rows(
        self, job: TableJob, state: Snapshot, report: TableReport
    ) -> tuple[Snapshot, TableReport]:
        """Remove the rows that are older than the settings allow."""
        wanted = self.wishes.retention_of_rows(job.table)
        if wanted is None or job.role == TOMBSTONES:
            return state, report
        refused = _ROWS_STAY.get(job.role, "") or removal_refusal(state)
        column = wanted.column or _ARRIVAL.get(job.role, "_timestamp")
        old = refused or OlderRows.of(state, column, oldest_moment(wanted.age, datetime.now(UTC)))
        if isinstance(old, str):
            return state, _without(report, {UpkeepStep.EXPIRE}, old)
        dry_run = self.wishes.dry_run
        try:
            state, done = remove_rows(state, old, ready=self.check, dry_run=dry_run)
        except (BusyError, OvertakenError):
            return state, _without(report, {UpkeepStep.EXPIRE}, "other writers committed first")
        except UnsupportedTypeError as error:
            return state, _without(report, {UpkeepStep.EXPIRE}, str(error))
        return state, replace(report, rows=done)

    def _expiries(self) -> list[Expiry]:
        now, wanted = datetime.now(UTC), self.wishes.settings.expire
        ages = [(wanted.dead_letters, False), (wanted.open_dead_letters, True)]
        return [Expiry(now - age, open_too) for age, open_too in ages if age is not None]

    def _optimize(
        self, job: TableJob, state: Snapshot, report: TableReport
    ) -> tuple[Snapshot, TableReport]:
        wishes, wanted = self.wishes, self.wishes.settings.optimize
        if job.folder.startswith(f"{self.home}{os.sep}"):
            return state, _without(report, {UpkeepStep.OPTIMIZE}, "merges compact it themselves")
        try:
            sizes = compaction(state, Sizes(wanted.target_size, wanted.min_files))
        except UnsupportedTypeError as error:
            return state, _without(report, {UpkeepStep.OPTIMIZE}, str(error))
        plan = planned(state, sizes)
        refused = refusal(state) if plan else ""
        if plan is None or refused:
            return state, _without(report, {UpkeepStep.OPTIMIZE} if refused else (), refused)
        if wishes.dry_run:
            return state, replace(report, optimize=plan)
        try:
            state, done = compact(state, sizes, self._exchange(job))
        except UnsupportedTypeError as error:
            return state, _without(report, {UpkeepStep.OPTIMIZE}, str(error))
        return state, _optimized(report, done)

    def _exchange(self, job: TableJob) -> FileExchange:
        """Return the conditions for replacing files: a table that is merged into has priority.

        A merge that is overtaken would start over.
        """
        if job.role not in DERIVED:
            return replace(OPTIMIZE, ready=self.check)

        def ready() -> None:
            self.check()
            if job.checkpoint and batch_under_way(job.checkpoint):
                raise BusyError("a batch is being merged into this table; it is skipped this time")

        return replace(OPTIMIZE, ready=ready, patient=False)

    def _checkpoint(self, job: TableJob, state: Snapshot, report: TableReport) -> TableReport:
        done = care_for_log(
            state,
            every=self.wishes.settings.checkpoint.every,
            keep_from=self.watched.keep_from(job.folder),
            since=self.watched.holds.since,
            dry_run=self.wishes.dry_run,
        )
        if done.failed:
            return _without(report, {UpkeepStep.CHECKPOINT}, done.failed)
        return replace(report, checkpoint=done)

    def _vacuum(self, job: TableJob, report: TableReport) -> TableReport:
        self.check()
        kept = self.watched.keepers(job.folder)
        done = vacuum(at(job.folder), self.wishes.keep, kept, dry_run=self.wishes.dry_run)
        if done.refused:
            return _without(report, {UpkeepStep.VACUUM}, done.refused)
        return replace(report, vacuum=done)


def _optimized(report: TableReport, done: Compacted | None) -> TableReport:
    if done is None:
        return report
    if done.version is None:
        return _without(report, {UpkeepStep.OPTIMIZE}, done.left)
    return replace(report, optimize=done)


def _without(report: TableReport, steps: Iterable[UpkeepStep], why: str) -> TableReport:
    names = sorted(str(step) for step in steps)
    return replace(report, skipped={**report.skipped, **dict.fromkeys(names, why)})


def _error_document(error: Exception, known: DistributaryError) -> Mapping[str, Any]:
    kind = "" if isinstance(error, DistributaryError) else f"{type(error).__name__}: "
    return {**known.as_dict(), "evidence": f"{kind}{known.evidence}"}


CLAIMED = "maintenance"
"""The folder, in the lake's own one, for the claim."""
_LEASE_SECONDS = 60.0
_THREADS = 4

OnTable = Callable[[TableReport, int, int], None]
"""Called with each finished table, the number of finished tables, and their total."""


def jobs_of(lake: str, *, pipeline: str | None = None) -> tuple[TableJob, ...]:
    """Return the tables of a lake, or of one pipeline, with the tables of their tombstones."""
    cards = {card.name: card.checkpoint for card in registrations(lake)}
    jobs: dict[str, TableJob] = {}
    for table in Ledger(lake).tables(pipeline, schema_ids=False):
        folder = layout.place(lake, table.path)
        checkpoint = cards.get(table.pipeline, "")
        jobs[folder] = TableJob(table.table, table.role, table.pipeline, folder, checkpoint)
        tombstones = layout.tombstones(lake, table.table)
        if table.role in DERIVED and at(tombstones).exists("_delta_log"):
            jobs[tombstones] = TableJob(
                table.table, TOMBSTONES, table.pipeline, tombstones, checkpoint
            )
    return tuple(jobs.values())


def maintain(
    lake: str,
    jobs: Sequence[TableJob],
    wishes: Wishes,
    *,
    whole_lake: bool = True,
    on_table: OnTable = lambda report, done, total: None,
) -> Report:
    """Maintain tables and the ledger. Raises OwnedError, CheckpointError.

    Without `whole_lake` only the tables are maintained, not the ledger.
    """
    started = time.perf_counter()
    with _claimed(lake, dry_run=wishes.dry_run) as check:
        watched = replace(watch(lake), holds=_holds(lake, wishes))
        until = FOR_EVER
        if wishes.at_most is not None:
            until = time.monotonic() + wishes.at_most.total_seconds()
            # a random order, so that every table gets its turn although time is limited
            jobs = random.sample(jobs, len(jobs))
        care = Care(wishes, watched, layout.join(lake, layout.HOME), check, until)
        tables = _all(care, jobs, on_table)
        ledger, leftovers, error = None, 0, None
        if whole_lake and UpkeepStep.EXPIRE in wishes.steps:
            try:
                check()
                ledger = expire_ledger(lake, wishes)
                if not wishes.dry_run:
                    finish_erasures(lake, later=True)
                    Ledger(lake).tidy()
                leftovers = remove_leftovers(lake, wishes)
            except DistributaryError as failure:
                error = failure.as_dict()
    report = Report(
        lake,
        tables,
        ledger,
        leftovers,
        watched.notes if UpkeepStep.VACUUM in wishes.steps else (),
        error,
        time.perf_counter() - started,
    )
    if not wishes.dry_run and whole_lake:
        _remember(report)
    return report


def _holds(lake: str, wishes: Wishes) -> Holds:
    """Return the versions that cuts need, and store the settings for other processes."""
    if wishes.pipeline is None:
        return read_holds(lake)
    wanted = wishes.settings.cuts
    last_since = None
    if wanted.last is not None:
        cuts = Cuts(lake).listed(wanted.last, pipeline=wishes.pipeline)
        last_since = min((cut.settled_at for cut in cuts), default=None)
    kept = KeptCuts(wanted.age, last_since)
    if not wishes.dry_run:
        write_kept(lake, wishes.pipeline, kept)
        remove_expired_pins(lake)
    holds = read_holds(lake)
    return replace(holds, since=min(holds.since, kept.since(time.time())))


def _remember(report: Report) -> None:
    """Store the time and result of the maintenance of each pipeline's tables in the lake."""
    now = datetime.now(UTC)
    for pipeline in {table.pipeline for table in report.tables}:
        own = replace(report, tables=tuple(t for t in report.tables if t.pipeline == pipeline))
        totals = own.totals()
        errors = [*(t.error for t in own.tables if t.error), *([own.error] if own.error else [])]
        before = None if totals.rows_removed else read_upkeep_state(report.lake, pipeline)
        state = UpkeepState(
            at=now,
            seconds=round(report.seconds, 3),
            tables=totals.tables,
            changed=totals.changed,
            failed=totals.failed,
            left=totals.left,
            files_before=totals.files_before,
            files_after=totals.files_after,
            files_deleted=totals.files_deleted,
            bytes_deleted=totals.bytes_deleted,
            dead_letters=totals.dead_letters,
            error=f"{errors[0]['code']}: {errors[0]['what']}" if errors else "",
            rows_removed=before.rows_removed if before else totals.rows_removed,
            rows_removed_at=before.rows_removed_at if before else _moment(totals, now),
        )
        write_upkeep_state(report.lake, pipeline, state)


def _moment(totals: Totals, now: datetime) -> datetime | None:
    return now if totals.rows_removed else None


def _all(care: Care, jobs: Sequence[TableJob], on_table: OnTable) -> tuple[TableReport, ...]:
    done: dict[int, TableReport] = {}
    # waiting for a bucket needs no processor
    most = _THREADS * 4 if is_remote(care.home) else min(_THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(most) as pool:
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
    """Hold the claim to maintain a lake; a dry run needs none."""
    if dry_run:
        yield lambda: None
        return
    home = at(layout.join(lake, layout.HOME, CLAIMED))
    try:
        claim = Claim.take(home, lease=_LEASE_SECONDS)
    except OwnedError as error:
        holder = current_owner(home)
        who = holder.describe() if holder else "another process"
        raise OwnedError(
            f"this lake is being maintained by {who}",
            where=home.address,
            evidence=error.evidence,
            next_step="wait until it has ended; --dry-run can be used meanwhile",
            owner=who,
        ) from error
    try:
        yield claim.check
    finally:
        claim.release()


def expire_ledger(lake: str, wishes: Wishes) -> Expired:
    """Replace old rows of the ledger by sums, a whole day at a time.

    All sums are rewritten each time.
    """
    day = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    moment = day - wishes.settings.expire.ledger
    old = _old_rows(lake, "batches", "finished_at", moment)
    if not old or wishes.dry_run:
        return Expired(old, _old_rows(lake, "tables", "at", moment)) if old else Expired(0, 0)
    return Ledger(lake).expire(moment)


def _old_rows(lake: str, name: str, column: str, moment: datetime) -> int:
    """Return the number of rows of detail from before a moment; sums do not count."""
    table = open_table(layout.ledger_table(lake, name))
    if table is None:
        return 0
    where = (pc.field(column) < pc.scalar(moment)) & (pc.field("batches") == 1)
    return len(read_rows(table, columns=["batches"], where=where))


def remove_leftovers(lake: str, wishes: Wishes) -> int:
    """Remove files that killed processes left beside the checkpoints of this lake."""
    kept = max(wishes.settings.vacuum.retention, timedelta(days=1))
    before = time.time() - kept.total_seconds()
    if is_remote(lake):
        # objects exist whole or not at all, and folders of runs are on the workers
        return 0
    paths = [path for card in registrations(lake) for path in _leftovers(lake, card, before)]
    if not wishes.dry_run:
        for path in paths:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
    return len(paths)


def _leftovers(lake: str, card: Registration, before: float) -> Iterator[Path]:
    """Yield removable paths; none if only the lake claims that it is a checkpoint."""
    checkpoint = trusted_checkpoint(card, lake)
    # the checkpoint itself must name the pipeline, too
    if checkpoint is None or not _is_checkpoint(checkpoint, card.name):
        return
    for lane, manifests in lanes(at(str(checkpoint))):
        # manifests of batches that were staged again, and drafts of files
        folder = Path(manifests.store.address)
        runs = checkpoint / "runs" / ("stream" if folder.name == "manifests" else folder.name)
        if any(leads_outside(str(checkpoint), str(path)) for path in (folder, runs)):
            continue
        for pattern in ("*.broken-*", ".*.draft"):
            yield from (p for p in folder.glob(pattern) if _older(p, before))
        if living_owner(lane) is None and _older(runs, before):
            yield runs


def _is_checkpoint(folder: Path, pipeline: str) -> bool:
    try:
        place = at(str(folder))
        return place.exists() and Checkpoint.find(place, pipeline=pipeline) is not None
    except CheckpointError:
        return False


def _older(path: Path, moment: float) -> bool:
    try:
        return path.stat().st_mtime < moment
    except FileNotFoundError:
        return False
