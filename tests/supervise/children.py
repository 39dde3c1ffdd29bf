"""Processes for a supervisor to keep: a few lines of Python that say, print and end as told."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psutil

from distributary.config.runtime import Restart
from distributary.model.manifest import Counts
from distributary.observe.events import BatchSettled, Event, encode
from distributary.observe.log_format import LogLine
from distributary.supervise.member import Member, Spec
from distributary.supervise.supervisor import Schedule, Supervisor

_PREAMBLE = """
import os, signal, subprocess, sys, time
pipe = os.fdopen(int(os.environ["DISTRIBUTARY_EVENTS_FD"]), "w")
def tell(*lines):
    for line in lines:
        pipe.write(line + "\\n")
    pipe.flush()
def wait():
    # until it is asked to stop
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    while True:
        # a signal just before `pause` would not be noticed
        time.sleep(0.05)
"""
QUICK = Restart.model_validate({"initial": "10ms", "longest": "40ms"})


def script(body: str) -> tuple[str, ...]:
    """A command; quick, because it imports nothing of ours."""
    return (sys.executable, "-I", "-S", "-c", f"{_PREAMBLE}\n{body}")


def telling(*events: Event) -> str:
    """A line of a script that tells events."""
    return f"tell(*{[encode(event) for event in events]!r})"


def settled(batch: int = 0, *, pipeline: str = "p", **more: object) -> BatchSettled:
    facts = {"counts": Counts(8, 8), "rows": 8, "tables": 1, "seconds": 2.0} | more
    return BatchSettled(pipeline=pipeline, batch=batch, **facts)  # type: ignore[arg-type]


@dataclass
class Kept:
    """Runs scripts under a supervisor and keeps what it tells."""

    bodies: dict[str, str]
    restart: Restart = QUICK
    grace: float = 20.0
    schedules: Sequence[Schedule] = ()
    told: list[Event | LogLine] = field(default_factory=list)
    on_told: Callable[[Event | LogLine], None] = lambda item: None

    def __post_init__(self) -> None:
        specs = [
            Spec(name, f"{name}.yaml", script(b), self.restart) for name, b in self.bodies.items()
        ]
        self.members = [Member(spec, grace=self.grace, tell=self.tell) for spec in specs]
        self.supervisor = Supervisor(self.members, self.schedules)

    def tell(self, item: Event | LogLine) -> None:
        self.told.append(item)
        self.on_told(item)

    def run(self) -> Kept:
        self.supervisor.run()
        assert all(member.pid is None for member in self.members)
        return self

    def events(self, kind: type[Event], name: str | None = None) -> list[Event]:
        return [e for e in self.told if isinstance(e, kind) and name in (None, e.pipeline)]

    @property
    def states(self) -> dict[str, str]:
        return {status.name: str(status.state) for status in self.supervisor.statuses}


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone(pid: int, *, seconds: float = 20) -> bool:
    """Whether a process ends within a time."""
    deadline = time.monotonic() + seconds
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_alive(pid)
