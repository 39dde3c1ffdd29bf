"""Progress of running pipelines: lines in a pipe, a view that redraws itself in a terminal."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from types import FrameType
from typing import TYPE_CHECKING, Generic, TypeVar

import pyarrow as pa
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from distributary.cli.command.log_file import shown_while_written
from distributary.cli.command.output import (
    EVERYTHING,
    NORMAL,
    READER_GONE,
    Output,
    Paper,
    Words,
    brief,
    clock,
    counted,
    duration,
    grid,
    number,
    spelled,
    styled,
    tally,
)
from distributary.cli.command.verb import Invocation
from distributary.engine.pipeline import Pipeline
from distributary.errors import ErrorCode
from distributary.evolve.types import sql_name
from distributary.model.change import CHANGE_COLUMNS
from distributary.model.manifest import Counts
from distributary.observe.events import (
    BatchSettled,
    BatchStarted,
    Beat,
    CatalogUpdated,
    Event,
    Failed,
    Idle,
    Paused,
    ProcessStarted,
    RecordsHeld,
    Recovered,
    SchemaSeen,
    StepFinished,
    Stopped,
    TableParked,
    TaskFailed,
)
from distributary.observe.log_format import cut
from distributary.spark.in_process import in_process
from distributary.spark.jars import Progress
from distributary.spark.masters import refuse_unreachable
from distributary.spark.session import spark_session
from distributary.spark.settings import SparkSettings
from distributary.supervise.member import MemberState, MemberStatus
from distributary.threads import begun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Say = Callable[[str], None]
_T = TypeVar("_T")

_LONGEST = 200
_OF_EVERY_LOG = "".join(f"{c.name} {sql_name(c.type)}, " for c in CHANGE_COLUMNS)
_MOST_SCHEMAS = 20
"""The largest number of schema lines of a batch; others are only counted."""
_REFRESH_PER_SECOND = 8
_QUIET = timedelta(seconds=25)
"""Seconds without output after which a run prints a line to show that it is alive."""
STEPS = ("plan", "stage", "manifest", "publish", "settle")


@contextmanager
def start_spark(
    call: Invocation,
    pipeline: Pipeline,
    *,
    tell: Progress | None = None,
    settings: SparkSettings | None = None,
    begun: Future[SparkSession] | None = None,
) -> Iterator[SparkSession]:
    """Start a session for a pipeline; with `-vv`, Spark's log is shown as it is written.

    By default it starts quickly and computes more slowly. A session that was `begun` is waited for.
    """
    say = tell or call.out.note
    if settings is None:
        settings = session_settings(call, pipeline)
    with ExitStack() as stack:
        if _is_loud(call):
            stack.enter_context(shown_while_written(call.log.path, sys.stderr))
        began = time.monotonic()
        say("starting Spark")
        call.out.step(f"log {call.log.path}")
        if begun is not None:
            session = begun.result()
        else:
            session = spark_session(settings, app_name=pipeline.config.name, progress=say)
        say(f"Spark started in {time.monotonic() - began:.1f} s")
        yield session


def session_settings(call: Invocation, pipeline: Pipeline) -> SparkSettings:
    """Return the settings of a command's session: quick to start, slower to compute."""
    log = call.log.path
    return SparkSettings.of(pipeline.loaded, log_file=log, loud=_is_loud(call), short_lived=True)


def _is_loud(call: Invocation) -> bool:
    return call.out.verbosity >= EVERYTHING


_FEW_LETTERS = 1000
_FEW_BYTES = 64 << 20


