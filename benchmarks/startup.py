"""Suite `startup`: from typing `distributary run` to the first commit, with everything cached."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.delta import delta_pipeline, source_of
from benchmarks.games import Games
from benchmarks.order import Order, Row, Suite
from distributary.registry.folder import FileRegistry
from distributary_lab.simulate.base import DeltaSink

_RECORDS = 10_000
_TRIES = 3
_POLL_SECONDS = 0.02
_PATIENCE_SECONDS = 300


@contextmanager
def prepared(order: Order) -> Iterator[Order]:
    """One small commit."""
    registry = FileRegistry(order.root / "schemas", durable=False)
    games = Games(games=order.tables, records=_RECORDS, registry=registry)
    DeltaSink(str(source_of(order))).write_arrow(games.shuffled(0, _RECORDS).to_batches())
    yield order


def run_case(order: Order) -> Row:
    """The command in a process of its own; the first table's first commit ends the time."""
    # the first one puts files into the system's cache that all others find there
    took = [_once(order, number) for number in range(_TRIES + 1)][1:]
    whole = [total for _, total in took]
    first = statistics.median(first for first, _ in took)
    return {
        "first_commit_seconds": round(first, 2),
        "seconds_per_batch": round(statistics.median(whole), 2),
        "rows_per_second": round(_RECORDS / statistics.median(whole)),
        "batches": len(took),
    }


def _once(order: Order, number: int) -> tuple[float, float]:
    path = delta_pipeline(order, f"start{number}")
    lake = order.root / f"start{number}"
    began = time.monotonic()
    command = [sys.executable, "-m", "distributary", "run", str(path), "--available-now", "-q"]
    process = subprocess.Popen(command, cwd=order.root, stdin=subprocess.DEVNULL)
    first = 0.0
    while process.poll() is None:
        if not first and next(lake.glob("silver_*/_delta_log/*.json"), None):
            first = time.monotonic() - began
        if time.monotonic() - began > _PATIENCE_SECONDS:
            process.kill()
            raise AssertionError("the run did not end")
        time.sleep(_POLL_SECONDS)
    if process.returncode or not first:
        raise AssertionError(f"the run ended with {process.returncode}")
    return first, time.monotonic() - began


SUITE = Suite(
    name="startup",
    tables=(20,),
    prepared=prepared,
    cases={"run": run_case},
    derived=lambda rows: {
        f"first_commit_seconds_{row['tables']}": row["first_commit_seconds"] for row in rows
    },
)
