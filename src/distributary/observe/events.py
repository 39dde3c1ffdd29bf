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

_log = logging.getLogger(__name__)

_SHOWN = 100
"""Tables of a batch that a notebook shows."""


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
    """The parked batches of a table were retried: on request, or with success."""

    table: str
    parked: bool = False
    """It still waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogUpdated(Event):
    """The state of the tables in the catalog has changed."""

    catalog: str
    """`main.games`."""
    registered: int
    """Tables that it has as they should be."""
    waiting: int = 0
    """Tables that it does not have so; they are tried again."""
    code: str = ""
    error: str = ""
    """Why, of the one that waits longest."""


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
    """Requests to the registry since the last such event."""

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
    """From when the newest record of the batch was produced to now."""
    event_seconds: float | None = None
    """How old that record says it is, where that is far from the truth."""
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
    requests: int = 0
    """What the driver asked of buckets."""
    topics: tuple[str, ...] = ()
    """Where its records came from."""
    parked_tables: tuple[str, ...] = ()
    """Tables that wait now, because of this batch or of earlier ones."""
    broken_rules: tuple[RuleBroken, ...] = ()
    """Rules that rows of it broke; those that all rows kept are not here."""
    heartbeats: Mapping[str, datetime] = field(default_factory=dict)
    """When the newest heartbeat in it of each Debezium connector was sent, by topic."""

    @property
    def records_per_second(self) -> float:
        """Source records a second, over the whole batch."""
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
    under_way: bool = False
    """A batch goes on meanwhile: that the source is away was noticed beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered(Event):
    """What had failed, and was tried again, works."""

    seconds: float = 0.0
    """Since it failed first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat(Event):
    """The run is there: sent every few seconds, also in the middle of a batch."""

    lag_records: int | None = None
    """Records that no table has yet; None where the source cannot be asked for it."""
    lag_by_partition: Mapping[str, int] = field(default_factory=dict)
    """The same by `topic/partition`."""
    lag_at: datetime | None = None
    """When the source was asked."""
    heartbeats: Mapping[str, Heartbeat] = field(default_factory=dict)
    """The newest heartbeat of each Debezium connector, by topic; empty where none was ever read."""
    slots: SourceSlots | None = None
    """The replication slots of the source; None without `cdc.source_url`."""


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
        # a class of another module is told as the nearest one of the tree
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