@contextmanager
def session_for(
    call: Invocation, pipeline: Pipeline, letters: pa.Table, *, more: bool = False
) -> Iterator[SparkSession]:
    """Yield a session for a replay; a replay of few dead letters needs no JVM, and no cluster.

    `more` means that an earlier replay of unknown size is finished first. Letters that killed a
    worker are never decoded in this process. What few letters need of Spark is done by a session
    on this machine, because the cluster may be out of reach.
    """
    few = letters.num_rows <= _FEW_LETTERS and letters.nbytes <= _FEW_BYTES and not more
    codes = set(letters["error_code"].unique().to_pylist())
    with ExitStack() as stack:

        def started() -> SparkSession:
            settings = session_settings(call, pipeline)
            if few and not settings.remote:
                settings = settings.on_this_machine()
            refuse_unreachable(settings)
            return stack.enter_context(start_spark(call, pipeline, settings=settings))

        by_spark = pipeline.config.tables.publisher == "spark"
        if not few or by_spark or ErrorCode.CRASHED_DECODER in codes:
            yield started()
        else:
            yield in_process(started)


# A run as plain lines: one per batch, one per new schema, a heartbeat.


def plain_lines(out: Output, on_closed: Callable[[], None]) -> Say:
    """Return a function that prints lines on standard output, unless `--json` is on.

    `on_closed` is called when the reader of the output has gone.
    """

    def say(text: str) -> None:
        try:
            out.show({}, lambda paper: paper.line(text))
        except READER_GONE:
            on_closed()

    return out.note if out.is_json else say


def schema_line(event: SchemaSeen) -> str:
    """Format a schema's changes: `schema chess v3: + rating int`."""
    version = event.label.rpartition(" ")[2]
    named = version if version.startswith("v") else f"id {event.schema_id}"
    # every log has these columns: only columns of the source's table are new
    changes = ", ".join(event.changes).replace(_OF_EVERY_LOG, "") or "no change"
    return f"schema {spelled(event.type)} {named}: {cut(changes, _LONGEST)}"


def batch_line(event: BatchSettled) -> str:
    """Format a batch: number, rows, rows per second, lag, tables, dead letters."""
    # a batch that an earlier process had decided was only finished here: it has no speed
    whole = not event.steps or "stage" in event.steps
    parts = [
        f"batch {event.batch}",
        counted(event.counts.read, "row"),
        f"{number(event.records_per_second)} rows/s" if whole else "finished",
        f"lag {number(event.lag_records)}",
        counted(event.tables, "table"),
        counted(event.counts.dead_lettered, "dead letter"),
        duration(event.seconds),
    ]
    if event.lag_seconds is not None:
        parts.append(f"newest record {brief(event.lag_seconds)} old")
    if event.counts.parked:
        parts.append(f"parked {number(event.counts.parked)}")
    if event.counts.filtered:
        parts.append(f"filtered {number(event.counts.filtered)}")
    return "  ".join(parts)


