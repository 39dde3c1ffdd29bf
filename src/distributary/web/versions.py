"""Whether a table has changed, without reading it."""

from __future__ import annotations

import os
import threading
import time

from distributary.config.lake import local_path
from distributary.observe.delta import StorageOptions, open_table

_REMOTE_SECONDS = 5.0
"""How long the version of a table in an object store is believed: asking costs a request."""

Version = tuple[int, int]
"""Number of the newest commit, and when it was written: a table may have been made anew."""

NONE: Version = (-1, 0)
"""Of a table that is not there."""


class Versions:
    """The newest versions of Delta tables. Thread-safe."""

    def __init__(self, options: StorageOptions | None = None) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._asked: dict[str, tuple[float, Version]] = {}

    def of(self, path: str) -> Version:
        """The version of the table in a folder."""
        folder = local_path(path)
        if folder is not None:
            return _newest(os.path.join(folder, "_delta_log"))
        with self._lock:
            at, known = self._asked.get(path, (0.0, NONE))
            if at and time.monotonic() - at < _REMOTE_SECONDS:
                return known
        table = open_table(path, self._options)
        found = NONE if table is None else (table.version(), 0)
        with self._lock:
            self._asked[path] = (time.monotonic(), found)
        return found


def _newest(log: str) -> Version:
    try:
        with os.scandir(log) as entries:
            commits = [e.name for e in entries if e.name.endswith(".json") and len(e.name) == 25]
        newest = max(commits, default="")
        if not newest:
            return NONE
        return int(newest[:20]), os.stat(os.path.join(log, newest)).st_mtime_ns
    except (OSError, ValueError):
        return NONE
