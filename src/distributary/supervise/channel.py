"""The way of events from the process of a pipeline to its supervisor, on the pipeline's side.

A thread of its own writes: a supervisor that is slow or paused never holds up a batch.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from distributary.errors import DistributaryError
from distributary.observe.event_lines import encode
from distributary.observe.events import Event, Failed, TableParked

VARIABLE = "DISTRIBUTARY_EVENTS_FD"
_MOST_WAITING = 10_000
_LAST_WORDS_SECONDS = 5.0

Mask = Callable[[str], str]


class Channel:
    """A listener that sends events down a pipe; when too many wait, new ones are dropped."""

    def __init__(self, fd: int, *, mask: Mask = str) -> None:
        self._fd, self._mask = fd, mask
        self._waiting: queue.Queue[Event | None] = queue.Queue(_MOST_WAITING)
        self._writer = threading.Thread(target=self._write, name="events", daemon=True)
        self._writer.start()

    @classmethod
    def from_environment(cls, *, mask: Mask) -> Channel | None:
        """The channel to the supervisor of this process, if it has one."""
        # taken out, so that no process that this one starts believes it is its own
        number = os.environ.pop(VARIABLE, "")
        if not number:
            return None
        os.set_inheritable(int(number), False)
        return cls(int(number), mask=mask)

    def __call__(self, event: Event) -> None:
        """Send one event, without secrets; returns at once."""
        with suppress(queue.Full):
            self._waiting.put_nowait(event)

    def close(self) -> None:
        """Send what waits, as far as anybody reads it."""
        with suppress(queue.Full):
            self._waiting.put(None, timeout=_LAST_WORDS_SECONDS)
        self._writer.join(_LAST_WORDS_SECONDS)

    def _write(self) -> None:
        with suppress(OSError), os.fdopen(self._fd, "wb", buffering=0) as pipe:
            while (event := self._waiting.get()) is not None:
                left = memoryview(f"{encode(masked(event, self._mask))}\n".encode())
                while left:
                    left = left[pipe.write(left) or 0 :]


def masked(event: Event, mask: Mask) -> Event:
    """The event without secrets: they could only be in what other programs said."""
    if isinstance(event, Failed):
        return replace(event, error=_masked(event.error, mask))
    if isinstance(event, TableParked):
        return replace(event, error=mask(event.error))
    return event


def _masked(error: DistributaryError, mask: Mask) -> DistributaryError:
    kind, arguments = type(error), error.as_dict()
    texts = {key: mask(arguments[key]) for key in ("where", "evidence", "next_step")}
    hidden = DistributaryError.__new__(kind)
    DistributaryError.__init__(hidden, mask(error.what), code=error.code, **texts)
    hidden.context = {key: mask(value) for key, value in error.context.items()}
    hidden.retryable, hidden.exit_code = error.retryable, error.exit_code
    return hidden
