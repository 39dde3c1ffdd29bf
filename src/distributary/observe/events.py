"""The events of a run, and the bus that passes them to listeners."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import cache
from typing import Any

from distributary.errors import DistributaryError
from distributary.model.change import Heartbeat, SourceSlots
from distributary.model.manifest import Counts
from distributary.observe.documents import ERRORS, read_as
from distributary.observe.notebook import html_table
from distributary.observe.status.pulse import HeldRecords, Pace

_log = logging.getLogger(__name__)

_SHOWN = 100
"""Tables of a batch that a notebook shows."""


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The base of all events."""

    pipeline: str
    at: datetime = field(default_factory=_now)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStarted(Event):
    """A batch has begun."""

    batch: int
    lane: str = "stream"
    records: int | None = None
    """The number of records according to the source, if known beforehand."""


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
    """The changes of the table, one line each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableParked(Event):
    """A table could not be written, and its batch was parked; other tables are not affected."""

    batch: int
    table: str
    records: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableResumed(Event):
    """The parked batches of a table were retried: on request, or with success."""

    table: str
    parked: bool = False
    """Whether the batches are still parked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogUpdated(Event):
    """The state of the tables in the catalog has changed."""

    catalog: str
    """`main.games`."""
    registered: int
    """The number of tables with correct entries."""
    waiting: int = 0
    """The number of other tables, which are retried."""
    code: str = ""
    error: str = ""
    """The error of the table that waits longest."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The requests of one kind to a registry with one outcome."""

    endpoint: str
    outcome: str
    """ok, refused, busy or silent."""
    count: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryAsked(Event):
    """Requests to the registry since the last such event."""

    calls: tuple[Asked, ...]


@dataclass(frozen=True, slots=True)
class TableWritten:
    """The result of a batch for one table."""

    table: str
    role: str
    rows: int
    bytes: int
    files: int
    outcome: str
    """As in the ledger: published, skipped or parked."""
    version: int | None = None
    """The version of the table after the commit."""
    created: bool = False
    """Whether the batch created the table."""


