"""The one loop of a pipeline: batch after batch, watched, retried, stopped.

The engine keeps the time itself. Spark's streaming query would do it too, but starting one costs 10
to 25 seconds of a core in a fresh JVM, and its offset log would be a second record of what the
manifests say already.
"""

from __future__ import annotations

import json
import math
import threading
import time
from dataclasses import dataclass, field, replace

import stamina
from pyspark.errors import PySparkException

from distributary.config.trigger import Trigger, TriggerKind
from distributary.errors import CheckpointError, DistributaryError, ErrorCode
from distributary.model.manifest import Counts
from distributary.observe.events import Failed, Idle, Stopped, TableResumed
from distributary.observe.failures import clear_failure
from distributary.publish.base import Outcome
from distributary.run.ahead import ReadAhead
from distributary.run.batch import run_batch
from distributary.run.context import RunContext
from distributary.run.draining import answered, drained, requests
from distributary.run.hidden_logs import forget_all_merged
from distributary.run.rebuild_requests import answer_requests, wanted
from distributary.run.spark_failures import spark_failed
from distributary.source.base import BatchInput, Position, Source

_POLL_SECONDS = 0.2
_HEARTBEAT_SECONDS = 30.0


@dataclass(slots=True)
class RunSummary:
    """What a run did, counted over its batches."""

    pipeline: str
    counts: Counts = field(default_factory=Counts)
    batches: int = 0
    seconds: float = 0.0
    query_id: str = ""
    """Stays the same as long as the checkpoint lives."""
    stopped: str = ""
    """Why it ended: `done`, `stopped`."""


