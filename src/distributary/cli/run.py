"""`run`, `up` and `pipelines run`: one pipeline in the foreground, or many under a supervisor."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from distributary.cli.command.lakes import load_file
from distributary.cli.command.output import EVERYTHING, Paper, counted, duration, styled
from distributary.cli.command.verb import (
    RUN,
    File,
    Invocation,
    argument,
    group,
    option,
    single,
    verb,
)
from distributary.errors import DistributaryError
from distributary.observe.log_format import LogFormat, LogLine, cut, plain, spell

if TYPE_CHECKING:
    from concurrent.futures import Future

    from pyspark.sql import SparkSession

    from distributary.cli.command.batch_rows import BatchRows
    from distributary.cli.command.live import UpView
    from distributary.config.load import Loaded
    from distributary.config.pipeline_config import PipelineConfig
    from distributary.config.runtime import Trigger
    from distributary.engine.loop import RunSummary
    from distributary.engine.pipeline import Pipeline
    from distributary.observe.events import EventBus
    from distributary.observe.journal import Journal
    from distributary.spark.settings import SparkSettings
    from distributary.supervise.supervisor import Render, Supervisor


app = single(RUN)
pipelines_app = group("pipelines", "Declarative pipelines of Spark: run a project.", panel=RUN)

Token = Annotated[
    str | None,
    option(
        "--token",
        "Token for requests to /status and /metrics; required for any address but loopback.",
        envvar="DISTRIBUTARY_TOKEN",
    ),
]
LogForm = Annotated[
    LogFormat | None,
    option(
        "--log-format",
        "Write everything to standard error, a line each: for people, or as JSON.",
        rich_help_panel="Output",
    ),
]

_MOST_ROWS = 100
_REFRESH_PER_SECOND = 4
_SERIOUS = frozenset({"WARNING", "ERROR", "CRITICAL"})
_UPDATE = (sys.executable, "-P", "-m", "distributary.pipelines.update")


@verb(
    app,
    "run distributary-demo/games.yaml",
    "run distributary-demo/games.yaml --every 10s",
    "run distributary-demo/games.yaml --metrics 127.0.0.1:9464",
    "run distributary-demo/games.yaml --show-rows 3",
)
def run(
    call: Invocation,
    file: File,
    continuous: Annotated[
        bool, option("--continuous", "Run until stopped, without pauses.")
    ] = False,
    every: Annotated[
        str | None,
        option("--every", "Run until stopped, one batch every 10s (or another duration)."),
    ] = None,
    available_now: Annotated[
        bool, option("--available-now", "Process the available records, then end.")
    ] = False,
    metrics: Annotated[
        str | None,
        option("--metrics", "Serve metrics for Prometheus at this address.", metavar="HOST:PORT"),
    ] = None,
    token: Token = None,
    show_rows: Annotated[
        int | None,
        option(
            "--show-rows",
            "After each batch, print the newest rows of the tables that it wrote (of up to ten).",
            metavar="ROWS",
            min=1,
            max=_MOST_ROWS,
        ),
    ] = None,
    log_format: LogForm = None,
) -> int:
    """Run a pipeline in the foreground, with live progress.

    In a terminal the view redraws itself; in a pipe, each batch prints one line. --continuous,
    --every and --available-now replace the trigger of the file. After one Ctrl-C, the run finishes
    its batch and ends.
    """
    from distributary.cli.command.log_file import journal_for

    if continuous + (every is not None) + available_now > 1:
        raise call.usage("--continuous, --every and --available-now exclude each other.")
    asked = "continuous" if continuous else "available_now" if available_now else None
    with journal_for(call.out, log_format) as journal:
        loaded = load_file(call, file)
        from distributary.config.runtime import Trigger

        try:
            timed = loaded.config.trigger if every is None else f"every {every}"
            trigger = Trigger.parse(asked or timed)
        except ValueError as error:
            raise call.usage(f"--every {error}.") from None
        _refuse_owned(loaded.config)
        away = _ask_broker(loaded.config, trigger)
        # the JVM starts while the modules below are imported
        settings, begun = (None, None) if away else _begin_spark(call, loaded, trigger)
        from distributary.cli.command.live import Foreground, start_spark, watched
        from distributary.engine.pipeline import Pipeline

        pipeline = Pipeline(loaded, log_file=call.log.path)
        with pipeline.failure_recorded():
            pipeline.ready()

        def work() -> RunSummary:
            with (
                pipeline.failure_recorded(),
                _not_without(away),
                start_spark(call, pipeline, tell=tell, settings=settings, begun=begun) as spark,
            ):
                return pipeline.run(trigger=trigger, spark=spark)

        foreground = Foreground(work, stop=pipeline.stop)
        upkeep = _maintained(call, pipeline, journal, trigger)
        heard = _heard(pipeline, journal, _measured(call, pipeline, metrics, token))
        rows = None if show_rows is None else _batch_rows(call, pipeline, show_rows)
        shown = watched(call, pipeline, foreground, trigger=str(trigger), as_lines=rows is not None)
        with heard, upkeep, shown as tell:
            if rows is not None:
                # subscribed last: the rows follow the line of their batch
                pipeline.bus.subscribe(rows)
            summary = foreground.run()
    data = {
        **asdict(summary.counts),
        "pipeline": summary.pipeline,
        "batches": summary.batches,
        "seconds": round(summary.seconds, 3),
        "stopped": summary.stopped,
        "query_id": summary.query_id,
        "equation": summary.equation(),
        "still_parked": asdict(summary.still_parked),
        "catalog": None if summary.catalog is None else plain(summary.catalog),
        "signal": _signal_name(foreground.signal),
        "shown": None if rows is None else rows.document,
    }

    def draw(paper: Paper) -> None:
        how = "stopped" if summary.stopped == "stopped" else "done"
        batches = counted(summary.batches, "batch", "batches")
        paper.line(f"{how} after {batches} in {duration(summary.seconds)}")
        good = summary.counts.balanced and not summary.still_parked.tables
        paper.line(styled(summary.equation(), "bold green" if good else "bold red"))
        if summary.catalog is not None and summary.catalog.problems:
            left = counted(summary.catalog.waiting, "table")
            text = f"{left} not in {summary.catalog.place}: {summary.catalog.error}"
            paper.line(styled(cut(text, 500), "yellow"))

    call.out.show(data, draw)
    unnamed = summary.catalog is not None and bool(summary.catalog.problems)
    return foreground.exit_code or int(bool(summary.still_parked.tables) or unnamed)


def _batch_rows(call: Invocation, pipeline: Pipeline, count: int) -> BatchRows:
    from distributary.cli.command.batch_rows import BatchRows

    return BatchRows(pipeline.config, call.out, count=count, on_closed=pipeline.stop.set)


def _refuse_owned(config: PipelineConfig) -> None:
    """Raise OwnedError if the pipeline runs already, before Spark is imported."""
    from distributary.engine.progress.claim import refuse_owned
    from distributary.store.base import absolute, at, introduce

    introduce(config.lake.checkpoint, config.lake.options)
    introduce(config.lake.address, config.lake.options)
    refuse_owned(at(absolute(config.checkpoint_path)))


def _ask_broker(config: PipelineConfig, trigger: Trigger) -> DistributaryError | None:
    """Return why the source cannot be read, of a run that would end because of it."""
    from distributary.config.runtime import TriggerKind
    from distributary.engine.seams import require_source

    if trigger.kind is not TriggerKind.AVAILABLE_NOW:
        # a continuous run waits for its broker
        return None
    try:
        require_source(config)
    except DistributaryError as error:
        return error
    return None


@contextmanager
def _not_without(away: DistributaryError | None) -> Iterator[None]:
    """Raise the error of a source that did not answer, where alerts and `status` learn of it."""
    if away is not None:
        raise away
    yield


def _begin_spark(
    call: Invocation, loaded: Loaded, trigger: Trigger
) -> tuple[SparkSettings, Future[SparkSession] | None]:
    """Return Spark's settings, and its starting session unless files must be fetched first."""
    from distributary.spark.jars import have_connectors
    from distributary.spark.session import begin_session
    from distributary.spark.settings import SparkSettings

    loud = call.out.verbosity >= EVERYTHING
    settings = SparkSettings.of(loaded, trigger, log_file=call.log.path, loud=loud)
    if not have_connectors():
        # fetching the connectors takes a while, and the display of the run reports it
        return settings, None
    return settings, begin_session(settings, app_name=loaded.config.name)