class Lines:
    """A listener that prints the events of a run as lines."""

    def __init__(
        self,
        say: Say,
        *,
        note: Say,
        step: Say,
        most_schemas: int = _MOST_SCHEMAS,
        tells_end: bool = True,
    ) -> None:
        self._say, self._note, self._step = say, note, step
        self._tells_end = tells_end
        """Whether to print the error that ends the run; a command prints its own error itself."""
        self._most_schemas = most_schemas
        self._schemas: list[SchemaSeen] = []
        self._lock = threading.Lock()
        self._last = self._began = datetime.now(UTC)
        """The times of the last line and of the start of the current batch."""
        self._batch: int | None = None
        self._step_now = STEPS[0]
        self._failed: Failed | None = None
        """The failure that is being retried, as last printed."""

    def __call__(self, event: Event) -> None:
        """One event."""
        with self._lock:
            if not isinstance(event, Beat):
                self._follow(event)
            if self._is_news(event):
                self._tell(event)

    def _follow(self, event: Event) -> None:
        """Note the current batch and the failure that is being retried."""
        match event:
            case BatchStarted():
                self._batch, self._began, self._step_now = event.batch, event.at, STEPS[0]
            case StepFinished() if event.step in STEPS[:-1]:
                self._step_now = STEPS[STEPS.index(event.step) + 1]
            case BatchSettled() | RecordsHeld() | Failed(under_way=False):
                self._batch = None

    def _is_news(self, event: Event) -> bool:
        """Return whether an event is worth a line: no repeated failure, no redundant beat."""
        quiet = event.at - self._last >= _QUIET
        match event:
            case Beat():
                if self._batch is None or not quiet or event.at - self._began < _QUIET:
                    return False
            case Failed():
                before, self._failed = self._failed, event
                same = before is not None and before.error.code is event.error.code
                if same and event.retry_in is not None and not quiet:
                    return False
            case BatchSettled() | Recovered() | Idle() | Paused():
                self._failed = None
            case BatchStarted() | StepFinished() | SchemaSeen() | RecordsHeld():
                return True
        self._last = event.at
        return True

    def _tell(self, event: Event) -> None:
        match event:
            case SchemaSeen():
                self._schemas.append(event)
            case Beat():
                spent = duration((event.at - self._began).total_seconds())
                lag = "" if event.lag_records is None else f"  lag {number(event.lag_records)}"
                self._say(f"batch {self._batch}  under way for {spent}, {self._step_now}{lag}")
            case Recovered():
                self._note(f"works again after {duration(event.seconds)}")
            case BatchSettled():
                self._tell_schemas()
                self._say(batch_line(event))
                if event.dead_letters:
                    self._step(f"batch {event.batch}  {tally(event.dead_letters)}")
            case StepFinished():
                self._step(f"batch {event.batch}  {event.step} {duration(event.seconds)}")
            case CatalogUpdated() if event.error:
                self._note(f"not in {event.catalog}: {_catalog_line(event)}")
            case TableParked():
                waiting = counted(event.records, "record")
                self._note(f"parked {event.table}: {waiting} wait: {event.error}")
            case Paused():
                self._say(_paused_line(event))
            case Idle():
                last = "" if event.batch is None else f", last batch {event.batch}"
                self._say(f"idle at {clock(event.at)}{last}")
            case Failed() if event.retry_in is not None:
                self._note(f"retrying: {_failed_line(event)}")
            case Failed() if self._tells_end:
                self._note(f"failed: {_failed_line(event)}")

    def _tell_schemas(self) -> None:
        for event in self._schemas[: self._most_schemas]:
            self._say(schema_line(event))
        more = len(self._schemas) - self._most_schemas
        if more > 0:
            self._say(f"and {counted(more, 'more schema')}: distributary schema history")
        self._schemas.clear()


def _catalog_line(event: CatalogUpdated) -> str:
    return f"{counted(event.waiting, 'table')} are not in the catalog yet: {cut(event.error, 300)}"


def _paused_line(event: Paused) -> str:
    since = "" if event.since is None else f" since {clock(event.since)}"
    note = f": {cut(event.note, _LONGEST)}" if event.note else ""
    return f"paused{since}{note}; to go on: distributary continue"


def _failed_line(event: Failed) -> str:
    again = f"; next try in {duration(event.retry_in)}" if event.retry_in else ""
    return f"{event.error.code} {event.error.what}{again}"


# A run as a view: the five steps, the last batches, what is new.

_BATCHES = 8
_NUMBERS = ("BATCH>", "ROWS>", "ROWS/S>", "LAG>", "TABLES>", "DEAD LETTERS>", "TIME>")
_BATCH_HEADERS = (*_NUMBERS, "SLOWEST")
_NEWS = 6


