"""The rules of alerts: events and the time in, notices out, without side effects.

An alert is open from the notice that raises it to the notice that resolves it, and is not raised
again in between. An event without an end, such as a new table, is sent once and never open.
"""

from __future__ import annotations

import shlex
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from distributary.config.alerts import AlertsOn, DeadLetterRate
from distributary.config.base import format_duration, format_size
from distributary.config.pipeline_config import PipelineConfig
from distributary.errors import ErrorCode
from distributary.model.change import Heartbeat, Slot, SourceSlots, connector_name
from distributary.observe.alerts.notice import (
    NEXT_TRY,
    AlertKind,
    AlertState,
    Notice,
    Severity,
    notices_in,
    page,
)
from distributary.observe.events import (
    BatchSettled,
    BatchStarted,
    Beat,
    Event,
    Failed,
    Idle,
    ProcessStarted,
    RecordsHeld,
    Recovered,
    SchemaSeen,
    Stopped,
    TableParked,
    TableResumed,
    TaskFailed,
)
from distributary.observe.log_format import listed
from distributary.observe.status.pulse import HeldRecords

# How many of the records of the last minutes became dead letters.

_SLOTS = 60
_MOST_CODES = 1000


@dataclass(slots=True)
class _Slot:
    """The batches that were settled in one part of the window."""

    at: float
    """The time of the first of these batches, in seconds since 1970."""
    read: int
    codes: Counter[str]


class DeadLetterWindow:
    """Sums over a sliding time window; its size does not depend on the number of batches."""

    def __init__(self, rate: DeadLetterRate) -> None:
        self.rate = rate
        self._slots: deque[_Slot] = deque()

    def add(self, at: float, *, read: int, codes: Mapping[str, int]) -> None:
        """Add the counts of a settled batch."""
        width = self.rate.within.total_seconds() / _SLOTS
        if not self._slots or at - self._slots[-1].at > width:
            self._slots.append(_Slot(at, 0, Counter()))
        self._slots[-1].read += read
        self._slots[-1].codes.update(codes)
        self.slide(at)

    def slide(self, now: float) -> None:
        """Drop everything older than the window."""
        oldest = now - self.rate.within.total_seconds()
        while self._slots and self._slots[0].at <= oldest:
            self._slots.popleft()

    @property
    def read(self) -> int:
        """Return the number of records read."""
        return sum(slot.read for slot in self._slots)

    @property
    def codes(self) -> Counter[str]:
        """Return the dead letters by error code."""
        return sum((slot.codes for slot in self._slots), Counter())

    @property
    def too_many(self) -> bool:
        """Return whether a limit is exceeded."""
        letters, count, share = self.codes.total(), self.rate.count, self.rate.share
        return (count is not None and letters > count) or (
            share is not None and letters > share * self.read
        )

    def memory(self) -> list[Any]:
        """Return the window as plain data for a file."""
        return [[slot.at, slot.read, dict(slot.codes)] for slot in self._slots]

    def recall(self, memory: object) -> None:
        """Read the state that `memory` returned; skip anything else."""
        for entry in memory if isinstance(memory, list) else []:
            match entry:
                case [int() | float() as at, int() as read, dict() as codes] if _are_counts(codes):
                    self._slots.append(_Slot(float(at), read, Counter(codes)))


def _are_counts(codes: dict[Any, Any]) -> bool:
    return len(codes) <= _MOST_CODES and all(isinstance(n, int) for n in codes.values())


# The texts of notices: what happened, where, the evidence, and the next command.

_listed = partial(listed, most=10)


