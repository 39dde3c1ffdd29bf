"""The monitor of a run: it measures lag and freshness, and notices an unreachable source.

A thread asks the source for its end every few seconds, over its own connection, and writes the
pulse of the run (`observe/status/pulse.py`). No batch waits for it. It also notices first that a
broker is away: a Spark task would wait for minutes before it fails.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from distributary.engine.slots import SlotWatch
from distributary.errors import DistributaryError, SourceUnavailableError
from distributary.model.change import Heartbeat
from distributary.observe.events import (
    BatchSettled,
    BatchStarted,
    Beat,
    Event,
    EventBus,
    Failed,
    Idle,
    Paced,
    Paused,
    RecordsHeld,
    Recovered,
    RegistryAsked,
    StepFinished,
    Stopped,
)
from distributary.observe.journal import line_of
from distributary.observe.log_format import LogFormat, spell
from distributary.observe.status.pulse import (
    MOST_HEARTBEATS,
    MOST_LINES,
    MOST_PARTITIONS,
    Backlog,
    Pulse,
    Trouble,
    UnderWay,
    read_pulse,
    write_pulse,
)
from distributary.source.base import BatchInput, Position
from distributary.source.source_entry import SourceEnds
from distributary.store.base import Store

_log = logging.getLogger(__name__)

BEAT_SECONDS = 3.0
_BATCH_SECONDS = 1.0
"""The seconds between two questions while a batch is under way."""
_LEAST_SECONDS = 0.25
"""The least seconds between two questions to the source."""
_BUCKET_SECONDS = 15.0
"""The seconds between two pulses in a bucket, where each is a request; trouble is written at
once."""
_REMEMBERED = 400
"""The number of kept observations of partition ends, which show when a record arrived."""
_FAR = timedelta(minutes=1).total_seconds()
"""The largest difference between a record's own time and its arrival, to count as its
production."""
_LONGEST_KEPT = timedelta(days=30).total_seconds()
"""The greatest age of a record that counts as a delay, if its arrival was not observed."""
_LONGEST_LINE = 500
_WITHOUT_LINE = (Beat, StepFinished, RegistryAsked, Paced)
"""Events that are left out of the kept log lines, because they are too many."""
_STEPS = {"plan": "stage", "stage": "manifest", "manifest": "publish", "publish": "settle"}


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of a batch when it was settled."""

    records: int | None = None
    by_partition: Mapping[str, int] = field(default_factory=dict)
    seconds: float | None = None
    """Seconds since the newest record of the batch was produced."""
    event_seconds: float | None = None
    """The age of that record by its own time, if that differs much from `seconds`."""


def unread(ends: Mapping[str, int], reached: Mapping[str, int]) -> dict[str, int]:
    """Return the unread records of each partition; new partitions are read from their beginning."""
    return {place: max(0, end - reached.get(place, 0)) for place, end in ends.items()}


def with_newer(
    known: Mapping[str, Heartbeat], read: Mapping[str, datetime]
) -> dict[str, Heartbeat]:
    """Return the newest heartbeat by topic, after a batch has read some."""
    newer = {
        topic: Heartbeat(sent_at)
        for topic, sent_at in read.items()
        if topic not in known or sent_at > known[topic].at
    }
    every = sorted({**known, **newer}.items(), key=lambda each: each[1].at, reverse=True)
    return dict(every[:MOST_HEARTBEATS])


def looked_for(
    known: Mapping[str, Heartbeat], left: Mapping[str, int], moment: datetime
) -> dict[str, Heartbeat]:
    """Return the heartbeats after a look at the source; `left` has its unread records by partition.

    If a topic is read completely, it had no newer heartbeat at that moment. Otherwise nothing is
    known: the pipeline is behind, and its source need not be silent. Topics that the pipeline no
    longer reads are removed.
    """
    unread_in: dict[str, int] = {}
    for place, records in left.items():
        topic = place.rpartition("/")[0]
        unread_in[topic] = unread_in.get(topic, 0) + records
    return {
        topic: beat if unread_in[topic] else replace(beat, looked_at=max(moment, beat.at))
        for topic, beat in known.items()
        if topic in unread_in
    }


def lag_without_asking(source: BatchInput, newest_us: int | None) -> Lag:
    """Return the lag from the batch alone: from the end of the source at its planning."""
    age, event = _delay(source.age_seconds(newest_us), None, by_source=source.newest_us is not None)
    return Lag(source.lag, source.lag_by_partition, age, event)