class LiveView:
    """A listener that draws a run a few times a second."""

    def __init__(self, pipeline: str, *, trigger: str) -> None:
        self._lock = threading.Lock()
        self._pipeline, self._trigger = pipeline, trigger
        self._began = time.monotonic()
        self._doing = "starting Spark"
        self._batch: int | None = None
        self._records: int | None = None
        self._step_began = 0.0
        self._steps: dict[str, float] = {}
        self._batches: deque[BatchSettled] = deque(maxlen=_BATCHES)
        self._news: deque[Text] = deque(maxlen=_NEWS)
        self._schemas = 0
        self._counts = Counts()
        self._lag: int | None = None
        self.stopping = False

    def say(self, text: str) -> None:
        """Show the activity before the first batch."""
        with self._lock:
            self._doing = text

    def stop(self) -> str:
        """Show that a stop was requested, and the remaining work."""
        with self._lock:
            self.stopping = True
            return self._ending()

    def _ending(self) -> str:
        return "stopping" if self._batch is None else f"finishing batch {self._batch}"

    def __call__(self, event: Event) -> None:
        """One event."""
        with self._lock:
            self._take(event)

    def _take(self, event: Event) -> None:
        match event:
            case BatchStarted():
                self._batch, self._records, self._steps = event.batch, event.records, {}
                self._step_began = time.monotonic()
            case StepFinished():
                self._steps[event.step] = event.seconds
                self._step_began = time.monotonic()
            case SchemaSeen():
                self._schemas += 1
                self._news.append(styled(schema_line(event), "cyan"))
            case CatalogUpdated() if event.error:
                self._news.append(styled(_catalog_line(event), "yellow"))
            case TableParked():
                self._news.append(styled(f"parked {event.table}: {event.error}", "red"))
            case BatchSettled():
                self._batch = None
                self._doing = "waiting for records"
                self._batches.append(event)
                self._counts += event.counts
            case RecordsHeld():
                self._batch = None
                self._doing = "waiting for the ends of transactions"
            case Paused():
                self._batch = None
                self._doing = _paused_line(event)
            case Idle():
                self._doing = f"nothing new since {clock(event.at)}"
            case Failed() if event.retry_in is not None:
                # one line for all attempts, at the end; the error that ends the run follows it
                kept = [line for line in self._news if str(event.error.code) not in line.plain]
                self._news = deque([*kept, styled(_failed_line(event), "red")], maxlen=_NEWS)
                self._doing = "retrying"
                if event.error.code == ErrorCode.SOURCE_UNAVAILABLE:
                    self._lag = None
                if not event.under_way:
                    self._batch = None
            case Recovered():
                self._doing = "waiting for records"
                text = f"works again after {duration(event.seconds)}"
                self._news.append(styled(text, "green"))
            case Beat() if event.lag_at is not None:
                self._lag = event.lag_records

    def __rich__(self) -> RenderableType:
        """The view as it is now."""
        with self._lock:
            parts: list[RenderableType] = [self._title(), self._step_row()]
            if self._batches:
                parts.append(grid(_BATCH_HEADERS, map(_batch_cells, self._batches)))
            if self._news:
                parts += [Text(""), *self._news]
            if self._schemas > _NEWS:
                parts.append(styled(f"{counted(self._schemas, 'new schema')} so far", "dim"))
            parts += [Text(""), styled(self._counts.equation(), "bold")]
            return Group(*parts)

    def _title(self) -> Text:
        doing = self._doing
        if self._batch is not None:
            size = "" if self._records is None else f", {counted(self._records, 'record')}"
            doing = f"batch {self._batch}{size}"
        if self._lag is not None:
            doing += f", {number(self._lag)} not read yet" if self._lag else ", caught up"
        if self.stopping:
            doing = self._ending()
        running = duration(time.monotonic() - self._began)
        return Text.assemble(
            styled(self._pipeline, "bold"),
            styled(f"  {self._trigger}  {running}  ", "dim"),
            styled(doing, "yellow" if self.stopping or self._doing == "retrying" else "green"),
        )

    def _step_row(self) -> Text:
        row = Text("  ")
        current = next((s for s in STEPS if s not in self._steps), None)
        for step in STEPS:
            if step in self._steps:
                row.append_text(styled(f"{step} {self._steps[step]:.1f} s   ", "green"))
            elif step == current and self._batch is not None:
                spent = time.monotonic() - self._step_began
                row.append_text(styled(f"{step} {spent:.1f} s   ", "bold yellow"))
            else:
                row.append_text(styled(f"{step} -   ", "dim"))
        return row


def _batch_cells(event: BatchSettled) -> list[Words]:
    slowest = max(event.steps, key=lambda step: event.steps[step], default="")
    share = event.steps[slowest] / event.seconds if slowest and event.seconds else 0.0
    dead = event.counts.dead_lettered
    return [
        str(event.batch),
        number(event.counts.read),
        number(event.records_per_second),
        number(event.lag_records),
        number(event.tables),
        styled(number(dead), "yellow" if dead else ""),
        duration(event.seconds),
        f"{slowest} {share:.0%}" if slowest else "",
    ]


