"""`run`: a pipeline in the foreground."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path

from rich.live import Live

from distributary.cli.actions.live import Foreground, Lines, LiveView
from distributary.cli.actions.metrics import measured
from distributary.cli.actions.sparking import start_spark
from distributary.cli.lakes import open_pipeline
from distributary.cli.logs import journal_for, usage_error
from distributary.cli.output import Paper, counted, duration, styled
from distributary.cli.verb import Invocation
from distributary.config.engine import Trigger
from distributary.engine.loop import RunSummary
from distributary.engine.pipeline import Pipeline
from distributary.observe.events import BatchSettled, BatchStarted, Event
from distributary.observe.journal import Journal
from distributary.observe.log_format import LogFormat
from distributary.supervise.process import Channel
from distributary.supervise.supervisor import listeners_of

_REFRESH_PER_SECOND = 8


def trigger_of(*, continuous: bool, every: str | None, available_now: bool) -> str | None:
    """The trigger that the flags ask for; None leaves it to the file."""
    wanted = [
        *(["continuous"] if continuous else []),
        *([f"every {every}"] if every is not None else []),
        *(["available_now"] if available_now else []),
    ]
    if len(wanted) > 1:
        raise usage_error(
            "--continuous, --every and --available-now exclude each other.",
            command="distributary run",
        )
    return wanted[0] if wanted else None


def run_pipeline(
    call: Invocation,
    file: Path,
    *,
    trigger: str | None,
    log_format: LogFormat | None = None,
    metrics: str | None = None,
    token: str | None = None,
) -> int:
    """Run until it is done or stopped; 1 if something still waits for a table."""
    with journal_for(call.out, log_format) as journal:
        pipeline = open_pipeline(call, file)
        # before Spark is started for nothing
        pipeline.ready()
        wanted = _parse(trigger) if trigger is not None else pipeline.config.trigger
        quick = pipeline.spark_settings(wanted).short_lived

        def work() -> RunSummary:
            with start_spark(call, pipeline, tell=tell, short_lived=quick) as spark:
                return pipeline.run(trigger=wanted, spark=spark)

        run = Foreground(work, stop=pipeline.stop)
        heard = _told(pipeline, journal, measured(call, pipeline, metrics, token))
        with heard, _watched(call, pipeline, run, wanted) as tell:
            summary = run.run()
    data = {**asdict(summary.counts), **_facts(summary), "signal": _signal_name(run.signal)}
    call.out.show(data, lambda paper: draw_summary(paper, summary))
    return run.exit_code or (1 if summary.still_parked.tables else 0)


def draw_summary(paper: Paper, summary: RunSummary) -> None:
    """The equation, last of all."""
    how = "stopped" if summary.stopped == "stopped" else "done"
    batches = counted(summary.batches, "batch", "batches")
    paper.line(f"{how} after {batches} in {duration(summary.seconds)}")
    good = summary.counts.balanced and not summary.still_parked.tables
    paper.line(styled(summary.equation(), "bold green" if good else "bold red"))


@contextmanager
def _told(
    pipeline: Pipeline, journal: Journal | None, metrics: AbstractContextManager[None]
) -> Iterator[None]:
    """Those who listen besides the screen: a supervisor, or what the file asks for."""
    if journal is not None:
        journal.pipeline = pipeline.config.name
        pipeline.bus.subscribe(journal.follow)
    channel = Channel.from_environment(mask=pipeline.loaded.mask)
    if channel is not None:
        pipeline.bus.subscribe(channel)
        try:
            yield
        finally:
            channel.close()
        return
    if journal is not None:
        pipeline.bus.subscribe(journal)
    with metrics, listeners_of([pipeline.config], pipeline.bus):
        yield


@contextmanager
def _watched(
    call: Invocation, pipeline: Pipeline, run: Foreground[RunSummary], trigger: Trigger
) -> Iterator[Callable[[str], None]]:
    if call.out.lively:
        view = LiveView(pipeline.config.name, trigger=str(trigger))
        pipeline.bus.subscribe(view)
        console = call.out.paper.console
        with Live(view, console=console, refresh_per_second=_REFRESH_PER_SECOND) as live:
            run.on_stop = lambda: live.console.print(f"{view.stop()}; Ctrl-C again ends at once")
            run.on_force = live.stop
            yield view.say
        return

    def say(text: str) -> None:
        # standard output is for the document when one is asked for
        if call.out.is_json:
            call.out.note(text)
            return
        try:
            call.out.show({}, lambda paper: paper.line(text))
        except BrokenPipeError:
            # nobody reads any more
            pipeline.stop.set()

    if call.out.journal is None:
        pipeline.bus.subscribe(Lines(say, note=call.out.note, step=call.out.step))
    position = _Position()
    pipeline.bus.subscribe(position)
    run.on_stop = lambda: call.out.note(position.on_stop())
    yield call.out.note


class _Position:
    """Which batch is under way."""

    def __init__(self) -> None:
        self._batch: int | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, BatchStarted):
            self._batch = event.batch
        elif isinstance(event, BatchSettled):
            self._batch = None

    def on_stop(self) -> str:
        return "stopping" if self._batch is None else f"finishing batch {self._batch}"


def _parse(text: str) -> Trigger:
    try:
        return Trigger.parse(text)
    except ValueError as error:
        raise usage_error(f"--every {error}.", command="distributary run") from None


def _facts(summary: RunSummary) -> dict[str, object]:
    return {
        "pipeline": summary.pipeline,
        "batches": summary.batches,
        "seconds": round(summary.seconds, 3),
        "stopped": summary.stopped,
        "query_id": summary.query_id,
        "equation": summary.equation(),
        "still_parked": asdict(summary.still_parked),
    }


def _signal_name(number: int | None) -> str | None:
    return None if number is None else signal.Signals(number).name
