"""Suites `freshness` and `trigger`: a steady stream, and how old records are once they are there.

The first is read without a pause. In the second the trigger is a freshness, and what counts is the
price: CPU seconds of a record, and files a minute.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks.delays import delays_in
from benchmarks.engine import GAMES, Watch, kafka_pipeline
from benchmarks.games import Games
from benchmarks.order import Order, Row, Suite
from benchmarks.topic import fill, records_in, registry_of, serving
from benchmarks.usage import cpu_seconds
from distributary.engine.pipeline import Pipeline

_WARM_SHARE = 0.25
"""So much longer the stream lasts: its beginning warms up and is not measured."""
_PATIENCE_SECONDS = 600
_POLL_SECONDS = 0.05
_TRIGGERS = (1, 10, 60)
"""Seconds of freshness."""
_ROUNDS, _LEAST_SECONDS = 2.5, 40
"""How long a trigger is measured: so many of its freshness, and not less than this."""
_REPEATED_SECONDS = 10
"""A stream for a trigger is so many seconds of records, sent again and again."""


@contextmanager
def prepared(order: Order) -> Iterator[Order]:
    """One record of each game and version in the topic, the others in a file for the producer."""
    with serving(order) as served:
        _fill(served)
        yield served


@contextmanager
def prepared_to_repeat(order: Order) -> Iterator[Order]:
    """The same with a few seconds of records in the file."""
    with serving(order) as served:
        _fill(replace(served, seconds=_REPEATED_SECONDS))
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
    stream = _streamed(order, trigger="continuous")
    return _figures(order, stream)


def _trigger_case(freshness: int) -> Callable[[Order], Row]:
    def case(order: Order) -> Row:
        """Our engine with this freshness as its trigger."""
        seconds = max(_LEAST_SECONDS, _ROUNDS * freshness)
        # as many records in a batch as the freshness asks for
        order = replace(order, seconds=seconds, records=2 * order.rate * max(freshness, 10))
        stream = _streamed(order, trigger=f"freshness {freshness}s", repeated=seconds)
        files = sum(batch["files"] for batch in stream.batches)
        figures = _figures(order, stream)
        return {
            **figures,
            "cpu_microseconds": round(stream.cpu_seconds / stream.told["sent"] * 1e6, 2),
            "files_per_minute": round(files / stream.told["seconds"] * 60),
        }

    return case


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stream:
    """A stream that was sent and read."""

    told: Mapping[str, Any]
    """What the producer says of it."""
    lake: Path
    batches: list[Row]
    """The batches that read it."""
    rows: int
    """Records in the tables, with those that were there before."""
    cpu_seconds: float
    """CPU seconds of the engine, from the first record sent to the last one readable."""


def _streamed(order: Order, *, trigger: str, repeated: float | None = None) -> _Stream:
    # cases of one suite share the topic, and read what earlier ones have sent before they begin
    name = trigger.replace(" ", "-")
    path = kafka_pipeline(order, name=name, message=GAMES, tables='{each: "silver_{type}"}')
    pipeline = Pipeline.load(path)
    watch = Watch(pipeline, batches=sys.maxsize)
    first = records_in(order)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(pipeline.run, trigger=trigger)
        try:
            _wait(running, watch, records=first)
            before, spent = len(watch.batches), cpu_seconds()
            told = _send(order, repeated)
            _wait(running, watch, records=first + told["sent"])
            # the producer is a process of this one
            spent = cpu_seconds() - spent - told["cpu_seconds"]
        finally:
            pipeline.stop.set()
        running.result()
    return _Stream(
        told=told,
        lake=order.root / name,
        batches=watch.batches[before:],
        rows=first + told["sent"],
        cpu_seconds=spent,
    )


def _send(order: Order, repeated: float | None) -> dict[str, Any]:
    arguments = [order.servers, order.topic, str(_messages(order)), str(order.rate)]
    arguments += [str(repeated)] if repeated else []
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


def _figures(order: Order, stream: _Stream) -> Row:
    told, batches = stream.told, stream.batches
    produced, readable = delays_in(stream.lake)
    if len(produced) != stream.rows:
        raise AssertionError(f"{len(produced)} of {stream.rows} rows are in the tables")
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


def _prices(rows: Sequence[Row]) -> Mapping[str, float]:
    """Compare most tables with fewest, and the shortest freshness with the longest."""
    by_case = {(row["case"], row["tables"]): row for row in rows}
    few, many = (choose(row["tables"] for row in rows) for choose in (min, max))
    least, most = (f"{choose(_TRIGGERS)}s" for choose in (min, max))
    pairs = {
        f"cpu_{many}_vs_{few}_at_{most}": ("cpu_microseconds", (most, many), (most, few)),
        f"cpu_{least}_vs_{most}_{many}": ("cpu_microseconds", (least, many), (most, many)),
        f"files_{least}_vs_{most}_{many}": ("files_per_minute", (least, many), (most, many)),
    }
    return {
        name: round(by_case[one][figure] / by_case[other][figure], 2)
        for name, (figure, one, other) in pairs.items()
        if one != other and one in by_case and other in by_case
    }


TRIGGER_SUITE = Suite(
    name="trigger",
    tables=(10, 1000),
    prepared=prepared_to_repeat,
    cases={f"{freshness}s": _trigger_case(freshness) for freshness in _TRIGGERS},
    rates=(20_000,),
    derived=_prices,
)
