"""Events out, many listeners: the run tells what happens and knows nobody who listens."""

from __future__ import annotations

import json
import logging
import threading
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from distributary import errors
from distributary.errors import DistributaryError, ErrorCode
from distributary.model.manifest import Counts
from distributary.observe.log_format import moment

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


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogUpdated(Event):
    """What the catalog has of the tables is other than when this was told last."""

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


# Events as lines of JSON, and back: how a process tells another one what happens in it.
#
# `decode` is the exact inverse of `encode`. It passes over fields and events that it does not
# know, so that the two sides need not be of one version. Files that a run leaves are read likewise.

_KIND = "event"
_T = TypeVar("_T")
_Reader = Callable[[Any], Any]
_EVENTS: Mapping[str, type[Event]] = {
    name: each
    for name, each in dict(globals()).items()
    if isinstance(each, type) and issubclass(each, Event) and each is not Event
}
_ERRORS: Mapping[str, type[DistributaryError]] = {
    name: each
    for name, each in vars(errors).items()
    if isinstance(each, type) and issubclass(each, DistributaryError)
}


def encode(event: Event) -> str:
    """One line, without its end."""
    document = {_KIND: type(event).__name__} | _fields(event)
    return json.dumps(document, default=_plain, separators=(",", ":"))


def decode(line: str) -> Event | None:
    """The event of a line; None for what is no event, or one that is not known here."""
    try:
        document = json.loads(line)
        return read_as(_EVENTS[document.pop(_KIND)], document)
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError):
        return None


def _plain(value: Any) -> Any:
    """What JSON has no word for, in its words."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, DistributaryError):
        # a class of another module is told as the nearest one of the tree
        names = (each.__name__ for each in type(value).__mro__)
        known = next(name for name in names if name in _ERRORS)
        return value.as_dict() | {"class": known, "exit_code": value.exit_code}
    return _fields(value)


def _fields(value: Any) -> dict[str, Any]:
    kind: Any = type(value)
    return {name: getattr(value, name) for name in _names(kind)}


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))


def read_error(document: Mapping[str, Any]) -> DistributaryError:
    """An error of a document, as `DistributaryError.as_dict` or an event tells it.

    Raises TypeError for what is none.
    """
    parts = ("what", "where", "evidence", "next_step")
    texts = {part: _checked(str, document.get(part, "")) for part in parts}
    code = str(document.get("code"))
    known = ErrorCode(code) if code in ErrorCode.__members__ else ErrorCode.INTERNAL
    kind = _ERRORS.get(document.get("class", ""), DistributaryError)
    error = kind(texts.pop("what"), code=known, **texts)
    error.context = {str(key): str(value) for key, value in document.get("context", {}).items()}
    error.retryable = bool(document.get("retryable", error.retryable))
    error.exit_code = _checked(int, document.get("exit_code", error.exit_code))
    return error


@cache
def _shape(kind: Any) -> tuple[tuple[str, _Reader, bool], ...]:
    """Each field: its name, how it is read, and whether it may be left out."""
    hints = get_type_hints(kind)
    return tuple(
        (
            each.name,
            _reader(hints[each.name]),
            each.default is not MISSING or each.default_factory is not MISSING,
        )
        for each in fields(kind)
    )


def read_as(kind: Callable[..., _T], document: Any) -> _T:
    """A dataclass from its fields in the words of JSON; what it does not know is passed over.

    Raises KeyError, TypeError or ValueError for what is none.
    """
    _checked(dict, document)
    given = {
        name: read(document[name])
        for name, read, optional in _shape(kind)
        if name in document or not optional
    }
    return kind(**given)


def _reader(hint: Any) -> _Reader:
    """How a value of a type is read; found out once, because there are many of each."""
    origin = get_origin(hint)
    if origin is types.UnionType:
        (kind,) = (each for each in get_args(hint) if each is not type(None))
        inner = _reader(kind)
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        inner = _reader(get_args(hint)[0])
        return lambda value: tuple(inner(each) for each in _checked(list, value))
    if origin is not None:
        inner = _reader(get_args(hint)[1])
        return lambda value: {key: inner(each) for key, each in _checked(dict, value).items()}
    if isinstance(hint, type) and is_dataclass(hint):
        return partial(read_as, hint)
    known: dict[Any, _Reader] = {
        Any: lambda value: value,
        DistributaryError: read_error,
        datetime: moment,
    }
    return known.get(hint) or partial(_number if hint is float else _checked, hint)


def _number(kind: type, value: Any) -> Any:
    return float(value) if type(value) is int else _checked(kind, value)


def _checked(kind: type, value: Any) -> Any:
    # an integer is no truth value here, nor the other way round
    if type(value) is not kind:
        raise TypeError(f"{type(value).__name__} instead of {kind.__name__}")
    return value
