"""Work in a thread of its own, so that the main thread is free for signals and the screen."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Generic, TypeVar

_T = TypeVar("_T")
_POLL_SECONDS = 0.1


class Foreground(Generic[_T]):
    """Runs a piece of work until it ends or is asked to stop.

    PySpark takes Ctrl-C for itself when it is started in the main thread, and cancels the job that
    is under way. Started elsewhere it leaves signals alone, and a batch can be finished.
    """

    def __init__(self, work: Callable[[], _T], *, stop: threading.Event) -> None:
        self._work, self._stop = work, stop
        self._results: list[_T] = []
        self._errors: list[BaseException] = []
        self.signal: int | None = None
        """The signal that asked for a stop."""
        self.on_stop: Callable[[], None] = lambda: None
        """Told when that happens."""
        self.on_force: Callable[[], None] = lambda: None
        """Told when it happens again: there is no time left."""

    def run(self) -> _T:
        """The work's result, or its error."""
        thread = threading.Thread(target=self._do, name="pipeline", daemon=True)
        with self._listening():
            thread.start()
            while thread.is_alive():
                thread.join(_POLL_SECONDS)
        if self._errors:
            raise self._errors[0]
        return self._results[0]

    @property
    def exit_code(self) -> int:
        """0, or what a shell expects of a program that a signal has ended."""
        return 0 if self.signal is None else 128 + self.signal

    def _do(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as error:
            self._errors.append(error)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            # a batch that is cut off here is taken up again by the next run
            self.on_force()
            os._exit(128 + number)
        self.signal = number
        self._stop.set()
        self.on_stop()

    @contextmanager
    def _listening(self) -> Iterator[None]:
        before = {n: signal.signal(n, self._asked) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
