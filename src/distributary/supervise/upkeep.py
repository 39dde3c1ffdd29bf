"""Keeps the tables of pipelines in order beside runs that go on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from distributary.config.load import Loaded
from distributary.config.runtime import Trigger, TriggerKind
from distributary.observe.events import EventBus
from distributary.observe.log_format import LogLine
from distributary.supervise import supervisor
from distributary.supervise.process import Tell
from distributary.supervise.supervisor import Relay, Schedule, beside

_MODESTLY = ("nice", "-n", "10")
_GRACE = 5.0
"""Seconds that maintenance may take to end with the run; the next one takes up what is left."""


def upkeep(loaded: Loaded, every: timedelta, *, grace: float, tell: Tell) -> Schedule:
    """Build the schedule of `maintain` for one pipeline."""
    # half of the interval, so that there is a pause between two of them
    seconds = max(1, int(every.total_seconds() / 2))
    command = supervisor.own_command(
        *("maintain", "--json", "--at-most", f"{seconds}s", "--", str(loaded.path or loaded.file))
    )
    return Schedule(
        "maintain",
        # at a low priority, because maintenance must not slow down the pipeline
        (*_MODESTLY, *command) if shutil.which("nice") else command,
        pipeline=loaded.config.name,
        every=every,
        grace=grace,
        tell=tell,
        mask=loaded.mask,
        describe=summary,
    )


@contextmanager
def maintained(
    loaded: Loaded, trigger: Trigger, bus: EventBus, write: Callable[[LogLine], None]
) -> Iterator[None]:
    """Keep the tables in order beside a run that goes on, as often as the file says."""
    every = loaded.config.maintain.every
    if every is None or trigger.kind is TriggerKind.AVAILABLE_NOW:
        yield
        return
    with (
        Relay(bus, write) as relay,
        beside(upkeep(loaded, every, grace=_GRACE, tell=relay)),
    ):
        yield


def summary(printed: str) -> str:
    """Summarise in a line what `maintain --json` has printed."""
    try:
        report = json.loads(printed)
        totals = report["totals"]
        done, left = totals["tables"] - totals["left"], totals["left"]
        rest = f"; {left:,} left for the next time" if left else ""
        return (
            f"{done:,} tables looked after in {report['seconds']:.1f} s{rest}: "
            f"{totals['files_before']:,} files became {totals['files_after']:,}, "
            f"{totals['files_deleted']:,} deleted, {totals['failed']:,} tables failed"
        )
    except (ValueError, KeyError, TypeError):
        return printed
