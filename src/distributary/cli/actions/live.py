"""A run as a view that redraws itself: the five steps, the last batches, what is new."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from distributary.cli.actions.lines import lag_text, schema_line
from distributary.cli.output import styled
from distributary.cli.words import clock, counted, duration, number
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
