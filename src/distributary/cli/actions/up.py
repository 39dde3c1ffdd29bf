"""`up`: many pipelines under one supervisor."""

from __future__ import annotations

import functools
import shutil
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from distributary.cli.actions.live import Lines, Say, lag_text
from distributary.cli.logs import journal_for, usage_error
from distributary.cli.output import Paper, brief, counted, cut, number, styled
from distributary.cli.verb import Invocation
from distributary.config.base import parse_duration
from distributary.config.load import Loaded
from distributary.errors import DistributaryError
from distributary.observe.events import Event, EventBus, ProcessStarted, Stopped, TaskFailed
from distributary.observe.log_format import LogFormat, LogLine, spell
from distributary.supervise.member import Member, PipelineStatus, State, readiness
from distributary.supervise.server import Address, Answers, serving
from distributary.supervise.supervisor import (
    OPENERS,
    Relay,
    Render,
    Schedule,
    Supervisor,
    counting,
    listeners_of,
    own_command,
    plan_of,
    run_command,
)

# Many pipelines as plain lines: the name of a pipeline, then what happened to it.


class UpLines:
    """Listens to all of them; one thread at a time."""

    def __init__(self, say: Say, *, step: Say) -> None:
        self._say, self._step = say, step
        self._by_pipeline: dict[str, Lines] = {}

    def __call__(self, event: Event) -> None:
        """One event."""
        say = functools.partial(_named, event.pipeline, self._say)
        match event:
            case ProcessStarted():
                again = f", {counted(event.restarts, 'restart')}" if event.restarts else ""
                say(f"process {event.pid} started{again}")
            case Stopped():
                say(f"{event.reason} after {counted(event.batches, 'batch', 'batches')}")
            case TaskFailed():
                say(f"{event.task} failed: {event.error.code} {event.error.what}")
            case _:
                lines = self._by_pipeline.get(event.pipeline)
                if lines is None:
                    step = functools.partial(_named, event.pipeline, self._step)
                    lines = self._by_pipeline[event.pipeline] = Lines(say, note=say, step=step)
                lines(event)


def _named(pipeline: str, say: Say, text: str) -> None:
    say(f"{pipeline}  {text}")


# Many pipelines as a table that redraws itself, and as they are in the end.

_NEWS = 6
_MOST = 30
_LONGEST = 160
_COLOURS = {
    State.RUNNING: "green",
    State.DONE: "green",
    State.FAILING: "yellow",
    State.BACKOFF: "yellow",
    State.FAILED: "bold red",
}
_WORST = (State.FAILED, State.BACKOFF, State.FAILING)
_HEADERS = ("PIPELINE", "STATE", "BATCH", "ROWS/S", "LAG", "DEAD LETTERS", "PARKED", "RESTARTS")
_LEFT = ("PIPELINE", "STATE", "NEXT RETRY")


class UpView:
    """Drawn a few times a second; news come from any thread."""

    def __init__(self, statuses: Callable[[], Sequence[PipelineStatus]]) -> None:
        self._statuses = statuses
        self._lock = threading.Lock()
        self._news: deque[Text] = deque(maxlen=_NEWS)
        self._stopping = False

    def stop(self) -> None:
        """A stop was asked for."""
        self._stopping = True
        self.say("stopping; Ctrl-C again ends at once")

    def say(self, text: str) -> None:
        """Something that happened."""
        with self._lock:
            self._news.append(styled(cut(text, _LONGEST), "dim"))

    def __rich__(self) -> RenderableType:
        """The view as it is now."""
        statuses = self._statuses()
        well = sum(each.is_ready for each in statuses)
        title = f"{counted(len(statuses), 'pipeline')}, {well:,} well"
        parts: list[RenderableType] = [
            styled(f"{title}, stopping" if self._stopping else title, "bold"),
            _table(statuses),
        ]
        with self._lock:
            if self._news:
                parts += [Text(""), *self._news]
        return Group(*parts)


def _table(statuses: Sequence[PipelineStatus]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in (*_HEADERS, "NEXT RETRY"):
        table.add_column(name, justify="left" if name in _LEFT else "right")
    # the worst first, as far as there is room for all
    order = sorted(statuses, key=lambda each: each.state not in _WORST)
    for each in order[:_MOST]:
        table.add_row(*_cells(each), _retry(each))
    if len(order) > _MOST:
        table.add_row(styled(f"and {len(order) - _MOST:,} more", "dim"))
    return table


def _cells(status: PipelineStatus) -> list[Text]:
    settled, dead, parked = status.settled, status.counts.dead_lettered, status.counts.parked
    last = None if settled is None else settled.batch
    return [
        styled(status.name, "bold"),
        styled(_state(status), _COLOURS.get(status.state, "")),
        styled(number(status.batch if status.batch is not None else last), ""),
        styled(number(None if settled is None else settled.records_per_second), ""),
        styled("-" if settled is None else lag_text(settled), ""),
        styled(number(dead), "yellow" if dead else ""),
        styled(number(parked), "red" if parked else ""),
        styled(number(status.restarts), ""),
    ]


def _state(status: PipelineStatus) -> str:
    return str(status.state) if status.error is None else f"{status.state} {status.error.code}"


def _retry(status: PipelineStatus) -> Text:
    if status.retry_at is None:
        return Text("")
    left = (status.retry_at - datetime.now(UTC)).total_seconds()
    return styled(f"in {brief(max(left, 0.0))}", "yellow")


def draw_outcome(paper: Paper, statuses: Sequence[PipelineStatus]) -> None:
    """How each of them ended."""
    paper.table(_HEADERS, [_cells(each) for each in statuses], right=_HEADERS[2:], indent=0)
    for each in statuses:
        if each.error is not None:
            paper.line(styled(f"{each.name}  ", "bold"), _why(each.error))


def _why(error: DistributaryError) -> str:
    parts = (str(error.code), error.what, error.where, error.evidence)
    return "  ".join(cut(part, _LONGEST) for part in parts if part)


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
                [loaded.config for loaded in plan.loaded], bus, openers=(*OPENERS, counting)
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
