"""Suite `keys`: records that replace rows of 200 tables by key, against Spark's MERGE per table.

Ours decodes JSON, keeps the log of all records and merges it, in one process without Spark. Spark's
side finds its records typed and divided by table, and only merges.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from benchmarks.clock import timed
from benchmarks.engine import bare_session
from benchmarks.order import Order, Pair, Row, Suite, summarised
from benchmarks.turns import no_spark, prepared
from distributary.config.load import load_text
from distributary.config.runtime import AVAILABLE_NOW
from distributary.engine.loop import StreamRun
from distributary.engine.pipeline import Pipeline
from distributary.engine.seams import make_source
from distributary.spark.in_process import in_process

_ROWS = 10_000
"""Rows of each table before the first batch."""
_THREADS = 8
_FILE = """\
name: keys
source: {{type: delta, path: {root}/records, topic: orders, max_records_per_batch: 100000000}}
payload: {{format: json}}
tables: {{each: "{{field:event}}"}}
keys: [{{key: [id], order: [changed]}}]
lake: {{path: {root}/lake}}
evolution: {{max_new_tables_per_batch: 10000}}
"""
_NAMES = ("id", "changed", "amount", "note")


def _changes(order: Order, table: int, *, batch: int) -> pa.Table:
    """The records of a table in a batch; batch 0 has the rows that there are before."""
    dice = np.random.default_rng(batch * 1_000 + table)
    ids = np.arange(_ROWS)
    if batch:
        ids = dice.choice(_ROWS, order.records // order.tables, replace=False)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "changed": pa.array(np.full(len(ids), batch), pa.int64()),
            "amount": pa.array(dice.integers(0, 100_000, len(ids))),
            "note": pa.array([f"note {number % 97}" for number in ids.tolist()]),
        }
    )


def _as_json(table: int, rows: pa.Table) -> pa.Table:
    parts = [f'{{"event": "{_name(table)}", "id": ', rows["id"].cast(pa.string())]
    for name in ("changed", "amount"):
        parts += [f', "{name}": ', rows[name].cast(pa.string())]
    parts += [', "note": "', rows["note"], '"}']
    return pa.table({"value": pc.binary_join_element_wise(*parts, "").cast(pa.binary())})


def _name(table: int) -> str:
    return f"orders_{table:03d}"


def direct_case(order: Order) -> Row:
    """Our engine: a batch brings records of all tables."""
    pipeline = Pipeline(load_text(_FILE.format(root=order.root)))
    batches = []
    with pipeline.open(in_process(no_spark)) as context:
        for batch in range(order.all_batches + 1):
            made = [_as_json(t, _changes(order, t, batch=batch)) for t in range(order.tables)]
            write_deltalake(f"{order.root}/records", pa.concat_tables(made), mode="append")
            with timed(order.records) as figures:
                source = make_source(pipeline.config)
                StreamRun(context, source, stop=threading.Event()).run(AVAILABLE_NOW)
            batches.append(figures)
    _expect(order, order.root / "lake", batches=order.all_batches)
    return summarised(batches[1:], warm=order.warm)


def spark_case(order: Order) -> Row:
    """One MERGE per table in a thread pool: the record of a key replaces its row."""
    spark = bare_session(order, name="merge")
    lake = order.root / "merge"
    for table in range(order.tables):
        write_deltalake(str(lake / _name(table)), _changes(order, table, batch=0))
    batches = []
    # a batch of it takes minutes: a second one is enough to see that
    for batch in (1, 2):
        for table in range(order.tables):
            folder = order.root / f"batch-{batch}"
            folder.mkdir(exist_ok=True)
            rows = _changes(order, table, batch=batch)
            pq.write_table(rows, folder / f"{_name(table)}.parquet")
        names = [_name(table) for table in range(order.tables)]
        with timed(order.records) as figures, ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(lambda name, f=folder: _merge(spark, f, lake, name), names))
        batches.append(figures)
    _expect(order, lake, batches=2)
    return summarised(batches, warm=1)


def _merge(spark: SparkSession, folder: Path, lake: Path, table: str) -> None:
    session = spark.newSession()
    session.read.parquet(str(folder / f"{table}.parquet")).createOrReplaceGlobalTempView(table)
    session.sql(
        f"MERGE INTO delta.`{lake / table}` t USING global_temp.{table} s ON t.id = s.id "
        f"WHEN MATCHED AND t.changed <= s.changed THEN "
        f"UPDATE SET {', '.join(f't.{c} = s.{c}' for c in _NAMES)} "
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(_NAMES)}) "
        f"VALUES ({', '.join(f's.{c}' for c in _NAMES)})"
    )


def _expect(order: Order, lake: Path, *, batches: int) -> None:
    """A side whose rows are not the newest ones would be no comparison."""
    for table in (0, order.tables - 1):
        newest = np.zeros(_ROWS, np.int64)
        for batch in range(1, batches + 1):
            newest[_changes(order, table, batch=batch)["id"].to_numpy()] = batch
        found = DeltaTable(str(lake / _name(table))).to_pyarrow_table().sort_by("id")
        if found["changed"].to_pylist() != newest.tolist():
            raise AssertionError(f"{_name(table)} has other rows")


SUITE = Suite(
    name="keys",
    tables=(200,),
    prepared=prepared,
    cases={"direct": direct_case, "merge": spark_case},
    pairs=(Pair("upsert_vs_spark_merge", "direct", "merge"),),
)
