"""Delivers notices to one target, in a thread of its own, so that a hanging target delays no other.

While a target does not answer, its notices wait, and alerts that begin and end meanwhile are not
sent. A message that the target refuses, or that is too old, is dropped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from tenacity import (
    RetryCallState,
    RetryError,
    Retrying,
    retry_if_result,
    sleep_using_event,
    stop_when_event_set,
    wait_random_exponential,
)

from distributary.config.alerts import AtMost
from distributary.observe.alerts.notice import AlertState, Notice, notices_in
from distributary.observe.alerts.targets import AlertTarget, DeliveryOutcome

# The limit of messages for a target, as pure functions: the caller knows the time and sends the
# messages. Notices beyond the limit wait. An alert that ends before it was sent is dropped
# meanwhile, so that later messages are still true; the rest is sent as one message. Ends of sent
# alerts are never dropped: they only wait.

MOST_WAITING = 2000
"""The largest number of notices that wait for one target; older ones are only counted."""

Summarise = Callable[[Sequence[Notice], int, datetime], Notice]
"""A function that builds one message for several notices and a count of dropped ones."""


class Limit:
    """The waiting notices and the sent messages of one target."""

    def __init__(self, at_most: AtMost, summarise: Summarise, *, one_by_one: bool = False) -> None:
        self._most = at_most.messages
        self._within = at_most.within
        self._summarise = summarise
        self._one_by_one = one_by_one
        """Whether alerts must be sent separately, because the target keeps them open itself."""
        self._sent: deque[datetime] = deque()
        self._ends: dict[str, Notice] = {}
        self._begins: dict[str, Notice] = {}
        """Notices of raised alerts and single events, the oldest first."""
        self._crowded = False
        self._uncounted = 0
        """The number of dropped notices."""
        self.revision = 0
        """A number that changes with every change of the state."""

    @property
    def waiting(self) -> tuple[Notice, ...]:
        """Return the notices that are not sent yet."""
        return (*self._ends.values(), *self._begins.values())

    def offer(self, notice: Notice) -> None:
        """Add a notice."""
        self.revision += 1
        if notice.state is AlertState.RESOLVED:
            self._ends[notice.key] = notice
        elif self._ends.pop(notice.key, None) is not None:
            # the end of this alert was waiting: drop it, because the alert continues
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
        """Combine later notices into one message, because the target does not answer."""
        self._crowded = True
        self._forget_what_is_over()

    def take(self, now: datetime) -> Notice | None:
        """Return the next message, which counts as sent; None if there is none or no room."""
        if not self._ends and not self._begins:
            return None
        if self.room_in(now) > timedelta(0):
            self.hold()
            return None
        self.revision += 1
        self._sent.append(now)
        ended_before = (key for key in self._ends if key not in self._begins)
        if (key := next(ended_before, None)) is not None:
            return self._ends.pop(key)
        if self._crowded and (summary := self._summary(now)) is not None:
            return summary
        return self._begins.pop(next(iter(self._begins)))

    def _forget_what_is_over(self) -> None:
        for key in self._begins.keys() & self._ends.keys():
            del self._begins[key], self._ends[key]
            self._uncounted += 1

    def room_in(self, now: datetime) -> timedelta:
        """Return the time until one more message may be sent."""
        # a clock that was set back must not stop delivery
        while self._sent and not timedelta(0) <= now - self._sent[0] < self._within:
            self._sent.popleft()
        if len(self._sent) < self._most:
            return timedelta(0)
        return self._sent[0] + self._within - now

    def _summary(self, now: datetime) -> Notice | None:
        """Return one message for all waiting notices; None if single messages are better."""
        notices = [
            notice
            for notice in self._begins.values()
            if not self._one_by_one or notice.state is AlertState.INFO
        ]
        self._crowded = len(notices) < len(self._begins)
        if len(notices) < 2:
            return None
        for notice in notices:
            del self._begins[notice.key]
        uncounted, self._uncounted = self._uncounted, 0
        return self._summarise(notices, uncounted, now)

    def memory(self) -> dict[str, Any]:
        """Return the state as a document for a file."""
        return {
            "sent": [moment.timestamp() for moment in self._sent],
            "waiting": [notice.as_dict() for notice in self.waiting],
        }

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Read the state that `memory` returned; skip anything else."""
        sent = memory.get("sent")
        for moment in sorted(m for m in sent if _is_moment(m)) if isinstance(sent, list) else ():
            self._sent.append(datetime.fromtimestamp(moment, UTC))
        for notice in notices_in(memory.get("waiting")):
            self.offer(notice)


