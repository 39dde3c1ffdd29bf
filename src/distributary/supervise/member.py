"""One pipeline under the supervisor: its process is started, restarted, given up and stopped."""

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

from distributary.config.runtime import UNLIMITED, Limit, Restart
from distributary.errors import DistributaryError, ErrorCode
from distributary.model.manifest import Counts
from distributary.observe.documents import read_error
from distributary.observe.events import (
    BatchSettled,
    BatchStarted,
    Beat,
    Event,
    Failed,
    Idle,
    Paused,
    ProcessStarted,
    RecordsHeld,
    Recovered,
    decode,
)
from distributary.supervise.process import Keeper, Tell

# How the end of a process is classified: done, try again, or a person has to act.

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
"""Errors that a restart cannot fix, besides exit code 2: a loop of restarts would hide them."""


class EndKind(StrEnum):
    """The ways in which a process can end."""

    DONE = "done"
    PASSING = "passing"
    """A failure that is marked as temporary."""
    CRASHED = "crashed"
    """A failure that is not marked as temporary."""
    FINAL = "final"


@dataclass(frozen=True, slots=True)
class EndVerdict:
    """The classification of a process's end."""

    kind: EndKind
    error: DistributaryError | None = None
    parked: int = 0
    """Tables with parked batches, for a process that is done."""


def judge(
    code: int, printed: str, *, last_error: DistributaryError | None, last_line: str
) -> EndVerdict:
    """Classify the end of a process; `code` is negative for a signal, as in `subprocess`.

    `printed` is standard output, which holds the command's document; `last_error` is the last
    failure that the process sent as an event; `last_line` is the last line on standard error.
    """
    document: Any = None
    with suppress(RecursionError, ValueError):
        document = json.loads(printed)
    document = document if isinstance(document, dict) else {}
    error_document = document.get("error")
    if not error_document and document.get("stopped") == "done" and code in (0, 1):
        waits = document.get("still_parked")
        parked = waits.get("tables") if isinstance(waits, dict) else 0
        return EndVerdict(EndKind.DONE, parked=parked if isinstance(parked, int) else 0)
    if code == 0:
        return EndVerdict(EndKind.DONE)
    error = last_error or _silent(code, last_line)
    if isinstance(error_document, dict):
        with suppress(AttributeError, TypeError):
            error = read_error(error_document | {"exit_code": code, "context": {}})
    if code == _USAGE or error.code in FINAL_CODES:
        return EndVerdict(EndKind.FINAL, error)
    passing = code == _TRY_AGAIN or error.retryable
    return EndVerdict(EndKind.PASSING if passing else EndKind.CRASHED, error)


def _silent(code: int, last_line: str) -> DistributaryError:
    known = {number.value: number.name for number in signal.Signals}
    how = f"signal {known.get(-code, -code)}" if code < 0 else f"exit code {code}"
    return DistributaryError(
        "the process of the pipeline ended without a message",
        code=ErrorCode.PROCESS_DIED,
        evidence=f"{how}; {last_line[:_MOST]}" if last_line else how,
        next_step="no batch is half written; read the lines before this one in the log",
    )


# The pause before a restart, and whether there is one: pure functions of the failures so far.

_MOST_DOUBLINGS = 40
"""Enough for any pause; computing a higher power of two only costs time."""


@dataclass(frozen=True, slots=True)
class Streak:
    """Failures in a row."""

    failures: int = 0
    crashes: int = 0
    """The failures among them that are not marked as temporary."""

    def after(self, verdict: EndVerdict, *, ran: float, policy: Restart) -> Streak:
        """Return the streak after one more failure.

        A process that ran long enough starts a new streak.
        """
        so_far = Streak() if ran >= policy.reset_after.total_seconds() else self
        return Streak(so_far.failures + 1, so_far.crashes + (verdict.kind is EndKind.CRASHED))

    def is_over(self, verdict: EndVerdict, policy: Restart) -> bool:
        """Return whether the policy allows no further restart after the last of these failures."""
        if verdict.kind is EndKind.FINAL:
            return True
        crashed = verdict.kind is EndKind.CRASHED and _beyond(self.crashes, policy.max_crashes)
        return crashed or _beyond(self.failures, policy.max)


chance = random.SystemRandom().random
"""Return a random number from 0 to 1."""


