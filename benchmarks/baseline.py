"""What people write today into a `foreachBatch`: one Delta write per table, in a thread pool."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

_MOST_SECONDS = 300
_THREADS = 8


def append(frame: DataFrame, path: Path, *, batch: int) -> None:
    """One Delta write, marked with the batch: exactly once, as ours."""
    (
        frame.write.format("delta")
        .mode("append")
        .option("mergeSchema", "true")
        .option("txnAppId", "baseline")
        .option("txnVersion", batch)
        .save(str(path))
    )


def append_each(
    frame: DataFrame,
    tables: Callable[[DataFrame], Sequence[str]],
    write: Callable[[DataFrame, str], None],
) -> int:
    """The records are read once and kept while every table picks its own from them.

    No table is begun after five minutes; returns how many are done.
    """
    kept = frame.persist()
    deadline = time.monotonic() + _MOST_SECONDS

    def one(table: str) -> bool:
        if time.monotonic() > deadline:
            return False
        write(kept, table)
        return True

    try:
        with ThreadPoolExecutor(_THREADS) as pool:
            return sum(pool.map(one, tables(kept)))
    finally:
        kept.unpersist()


def with_our_columns(raw: DataFrame, record: Column, *, schema_id: int, batch: int) -> DataFrame:
    """Return the fields of decoded records beside the metadata columns that our tables have."""
    return raw.select(
        record.alias("record"),
        F.col("topic").alias("_topic"),
        F.col("partition").alias("_partition"),
        F.col("offset").alias("_offset"),
        F.col("timestamp").alias("_timestamp"),
    ).select(
        "record.*",
        *("_topic", "_partition", "_offset", "_timestamp"),
        F.lit(schema_id).cast("long").alias("_schema_id"),
        F.lit(batch).cast("long").alias("_batch"),
    )


def rows_in(lake: Path) -> int:
    """Rows of all tables below a folder."""
    return sum(DeltaTable(str(path.parent)).count() for path in lake.glob("*/_delta_log"))


def expect_rows(lake: Path, rows: int) -> None:
    """A baseline that lost something would be no baseline."""
    found = rows_in(lake)
    if found != rows:
        raise AssertionError(f"{found} of {rows} rows are in the tables")
