"""Hands what pipelines tell to those who listen, in a thread of its own.

A listener that hangs, or a terminal that does not scroll, holds up the other listeners and nobody
else: pipes are read on, and when too much waits the oldest is dropped, and said to be.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from distributary.observe.events import Event, EventBus
from distributary.observe.log_format import LogLine

_MOST_WAITING = 20_000
_LAST_WORDS_SECONDS = 5.0


class Relay:
    """From the supervisor's loop to a bus, and to the log."""

    def __init__(
        self, bus: EventBus, write: Callable[[LogLine], None], *, most: int = _MOST_WAITING
    ) -> None:
        self._bus, self._write = bus, write
        self._most = most
        self._waiting: deque[Event | LogLine] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._dropped = 0
        self._thread = threading.Thread(target=self._hand_on, name="relay", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(_LAST_WORDS_SECONDS)

    def __call__(self, item: Event | LogLine) -> None:
        """Take an event or a line; returns at once."""
        with self._changed:
            self._waiting.append(item)
            if len(self._waiting) > self._most:
                self._waiting.popleft()
                self._dropped += 1
            self._changed.notify()

    def _hand_on(self) -> None:
        while (item := self._next()) is not None:
            if isinstance(item, LogLine):
                self._write(item)
            else:
                self._bus.publish(item)

    def _next(self) -> Event | LogLine | None:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._waiting) or self._closed)
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                text = f"{dropped:,} events and lines were dropped: a listener is too slow"
                return LogLine(message=text, event="dropped", level="WARNING")
            return self._waiting.popleft() if self._waiting else None
