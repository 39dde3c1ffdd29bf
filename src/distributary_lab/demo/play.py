"""Plays a demo: its folder, its pipeline, what is sent meanwhile, and what is shown."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from distributary.cli.command.lakes import open_pipeline
from distributary.cli.command.live import Foreground, start_spark, watched
from distributary.cli.command.output import NORMAL, Draw, Paper, counted, duration, program, styled
from distributary.cli.command.verb import Invocation
from distributary.config.file.show import json_schema
from distributary.engine.kill_points import KILL, KillPoint
from distributary.engine.loop import RunSummary
from distributary.engine.pipeline import Pipeline
from distributary.engine.progress.checkpoint import Manifests
from distributary.engine.progress.claim import state_of
from distributary.errors import ConfigError, DistributaryError, ErrorCode, OwnedError
from distributary.model import layout
from distributary.model.manifest import Counts
from distributary.model.table import ChangeKind
from distributary.observe.events import BatchSettled, Event
from distributary.observe.ledger.ledger import Ledger
from distributary.observe.ledger.ledger_rows import SchemaRow
from distributary.store.base import at


class Feed(ABC):
    """A producer that sends its records in rounds."""

    messages = 0
    """The number of records that were sent so far."""

    @abstractmethod
    def next(self) -> bool:
        """Send one more round; return False if there is none."""


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The result of a demo, compared with the records that were sent."""

    is_exact: bool
    """Whether the tables have exactly the records that were sent."""
    complaint: str
    """The expected result, for the message about a difference."""
    commands: Sequence[str]
    """The commands that the demo suggests at its end."""
    data: Mapping[str, Any]
    """The parts of the result for `--json`, besides the counts."""
    draw: Draw
    """A function that prints the tables."""


@dataclass(frozen=True)
class Scene(ABC):
    """A subject of a demo: its records, their topic and their tables."""

    subject: str
    """The name of the subject, and of its pipeline."""
    title: str
    """The description of the records."""
    topic: str
    """The name of the topic, or of the folder in its place."""
    tables: tuple[str, ...]
    """The tables that the pipeline may create."""
    kafka: bool
    """Whether it needs a broker and a registry."""
    moments: tuple[KillPoint, ...]
    """The steps at which the run can be killed."""

    @abstractmethod
    def open(self, call: Invocation, folder: DemoFolder) -> AbstractContextManager[Any]:
        """Write the pipeline's file, start the services, and return the feed."""

    @abstractmethod
    def gather(self, folder: DemoFolder, feed: Any, counts: Counts, *, took: str) -> DemoResult:
        """Return the results; `took` is the number of batches and the time."""


_SHOWN = 25
_ADDED = frozenset({ChangeKind.COLUMN_ADDED, ChangeKind.SIDE_COLUMN_ADDED})


def added_later(history: Iterable[SchemaRow]) -> list[SchemaRow]:
    """Return the columns that were added after their table was created."""
    rows = list(history)
    created = {row.table: row.batch for row in rows if row.kind == ChangeKind.TABLE_CREATED}
    return [r for r in rows if r.kind in _ADDED and r.batch > created.get(r.table, -1)]


def play(call: Invocation, scene: Scene, path: Path, *, chaos: bool) -> int:
    """Make the lake and show it; 1 if the figures are not those of what was sent."""
    began, folder = time.monotonic(), DemoFolder(path, scene)
    if folder.begin():
        call.out.note(f"{folder.given} held an earlier demo: started over")
    call.out.note(f"{scene.title}: {folder.given}")
    kills: list[dict[str, object]] = []
    with scene.open(call, folder) as feed:
        if chaos:
            kills = _ingest_with_kills(call, feed, folder, scene.moments)
        elif code := _ingest(call, feed, folder):
            return code
    seconds = time.monotonic() - began
    ledger = Ledger(str(folder.path))
    counts, batches = ledger.totals(scene.subject), len(ledger.batches(scene.subject))
    took = f"{counted(batches, 'batch', 'batches')}, {duration(seconds)}"
    result = scene.gather(folder, feed, counts, took=took)
    data = {
        "lake": str(folder.path),
        "file": str(folder.file),
        **asdict(counts),
        "equation": counts.equation(),
        "exact": result.is_exact,
        **result.data,
        "batches": batches,
        "seconds": round(seconds, 3),
        "kills": kills,
    }

    def draw(paper: Paper) -> None:
        result.draw(paper)
        paper.line(styled(counts.equation(), "bold green" if result.is_exact else "bold red"))
        paper.line("")
        paper.line(styled("Type next:", "dim"))
        for command in result.commands:
            paper.line(f"  {program()} {command} --lake {shlex.quote(str(folder.given))}")

    call.out.show(data, draw)
    if result.is_exact:
        return 0
    call.out.warn(result.complaint)
    return 1


