"""The loop of a run: batch after batch, with retries, until it is done or stopped.

The engine schedules batches itself. A streaming query of Spark could do it, but starting one takes
10 to 25 seconds of a core in a new JVM, and its offset log would repeat what the manifests say.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from pyspark.errors import PySparkException

from distributary.changes.merge_order import Undecided
from distributary.config.runtime import Trigger, TriggerKind
from distributary.engine.batch import ReadAhead, run_batch
from distributary.engine.context import RunContext
from distributary.engine.pacing import Pacing
from distributary.engine.planning.table_book import primary_role
from distributary.engine.requests import (
    RetryAges,
    answer_requests,
    answered,
    drained,
    requests,
    undecided_of,
    wanted,
)
from distributary.engine.steps.merged_events import forget_all_merged
from distributary.engine.steps.whole_transactions import Held, HeldBack
from distributary.errors import CheckpointError, DistributaryError, ErrorCode, PausedError
from distributary.model.manifest import Counts
from distributary.model.table import Role, counts_records
from distributary.observe.cards import CatalogState
from distributary.observe.events import (
    Failed,
    Idle,
    Paced,
    Paused,
    RecordsHeld,
    Recovered,
    Stopped,
    TableResumed,
)
from distributary.observe.notebook import html_table
from distributary.observe.pause import Pause, PauseWatch
from distributary.observe.status.pulse import clear_failure
from distributary.publish.base import Outcome, Published
from distributary.publish.parking import ParkedBatch, parked
from distributary.retries import attempts_on
from distributary.source.base import BatchInput, Position, Source
from distributary.spark.session import disk_failed, jvm_has_ended, spark_failed, too_few_files

_log = logging.getLogger(__name__)

_POLL_SECONDS = 0.2
_HEARTBEAT_SECONDS = 30.0
_LONGEST_PAUSE = 60.0
_LONGEST_PAUSE_ENDLESS = 5.0
"""The longest pause between retries of a continuous run: short, because attempts are cheap."""


@dataclass(frozen=True, slots=True)
class StillParked:
    """The parked records of this and earlier runs."""

    records: int = 0
    tables: int = 0

    def describe(self) -> str:
        """Format the counts: `120 records of 2 tables still parked`."""
        records = "record" if self.records == 1 else "records"
        tables = "table" if self.tables == 1 else "tables"
        return f"{self.records:,} {records} of {self.tables:,} {tables} still parked"


@dataclass(slots=True)
class RunSummary:
    """The result of a run, summed over its batches."""

    pipeline: str
    counts: Counts = field(default_factory=Counts)
    batches: int = 0
    seconds: float = 0.0
    query_id: str = ""
    """The id of the checkpoint's life."""
    stopped: str = ""
    """The end of the run: `done` or `stopped`."""
    still_parked: StillParked = field(default_factory=StillParked)
    """The parked records, including those of earlier runs."""
    catalog: CatalogState | None = None
    """The state of the catalog, if tables are registered in one."""

    def equation(self) -> str:
        """Return the equation over all batches, followed by the parked records."""
        still = f"; {self.still_parked.describe()}" if self.still_parked.tables else ""
        return f"{self.counts.equation()}{still}"

    def _repr_html_(self) -> str:
        """Return the account of the run for a notebook."""
        facts = [
            ("account", self.equation()),
            ("batches", f"{self.batches:,} in {self.seconds:.1f} s"),
            ("ended", self.stopped),
        ]
        return html_table(f"run of {self.pipeline}", (), facts)


class _CutOffError(Exception):
    """The JVM ended in the middle of a batch, after the run was asked to stop.

    The same signal may reach both, as when systemd stops all processes of a unit.
    """

    def __init__(self, batch: int) -> None:
        super().__init__(batch)
        self.batch = batch


