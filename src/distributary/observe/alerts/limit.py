"""How much a target is told at once. Pure: somebody else knows the time and sends the messages.

What there is no room for waits. Meanwhile an alert that ends without having been told is
forgotten, so that what is told at last is still true; the rest is told in one message. Ends of
alerts that were told are never left out: they only wait for room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from distributary.config.alerts import AtMost
from distributary.observe.alerts.notice import Notice, State, notices_in

MOST_WAITING = 2000
"""Notices that wait for one target; beyond, the oldest are only counted."""

Summarise = Callable[[Sequence[Notice], int, datetime], Notice]
"""One message for several, for a number of others that nothing will be said about, and the time."""


class Limit:
    """What waits for one target, and how many messages it has got."""

    def __init__(self, at_most: AtMost, summarise: Summarise, *, one_by_one: bool = False) -> None:
        self._most = at_most.messages
        self._within = at_most.within
        self._summarise = summarise
        self._one_by_one = one_by_one
        """Whether each alert must be told as itself, because the target keeps it open itself."""
        self._sent: deque[datetime] = deque()
        self._ends: dict[str, Notice] = {}
        self._begins: dict[str, Notice] = {}
        """Raised and told-once notices, oldest first."""
        self._crowded = False
        self._uncounted = 0
        """Notices of which nothing will be said but their number."""
        self.revision = 0
        """Another one whenever something has changed."""

    @property
    def waiting(self) -> tuple[Notice, ...]:
        """What is not told yet."""
        return (*self._ends.values(), *self._begins.values())

    def offer(self, notice: Notice) -> None:
        """Something to tell."""
        self.revision += 1
        if notice.state is State.RESOLVED:
            self._ends[notice.key] = notice
        elif self._ends.pop(notice.key, None) is not None:
            # it was about to be told that this is over: it goes on as if it never was
            self._uncounted += 1
        else:
            self._begins[notice.key] = notice
        if self._crowded:
            self._forget_what_is_over()
        while len(self._begins) > MOST_WAITING:
            oldest = next(iter(self._begins))
            self._ends.pop(oldest, None)
            del self._begins[oldest]
            self._uncounted += 1

    def hold(self) -> None:
        """The target is out of reach: what comes meanwhile is told in one message."""
        self._crowded = True
        self._forget_what_is_over()

    def take(self, now: datetime) -> Notice | None:
        """The next message, which counts as sent; None while there is nothing or no room."""
        if not self._ends and not self._begins:
            return None
        if self.room_in(now) > timedelta(0):
            self.hold()
            return None
        self.revision += 1
        self._sent.append(now)
        told_before = (key for key in self._ends if key not in self._begins)
        if (key := next(told_before, None)) is not None:
            return self._ends.pop(key)
        if self._crowded and (summary := self._summary(now)) is not None:
            return summary
        return self._begins.pop(next(iter(self._begins)))

    def _forget_what_is_over(self) -> None:
        for key in self._begins.keys() & self._ends.keys():
            del self._begins[key], self._ends[key]
            self._uncounted += 1

    def room_in(self, now: datetime) -> timedelta:
        """How long it is until one more message may be sent."""
        # a clock that was set back must not stop everything
        while self._sent and not timedelta(0) <= now - self._sent[0] < self._within:
            self._sent.popleft()
        if len(self._sent) < self._most:
            return timedelta(0)
        return self._sent[0] + self._within - now

    def _summary(self, now: datetime) -> Notice | None:
        """One message for all that waits; None where it is better told by itself."""
        told = [
            notice
            for notice in self._begins.values()
            if not self._one_by_one or notice.state is State.INFO
        ]
        self._crowded = len(told) < len(self._begins)
        if len(told) < 2:
            return None
        for notice in told:
            del self._begins[notice.key]
        uncounted, self._uncounted = self._uncounted, 0
        return self._summarise(told, uncounted, now)

    def memory(self) -> dict[str, Any]:
        """For a file."""
        return {
            "sent": [moment.timestamp() for moment in self._sent],
            "waiting": [notice.as_dict() for notice in self.waiting],
        }

    def recall(self, memory: Mapping[str, Any]) -> None:
        """The inverse of `memory`; what is no such memory is passed over."""
        sent = memory.get("sent")
        for moment in sorted(m for m in sent if _is_moment(m)) if isinstance(sent, list) else ():
            self._sent.append(datetime.fromtimestamp(moment, UTC))
        for notice in notices_in(memory.get("waiting")):
            self.offer(notice)


def _is_moment(value: object) -> bool:
    # up to the year 9999: later ones are no datetime
    return isinstance(value, int | float) and 0 <= value < 253_402_300_800
