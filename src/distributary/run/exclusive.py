"""One process at a time, by a lock that the system drops with its process: none is left behind."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO


@contextmanager
def held(file: IO[str], *, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of an open file; `waiting` is told when another process has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        waiting()
        fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)
