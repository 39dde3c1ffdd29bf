"""The log file of one command: errors with tracebacks, and Spark's log."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from distributary.cli.command.output import NORMAL, STEPS, Output, Paper, styled
from distributary.errors import ConfigError, DistributaryError, ErrorCode
from distributary.observe.alerts.notice import page
from distributary.observe.log_format import LogFormat, RecordHandler, log_folder, private

if TYPE_CHECKING:
    from distributary.config.file.document import Problem
    from distributary.observe.journal import Journal


_POLL_SECONDS = 0.3
_MOST_BYTES = 10 << 20
"""The largest number of bytes of one file; the previous file is kept too."""


class LogFile:
    """A file in the user's log folder, created with the first line."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._path: Path | None = None

    @property
    def path(self) -> Path:
        """Return the path of the log file; the same for the whole command."""
        if self._path is None:
            folder = log_folder()
            stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
            self._path = folder / f"{self._command}-{stamp}-{os.getpid()}.log"
        return self._path

    @property
    def is_written(self) -> bool:
        """Return whether the log file exists."""
        return self._path is not None and self._path.exists()

    def write(self, text: str) -> None:
        """Append a line; failures are ignored, because they must not hide the original error."""
        with (
            suppress(OSError),
            open(self.path, "a", encoding="utf-8", errors="replace", opener=private) as file,
        ):
            stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            file.write(f"{stamp} {text.rstrip()}\n")
            if file.tell() > _MOST_BYTES:
                self.path.replace(f"{self.path}.1")


@contextmanager
def logging_to(log: LogFile, mask: Callable[[str], str]) -> Iterator[None]:
    """Write warnings of all libraries to the file instead of the terminal, with secrets masked."""
    form = logging.Formatter()

    def write(record: logging.LogRecord) -> None:
        log.write(mask(f"{record.levelname} {record.name}: {form.format(record)}"))

    root, handler = logging.getLogger(), RecordHandler(write)
    root.addHandler(handler)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.removeHandler(handler)


@contextmanager
def shown_while_written(path: Path, stream: TextIO) -> Iterator[None]:
    """Copy new content of a file to a stream while the context lasts."""
    ended = threading.Event()

    def follow() -> None:
        while not path.exists() and not ended.wait(_POLL_SECONDS):
            pass
        if not path.exists():
            return
        with path.open(encoding="utf-8", errors="replace") as file:
            while True:
                last = ended.is_set()
                for line in file:
                    stream.write(line)
                stream.flush()
                if last:
                    return
                ended.wait(_POLL_SECONDS)

    follower = threading.Thread(target=follow, name="log-follower", daemon=True)
    follower.start()
    try:
        yield
    finally:
        ended.set()
        follower.join(timeout=2)


# The log on standard error that `--log-format` asks for.


@contextmanager
def journal_for(out: Output, form: LogFormat | None) -> Iterator[Journal | None]:
    """Write all output except data as lines of a log, if a format is given.

    The output keeps the journal afterwards, because an error is printed last.
    """
    if form is None:
        yield None
        return
    from distributary.observe.journal import Journal, keeping

    journal = Journal(sys.stderr, form, steps=out.verbosity >= STEPS, quiet=out.verbosity < NORMAL)
    # read each time: secrets are known only after the file was loaded
    journal.mask = lambda text: out.mask(text)
    out.journal = journal
    with keeping(journal):
        yield journal


# The output of errors: code, what, where, evidence, next step, docs, log.

PAGE_VARIABLE = "DISTRIBUTARY_UI"
"""The address of the dashboard, whose pages errors then name."""
_LABEL = 6


def report(output: Output, error: BaseException, log: LogFile) -> int:
    """Print an error and return the exit code."""
    known = error if isinstance(error, DistributaryError) else _unexpected(error)
    text = "".join(traceback.format_exception(error))
    if not isinstance(known, ConfigError):
        log.write(output.mask(f"ERROR {known.code}\n{text}"))
    if output.debug:
        output.margin.lines(output.mask(text))
    dashboard = os.environ.get(PAGE_VARIABLE) or output.dashboard
    places = {
        "docs": f"distributary explain {known.code}",
        "page": page(dashboard, "errors", known.code) or None,
        "log": str(log.path) if log.is_written else None,
    }
    details = {
        key: output.mask(value) if isinstance(value, str) else value
        for key, value in known.as_dict().items()
    }
    output.show_error(details | places, lambda paper: _draw(paper, known, places, output))
    return known.exit_code


def _unexpected(error: BaseException) -> DistributaryError:
    lines = str(error).strip().splitlines()
    return DistributaryError(
        f"a defect of distributary: {type(error).__name__}",
        code=ErrorCode.INTERNAL,
        evidence=lines[0][:500] if lines else "",
        next_step="report it with the log file; --debug shows the traceback here",
    )


def _draw(
    paper: Paper, error: DistributaryError, places: Mapping[str, str | None], output: Output
) -> None:
    # not by its class, which would import the whole configuration for every error
    problems: tuple[Problem, ...] = getattr(error, "problems", ())
    if problems:
        _draw_problems(paper, problems)
    else:
        paper.line(styled(error.code, "bold red"), f"  {output.mask(error.what)}")
        _draw_row(paper, "where", output.mask(error.where))
        _draw_row(paper, "seen", output.mask(error.evidence))
    _draw_row(paper, "next", output.mask(error.next_step))
    for label, place in places.items():
        _draw_row(paper, label, place or "")


def _draw_problems(paper: Paper, problems: Iterable[Problem]) -> None:
    for problem in problems:
        place = f"{problem.file}:{problem.line}:{problem.column}" if problem.line else problem.file
        meant = f", did you mean {problem.suggestion}?" if problem.suggestion else ""
        about = f"{problem.path}  " if problem.path else ""
        paper.line(
            styled(place, "bold"),
            "  ",
            styled(problem.code, "bold red"),
            f"  {about}{problem.message}{meant}",
        )


def _draw_row(paper: Paper, label: str, text: str) -> None:
    for at, line in enumerate(text.splitlines()):
        paper.row("" if at else label, line, width=_LABEL)