def _is_moment(value: object) -> bool:
    # up to the year 9999: later ones are no datetime
    return isinstance(value, int | float) and 0 <= value < 253_402_300_800


_log = logging.getLogger(__name__)

_LONGEST_NAP = 60.0


def utc_now() -> datetime:
    """Return the time in UTC."""
    return datetime.now(UTC)


class Courier:
    """The queue and the thread of one target."""

    def __init__(
        self,
        target: AlertTarget,
        limit: Limit,
        *,
        give_up_after: timedelta,
        clock: Callable[[], datetime] = utc_now,
        longest_pause: float = 300.0,
    ) -> None:
        self.name = target.name
        self._target = target
        self._limit = limit
        self._give_up_after = give_up_after
        self._clock = clock
        self._changed = threading.Condition()
        self._closing = False
        self._halt = threading.Event()
        """Set when no time is left: deliveries in progress are abandoned."""
        self._under_way: Notice | None = None
        self._settled = 0
        self._pauses = wait_random_exponential(
            multiplier=min(1.0, longest_pause), max=longest_pause
        )
        self._thread = threading.Thread(target=self._work, name=f"alerts-{self.name}", daemon=True)

    def start(self) -> None:
        """Begin to deliver."""
        self._thread.start()

    def offer(self, notice: Notice) -> None:
        """Add a notice, to send after the next `poke`: so it can be stored before it is sent."""
        with self._changed:
            self._limit.offer(notice)

    def poke(self) -> None:
        """Send waiting notices, as far as the limit allows."""
        with self._changed:
            self._changed.notify()

    def finish(self) -> None:
        """End as soon as all allowed messages are sent."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def join(self, until: float) -> None:
        """Wait for the end, up to a moment of the monotonic clock; then stop the thread."""
        if self._thread.ident is None:
            return
        self._thread.join(max(0.0, until - time.monotonic()))
        self._halt.set()
        self.poke()
        if not self._thread.is_alive():
            self._target.close()

    @property
    def revision(self) -> int:
        """Return a number that changes with every change of the state."""
        return self._limit.revision + self._settled

    def memory(self) -> dict[str, Any]:
        """Return the undelivered notices as plain data for a file."""
        with self._changed:
            known = self._limit.memory()
            if self._under_way is not None:
                known["under_way"] = [self._under_way.as_dict()]
            return known

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Restore the state of an earlier process."""
        for notice in notices_in(memory.get("under_way")):
            self._limit.offer(notice)
        self._limit.recall(memory)

    def _work(self) -> None:
        while (notice := self._next()) is not None:
            if not self._deliver(notice):
                # neither delivered nor dropped: the next process sends it
                return
            with self._changed:
                self._under_way = None
                self._settled += 1

    def _next(self) -> Notice | None:
        """Wait for the next message; return None at the end."""
        with self._changed:
            while not self._halt.is_set():
                self._under_way = self._limit.take(self._clock())
                if self._under_way is not None or self._closing:
                    return self._under_way
                self._changed.wait(_LONGEST_NAP)
        return None

    def _deliver(self, notice: Notice) -> bool:
        """Deliver a notice; return whether it is done, delivered or dropped."""
        attempts = Retrying(
            retry=retry_if_result(lambda outcome: not outcome.delivered and outcome.again),
            wait=self._pause,
            stop=lambda state: stop_when_event_set(self._halt)(state) or self._too_old(notice),
            sleep=sleep_using_event(self._halt),
            before_sleep=self._wait_for_target,
        )
        try:
            outcome: DeliveryOutcome = attempts(self._target.send, notice)
        except RetryError as error:
            outcome = error.last_attempt.result()
        interrupted = self._halt.is_set() and outcome.again and not self._too_old(notice)
        if not interrupted:
            self._report(notice, outcome)
        return not interrupted

    def _pause(self, state: RetryCallState) -> float:
        asked: float = state.outcome.result().wait if state.outcome is not None else 0.0
        return max(asked, self._pauses(state))

    def _too_old(self, notice: Notice) -> bool:
        return self._clock() - notice.at > self._give_up_after

    def _wait_for_target(self, state: RetryCallState) -> None:
        with self._changed:
            self._limit.hold()
        if state.attempt_number == 1 and state.outcome is not None:
            why = state.outcome.result().why
            _log.info("alert target %s is out of reach, tried again: %s", self.name, why)

    def _report(self, notice: Notice, outcome: DeliveryOutcome) -> None:
        if not outcome.delivered:
            _log.warning(
                "alert %s (%s) was not delivered to %s and is given up: %s",
                notice.key,
                notice.state,
                self.name,
                outcome.why,
            )
        elif outcome.why:
            _log.warning("alert target %s: %s", self.name, outcome.why)
