"""One pipeline under the supervisor: started, heard, started again, given up, stopped."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from distributary.config.restart import Restart
from distributary.errors import DistributaryError, ErrorCode
from distributary.observe.event_lines import decode
from distributary.observe.events import Failed, ProcessStarted
from distributary.supervise.backoff import Streak, pause
from distributary.supervise.keeper import Keeper, Tell
from distributary.supervise.status import ENDED, PipelineStatus, State
from distributary.supervise.verdict import Kind, Verdict, judge

_chance = random.SystemRandom().random


@dataclass(frozen=True, slots=True)
class Spec:
    """A pipeline that is to be run."""

    name: str
    file: str
    command: Sequence[str]
    restart: Restart = field(default_factory=Restart)
    mask: Callable[[str], str] = str
    """Hides its secrets."""
    refused: DistributaryError | None = None
    """Why it cannot even be started."""


class Member(Keeper):
    """A pipeline, and the process that runs it."""

    def __init__(
        self,
        spec: Spec,
        *,
        grace: float,
        tell: Tell,
        chance: Callable[[], float] = _chance,
    ) -> None:
        super().__init__(spec.name, spec.command, grace=grace, tell=tell, mask=spec.mask)
        self._policy, self._chance = spec.restart, chance
        self._refused = spec.refused
        self._streak = Streak()
        self._start_at = float("-inf")
        self._last_error: DistributaryError | None = None
        self.parked = False
        """Whether it is done, but a table could not be written."""
        self.status = PipelineStatus(name=spec.name, file=spec.file)
        """Replaced, never changed: any thread may read it."""

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen."""
        return self.status.state in ENDED

    def stop(self, now: float) -> None:
        """Ask its process to end."""
        super().stop(now)
        if self.ended:
            return
        state = State.STOPPED if self.pid is None else State.STOPPING
        self._set(state=state, retry_at=None)

    def kill(self) -> None:
        """End its process now."""
        super().kill()
        if not self.ended and self.pid is None:
            self._set(state=State.STOPPED, retry_at=None)

    def _due(self, now: float) -> None:
        if self.ended or now < self._start_at:
            return
        if self._refused is not None:
            self._give_up(self._refused)
            return
        again = self.status.state is State.BACKOFF
        self._last_error = None
        try:
            self._start(now)
        except OSError as error:
            self._failed(Verdict(Kind.CRASHED, _not_started(error)), now)
            return
        restarts = self.status.restarts + int(again)
        self._set(state=State.STARTING, pid=self.pid, restarts=restarts, retry_at=None)
        self._tell(ProcessStarted(pipeline=self.name, pid=self.pid or 0, restarts=restarts))

    def _happened(self, line: str) -> None:
        event = decode(line)
        if event is None:
            return
        event = replace(event, pipeline=self.name)
        self.status = self.status.hearing(event)
        if isinstance(event, Failed) and event.retry_in is None:
            # told when its process has ended: only then is it known what follows
            self._last_error = event.error
        else:
            self._tell(event)

    def _ended(self, code: int, now: float) -> None:
        printed = "\n".join(self._printed)
        verdict = judge(code, printed, last_error=self._last_error, said=self._said)
        self._set(pid=None, batch=None)
        if verdict.kind is Kind.DONE:
            self.parked = verdict.parked > 0
            self._set(state=State.DONE, error=None, retry_at=None)
        elif self.stopping:
            self._set(state=State.STOPPED, retry_at=None)
        else:
            self._failed(verdict, now)

    def _failed(self, verdict: Verdict, now: float) -> None:
        error = verdict.error or DistributaryError("it failed")
        self._streak = self._streak.after(verdict, ran=now - self._began, policy=self._policy)
        if self._streak.is_over(verdict, self._policy):
            self._give_up(error)
            return
        wait = pause(self._policy, self._streak.failures, chance=self._chance)
        self._start_at = now + wait
        at = datetime.now(UTC) + timedelta(seconds=wait)
        self._set(state=State.BACKOFF, error=error, retry_at=at)
        self._tell(Failed(pipeline=self.name, error=error, retry_in=wait))

    def _give_up(self, error: DistributaryError) -> None:
        self._set(state=State.FAILED, error=error, retry_at=None)
        self._tell(Failed(pipeline=self.name, error=error))

    def _set(self, **changes: object) -> None:
        self.status = replace(self.status, **changes)  # type: ignore[arg-type]


def _not_started(error: OSError) -> DistributaryError:
    return DistributaryError(
        "the process of the pipeline could not be started",
        code=ErrorCode.PROCESS_DIED,
        evidence=error.strerror or type(error).__name__,
        next_step="check memory and the limit of processes of this machine",
    )