class StreamRun:
    """Runs a pipeline until it is done, is stopped, or cannot continue."""

    def __init__(self, context: RunContext, source: Source, *, stop: threading.Event) -> None:
        self._context = context
        self._source = source
        self._stop = stop
        self._summary = RunSummary(context.config.name, query_id=context.progress.checkpoint.life)
        # the first idle round is reported at once, because it shows that the pipeline is up
        self._last_event = -math.inf
        self._end: tuple[int, Position] | None = None
        """The last batch that this process settled, and its end."""
        self._until: Position | None = None
        """The end of the source when the current draining began; no batch goes beyond it."""
        self._ahead = ReadAhead(context, self._opened)
        self._patience = RetryAges(context.publishing.parking, context.config)
        self._pauses = PauseWatch(context.progress.checkpoint.store)
        self._endless = False
        """Whether the run continues at the end of the source."""
        self._since: int | None = None
        """The first batch of this run."""
        self._failed_at: float | None = None
        """The time of the first failure of the current retries; None without retries."""
        self._in_batch = self._batch_failed = False
        """Whether a batch is under way, and whether the failure was in a batch or before it."""
        self._works = False
        """Whether this run has completed a round."""
        self._held: tuple[Position, float] | None = None
        """The end of the source up to which all records are held back, and until when."""
        self._pacing: Pacing | None = None
        """The pace of a run whose trigger is a freshness."""

    def run(self, trigger: Trigger) -> RunSummary:
        """Run to the end; retry temporary failures with back-off."""
        began = time.monotonic()
        if trigger.freshness is not None:
            self._pacing = Pacing(trigger.freshness.total_seconds())
        try:
            self._with_retries(trigger)
        except _CutOffError as error:
            # the next run continues this batch
            _log.warning("Spark was ended with this run, in the middle of batch %d", error.batch)
        finally:
            self._ahead.close()
        self._look_at_parked()
        self._summary.catalog = self._context.end_registering()
        self._summary.seconds = time.monotonic() - began
        self._summary.stopped = "stopped" if self._stop.is_set() else "done"
        clear_failure(self._context.progress.checkpoint.store)
        self._context.reports.bus.publish(
            Stopped(
                pipeline=self._context.config.name,
                batches=self._summary.batches,
                counts=self._summary.counts,
                seconds=self._summary.seconds,
                reason=self._summary.stopped,
            )
        )
        return self._summary

    def _look_at_parked(self) -> None:
        """Count the records that are still parked; this run may have resumed others."""
        context, summary = self._context, self._summary
        left = parked(context.publishing.parking)
        records, tables = sum(p.entry.records for p in left), len({p.table for p in left})
        summary.still_parked = StillParked(records, tables)
        if self._since is not None and summary.counts.parked:
            role = primary_role(context.config)
            summary.counts = settled_now(
                summary.counts, left, app_id=context.progress.app_id, since=self._since, role=role
            )

    def _with_retries(self, trigger: Trigger) -> None:
        """Run rounds with retries: without a limit if continuous, otherwise for a limited time."""
        attempts = self._context.config.run.batch_attempts
        endless = trigger.kind is not TriggerKind.AVAILABLE_NOW
        while True:
            done_before = self._summary.batches

            def stuck(error: BaseException, done: int = done_before) -> bool:
                return self._worth_a_retry(error) and self._summary.batches == done

            try:
                most = None if endless else attempts
                longest = _LONGEST_PAUSE_ENDLESS if endless else _LONGEST_PAUSE
                for attempt in attempts_on(
                    stuck, most=most, pause=1.0, longest=longest, stop=self._stop
                ):
                    with attempt:
                        number = attempt.retry_state.attempt_number
                        # the shortest pause, to which a random part is added
                        wait = min(longest, 2.0 ** min(number - 1, 10))
                        self._run_reporting_errors(trigger, None if number == most else wait)
                        return
            except DistributaryError as error:
                # attempts are counted for each batch: after progress, the count starts again
                if not self._worth_a_retry(error) or self._summary.batches == done_before:
                    raise

    def _run_reporting_errors(self, trigger: Trigger, wait: float | None) -> None:
        self._in_batch = False
        try:
            self._looped(trigger)
        except DistributaryError as error:
            again = wait if self._worth_a_retry(error) else None
            if again is not None:
                self._batch_failed = self._in_batch
                self._failed_at = self._failed_at or time.monotonic()
            name = self._context.config.name
            self._context.reports.publish_registry_calls()
            self._context.reports.bus.publish(Failed(pipeline=name, error=error, retry_in=again))
            raise

    def _round_worked(self) -> None:
        """Report the recovery if a failure was being retried."""
        if not self._works:
            self._works = True
            clear_failure(self._context.progress.checkpoint.store)
        if self._failed_at is not None:
            seconds = time.monotonic() - self._failed_at
            self._failed_at, self._batch_failed = None, False
            name = self._context.config.name
            self._context.reports.bus.publish(Recovered(pipeline=name, seconds=seconds))

    def _worth_a_retry(self, error: BaseException) -> bool:
        return isinstance(error, DistributaryError) and error.retryable and not self._stop.is_set()

    def _looped(self, trigger: Trigger) -> None:
        try:
            self._loop(trigger)
        except OSError as error:
            # the failure was between two batches: at the checkpoint or the parking folder
            raise disk_failed(error) or error from error

    def _loop(self, trigger: Trigger) -> None:
        self._endless = trigger.kind is not TriggerKind.AVAILABLE_NOW
        self._wait_while_paused()
        self._finish_decided()
        forget_all_merged(self._context)
        interval = trigger.interval.total_seconds() if trigger.interval else 0.0
        last: float | None = None
        while not self._stop.is_set():
            # an idle run must also stop when its claim is lost
            self._context.progress.claim.check()
            self._wait_while_paused()
            began, read = time.monotonic(), self._summary.counts.read
            asked_at = datetime.now(UTC)
            self._drain(self._source.newest(), asked_at)
            if trigger.kind is TriggerKind.AVAILABLE_NOW:
                self._resume_parked(everything=True)
                return
            if self._pacing is not None:
                self._pacing.done(
                    records=self._summary.counts.read - read,
                    seconds=time.monotonic() - began,
                    since=None if last is None else began - last,
                )
                interval, last = self._paced(self._pacing), began
            self._wait(began + interval)

    def _paced(self, pacing: Pacing) -> float:
        """Return the seconds between the last batch's beginning and the next one's."""
        pace = pacing.next()
        self._context.reports.bus.publish(Paced(pipeline=self._context.config.name, pace=pace))
        return pace.interval_seconds

    def _drain(self, until: Position, asked_at: datetime) -> None:
        """Run batches up to the end that the source had at the beginning, at `asked_at`."""
        self._until = until
        while not self._stop.is_set():
            if self._pauses.look() is not None:
                self._wait_while_paused()
                return
            self._resume_on_request()
            self._resume_parked()
            batch = self._context.progress.manifests.newest() + 1
            start = self._position_after(batch - 1)
            self._reached(start)
            end = self._end_of(batch, start, until)
            if end is None or not self._batch_failed:
                # a failed batch counts as recovered when it succeeds; other steps have just
                # succeeded
                self._round_worked()
            if end is None:
                self._read_all(asked_at)
                return
            if self._waits(until):
                return
            try:
                self._run(batch, start, end)
            except HeldBack as error:
                self._hold(batch, error.held, until)
                return

    def _waits(self, until: Position) -> bool:
        """Return whether all records up to an end are of transactions that have not ended."""
        return (
            self._held is not None and self._held[0] == until and time.monotonic() < self._held[1]
        )

    def _hold(self, batch: int, held: Held, until: Position) -> None:
        """Remember the end of the source up to which all records are held back, and report it."""
        self._held = until, time.monotonic() + held.retry_seconds
        # the batch was staged: an earlier failure of it is over
        self._in_batch = self._batch_failed = False
        name, records = self._context.config.name, held.for_status()
        if records is not None:
            self._context.reports.bus.publish(RecordsHeld(pipeline=name, batch=batch, held=records))
        if not self._endless:
            _log.warning("held back until their transactions end: %s", held.describe())

    def _wait_while_paused(self) -> None:
        """Wait until a pause ends; refuse a run that would end by itself.

        During a pause the run only answers requests: `resume` and `rebuild` of a table.
        """
        pause = self._pauses.look()
        if pause is None or self._stop.is_set():
            return
        if not self._endless:
            raise _paused(pause, self._summary.batches)
        reported_at = -math.inf
        while pause is not None and not self._stop.is_set():
            self._context.progress.claim.check()
            self._resume_on_request()
            if time.monotonic() - reported_at > _HEARTBEAT_SECONDS:
                self._round_worked()
                self._report_pause(pause)
                reported_at = time.monotonic()
            self._stop.wait(_POLL_SECONDS)
            pause = self._pauses.look()
        # the end of the pause is reported at once, by a batch or as idle
        self._last_event = -math.inf

    def _report_pause(self, pause: Pause) -> None:
        newest = self._context.progress.manifests.newest()
        self._context.reports.bus.publish(
            Paused(
                pipeline=self._context.config.name,
                batch=newest if newest >= 0 else None,
                since=pause.since,
                note=pause.note,
            )
        )

    def _opened(self, batch: int, start: Position) -> BatchInput | None:
        """Open the batch that begins at a position; None without records, or during a pause."""
        if self._until is None or self._stop.is_set() or self._pauses.look() is not None:
            return None
        end = self._end_of(batch, start, self._until)
        return None if end is None else self._open(start, end)

    def _open(self, start: Position, end: Position) -> BatchInput:
        return replace(self._source.open(self._context.spark, start, end), start=start)

    def _end_of(self, batch: int, start: Position, until: Position) -> Position | None:
        """Return the end of a batch; a batch in the ledger keeps the end that it had."""
        settled = self._context.progress.settled_ranges(batch)
        if settled is not None:
            return self._source.retrace(start, settled)
        return self._source.advance(start, until)

    def _finish_decided(self) -> None:
        """Publish batches that were decided but not settled when the process ended."""
        manifests = self._context.progress.manifests
        settled, newest = manifests.settled(), manifests.newest()
        if settled > newest:
            raise self._missing(settled)
        # a batch in the ledger is settled, even if the checkpoint's mark is missing
        done = min(self._context.progress.newest_settled, newest)
        if done > settled:
            # other jobs look at the checkpoint for this batch
            manifests.settle(done)
        for batch in range(max(settled, done) + 1, newest + 1):
            manifest = manifests.read(batch)
            if manifest is not None:
                start = manifest.source_start or self._position_after(batch - 1)
                self._run(batch, start, manifest.source_state)

    def _run(self, batch: int, start: Position, end: Position) -> None:
        context = self._context
        context.progress.claim.check()
        if self._since is None:
            self._since = batch
        self._in_batch = True
        try:
            source = self._ahead.input(batch, end)
            if source is None:
                source = self._open(start, end)
            settled = run_batch(context, batch, source, self._ahead)
        except (DistributaryError, HeldBack):
            raise
        except Exception as error:
            if self._stop.is_set() and jvm_has_ended(error):
                raise _CutOffError(batch) from error
            raise self._explained(error, batch) from error
        finally:
            self._last_event = time.monotonic()
        # kept from the manifest, whose file takes long to read with a thousand tables
        self._end = batch, json.loads(json.dumps(settled.manifest.source_state, default=str))
        self._reached(self._end[1])
        self._in_batch, self._batch_failed, self._failed_at = False, False, None
        self._summary.batches += 1
        self._summary.counts += settled.counts

    def _explained(self, error: Exception, batch: int) -> DistributaryError:
        """Return the DistributaryError for an exception of a batch."""
        if isinstance(error, PySparkException):
            return self._source.explain(error) or spark_failed(error)
        disk = disk_failed(error) if isinstance(error, OSError) else None
        return disk or _unexpected(error, batch)

    def _reached(self, position: Position) -> None:
        if self._context.reports.monitor is not None:
            self._context.reports.monitor.settled(position)

    def _read_all(self, asked_at: datetime) -> None:
        shard, monitor = self._context.config.shard, self._context.reports.monitor
        # a job of a shard also stops before a change of shards, with records left
        if monitor is not None and (shard is None or shard.lands):
            monitor.read_all(asked_at)

    def _position_after(self, batch: int) -> Position:
        """Return the end of a batch; before the first one, the pipeline's first position."""
        context = self._context
        if self._end is not None and self._end[0] == batch:
            return self._end[1]
        if batch < 0:
            return context.progress.checkpoint.first_position(self._source.first)
        manifest = context.progress.manifests.read(batch)
        if manifest is None:
            raise self._missing(batch)
        return manifest.source_state

    def _missing(self, batch: int) -> CheckpointError:
        return CheckpointError(
            f"the manifest of batch {batch} is missing, so the next offset is unknown",
            where=self._context.progress.manifests.store.address,
            next_step="restore the whole checkpoint from a copy, or start over with `reset`",
        )

    def _wait(self, until: float) -> None:
        """Wait until a moment, or until the source may have new records."""
        self._stop.wait(_POLL_SECONDS)
        while time.monotonic() < until and not self._stop.is_set():
            if self._pauses.look() is not None:
                return
            self._resume_on_request()
            self._resume_parked()
            self._stop.wait(min(_POLL_SECONDS, max(0.0, until - time.monotonic())))
        monitor = self._context.reports.monitor
        if monitor is not None and monitor.in_trouble:
            # the source cannot be asked
            return
        if time.monotonic() - self._last_event > _HEARTBEAT_SECONDS:
            self._last_event = time.monotonic()
            newest = self._context.progress.manifests.newest()
            self._context.reports.bus.publish(
                Idle(pipeline=self._context.config.name, batch=newest if newest >= 0 else None)
            )

    def _resume_on_request(self) -> None:
        context = self._context
        for table in requests(context.publishing.parking):
            done = self._resumed(table, undecided_of(context.publishing.parking, table))
            answered(context.publishing.parking, table)
            waits = any(result.outcome is Outcome.PARKED for result in done)
            self._tell_resumed(table, waits=waits)
        if wanted(context.publishing.parking):
            with context.publishing.lock:
                context.progress.claim.check()
                answer_requests(
                    context.config,
                    context.ledger,
                    context.publishing.publisher,
                    context.publishing.parking,
                )

    def _resume_parked(self, *, everything: bool = False) -> None:
        """Retry parked batches at growing intervals; report changes only."""
        for name in self._patience.due(everything=everything):
            if self._stop.is_set():
                return
            done = self._resumed(name)
            self._patience.tried(name)
            for table in dict.fromkeys(r.table for r in done if r.outcome is not Outcome.PARKED):
                outcomes = {r.outcome for r in done if r.table == table}
                self._tell_resumed(table, waits=Outcome.PARKED in outcomes)

    def _resumed(self, table: str, undecided: Undecided = "refuse") -> list[Published]:
        """Publish the parked batches of a table; on any failure, they stay parked."""
        context = self._context
        with context.publishing.lock:
            context.progress.claim.check()
            try:
                return drained(
                    context.publishing.publisher,
                    context.ledger,
                    context.publishing.parking,
                    config=context.config,
                    table=table,
                    spark=context.spark,
                    undecided=undecided,
                )
            except Exception as error:
                _log.info("table %s still waits: %s", table, error)
                return [Published(table, Outcome.PARKED, error=type(error).__name__)]

    def _tell_resumed(self, table: str, *, waits: bool) -> None:
        name = self._context.config.name
        self._context.reports.bus.publish(TableResumed(pipeline=name, table=table, parked=waits))


