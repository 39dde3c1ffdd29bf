"""Whether dead letters would decode now; `status` asks, and never fails because of the answer."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from distributary.cli.lakes import Lake
from distributary.cli.verb import Invocation
from distributary.model.deadletter import MAY_HEAL
from distributary.observe.status import PipelineStatus

_PATIENCE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Healable:
    """Open dead letters that a replay would bring into their tables."""

    count: int
    by_reason: Mapping[str, int] = field(default_factory=dict)
    command: str = ""


def find_healable(call: Invocation, lake: Lake, status: PipelineStatus) -> Healable | None:
    """How many would decode; None where that cannot be found out now."""
    waiting = {reason.code for reason in status.dead_letters.reasons}
    if not waiting & MAY_HEAL:
        return Healable(0)
    if not Path(status.file).is_file():
        return None
    answers: list[Healable] = []

    def ask() -> None:
        try:
            answers.append(_ask(call, lake, status))
        except Exception as error:
            call.out.step(f"healing of {status.name} unknown: {error}")

    # a registry that does not answer must not hold up everything else that is known
    thread = threading.Thread(target=ask, name="healing", daemon=True)
    thread.start()
    thread.join(_PATIENCE_SECONDS)
    return answers[0] if answers else None


def _ask(call: Invocation, lake: Lake, status: PipelineStatus) -> Healable:
    from distributary.run.healing import healable
    from distributary.run.pipeline import Pipeline

    found = healable(Pipeline.load(status.file))
    reasons = list(found.by_reason)
    one = f" --reason {reasons[0]}" if len(reasons) == 1 else ""
    command = f"distributary dlq replay{one} --lake {shlex.quote(lake.path)}"
    return Healable(found.count, dict(found.by_reason), command)
