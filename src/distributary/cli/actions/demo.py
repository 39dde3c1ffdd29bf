"""`demo`: records are simulated while a pipeline ingests them, and the result is shown."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from rich.live import Live

from distributary.cli.actions.demo_scene import DemoFolder, Feed, RoundFeed, Scene, open_feed
from distributary.cli.actions.live import Foreground, Lines, LiveView
from distributary.cli.actions.sparking import start_spark
from distributary.cli.lakes import open_pipeline
from distributary.cli.output import NORMAL, Paper, counted, duration, number, size, styled
from distributary.cli.verb import Invocation
from distributary.engine.loop import RunSummary
from distributary.engine.parts import KILL, Moment
from distributary.engine.pipeline import Pipeline
from distributary.errors import DistributaryError, ErrorCode
from distributary.lab.simulate.base import Sent
from distributary.model.manifest import Counts
from distributary.model.table import ChangeKind, Role
from distributary.observe.deadletters import DeadLetters
from distributary.observe.events import BatchSettled, Event
from distributary.observe.ledger import Ledger
from distributary.observe.rows import SchemaRow, TableSummary

# `demo --chaos`: the pipeline is killed in each of its steps, and every record is there once.

_WORDS = {
    Moment.AFTER_PLAN: "after the plan, before a byte was staged",
    Moment.AFTER_STAGE: "after staging, before the batch was decided",
    Moment.AFTER_MANIFEST: "after the manifest, before the first commit",
    Moment.AFTER_FIRST_COMMIT: "after the first of many commits",
    Moment.BEFORE_MERGE: "after the logs were written, before a table was merged",
    Moment.BEFORE_SETTLE: "after the last commit, before the batch was settled",
}


_UNDECIDED = (Moment.AFTER_PLAN, Moment.AFTER_STAGE)
"""At these moments the batch that is being killed has no manifest yet."""
_TOLD = ("batch ", "read ", *(f"{code} " for code in ErrorCode))


def ingest_with_kills(
    call: Invocation, feed: Feed, folder: DemoFolder, *, moments: Iterable[Moment]
) -> list[dict[str, object]]:
    """Every start goes on where the one before was killed, and dies one step later."""
    kills: list[dict[str, object]] = []
    for moment in moments:
        feed.next()
        ended, seconds = _start(call, folder, kill_at=str(moment))
        if ended != -signal.SIGKILL:
            raise _unexpected(ended, f"it was to be killed {_WORDS[moment]}")
        batch = folder.newest_batch() + (moment in _UNDECIDED)
        _tell(call, f"killed (SIGKILL) in batch {batch}, {_WORDS[moment]}", seconds, "bold red")
        kills.append({"moment": str(moment), "batch": batch})
    while feed.next():
        pass
    ended, seconds = _start(call, folder)
    if ended != 0:
        raise _unexpected(ended, "it was to run to its end")
    _tell(call, "restarted and ran to its end", seconds, "bold green")
    return kills


def _start(call: Invocation, folder: DemoFolder, *, kill_at: str = "") -> tuple[int, float]:
    """A process of its own, as a supervisor would start it; its exit code and its time."""
    environment = {**os.environ, KILL: kill_at, "NO_COLOR": "1"}
    run = [sys.executable, "-m", "distributary", "run", str(folder.file)]
    began = time.monotonic()
    with subprocess.Popen(  # noqa: S603 - this program itself
        [*run, "--available-now"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        for line in process.stdout or ():
            # the others are the same as without a kill
            if line.startswith(_TOLD):
                call.out.note(f"  {line.rstrip()}")
    return process.returncode, time.monotonic() - began


def _tell(call: Invocation, text: str, seconds: float, style: str) -> None:
    if call.out.verbosity >= NORMAL:
        call.out.margin.line(styled(text, style), f"  {duration(seconds)}")


def _unexpected(code: int, wanted: str) -> DistributaryError:
    return DistributaryError(
        "the pipeline did not end as it should",
        code=ErrorCode.INTERNAL,
        evidence=f"exit code {code}; {wanted}",
        next_step="run the demo without --chaos to see whether it works at all",
    )


# What a demo has made, read from the lake and held against what was sent.

_SHOWN = 25
_ADDED = frozenset({ChangeKind.COLUMN_ADDED, ChangeKind.SIDE_COLUMN_ADDED})


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The figures and the tables."""

    lake: str
    file: str
    topic: str
    example: str
    """A record that is worth being looked for, as `trace` wants it."""
    counts: Counts
    tables: tuple[TableSummary, ...]
    dead_letters: Mapping[str, int]
    schema_changes: int
    added: Mapping[str, int]
    """Columns that appeared after a table was made, by table."""
    batches: int
    seconds: float
    sent: Sent

    @property
    def is_exact(self) -> bool:
        """Whether everything that was sent is where it belongs, and nothing else is."""
        wanted = Counts(self.sent.messages, self.sent.good, self.sent.bad)
        rows = sum(table.rows or 0 for table in self.tables if table.role == Role.EACH)
        exact = self.counts == wanted and rows == self.sent.rows
        return exact and dict(self.dead_letters) == self.sent.bad_by_code

    @property
    def complaint(self) -> str:
        """What it should have been."""
        return f"sent were {self.sent.good:,} good and {self.sent.bad:,} bad records"

    def as_dict(self) -> dict[str, Any]:
        """The documented shape for `--json`."""
        return {
            "lake": self.lake,
            "file": self.file,
            "topic": self.topic,
            **asdict(self.counts),
            "rows": self.sent.rows,
            "equation": self.counts.equation(),
            "exact": self.is_exact,
            "tables": [
                {
                    "name": t.table,
                    "role": t.role,
                    "type": t.type,
                    "rows": t.rows,
                    "columns": t.columns,
                    "columns_added": self.added.get(t.table, 0),
                    "schema_ids": t.schema_ids,
                }
                for t in self.tables
            ],
            "dead_letters": dict(self.dead_letters),
            "schema_changes": self.schema_changes,
            "batches": self.batches,
            "seconds": round(self.seconds, 3),
        }

    def draw(self, paper: Paper, where: str) -> None:
        """The tables, what went wrong, the equation, and what to type next."""
        paper.table(
            ("TABLE", "ROWS", "COLUMNS", "ADDED WHILE RUNNING", "SIZE"),
            (
                (
                    t.table,
                    number(t.rows),
                    number(t.columns),
                    f"+ {self.added[t.table]}" if self.added.get(t.table) else "",
                    size(t.bytes),
                )
                for t in self.tables[:_SHOWN]
            ),
            right=("ROWS", "COLUMNS", "SIZE"),
            indent=0,
        )
        if len(self.tables) > _SHOWN:
            paper.line(f"and {counted(len(self.tables) - _SHOWN, 'more table')}")
        paper.line("")
        for code, count in sorted(self.dead_letters.items()):
            paper.line(f"{counted(count, 'dead letter')}: {code}")
        paper.line(
            f"{counted(self.schema_changes, 'schema change')} in "
            f"{counted(self.batches, 'batch', 'batches')}, {duration(self.seconds)}"
        )
        paper.line(styled(self.counts.equation(), "bold green" if self.is_exact else "bold red"))
        paper.line("")
        paper.line(styled("Type next:", "dim"))
        for command in ("status", "dlq list", f"trace {self.example}"):
            paper.line(f"  distributary {command} --lake {where}")


