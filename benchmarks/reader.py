"""Suite `reader`: records of a topic into Arrow in a task, and nothing else.

As `source.reader` has it: by the task itself, or by Spark's connector; both with all columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from benchmarks.clock import timed
from benchmarks.engine import bare_session
from benchmarks.kafka import floor_case, prepared_with
from benchmarks.order import Order, Pair, Row, Suite, summarised
from benchmarks.topic import PARTITIONS
from distributary.config.sources.kafka import KafkaSourceConfig as Config
from distributary.source.base import Position
from distributary.source.kafka.source import KafkaSource


def case(way: str, *, first: bool = False) -> Callable[[Order], Row]:
    """A way to read; with `first`, the first batch of a new session alone."""

    def measured(order: Order) -> Row:
        spark = bare_session(order, name=way)
        base = {"type": "kafka", "bootstrap_servers": order.servers, "topics": [order.topic]}
        source = KafkaSource(Config.model_validate(base | {"reader": way}))
        # as for the scans of suite `kafka`, the JVM warms up on all batches
        later = range(order.warm, order.all_batches)
        numbers = [0] if first else [*range(order.all_batches), *later]
        results = []
        for number in numbers:
            with timed(order.records) as figures:
                opened = source.open(spark, _place(order, number), _place(order, number + 1))
                reader = opened.reader

                def count(
                    batches: Iterable[pa.RecordBatch], reader: Callable[..., object] = reader
                ) -> Iterator[pa.RecordBatch]:
                    for batch in reader(iter(batches)):  # type: ignore[attr-defined]
                        yield pa.record_batch({"n": [batch.num_rows]})

                frame = opened.frame(spark)
                counted = sum(r.n for r in frame.mapInArrow(count, "n long").collect())
            if counted != order.records:
                raise AssertionError(f"read {counted} of {order.records} records")
            results.append(figures)
        return summarised(results, warm=0 if first else order.all_batches)

    return measured


def _place(order: Order, batch: int) -> Position:
    offset = batch * (order.records // PARTITIONS)
    return {"offsets": {order.topic: {str(number): offset for number in range(PARTITIONS)}}}


SUITE = Suite(
    name="reader",
    tables=(10,),
    prepared=prepared_with(1.0),
    cases={
        "native": case("native"),
        "connector": case("spark"),
        "floor": floor_case,
        "first-native": case("native", first=True),
        "first-connector": case("spark", first=True),
    },
    pairs=(
        Pair("native_vs_connector", "native", "connector"),
        Pair("native_vs_floor", "native", "floor"),
        Pair("first_native_vs_connector", "first-native", "first-connector"),
    ),
)
