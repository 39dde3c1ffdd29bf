"""One pipeline under the supervisor: started, heard, started again, given up, stopped."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from distributary.config.engine import UNLIMITED, Limit, Restart
from distributary.errors import DistributaryError, ErrorCode
from distributary.model.manifest import Counts
from distributary.observe.events import (
    BatchSettled,
    BatchStarted,
    Beat,
    Event,
    Failed,
    Idle,
    ProcessStarted,
    Recovered,
    decode,
    read_error,
)
from distributary.supervise.process import Keeper, Tell

# What the end of a process means: done, try again, or a matter for a person.

_USAGE, _TRY_AGAIN = 2, 75
_MOST = 500

FINAL_CODES = frozenset(
    {
        ErrorCode.JAVA_MISSING,
        ErrorCode.EXTRA_MISSING,
        ErrorCode.CONFIRMATION_NEEDED,
        ErrorCode.CHECKPOINT_DIVERGED,
        ErrorCode.CHECKPOINT_INVALID,
        ErrorCode.CHECKPOINT_LOST,
        ErrorCode.LAKE_BEHIND,
        ErrorCode.TABLE_BEHIND,
        ErrorCode.RESTORE_UNFINISHED,
        ErrorCode.ACCOUNTING_BROKEN,
        ErrorCode.EVOLUTION_REFUSED,
        ErrorCode.EXPECTATION_REFUSED,
    }
)
"""Besides exit code 2: the same again would only fail again, and must not hide in a loop."""


class Kind(StrEnum):
    """The ways to end."""

    DONE = "done"
    PASSING = "passing"
    """A failure that says itself that it may pass."""
    CRASHED = "crashed"
    """A failure that does not say so."""
    FINAL = "final"


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a process has ended."""

    kind: Kind
    error: DistributaryError | None = None
    parked: int = 0
    """Tables for which something waits, of a process that is done."""


def judge(code: int, printed: str, *, last_error: DistributaryError | None, said: str) -> Verdict:
    """What an exit means; `code` is negative for a signal, as `subprocess` has it.

    `printed` is standard output, the command's document; `last_error` that of the last failure
    that was told as an event; `said` the last line on standard error.
    """
    document: Any = None
    with suppress(RecursionError, ValueError):
        document = json.loads(printed)
    document = document if isinstance(document, dict) else {}
    told = document.get("error")
    if not told and document.get("stopped") == "done" and code in (0, 1):
        waits = document.get("still_parked")
        parked = waits.get("tables") if isinstance(waits, dict) else 0
        return Verdict(Kind.DONE, parked=parked if isinstance(parked, int) else 0)
    if code == 0:
        return Verdict(Kind.DONE)
    error = last_error or _silent(code, said)
    if isinstance(told, dict):
        with suppress(AttributeError, TypeError):
            error = read_error(told | {"exit_code": code, "context": {}})
    if code == _USAGE or error.code in FINAL_CODES:
        return Verdict(Kind.FINAL, error)
    passing = code == _TRY_AGAIN or error.retryable
    return Verdict(Kind.PASSING if passing else Kind.CRASHED, error)


def _silent(code: int, said: str) -> DistributaryError:
    known = {each.value: each.name for each in signal.Signals}
    how = f"signal {known.get(-code, -code)}" if code < 0 else f"exit code {code}"
    return DistributaryError(
        "the process of the pipeline ended without a word",
        code=ErrorCode.PROCESS_DIED,
        evidence=f"{how}; {said[:_MOST]}" if said else how,
        next_step="nothing is half done; read the lines before this one in the log",
    )


# How long to wait before a restart, and whether there is one: pure functions of what happened.

_MOST_DOUBLINGS = 40
"""Enough for any pause; a power of two beyond it only costs time."""


@dataclass(frozen=True, slots=True)
class Streak:
    """Failures in a row."""

    failures: int = 0
    crashes: int = 0
    """Those among them that do not say that they may pass."""

    def after(self, verdict: Verdict, *, ran: float, policy: Restart) -> Streak:
        """One more failure; a process that ran long enough began a new row."""
        so_far = Streak() if ran >= policy.reset_after.total_seconds() else self
        return Streak(so_far.failures + 1, so_far.crashes + (verdict.kind is Kind.CRASHED))

    def is_over(self, verdict: Verdict, policy: Restart) -> bool:
        """Whether there is no further restart after the last of these failures."""
        if verdict.kind is Kind.FINAL:
            return True
        crashed = verdict.kind is Kind.CRASHED and _beyond(self.crashes, policy.max_crashes)
        return crashed or _beyond(self.failures, policy.max)


chance = random.SystemRandom().random
"""From 0 to 1."""


def pause(policy: Restart, failures: int, *, chance: Callable[[], float]) -> float:
    """Seconds until the restart after so many failures in a row.

    It doubles from `initial` to `longest`. A random half is left out, so that pipelines that failed
    together do not come back together; `chance` gives numbers from 0 to 1.
    """
    doublings = min(max(failures - 1, 0), _MOST_DOUBLINGS)
    grown = policy.initial.total_seconds() * float(2**doublings)
    full = min(grown, policy.longest.total_seconds())
    return full * (1 - chance() / 2)


def _beyond(count: int, limit: Limit) -> bool:
    return limit != UNLIMITED and count > limit


# What is known of each pipeline, as facts that any thread may read.


