"""The log of a process: events, log records of every library and notes, in one format."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, TextIO

from distributary.errors import DistributaryError
from distributary.observe import events
from distributary.observe.log_format import LogFormat, LogLine, RecordHandler, spell

# The log line of each event.

_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")
INFO, WARNING, ERROR = "INFO", "WARNING", "ERROR"


def line_of(event: events.Event) -> LogLine:
    """Return the line for an event."""
    level, message, more = _content(event)
    return LogLine(
        message=message,
        event=_WORD.sub("_", type(event).__name__).lower(),
        level=level,
        pipeline=event.pipeline,
        batch=getattr(event, "batch", None),
        table=getattr(event, "table", None),
        more=more,
        at=event.at,
    )


def _content(event: events.Event) -> tuple[str, str, dict[str, Any]]:
    """Return level, message and further fields of an event's line."""
    match event:
        case events.BatchStarted():
            size = "" if event.records is None else f" of {event.records:,} records"
            return INFO, f"batch {event.batch}{size} begins", {"lane": event.lane}
        case events.StepFinished():
            return INFO, f"{event.step} took {event.seconds:.2f} s", _some(event, "step", "seconds")
        case events.SchemaSeen():
            changes = ", ".join(event.changes) or "no change"
            return INFO, f"{event.label}: {changes}", {"schema_id": event.schema_id}
        case events.TableParked():
            message = f"parked, {event.records:,} records wait: {event.error}"
            return ERROR, message, {"records": event.records}
        case events.BatchSettled():
            counts = event.counts
            message = f"{counts.equation()} in {event.seconds:.2f} s, {event.tables:,} tables"
            more = asdict(counts) | _some(event, "tables", "seconds", "lag_records", "lag_seconds")
            if event.held is not None:
                message += f", {event.held.records:,} records held back"
                more["held_back"] = event.held.records
            return WARNING if counts.dead_lettered or counts.parked else INFO, message, more
        case events.Failed():
            again = "" if event.retry_in is None else f"; again in {event.retry_in:.1f} s"
            more = _facts(event.error) | {"retry_in": event.retry_in}
            level = ERROR if event.retry_in is None else WARNING
            return level, f"{event.error.what}{again}", more
        case events.TaskFailed():
            return ERROR, f"{event.task}: {event.error.what}", _facts(event.error)
        case events.Recovered():
            return INFO, f"works again after {event.seconds:.0f} s", _some(event, "seconds")
        case events.Beat():
            return INFO, "running", _some(event, "lag_records", "lag_at")
        case events.Paced():
            seconds = event.pace.interval_seconds
            return INFO, f"the next batch begins {seconds:.1f} s after the last", asdict(event.pace)
        case events.Paused():
            note = f": {event.note}" if event.note else ""
            return INFO, f"paused{note}", _some(event, "since")
        case events.RecordsHeld():
            held = event.held
            message = f"{held.records:,} records wait for the ends of their transactions"
            return INFO, message, asdict(held)
        case events.Idle():
            return INFO, "nothing new at the source", {}
        case events.TableResumed():
            return INFO, "still parked" if event.parked else "resumed", {}
        case events.CatalogUpdated():
            message = f"{event.registered:,} tables are in {event.catalog}"
            if event.error:
                message += f", {event.waiting:,} wait: {event.error}"
            more = _some(event, "registered", "waiting", "code")
            return WARNING if event.error else INFO, message, more
        case events.RegistryAsked():
            asked = sum(each.count for each in event.calls)
            return INFO, f"{asked:,} questions to the registry", {"calls": event.calls}
        case events.ProcessStarted():
            return INFO, f"process {event.pid} started", _some(event, "pid", "restarts")
        case events.Stopped():
            ended = event.reason or "ended"
            message = f"{ended} after {event.batches:,} batches; {event.counts.equation()}"
            return INFO, message, _some(event, "batches", "seconds", "reason")
    return INFO, "", {}


def _some(event: events.Event, *names: str) -> dict[str, Any]:
    return {name: getattr(event, name) for name in names}


def _facts(error: DistributaryError) -> dict[str, Any]:
    facts = error.as_dict()
    names = ("code", "where", "evidence", "next_step")
    return {name: facts[name] for name in names if facts[name]}


_DETAILS = (events.StepFinished, events.RegistryAsked, events.Paced)
"""Events that are logged with `-v` only."""
_BEAT_EVERY = timedelta(seconds=30)
"""Seconds between two lines that only show that the run is alive."""


class Journal:
    """Writes lines to a stream, one at a time, with secrets masked.

    Lines without a pipeline or batch get those of the process.
    """

    def __init__(
        self, stream: TextIO, form: LogFormat, *, steps: bool = False, quiet: bool = False
    ) -> None:
        self._stream, self._form, self._steps, self._quiet = stream, form, steps, quiet
        self._lock = threading.Lock()
        self.mask: Callable[[str], str] = str
        """Hides the secrets of the pipeline at hand."""
        self.pipeline: str | None = None
        """The pipeline of this process, if there is only one."""
        self._batch: int | None = None
        self._last_lines: dict[str, datetime] = {}
        """The time of the last line of each pipeline."""

    def write(self, line: LogLine) -> None:
        """Write one line; a closed stream must not cause an error."""
        if self._quiet and line.level not in (ERROR, "CRITICAL"):
            return
        text = spell(line.masked(self.mask), self._form)
        with self._lock, suppress(OSError, ValueError):
            self._stream.write(f"{text}\n")
            self._stream.flush()

    def say(self, message: str, *, event: str = "note", level: str = "INFO", **more: Any) -> None:
        """Write a line about the process itself."""
        known: dict[str, Any] = {"pipeline": self.pipeline, "batch": self._batch, "more": more}
        self.write(LogLine(message=message, event=event, level=level, **known))

    def follow(self, event: events.Event) -> None:
        """Note the batch under way; a listener for the only pipeline of a process."""
        if isinstance(event, events.BatchStarted):
            self._batch = event.batch
        elif isinstance(event, events.BatchSettled | events.RecordsHeld | events.Failed):
            self._batch = None

    def __call__(self, event: events.Event) -> None:
        """Write the line for an event; a beat only from time to time."""
        if isinstance(event, events.Beat):
            last = self._last_lines.setdefault(event.pipeline, event.at)
            if event.at - last < _BEAT_EVERY:
                return
        if self._steps or not isinstance(event, _DETAILS):
            self._last_lines[event.pipeline] = event.at
            self.write(line_of(event))

    def take(self, record: logging.LogRecord) -> None:
        """Write the line for a log record; `extra` may name pipeline, batch and table."""
        message = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            message = f"{message}: {type(error).__name__}: {error}"
        known: dict[str, Any] = {
            "pipeline": getattr(record, "pipeline", self.pipeline),
            "batch": getattr(record, "batch", self._batch),
            "table": getattr(record, "table", None),
            "more": {"logger": record.name},
        }
        self.write(LogLine(message=message, event="log", level=record.levelname, **known))


@contextmanager
def keeping(journal: Journal) -> Iterator[Journal]:
    """Write all log records, with warnings of libraries, to the journal while the context lasts."""
    root, package = logging.getLogger(), logging.getLogger("distributary")
    handler = RecordHandler(journal.take)
    before = package.level
    root.addHandler(handler)
    package.setLevel(logging.INFO)
    try:
        yield journal
    finally:
        package.setLevel(before)
        root.removeHandler(handler)
