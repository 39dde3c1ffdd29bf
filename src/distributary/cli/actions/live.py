"""A run as a view that redraws itself: the five steps, the last batches, what is new."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Generic, TypeVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from distributary.cli.output import clock, counted, cut, duration, number, spelled, styled, tally
from distributary.evolve.types import sql_name
from distributary.model.change import CHANGE_COLUMNS
from distributary.model.manifest import Counts
from distributary.observe.events import (
    BatchSettled,
    BatchStarted,
    Event,
    Failed,
    Idle,
    SchemaSeen,
    StepFinished,
    TableParked,
)

# A run as plain lines: one per batch, one per new schema, a heartbeat.

_LONGEST = 200
_OF_EVERY_LOG = "".join(f"{c.name} {sql_name(c.type)}, " for c in CHANGE_COLUMNS)
MOST_SCHEMAS = 20
"""A thousand new tables are not a thousand lines."""

Say = Callable[[str], None]


def schema_line(event: SchemaSeen) -> str:
    """`schema chess v3: + rating int`."""
    version = event.label.rpartition(" ")[2]
    named = version if version.startswith("v") else f"id {event.schema_id}"
    # every log has these: what is new are the columns of the source's table
    changes = ", ".join(event.changes).replace(_OF_EVERY_LOG, "") or "no change"
    return f"schema {spelled(event.type)} {named}: {cut(changes, _LONGEST)}"


def batch_line(event: BatchSettled) -> str:
    """Number, rows, rows a second, lag, tables, dead letters."""
    # one that an earlier process had decided was only finished here: its speed would be a fable
    whole = not event.steps or "stage" in event.steps
    parts = [
        f"batch {event.batch}",
        counted(event.counts.read, "row"),
        f"{number(event.records_per_second)} rows/s" if whole else "finished",
        f"lag {lag_text(event)}",
        counted(event.tables, "table"),
        counted(event.counts.dead_lettered, "dead letter"),
        duration(event.seconds),
    ]
    if event.counts.parked:
        parts.append(f"parked {number(event.counts.parked)}")
    return "  ".join(parts)


def lag_text(event: BatchSettled) -> str:
    """Records and seconds, as far as the source tells."""
    age = f" ({duration(event.lag_seconds)})" if event.lag_seconds is not None else ""
    return f"{number(event.lag_records)}{age}"


class Lines:
    """Listens to a run and says what a person would want to read later."""

    def __init__(self, say: Say, *, note: Say, step: Say, most_schemas: int = MOST_SCHEMAS) -> None:
        self._say, self._note, self._step = say, note, step
        self._most_schemas = most_schemas
        self._schemas: list[SchemaSeen] = []
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        """One event."""
        with self._lock:
            self._tell(event)

    def _tell(self, event: Event) -> None:
        match event:
            case SchemaSeen():
                self._schemas.append(event)
            case BatchSettled():
                self._tell_schemas()
                self._say(batch_line(event))
                if event.dead_letters:
                    self._step(f"batch {event.batch}  {tally(event.dead_letters)}")
            case StepFinished():
                self._step(f"batch {event.batch}  {event.step} {duration(event.seconds)}")
            case TableParked():
                waiting = counted(event.records, "record")
                self._note(f"parked {event.table}: {waiting} wait: {event.error}")
            case Idle():
                last = "" if event.batch is None else f", last batch {event.batch}"
                self._say(f"idle at {clock(event.at)}{last}")
            case Failed():
                again = f"; again in {duration(event.retry_in)}" if event.retry_in else ""
                self._note(f"failed: {event.error.code} {event.error.what}{again}")

    def _tell_schemas(self) -> None:
        for event in self._schemas[: self._most_schemas]:
            self._say(schema_line(event))
        more = len(self._schemas) - self._most_schemas
        if more > 0:
            self._say(f"and {counted(more, 'more schema')}: distributary schema history")
        self._schemas.clear()


STEPS = ("plan", "stage", "manifest", "publish", "settle")
_BATCHES = 8
_NEWS = 6


class LiveView:
    """Listens to a run, and is drawn a few times a second."""

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
        self.stopping = False

    def say(self, text: str) -> None:
        """What is being done before the first batch."""
        with self._lock:
            self._doing = text

    def stop(self) -> str:
        """A stop was asked for; says what happens until then."""
        with self._lock:
            self.stopping = True
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
            case TableParked():
                text = f"parked {event.table}: {event.error}"
                self._news.append(styled(text, "red"))
            case BatchSettled():
                self._batch = None
                self._doing = "waiting for records"
                self._batches.append(event)
                self._counts += event.counts
            case Idle():
                self._doing = f"nothing new since {clock(event.at)}"
            case Failed():
                again = f"; again in {duration(event.retry_in)}" if event.retry_in else ""
                text = f"{event.error.code} {event.error.what}{again}"
                self._news.append(styled(text, "red"))
                self._batch = None

    def __rich__(self) -> RenderableType:
        """The view as it is now."""
        with self._lock:
            parts: list[RenderableType] = [self._title(), self._step_row()]
            if self._batches:
                parts.append(_batch_table(list(self._batches)))
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
        if self.stopping:
            doing = "stopping" if self._batch is None else f"finishing batch {self._batch}"
        running = duration(time.monotonic() - self._began)
        return Text.assemble(
            styled(self._pipeline, "bold"),
            styled(f"  {self._trigger}  {running}  ", "dim"),
            styled(doing, "yellow" if self.stopping else "green"),
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


def _batch_table(batches: Sequence[BatchSettled]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("BATCH", "ROWS", "ROWS/S", "LAG", "TABLES", "DEAD LETTERS", "TIME", "SLOWEST"):
        table.add_column(name, justify="left" if name == "SLOWEST" else "right")
    for event in batches:
        slowest = max(event.steps, key=lambda step: event.steps[step], default="")
        share = event.steps[slowest] / event.seconds if slowest and event.seconds else 0.0
        dead = event.counts.dead_lettered
        table.add_row(
            str(event.batch),
            number(event.counts.read),
            number(event.records_per_second),
            lag_text(event),
            number(event.tables),
            styled(number(dead), "yellow" if dead else ""),
            duration(event.seconds),
            f"{slowest} {share:.0%}" if slowest else "",
        )
    return table


# Work in a thread of its own, so that the main thread is free for signals and the screen.

_T = TypeVar("_T")
_POLL_SECONDS = 0.1


class Foreground(Generic[_T]):
    """Runs a piece of work until it ends or is asked to stop.

    PySpark takes Ctrl-C for itself when it is started in the main thread, and cancels the job that
    is under way. Started elsewhere it leaves signals alone, and a batch can be finished.
    """

    def __init__(self, work: Callable[[], _T], *, stop: threading.Event) -> None:
        self._work, self._stop = work, stop
        self._results: list[_T] = []
        self._errors: list[BaseException] = []
        self.signal: int | None = None
        """The signal that asked for a stop."""
        self.on_stop: Callable[[], None] = lambda: None
        """Told when that happens."""
        self.on_force: Callable[[], None] = lambda: None
        """Told when it happens again: there is no time left."""

    def run(self) -> _T:
        """The work's result, or its error."""
        thread = threading.Thread(target=self._do, name="pipeline", daemon=True)
        with self._listening():
            thread.start()
            while thread.is_alive():
                thread.join(_POLL_SECONDS)
        if self._errors:
            raise self._errors[0]
        return self._results[0]

    @property
    def exit_code(self) -> int:
        """0, or what a shell expects of a program that a signal has ended."""
        return 0 if self.signal is None else 128 + self.signal

    def _do(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as error:
            self._errors.append(error)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            # a batch that is cut off here is taken up again by the next run
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
