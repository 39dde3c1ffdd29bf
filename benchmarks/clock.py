"""Times a batch of a baseline as the engine's own are timed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.order import Row
from benchmarks.usage import cpu_seconds


@contextmanager
def timed(records: int) -> Iterator[Row]:
    """The figures of a batch, complete when the block has ended."""
    figures: Row = {"records": records}
    spent, began = cpu_seconds(), time.monotonic()
    yield figures
    figures["seconds"] = time.monotonic() - began
    figures["cpu_seconds"] = cpu_seconds() - spent


def parquet_files(lake: Path) -> int:
    """Data files below a folder, whoever wrote them."""
    return sum(1 for path in lake.rglob("*.parquet") if "_delta_log" not in path.parts)
