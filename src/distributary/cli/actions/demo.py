"""`demo`: records are simulated while a pipeline ingests them, and the result is shown."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.live import Live

from distributary.cli.actions.chaos import ingest_with_kills
from distributary.cli.actions.demo_folder import DemoFolder
from distributary.cli.actions.demo_result import DemoResult, gather
from distributary.cli.actions.demo_scene import Scene
from distributary.cli.actions.feed import Feed, open_feed
from distributary.cli.actions.foreground import Foreground
from distributary.cli.actions.lines import Lines
from distributary.cli.actions.live import LiveView
from distributary.cli.actions.sparking import start_spark
from distributary.cli.lakes import open_pipeline
from distributary.cli.output import NORMAL
from distributary.cli.verb import Invocation
from distributary.observe.events import BatchSettled, Event
from distributary.run.pipeline import Pipeline
from distributary.run.query import RunSummary


def run_demo(call: Invocation, scene: Scene, *, path: Path, chaos: bool) -> int:
    """Make the lake and show it; 1 if the figures are not those of what was sent."""
    began = time.monotonic()
    folder = DemoFolder(path, scene)
    if folder.begin():
        call.out.note(f"{path} held an earlier demo: begun anew")
    call.out.note(f"{scene.title}: {path}")
    kills: list[dict[str, object]] = []
    with open_feed(call, folder) as feed:
        if chaos:
            kills = ingest_with_kills(call, feed, folder)
        else:
            code = _ingest(call, feed, folder)
            if code:
                return code
    result = gather(folder, feed.sent, seconds=time.monotonic() - began)
    where = shlex.quote(str(path))
    call.out.show(result.as_dict() | {"kills": kills}, lambda paper: result.draw(paper, where))
    return _verdict(call, result)


def _ingest(call: Invocation, feed: Feed, folder: DemoFolder) -> int:
    """One query from the first record to the last; each schema version arrives while it runs."""
    pipeline = open_pipeline(call, folder.file)
    feeder = _Feeder(feed, pipeline)
    pipeline.bus.subscribe(feeder)

    def work() -> RunSummary:
        feed.next()
        with start_spark(call, pipeline, tell=tell) as spark:
            return pipeline.run(trigger="continuous", spark=spark)

    run = Foreground(work, stop=pipeline.stop)
    with _watched(call, pipeline, run) as tell:
        run.run()
    if feeder.error is not None:
        raise feeder.error
    if run.signal is not None:
        call.out.note(f"stopped; what was done so far is in {folder.given}")
    return run.exit_code


class _Feeder:
    """Sends the next round when the one before has arrived."""

    def __init__(self, feed: Feed, pipeline: Pipeline) -> None:
        self._feed, self._pipeline = feed, pipeline
        self._read = 0
        self.error: Exception | None = None

    def __call__(self, event: Event) -> None:
        if not isinstance(event, BatchSettled):
            return
        self._read += event.counts.read
        if self._read < self._feed.sent.messages:
            return
        try:
            if not self._feed.next():
                self._pipeline.stop.set()
        except Exception as error:
            # raised here it would be passed over, and the run would wait for ever
            self.error = error
            self._pipeline.stop.set()


@contextmanager
def _watched(
    call: Invocation, pipeline: Pipeline, run: Foreground[RunSummary]
) -> Iterator[Callable[[str], None]]:
    if call.out.margin.fancy and call.out.verbosity == NORMAL:
        view = LiveView(pipeline.config.name, trigger="demo")
        pipeline.bus.subscribe(view)
        with Live(view, console=call.out.margin.console, transient=True) as live:
            run.on_stop = lambda: live.console.print(view.stop())
            run.on_force = live.stop
            yield view.say
        return
    note, step = call.out.note, call.out.step
    pipeline.bus.subscribe(Lines(note, note=note, step=step, most_schemas=3))
    yield note


def _verdict(call: Invocation, result: DemoResult) -> int:
    if result.is_exact:
        return 0
    call.out.warn(f"sent were {result.sent.good:,} good and {result.sent.bad:,} bad records")
    return 1
