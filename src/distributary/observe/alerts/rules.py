"""What is worth telling: events and the passing of time in, notices out. Touches nothing else.

An alert is open from the notice that raises it to the notice that resolves it, and is not raised
again in between. What is no state, such as a new table, is told once and never open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from distributary.config.alerts import AlertsOn
from distributary.config.pipeline import PipelineConfig
from distributary.errors import ErrorCode
from distributary.observe.alerts.notice import Kind, Notice, State, notices_in
from distributary.observe.alerts.window import DeadLetterWindow
from distributary.observe.alerts.wording import Wording
from distributary.observe.events import (
    BatchSettled,
    BatchStarted,
    Event,
    Failed,
    Idle,
    ProcessStarted,
    SchemaSeen,
    Stopped,
    TableParked,
    TableResumed,
    TaskFailed,
)

HEARD = (
    BatchSettled,
    BatchStarted,
    Failed,
    Idle,
    ProcessStarted,
    SchemaSeen,
    Stopped,
    TableParked,
    TableResumed,
    TaskFailed,
)
"""The events that can change something."""

_STREAM = "stream"
_PUBLISHED = "published"
_DONE = "done"


class Rules:
    """The alerts of one pipeline."""

    def __init__(
        self, config: PipelineConfig, *, now: datetime, mask: Callable[[str], str] = str
    ) -> None:
        self._name = config.name
        self._on: AlertsOn = config.alerts.on
        self._words = Wording(config, mask)
        self._now = now
        self._fresh_at: datetime | None = now
        """When tables were up to date last; None while nobody says that they should be."""
        rate = self._on.dead_letters
        self._window = DeadLetterWindow(rate) if rate is not None else None
        self._seen: list[SchemaSeen] = []
        self._open: dict[str, Notice] = {}
        self.revision = 0
        """Another one whenever an alert was opened or closed."""

    @property
    def open(self) -> Mapping[str, Notice]:
        """What is raised and not resolved yet, by key."""
        return dict(self._open)

    def hear(self, event: Event) -> list[Notice]:
        """What an event of this pipeline means."""
        self._now = max(self._now, event.at)
        return [*self._meaning(event), *self._timely()]

    def tick(self, now: datetime) -> list[Notice]:
        """What it means that nothing was heard until now."""
        self._now = max(self._now, now)
        return [*self._timely()]

    def _meaning(self, event: Event) -> Iterator[Notice]:
        match event:
            case BatchSettled():
                yield from self._settled(event)
            case Failed():
                yield from self._failed(event)
            case TableParked() if self._on.parked:
                yield from self._raise(self._words.parked(event))
            case TableResumed() if not event.parked:
                yield from self._resolve(Kind.PARKED, event.table)
            case SchemaSeen() if self._on.schema_:
                self._seen.append(event)
            case Idle():
                yield from self._caught_up(event.at)
            case BatchStarted() | ProcessStarted():
                self._fresh_at = self._fresh_at or event.at
            case Stopped():
                yield from self._caught_up(event.at) if event.reason == _DONE else ()
                self._fresh_at = None
            case TaskFailed() if self._on.failure:
                yield self._words.task_failed(event)

    def _settled(self, event: BatchSettled) -> Iterator[Notice]:
        if event.counts.balanced:
            yield from self._resolve(Kind.INVARIANT)
        elif self._on.invariant:
            yield from self._raise(self._words.unbalanced(event))
        yield from self._written(event)
        if event.lane != _STREAM:
            return
        yield from self._resolve(Kind.FAILURE)
        if self._window is not None:
            read, letters = event.counts.read, event.dead_letters
            self._window.add(event.at.timestamp(), read=read, codes=letters)
        behind = event.lag_seconds if event.lag_records else None
        self._fresh_at = event.at - timedelta(seconds=behind or 0.0)

    def _written(self, event: BatchSettled) -> Iterator[Notice]:
        done = {each.table for each in event.written if each.outcome == _PUBLISHED}
        for notice in list(self._open.values()):
            table = notice.subject
            waits = table in event.parked_tables
            if notice.kind is Kind.PARKED and (table in done or not waits):
                yield from self._resolve(Kind.PARKED, table)
        seen = [schema for schema in self._seen if schema.batch == event.batch]
        self._seen.clear()
        if seen:
            yield self._words.schemas(seen, event)
        made = [each.table for each in event.written if each.created]
        if made and self._on.table:
            yield self._words.tables(made, event)

    def _failed(self, event: Failed) -> Iterator[Notice]:
        if event.error.code is ErrorCode.ACCOUNTING_BROKEN and self._on.invariant:
            yield from self._raise(self._words.broken(event))
        elif self._on.failure:
            yield from self._raise(self._words.failed(event))

    def _caught_up(self, at: datetime) -> Iterator[Notice]:
        """Everything that the source had is done, so what failed before is over."""
        self._fresh_at = at
        yield from self._resolve(Kind.FAILURE)
        yield from self._resolve(Kind.INVARIANT)

    def _timely(self) -> Iterator[Notice]:
        """What only time decides."""
        yield from self._unwatched()
        yield from self._letters()
        limit = self._on.freshness
        if limit is None or self._fresh_at is None:
            return
        if self._now - self._fresh_at < limit:
            yield from self._resolve(Kind.FRESHNESS)
        elif not self._is_open(Kind.FRESHNESS):
            yield from self._raise(self._words.stale(fresh_at=self._fresh_at, limit=limit))

    def _letters(self) -> Iterator[Notice]:
        window = self._window
        if window is None:
            return
        window.slide(self._now.timestamp())
        if not window.too_many:
            yield from self._resolve(Kind.DEAD_LETTERS)
        elif not self._is_open(Kind.DEAD_LETTERS):
            letters, within = window.codes, window.within
            yield from self._raise(
                self._words.dead_letters(letters, read=window.read, within=within, at=self._now)
            )

    def _unwatched(self) -> Iterator[Notice]:
        """Nobody would ever say that these are over: the settings changed while nothing ran."""
        on = self._on
        off = {
            Kind.FAILURE: not on.failure,
            Kind.PARKED: not on.parked,
            Kind.DEAD_LETTERS: on.dead_letters is None,
            Kind.FRESHNESS: on.freshness is None,
            Kind.INVARIANT: not on.invariant,
        }
        for kind in {notice.kind for notice in self._open.values()}:
            if off.get(kind, True):
                yield from self._resolve(kind)

    def _is_open(self, kind: Kind) -> bool:
        return any(notice.kind is kind for notice in self._open.values())

    def _raise(self, notice: Notice) -> Iterator[Notice]:
        if notice.key not in self._open:
            self._open[notice.key] = notice
            self.revision += 1
            yield notice

    def _resolve(self, kind: Kind, subject: str | None = None) -> Iterator[Notice]:
        for key, notice in list(self._open.items()):
            if notice.kind is kind and subject in (None, notice.subject):
                del self._open[key]
                self.revision += 1
                yield notice.resolved(max(self._now, notice.since))

    def memory(self) -> dict[str, Any]:
        """What must survive the process, for a file."""
        return {
            "open": [notice.as_dict() for notice in self._open.values()],
            "window": self._window.memory() if self._window is not None else [],
        }

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Go on from what another process left; what is no such memory is passed over."""
        for notice in notices_in(memory.get("open")):
            if notice.pipeline != self._name or notice.state is not State.RAISED:
                continue
            self._open[notice.key] = notice
            if notice.kind is Kind.FRESHNESS and self._on.freshness is not None:
                # it stays stale until something is heard, however young this process is
                self._fresh_at = min(self._now, notice.since) - self._on.freshness
        if self._window is not None:
            self._window.recall(memory.get("window"))
