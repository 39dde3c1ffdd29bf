"""`demo`: records are simulated while a pipeline ingests them, and the result is shown."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from rich.live import Live

from distributary.cli.actions.chaos import ingest_with_kills
from distributary.cli.actions.demo_folder import DemoFolder
from distributary.cli.actions.demo_result import gather
from distributary.cli.actions.demo_scene import Scene
from distributary.cli.actions.feed import Feed, RoundFeed, open_feed
from distributary.cli.actions.foreground import Foreground
from distributary.cli.actions.lines import Lines
from distributary.cli.actions.live import LiveView
from distributary.cli.actions.sparking import start_spark
from distributary.cli.lakes import open_pipeline
from distributary.cli.output import NORMAL, Paper
from distributary.cli.verb import Invocation
from distributary.observe.events import BatchSettled, Event
from distributary.run.chaos import Moment
from distributary.run.pipeline import Pipeline
from distributary.run.query import RunSummary
from distributary.simulate import Sent


class Result(Protocol):
    """What a demo shows in the end."""

    @property
    def is_exact(self) -> bool:
        """Whether everything that was sent is where it belongs, and nothing else is."""
        ...

    @property
    def complaint(self) -> str:
        """What it should have been."""
        ...

    def as_dict(self) -> dict[str, Any]:
        """The documented shape for `--json`."""
        ...

    def draw(self, paper: Paper, where: str) -> None:
        """For people."""
        ...


class Play(Protocol):
    """What is simulated, and what is to be seen of it."""

    @property
    def title(self) -> str:
        """What will be sent."""
        ...

    @property
    def moments(self) -> Iterable[Moment]:
        """Where it can be killed."""
        ...

    def open(self, call: Invocation, folder: DemoFolder) -> AbstractContextManager[Feed]:
        """What is sent, with whatever has to run for it."""
        ...

    def gather(self, folder: DemoFolder, *, seconds: float) -> Result:
        """What came of it."""
        ...


class ScenePlay:
    """Records with schemas of a registry."""

    moments = tuple(moment for moment in Moment if moment is not Moment.BEFORE_MERGE)

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._feed: RoundFeed | None = None
        self.title = scene.title

    @contextmanager
    def open(self, call: Invocation, folder: DemoFolder) -> Iterator[Feed]:
        """The feed is kept: it knows what was sent."""
        with open_feed(call, folder, self._scene) as self._feed:
            yield self._feed

    def gather(self, folder: DemoFolder, *, seconds: float) -> Result:
        """The tables against what was sent."""
        sent = self._feed.sent if self._feed else Sent()
        return gather(folder, self._scene, sent, seconds=seconds)


def run_demo(call: Invocation, scene: Scene, *, path: Path, chaos: bool) -> int:
    """Make the lake and show it; 1 if the figures are not those of what was sent."""
    return play_demo(call, ScenePlay(scene), DemoFolder(path, scene), chaos=chaos)


def play_demo(call: Invocation, play: Play, folder: DemoFolder, *, chaos: bool) -> int:
    """The same for any kind of demo."""
    began = time.monotonic()
    if folder.begin():
        call.out.note(f"{folder.given} held an earlier demo: begun anew")
    call.out.note(f"{play.title}: {folder.given}")
    kills: list[dict[str, object]] = []
    with play.open(call, folder) as feed:
        if chaos:
            kills = ingest_with_kills(call, feed, folder, moments=play.moments)
        else:
            code = _ingest(call, feed, folder)
            if code:
                return code
    result = play.gather(folder, seconds=time.monotonic() - began)
    where = shlex.quote(str(folder.given))
    call.out.show(result.as_dict() | {"kills": kills}, lambda paper: result.draw(paper, where))
    if result.is_exact:
        return 0
    call.out.warn(result.complaint)
    return 1


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
        if self._read < self._feed.messages:
            return
        try:
            # a round may have nothing in it
            while self._feed.messages <= self._read:
                if not self._feed.next():
                    self._pipeline.stop.set()
                    return
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
