"""Pipelines that get the same records by turns, in one process, without Spark or a broker."""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
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


class _Arriving(RecordSource):
    """Records of which only the first ones have arrived."""

    arrived = 0

    def newest(self) -> Position:
        """Return the position after the last record that has arrived."""
        return {"record": self.arrived}


PIPELINE = """\
name: {name}
source: {{type: kafka, bootstrap_servers: "127.0.0.1:9", topics: [orders]}}
payload: {{format: json}}
tables: {{each: "silver_{{field:event}}", bronze: bronze}}
lake: {{path: {root}/{name}}}
evolution: {{max_new_tables_per_batch: 10000}}
"""
"""A pipeline of orders, to which a suite adds the section that it measures."""


def suite_of_section(name: str, section: str, *, called: str) -> Suite:
    """Build the suite that measures what a section of the pipeline file adds to a batch."""

    def by_turns(order: Order) -> Row:
        """CPU seconds of the same batches with and without the section, in turns."""
        plain = PIPELINE.format(name="plain", root=order.root)
        with_section = PIPELINE.format(name=called, root=order.root) + section
        files = {"plain": plain, called: with_section}
        spent = by_turns_of(order, files, orders(order))
        return {
            "batches": order.batches,
            "rows_per_second": round(order.records / spent[called].seconds),
            "seconds_per_batch": round(spent[called].seconds, 3),
            "plain_cpu_seconds": round(spent["plain"].cpu, 3),
            f"{called}_cpu_seconds": round(spent[called].cpu, 3),
        }

    def derived(rows: Sequence[Row]) -> Mapping[str, float]:
        if not rows:
            return {}
        (row,) = rows
        ratio = row[f"{called}_cpu_seconds"] / row["plain_cpu_seconds"]
        return {f"{called}_cpu_vs_plain": round(ratio, 3)}

    return Suite(
        name=name,
        tables=(200,),
        prepared=prepared,
        cases={"by-turns": by_turns},
        derived=derived,
    )


@contextmanager
def prepared(order: Order) -> Iterator[Order]:
    """Yield the order as it is: the case makes its own data."""
    yield order


def orders(order: Order) -> list[Record]:
    """Make the records of all batches."""
    return [
        Record(_order(batch, number, order.tables))
        for batch in range(order.all_batches)
        for number in range(order.records)
    ]


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


@dataclass(frozen=True, slots=True)
class Spent:
    """What batches of one side took: medians, or one batch."""

    cpu: float
    """Seconds of CPU in this process."""
    seconds: float
    """Seconds of a clock."""


@contextmanager
def spending(into: list[Spent]) -> Iterator[None]:
    """Add what the work inside takes."""
    cpu, clock = time.process_time(), time.perf_counter()
    yield
    into.append(Spent(time.process_time() - cpu, time.perf_counter() - clock))


def median_of(spent: Sequence[Spent]) -> Spent:
    """Return the medians of several batches."""
    return Spent(
        statistics.median(one.cpu for one in spent), statistics.median(one.seconds for one in spent)
    )


def by_turns_of(
    order: Order, files: Mapping[str, str], records: Sequence[Record]
) -> dict[str, Spent]:
    """What a batch of each pipeline file takes, where the files take turns."""
    size = order.records
    spent: dict[str, list[Spent]] = {name: [] for name in files}
    with ExitStack() as stack:
        runs: dict[str, tuple[StreamRun, _Arriving]] = {}
        for name, text in files.items():
            pipeline = Pipeline(load_text(text))
            source = _Arriving(records, ("orders",), size)
            context = stack.enter_context(pipeline.open(in_process(no_spark)))
            runs[name] = StreamRun(context, source, stop=threading.Event()), source
        for batch in range(order.all_batches):
            for name in sorted(runs, reverse=batch % 2 == 0):
                run, source = runs[name]
                source.arrived += size
                with spending(spent[name]):
                    run.run(AVAILABLE_NOW)
    return {name: median_of(spent[name][order.warm :]) for name in files}


def no_spark() -> SparkSession:
    raise AssertionError("this suite has no Spark")
