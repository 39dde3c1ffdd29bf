"""Events out, many listeners: the run tells what happens and knows nobody who listens."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from distributary.errors import DistributaryError
from distributary.model.manifest import Counts

_log = logging.getLogger(__name__)


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What all events have in common."""

    pipeline: str
    at: datetime = field(default_factory=_now)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStarted(Event):
    """A batch has begun."""

    batch: int
    lane: str = "stream"
    records: int | None = None
    """How many the source says are in it, where it can tell beforehand."""
    again: bool = False
    """The batch was decided by an earlier process: only publishing is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFinished(Event):
    """One of the steps plan, stage, manifest, publish or settle is done."""

    batch: int
    step: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaSeen(Event):
    """A schema was met for the first time."""

    batch: int
    type: str
    table: str
    schema_id: int
    label: str
    """`chess-value v3`."""
    changes: tuple[str, ...] = ()
    """What it did to the table, one line each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableParked(Event):
    """A table could not be written: its files wait, the others go on."""

    batch: int
    table: str
    records: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableResumed(Event):
    """What waits for a table was tried again: because somebody asked, or with success."""

    table: str
    parked: bool = False
    """It still waits."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Questions of one kind to a registry that ended in one way."""

    endpoint: str
    outcome: str
    """ok, refused, busy or silent."""
    count: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryAsked(Event):
    """Questions that were put to the registry since this was told last."""

    calls: tuple[Asked, ...]


@dataclass(frozen=True, slots=True)
class TableWritten:
    """What a batch did to one table."""

    table: str
    role: str
    rows: int
    bytes: int
    files: int
    outcome: str
    """As in the ledger: published, skipped or parked."""
    version: int | None = None
    """The table's version that it became."""
    created: bool = False
    """The table was not there before."""


@dataclass(frozen=True, slots=True)
class RuleBroken:
    """A rule that rows of a batch have broken."""

    table: str
    rule: str
    action: str
    """warn, dead_letter or fail."""
    checked: int
    violated: int
    """Rows that broke it."""
    example: str = ""
    """The first record of them, as `trace` wants it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettled(Event):
    """A batch is done and in the ledger."""

    batch: int
    counts: Counts
    rows: int
    tables: int
    seconds: float
    lane: str = "stream"
    lag_records: int | None = None
    lag_seconds: float | None = None
    dead_letters: Mapping[str, int] = field(default_factory=dict)
    """By error code."""
    steps: Mapping[str, float] = field(default_factory=dict)
    """Seconds by step."""
    written: tuple[TableWritten, ...] = ()
    """Table by table."""
    lag_by_partition: Mapping[str, int] = field(default_factory=dict)
    """Records beyond this batch by `topic/partition`, where the source knows."""
    life: str = ""
    """Life of the checkpoint: a batch number means something only within one."""
    bytes_read: int | None = None
    """Bytes of the values of its records, as they came."""
    topics: tuple[str, ...] = ()
    """Where its records came from."""
    parked_tables: tuple[str, ...] = ()
    """Tables that wait now, because of this batch or of earlier ones."""
    broken_rules: tuple[RuleBroken, ...] = ()
    """Rules that rows of it broke; those that all rows kept are not here."""

    @property
    def records_per_second(self) -> float:
        """Source records a second, over the whole batch."""
        return self.counts.read / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle(Event):
    """Nothing new at the source."""

    batch: int | None = None
    """The last batch that was settled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(Event):
    """A batch or the whole run failed."""

    error: DistributaryError
    batch: int | None = None
    retry_in: float | None = None
    """Seconds until it is tried again, or None when it is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStarted(Event):
    """A supervisor has started the pipeline's process."""

    pid: int
    restarts: int = 0
    """How often it was started before, under this supervisor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFailed(Event):
    """A piece of upkeep beside the pipeline failed; the pipeline itself goes on."""

    task: str
    error: DistributaryError


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped(Event):
    """The run has ended, nothing is under way."""

    batches: int = 0
    counts: Counts = field(default_factory=Counts)
    seconds: float = 0.0
    reason: str = ""


Listener = Callable[[Event], None]


class EventBus:
    """Hands each event to every listener, in the order in which they subscribed.

    Listeners run in the thread that publishes: they should be quick. One that raises is logged
    and passed over; it never breaks the run, and the others still get the event.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: tuple[Listener, ...] = ()

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Adds a listener; the answer takes it away again."""
        with self._lock:
            self._listeners = (*self._listeners, listener)

        def unsubscribe() -> None:
            with self._lock:
                self._listeners = tuple(x for x in self._listeners if x is not listener)

        return unsubscribe

    def publish(self, event: Event) -> None:
        """Tells all listeners."""
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:
                name = getattr(listener, "__qualname__", type(listener).__qualname__)
                _log.warning("listener %s failed on %s", name, type(event).__name__, exc_info=True)
