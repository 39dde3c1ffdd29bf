"""What is told reaches those who listen, and a slow one holds up nobody who tells."""

from __future__ import annotations

import threading

from distributary.observe.events import Event, EventBus, Idle
from distributary.observe.log_format import LogLine
from distributary.supervise.supervisor import Relay


def test_events_and_lines_arrive_in_order() -> None:
    bus, heard = EventBus(), list[object]()
    bus.subscribe(heard.append)
    told = [Idle(pipeline="p"), LogLine(message="m", event="note"), Idle(pipeline="q")]
    with Relay(bus, heard.append) as relay:
        for item in told:
            relay(item)
    assert heard == told


def test_a_listener_that_hangs_holds_up_nobody_who_tells() -> None:
    bus, heard, free = EventBus(), list[Event](), threading.Event()
    entered = threading.Event()

    def slow(event: Event) -> None:
        entered.set()
        free.wait(60)
        heard.append(event)

    bus.subscribe(slow)
    lines: list[LogLine] = []
    with Relay(bus, lines.append, most=10) as relay:
        relay(Idle(pipeline="p", batch=-1))
        assert entered.wait(60)
        for batch in range(1000):
            relay(Idle(pipeline="p", batch=batch))
        free.set()
    # the first was under way; the newest ones are kept, and the loss is said
    assert [e.batch for e in heard] == [-1, *range(990, 1000)]
    assert [line.event for line in lines] == ["dropped"]
    assert "990" in lines[0].message
