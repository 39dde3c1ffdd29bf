"""Suite `shape`: what a filter and three expressions on each of 200 tables add to a batch.

The same records go through two pipelines by turns, in one process and without Spark or a broker.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.order import Order, Row, Suite
from distributary.config.load import load_text
from distributary.config.runtime import AVAILABLE_NOW
from distributary.engine.loop import StreamRun
from distributary.engine.pipeline import Pipeline
from distributary.source.base import Position
from distributary.spark.in_process import in_process
from distributary.testing import Record, RecordSource

_FILE = """\
name: {name}
source: {{type: kafka, bootstrap_servers: "127.0.0.1:9", topics: [orders]}}
payload: {{format: json}}
tables: {{each: "silver_{{field:event}}", bronze: bronze}}
lake: {{path: {root}/{name}}}
evolution: {{max_new_tables_per_batch: 10000}}
"""
_SHAPE = """\
shape:
  - where: "quantity > 0"
    set: {amount: "price * quantity", email: "lower(email)", country: "upper(country)"}
"""
_FILES = {"plain": _FILE, "shaped": _FILE + _SHAPE.replace("{", "{{").replace("}", "}}")}


@contextmanager
def prepared(order: Order) -> Iterator[Order]:
    """The case makes its records itself."""
    yield order


class _Arriving(RecordSource):
    """Records of which only the first ones have arrived."""

    arrived = 0

    def newest(self) -> Position:
        """Return the position after the last record that has arrived."""
        return {"record": self.arrived}


def by_turns(order: Order) -> Row:
    """CPU seconds of the same batches with and without a shape, in turns."""
    size = order.records
    records = [
        Record(_order(batch, number, order.tables))
        for batch in range(order.all_batches)
        for number in range(size)
    ]
    spent: dict[str, list[float]] = {name: [] for name in _FILES}
    with ExitStack() as stack:
        runs: dict[str, tuple[StreamRun, _Arriving]] = {}
        for name, text in _FILES.items():
            pipeline = Pipeline(load_text(text.format(name=name, root=order.root)))
            source = _Arriving(records, ("orders",), size)
            context = stack.enter_context(pipeline.open(in_process(_no_spark)))
            runs[name] = StreamRun(context, source, stop=threading.Event()), source
        for batch in range(order.all_batches):
            for name in sorted(runs, reverse=batch % 2 == 0):
                run, source = runs[name]
                source.arrived += size
                began = time.process_time()
                run.run(AVAILABLE_NOW)
                spent[name].append(time.process_time() - began)
    plain, shaped = (statistics.median(spent[name][order.warm :]) for name in _FILES)
    return {
        "batches": order.batches,
        "plain_cpu_seconds": round(plain, 3),
        "shaped_cpu_seconds": round(shaped, 3),
    }


def _no_spark() -> SparkSession:
    raise AssertionError("this suite has no Spark")


def _order(batch: int, number: int, tables: int) -> dict[str, Any]:
    dice = random.Random(batch * 1_000_003 + number)
    return {
        "event": f"orders_{number % tables:03d}",
        "order_id": number,
        "email": f"User{dice.randrange(1000)}@Example.org",
        "price": dice.randrange(10_000) / 100,
        "quantity": dice.randrange(7),
        "country": dice.choice(("at", "br", "cz", "de")),
        "street": "Main street 5",
        "paid": dice.random() < 0.5,
        "created_at": "2026-01-01T00:00:00Z",
        "note": "x" * 40,
    }


def _derived(rows: Sequence[Row]) -> Mapping[str, float]:
    if not rows:
        return {}
    (row,) = rows
    return {"shaped_cpu_vs_plain": round(row["shaped_cpu_seconds"] / row["plain_cpu_seconds"], 3)}


SUITE = Suite(
    name="shape",
    tables=(200,),
    prepared=prepared,
    cases={"by-turns": by_turns},
    derived=_derived,
)