class Wording:
    """Builds the notices of one pipeline."""

    def __init__(self, config: PipelineConfig, mask: Callable[[str], str]) -> None:
        self._mask = mask
        self._name = config.name
        self._lake = config.lake.address
        self._page = partial(page, config.alerts.dashboard_url)

    def failed(self, event: Failed) -> Notice:
        """Build the notice that a batch or the run failed."""
        what, again = event.error.what, event.retry_in
        if again is None:
            what = f"failed: {what}"
            return self._of_error(
                AlertKind.FAILURE, Severity.CRITICAL, what, event, subject="failed"
            )
        what, subject = f"retrying: {what}{NEXT_TRY}{again:.0f} s", str(event.error.code)
        return self._of_error(AlertKind.FAILURE, Severity.WARNING, what, event, subject=subject)

    def broken(self, event: Failed) -> Notice:
        """Build the notice that a batch was refused because it does not add up."""
        return self._of_error(AlertKind.INVARIANT, Severity.CRITICAL, event.error.what, event)

    def unbalanced(self, event: BatchSettled) -> Notice:
        """Build the notice that a settled batch does not add up."""
        return self._notice(
            AlertKind.INVARIANT,
            Severity.CRITICAL,
            f"batch {event.batch} does not add up",
            at=event.at,
            evidence=event.counts.equation(),
            code=str(ErrorCode.ACCOUNTING_BROKEN),
            batch=event.batch,
            link=self._page("batches", self._name, str(event.batch)),
        )

    def parked(self, event: TableParked) -> Notice:
        """Build the notice that a table is parked."""
        return self._notice(
            AlertKind.PARKED,
            Severity.ERROR,
            f"table {event.table} cannot be written and is parked",
            at=event.at,
            subject=event.table,
            where=f"table {event.table}, batch {event.batch}",
            evidence=f"{event.records:,} records wait; {event.error}",
            next_step=self._command("resume", event.table),
            code=event.error.partition(":")[0] if ":" in event.error else "",
            batch=event.batch,
            link=self._page("tables", event.table),
        )

    def dead_letters(self, window: DeadLetterWindow, *, at: datetime) -> Notice:
        """Build the notice about too many dead letters."""
        codes, read, within = window.codes, window.read, window.rate.within
        letters, most = codes.total(), codes.most_common(1)[0][0] if codes else ""
        share = f", {letters / read:.1%} of {read:,} records" if read else ""
        place = ("errors", most) if most else ("pipelines", self._name)
        return self._notice(
            AlertKind.DEAD_LETTERS,
            Severity.WARNING,
            f"{letters:,} dead letters within {format_duration(within)}{share}",
            at=at,
            evidence=_listed(f"{code} {n:,}" for code, n in codes.most_common()),
            next_step=self._command("dlq list", options=("--pipeline", self._name)),
            code=most,
            link=self._page(*place),
        )

    def stale(self, *, fresh_at: datetime, limit: timedelta) -> Notice:
        """Build the notice that tables were not updated for too long."""
        return self._notice(
            AlertKind.FRESHNESS,
            Severity.ERROR,
            f"tables are older than {format_duration(limit)}",
            at=fresh_at + limit,
            evidence=f"up to date last at {fresh_at:%Y-%m-%dT%H:%M:%SZ}",
        )

    def silent(self, topic: str, beat: Heartbeat, *, at: datetime, limit: timedelta) -> Notice:
        """Build the notice that a connector has stopped to send heartbeats."""
        return self._notice(
            AlertKind.SILENT_SOURCE,
            Severity.ERROR,
            f"source {connector_name(topic)} is silent: no heartbeat for {format_duration(limit)}",
            at=at,
            subject=topic,
            where=f"pipeline {self._name}, topic {topic}",
            evidence=f"its last heartbeat was sent at {beat.at:%Y-%m-%dT%H:%M:%SZ}; "
            f"at {beat.looked_at:%Y-%m-%dT%H:%M:%SZ} the topic held no newer one",
        )

    def held_log(self, slot: Slot, *, looked_at: datetime, at: datetime, limit: int) -> Notice:
        """Build the notice that a replication slot holds back too much log, or has lost some."""
        size = format_size(limit)
        what = f"replication slot {slot.name} holds back more than {size} of the source's log"
        if slot.lost:
            what = f"replication slot {slot.name} has lost log: changes of the source are missing"
        reader = "has a reader" if slot.active else "has no reader"
        return self._notice(
            AlertKind.HELD_LOG,
            Severity.CRITICAL if slot.lost else Severity.ERROR,
            what,
            at=at,
            subject=f"{slot.name} (lost)" if slot.lost else slot.name,
            where=f"pipeline {self._name}, slot {slot.name} of database {slot.database}",
            evidence=f"{slot.bytes:,} bytes at {looked_at:%Y-%m-%dT%H:%M:%SZ}; it {reader}",
        )

    def held_transactions(
        self, held: HeldRecords, *, at: datetime, since: datetime, limit: timedelta
    ) -> Notice:
        """Build the notice that records wait for the end of a transaction for too long."""
        return self._notice(
            AlertKind.HELD_TRANSACTIONS,
            Severity.WARNING,
            f"records wait for the end of a transaction for {format_duration(limit)}",
            at=at,
            since=since,
            evidence=f"{held.records:,} records of {held.transactions:,} transactions, such as "
            f"{held.example}; the oldest is of {held.since:%Y-%m-%dT%H:%M:%SZ}",
            next_step="find out whether the connector runs and sends the ends of transactions; "
            "cdc.transactions.wait limits how long an end is waited for",
        )

    def schemas(self, seen: Sequence[SchemaSeen], settled: BatchSettled) -> Notice:
        """Build the notices about new schema versions in a batch."""
        first, alone = seen[0], len(seen) == 1
        lines = (f"{s.label}: {', '.join(s.changes) or 'no change of columns'}" for s in seen)
        return self._of_batch(
            AlertKind.SCHEMA,
            f"new schema {first.label}" if alone else f"{len(seen):,} new schemas",
            settled,
            where=f"{self._place(settled.batch)}, {_listed(sorted({s.table for s in seen}))}",
            evidence="; ".join(lines),
            next_step=self._command("schema history", *([first.type] if alone else [])),
            table=first.table if alone else "",
        )

    def tables(self, names: Sequence[str], settled: BatchSettled) -> Notice:
        """Build the notices about tables that a batch created."""
        alone = len(names) == 1
        return self._of_batch(
            AlertKind.TABLE,
            f"new table {names[0]}" if alone else f"{len(names):,} new tables",
            settled,
            evidence=_listed(names, most=50),
            next_step=self._command("tables"),
            table=names[0] if alone else "",
        )

    def task_failed(self, event: TaskFailed) -> Notice:
        """Build the notice that maintenance failed while the pipeline continues."""
        what, subject = f"{event.task} failed: {event.error.what}", f"task-{event.task}"
        return self._of_error(
            AlertKind.FAILURE, Severity.WARNING, what, event, once=True, subject=subject
        )

    def held_back(self, notices: Sequence[Notice], uncounted: int, at: datetime) -> Notice:
        """Build one message for several that exceeded the limit."""
        more = f"; {uncounted:,} more were over before they could be sent" if uncounted else ""
        worst = min((notice.severity for notice in notices), key=list(Severity).index)
        return self._notice(
            AlertKind.HELD_BACK,
            worst,
            f"{len(notices):,} messages were held back",
            at=at,
            since=notices[0].since,
            once=True,
            evidence=_listed(notice.what for notice in notices) + more,
        )

    def _notice(
        self, kind: AlertKind, severity: Severity, what: str, *, at: datetime, **parts: Any
    ) -> Notice:
        # single events, which have no end
        happened = severity is Severity.INFO or parts.pop("once", False)
        state = AlertState.INFO if happened else AlertState.RAISED
        known: dict[str, Any] = {
            "pipeline": self._name,
            "state": state,
            "at": at,
            "since": at,
            "where": self._place(parts.get("batch")),
            "next_step": self._command("status"),
            "link": self._page("pipelines", self._name),
        }
        notice = Notice(kind=kind, severity=severity, what=what, **(known | parts))
        return notice.cleaned(self._mask)

    def _of_error(
        self,
        kind: AlertKind,
        severity: Severity,
        what: str,
        event: Failed | TaskFailed,
        **parts: Any,
    ) -> Notice:
        """Build a notice from an error."""
        error, batch = event.error, event.batch if isinstance(event, Failed) else None
        return self._notice(
            kind,
            severity,
            what,
            at=event.at,
            where=error.where or self._place(batch),
            evidence=error.evidence,
            next_step=error.next_step or self._command("status"),
            code=str(error.code),
            batch=batch,
            link=self._page("errors", error.code),
            **parts,
        )

    def _of_batch(
        self, kind: AlertKind, what: str, settled: BatchSettled, *, table: str, **parts: str
    ) -> Notice:
        """Return the notice about the changes of a batch, for one `table` or several."""
        batch = settled.batch
        place = ("tables", table) if table else ("batches", self._name, str(batch))
        parts |= {"subject": f"{settled.lane}-{batch}", "link": self._page(*place)}
        return self._notice(kind, Severity.INFO, what, at=settled.at, batch=batch, **parts)

    def _place(self, batch: int | None) -> str:
        return f"pipeline {self._name}" + (f", batch {batch}" if batch is not None else "")

    def _command(self, verb: str, *names: str, options: Sequence[str] = ()) -> str:
        return f"distributary {verb} " + shlex.join([*names, *options, "--lake", self._lake])


