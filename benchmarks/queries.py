"""The reference design: a bronze table partitioned by type, and a streaming query for each type.

Raw rows are copied, nothing is decoded: a lower bound of what such a job costs. As many queries as
finish in ten minutes; what they have written by then is what counts.
"""

from __future__ import annotations

import time
from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.clock import parquet_files, timed
from benchmarks.engine import bare_session
from benchmarks.order import Order, Row, summarised
from benchmarks.topic import batch_frame

_MOST_SECONDS = 600
_POLL_SECONDS = 0.2


def queries_case(order: Order) -> Row:
    """All queries start at once on a bronze table that holds one batch, and read it to its end."""
    spark = bare_session(order, name="queries")
    # as many queries as there are types shall run side by side, as the reference design wants it
    spark.conf.set("spark.sql.streaming.stopTimeout", "60s")
    bronze, lake = order.root / "bronze", order.root / "queries"
    raw = batch_frame(spark, order, order.warm).select(
        F.col("key").cast("string").alias("game"), "value", "partition", "offset", "timestamp"
    )
    with timed(order.records) as landing:
        raw.write.format("delta").partitionBy("game").save(str(bronze))
    games = [
        row.game
        for row in spark.read.format("delta").load(str(bronze)).select("game").distinct().collect()
    ]
    with timed(order.records) as figures:
        left = _run(spark, games, bronze=bronze, lake=lake)
    figures["records"] = sum(
        DeltaTable(str(lake / game)).count() for game in games if (lake / game).exists()
    )
    figures["seconds"] += landing["seconds"]
    figures["cpu_seconds"] += landing["cpu_seconds"]
    figures["files"] = parquet_files(lake)
    if not left and figures["records"] != order.records:
        raise AssertionError(f"{figures['records']} of {order.records} rows are in the tables")
    return {**summarised([figures], warm=0), "finished": len(games) - left}


def _run(spark: SparkSession, games: list[str], *, bronze: Path, lake: Path) -> int:
    """How many queries had not ended when the time was over."""
    running = [_start(spark, game, bronze=bronze, lake=lake) for game in games]
    deadline = time.monotonic() + _MOST_SECONDS
    while any(query.isActive for query in running) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    left = [query for query in running if query.isActive]
    for query in running:
        if not query.isActive and query.exception() is not None:
            raise AssertionError(str(query.exception()))
    for query in left:
        query.stop()
    return len(left)


def _start(spark: SparkSession, game: str, *, bronze: Path, lake: Path) -> StreamingQuery:
    return (
        spark.readStream.format("delta")
        .load(str(bronze))
        .filter(F.col("game") == game)
        .writeStream.format("delta")
        .option("checkpointLocation", str(lake / "_checkpoints" / game))
        .trigger(availableNow=True)
        .start(str(lake / game))
    )