def _delay(
    age: float | None, seen: float | None, *, by_source: bool
) -> tuple[float | None, float | None]:
    """Return seconds since a record was produced, and the age by its own time if that is wrong.

    `age` is the age by the record's time. `seen` is the time since the source was last seen without
    the record, which limits its true age.
    """
    if age is None or by_source:
        return age, None
    if seen is not None and not -_FAR <= age - seen <= _FAR:
        return seen, age
    if seen is None and not -_FAR <= age <= _LONGEST_KEPT:
        return None, age
    return max(age, 0.0), None


class Monitor:
    """The monitor of one run, as a context. Listens to the bus of the run."""

    def __init__(
        self,
        pipeline: str,
        bus: EventBus,
        *,
        checkpoint: Store,
        ends: SourceEnds | None = None,
        slots: SlotWatch | None = None,
        is_owner: Callable[[], bool] = lambda: True,
        mask: Callable[[str], str] = str,
        every: float = BEAT_SECONDS,
    ) -> None:
        self._pipeline, self._bus, self._checkpoint = pipeline, bus, checkpoint
        self._ends, self._is_owner, self._mask, self._every = ends, is_owner, mask, every
        self._slots = slots
        self._lock = threading.Lock()
        now = datetime.now(UTC)
        before = read_pulse(checkpoint.address) or Pulse(now)
        self._pulse = replace(
            before,
            trouble=None,
            under_way=None,
            began=now,
            ended="",
            slots=None if slots is None else before.slots,
            # without ends, nothing measures again how much of an earlier run's backlog is left
            backlog=None if ends is None else before.backlog,
        )
        self._lines = deque(before.lines, maxlen=MOST_LINES)
        self._position: Position | None = None
        self._all_read_at: datetime | None = None
        """The time of the source's end up to which all records are settled; None if some are
        not."""
        self._looks: deque[tuple[datetime, Mapping[str, int]]] = deque(maxlen=_REMEMBERED)
        self._noticed = False
        """Whether the monitor noticed the trouble before any batch did."""
        self._wake, self._ended = threading.Event(), threading.Event()
        self._has_news = False
        """Whether trouble has begun or ended, which is written at once."""
        self._written = 0.0
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="monitor", daemon=True)

    def __enter__(self) -> Monitor:
        self._detach = self._bus.subscribe(self._hear)
        if self._slots is not None:
            self._slots.__enter__()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._detach()
        if self._slots is not None:
            self._slots.__exit__()
        self._ended.set()
        self._wake.set()
        # an unanswered question times out, and its answer is not needed any more
        self._thread.join(self._every)
        with self._lock:
            ended = self._pulse.ended or _ended_by(kind)
            self._pulse = replace(self._pulse, trouble=None, under_way=None, ended=ended)
            if self._looks:
                # the newest look may be older than the last batch, whose records are read by now
                moment, ends = self._looks[-1]
                left = self._left(ends, self._position)
                self._pulse = replace(self._pulse, backlog=_backlog(moment, left, ends))
            if self._all_read_at is not None:
                backlog = _all_read(self._pulse.backlog, self._all_read_at)
                self._pulse = replace(self._pulse, backlog=backlog)
        if self._is_owner():
            self._write()

    @property
    def in_trouble(self) -> bool:
        """Return whether a failure is being retried."""
        return self._pulse.trouble is not None

    def settled(self, position: Position) -> None:
        """Note that all records before a position are settled, and measure the lag again.

        The known ends are older than this position: their difference would miss newer records.
        """
        if position != self._position:
            self._position = position
            self._wake.set()

    def read_all(self, asked_at: datetime) -> None:
        """Note that every record is settled that the source had at a moment.

        Of a source without offsets only this is known, and not how many records are unread.
        """
        with self._lock:
            self._all_read_at = asked_at
            if self._ends is None:
                self._pulse = replace(self._pulse, backlog=Backlog(asked_at, 0))

    def lag(self, source: BatchInput, newest_us: int | None) -> Lag:
        """Return the lag of a batch that is settled now, without asking the source."""
        known = lag_without_asking(source, newest_us)
        if self._ends is None:
            return known
        with self._lock:
            looks = list(self._looks)
        reached = self._ends.reached(source.end)
        if looks:
            left = unread(looks[-1][1], reached)
            known = replace(known, records=sum(left.values()), by_partition=left)
        if source.newest_us is not None:
            # the source itself knows when its records arrived
            return known
        came = _came(looks, {f"{r.topic}/{r.partition}": r.end for r in source.ranges})
        seen = None if came is None else (datetime.now(UTC) - came).total_seconds()
        age = None if newest_us is None else time.time() - newest_us / 1e6
        seconds, event = _delay(age, seen, by_source=False)
        return replace(known, seconds=seconds, event_seconds=event)

    def _hear(self, event: Event) -> None:
        with self._lock:
            now = self._pulse
            if not isinstance(event, _WITHOUT_LINE):
                line = spell(line_of(event).masked(self._mask), LogFormat.TEXT)
                self._lines.append(line[:_LONGEST_LINE])
            match event:
                case BatchStarted():
                    batch = UnderWay(event.batch, event.at, "plan", event.records)
                    self._all_read_at = None
                    backlog = None if self._ends is None else now.backlog
                    self._pulse = replace(now, under_way=batch, backlog=backlog)
                case StepFinished() if now.under_way is not None:
                    if event.step == "manifest":
                        # not while tables are written: the batch reports its lag when it is settled
                        self._wake.set()
                    step = _STEPS.get(event.step, now.under_way.step)
                    self._pulse = replace(now, under_way=replace(now.under_way, step=step))
                case Failed() if event.retry_in is not None:
                    batch_now = now.under_way if event.under_way else None
                    self._noticed = event.under_way
                    trouble = self._troubled(now.trouble, event)
                    self._pulse = replace(now, trouble=trouble, under_way=batch_now)
                    self._tell_at_once()
                case Stopped():
                    self._pulse = replace(now, ended=event.reason)
                case Paced():
                    self._pulse = replace(now, pace=event.pace)
                case RecordsHeld():
                    self._pulse = replace(now, under_way=None, held=event.held)
                case BatchSettled() | Idle() | Paused() | Recovered():
                    batch_now = now.under_way if isinstance(event, Recovered) else None
                    self._pulse = replace(now, trouble=None, under_way=batch_now)
                    if isinstance(event, BatchSettled):
                        self._pulse = replace(self._pulse, held=event.held)
                        if event.heartbeats:
                            self._read_heartbeats(event.heartbeats)
                    if now.trouble is not None:
                        self._noticed = False
                        self._tell_at_once()

    def _read_heartbeats(self, read: Mapping[str, datetime]) -> None:
        before = self._pulse.heartbeats
        after = with_newer(before, read)
        self._pulse = replace(self._pulse, heartbeats=after)
        # a run that is killed now must not leave such an old time that its source looks silent
        far = timedelta(seconds=_FAR)
        if any(
            topic not in before or beat.at - before[topic].at > far for topic, beat in after.items()
        ):
            self._tell_at_once()

    def _tell_at_once(self) -> None:
        self._has_news = True
        self._wake.set()

    def _troubled(self, before: Trouble | None, event: Failed) -> Trouble:
        facts = event.error.as_dict()
        names = ("code", "what", "where", "evidence", "next_step")
        return Trouble(
            since=event.at if before is None else before.since,
            attempts=1 if before is None else before.attempts + 1,
            next_try=event.at + timedelta(seconds=event.retry_in or 0.0),
            error={name: self._mask(str(facts[name])) for name in names},
        )

    def _watch(self) -> None:
        while not self._ended.is_set():
            try:
                self._look()
                if self._ended.is_set():
                    # the end of the run does not wait long for an answer, and reports the lag
                    return
                self._take_slots()
                self._beat()
                self._write_sometimes()
            except Exception:
                # an error must not stop batches, and the next attempt may succeed
                _log.warning("the lag could not be measured", exc_info=True)
            every = self._every
            if self._pulse.under_way is not None:
                every = min(every, _BATCH_SECONDS)
            self._ended.wait(min(_LEAST_SECONDS, every))
            self._wake.wait(max(every - _LEAST_SECONDS, 0.0))

    def _look(self) -> None:
        """Ask the source for its end; after two unanswered questions it counts as unreachable."""
        self._wake.clear()
        if self._ends is None:
            return
        # read before the question, so that the lag is never too low
        moment, position = datetime.now(UTC), self._position
        try:
            try:
                ends = self._ends.ask()
            except SourceUnavailableError:
                if self._ended.is_set():
                    return
                ends = self._ends.ask()
        except SourceUnavailableError as error:
            self._notice(error)
            return
        except DistributaryError as error:
            # a lasting error is reported by the batch that meets it
            _log.info("the source was not asked for its end: %s", error.what)
            return
        with self._lock:
            self._remember(moment, ends)
            if self._ended.is_set():
                return
            left = self._left(ends, position)
            if left is not None:
                beats = looked_for(self._pulse.heartbeats, left, moment)
                self._pulse = replace(self._pulse, heartbeats=beats)
            self._pulse = replace(self._pulse, backlog=_backlog(moment, left, ends))
            over = self._pulse.trouble if self._noticed else None
        if over is not None:
            seconds = (datetime.now(UTC) - over.since).total_seconds()
            self._bus.publish(Recovered(pipeline=self._pipeline, seconds=seconds))

    def _take_slots(self) -> None:
        """Take the last report about the slots; after an error, keep the earlier report."""
        latest = None if self._slots is None else self._slots.latest
        with self._lock:
            known = self._pulse.slots
            if latest is not None and latest.at is None and known is not None:
                latest = replace(known, error=latest.error)
            if latest is not None:
                self._pulse = replace(self._pulse, slots=latest)

    def _remember(self, moment: datetime, ends: Mapping[str, int]) -> None:
        """Keep the newest observation, and earlier ones at regular intervals."""
        if len(self._looks) > 1 and (moment - self._looks[-2][0]).total_seconds() < self._every:
            self._looks.pop()
        self._looks.append((moment, ends))

    def _notice(self, error: SourceUnavailableError) -> None:
        event = Failed(pipeline=self._pipeline, error=error, retry_in=self._every, under_way=True)
        if not self.in_trouble and not self._ended.is_set():
            self._bus.publish(event)
        elif self._noticed:
            # reported already: only the time of the next attempt is new
            self._hear(event)

    def _left(self, ends: Mapping[str, int], position: Position | None) -> Mapping[str, int] | None:
        """Return the unread records of each partition; None before any position is known."""
        if self._ends is None or position is None:
            return None
        return unread(ends, self._ends.reached(position))

    def _beat(self) -> None:
        found = self._pulse.backlog
        pulse = self._pulse
        beat = Beat(pipeline=self._pipeline, heartbeats=pulse.heartbeats, slots=pulse.slots)
        if found is not None and self._ends is not None:
            beat = replace(
                beat,
                lag_records=found.records,
                lag_by_partition=found.partitions,
                lag_at=found.at,
            )
        self._bus.publish(beat)

    def _write_sometimes(self) -> None:
        with self._lock:
            urgent, self._has_news = self._has_news, False
        pause = 0.0 if self._checkpoint.asks_for_free else _BUCKET_SECONDS
        if urgent or time.monotonic() - self._written >= pause:
            self._write()

    def _write(self) -> None:
        self._written = time.monotonic()
        # the last pulse of a run must not be replaced by one that the thread was still writing
        with self._writing:
            with self._lock:
                pulse = replace(self._pulse, at=datetime.now(UTC), lines=tuple(self._lines))
            write_pulse(self._checkpoint, pulse)