# Work in a separate thread, so that the main thread handles signals and the screen.

_POLL_SECONDS = 0.1


class Foreground(Generic[_T]):
    """Runs a function in a thread until it ends or a stop is requested.

    If PySpark is started in the main thread, it handles Ctrl-C and cancels the current job. In
    another thread it ignores signals, and a batch can be finished.
    """

    def __init__(self, work: Callable[[], _T], *, stop: threading.Event) -> None:
        self._work, self._stop = work, stop
        self.signal: int | None = None
        """The signal that requested the stop."""
        self.on_stop: Callable[[], None] = lambda: None
        """Called at the first signal."""
        self.on_force: Callable[[], None] = lambda: None
        """Called at the second signal, which ends everything at once."""

    def run(self) -> _T:
        """Run the work; return its result or raise its error."""
        with self._listening():
            work = begun(self._work, name="pipeline")
            while not work.done():
                wait([work], timeout=_POLL_SECONDS)
        return work.result()

    @property
    def exit_code(self) -> int:
        """Return 0, or the exit code of a program that a signal has ended."""
        return 0 if self.signal is None else 128 + self.signal

    def _asked(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            # the next run continues a batch that is interrupted here
            self.on_force()
            os._exit(128 + number)
        self.signal = number
        self._stop.set()
        self.on_stop()

    @contextmanager
    def _listening(self) -> Iterator[None]:
        before = {n: signal.signal(n, self._asked) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def watched(
    call: Invocation,
    pipeline: Pipeline,
    run: Foreground[_T],
    *,
    trigger: str,
    demo: bool = False,
    as_lines: bool = False,
) -> Iterator[Say]:
    """Show a run while the context lasts; a demo's run is shown briefly on standard error.

    `as_lines` prints lines in a terminal too, so that other output can stand between them.
    """
    out = call.out
    view = LiveView(pipeline.config.name, trigger=trigger)
    pipeline.bus.subscribe(view)
    paper = out.margin if demo else out.paper
    if paper.fancy and out.verbosity == NORMAL if demo else out.lively and not as_lines:
        with Live(
            view, console=paper.console, refresh_per_second=_REFRESH_PER_SECOND, transient=demo
        ) as live:
            run.on_stop = lambda: live.console.print(f"{view.stop()}; Ctrl-C again ends at once")
            run.on_force = live.stop
            yield view.say
        return
    say = out.note if demo else plain_lines(out, pipeline.stop.set)
    if out.journal is None:
        most = 3 if demo else _MOST_SCHEMAS
        lines = Lines(say, note=out.note, step=out.step, most_schemas=most, tells_end=False)
        pipeline.bus.subscribe(lines)
    run.on_stop = lambda: out.note(view.stop())
    yield out.note


# Many pipelines: as lines with their names, as a table, and their final states.

_MOST = 30
_LONGEST_NEWS = 160
_COLOURS = {
    MemberState.RUNNING: "green",
    MemberState.DONE: "green",
    MemberState.PAUSED: "yellow",
    MemberState.RETRYING: "yellow",
    MemberState.BACKOFF: "yellow",
    MemberState.FAILED: "bold red",
}
_WORST = (MemberState.FAILED, MemberState.BACKOFF, MemberState.RETRYING)
_COUNTS = ("BATCH>", "ROWS/S>", "LAG>", "DEAD LETTERS>", "PARKED>", "RESTARTS>")
_HEADERS = ("PIPELINE", "STATE", *_COUNTS)


class UpLines:
    """A listener that prints the events of all pipelines as lines; one thread at a time."""

    def __init__(self, say: Say, *, step: Say) -> None:
        self._say, self._step = say, step
        self._by_pipeline: dict[str, Lines] = {}

    def __call__(self, event: Event) -> None:
        """One event."""
        name = event.pipeline

        def say(text: str) -> None:
            self._say(f"{name}  {text}")

        match event:
            case ProcessStarted():
                again = f", {counted(event.restarts, 'restart')}" if event.restarts else ""
                say(f"process {event.pid} started{again}")
            case Stopped():
                say(f"{event.reason} after {counted(event.batches, 'batch', 'batches')}")
            case TaskFailed():
                say(f"{event.task} failed: {event.error.code} {event.error.what}")
            case _:
                if name not in self._by_pipeline:
                    self._by_pipeline[name] = Lines(
                        say, note=say, step=lambda text: self._step(f"{name}  {text}")
                    )
                self._by_pipeline[name](event)


class UpView:
    """A table of all pipelines, drawn a few times a second; events come from any thread."""

    def __init__(self, statuses: Callable[[], Sequence[MemberStatus]]) -> None:
        self._statuses = statuses
        self._lock = threading.Lock()
        self._news: deque[Text] = deque(maxlen=_NEWS)
        self._stopping = False

    def stop(self) -> None:
        """Show that a stop was requested."""
        self._stopping = True
        self.say("stopping; Ctrl-C again ends at once")

    def say(self, text: str) -> None:
        """Show a message."""
        with self._lock:
            self._news.append(styled(cut(text, _LONGEST_NEWS), "dim"))

    def __rich__(self) -> RenderableType:
        """The view as it is now."""
        statuses = self._statuses()
        states = Counter(str(each.state) for each in statuses)
        counts = ", ".join(f"{count:,} {state}" for state, count in states.most_common())
        stopping = "; stopping" if self._stopping else ""
        title = f"{counted(len(statuses), 'pipeline')}: {counts}{stopping}"
        # the worst first, as far as there is room for all
        order = sorted(statuses, key=lambda each: each.state not in _WORST)
        rows = [[*_cells(each), _retry(each)] for each in order[:_MOST]]
        if len(order) > _MOST:
            rows.append([styled(f"and {len(order) - _MOST:,} more", "dim")])
        table = grid((*_HEADERS, "NEXT RETRY"), rows)
        with self._lock:
            news = [Text(""), *self._news] if self._news else []
            return Group(styled(title, "bold"), table, *news)


def _cells(status: MemberStatus) -> list[Words]:
    settled, dead, parked = status.settled, status.counts.dead_lettered, status.counts.parked
    last = None if settled is None else settled.batch
    code = "" if status.error is None else f" {status.error.code}"
    return [
        styled(status.name, "bold"),
        styled(f"{status.state}{code}", _COLOURS.get(status.state, "")),
        number(status.batch if status.batch is not None else last),
        number(None if settled is None else settled.records_per_second),
        _lag_cell(status),
        styled(number(dead), "yellow" if dead else ""),
        styled(number(parked), "red" if parked else ""),
        number(status.restarts),
    ]


def _lag_cell(status: MemberStatus) -> str:
    """Return the last measured lag; `-` while the source is unreachable."""
    if status.error is not None and status.error.code == ErrorCode.SOURCE_UNAVAILABLE:
        return "-"
    records, at = status.lag
    settled = status.settled
    if at is not None and (settled is None or at >= settled.at):
        return number(records)
    return "-" if settled is None else number(settled.lag_records)


def _retry(status: MemberStatus) -> Words:
    if status.retry_at is None:
        return ""
    left = (status.retry_at - datetime.now(UTC)).total_seconds()
    return styled(f"in {brief(max(left, 0.0))}", "yellow")


def draw_outcome(paper: Paper, statuses: Sequence[MemberStatus]) -> None:
    """Print how each pipeline ended."""
    paper.table(_HEADERS, map(_cells, statuses), indent=0)
    for each in statuses:
        if (error := each.error) is not None:
            parts = (str(error.code), error.what, error.where, error.evidence)
            why = "  ".join(cut(part, _LONGEST_NEWS) for part in parts if part)
            paper.line(styled(f"{each.name}  ", "bold"), why)
