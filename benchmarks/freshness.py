"""Suite `freshness`: a steady stream, read without a pause; how old records are once there."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks.delays import delays_in
from benchmarks.engine import GAMES, Watch, kafka_pipeline
from benchmarks.games import VERSIONS, Games
from benchmarks.order import Order, Row, Suite
from benchmarks.topic import fill, registry_of, serving
from distributary.engine.pipeline import Pipeline

_WARM_SHARE = 0.25
"""So much longer the stream lasts: its beginning warms up and is not measured."""
_PATIENCE_SECONDS = 600
_POLL_SECONDS = 0.05


@contextmanager
def prepared(order: Order) -> Iterator[Order]:
    """One record of each game and version in the topic, the others in a file for the producer."""
    with serving(order) as served:
        _fill(served)
        yield served


def _fill(order: Order) -> None:
    wanted = int(order.rate * order.seconds * (1 + _WARM_SHARE))
    games = Games(games=order.tables, records=wanted, registry=registry_of(order))
    fill(order, games.one_of_each().to_batches())
    messages = games.shuffled(0, wanted).select(["key", "value"])
    with pa.OSFile(str(_messages(order)), "wb") as file:
        with pa.ipc.new_file(file, messages.schema) as writer:
            writer.write_table(messages)


def continuous_case(order: Order) -> Row:
    """Our engine goes on and on; the producer starts when the first batch has made the tables."""
    path = kafka_pipeline(order, name="direct", message=GAMES, tables='{each: "silver_{type}"}')
    pipeline = Pipeline.load(path)
    watch = Watch(pipeline, batches=sys.maxsize)
    first = order.tables * VERSIONS
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(pipeline.run, trigger="continuous")
        try:
            _wait(running, watch, records=first)
            before = len(watch.batches)
            told = _send(order)
            _wait(running, watch, records=first + told["sent"])
        finally:
            pipeline.stop.set()
        running.result()
    return _figures(order, told, watch.batches[before:], rows=first + told["sent"])


def _send(order: Order) -> dict[str, Any]:
    arguments = [order.servers, order.topic, str(_messages(order)), str(order.rate)]
    command = [sys.executable, "-m", "benchmarks.pace", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def _wait(running: Future[Any], watch: Watch, *, records: int) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while sum(batch["records"] for batch in watch.batches) < records:
        if running.done():
            running.result()
            raise RuntimeError("the pipeline ended by itself")
        if time.monotonic() > deadline:
            raise RuntimeError(f"{records} records were not read in {_PATIENCE_SECONDS} s")
        time.sleep(_POLL_SECONDS)


def _figures(order: Order, told: dict[str, Any], batches: list[Row], *, rows: int) -> Row:
    produced, readable = delays_in(order.root / "direct")
    if len(produced) != rows:
        raise AssertionError(f"{len(produced)} of {rows} rows are in the tables")
    since = told["began"] + order.seconds * _WARM_SHARE
    measured = produced >= since
    delays = (readable - produced)[measured]
    p50, p95, p99 = np.percentile(delays, [50, 95, 99])
    return {
        "p50_seconds": round(float(p50), 2),
        "p95_seconds": round(float(p95), 2),
        "p99_seconds": round(float(p99), 2),
        "most_seconds": round(float(delays.max()), 2),
        # above 1 and rising with the time it is measured: it falls behind
        "late_vs_early": _growth(produced[measured], delays),
        "measured_records": int(measured.sum()),
        "sent_per_second": round(told["sent"] / told["seconds"]),
        # up to the moment at which the last of them could be read
        "rows_per_second": round(measured.sum() / (readable[measured].max() - since)),
        "seconds_per_batch": round(statistics.median(b["seconds"] for b in batches), 3),
        "batches": len(batches),
    }


def _growth(produced: NDArray[np.float64], delays: NDArray[np.float64]) -> float:
    """The median delay of the last quarter against that of the first."""
    first, last = np.percentile(produced, [25, 75])
    ratio = np.median(delays[produced >= last]) / np.median(delays[produced <= first])
    return round(float(ratio), 2)


def _derived(rows: Sequence[Row]) -> Mapping[str, float]:
    return {
        f"freshness_{figure}_{row['rate']}": row[f"{figure}_seconds"]
        for row in rows
        for figure in ("p50", "p95", "p99")
    }


def _messages(order: Order) -> Path:
    return order.source / "messages.arrow"


SUITE = Suite(
    name="freshness",
    tables=(100,),
    prepared=prepared,
    cases={"continuous": continuous_case},
    rates=(1_000, 5_000, 20_000),
    derived=_derived,
)
