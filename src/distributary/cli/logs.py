"""The log file of one command: what went wrong in full, and Spark's own words."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from distributary.observe.log_folder import log_folder, private

if TYPE_CHECKING:
    from stamina.instrumentation import RetryDetails

_log = logging.getLogger(__name__)

_POLL_SECONDS = 0.3
_MOST_BYTES = 10 << 20
"""Of one file; the one before it is kept too."""


class LogFile:
    """A file in the user's log folder that is made when the first line is written."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._path: Path | None = None

    @property
    def path(self) -> Path:
        """Where it is; the same for the whole command."""
        if self._path is None:
            folder = log_folder()
            stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
            self._path = folder / f"{self._command}-{stamp}-{os.getpid()}.log"
        return self._path

    @property
    def is_written(self) -> bool:
        """Whether there is anything to read."""
        return self._path is not None and self._path.exists()

    def write(self, text: str) -> None:
        """Append; a disk that is full must not hide what went wrong."""
        with (
            suppress(OSError),
            open(self.path, "a", encoding="utf-8", errors="replace", opener=private) as file,
        ):
            stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            file.write(f"{stamp} {text.rstrip()}\n")
            if file.tell() > _MOST_BYTES:
                self.path.replace(f"{self.path}.1")


class _ToFile(logging.Handler):
    """Log records of every library, secrets hidden."""

    def __init__(self, log: LogFile, mask: Callable[[str], str]) -> None:
        super().__init__()
        self._log, self._mask = log, mask

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        try:
            self._log.write(self._mask(f"{record.levelname} {record.name}: {self.format(record)}"))
        except Exception:
            self.handleError(record)


@contextmanager
def logging_to(log: LogFile, mask: Callable[[str], str]) -> Iterator[None]:
    """Warnings of every library go to the file and never to the terminal."""
    root, handler = logging.getLogger(), _ToFile(log, mask)
    root.addHandler(handler)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.removeHandler(handler)


@contextmanager
def shown_while_written(path: Path, stream: TextIO) -> Iterator[None]:
    """Copies what is written to a file to a stream, as it comes."""
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


def log_retry(details: RetryDetails) -> None:
    """Told by `stamina` about every second try; on its own it would print on standard output."""
    _log.warning("trying again in %.1f s: %r", details.wait_for, details.caused_by)
