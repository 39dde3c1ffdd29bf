"""What is measured beside the batches: lag, freshness, a source that is away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from distributary.config.runtime import AVAILABLE_NOW
from distributary.engine.loop import StreamRun
from distributary.engine.monitor import Lag, Monitor, looked_for, unread, with_newer
from distributary.engine.pipeline import Pipeline
from distributary.errors import SourceError, SourceUnavailableError
from distributary.model.change import Heartbeat
from distributary.model.manifest import Counts, SourceRange
from distributary.observe.events import (
    BatchSettled,
    BatchStarted,
    Beat,
    Event,
    EventBus,
    Failed,
    RecordsHeld,
    Recovered,
)
from distributary.observe.status.pulse import Backlog, HeldRecords, Pulse, read_pulse
from distributary.source.base import BatchInput, Position
from distributary.spark.in_process import in_process
from distributary.store.base import at
from distributary.testing import Record, RecordSource
from tests.waiting import eventually

YEARS = 3 * 365 * 86_400


class Offsets:
    """A source that ends where it is told to, or does not answer."""

    def __init__(self) -> None:
        self.ends: dict[str, int] = {"t/0": 100}
        self.error: SourceError | None = None

    def ask(self) -> Mapping[str, int]:
        if self.error is not None:
            raise self.error
        return dict(self.ends)

    def reached(self, position: Position) -> Mapping[str, int]:
        found: Mapping[str, int] = position["offsets"]
        return found


class Watched:
    """A monitor that looks often, and all that it tells."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.source, self.bus = folder, Offsets(), EventBus()
        self.events: list[Event] = []
        self.bus.subscribe(self.events.append)
        self.monitor = Monitor(
            "games", self.bus, checkpoint=at(folder), ends=self.source, every=0.02
        )

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def pulse(self) -> Pulse:
        self.until(lambda: read_pulse(str(self.folder)) is not None)
        found = read_pulse(str(self.folder))
        assert found is not None
        return found

    def until(self, happened: Callable[[], bool]) -> None:
        eventually(happened, seconds=20)

    def look_again(self) -> None:
        """Wait until the source was asked, and asked once more."""
        for _ in range(2):
            seen = len(self.of(Beat))
            self.until(lambda seen=seen: len(self.of(Beat)) > seen)  # type: ignore[misc]


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(tmp_path)
    with made.monitor:
        yield made


def pulse_of(folder: Path) -> Pulse:
    found = read_pulse(str(folder))
    assert found is not None
    return found


def batch(end: int, *, newest_us: int | None = None) -> BatchInput:
    ranges = (SourceRange("t", 0, 0, end, end),)
    nothing: Any = None
    return BatchInput(nothing, ranges, {"offsets": {"t/0": end}}, newest_us=newest_us)


def test_a_new_partition_is_not_read_at_all() -> None:
    assert unread({"t/0": 10, "t/1": 4}, {"t/0": 12}) == {"t/0": 0, "t/1": 4}


def test_lag_is_measured_while_a_batch_is_under_way(watched: Watched) -> None:
    watched.monitor.settled({"offsets": {"t/0": 30}})
    watched.bus.publish(BatchStarted(pipeline="games", batch=7, records=70))
    watched.until(lambda: any(b.lag_records == 70 for b in watched.of(Beat)))
    watched.source.ends["t/0"] = 130
    watched.until(lambda: any(b.lag_records == 100 for b in watched.of(Beat)))
    found = watched.pulse()
    assert found.under_way is not None and found.under_way.batch == 7
    assert found.backlog is not None
    # by what was asked last, and without another question
    watched.source.error = SourceError("refused")
    lag = watched.monitor.lag(batch(100), None)
    assert (lag.records, lag.by_partition) == (30, {"t/0": 30})