def gather(folder: DemoFolder, scene: Scene, sent: Sent, *, seconds: float) -> DemoResult:
    """Everything from the ledger, as any other command would read it."""
    lake, pipeline = str(folder.path), scene.subject
    ledger = Ledger(lake)
    tables = ledger.tables(pipeline)
    history = ledger.schema_history(pipeline=pipeline)
    letters = next((t.path for t in tables if t.role == "dead_letters"), None)
    reasons = DeadLetters(letters).reasons(pipeline=pipeline) if letters else ()
    return DemoResult(
        lake=lake,
        file=str(folder.file),
        topic=scene.topic,
        example=f"{scene.topic}/0/{scene.example}",
        counts=ledger.totals(pipeline),
        tables=tables,
        dead_letters={reason.code: reason.count for reason in reasons},
        schema_changes=sum(row.kind in set(ChangeKind) for row in history),
        added=Counter(row.table for row in added_later(history)),
        batches=len(ledger.batches(pipeline)),
        seconds=seconds,
        sent=sent,
    )


def added_later(history: Iterable[SchemaRow]) -> list[SchemaRow]:
    """Columns that appeared after their table was made."""
    rows = list(history)
    created = {row.table: row.batch for row in rows if row.kind == ChangeKind.TABLE_CREATED}
    return [r for r in rows if r.kind in _ADDED and r.batch > created.get(r.table, -1)]


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