def _signal_name(number: int | None) -> str | None:
    return None if number is None else signal.Signals(number).name


def _supervised() -> bool:
    from distributary.supervise.process import VARIABLE

    return bool(os.environ.get(VARIABLE))


def _maintained(
    call: Invocation, pipeline: Pipeline, journal: Journal | None, trigger: Trigger
) -> AbstractContextManager[None]:
    """Keep the tables in order beside a run that goes on; a supervisor does that by itself."""
    from distributary.supervise.upkeep import maintained

    def write(line: LogLine) -> None:
        if journal is not None:
            journal.write(line)
        else:
            call.out.step(spell(line, LogFormat.TEXT))

    if _supervised():
        return nullcontext()
    return maintained(pipeline.loaded, trigger, pipeline.bus, write)


@contextmanager
def _heard(
    pipeline: Pipeline, journal: Journal | None, metrics: AbstractContextManager[None]
) -> Iterator[None]:
    """Attach the listeners besides the screen: a supervisor, or those of the pipeline file."""
    from distributary.supervise.process import Channel
    from distributary.supervise.supervisor import alerting

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
    with metrics, alerting([pipeline.config], pipeline.bus):
        yield


@contextmanager
def _measured(
    call: Invocation, pipeline: Pipeline, listen: str | None, token: str | None
) -> Iterator[None]:
    """Serve a pipeline's metrics while it runs, where the file or the command line asks for it."""
    from pydantic import TypeAdapter, ValidationError

    from distributary.config.alerts import Listen
    from distributary.supervise.server import Answers, ListenAddress, serving
    from distributary.supervise.supervisor import counting

    address, option = pipeline.config.metrics.listen, "metrics.listen"
    if listen is not None:
        option = "--metrics"
        try:
            address = TypeAdapter(Listen).validate_python(listen)
        except ValidationError as error:
            raise call.usage(f"--metrics {error.errors()[0]['msg']}.") from None
    if address is None:
        yield
        return
    with counting([pipeline.config], pipeline.bus) as render:
        answers = Answers(metrics=render, token=token)
        with serving(ListenAddress.parse(address), answers, option=option) as url:
            call.out.note(f"metrics at {url}/metrics")
            yield