def test_a_run_that_ends_leaves_the_lag_after_its_last_batch(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    with watched.monitor:
        watched.monitor.settled({"offsets": {"t/0": 30}})
        watched.until(lambda: any(b.lag_records == 70 for b in watched.of(Beat)))
        # no look comes between the last batch and the end
        watched.source.error = SourceError("refused")
        watched.look_again()
        watched.monitor.settled({"offsets": {"t/0": 90}})
    backlog = watched.pulse().backlog
    assert backlog is not None
    assert (backlog.records, backlog.partitions) == (10, {"t/0": 10})


def test_a_run_that_read_everything_of_a_source_without_offsets_leaves_a_lag_of_none(
    tmp_path: Path,
) -> None:
    bus, asked = EventBus(), datetime(2026, 7, 1, 12, tzinfo=UTC)
    with Monitor("games", bus, checkpoint=at(tmp_path), every=0.02) as monitor:
        bus.publish(BatchStarted(pipeline="games", batch=0))
        monitor.read_all(asked)
    assert pulse_of(tmp_path).backlog == Backlog(asked, 0)
    # the next run knows nothing while it has not read everything again
    with Monitor("games", bus, checkpoint=at(tmp_path), every=0.02) as monitor:
        pass
    assert pulse_of(tmp_path).backlog is None


def test_what_was_read_says_nothing_about_the_records_of_the_next_batch(tmp_path: Path) -> None:
    bus, beats = EventBus(), list[Event]()
    bus.subscribe(beats.append)
    with Monitor("games", bus, checkpoint=at(tmp_path), every=0.02) as monitor:
        monitor.read_all(datetime.now(UTC))
        monitor._beat()
        bus.publish(BatchStarted(pipeline="games", batch=1))
    assert pulse_of(tmp_path).backlog is None
    # a number that no later beat corrects is no metric
    assert {beat.lag_records for beat in beats if isinstance(beat, Beat)} == {None}


def test_a_run_that_read_everything_leaves_no_lag_by_an_older_look(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    with watched.monitor:
        watched.until(lambda: bool(watched.monitor._looks))
        watched.source.error = SourceError("refused")
        watched.look_again()
        # rows were counted that are no records, such as those of a table that was rewritten
        watched.monitor.settled({"offsets": {"t/0": 90}})
        # times in a pulse are whole milliseconds
        asked = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=1)
        watched.monitor.read_all(asked)
    backlog = watched.pulse().backlog
    assert backlog is not None
    assert (backlog.at, backlog.records, backlog.partitions) == (asked, 0, {"t/0": 0})


def test_a_newer_look_counts_more_than_that_everything_was_read(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    with watched.monitor:
        watched.monitor.settled({"offsets": {"t/0": 100}})
        watched.monitor.read_all(datetime.now(UTC))
        watched.source.ends["t/0"] = 107
        watched.until(lambda: any(b.lag_records == 7 for b in watched.of(Beat)))
    backlog = watched.pulse().backlog
    assert backlog is not None and backlog.records == 7


def test_an_answer_after_the_end_of_a_run_does_not_replace_its_lag(tmp_path: Path) -> None:
    watched, asked, answered = Watched(tmp_path), threading.Event(), threading.Event()

    def ask() -> Mapping[str, int]:
        asked.set()
        answered.wait(20)
        return {"t/0": 20_000}

    watched.source.ask = ask  # type: ignore[method-assign]
    with watched.monitor:
        watched.monitor.settled({"offsets": {"t/0": 0}})
        assert asked.wait(20)
        watched.monitor.settled({"offsets": {"t/0": 20_000}})
        watched.monitor.read_all(datetime.now(UTC))
    answered.set()
    watched.monitor._thread.join(20)
    backlog = watched.pulse().backlog
    assert backlog is not None and backlog.records == 0


@pytest.mark.parametrize("stops", [False, True])
def test_a_run_that_is_done_has_read_everything(tmp_path: Path, stops: bool) -> None:
    file = tmp_path / "games.yaml"
    file.write_text(
        "name: games\n"
        "source: {type: kafka, topics: [games], bootstrap_servers: 'localhost:1'}\n"
        "payload: {format: json}\n"
        "envelope: {format: json, type: kind}\n"
        "tables: {each: 'silver_{type}'}\n"
        f"lake: {{path: {tmp_path}/lake, checkpoint: {tmp_path}/checkpoints}}\n"
    )
    records, stop = [Record({"kind": "go", "n": n}) for n in range(4)], threading.Event()
    pipeline, before = Pipeline.load(file), datetime.now(UTC)
    with pipeline.open(in_process(Mock(side_effect=AssertionError))) as context:
        context.reports.monitor = monitor = Mock()
        monitor.lag.return_value = Lag()
        if stops:
            context.reports.bus.subscribe(
                lambda event: stop.set() if isinstance(event, BatchSettled) else None
            )
        source = RecordSource(records, ["games"], 2)
        done = StreamRun(context, source, stop=stop).run(AVAILABLE_NOW)
    assert (done.stopped, done.counts.read) == (("stopped", 2) if stops else ("done", 4))
    asked = [call.args[0] for call in monitor.read_all.call_args_list]
    assert len(asked) == (0 if stops else 1)
    assert all(before <= moment <= datetime.now(UTC) for moment in asked)


def test_a_source_that_is_away_is_noticed_beside_the_batch(watched: Watched) -> None:
    watched.bus.publish(BatchStarted(pipeline="games", batch=7))
    watched.source.error = SourceUnavailableError("the broker does not answer")
    watched.until(lambda: watched.pulse().trouble is not None)
    watched.look_again()
    (told,) = watched.of(Failed)
    assert told.under_way and told.error.code == "SOURCE_UNAVAILABLE"
    assert watched.pulse().under_way is not None
    watched.source.error = None
    watched.until(lambda: bool(watched.of(Recovered)))
    watched.until(lambda: watched.pulse().trouble is None)
    assert len(watched.of(Recovered)) == 1


def test_what_a_batch_tries_again_is_over_when_the_batch_says_so(watched: Watched) -> None:
    gone = SourceUnavailableError("gone")
    watched.bus.publish(Failed(pipeline="games", error=gone, retry_in=1.0))
    watched.bus.publish(Failed(pipeline="games", error=gone, retry_in=1.0))
    watched.look_again()
    found = watched.pulse().trouble
    assert found is not None and found.attempts == 2
    assert not watched.of(Recovered)
    watched.bus.publish(Recovered(pipeline="games"))
    watched.until(lambda: watched.pulse().trouble is None)


def test_nothing_is_left_of_trouble_when_a_run_has_ended(tmp_path: Path) -> None:
    made = Watched(tmp_path)
    with made.monitor:
        made.source.error = SourceUnavailableError("gone")
        made.until(lambda: bool(made.of(Failed)))
    assert made.pulse().trouble is None


def test_one_that_was_overtaken_leaves_the_pulse_of_the_other(tmp_path: Path) -> None:
    monitor = Monitor("games", EventBus(), checkpoint=at(tmp_path), is_owner=lambda: False)
    with monitor:
        eventually(lambda: read_pulse(str(tmp_path)) is not None, seconds=20)
        monitor._ended.set()
        monitor._wake.set()
        monitor._thread.join()
        (tmp_path / "pulse.json").write_text("of the other")
    assert (tmp_path / "pulse.json").read_text() == "of the other"


NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)
BEATS = "__debezium-heartbeat.shop"


def settled_with(sent_at: datetime) -> BatchSettled:
    return BatchSettled(
        pipeline="games",
        batch=1,
        counts=Counts(1, 0, 0, 0, 1),
        rows=0,
        tables=0,
        seconds=1.0,
        heartbeats={BEATS: sent_at},
    )


def test_a_connector_is_silent_only_where_all_of_its_topic_is_read() -> None:
    known = {BEATS: Heartbeat(NOON)}
    later = NOON + timedelta(minutes=20)
    # the pipeline is behind, and newer heartbeats may be among what it has not read
    behind = looked_for(known, {f"{BEATS}/0": 3, "shop.orders/0": 0}, later)
    assert behind[BEATS].silent_seconds is None
    # another topic of the pipeline may be as far behind as it likes
    read = looked_for(known, {f"{BEATS}/0": 0, "shop.orders/0": 900}, later)
    assert read[BEATS].silent_seconds == 1200
    # what is known stays known while the pipeline is behind again
    assert looked_for(read, {f"{BEATS}/0": 1}, later + timedelta(hours=1)) == read


def test_a_connector_whose_topic_is_not_read_any_more_is_forgotten() -> None:
    known = {BEATS: Heartbeat(NOON), "__debezium-heartbeat.old": Heartbeat(NOON)}
    assert set(looked_for(known, {f"{BEATS}/0": 0}, NOON)) == {BEATS}


def test_a_heartbeat_from_a_clock_ahead_is_no_silence_below_zero() -> None:
    found = looked_for({BEATS: Heartbeat(NOON)}, {f"{BEATS}/0": 0}, NOON - timedelta(seconds=9))
    assert found[BEATS].silent_seconds == 0


def test_only_a_newer_heartbeat_ends_a_silence() -> None:
    silent = {BEATS: Heartbeat(NOON, NOON + timedelta(hours=1))}
    assert with_newer(silent, {BEATS: NOON - timedelta(seconds=1)}) == silent
    newer = NOON + timedelta(hours=2)
    assert with_newer(silent, {BEATS: newer, "b": NOON}) == {
        BEATS: Heartbeat(newer),
        "b": Heartbeat(NOON),
    }


def test_heartbeats_are_kept_for_other_processes_and_the_next_run(tmp_path: Path) -> None:
    made = Watched(tmp_path)
    made.source.ends = {f"{BEATS}/0": 5}
    with made.monitor:
        made.bus.publish(settled_with(NOON))
        made.monitor.settled({"offsets": {f"{BEATS}/0": 5}})
        made.until(lambda: any(BEATS in b.heartbeats and b.lag_at for b in made.of(Beat)))
    kept = made.pulse().heartbeats[BEATS]
    assert kept.at == NOON and kept.looked_at is not None
    again = Watched(tmp_path)
    again.source.ends = {f"{BEATS}/0": 6}
    with again.monitor:
        # one more has come: nothing new is known until it is read
        again.monitor.settled({"offsets": {f"{BEATS}/0": 5}})
        again.until(lambda: any(b.lag_records == 1 for b in again.of(Beat)))
        assert again.of(Beat)[-1].heartbeats == {BEATS: kept}


def microseconds(ago: float) -> int:
    return int((time.time() - ago) * 1e6)


def test_a_time_that_is_far_off_is_not_taken_for_a_delay(watched: Watched) -> None:
    watched.look_again()
    watched.source.ends["t/0"] = 120
    watched.look_again()
    lag = watched.monitor.lag(batch(120), microseconds(YEARS))
    assert lag.seconds is not None and lag.seconds < 3600
    assert lag.event_seconds is not None and lag.event_seconds > YEARS - 60
    # a clock that is ahead is no better
    ahead = watched.monitor.lag(batch(120), microseconds(-3600))
    assert ahead.seconds is not None and ahead.seconds >= 0 and ahead.event_seconds is not None


def test_a_time_that_fits_is_taken(watched: Watched) -> None:
    watched.look_again()
    watched.source.ends["t/0"] = 120
    watched.look_again()
    lag = watched.monitor.lag(batch(120), microseconds(20))
    assert lag.seconds is not None and lag.seconds >= 20 and lag.event_seconds is None


def test_records_that_were_there_before_tell_their_age_unless_it_is_absurd(
    watched: Watched,
) -> None:
    watched.look_again()
    week = watched.monitor.lag(batch(100), microseconds(7 * 86_400))
    assert week.seconds is not None and week.seconds >= 7 * 86_400 and week.event_seconds is None
    old = watched.monitor.lag(batch(100), microseconds(YEARS))
    assert old.seconds is None and old.event_seconds is not None


def test_held_back_records_are_in_the_pulse_until_a_batch_has_them(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    held = HeldRecords(3, 2, "571", datetime(2026, 1, 1, tzinfo=UTC))
    with watched.monitor:
        watched.bus.publish(BatchStarted(pipeline="games", batch=4))
        watched.bus.publish(RecordsHeld(pipeline="games", batch=4, held=held))
        watched.until(lambda: watched.pulse().held == held)
        assert watched.pulse().under_way is None
        of_batch = BatchSettled(
            pipeline="games", batch=4, counts=Counts(), rows=0, tables=0, seconds=0.1, held=None
        )
        watched.bus.publish(replace(of_batch, held=replace(held, records=1)))
        watched.until(lambda: watched.pulse().held == replace(held, records=1))
        watched.bus.publish(of_batch)
        watched.until(lambda: watched.pulse().held is None)
