"""What a Python worker of Spark does before every task, made cheap.

PySpark calls `importlib.invalidate_caches()` at the start of each task, and the workers import
PySpark itself from a zip archive: the archive's directory is then read again, once for each of its
packages. That was 150 ms of a core for every task, however small.
"""

from __future__ import annotations

import sys
from zipimport import zipimporter


def keep_zip_directories() -> None:
    """Let importers of archives keep what they know: an archive does not change under a worker."""
    for finder in list(sys.path_importer_cache.values()):
        if isinstance(finder, zipimporter):
            finder.invalidate_caches = _nothing  # type: ignore[method-assign]


def _nothing() -> None:
    """In place of reading the archive's directory again."""
