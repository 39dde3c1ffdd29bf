"""The log of a process: events, log records of every library and notes, in one format."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from distributary.observe.events import (
    BatchSettled,
    BatchStarted,
    Event,
    Failed,
    RegistryAsked,
    StepFinished,
)
from distributary.observe.log_format import LogFormat, LogLine, spell
from distributary.observe.log_lines import line_of

_PACKAGE = "distributary"
_DETAILS = (StepFinished, RegistryAsked)
"""What is told with `-v` only."""
_ERRORS = frozenset({"ERROR", "CRITICAL"})


class Journal:
    """Writes lines to a stream; one at a time, secrets hidden.

    What does not know its pipeline or batch is filed under those of the process.
    """

    def __init__(
        self, stream: TextIO, form: LogFormat, *, steps: bool = False, quiet: bool = False
    ) -> None:
        self._stream, self._form, self._steps, self._quiet = stream, form, steps, quiet
        self._lock = threading.Lock()
        self.mask: Callable[[str], str] = str
        """Hides the secrets of the pipeline at hand."""
        self.pipeline: str | None = None
        """The pipeline of this process, where it has only one."""
        self._batch: int | None = None

    def write(self, line: LogLine) -> None:
        """One line; a reader that has gone must not hurt whoever writes."""
        if self._quiet and line.level not in _ERRORS:
            return
        text = spell(line.masked(self.mask), self._form)
        with self._lock:
            try:
                self._stream.write(f"{text}\n")
                self._stream.flush()
            except (OSError, ValueError):
                return

    def say(self, message: str, *, event: str = "note", level: str = "INFO", **more: Any) -> None:
        """A line about the process itself."""
        self.write(
            LogLine(
                message=message,
                event=event,
                level=level,
                pipeline=self.pipeline,
                batch=self._batch,
                more=more,
            )
        )

    def follow(self, event: Event) -> None:
        """Remember which batch is under way; listens to the one pipeline of a process."""
        if isinstance(event, BatchStarted):
            self._batch = event.batch
        elif isinstance(event, BatchSettled | Failed):
            self._batch = None

    def __call__(self, event: Event) -> None:
        """The line of an event."""
        if self._steps or not isinstance(event, _DETAILS):
            self.write(line_of(event))

    def take(self, record: logging.LogRecord) -> None:
        """The line of a log record; `extra` may say pipeline, batch and table."""
        message = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            message = f"{message}: {type(error).__name__}: {error}"
        self.write(
            LogLine(
                message=message,
                event="log",
                level=record.levelname,
                pipeline=getattr(record, "pipeline", self.pipeline),
                batch=getattr(record, "batch", self._batch),
                table=getattr(record, "table", None),
                more={"logger": record.name},
            )
        )


class _Records(logging.Handler):
    """Log records of every library, warnings and worse; of this package also what is less."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        try:
            self._journal.take(record)
        except Exception:
            self.handleError(record)


@contextmanager
def keeping(journal: Journal) -> Iterator[Journal]:
    """While this lasts, log records are lines of the journal."""
    root, package, handler = logging.getLogger(), logging.getLogger(_PACKAGE), _Records(journal)
    before = package.level
    root.addHandler(handler)
    package.setLevel(logging.INFO)
    try:
        yield journal
    finally:
        package.setLevel(before)
        root.removeHandler(handler)
