"""Places in a batch at which a run can be told to kill itself, to show that it does no harm."""

from __future__ import annotations

import os
import signal
from enum import StrEnum

VARIABLE = "DISTRIBUTARY_KILL_AT"
"""`after_stage`, or `after_stage:3` for batch 3 only."""


class Moment(StrEnum):
    """The moments of a batch, in order."""

    AFTER_PLAN = "after_plan"
    AFTER_STAGE = "after_stage"
    AFTER_MANIFEST = "after_manifest"
    AFTER_FIRST_COMMIT = "after_first_commit"
    BEFORE_SETTLE = "before_settle"


def reached(moment: Moment, batch: int) -> None:
    """Die here without a word (SIGKILL), if that is what the environment asks for."""
    order = os.environ.get(VARIABLE, "")
    if not order:
        return
    wanted, _, number = order.partition(":")
    if wanted == moment and number in ("", str(batch)):
        os.kill(os.getpid(), signal.SIGKILL)