@verb(
    app,
    "up distributary-demo/games.yaml",
    "up distributary-demo/games.yaml --every 10s --listen 127.0.0.1:0",
)
def up(
    call: Invocation,
    files: Annotated[list[Path], argument("The pipeline files.", metavar="FILE")],
    every: Annotated[
        str | None,
        option(
            "--every",
            "Run every pipeline until stopped, one batch every 10s (or another duration).",
        ),
    ] = None,
    grace: Annotated[
        str, option("--grace", "The time that stopped pipelines have to finish their batches.")
    ] = "60s",
    listen: Annotated[
        str | None,
        option(
            "--listen",
            "Serve /live, /ready, /status and /metrics at this address; port 0 takes a free port.",
            metavar="HOST:PORT",
        ),
    ] = None,
    token: Token = None,
    log_format: LogForm = None,
) -> int:
    """Run many pipelines, each in a process, and restart those that fail.

    A failed pipeline does not affect the others. It is restarted after a pause, by its setting
    `restart`. After one Ctrl-C or SIGTERM, every pipeline finishes its batch and ends.
    """
    from distributary.cli.command.live import draw_outcome
    from distributary.cli.command.log_file import journal_for
    from distributary.observe.events import EventBus
    from distributary.supervise.member import Member
    from distributary.supervise.supervisor import (
        Relay,
        Supervisor,
        alerting,
        counting,
        plan_of,
        run_command,
    )
    from distributary.supervise.upkeep import upkeep

    seconds = call.seconds("--grace", grace)
    if every is not None and not call.seconds("--every", every):
        raise call.usage("--every must be longer than nothing.")
    plan = plan_of(files, run_command(*(() if every is None else ("--every", every))))
    call.out.mask = plan.mask
    bus, words = EventBus(), _Words(call)
    with journal_for(call.out, log_format), Relay(bus, words.relayed) as relay:
        for warning in (str(each) for loaded in plan.loaded for each in loaded.warnings):
            call.out.warn(warning)
        supervisor = Supervisor(
            [Member(spec, grace=seconds, tell=relay) for spec in plan.specs],
            schedules=[
                upkeep(loaded, often, grace=seconds, tell=relay)
                for loaded in plan.loaded
                if (often := loaded.config.maintain.every) is not None
            ],
        )
        configs = [loaded.config for loaded in plan.loaded]
        with (
            alerting(configs, bus),
            counting(configs, bus) as metrics,
            _answering(call, supervisor, metrics, listen, token),
            words.shown(supervisor, bus),
        ):
            supervisor.run()
    data = {
        "pipelines": [each.as_dict() for each in supervisor.statuses],
        "signal": _signal_name(supervisor.stopped_by),
    }
    call.out.show(data, lambda paper: draw_outcome(paper, supervisor.statuses))
    return supervisor.exit_code


