"""What is known of each pipeline, as facts that any thread may read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from distributary.errors import DistributaryError
from distributary.model.manifest import Counts
from distributary.observe.events import BatchSettled, BatchStarted, Event, Failed, Idle


class State(StrEnum):
    """Where a pipeline is."""

    WAITING = "waiting"
    """Not started yet."""
    STARTING = "starting"
    """Its process runs, and was not heard of yet."""
    RUNNING = "running"
    FAILING = "failing"
    """A batch failed, and its process tries it again."""
    BACKOFF = "backoff"
    """Its process failed, and will be started again."""
    STOPPING = "stopping"
    STOPPED = "stopped"
    DONE = "done"
    FAILED = "failed"
    """For good."""


ENDED = frozenset({State.STOPPED, State.DONE, State.FAILED})


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatus:
    """One pipeline, at one moment."""

    name: str
    file: str
    state: State = State.WAITING
    pid: int | None = None
    restarts: int = 0
    batch: int | None = None
    """The batch under way."""
    settled: BatchSettled | None = None
    """The last batch that was settled under this supervisor."""
    counts: Counts = field(default_factory=Counts)
    """Of all batches under this supervisor."""
    batches: int = 0
    error: DistributaryError | None = None
    """What failed last, until something goes well again."""
    retry_at: datetime | None = None
    """When it is tried again."""

    @property
    def is_ready(self) -> bool:
        """Whether it does what it should: it is done, or goes on after its last failure."""
        if self.state is State.DONE:
            return True
        return self.state is State.RUNNING and self.error is None

    @property
    def why(self) -> str:
        """Why it is not ready; nothing in it is a secret."""
        return str(self.state) if self.error is None else f"{self.state}: {self.error.code}"

    def hearing(self, event: Event) -> PipelineStatus:
        """The same after an event of its process."""
        match event:
            case BatchStarted():
                return self._well(batch=event.batch)
            case BatchSettled():
                counts, batches = self.counts + event.counts, self.batches + 1
                return self._well(batch=None, settled=event, counts=counts, batches=batches)
            case Idle():
                return self._well(batch=None)
            case Failed() if event.retry_in is not None:
                at = _later(event.at, event.retry_in)
                state = State.STOPPING if self.state is State.STOPPING else State.FAILING
                return replace(self, state=state, error=event.error, batch=None, retry_at=at)
            case Failed():
                return replace(self, error=event.error, batch=None)
        return self

    def _well(self, **changes: Any) -> PipelineStatus:
        state = State.STOPPING if self.state is State.STOPPING else State.RUNNING
        # a batch that has begun may be the one that failed: only its end shows that all is well
        error = self.error if changes["batch"] is not None else None
        return replace(self, state=state, error=error, retry_at=None, **changes)

    def as_dict(self) -> dict[str, Any]:
        """For `/status` and `--json`."""
        settled = self.settled
        return {
            "pipeline": self.name,
            "file": self.file,
            "state": str(self.state),
            "ready": self.is_ready,
            "pid": self.pid,
            "restarts": self.restarts,
            "next_retry_at": self.retry_at,
            "batch": self.batch,
            "last_batch": None if settled is None else _batch(settled),
            "batches": self.batches,
            "read": self.counts.read,
            "written": self.counts.written,
            "dead_lettered": self.counts.dead_lettered,
            "parked": self.counts.parked,
            "skipped": self.counts.skipped,
            "last_error": None if self.error is None else self.error.as_dict(),
        }


def readiness(pipelines: Iterable[PipelineStatus]) -> dict[str, Any]:
    """Whether all are ready; which are not, and why."""
    waiting = {each.name: each.why for each in pipelines if not each.is_ready}
    return {"ready": not waiting, "not_ready": waiting}


def _later(at: datetime, seconds: float) -> datetime:
    return datetime.fromtimestamp(at.timestamp() + seconds, UTC)


def _batch(event: BatchSettled) -> dict[str, Any]:
    return {
        "batch": event.batch,
        "at": event.at,
        "read": event.counts.read,
        "rows": event.rows,
        "tables": event.tables,
        "seconds": event.seconds,
        "records_per_second": event.records_per_second,
        "lag_records": event.lag_records,
        "lag_seconds": event.lag_seconds,
    }
