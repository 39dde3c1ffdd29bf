"""How long to wait before a restart, and whether there is one: pure functions of what happened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from distributary.config.restart import UNLIMITED, Limit, Restart
from distributary.supervise.verdict import Kind, Verdict

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
        crashed = verdict.kind is Kind.CRASHED
        return Streak(so_far.failures + 1, so_far.crashes + int(crashed))

    def is_over(self, verdict: Verdict, policy: Restart) -> bool:
        """Whether there is no further restart after the last of these failures."""
        if verdict.kind is Kind.FINAL:
            return True
        crashed = verdict.kind is Kind.CRASHED and _beyond(self.crashes, policy.max_crashes)
        return crashed or _beyond(self.failures, policy.max)


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
