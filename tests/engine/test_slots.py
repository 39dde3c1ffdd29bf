"""What a run knows of its source's replication slots, and that it waits for no database."""

from __future__ import annotations

import socket
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from distributary.engine.monitor import Monitor
from distributary.engine.slots import SlotWatch, ask_slots
from distributary.errors import DistributaryError, SourceUnavailableError
from distributary.model.change import Slot, SourceSlots
from distributary.observe.events import Beat, Event, EventBus
from distributary.observe.status.pulse import Pulse, read_pulse, write_pulse
from distributary.store.base import at
from tests.waiting import eventually

URL = "postgresql://reader:very-secret@127.0.0.1:1/shop"
SLOT = Slot("shop", active=False, bytes=7_000, database="shop")


class Answers:
    """A database that answers, refuses, or hangs."""

    def __init__(self) -> None:
        self.slots: tuple[Slot, ...] = (SLOT,)
        self.error: Exception | None = None
        self.hangs = threading.Event()
        self.hangs.set()
        self.asked = 0

    def ask(self, url: str) -> tuple[Slot, ...]:
        assert url == URL
        self.asked += 1
        self.hangs.wait()
        if self.error is not None:
            raise self.error
        return self.slots


def watch(answers: Answers) -> SlotWatch:
    return SlotWatch(
        URL, ask=answers.ask, every=0.01, mask=lambda text: text.replace("very-secret", "***")
    )


def last(folder: Path) -> SourceSlots | None:
    pulse = read_pulse(str(folder))
    return None if pulse is None else pulse.slots


def test_slots_are_in_the_pulse_and_in_each_sign_of_life(tmp_path: Path) -> None:
    bus, beats, answers = EventBus(), list[Event](), Answers()
    bus.subscribe(beats.append)
    with Monitor("shop", bus, checkpoint=at(tmp_path), slots=watch(answers), every=0.02):
        eventually(lambda: any(isinstance(b, Beat) and b.slots for b in beats), seconds=20)
        answers.error = SourceUnavailableError("away", evidence="no route, very-secret")
        eventually(lambda: bool((found := last(tmp_path)) and found.error), seconds=20)
        known = last(tmp_path)
        assert known is not None and known.slots == (SLOT,) and known.at is not None
        assert known.error == "away: no route, ***"
        answers.error = None
        answers.slots = ()
        eventually(lambda: bool((found := last(tmp_path)) and not found.slots), seconds=20)


def test_a_database_that_hangs_holds_nothing_up(tmp_path: Path) -> None:
    bus, beats, answers = EventBus(), list[Event](), Answers()
    bus.subscribe(beats.append)
    answers.hangs.clear()
    with Monitor("shop", bus, checkpoint=at(tmp_path), slots=watch(answers), every=0.02):
        eventually(lambda: answers.asked > 0 and len(beats) > 3, seconds=20)
        assert last(tmp_path) is None
    answers.hangs.set()


def test_what_an_earlier_run_knew_stays_known_until_the_database_answers(tmp_path: Path) -> None:
    answers = Answers()
    with Monitor("shop", EventBus(), checkpoint=at(tmp_path), slots=watch(answers), every=0.02):
        eventually(lambda: last(tmp_path) is not None, seconds=20)
    answers.error = ValueError("a driver's own")
    with Monitor("shop", EventBus(), checkpoint=at(tmp_path), slots=watch(answers), every=0.02):
        eventually(lambda: bool((found := last(tmp_path)) and found.error), seconds=20)
        known = last(tmp_path)
        assert known is not None and known.slots == (SLOT,)
        assert known.error == "ValueError: a driver's own"
    # without an address nothing is said any more
    with Monitor("shop", EventBus(), checkpoint=at(tmp_path), every=0.02):
        eventually(lambda: last(tmp_path) is None, seconds=20)


def test_an_error_is_told_once() -> None:
    answers = Answers()
    answers.error = SourceUnavailableError("away")
    watched = watch(answers)
    first = watched._look(SourceSlots())
    assert first == SourceSlots(error="away")
    assert watched._look(first) == first


def test_a_server_that_never_greets_is_given_up() -> None:
    pytest.importorskip("adbc_driver_postgresql")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        url = f"postgresql://reader:very-secret@127.0.0.1:{port}/shop?connect_timeout=2"
        ticks = list[int]()
        done = threading.Event()

        def count() -> None:
            while not done.wait(0.01):
                ticks.append(1)

        counter = threading.Thread(target=count)
        counter.start()
        with pytest.raises(DistributaryError) as error:
            ask_slots(url)
        done.set()
        counter.join()
    assert "very-secret" not in str(error.value.as_dict())
    # the driver lets other threads work while it waits
    assert len(ticks) > 10


def test_a_pulse_with_slots_is_read_back(tmp_path: Path) -> None:
    noon = datetime(2026, 7, 1, 12, tzinfo=UTC)
    written = Pulse(noon, slots=SourceSlots(noon, (SLOT,), "away"))
    write_pulse(at(tmp_path), written)
    assert read_pulse(str(tmp_path)) == written
