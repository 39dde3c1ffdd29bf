"""Suite `kafka`: from wrapped messages in a topic of a real broker to a table per game."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.baseline import append, append_each, expect_rows
from benchmarks.engine import GAMES, bare_session, ingested, kafka_pipeline
from benchmarks.games import Games
from benchmarks.order import Order, Pair, Row, Suite, summarised
from benchmarks.topic import PARTITIONS, batch_frame, fill, frame, registry_of, serving

_FIRST_ROWS_PER_TABLE = 20


@contextmanager
def prepared(order: Order) -> Iterator[Order]:
    """A topic with all batches, those that warm up first."""
    with serving(order) as served:
        _fill(served)
        yield served


def _fill(order: Order) -> None:
    wanted = order.records * order.all_batches
    games = Games(games=order.tables, records=wanted, registry=registry_of(order))
    fill(order, games.shuffled(0, wanted).to_batches())


def direct_case(order: Order) -> Row:
    """Our engine, as it runs where it runs without an end."""
    path = kafka_pipeline(order, name="direct", message=GAMES, tables='{each: "silver_{type}"}')
    batches = ingested(path, trigger="continuous", batches=order.all_batches)
    return summarised(batches, warm=order.warm)


def floor_case(order: Order) -> Row:
    """Spark's scan of a batch's offsets into Arrow, rows counted: nothing can be faster there."""
    spark = bare_session(order, name="floor")

    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch({"n": [batch.num_rows]})

    results = []
    # the scans are short: the JVM warms up on all batches first
    for number in [*range(order.all_batches), *range(order.warm, order.all_batches)]:
        began = time.monotonic()
        values = batch_frame(spark, order, number).select("value")
        counted = sum(row.n for row in values.mapInArrow(count, "n long").collect())
        results.append({"records": counted, "seconds": time.monotonic() - began})
        if counted != order.records:
            raise AssertionError(f"scanned {counted} of {order.records} rows")
    return summarised(results, warm=order.all_batches)


def per_table_case(order: Order) -> Row:
    """The body of a `foreachBatch`: one Delta write per game, from a thread pool.

    It decodes nothing at all: the game is the record's key, the rows are raw. So it is a lower
    bound of what such a job costs.
    """
    spark = bare_session(order, name="per-table")
    lake = order.root / "per-table"

    def games(kept: DataFrame) -> Sequence[str]:
        return [row.game for row in kept.select("game").distinct().collect()]

    def run(records: DataFrame, batch: int) -> dict[str, float]:
        began = time.monotonic()

        def write(kept: DataFrame, game: str) -> None:
            append(kept.filter(F.col("game") == game), lake / game, batch=batch)

        raw = records.select(
            F.col("key").cast("string").alias("game"), "value", "partition", "offset", "timestamp"
        )
        append_each(raw, games, write)
        return {"records": order.records, "seconds": time.monotonic() - began}

    # creating a table costs more than appending to it: that is not what is compared
    first = min(order.records, _FIRST_ROWS_PER_TABLE * order.tables) // PARTITIONS
    created = run(frame(spark, order, 0, first), 0)
    # a batch of it takes minutes: one is enough to see that
    measured = run(batch_frame(spark, order, order.warm), 1)
    expect_rows(lake, first * PARTITIONS + order.records)
    return summarised([created, measured], warm=1)


SUITE = Suite(
    name="kafka",
    tables=(200,),
    prepared=prepared,
    cases={"floor": floor_case, "direct": direct_case, "per-table": per_table_case},
    pairs=(
        Pair("direct_vs_per_table", "direct", "per-table"),
        Pair("direct_vs_kafka_floor", "direct", "floor"),
    ),
    per_table_cases=frozenset({"per-table"}),
)