def pause(policy: Restart, failures: int, *, chance: Callable[[], float]) -> float:
    """Return the seconds until the restart after `failures` failures in a row.

    The pause doubles from `initial` to `longest`. It is shortened by a random part of at most one
    half, so that pipelines that failed together do not restart together. `chance` returns numbers
    from 0 to 1.
    """
    doublings = min(max(failures - 1, 0), _MOST_DOUBLINGS)
    grown = policy.initial.total_seconds() * float(2**doublings)
    full = min(grown, policy.longest.total_seconds())
    return full * (1 - chance() / 2)


def _beyond(count: int, limit: Limit) -> bool:
    return limit != UNLIMITED and count > limit


# The status of each pipeline, as immutable facts that any thread may read.


class MemberState(StrEnum):
    """The states of a pipeline under the supervisor."""

    WAITING = "waiting"
    """Not started yet."""
    STARTING = "starting"
    """The process runs and has sent no event yet."""
    RUNNING = "running"
    PAUSED = "paused"
    """The process runs and reads nothing, because a person has paused the pipeline."""
    RETRYING = "retrying"
    """Something failed, and its process retries it."""
    BACKOFF = "backoff"
    """The process failed and will be restarted."""
    STOPPING = "stopping"
    STOPPED = "stopped"
    DONE = "done"
    FAILED = "failed"
    """The process failed and is not restarted."""


