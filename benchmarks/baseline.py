"""What people write today into a `foreachBatch`: one Delta write per table, in a thread pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import DataFrame

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
) -> None:
    """The records are read once and kept while every table picks its own from them."""
    kept = frame.persist()
    try:
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(lambda table: write(kept, table), tables(kept)))
    finally:
        kept.unpersist()


def expect_rows(lake: Path, rows: int) -> None:
    """A baseline that lost something would be no baseline."""
    found = sum(DeltaTable(str(path.parent)).count() for path in lake.glob("*/_delta_log"))
    if found != rows:
        raise AssertionError(f"{found} of {rows} rows are in the tables")
