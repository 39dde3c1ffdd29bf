"""Open connections of a server, bounded: who says nothing makes room for who comes."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Connection = TypeVar("Connection", bound=Hashable)


@dataclass(slots=True)
class _State:
    client: str
    since: float
    waiting: bool = True


class Connections(Generic[Connection]):
    """A newcomer is always let in, so that a probe is answered however many are silent.

    When there are too many, one that waits for a request has to go, else one that is answered: the
    oldest one of the client that has the most. Thread-safe.
    """

    def __init__(
        self, most: int, *, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most, self._seconds, self._clock = most, seconds, clock
        self._lock = threading.Lock()
        # in the order in which they came
        self._open: dict[Connection, _State] = {}

    def arrived(self, one: Connection, client: str) -> Connection | None:
        """Counts a connection; gives the one that has to be closed for it, if there is one."""
        with self._lock:
            before = dict(self._open)
            self._open[one] = _State(client, self._clock())
            if len(before) < self._most:
                return None
            found = {each: state for each, state in before.items() if state.waiting} or before
            share = Counter(state.client for state in found.values())
            most = max(share.values())
            chosen = next(each for each, state in found.items() if share[state.client] == most)
            del self._open[chosen]
            return chosen

    def asked(self, one: Connection) -> None:
        """Its request has come as a whole: the next wait is ours."""
        self._mark(one, waiting=False)

    def answered(self, one: Connection) -> None:
        """It may send another request."""
        self._mark(one, waiting=True)

    def left(self, one: Connection) -> None:
        """It is closed."""
        with self._lock:
            self._open.pop(one, None)

    def overdue(self) -> list[Connection]:
        """Those that should have sent a whole request by now; they are counted no longer."""
        with self._lock:
            end = self._clock() - self._seconds
            late = [one for one, state in self._open.items() if state.waiting and state.since < end]
            for one in late:
                del self._open[one]
            return late

    def _mark(self, one: Connection, *, waiting: bool) -> None:
        with self._lock:
            state = self._open.get(one)
            if state is not None and state.waiting is not waiting:
                state.waiting, state.since = waiting, self._clock()