class State(StrEnum):
    """Where a pipeline is."""

    WAITING = "waiting"
    """Not started yet."""
    STARTING = "starting"
    """Its process runs, and was not heard of yet."""
    RUNNING = "running"
    RETRYING = "retrying"
    """Something failed, and its process tries it again."""
    BACKOFF = "backoff"
    """Its process failed, and will be started again."""
    STOPPING = "stopping"
    STOPPED = "stopped"
    DONE = "done"
    FAILED = "failed"
    """For good."""


ENDED = frozenset({State.STOPPED, State.DONE, State.FAILED})
_OF_LAST_BATCH = (
    *("batch", "at", "rows", "tables", "seconds"),
    *("records_per_second", "lag_records", "lag_seconds"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatus:
    """One pipeline, at one moment."""

    name: str
    file: str
    state: State = State.WAITING
    pid: int | None = None
    restarts: int = 0
    batch: int | None = None
    """The batch under way."""
    settled: BatchSettled | None = None
    """The last batch that was settled under this supervisor."""
    counts: Counts = field(default_factory=Counts)
    """Of all batches under this supervisor."""
    batches: int = 0
    error: DistributaryError | None = None
    """What failed last, until something goes well again."""
    retry_at: datetime | None = None
    """When it is tried again."""
    retrying_since: datetime | None = None
    """When what is tried again failed first."""
    lag: tuple[int | None, datetime | None] = (None, None)
    """Records that no table has yet, and when the source was asked."""

    @property
    def is_ready(self) -> bool:
        """Whether it does what it should: it is done, or goes on after its last failure."""
        if self.state is State.DONE:
            return True
        return self.state is State.RUNNING and self.error is None

    @property
    def why(self) -> str:
        """Why it is not ready; nothing in it is a secret."""
        return str(self.state) if self.error is None else f"{self.state}: {self.error.code}"

    def hearing(self, event: Event) -> PipelineStatus:
        """The same after an event of its process."""
        match event:
            case BatchStarted():
                return self._well(batch=event.batch)
            case BatchSettled():
                counts, batches = self.counts + event.counts, self.batches + 1
                return self._well(batch=None, settled=event, counts=counts, batches=batches)
            case Idle():
                return self._well(batch=None)
            case Failed() if event.retry_in is not None:
                at = event.at + timedelta(seconds=event.retry_in)
                state = State.STOPPING if self.state is State.STOPPING else State.RETRYING
                batch = self.batch if event.under_way else None
                since = self.retrying_since or event.at
                return replace(
                    self,
                    state=state,
                    error=event.error,
                    batch=batch,
                    retry_at=at,
                    retrying_since=since,
                )
            case Recovered():
                return self._well(batch=self.batch, recovered=True)
            case Beat():
                lag = (event.lag_records, event.lag_at)
                state = State.RUNNING if self.state is State.STARTING else self.state
                return replace(self, state=state, lag=lag if event.lag_at else self.lag)
            case Failed():
                return replace(self, error=event.error, batch=None)
        return self

    def _well(self, *, recovered: bool = False, **changes: Any) -> PipelineStatus:
        # a batch that has begun may be the one that failed: only its end shows that all is well
        well = recovered or self.error is None or changes["batch"] is None
        if self.state is State.STOPPING:
            return replace(self, **changes)
        if not well:
            state = self.state if self.state is State.RETRYING else State.RUNNING
            return replace(self, state=state, retry_at=None, **changes)
        return replace(
            self, state=State.RUNNING, error=None, retry_at=None, retrying_since=None, **changes
        )

    def as_dict(self) -> dict[str, Any]:
        """For `/status` and `--json`."""
        settled = self.settled
        return {
            "pipeline": self.name,
            "file": self.file,
            "state": str(self.state),
            "ready": self.is_ready,
            "pid": self.pid,
            "restarts": self.restarts,
            "next_retry_at": self.retry_at,
            "retrying_since": self.retrying_since,
            "lag_records": self.lag[0],
            "lag_at": self.lag[1],
            "batch": self.batch,
            "last_batch": None
            if settled is None
            else {"read": settled.counts.read}
            | {name: getattr(settled, name) for name in _OF_LAST_BATCH},
            "batches": self.batches,
            **asdict(self.counts),
            "last_error": None if self.error is None else self.error.as_dict(),
        }


def readiness(pipelines: Iterable[PipelineStatus]) -> dict[str, Any]:
    """Whether all are ready; which are not, and why."""
    waiting = {each.name: each.why for each in pipelines if not each.is_ready}
    return {"ready": not waiting, "not_ready": waiting}


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

    def __init__(self, spec: Spec, *, grace: float, tell: Tell) -> None:
        super().__init__(spec.name, spec.command, grace=grace, tell=tell, mask=spec.mask)
        self._policy = spec.restart
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
            not_started = DistributaryError(
                "the process of the pipeline could not be started",
                code=ErrorCode.PROCESS_DIED,
                evidence=error.strerror or type(error).__name__,
                next_step="check memory and the limit of processes of this machine",
            )
            self._failed(Verdict(Kind.CRASHED, not_started), now)
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
        wait = pause(self._policy, self._streak.failures, chance=chance)
        self._start_at = now + wait
        at = datetime.now(UTC) + timedelta(seconds=wait)
        self._set(state=State.BACKOFF, error=error, retry_at=at)
        self._tell(Failed(pipeline=self.name, error=error, retry_in=wait))

    def _give_up(self, error: DistributaryError) -> None:
        self._set(state=State.FAILED, error=error, retry_at=None)
        self._tell(Failed(pipeline=self.name, error=error))

    def _set(self, **changes: object) -> None:
        self.status = replace(self.status, **changes)  # type: ignore[arg-type]