class _Words:
    """What people see of it: a view that redraws itself, plain lines, or the log."""

    def __init__(self, call: Invocation) -> None:
        self._out = call.out
        self._view: UpView | None = None

    @contextmanager
    def shown(self, supervisor: Supervisor, bus: EventBus) -> Iterator[None]:
        """Print events while the context lasts."""
        from rich.live import Live

        from distributary.cli.command.live import UpLines, UpView, plain_lines

        out = self._out
        supervisor.on_stop = lambda: out.note("stopping; a second signal ends at once")
        if out.journal is not None:
            bus.subscribe(out.journal)
            yield
        elif out.lively:
            self._view = view = UpView(lambda: supervisor.statuses)
            # the view does not show steps
            bus.subscribe(UpLines(view.say, step=lambda _: None))
            supervisor.on_stop = view.stop
            # the view is removed at the end, because the outcome repeats its content
            with Live(
                view,
                console=out.paper.console,
                refresh_per_second=_REFRESH_PER_SECOND,
                transient=True,
            ):
                yield
        else:
            bus.subscribe(UpLines(plain_lines(out, supervisor.ask), step=out.step))
            yield

    def relayed(self, line: LogLine) -> None:
        """Print a line of a pipeline's log, or of its other output on standard error."""
        out = self._out
        if out.journal is not None:
            out.journal.write(line)
        elif self._view is not None:
            if line.level in _SERIOUS:
                self._view.say(f"{line.pipeline}  {out.mask(line.message)}")
        else:
            tell = out.note if line.level in _SERIOUS else out.step
            tell(spell(line, LogFormat.TEXT))


@contextmanager
def _answering(
    call: Invocation,
    supervisor: Supervisor,
    metrics: Render | None,
    listen: str | None,
    token: str | None,
) -> Iterator[None]:
    """Serve the health endpoint if the command asks for it."""
    from distributary.supervise.member import readiness
    from distributary.supervise.server import Answers, ListenAddress, serving

    if listen is None:
        yield
        return
    answers = Answers(
        live=lambda: supervisor.is_live,
        ready=lambda: readiness(supervisor.statuses),
        status=lambda: {"pipelines": [each.as_dict() for each in supervisor.statuses]},
        metrics=metrics,
        token=token,
    )
    with serving(ListenAddress.parse(listen), answers) as address:
        call.out.note(f"listening at {address}")
        yield


