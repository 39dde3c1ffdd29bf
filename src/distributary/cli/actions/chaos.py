"""`demo --chaos`: the pipeline is killed in each of its steps, and every record is there once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable

from distributary.cli.actions.demo_folder import DemoFolder
from distributary.cli.actions.feed import Feed
from distributary.cli.output import NORMAL, styled
from distributary.cli.verb import Invocation
from distributary.cli.words import duration
from distributary.errors import DistributaryError, ErrorCode
from distributary.run.chaos import KILL, Moment

_WORDS = {
    Moment.AFTER_PLAN: "after the plan, before a byte was staged",
    Moment.AFTER_STAGE: "after staging, before the batch was decided",
    Moment.AFTER_MANIFEST: "after the manifest, before the first commit",
    Moment.AFTER_FIRST_COMMIT: "after the first of many commits",
    Moment.BEFORE_MERGE: "after the logs were written, before a table was merged",
    Moment.BEFORE_SETTLE: "after the last commit, before the batch was settled",
}


_UNDECIDED = (Moment.AFTER_PLAN, Moment.AFTER_STAGE)
"""At these moments the batch that is being killed has no manifest yet."""
_TOLD = ("batch ", "read ", *(f"{code} " for code in ErrorCode))


def ingest_with_kills(
    call: Invocation, feed: Feed, folder: DemoFolder, *, moments: Iterable[Moment]
) -> list[dict[str, object]]:
    """Every start goes on where the one before was killed, and dies one step later."""
    kills: list[dict[str, object]] = []
    for moment in moments:
        feed.next()
        ended, seconds = _start(call, folder, kill_at=str(moment))
        if ended != -signal.SIGKILL:
            raise _unexpected(ended, f"it was to be killed {_WORDS[moment]}")
        batch = folder.newest_batch() + (moment in _UNDECIDED)
        _tell(call, f"killed (SIGKILL) in batch {batch}, {_WORDS[moment]}", seconds, "bold red")
        kills.append({"moment": str(moment), "batch": batch})
    while feed.next():
        pass
    ended, seconds = _start(call, folder)
    if ended != 0:
        raise _unexpected(ended, "it was to run to its end")
    _tell(call, "restarted and ran to its end", seconds, "bold green")
    return kills


def _start(call: Invocation, folder: DemoFolder, *, kill_at: str = "") -> tuple[int, float]:
    """A process of its own, as a supervisor would start it; its exit code and its time."""
    environment = {**os.environ, KILL: kill_at, "NO_COLOR": "1"}
    run = [sys.executable, "-m", "distributary", "run", str(folder.file)]
    began = time.monotonic()
    with subprocess.Popen(  # noqa: S603 - this program itself
        [*run, "--available-now"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        for line in process.stdout or ():
            # the others are the same as without a kill
            if line.startswith(_TOLD):
                call.out.note(f"  {line.rstrip()}")
    return process.returncode, time.monotonic() - began


def _tell(call: Invocation, text: str, seconds: float, style: str) -> None:
    if call.out.verbosity >= NORMAL:
        call.out.margin.line(styled(text, style), f"  {duration(seconds)}")


def _unexpected(code: int, wanted: str) -> DistributaryError:
    return DistributaryError(
        "the pipeline did not end as it should",
        code=ErrorCode.INTERNAL,
        evidence=f"exit code {code}; {wanted}",
        next_step="run the demo without --chaos to see whether it works at all",
    )
