"""`pipelines run`: updates of a declarative project under a supervisor."""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from distributary.cli.actions.up import UpLines, draw_outcome
from distributary.cli.logs import usage_error
from distributary.cli.verb import Invocation
from distributary.config.base import parse_duration
from distributary.config.engine import Restart
from distributary.observe.events import EventBus
from distributary.observe.log_format import LogLine
from distributary.pipelines.update import find_project, require_extra
from distributary.supervise.member import Member, Spec
from distributary.supervise.supervisor import Relay, Supervisor

_COMMAND = "distributary pipelines run"
_UPDATE = (sys.executable, "-P", "-m", "distributary.pipelines.update")
_SERIOUS = frozenset({"WARNING", "ERROR", "CRITICAL"})


@dataclass(frozen=True, slots=True)
class UpdatesWanted:
    """What the flags ask for."""

    master: str = "local[*]"
    remote: str | None = None
    max_restarts: str = "unlimited"
    grace: str = "60s"
    dry_run: bool = False

    def command(self, spec: Path) -> tuple[str, ...]:
        """The process of one update."""
        remote = () if self.remote is None else ("--remote", self.remote)
        dry = ("--dry-run",) if self.dry_run else ()
        return (*_UPDATE, "--master", self.master, *remote, *dry, "--", str(spec))

    @property
    def restart(self) -> Restart:
        """When a failed update is run again; a dry run never is."""
        limit = "0" if self.dry_run else self.max_restarts
        try:
            return Restart.model_validate({"max": limit})
        except ValidationError:
            text = "--max-restarts must be unlimited, or a number from 0 on."
            raise usage_error(text, command=_COMMAND) from None

    @property
    def grace_seconds(self) -> float:
        """How long an update may take to end."""
        try:
            return parse_duration(self.grace).total_seconds()
        except ValueError as error:
            raise usage_error(f"--grace {error}.", command=_COMMAND) from None


def run_project(call: Invocation, path: Path, wanted: UpdatesWanted) -> int:
    """Run updates until one is done, or none can be."""
    restart, grace = wanted.restart, wanted.grace_seconds
    require_extra()
    project = find_project(path)
    out = call.out

    def relayed(line: LogLine) -> None:
        tell = out.note if line.level in _SERIOUS else out.step
        tell(out.mask(line.message))

    bus = EventBus()
    with Relay(bus, relayed) as relay:
        spec = Spec(project.name, str(project.spec), wanted.command(project.spec), restart)
        supervisor = Supervisor([Member(spec, grace=grace, tell=relay)])
        supervisor.on_stop = lambda: out.note("stopping; a second signal ends at once")
        bus.subscribe(UpLines(out.note, step=out.step))
        supervisor.run()
    status = supervisor.statuses[0]
    number = supervisor.stopped_by
    data = {
        "project": project.name,
        "spec": str(project.spec),
        "state": str(status.state),
        "updates": status.restarts + 1,
        "error": None if status.error is None else status.error.as_dict(),
        "signal": None if number is None else signal.Signals(number).name,
    }
    out.show(data, lambda paper: draw_outcome(paper, supervisor.statuses))
    return supervisor.exit_code
