"""Suite `kafka`: from wrapped messages in a topic of a real broker to a table per game."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.baseline import append, append_each, rows_in
from benchmarks.clock import parquet_files, timed
from benchmarks.engine import GAMES, bare_session, ingested, kafka_pipeline
from benchmarks.games import Games
from benchmarks.order import Order, Pair, Row, Suite, summarised
from benchmarks.queries import queries_case
from benchmarks.topic import batch_frame, fill, registry_of, serving

_MANY = 200
_WARM_TABLES = 20
_RAW = pa.schema(
    {
        "game": pa.string(),
        "value": pa.binary(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", "UTC"),
    }
)


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
    each = 'each: "silver_{type}"'
    many = order.tables > _MANY
    if many:
        # to make a table takes Spark as long as to write to it: here ours has made them
        path = kafka_pipeline(order, name="spark", message=GAMES, tables=f"{{{each}}}")
        ingested(path, trigger="continuous", batches=1)
    tables = f"{{{each}, publisher: spark}}"
    path = kafka_pipeline(order, name="spark", message=GAMES, tables=tables)
    # a batch of it takes minutes: one is enough to see that
    warm = 0 if many else 1
    return summarised(ingested(path, trigger="continuous", batches=warm + 1), warm=warm)


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
    bound of what such a job costs. As many games as are begun in five minutes.
    """
    spark = bare_session(order, name="foreachbatch")
    lake = order.root / "foreachbatch"

    def games(kept: DataFrame) -> Sequence[str]:
        return [row.game for row in kept.select("game").distinct().collect()]

    def run(number: int, tables: Callable[[DataFrame], Sequence[str]]) -> Row:
        def write(kept: DataFrame, game: str) -> None:
            append(kept.filter(F.col("game") == game), lake / game, batch=number)

        files, rows = parquet_files(lake), rows_in(lake)
        with timed(order.records) as figures:
            done = append_each(_raw(batch_frame(spark, order, number)), tables, write)
        found = {"records": rows_in(lake) - rows, "files": parquet_files(lake) - files}
        return {**figures, **found, "finished": done}

    # creating a table costs more than appending to it: that is not what is compared
    for game in games(_raw(batch_frame(spark, order, order.warm))):
        DeltaTable.create(str(lake / game), _RAW)
    # a JVM that has written some tables is warm
    run(0, lambda kept: games(kept)[:_WARM_TABLES])
    # a batch of it takes minutes: one is enough to see that
    measured = run(order.warm, games)
    if measured["finished"] == order.tables and measured["records"] != order.records:
        raise AssertionError(f"{measured['records']} of {order.records} rows are in the tables")
    return {**summarised([measured], warm=0), "finished": measured["finished"]}


def _raw(records: DataFrame) -> DataFrame:
    return records.select(
        F.col("key").cast("string").alias("game"), "value", "partition", "offset", "timestamp"
    )


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
    per_table_cases={"spark": 1000, "foreachbatch": 1000, "queries": 200},
    first=("noop", "floor", "direct"),
    growth="",
)
