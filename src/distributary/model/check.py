"""The result of a check that `doctor` makes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CheckState(StrEnum):
    """The outcome of a check."""

    PASS = "pass"  # noqa: S105
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """A check: the requirement and the finding."""

    name: str
    state: CheckState
    found: str
    needed: str = ""
    fix: str = ""
    """The command or the action that fixes the finding."""
    tried: str = ""
    """The action that was tried, if the check does more than look."""