def draw_tables(paper: Paper, headers: Sequence[str], rows: Sequence[Any]) -> None:
    """Print the first of the created tables."""
    paper.table(headers, rows[:_SHOWN], indent=0)
    paper.more(len(rows) - _SHOWN, "table")
    paper.line("")


def _ingest(call: Invocation, feed: Feed, folder: DemoFolder) -> int:
    """Ingest all records in one run; each schema version arrives while it runs."""
    pipeline = open_pipeline(call, folder.file)
    feeder = _Feeder(feed, pipeline)
    pipeline.bus.subscribe(feeder)

    def work() -> RunSummary:
        feed.next()
        with start_spark(call, pipeline, tell=tell) as spark:
            summary = pipeline.run(trigger="continuous", spark=spark)
            if not feeder.is_done or run.signal is not None:
                return summary
            # the end of the feed ended the run: a run that finds nothing more to read is done
            pipeline.stop.clear()
            return pipeline.run(trigger="available_now", spark=spark)

    run = Foreground(work, stop=pipeline.stop)
    with watched(call, pipeline, run, trigger="demo", demo=True) as tell:
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
        self.is_done = False
        """Whether all rounds were sent and read."""
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
                    self.is_done = True
                    self._pipeline.stop.set()
                    return
        except Exception as error:
            # raised here it would be passed over, and the run would wait for ever
            self.error = error
            self._pipeline.stop.set()


# `demo --chaos`: the pipeline is killed in each of its steps, and every record is there once.

_WORDS = {
    KillPoint.AFTER_PLAN: "after the plan, before a byte was staged",
    KillPoint.AFTER_STAGE: "after staging, before the batch was decided",
    KillPoint.AFTER_MANIFEST: "after the manifest, before the first commit",
    KillPoint.AFTER_FIRST_COMMIT: "after the first of many commits",
    KillPoint.BEFORE_MERGE: "after the logs were written, before a table was merged",
    KillPoint.BEFORE_SETTLE: "after the last commit, before the batch was finished",
}
_UNDECIDED = (KillPoint.AFTER_PLAN, KillPoint.AFTER_STAGE)
"""The moments of a kill at which the batch has no manifest yet."""
_PROGRESS = ("batch ", "read ", *(f"{code} " for code in ErrorCode))


def _ingest_with_kills(
    call: Invocation, feed: Feed, folder: DemoFolder, moments: Iterable[KillPoint]
) -> list[dict[str, object]]:
    """Ingest all records in runs that are killed; each is killed one step later."""
    kills: list[dict[str, object]] = []

    def start(kill_at: str, wanted: int, words: str) -> float:
        ended, seconds = _start(call, folder, kill_at=kill_at)
        if ended != wanted:
            raise DistributaryError(
                "the pipeline did not end as it should",
                code=ErrorCode.INTERNAL,
                evidence=f"exit code {ended}; it was to {words}",
                next_step="run the demo without --chaos to see whether it works at all",
            )
        return seconds

    def tell(text: str, seconds: float, style: str) -> None:
        if call.out.verbosity >= NORMAL:
            call.out.margin.line(styled(text, style), f"  {duration(seconds)}")

    for moment in moments:
        feed.next()
        when = _WORDS[moment]
        seconds = start(str(moment), -signal.SIGKILL, f"be killed {when}")
        batch = folder.newest_batch() + (moment in _UNDECIDED)
        tell(f"killed (SIGKILL) in batch {batch}, {when}", seconds, "bold red")
        kills.append({"moment": str(moment), "batch": batch})
    while feed.next():
        pass
    seconds = start("", 0, "run to its end")
    tell("restarted and ran to its end", seconds, "bold green")
    return kills


def _start(call: Invocation, folder: DemoFolder, *, kill_at: str = "") -> tuple[int, float]:
    """Run the pipeline in a process, as a supervisor does; return its exit code and its time."""
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
            if line.startswith(_PROGRESS):
                call.out.note(f"  {line.rstrip()}")
    return process.returncode, time.monotonic() - began


# What the pipeline files that demos write differ in; the rest is in the files beside this one.

_WORKS = "Everything else works on it: run, status, plan, dlq, trace."
_ENDED = """\
Its broker and its registry ended with it:
# status, tables, schema, dlq list, dlq show and trace work without them."""

