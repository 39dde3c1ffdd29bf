"""Waiting for something that another thread or process does."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from distributary.observe.events import BatchSettled, Event

Answer = TypeVar("Answer")


def eventually(happened: Callable[[], bool], *, seconds: float) -> None:
    """Return as soon as it has happened; fail when it does not."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.1)


def patiently(ask: Callable[[], Answer | None], seconds: float = 30) -> Answer:
    """Ask until there is an answer: a broker tells of what it has made a moment later."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if (answer := ask()) is not None:
                return answer
        except Exception:
            if time.monotonic() > deadline:
                raise
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.2)


def is_listening(port: int) -> bool:
    """Whether a server of this machine takes connections there."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def until_read(events: Sequence[Event], records: int, *, seconds: float = 300) -> None:
    """Wait until batches with so many records are settled."""

    def read() -> int:
        return sum(e.counts.read for e in events if isinstance(e, BatchSettled))

    eventually(lambda: read() >= records, seconds=seconds)