@verb(
    pipelines_app,
    "pipelines run examples/declarative",
    "pipelines run examples/declarative --dry-run",
    "pipelines run examples/declarative --continuous --pause 1m",
    panel=RUN,
    name="run",
)
def run_project(
    call: Invocation,
    project: Annotated[
        Path, argument("Folder of the project, or its spec file.", metavar="PROJECT")
    ],
    master: Annotated[str, option("--master", "The Spark master, such as local[4].")] = "local[*]",
    remote: Annotated[
        str | None, option("--remote", "A Spark Connect server: sc://host.", envvar="SPARK_REMOTE")
    ] = None,
    max_restarts: Annotated[
        str, option("--max-restarts", "Number of consecutive failures allowed: unlimited, or 5.")
    ] = "unlimited",
    grace: Annotated[
        str, option("--grace", "The time that a stopped update has to finish.")
    ] = "60s",
    continuous: Annotated[
        bool, option("--continuous", "Run update after update, until a signal ends the last one.")
    ] = False,
    pause: Annotated[
        str, option("--pause", "With --continuous: the time between two updates.")
    ] = "10s",
    dry_run: Annotated[bool, option("--dry-run", "Only check the project's definitions.")] = False,
) -> int:
    """Run one update of a declarative project; repeat it if the schema grows meanwhile.

    Like `spark-pipelines run`, under a supervisor: a failed update is repeated after a pause, with
    the columns that the registry has by then. No record is lost or written twice.
    """
    from pydantic import ValidationError

    from distributary.cli.command.live import UpLines, draw_outcome
    from distributary.config.runtime import Restart
    from distributary.observe.events import EventBus
    from distributary.pipelines.update import find_project, require_extra
    from distributary.supervise.member import Member, Spec
    from distributary.supervise.supervisor import Relay, Supervisor

    try:
        restart = Restart.model_validate({"max": "0" if dry_run else max_restarts})
    except ValidationError:
        raise call.usage("--max-restarts must be unlimited, or a number from 0 on.") from None
    seconds, between = call.seconds("--grace", grace), call.seconds("--pause", pause)
    if continuous and dry_run:
        raise call.usage("--continuous and --dry-run cannot be combined.")
    require_extra()
    found, out = find_project(project), call.out

    def relayed(line: LogLine) -> None:
        tell = out.note if line.level in _SERIOUS else out.step
        tell(out.mask(line.message))

    if remote is not None:
        # an address may hold a token, which must not be on the command line of the process
        os.environ["SPARK_REMOTE"] = remote
    options = (
        *(("--dry-run",) * dry_run),
        *(("--pause", str(between)) * continuous),
    )
    command = (*_UPDATE, "--master", master, *options, "--", str(found.spec))
    bus = EventBus()
    with Relay(bus, relayed) as relay:
        spec = Spec(found.name, str(found.spec), command, restart)
        supervisor = Supervisor([Member(spec, grace=seconds, tell=relay)])
        supervisor.on_stop = lambda: out.note("stopping; a second signal ends at once")
        bus.subscribe(UpLines(out.note, step=out.step))
        supervisor.run()
    status = supervisor.statuses[0]
    data = {
        "project": found.name,
        "spec": str(found.spec),
        "state": str(status.state),
        "updates": None if continuous else status.restarts + 1,
        "error": None if status.error is None else status.error.as_dict(),
        "signal": _signal_name(supervisor.stopped_by),
    }
    out.show(data, lambda paper: draw_outcome(paper, supervisor.statuses))
    return supervisor.exit_code