class StreamRun:
    """Drives a pipeline until it is done, is told to stop, or cannot go on."""

    def __init__(self, context: RunContext, source: Source, *, stop: threading.Event) -> None:
        self._context = context
        self._source = source
        self._stop = stop
        self._summary = RunSummary(context.config.name, query_id=context.checkpoint.life)
        # the first round that finds nothing is told at once: the pipeline is up
        self._last_event = -math.inf
        self._end: tuple[int, Position] | None = None
        """The batch that this process settled last, and where it ended."""
        self._until: Position | None = None
        """Where the source ended when the draining under way began: no batch goes further."""
        self._ahead = ReadAhead(context, self._opened)

    def run(self, trigger: Trigger) -> RunSummary:
        """Run to the end; after a failure that may pass, try again, with back-off."""
        began = time.monotonic()
        try:
            self._with_retries(trigger)
        finally:
            self._ahead.close()
        self._summary.seconds = time.monotonic() - began
        self._summary.stopped = "stopped" if self._stop.is_set() else "done"
        self._context.bus.publish(
            Stopped(
                pipeline=self._context.config.name,
                batches=self._summary.batches,
                counts=self._summary.counts,
                seconds=self._summary.seconds,
                reason=self._summary.stopped,
            )
        )
        return self._summary

    def _with_retries(self, trigger: Trigger) -> None:
        """A run that goes on retries for ever; one that ends by itself gives up after a while."""
        attempts = self._context.config.run.batch_attempts
        endless = trigger.kind is not TriggerKind.AVAILABLE_NOW
        while True:
            done_before = self._summary.batches

            def stuck(error: Exception, done: int = done_before) -> bool:
                return self._worth_a_retry(error) and self._summary.batches == done

            try:
                for attempt in stamina.retry_context(
                    on=stuck,
                    attempts=None if endless else attempts,
                    timeout=None,
                    wait_initial=1.0,
                    wait_max=60.0,
                ):
                    with attempt:
                        last = not endless and attempt.num == attempts
                        self._told(trigger, None if last else attempt.next_wait)
                        return
            except DistributaryError as error:
                # patience is counted per batch, not per run: after progress it begins anew
                if not self._worth_a_retry(error) or self._summary.batches == done_before:
                    raise

    def _told(self, trigger: Trigger, wait: float | None) -> None:
        try:
            self._loop(trigger)
        except DistributaryError as error:
            again = wait if self._worth_a_retry(error) else None
            name = self._context.config.name
            self._context.tell_registry_calls()
            self._context.bus.publish(Failed(pipeline=name, error=error, retry_in=again))
            raise

    def _worth_a_retry(self, error: Exception) -> bool:
        return isinstance(error, DistributaryError) and error.retryable and not self._stop.is_set()

    def _loop(self, trigger: Trigger) -> None:
        self._finish_decided()
        forget_all_merged(self._context)
        while not self._stop.is_set():
            began = time.monotonic()
            self._drain(self._source.newest())
            if trigger.kind is TriggerKind.AVAILABLE_NOW:
                return
            self._wait(began + trigger.interval.total_seconds() if trigger.interval else 0.0)

    def _drain(self, until: Position) -> None:
        """Batches up to a position, which is where the source ended when this began."""
        self._until = until
        while not self._stop.is_set():
            self._resume_on_request()
            batch = self._context.manifests.newest() + 1
            start = self._position_after(batch - 1)
            end = self._end_of(batch, start, until)
            if end is None:
                return
            self._run(batch, start, end)

    def _opened(self, batch: int, start: Position) -> BatchInput | None:
        """The records of the batch that begins there, if there are any and they are wanted."""
        if self._until is None or self._stop.is_set():
            return None
        end = self._end_of(batch, start, self._until)
        return None if end is None else self._open(start, end)

    def _open(self, start: Position, end: Position) -> BatchInput:
        return replace(self._source.open(self._context.spark, start, end), start=start)

    def _end_of(self, batch: int, start: Position, until: Position) -> Position | None:
        """A batch that the ledger has settled ends where it ended then: its tables have it."""
        settled = self._context.settled_ranges(batch)
        if settled is not None:
            return self._source.retrace(start, settled)
        return self._source.advance(start, until)

    def _finish_decided(self) -> None:
        """What was decided and not settled, because the process ended in between."""
        manifests = self._context.manifests
        settled, newest = manifests.settled(), manifests.newest()
        if settled > newest:
            raise self._missing(settled)
        # what the ledger has settled is done, whatever became of the checkpoint's own marks
        for batch in range(max(settled, self._context.newest_settled) + 1, newest + 1):
            manifest = manifests.read(batch)
            if manifest is not None:
                start = manifest.source_start or self._position_after(batch - 1)
                self._run(batch, start, manifest.source_state)

    def _run(self, batch: int, start: Position, end: Position) -> None:
        context = self._context
        context.claim.check()
        try:
            source = self._ahead.input(batch, end)
            if source is None:
                source = self._open(start, end)
            settled = run_batch(context, batch, source, self._ahead)
        except DistributaryError:
            raise
        except PySparkException as error:
            raise self._source.explain(error) or spark_failed(error) from error
        except Exception as error:
            raise _unexpected(error, batch) from error
        finally:
            self._last_event = time.monotonic()
        # as the manifest has it on disk, which takes long to read with a thousand tables
        self._end = batch, json.loads(json.dumps(settled.manifest.source_state, default=str))
        clear_failure(context.checkpoint.folder)
        self._summary.batches += 1
        self._summary.counts += settled.counts

    def _position_after(self, batch: int) -> Position:
        """Where a batch ended; before the first one, where the pipeline has begun."""
        context = self._context
        if self._end is not None and self._end[0] == batch:
            return self._end[1]
        if batch < 0:
            return context.checkpoint.first_position(self._source.first)
        manifest = context.manifests.read(batch)
        if manifest is None:
            raise self._missing(batch)
        return manifest.source_state

    def _missing(self, batch: int) -> CheckpointError:
        return CheckpointError(
            f"the manifest of batch {batch} is missing, so the next offset is unknown",
            where=str(self._context.manifests.folder),
            next_step="restore the whole checkpoint from a copy, or begin anew with `reset`",
        )

    def _wait(self, until: float) -> None:
        """Until a moment, or until there may be something new."""
        self._stop.wait(_POLL_SECONDS)
        while time.monotonic() < until and not self._stop.is_set():
            self._resume_on_request()
            self._stop.wait(min(_POLL_SECONDS, max(0.0, until - time.monotonic())))
        if time.monotonic() - self._last_event > _HEARTBEAT_SECONDS:
            self._last_event = time.monotonic()
            newest = self._context.manifests.newest()
            self._context.bus.publish(
                Idle(pipeline=self._context.config.name, batch=newest if newest >= 0 else None)
            )

    def _resume_on_request(self) -> None:
        context = self._context
        for table in requests(context.parking):
            with context.publishing:
                context.claim.check()
                done = drained(
                    context.publisher,
                    context.ledger,
                    context.parking,
                    config=context.config,
                    table=table,
                    spark=context.spark,
                )
                answered(context.parking, table)
                waits = any(result.outcome is Outcome.PARKED for result in done)
                context.bus.publish(
                    TableResumed(pipeline=context.config.name, table=table, parked=waits)
                )
        if wanted(context.parking):
            with context.publishing:
                context.claim.check()
                answer_requests(context.config, context.ledger, context.publisher, context.parking)


def _unexpected(error: Exception, batch: int) -> DistributaryError:
    text = str(error).strip().splitlines()
    return DistributaryError(
        f"batch {batch} failed",
        code=ErrorCode.BATCH_FAILED,
        evidence=f"{type(error).__name__}: {text[0][:500] if text else ''}",
        next_step="run again, with --debug for the traceback: what tables have of it already is "
        "not written twice",
    )
