"""What an installation would do, step by step, before anything is done."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from distributary.config.secrets import MASK, is_secret_name
from distributary.errors import DeployError, DistributaryError, ErrorCode

_ASSIGNMENT = re.compile(r'^([-+ ]?\s*(?:-\s+)?(?:Environment=)?"?([\w.-]+)"?\s*[:=]\s*)(\S.*)$')
_REFERENCE = re.compile(r"\$\{|\{\{")


class Action(StrEnum):
    """What becomes of one thing."""

    CREATE = "create"
    UPDATE = "update"
    UNCHANGED = "unchanged"
    REMOVE = "remove"
    EDITED = "edited"
    """It is ours, and somebody changed it since."""
    FOREIGN = "foreign"
    """Something that is not ours is in the way."""


@dataclass(frozen=True, slots=True)
class Step:
    """One file or one job."""

    kind: str
    name: str
    action: Action
    after: str = field(default="", repr=False)
    """Its text afterwards."""
    before: str = field(default="", repr=False)
    """Its text as it is now."""
    mode: int = 0o644
    why: str = ""
    """Why it is in the way, or what is not known of it."""
    refusal: DistributaryError | None = field(default=None, repr=False, compare=False)
    """Why it can be shown and not done."""

    @property
    def changes(self) -> bool:
        """Whether something is to be done."""
        return self.action is not Action.UNCHANGED

    def as_dict(self) -> dict[str, str]:
        """The step for `--json`."""
        shown = {"kind": self.kind, "name": self.name, "action": str(self.action), "why": self.why}
        if self.action is Action.CREATE:
            return shown | {"text": self.after}
        return shown | {"diff": self.diff()} if self.changes else shown

    def diff(self) -> str:
        """From what is there to what will be; values of secrets that others put there hidden."""
        lines = difflib.unified_diff(
            self.before.splitlines(), self.after.splitlines(), "now", "then", lineterm="", n=2
        )
        return "\n".join(map(_hidden, lines))


class Target(Protocol):
    """A place to install to."""

    @property
    def next_steps(self) -> tuple[str, ...]:
        """What is left to do afterwards, as lines to paste."""

    @property
    def last_steps(self) -> tuple[str, ...]:
        """The same after a removal."""

    def plan(self) -> tuple[Step, ...]:
        """What installing would do."""

    def apply(self, steps: Sequence[Step]) -> None:
        """Do it."""

    def plan_removal(self) -> tuple[Step, ...]:
        """Everything of this pipeline that was ever written there."""

    def remove(self, steps: Sequence[Step]) -> None:
        """Remove it."""


def refuse_conflicts(steps: Iterable[Step], *, force: bool) -> None:
    """Nothing is written when one step cannot be taken."""
    steps = tuple(steps)
    for step in steps:
        if step.refusal is not None:
            raise step.refusal
    foreign = [step for step in steps if step.action is Action.FOREIGN]
    edited = [step for step in steps if step.action is Action.EDITED]
    if foreign:
        raise DeployError(
            "something that distributary did not write is in the way",
            code=ErrorCode.DEPLOY_CONFLICT,
            where=foreign[0].name,
            evidence="; ".join(f"{step.kind} {step.name}: {step.why}" for step in foreign[:5]),
            next_step="move or rename it, or choose another name in the deploy section",
        )
    if edited and not force:
        raise DeployError(
            "somebody edited what distributary wrote",
            code=ErrorCode.DEPLOY_CONFLICT,
            where=edited[0].name,
            evidence="; ".join(f"{step.kind} {step.name}" for step in edited[:5]),
            next_step="--dry-run shows the difference; --force replaces it",
        )


def _hidden(line: str) -> str:
    found = _ASSIGNMENT.match(line)
    if found and is_secret_name(found[2]) and not _REFERENCE.search(found[3]):
        return f"{found[1]}{MASK}"
    return line
