"""The one streaming query of a pipeline: started, watched, retried, stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import stamina
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from distributary.config.trigger import Trigger, TriggerKind
from distributary.errors import CheckpointError, DistributaryError, ErrorCode, StoppedError
from distributary.model.manifest import Counts
from distributary.observe.events import Failed, Idle, Stopped
from distributary.observe.failures import clear_failure
from distributary.run.batch import Settled, run_batch
from distributary.run.context import RunContext
from distributary.run.draining import answered, drained, requests
from distributary.source.base import Source
from distributary.source.offsets import batch_offsets

_POLL_SECONDS = 0.1
_HEARTBEAT_SECONDS = 30.0


@dataclass(slots=True)
class RunSummary:
    """What a run did, counted over its batches."""

    pipeline: str
    counts: Counts = field(default_factory=Counts)
    batches: int = 0
    seconds: float = 0.0
    query_id: str = ""
    stopped: str = ""
    """Why it ended: `done`, `stopped`."""


class StreamRun:
    """Drives a pipeline's query until it is done, is told to stop, or cannot go on."""

    def __init__(self, context: RunContext, source: Source, *, stop: threading.Event) -> None:
        self._context = context
        self._source = source
        self._stop = stop
        self._summary = RunSummary(context.config.name)
        self._failure: DistributaryError | None = None
        self._in_batch: int | None = None
        self._last_event = time.monotonic()

    def run(self, trigger: Trigger) -> RunSummary:
        """Run to the end; a retryable failure starts the query again, with back-off."""
        began = time.monotonic()
        reason = "done"
        try:
            self._with_retries(trigger)
        except StoppedError:
            reason = "stopped"
        if self._stop.is_set():
            reason = "stopped"
        self._summary.seconds = time.monotonic() - began
        self._summary.stopped = reason
        self._context.bus.publish(
            Stopped(
                pipeline=self._context.config.name,
                batches=self._summary.batches,
                counts=self._summary.counts,
                seconds=self._summary.seconds,
                reason=reason,
            )
        )
        return self._summary

    def _with_retries(self, trigger: Trigger) -> None:
        attempts = self._context.config.run.batch_attempts
        continuous = trigger.kind is not TriggerKind.AVAILABLE_NOW
        for attempt in stamina.retry_context(
            on=self._worth_a_retry,
            attempts=None if continuous else attempts,
            timeout=None,
            wait_initial=1.0,
            wait_max=60.0,
        ):
            with attempt:
                try:
                    self._once(trigger)
                except DistributaryError as error:
                    if not isinstance(error, StoppedError):
                        last = not continuous and attempt.num == attempts
                        self._tell(error, None if last else attempt.next_wait)
                    raise

    def _worth_a_retry(self, error: Exception) -> bool:
        return isinstance(error, DistributaryError) and error.retryable and not self._stop.is_set()

    def _tell(self, error: DistributaryError, wait: float | None) -> None:
        again = wait if self._worth_a_retry(error) else None
        name = self._context.config.name
        self._context.bus.publish(Failed(pipeline=name, error=error, retry_in=again))

    def _once(self, trigger: Trigger) -> None:
        self._failure = None
        context = self._context
        stream = self._source.stream(context.spark)
        writer = stream.writeStream.foreachBatch(self._batch).option(
            "checkpointLocation", str(context.checkpoint.spark)
        )
        query = writer.queryName(context.config.name).trigger(**trigger_options(trigger)).start()
        self._summary.query_id = str(query.id)
        try:
            self._watch(query)
        except PySparkException as error:
            raise self._failure or _spark_failed(error) from error
        finally:
            query.stop()

    def _watch(self, query: StreamingQuery) -> None:
        while query.isActive:
            time.sleep(_POLL_SECONDS)
            if self._stop.is_set() and self._in_batch is None:
                return
            self._resume_on_request()
            if time.monotonic() - self._last_event > _HEARTBEAT_SECONDS and self._in_batch is None:
                self._last_event = time.monotonic()
                batch = self._summary.batches - 1 if self._summary.batches else None
                self._context.bus.publish(Idle(pipeline=self._context.config.name, batch=batch))
        error = query.exception()
        if isinstance(error, StreamingQueryException):
            raise error

    def _resume_on_request(self) -> None:
        context = self._context
        for table in requests(context.parking):
            with context.publishing:
                context.claim.check()
                drained(context.publisher, context.ledger, context.parking, table)
                answered(context.parking, table)

    def _batch(self, frame: DataFrame, batch: int) -> None:
        """Called by Spark, in a thread of its own."""
        try:
            if self._stop.is_set():
                raise StoppedError("a stop was asked for before this batch began")
            self._in_batch = batch
            self._count(self._one(frame, batch))
        except DistributaryError as error:
            self._failure = error
            raise
        except Exception as error:
            self._failure = _unexpected(error, batch)
            raise
        finally:
            self._in_batch = None
            self._last_event = time.monotonic()

    def _one(self, frame: DataFrame, batch: int) -> Settled:
        context = self._context
        context.claim.check()
        offsets = batch_offsets(context.checkpoint.spark, batch)
        state = self._state_after(batch - 1)
        return run_batch(
            context, batch, self._source.open_batch(context.spark, frame, offsets, state)
        )

    def _state_after(self, batch: int) -> Mapping[str, Any]:
        """What the source wanted to find again."""
        if batch < 0:
            return {}
        manifest = self._context.manifests.read(batch)
        if manifest is None:
            raise CheckpointError(
                f"the manifest of batch {batch} is missing, so the next offset is unknown",
                where=str(self._context.manifests.folder),
                next_step="restore the whole checkpoint from a copy, or begin anew with `reset`",
            )
        return manifest.source_state

    def _count(self, settled: Settled) -> None:
        clear_failure(self._context.checkpoint.folder)
        self._summary.batches += 1
        self._summary.counts += settled.counts


def trigger_options(trigger: Trigger) -> dict[str, Any]:
    """A trigger in Spark's words."""
    if trigger.kind is TriggerKind.AVAILABLE_NOW:
        return {"availableNow": True}
    interval: timedelta | None = trigger.interval
    seconds = interval.total_seconds() if interval else 0.0
    return {"processingTime": f"{int(seconds * 1000)} milliseconds"}


def _spark_failed(error: PySparkException) -> DistributaryError:
    text = str(error).strip().splitlines()
    return DistributaryError(
        "Spark could not run the query",
        code=ErrorCode.SPARK_FAILED,
        evidence=text[0][:500] if text else type(error).__name__,
        next_step="run again with --debug to see Spark's own words",
    )


def _unexpected(error: Exception, batch: int) -> DistributaryError:
    text = str(error).strip().splitlines()
    return DistributaryError(
        f"batch {batch} failed",
        code=ErrorCode.BATCH_FAILED,
        evidence=f"{type(error).__name__}: {text[0][:500] if text else ''}",
        next_step="nothing of the batch is half done: run again, with --debug for the traceback",
    )