def settled_now(
    counts: Counts, left: Sequence[ParkedBatch], *, app_id: str, since: int, role: Role
) -> Counts:
    """Return the equation of the batches from `since` on, given what is still parked."""
    mine = (p for p in left if p.mark.app_id == app_id and p.mark.batch >= since)
    waiting = sum(p.entry.records for p in mine if counts_records(p.entry.table.role, role))
    resumed = counts.parked - min(counts.parked, waiting)
    return counts + Counts(written=resumed, parked=-resumed)


def _paused(pause: Pause, batches: int) -> PausedError:
    since = "" if pause.since is None else f"since {pause.since.isoformat(timespec='seconds')}"
    note = f"note: {pause.note}" if pause.note else ""
    done = f"{batches:,} batches were settled before the pause began" if batches else ""
    return PausedError(
        "the pipeline is paused",
        evidence="; ".join(part for part in (since, note, done) if part),
        next_step="`distributary continue FILE` ends the pause; run the pipeline again then",
    )


def _unexpected(error: Exception, batch: int) -> DistributaryError:
    text = str(error).strip().splitlines()
    return too_few_files(str(error)) or DistributaryError(
        f"batch {batch} failed",
        code=ErrorCode.BATCH_FAILED,
        evidence=f"{type(error).__name__}: {text[0][:500] if text else ''}",
        next_step="run again, with --debug for the traceback: rows that are already in tables "
        "are not written twice",
    )