def _backlog(
    at: datetime, left: Mapping[str, int] | None, ends: Mapping[str, int]
) -> Backlog | None:
    if left is None:
        return None
    worst = dict(sorted(left.items(), key=lambda each: -each[1])[:MOST_PARTITIONS])
    return Backlog(at, sum(left.values()), worst, {place: ends[place] for place in worst})


def _all_read(known: Backlog | None, moment: datetime) -> Backlog:
    """Return the backlog after all records of a moment were read; a newer backlog stays."""
    if known is None:
        return Backlog(moment, 0)
    if known.at >= moment:
        return known
    return replace(known, at=moment, records=0, partitions=dict.fromkeys(known.partitions, 0))


def _ended_by(kind: type[BaseException] | None) -> str:
    """Return how a run ended, by its exception, if no event has reported it."""
    interrupted = kind is not None and not issubclass(kind, Exception)
    return "stopped" if interrupted else "failed"


def _came(
    looks: list[tuple[datetime, Mapping[str, int]]], ends: Mapping[str, int]
) -> datetime | None:
    """Return the latest time at which the newest of these records was not at its source yet.

    None if it was there at the first observation. `ends` are the offsets after the last records.
    """

    def seen_with(place: str, end: int) -> int:
        return bisect_left(looks, end, key=lambda look: look[1].get(place, 0))

    firsts = {seen_with(place, end) for place, end in ends.items()}
    first = max(firsts, default=0)
    return looks[first - 1][0] if first else None
