"""Suite `kafka`: from wrapped messages in a topic of a real broker to a table per game."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.baseline import append, append_each, expect_rows
from benchmarks.clock import parquet_files, timed
from benchmarks.engine import GAMES, bare_session, ingested, kafka_pipeline
from benchmarks.games import Games
from benchmarks.order import Order, Pair, Row, Suite, summarised
from benchmarks.queries import queries_case
from benchmarks.topic import PARTITIONS, batch_frame, fill, frame, registry_of, serving

_FIRST_ROWS_PER_TABLE = 20


def prepared_with(largest: float) -> Callable[[Order], AbstractContextManager[Order]]:
    """A topic with all batches, those that warm up first, where some are so much larger."""

    @contextmanager
    def prepared(order: Order) -> Iterator[Order]:
        with serving(order) as served:
            wanted = round(served.records * served.all_batches * largest)
            games = Games(games=served.tables, records=wanted, registry=registry_of(served))
            fill(served, games.shuffled(0, wanted).to_batches())
            yield served

    return prepared


def direct_case(order: Order) -> Row:
    """Our engine, as it runs where it runs without an end."""
    path = kafka_pipeline(order, name="direct", message=GAMES, tables='{each: "silver_{type}"}')
    batches = ingested(path, trigger="continuous", batches=order.all_batches)
    return summarised(batches, warm=order.warm)


def spark_case(order: Order) -> Row:
    """Our engine, with Spark's own Delta writer for each table."""
    tables = '{each: "silver_{type}", publisher: spark}'
    path = kafka_pipeline(order, name="spark", message=GAMES, tables=tables)
    # a batch of it takes minutes: one is enough to see that
    return summarised(ingested(path, trigger="continuous", batches=2), warm=1)


def floor_case(order: Order) -> Row:
    """Spark's scan of a batch's offsets into Arrow, rows counted: nothing can be faster there."""

    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch({"n": [batch.num_rows]})

    def scan(values: DataFrame) -> None:
        counted = sum(row.n for row in values.mapInArrow(count, "n long").collect())
        if counted != order.records:
            raise AssertionError(f"scanned {counted} of {order.records} rows")

    return _scans(order, "floor", scan)


def noop_case(order: Order) -> Row:
    """Spark's scan of a batch's offsets into its sink that does nothing: no Python at all."""
    return _scans(order, "noop", lambda v: v.write.format("noop").mode("overwrite").save())


def _scans(order: Order, name: str, scan: Callable[[DataFrame], None]) -> Row:
    spark = bare_session(order, name=name)
    results = []
    # the scans are short: the JVM warms up on all batches first
    for number in [*range(order.all_batches), *range(order.warm, order.all_batches)]:
        with timed(order.records) as figures:
            scan(batch_frame(spark, order, number).select("value"))
        results.append(figures)
    return summarised(results, warm=order.all_batches)


def foreachbatch_case(order: Order) -> Row:
    """The body of a `foreachBatch`: one Delta write per game, from a thread pool.

    It decodes nothing at all: the game is the record's key, the rows are raw. So it is a lower
    bound of what such a job costs.
    """
    spark = bare_session(order, name="foreachbatch")
    lake = order.root / "foreachbatch"

    def games(kept: DataFrame) -> Sequence[str]:
        return [row.game for row in kept.select("game").distinct().collect()]

    def run(records: DataFrame, count: int, batch: int) -> Row:
        def write(kept: DataFrame, game: str) -> None:
            append(kept.filter(F.col("game") == game), lake / game, batch=batch)

        raw = records.select(
            F.col("key").cast("string").alias("game"), "value", "partition", "offset", "timestamp"
        )
        before = parquet_files(lake)
        with timed(count) as figures:
            append_each(raw, games, write)
        return {**figures, "files": parquet_files(lake) - before}

    # creating a table costs more than appending to it: that is not what is compared
    first = min(order.records, _FIRST_ROWS_PER_TABLE * order.tables) // PARTITIONS
    created = run(frame(spark, order, 0, first), first * PARTITIONS, 0)
    # a batch of it takes minutes: one is enough to see that
    measured = run(batch_frame(spark, order, order.warm), order.records, 1)
    expect_rows(lake, first * PARTITIONS + order.records)
    return summarised([created, measured], warm=1)


SUITE = Suite(
    name="kafka",
    tables=(1, 10, 50, 200, 500, 1000),
    prepared=prepared_with(1.0),
    cases={
        "noop": noop_case,
        "floor": floor_case,
        "direct": direct_case,
        "spark": spark_case,
        "foreachbatch": foreachbatch_case,
        "queries": queries_case,
    },
    pairs=(
        Pair("direct_vs_foreachbatch", "direct", "foreachbatch"),
        Pair("direct_vs_queries", "direct", "queries"),
        Pair("direct_vs_spark", "direct", "spark"),
        Pair("direct_vs_arrow_floor", "direct", "floor"),
        Pair("direct_vs_noop_floor", "direct", "noop"),
    ),
    per_table_cases=frozenset({"spark", "foreachbatch", "queries"}),
    growth="",
)
