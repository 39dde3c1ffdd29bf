"""Places in a batch at which a run can be made to kill or pause itself, for tests and demos."""

from __future__ import annotations

import os
import signal
from enum import StrEnum

KILL = "DISTRIBUTARY_KILL_AT"
"""`after_stage`, or `after_stage:3` for batch 3 only: the process kills itself there (SIGKILL)."""
PAUSE = "DISTRIBUTARY_PAUSE_AT"
"""The same, but the process pauses there (SIGSTOP) until SIGCONT."""


class KillPoint(StrEnum):
    """The moments of a batch, in order."""

    AFTER_PLAN = "after_plan"
    AFTER_STAGE = "after_stage"
    AFTER_MANIFEST = "after_manifest"
    AFTER_FIRST_COMMIT = "after_first_commit"
    BEFORE_MERGE = "before_merge"
    BEFORE_AGGREGATES = "before_aggregates"
    BEFORE_SETTLE = "before_settle"


class ErasePoint(StrEnum):
    """The moments of an erasure, in order; the number is that of the table."""

    AFTER_DOCUMENT = "erase_after_document"
    AFTER_TABLE = "erase_after_table"
    BEFORE_CERTIFICATE = "erase_before_certificate"


def reached(moment: KillPoint | ErasePoint, batch: int) -> None:
    """Kill or pause this process without a message if the environment asks for it."""
    for variable, kind in ((KILL, signal.SIGKILL), (PAUSE, signal.SIGSTOP)):
        wanted, _, number = os.environ.get(variable, "").partition(":")
        if wanted == moment and number in ("", str(batch)):
            os.kill(os.getpid(), kind)
