"""One row of `doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How a check ended."""

    PASS = "pass"  # noqa: S105
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at, found and needed."""

    name: str
    state: State
    found: str
    needed: str = ""
    mend: str = ""
    """What to type or to do."""
