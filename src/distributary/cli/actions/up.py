"""`up`: many pipelines under one supervisor."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.live import Live

from distributary.cli.actions.up_lines import UpLines
from distributary.cli.actions.up_view import UpView, draw_outcome
from distributary.cli.failure import usage_error
from distributary.cli.journals import journal_for
from distributary.cli.verb import Invocation
from distributary.config.load import Loaded
from distributary.config.quantity import parse_duration
from distributary.observe.events import EventBus
from distributary.observe.log_format import LogFormat, LogLine, spell
from distributary.supervise.counting import counted
from distributary.supervise.listeners import OPENERS, listeners_of
from distributary.supervise.listening import Render
from distributary.supervise.member import Member
from distributary.supervise.plan import own_command, plan_of, run_command
from distributary.supervise.relay import Relay
from distributary.supervise.schedule import Schedule
from distributary.supervise.server import Address, Answers, serving
from distributary.supervise.status import readiness
from distributary.supervise.supervisor import Supervisor

_REFRESH_PER_SECOND = 4
_MODESTLY = ("nice", "-n", "10") if shutil.which("nice") else ()
_SERIOUS = frozenset({"WARNING", "ERROR", "CRITICAL"})


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the flags ask for."""

    every: str | None = None
    grace: str = "60s"
    listen: str | None = None
    token: str | None = field(default=None, repr=False)
    log_format: LogFormat | None = None

    @property
    def grace_seconds(self) -> float:
        """How long pipelines may take to end."""
        return _seconds("--grace", self.grace)

    @property
    def options(self) -> tuple[str, ...]:
        """What the command of each pipeline is given."""
        if self.every is None:
            return ()
        if not _seconds("--every", self.every):
            raise usage_error("--every must be longer than nothing.", command="distributary up")
        return ("--every", self.every)


def run_all(call: Invocation, files: Sequence[Path], wanted: Wanted) -> int:
    """Run until every pipeline has ended, or all are stopped."""
    grace = wanted.grace_seconds
    plan = plan_of(files, run_command(*wanted.options))
    call.out.mask = plan.mask
    bus, words = EventBus(), _Words(call)
    with journal_for(call.out, wanted.log_format), Relay(bus, words.relayed) as relay:
        for warning in (str(each) for loaded in plan.loaded for each in loaded.warnings):
            call.out.warn(warning)
        members = [Member(spec, grace=grace, tell=relay) for spec in plan.specs]
        schedules = [
            schedule
            for loaded in plan.loaded
            if (schedule := _upkeep(loaded, grace=grace, tell=relay)) is not None
        ]
        supervisor = Supervisor(members, schedules=schedules)
        with (
            listeners_of(
                [loaded.config for loaded in plan.loaded], bus, openers=(*OPENERS, counted)
            ) as metrics,
            _answering(call, wanted, supervisor, metrics),
            words.shown(supervisor, bus),
        ):
            supervisor.run()
    return _told(call, supervisor)


def _upkeep(loaded: Loaded, *, grace: float, tell: Relay) -> Schedule | None:
    """`maintain` for one pipeline, as often as its file says."""
    config = loaded.config
    if config.maintain.every is None:
        return None
    return Schedule(
        "maintain",
        # what keeps tables in order must not hold up what fills them
        (*_MODESTLY, *own_command("maintain", "--json", "--", str(loaded.path or loaded.file))),
        pipeline=config.name,
        every=config.maintain.every,
        grace=grace,
        tell=tell,
        mask=loaded.mask,
    )


class _Words:
    """What people see of it: a view that redraws itself, plain lines, or the log."""

    def __init__(self, call: Invocation) -> None:
        self._out = call.out
        self._view: UpView | None = None

    @contextmanager
    def shown(self, supervisor: Supervisor, bus: EventBus) -> Iterator[None]:
        """While this lasts, events are told."""
        out = self._out
        supervisor.on_stop = lambda: out.note("stopping; a second signal ends at once")
        if out.journal is not None:
            bus.subscribe(out.journal)
            yield
        elif out.lively:
            self._view = view = UpView(lambda: supervisor.statuses)
            bus.subscribe(UpLines(view.say, step=_nothing))
            supervisor.on_stop = view.stop
            # what is left in the end is the outcome, which says the same once more
            with Live(
                view,
                console=out.paper.console,
                refresh_per_second=_REFRESH_PER_SECOND,
                transient=True,
            ):
                yield
        else:
            bus.subscribe(UpLines(self._line(supervisor), step=out.step))
            yield

    def relayed(self, line: LogLine) -> None:
        """A line of a pipeline's log, or of whatever else it says on standard error."""
        out = self._out
        if out.journal is not None:
            out.journal.write(line)
        elif self._view is not None:
            if line.level in _SERIOUS:
                self._view.say(f"{line.pipeline}  {out.mask(line.message)}")
        else:
            tell = out.note if line.level in _SERIOUS else out.step
            tell(spell(line, LogFormat.TEXT))

    def _line(self, supervisor: Supervisor) -> Callable[[str], None]:
        def say(text: str) -> None:
            # standard output is for the document when one is asked for
            if self._out.is_json:
                self._out.note(text)
                return
            try:
                self._out.show({}, lambda paper: paper.line(text))
            except BrokenPipeError:
                # nobody reads any more
                supervisor.ask()

        return say


@contextmanager
def _answering(
    call: Invocation,
    wanted: Wanted,
    supervisor: Supervisor,
    metrics: Render | None,
) -> Iterator[None]:
    """The health endpoint, where one is wanted."""
    if wanted.listen is None:
        yield
        return
    answers = Answers(
        live=lambda: supervisor.is_live,
        ready=lambda: readiness(supervisor.statuses),
        status=lambda: {"pipelines": [each.as_dict() for each in supervisor.statuses]},
        metrics=metrics,
        token=wanted.token,
    )
    with serving(Address.parse(wanted.listen), answers) as address:
        call.out.note(f"listening at {address}")
        yield


def _told(call: Invocation, supervisor: Supervisor) -> int:
    number = supervisor.stopped_by
    data = {
        "pipelines": [each.as_dict() for each in supervisor.statuses],
        "signal": None if number is None else signal.Signals(number).name,
    }
    call.out.show(data, lambda paper: draw_outcome(paper, supervisor.statuses))
    return supervisor.exit_code


def _seconds(option: str, text: str) -> float:
    try:
        return parse_duration(text).total_seconds()
    except ValueError as error:
        raise usage_error(f"{option} {error}.", command="distributary up") from None


def _nothing(text: str) -> None:
    """Steps have no place in the view."""
