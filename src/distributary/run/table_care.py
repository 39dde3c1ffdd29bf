"""One table, looked after: letters, files, log, and what is left over, in this order."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from distributary.errors import DistributaryError, FencedError
from distributary.model.table import STAGING, Role
from distributary.observe.measured import DERIVED
from distributary.publish.columns import UnsupportedTypeError
from distributary.publish.failures import as_publish_error
from distributary.publish.parquet_table import format_of
from distributary.publish.races import OvertakenError
from distributary.run.maintenance import Job, Step, TableReport, Wishes
from distributary.run.watching import Watched, batch_under_way
from distributary.stores.known import leads_outside
from distributary.upkeep.compact import Compacted, Manners, compact, planned, refusal
from distributary.upkeep.letters import ExpiredLetters, Expiry, expire_letters
from distributary.upkeep.log_care import care_for_log
from distributary.upkeep.state import TableState, load
from distributary.upkeep.swap import BusyError
from distributary.upkeep.vacuum import vacuum, vacuum_staging

TOMBSTONES = "tombstones"
"""The role of the tables that remember what was removed from others."""


@dataclass(frozen=True, slots=True)
class Care:
    """What is wanted, and what must be minded."""

    wishes: Wishes
    watched: Watched
    home: str
    """The folder of the lake in which only pipelines keep tables."""
    check: Callable[[], None]
    """Raises FencedError when this process has been taken for dead."""

    def look_after(self, job: Job) -> TableReport:
        """Do what is wanted to one table; what goes wrong is told, not raised."""
        started = time.perf_counter()
        report = TableReport(job.table, job.role, job.pipeline, job.folder)
        try:
            report = self._steps(job, report)
        except FencedError:
            raise
        except Exception as error:
            told = as_publish_error(error, doing="look after a table", path=job.folder)
            report = replace(report, error=_told(error, told))
        return replace(report, seconds=time.perf_counter() - started)

    def _steps(self, job: Job, report: TableReport) -> TableReport:
        wishes = self.wishes
        if wishes.passes_over(job.table):
            return _without(report, wishes.steps, "the pipeline file says to leave it alone")
        lake = os.path.dirname(self.home)
        if any(leads_outside(lake, f"{job.folder}/{name}") for name in ("_delta_log", STAGING)):
            return _without(report, wishes.steps, "it leads out of the lake")
        kind = format_of(job.folder)
        if kind is None:
            return _without(report, wishes.steps, "there is no table")
        if kind == "parquet":
            return self._plain(job, report)
        state = load(job.folder)
        if state is None:
            return _without(report, wishes.steps, "there is no table")
        if Step.EXPIRE in wishes.steps and job.role == Role.DEAD_LETTERS:
            state, report = self._expire(state, report)
        if Step.OPTIMIZE in wishes.steps:
            state, report = self._optimize(job, state, report)
        if Step.CHECKPOINT in wishes.steps:
            report = self._checkpoint(job, state, report)
        if Step.VACUUM in wishes.steps:
            report = self._vacuum(job, report)
        return report

    def _plain(self, job: Job, report: TableReport) -> TableReport:
        """A folder of Parquet files: its readers see files, so that none can be replaced."""
        why = "a plain Parquet table: its readers would see rows twice, or not at all"
        report = _without(report, self.wishes.steps & {Step.OPTIMIZE}, why)
        if Step.VACUUM not in self.wishes.steps:
            return report
        kept = self.watched.keepers(job.folder)
        done = vacuum_staging(job.folder, self.wishes.keep(), kept, dry_run=self.wishes.dry_run)
        return replace(report, vacuum=done)

    def _expire(self, state: TableState, report: TableReport) -> tuple[TableState, TableReport]:
        total = ExpiredLetters()
        for expiry in self._expiries():
            try:
                state, done = expire_letters(
                    state, expiry, ready=self.check, dry_run=self.wishes.dry_run
                )
            except (BusyError, OvertakenError):
                return state, _without(report, {Step.EXPIRE}, "other writers were faster")
            total = ExpiredLetters(
                total.letters + done.letters, done.version or total.version, total.left + done.left
            )
        return state, replace(report, expire=total)

    def _expiries(self) -> list[Expiry]:
        wanted = self.wishes.expire
        ages = [(wanted.dead_letters, False), (wanted.open_dead_letters, True)]
        return [Expiry(_ago(age), open_too) for age, open_too in ages if age is not None]

    def _optimize(
        self, job: Job, state: TableState, report: TableReport
    ) -> tuple[TableState, TableReport]:
        wishes = self.wishes
        if job.folder.startswith(f"{self.home}{os.sep}"):
            return state, _without(report, {Step.OPTIMIZE}, "merges keep it small themselves")
        plan = planned(state, wishes.sizes)
        refused = refusal(state) if plan else ""
        if plan is None or refused:
            return state, _without(report, {Step.OPTIMIZE} if refused else (), refused)
        if wishes.dry_run:
            return state, replace(report, optimize=plan)
        try:
            state, done = compact(state, wishes.sizes, self._manners(job))
        except UnsupportedTypeError as error:
            return state, _without(report, {Step.OPTIMIZE}, str(error))
        return state, _optimized(report, done)

    def _manners(self, job: Job) -> Manners:
        """A merge that is overtaken begins anew: tables that are merged into are not fought for."""
        if job.role not in DERIVED:
            return Manners(self.check)

        def ready() -> None:
            self.check()
            if job.checkpoint and batch_under_way(job.checkpoint):
                raise BusyError("a batch is being merged into it: next time")

        return Manners(ready, patient=False)

    def _checkpoint(self, job: Job, state: TableState, report: TableReport) -> TableReport:
        done = care_for_log(
            state,
            every=self.wishes.checkpoint_every,
            keep_from=self.watched.keep_from(job.folder),
            dry_run=self.wishes.dry_run,
        )
        if done.failed:
            return _without(report, {Step.CHECKPOINT}, done.failed)
        return replace(report, checkpoint=done)

    def _vacuum(self, job: Job, report: TableReport) -> TableReport:
        self.check()
        kept = self.watched.keepers(job.folder)
        done = vacuum(job.folder, self.wishes.keep, kept, dry_run=self.wishes.dry_run)
        if done.refused:
            return _without(report, {Step.VACUUM}, done.refused)
        return replace(report, vacuum=done)


def _ago(age: timedelta) -> datetime:
    return datetime.now(UTC) - age


def _optimized(report: TableReport, done: Compacted | None) -> TableReport:
    if done is None:
        return report
    if done.version is None:
        return _without(report, {Step.OPTIMIZE}, done.left)
    return replace(report, optimize=done)


def _without(report: TableReport, steps: Iterable[Step], why: str) -> TableReport:
    names = sorted(str(step) for step in steps)
    return replace(report, skipped={**report.skipped, **dict.fromkeys(names, why)})


def _told(error: Exception, known: DistributaryError) -> Mapping[str, Any]:
    kind = "" if isinstance(error, DistributaryError) else f"{type(error).__name__}: "
    return {**known.as_dict(), "evidence": f"{kind}{known.evidence}"}