_DELTA = """\
source:
  type: delta
  path: {source}
  value: wrapper
  key: key
  timestamp: produced_at

registry:
  path: {schemas}
"""

_KAFKA = """\
source:
  type: kafka
  bootstrap_servers: {kafka}
  topics: [{topic}]

registry:
  url: {registry}
"""

# The folder of a demo: a lake, its source and schemas, and the file of the pipeline.

_MARKER = ".distributary-demo.json"
_SCHEMAS = "schemas"
_FILE_SCHEMA = "pipeline.schema.json"
_CHECKPOINTS = "_checkpoints"
_SUBJECTS = ("games", "orders", "cdc")


class DemoFolder:
    """Knows what a demo makes, and touches nothing else."""

    def __init__(self, path: Path, scene: Scene) -> None:
        self.given = path
        self.path = path.absolute()
        self.scene = scene

    @property
    def file(self) -> Path:
        """Return the path of the pipeline file."""
        return self.path / f"{self.scene.subject}.yaml"

    @property
    def source(self) -> Path:
        """Return the table or folder that stands for a topic."""
        return self.path / self.scene.topic

    @property
    def schemas(self) -> Path:
        """Return the folder that stands for a registry."""
        return self.path / _SCHEMAS

    def newest_batch(self) -> int:
        """Return the newest decided batch, or -1."""
        return Manifests(at(self.path / _CHECKPOINTS / self.scene.subject / "manifests")).newest()

    def begin(self) -> bool:
        """Create an empty demo; return whether an earlier one was removed for it."""
        again = self._clear()
        self.path.mkdir(parents=True, exist_ok=True)
        # said first: what is made from now on may be removed by the next demo
        made = {
            "made_by": f"distributary demo {self.scene.subject}",
            "folders": [self.scene.topic, *self.scene.tables],
        }
        (self.path / _MARKER).write_text(json.dumps(made, indent=2), encoding="utf-8")
        return again

    def write_file(self, *, kafka: str = "", registry: str = "") -> None:
        """Write the pipeline file, and the schema by which editors know its keys."""
        schema = json.dumps(json_schema(), indent=2)
        (self.path / _FILE_SCHEMA).write_text(schema, encoding="utf-8")
        subject, source = self.scene.subject, _quoted(self.source)
        text = Template(resources.files(__package__).joinpath(f"{subject}.yaml").read_text("utf-8"))
        values = {"source": source, "schemas": _quoted(self.schemas), "topic": self.scene.topic}
        both = (_KAFKA if self.scene.kafka else _DELTA).format(
            kafka=kafka, registry=registry, **values
        )
        filled = text.substitute(
            after=_ENDED if self.scene.kafka else _WORKS,
            schema=_FILE_SCHEMA,
            root=_quoted(self.path),
            source=source,
            source_and_registry=both,
        )
        self.file.write_text(filled, encoding="utf-8")

    def _clear(self) -> bool:
        if not self.path.exists() or (self.path.is_dir() and not any(self.path.iterdir())):
            return False
        folders = self._earlier_folders()
        if folders is None:
            raise self._foreign("it was not made by a demo")
        mine = {_SCHEMAS, _FILE_SCHEMA, _MARKER, _CHECKPOINTS, layout.HOME, *folders}
        mine |= {f"{subject}.yaml" for subject in _SUBJECTS}
        others = sorted(entry.name for entry in self.path.iterdir() if entry.name not in mine)
        if others:
            raise self._foreign(f"it holds {', '.join(others[:5])}")
        checkpoints = (at(self.path / _CHECKPOINTS / subject) for subject in _SUBJECTS)
        if any(state_of(folder) == "running" for folder in checkpoints):
            raise OwnedError(
                "the pipeline of this demo is running",
                where=str(self.path),
                next_step="stop it first, or choose another folder with --path",
            )
        # the marker goes last: a removal that was interrupted can be taken up again
        for entry in sorted(self.path.iterdir(), key=lambda entry: entry.name == _MARKER):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        return True

    def _earlier_folders(self) -> list[str] | None:
        try:
            made = json.loads((self.path / _MARKER).read_text(encoding="utf-8"))
            return [str(name) for name in made["folders"]]
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _foreign(self, evidence: str) -> ConfigError:
        return ConfigError(
            "the folder is not empty, and a demo begins with an empty one",
            code=ErrorCode.CONFIG_INVALID,
            where=str(self.path),
            evidence=evidence,
            next_step="choose another folder with --path, or empty this one yourself",
        )


def _quoted(path: Path) -> str:
    """Quote a path for YAML."""
    return "'" + str(path).replace("'", "''") + "'"
