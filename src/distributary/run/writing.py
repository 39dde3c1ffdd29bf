"""The checkpoint's own files, and the error of a folder that cannot be written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from distributary import durable
from distributary.errors import LakeUnavailableError


def create_exclusively(path: Path, text: str) -> bool:
    """Create a file with all of its content, unless it exists. True if this call created it."""
    with _writable(path):
        return durable.create(path, text.encode()) is not None


def replace_atomically(path: Path, text: str) -> None:
    """Put a new content in place of the old one: a reader sees the one or the other."""
    with _writable(path):
        durable.replace(path, text.encode())


def touch(path: Path) -> None:
    """Create an empty file whose name says everything, unless it is there."""
    with _writable(path):
        path.touch()


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise LakeUnavailableError(
            "cannot write a file",
            where=str(path),
            evidence=error.strerror or type(error).__name__,
            next_step="check that the folder is writable and that the disk has room",
        ) from error
