"""A command of ours, again and again: upkeep that runs beside a pipeline, never twice at once."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import timedelta

from distributary.errors import DistributaryError, ErrorCode
from distributary.observe.events import TaskFailed
from distributary.observe.log_format import LogLine
from distributary.supervise.keeper import Keeper, Tell
from distributary.supervise.verdict import Kind, judge

_JITTER = 0.1
"""Share of the interval by which a start may be late: pipelines do not all work at once."""
_MOST = 2_000
_chance = random.SystemRandom().random


class Schedule(Keeper):
    """Runs a command at an interval, counted from start to start.

    One that takes longer than the interval is followed by the next at once, and what was missed is
    not made up for. What it prints goes to the log; a failure is told as an event, and the next
    run comes all the same.
    """

    def __init__(
        self,
        task: str,
        command: Sequence[str],
        *,
        pipeline: str,
        every: timedelta,
        grace: float,
        tell: Tell,
        mask: Callable[[str], str] = str,
        chance: Callable[[], float] = _chance,
    ) -> None:
        super().__init__(pipeline, command, grace=grace, tell=tell, mask=mask)
        self._task, self._every, self._chance = task, every.total_seconds(), chance
        self._next: float | None = None
        self.runs = 0
        """How often it has ended."""

    @property
    def ended(self) -> bool:
        """Whether it was stopped, and nothing of it runs."""
        return self.stopping and self.pid is None

    def _due(self, now: float) -> None:
        if self._next is None:
            # the first one waits, too: a pipeline that starts has enough to do
            self._next = self._after(now)
        if now < self._next:
            return
        self._next = self._after(now)
        try:
            self._start(now)
        except OSError as error:
            self._report(DistributaryError(f"{self._task} was not started", evidence=str(error)))

    def _after(self, now: float) -> float:
        return now + self._every * (1 + _JITTER * self._chance())

    def _happened(self, line: str) -> None:
        """Commands besides `run` have no events."""

    def _ended(self, code: int, now: float) -> None:
        self.runs += 1
        printed = self._mask("\n".join(self._printed).strip())
        if printed:
            line = LogLine(message=printed[:_MOST], event=self._task, pipeline=self.name)
            self._tell(line)
        verdict = judge(code, printed, last_error=None, said=self._said)
        if verdict.kind is Kind.DONE or self.stopping or verdict.error is None:
            return
        # another process does the same already: it is being done
        if verdict.error.code is not ErrorCode.CHECKPOINT_OWNED:
            self._report(verdict.error)

    def _report(self, error: DistributaryError) -> None:
        self._tell(TaskFailed(pipeline=self.name, task=self._task, error=error))
