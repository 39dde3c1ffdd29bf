"""Events reach every listener, and no listener can break the run."""

from __future__ import annotations

import logging
from dataclasses import FrozenInstanceError

import pytest

from distributary.errors import FencedError
from distributary.model.manifest import Counts
from distributary.observe.events import (
    BatchSettled,
    BatchStarted,
    EventBus,
    Failed,
    Idle,
    SchemaSeen,
    StepFinished,
    Stopped,
    TableParked,
)

EVERY_EVENT = [
    BatchStarted(pipeline="p", batch=1),
    StepFinished(pipeline="p", batch=1, step="stage", seconds=0.5),
    SchemaSeen(pipeline="p", batch=1, type="t", table="t", schema_id=1, label="t v1"),
    TableParked(pipeline="p", batch=1, table="t", records=3, error="full"),
    BatchSettled(pipeline="p", batch=1, counts=Counts(8, 8), rows=8, tables=1, seconds=2.0),
    Idle(pipeline="p"),
    Failed(pipeline="p", error=FencedError("stop")),
    Stopped(pipeline="p"),
]


def test_all_listeners_get_all_events_in_order():
    bus, first, second = EventBus(), [], []
    bus.subscribe(first.append)
    bus.subscribe(second.append)
    for event in EVERY_EVENT:
        bus.publish(event)
    assert first == second == EVERY_EVENT


def test_a_listener_that_raises_is_logged_and_the_rest_go_on(caplog):
    bus, heard = EventBus(), []

    def broken(event):
        raise ValueError("no terminal")

    bus.subscribe(broken)
    bus.subscribe(heard.append)
    with caplog.at_level(logging.WARNING):
        bus.publish(EVERY_EVENT[0])
    assert heard == [EVERY_EVENT[0]]
    assert "broken" in caplog.text and "BatchStarted" in caplog.text


def test_a_stop_by_the_user_is_not_swallowed():
    bus = EventBus()

    def interrupted(event):
        raise KeyboardInterrupt

    bus.subscribe(interrupted)
    with pytest.raises(KeyboardInterrupt):
        bus.publish(EVERY_EVENT[0])


def test_a_listener_can_leave_while_an_event_is_told():
    bus, heard = EventBus(), []

    def once(event):
        heard.append(event)
        leave()

    leave = bus.subscribe(once)
    bus.subscribe(heard.append)
    bus.publish(EVERY_EVENT[0])
    bus.publish(EVERY_EVENT[1])
    assert heard == [EVERY_EVENT[0], EVERY_EVENT[0], EVERY_EVENT[1]]


def test_events_are_frozen_and_timed():
    settled = EVERY_EVENT[4]
    assert settled.records_per_second == 4.0
    assert settled.at.tzinfo is not None
    with pytest.raises(FrozenInstanceError):
        settled.rows = 9
