"""Waiting for something that another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(happened: Callable[[], bool], *, seconds: float) -> None:
    """Return as soon as it has happened; fail when it does not."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.1)
