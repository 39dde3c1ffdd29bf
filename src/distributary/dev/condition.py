"""How one of the two is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from distributary.dev.java_service import JavaService
from distributary.dev.process import Running


class State(StrEnum):
    """In a word."""

    UP = "up"
    SILENT = "not answering"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Condition:
    """What is known; nothing but the log where it does not run."""

    state: State
    log: Path
    address: str | None = None
    pid: int | None = None
    since: datetime | None = None


def condition_of(service: JavaService, process: Running | None) -> Condition:
    """Asks the service in its own protocol."""
    if process is None or not process.alive:
        return Condition(State.DOWN, service.log)
    return Condition(
        State.UP if service.answers() else State.SILENT,
        service.log,
        service.address,
        process.pid,
        process.since,
    )