ENDED = frozenset({MemberState.STOPPED, MemberState.DONE, MemberState.FAILED})
_OF_LAST_BATCH = (
    *("batch", "at", "rows", "tables", "seconds"),
    *("records_per_second", "lag_records", "lag_seconds"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStatus:
    """The status of one pipeline at one moment."""

    name: str
    file: str
    state: MemberState = MemberState.WAITING
    pid: int | None = None
    restarts: int = 0
    batch: int | None = None
    """The batch under way."""
    settled: BatchSettled | None = None
    """The last batch that was settled under this supervisor."""
    counts: Counts = field(default_factory=Counts)
    """The sums of all batches under this supervisor."""
    batches: int = 0
    error: DistributaryError | None = None
    """The last failure, until something succeeds again."""
    retry_at: datetime | None = None
    """The time of the next attempt."""
    retrying_since: datetime | None = None
    """The time of the first failure of what is being retried."""
    lag: tuple[int | None, datetime | None] = (None, None)
    """The number of records that no table has yet, and the time at which the source was asked."""

    @property
    def is_ready(self) -> bool:
        """Return whether the pipeline is done, or has recovered from its last failure."""
        if self.state is MemberState.DONE:
            return True
        return self.state in (MemberState.RUNNING, MemberState.PAUSED) and self.error is None

    @property
    def why(self) -> str:
        """Return the reason why the pipeline is not ready, without secrets."""
        return str(self.state) if self.error is None else f"{self.state}: {self.error.code}"

    def hearing(self, event: Event) -> MemberStatus:
        """Return the status after an event of its process."""
        match event:
            case BatchStarted():
                return self._well(batch=event.batch)
            case BatchSettled():
                counts, batches = self.counts + event.counts, self.batches + 1
                return self._well(batch=None, settled=event, counts=counts, batches=batches)
            case Idle() | RecordsHeld():
                return self._well(batch=None)
            case Paused():
                calm = self._well(batch=None)
                running = calm.state is MemberState.RUNNING
                return replace(calm, state=MemberState.PAUSED) if running else calm
            case Failed() if event.retry_in is not None:
                at = event.at + timedelta(seconds=event.retry_in)
                state = (
                    MemberState.STOPPING
                    if self.state is MemberState.STOPPING
                    else MemberState.RETRYING
                )
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
                state = MemberState.RUNNING if self.state is MemberState.STARTING else self.state
                return replace(self, state=state, lag=lag if event.lag_at else self.lag)
            case Failed():
                return replace(self, error=event.error, batch=None)
        return self

    def _well(self, *, recovered: bool = False, **changes: Any) -> MemberStatus:
        # a batch that has begun may be the one that failed: only its end shows success
        well = recovered or self.error is None or changes["batch"] is None
        if self.state is MemberState.STOPPING:
            return replace(self, **changes)
        if not well:
            state = self.state if self.state is MemberState.RETRYING else MemberState.RUNNING
            return replace(self, state=state, retry_at=None, **changes)
        return replace(
            self,
            state=MemberState.RUNNING,
            error=None,
            retry_at=None,
            retrying_since=None,
            **changes,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the status as plain data for `/status` and `--json`."""
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


def readiness(pipelines: Iterable[MemberStatus]) -> dict[str, Any]:
    """Return whether all pipelines are ready, with the reasons of those that are not."""
    waiting = {status.name: status.why for status in pipelines if not status.is_ready}
    return {"ready": not waiting, "not_ready": waiting}


@dataclass(frozen=True, slots=True)
class Spec:
    """The settings with which a pipeline is started."""

    name: str
    file: str
    command: Sequence[str]
    restart: Restart = field(default_factory=Restart)
    mask: Callable[[str], str] = str
    """Hides the pipeline's secrets in a text."""
    refused: DistributaryError | None = None
    """The reason why it cannot be started at all."""


class Member(Keeper):
    """A pipeline and the process that runs it."""

    def __init__(self, spec: Spec, *, grace: float, tell: Tell) -> None:
        super().__init__(spec.name, spec.command, grace=grace, tell=tell, mask=spec.mask)
        self._policy = spec.restart
        self._refused = spec.refused
        self._streak = Streak()
        self._start_at = float("-inf")
        self._last_error: DistributaryError | None = None
        self.parked = False
        """Whether the pipeline is done although a table could not be written."""
        self.status = MemberStatus(name=spec.name, file=spec.file)
        """Replaced as a whole, never changed: any thread may read it."""

    @property
    def ended(self) -> bool:
        """Return whether nothing more will happen to the pipeline."""
        return self.status.state in ENDED

    def stop(self, now: float) -> None:
        """Ask the pipeline's process to end."""
        super().stop(now)
        if self.ended:
            return
        state = MemberState.STOPPED if self.pid is None else MemberState.STOPPING
        self._set(state=state, retry_at=None)

    def kill(self) -> None:
        """Kill the pipeline's process now."""
        super().kill()
        if not self.ended and self.pid is None:
            self._set(state=MemberState.STOPPED, retry_at=None)

    def _due(self, now: float) -> None:
        if self.ended or now < self._start_at:
            return
        if self._refused is not None:
            self._give_up(self._refused)
            return
        again = self.status.state is MemberState.BACKOFF
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
            self._failed(EndVerdict(EndKind.CRASHED, not_started), now)
            return
        restarts = self.status.restarts + int(again)
        self._set(state=MemberState.STARTING, pid=self.pid, restarts=restarts, retry_at=None)
        self._tell(ProcessStarted(pipeline=self.name, pid=self.pid or 0, restarts=restarts))

    def _happened(self, line: str) -> None:
        event = decode(line)
        if event is None:
            return
        event = replace(event, pipeline=self.name)
        self.status = self.status.hearing(event)
        if isinstance(event, Failed) and event.retry_in is None:
            # reported when the process has ended: only then is the consequence known
            self._last_error = event.error
        else:
            self._tell(event)

    def _ended(self, code: int, now: float) -> None:
        printed = "\n".join(self._printed)
        verdict = judge(code, printed, last_error=self._last_error, last_line=self._last_line)
        self._set(pid=None, batch=None)
        if verdict.kind is EndKind.DONE:
            self.parked = verdict.parked > 0
            self._set(state=MemberState.DONE, error=None, retry_at=None)
        elif self.stopping and self._last_error is not None:
            # the batch that was to be finished failed: `status` shows the same
            self._give_up(self._last_error)
        elif self.stopping:
            self._set(state=MemberState.STOPPED, retry_at=None)
        else:
            self._failed(verdict, now)

    def _failed(self, verdict: EndVerdict, now: float) -> None:
        error = verdict.error or DistributaryError("it failed")
        self._streak = self._streak.after(verdict, ran=now - self._began, policy=self._policy)
        if self._streak.is_over(verdict, self._policy):
            self._give_up(error)
            return
        wait = pause(self._policy, self._streak.failures, chance=chance)
        self._start_at = now + wait
        at = datetime.now(UTC) + timedelta(seconds=wait)
        self._set(state=MemberState.BACKOFF, error=error, retry_at=at)
        self._tell(Failed(pipeline=self.name, error=error, retry_in=wait))

    def _give_up(self, error: DistributaryError) -> None:
        self._set(state=MemberState.FAILED, error=error, retry_at=None)
        self._tell(Failed(pipeline=self.name, error=error))

    def _set(self, **changes: object) -> None:
        self.status = replace(self.status, **changes)  # type: ignore[arg-type]