@dataclass(frozen=True, slots=True)
class RuleBroken:
    """A rule that rows of a batch have broken."""

    table: str
    rule: str
    action: str
    """warn, dead_letter or fail."""
    checked: int
    violated: int
    """The number of rows that broke the rule."""
    example: str = ""
    """The first of these records, in the form of `trace`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettled(Event):
    """A batch was settled."""

    batch: int
    counts: Counts
    rows: int
    tables: int
    seconds: float
    lane: str = "stream"
    lag_records: int | None = None
    lag_seconds: float | None = None
    """Seconds since the newest record of the batch was produced."""
    event_seconds: float | None = None
    """The age of that record by its own time, if that is clearly wrong."""
    dead_letters: Mapping[str, int] = field(default_factory=dict)
    """The number of dead letters by error code."""
    steps: Mapping[str, float] = field(default_factory=dict)
    """Seconds by step."""
    written: tuple[TableWritten, ...] = ()
    """The results for each table."""
    lag_by_partition: Mapping[str, int] = field(default_factory=dict)
    """Unread records by `topic/partition`, if the source has partitions."""
    life: str = ""
    """The life of the checkpoint, in which batches are numbered."""
    bytes_read: int | None = None
    """The bytes of the records' values."""
    requests: int = 0
    """The driver's requests to buckets."""
    topics: tuple[str, ...] = ()
    """The topics of the records."""
    parked_tables: tuple[str, ...] = ()
    """All parked tables, of this and of earlier batches."""
    broken_rules: tuple[RuleBroken, ...] = ()
    """The rules that rows broke."""
    heartbeats: Mapping[str, datetime] = field(default_factory=dict)
    """The time of the newest heartbeat of each Debezium connector, by topic."""
    held: HeldRecords | None = None
    """The records that the batch has held back, so that transactions stay whole."""

    @property
    def records_per_second(self) -> float:
        """Return the source records per second over the whole batch."""
        return self.counts.read / self.seconds if self.seconds > 0 else 0.0

    def _repr_html_(self) -> str:
        """Return the account of the batch and its tables for a notebook."""
        rows = [
            (
                each.table,
                f"{each.rows:,}",
                each.outcome,
                "" if each.version is None else str(each.version),
            )
            for each in self.written[:_SHOWN]
        ]
        rest = len(self.written) - len(rows)
        title = f"batch {self.batch} of {self.pipeline}, {self.seconds:.1f} s"
        return html_table(
            f"{title}: {self.counts.equation()}",
            ("table", "rows", "outcome", "version"),
            rows,
            f"{rest:,} more tables" if rest else "",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsHeld(Event):
    """A batch ended without a result: all of its records wait for the ends of transactions."""

    batch: int
    """The number of the batch; the next attempt has it again."""
    held: HeldRecords


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle(Event):
    """The source has no new records."""

    batch: int | None = None
    """The last settled batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paced(Event):
    """A run with a freshness has chosen when its next batch begins."""

    pace: Pace


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused(Event):
    """The run reads nothing, because a person has paused the pipeline."""

    batch: int | None = None
    """The last settled batch."""
    since: datetime | None = None
    """The beginning of the pause; None if its file cannot be read."""
    note: str = ""
    """The reason, in the words of the person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(Event):
    """A batch or the whole run failed."""

    error: DistributaryError
    batch: int | None = None
    retry_in: float | None = None
    """Seconds until the next attempt; None if there is none."""
    under_way: bool = False
    """Whether a batch is still under way: the failure was noticed beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered(Event):
    """A retry has succeeded."""

    seconds: float = 0.0
    """Seconds since the first failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat(Event):
    """The run is alive; sent every few seconds, also during a batch."""

    lag_records: int | None = None
    """The number of records that no table has yet; None if the source cannot count them."""
    lag_by_partition: Mapping[str, int] = field(default_factory=dict)
    """The lag by `topic/partition`."""
    lag_at: datetime | None = None
    """The time of the question to the source."""
    heartbeats: Mapping[str, Heartbeat] = field(default_factory=dict)
    """The newest heartbeat of each Debezium connector, by topic."""
    slots: SourceSlots | None = None
    """The replication slots of the source; None without `cdc.source_url`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStarted(Event):
    """A supervisor has started the pipeline's process."""

    pid: int
    restarts: int = 0
    """The number of earlier starts by this supervisor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFailed(Event):
    """Maintenance beside the pipeline failed; the pipeline continues."""

    task: str
    error: DistributaryError


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped(Event):
    """The run has ended."""

    batches: int = 0
    counts: Counts = field(default_factory=Counts)
    seconds: float = 0.0
    reason: str = ""


Listener = Callable[[Event], None]


class EventBus:
    """Passes each event to all listeners, in the order of their subscriptions.

    Listeners run in the publishing thread, so they must be quick. An exception of a listener is
    logged; neither the run nor the other listeners are affected.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: tuple[Listener, ...] = ()

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Add a listener; the returned function removes it."""
        with self._lock:
            self._listeners = (*self._listeners, listener)

        def unsubscribe() -> None:
            with self._lock:
                self._listeners = tuple(x for x in self._listeners if x is not listener)

        return unsubscribe

    def publish(self, event: Event) -> None:
        """Pass an event to all listeners."""
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:
                name = getattr(listener, "__qualname__", type(listener).__qualname__)
                _log.warning("listener %s failed on %s", name, type(event).__name__, exc_info=True)


# Events as lines of JSON, and back: one process sends its events to another. `decode` is the exact
# inverse of `encode`. It skips unknown fields and events, so that both sides may have different
# versions.

_KIND = "event"
_EVENTS: Mapping[str, type[Event]] = {
    name: each
    for name, each in dict(globals()).items()
    if isinstance(each, type) and issubclass(each, Event) and each is not Event
}


def encode(event: Event) -> str:
    """Return the event as one line, without its end."""
    document = {_KIND: type(event).__name__} | _fields(event)
    return json.dumps(document, default=_plain, separators=(",", ":"))


def decode(line: str) -> Event | None:
    """Return the event of a line; None if it is no event, or an unknown one."""
    try:
        document = json.loads(line)
        return read_as(_EVENTS[document.pop(_KIND)], document)
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError):
        return None


def _plain(value: Any) -> Any:
    """Return values without a JSON type in a JSON form."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, DistributaryError):
        # a class of another module is sent as its nearest base class in the tree
        names = (each.__name__ for each in type(value).__mro__)
        known = next(name for name in names if name in ERRORS)
        return value.as_dict() | {"class": known, "exit_code": value.exit_code}
    return _fields(value)


def _fields(value: Any) -> dict[str, Any]:
    kind: Any = type(value)
    return {name: getattr(value, name) for name in _names(kind)}


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))
