"""What the end of a process means: done, try again, or a matter for a person."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from distributary.errors import DistributaryError, ErrorCode

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
        ErrorCode.TABLE_BEHIND,
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
    """What an exit means.

    Args:
        code: the exit code; negative for a signal, as `subprocess` has it.
        printed: standard output, the command's document.
        last_error: of the last failure that was told as an event.
        said: the last line on standard error, where nothing else explains the end.
    """
    document = _document(printed)
    told = document.get("error")
    if not told and document.get("stopped") == "done" and code in (0, 1):
        waits = document.get("still_parked")
        parked = waits.get("tables") if isinstance(waits, dict) else 0
        return Verdict(Kind.DONE, parked=parked if isinstance(parked, int) else 0)
    if code == 0:
        return Verdict(Kind.DONE)
    error = _told(told, code) if isinstance(told, dict) else last_error or _silent(code, said)
    return Verdict(_kind(code, error), error)


def _kind(code: int, error: DistributaryError) -> Kind:
    if code == _USAGE or error.code in FINAL_CODES:
        return Kind.FINAL
    return Kind.PASSING if code == _TRY_AGAIN or error.retryable else Kind.CRASHED


def _document(printed: str) -> Mapping[str, Any]:
    try:
        found = json.loads(printed)
    except (RecursionError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _told(document: Mapping[str, Any], exit_code: int) -> DistributaryError:
    code = str(document.get("code"))
    error = DistributaryError(
        str(document.get("what", "")),
        code=ErrorCode(code) if code in ErrorCode.__members__ else ErrorCode.INTERNAL,
        where=str(document.get("where", "")),
        evidence=str(document.get("evidence", "")),
        next_step=str(document.get("next_step", "")),
    )
    error.retryable = document.get("retryable") is True
    error.exit_code = exit_code
    return error


def _silent(code: int, said: str) -> DistributaryError:
    how = f"exit code {code}"
    if code < 0:
        known = {each.value: each.name for each in signal.Signals}
        how = f"signal {known.get(-code, -code)}"
    return DistributaryError(
        "the process of the pipeline ended without a word",
        code=ErrorCode.PROCESS_DIED,
        evidence=f"{how}; {said[:_MOST]}" if said else how,
        next_step="nothing is half done; read the lines before this one in the log",
    )