HEARD = (
    *(BatchSettled, BatchStarted, Beat, Failed, Idle, ProcessStarted),
    *(RecordsHeld, Recovered, SchemaSeen, Stopped, TableParked, TableResumed, TaskFailed),
)
"""The events that the rules use."""


class Rules:
    """The open alerts of one pipeline, and the rules that change them."""

    def __init__(
        self, config: PipelineConfig, *, now: datetime, mask: Callable[[str], str] = str
    ) -> None:
        self._name = config.name
        self._on: AlertsOn = config.alerts.on
        self._words = Wording(config, mask)
        self._now = now
        self._fresh_at: datetime | None = now
        """The last time at which tables were up to date; None if unknown."""
        rate = self._on.dead_letters
        self._window = DeadLetterWindow(rate) if rate is not None else None
        self._seen: list[SchemaSeen] = []
        self._held: tuple[HeldRecords, datetime] | None = None
        """The records that are held back, and since when the oldest of them is."""
        self._open: dict[str, Notice] = {}
        self.revision = 0
        """A number that changes whenever an alert is opened or closed."""

    def hear(self, event: Event) -> list[Notice]:
        """Return the notices that follow from an event of this pipeline."""
        self._now = max(self._now, event.at)
        return [*self._meaning(event), *self._timely()]

    def tick(self, now: datetime) -> list[Notice]:
        """Return the notices that follow from the time alone."""
        self._now = max(self._now, now)
        return [*self._timely()]

    def _meaning(self, event: Event) -> Iterator[Notice]:
        match event:
            case BatchSettled():
                yield from self._settled(event)
            case Failed(error=error) if (
                error.code is ErrorCode.ACCOUNTING_BROKEN and self._on.invariant
            ):
                yield from self._raise(self._words.broken(event))
            case Failed() if self._on.failure:
                yield from self._raise(self._words.failed(event))
            case TableParked() if self._on.parked:
                yield from self._raise(self._words.parked(event))
            case RecordsHeld():
                yield from self._holds(event.held, event.at)
            case TableResumed() if not event.parked:
                yield from self._resolve(AlertKind.PARKED, event.table)
            case SchemaSeen() if self._on.schema_:
                self._seen.append(event)
            case Recovered():
                yield from self._resolve(AlertKind.FAILURE)
            case Idle():
                yield from self._caught_up(event.at)
            case BatchStarted() | ProcessStarted():
                self._fresh_at = self._fresh_at or event.at
            case Stopped():
                yield from self._caught_up(event.at) if event.reason == "done" else ()
                self._fresh_at = None
            case TaskFailed() if self._on.failure:
                yield self._words.task_failed(event)
            case Beat():
                if self._on.silent_source is not None:
                    yield from self._listened(event, self._on.silent_source)
                if self._on.held_log is not None:
                    yield from self._measured(event, self._on.held_log)

    def _listened(self, event: Beat, limit: timedelta) -> Iterator[Notice]:
        """Raise an alert for each connector that is silent, and resolve those of the others."""
        silent: set[str] = set()
        for topic, beat in event.heartbeats.items():
            if (beat.silent_seconds or 0.0) >= limit.total_seconds():
                notice = self._words.silent(topic, beat, at=event.at, limit=limit)
                silent.add(notice.key)
                yield from self._raise(notice)
        for key, notice in list(self._open.items()):
            if notice.kind is AlertKind.SILENT_SOURCE and key not in silent:
                yield from self._resolve(AlertKind.SILENT_SOURCE, notice.subject)

    def _measured(self, event: Beat, limit: int) -> Iterator[Notice]:
        """Raise an alert for each slot that holds back too much; resolve those of the others."""
        source, held = event.slots or SourceSlots(), set[str]()
        for slot in source.slots:
            if (slot.lost or slot.bytes > limit) and source.at is not None:
                notice = self._words.held_log(slot, looked_at=source.at, at=event.at, limit=limit)
                held.add(notice.key)
                yield from self._raise(notice)
        # before its first question, a run must not resolve alerts of an earlier run
        asked = event.slots is None or source.at is not None
        for key, notice in list(self._open.items()):
            if asked and notice.kind is AlertKind.HELD_LOG and key not in held:
                yield from self._resolve(AlertKind.HELD_LOG, notice.subject)

    def _settled(self, event: BatchSettled) -> Iterator[Notice]:
        if event.counts.balanced:
            yield from self._resolve(AlertKind.INVARIANT)
        elif self._on.invariant:
            yield from self._raise(self._words.unbalanced(event))
        yield from self._written(event)
        if event.lane != "stream":
            return
        yield from self._resolve(AlertKind.FAILURE)
        yield from self._holds(event.held, event.at)
        if self._window is not None:
            read, letters = event.counts.read, event.dead_letters
            self._window.add(event.at.timestamp(), read=read, codes=letters)
        behind = event.lag_seconds if event.lag_records else None
        self._fresh_at = event.at - timedelta(seconds=behind or 0.0)

    def _holds(self, held: HeldRecords | None, at: datetime) -> Iterator[Notice]:
        before, self._held = self._held, None if held is None else (held, at)
        if held is not None and before is not None and before[0].since == held.since:
            self._held = (held, before[1])
        elif held is None or before is not None:
            # the oldest record is another one: the one before has its transaction
            yield from self._resolve(AlertKind.HELD_TRANSACTIONS)

    def _written(self, event: BatchSettled) -> Iterator[Notice]:
        done = {each.table for each in event.written if each.outcome == "published"}
        waits = {*event.parked_tables} - done
        for notice in list(self._open.values()):
            if notice.kind is AlertKind.PARKED and notice.subject not in waits:
                yield from self._resolve(AlertKind.PARKED, notice.subject)
        seen = [schema for schema in self._seen if schema.batch == event.batch]
        self._seen.clear()
        if seen:
            yield self._words.schemas(seen, event)
        made = [each.table for each in event.written if each.created]
        if made and self._on.table:
            yield self._words.tables(made, event)

    def _caught_up(self, at: datetime) -> Iterator[Notice]:
        """Resolve failures, because all available records were processed."""
        self._fresh_at = at
        yield from self._resolve(AlertKind.FAILURE)
        yield from self._resolve(AlertKind.INVARIANT)

    def _timely(self) -> Iterator[Notice]:
        """Yield the notices that depend on the time only."""
        yield from self._unwatched()
        yield from self._letters()
        longest, held = self._on.held_transactions, self._held
        if longest is not None and held is not None and self._now - held[1] >= longest:
            yield from self._raise(
                self._words.held_transactions(held[0], at=self._now, since=held[1], limit=longest)
            )
        limit = self._on.freshness
        if limit is None or self._fresh_at is None:
            return
        if self._now - self._fresh_at < limit:
            yield from self._resolve(AlertKind.FRESHNESS)
        elif not self._is_open(AlertKind.FRESHNESS):
            yield from self._raise(self._words.stale(fresh_at=self._fresh_at, limit=limit))

    def _letters(self) -> Iterator[Notice]:
        window = self._window
        if window is None:
            return
        window.slide(self._now.timestamp())
        if not window.too_many:
            yield from self._resolve(AlertKind.DEAD_LETTERS)
        elif not self._is_open(AlertKind.DEAD_LETTERS):
            yield from self._raise(self._words.dead_letters(window, at=self._now))

    def _unwatched(self) -> Iterator[Notice]:
        """Resolve alerts that the settings no longer watch: no event would resolve them."""
        on = self._on
        off = {
            AlertKind.FAILURE: not on.failure,
            AlertKind.PARKED: not on.parked,
            AlertKind.DEAD_LETTERS: on.dead_letters is None,
            AlertKind.FRESHNESS: on.freshness is None,
            AlertKind.SILENT_SOURCE: on.silent_source is None,
            AlertKind.HELD_LOG: on.held_log is None,
            AlertKind.HELD_TRANSACTIONS: on.held_transactions is None,
            AlertKind.INVARIANT: not on.invariant,
        }
        for kind in {notice.kind for notice in self._open.values()}:
            if off.get(kind, True):
                yield from self._resolve(kind)

    def _is_open(self, kind: AlertKind) -> bool:
        return any(notice.kind is kind for notice in self._open.values())

    def _raise(self, notice: Notice) -> Iterator[Notice]:
        if notice.key not in self._open:
            self._open[notice.key] = notice
            self.revision += 1
            yield notice

    def _resolve(self, kind: AlertKind, subject: str | None = None) -> Iterator[Notice]:
        for key, notice in list(self._open.items()):
            if notice.kind is kind and subject in (None, notice.subject):
                del self._open[key]
                self.revision += 1
                yield notice.resolved(max(self._now, notice.since))

    def memory(self) -> dict[str, Any]:
        """Return the state that must survive the process, as plain data."""
        return {
            "open": [notice.as_dict() for notice in self._open.values()],
            "window": self._window.memory() if self._window is not None else [],
        }

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Restore the state of an earlier process; ignore invalid data."""
        for notice in notices_in(memory.get("open")):
            if notice.pipeline != self._name or notice.state is not AlertState.RAISED:
                continue
            self._open[notice.key] = notice
            if notice.kind is AlertKind.FRESHNESS and self._on.freshness is not None:
                # stale tables stay stale until an event arrives, also after a restart
                self._fresh_at = min(self._now, notice.since) - self._on.freshness
        if self._window is not None:
            self._window.recall(memory.get("window"))
