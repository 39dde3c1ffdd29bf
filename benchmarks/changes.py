"""Suite `changes`: change files of many small tables, or of a large one, against Spark's MERGE.

Ours keeps the log of all changes and merges it; Spark's side only merges. Both find the same files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F

from benchmarks.change_files import ROW, Size, backfill_rows, size_of, write_backfill, write_changes
from benchmarks.clock import timed
from benchmarks.engine import DRIVER_MEMORY, MASTER, Watch, bare_session
from benchmarks.order import Order, Pair, Row, Suite, summarised
from distributary.engine.pipeline import Pipeline
from distributary.spark.session import spark_session
from distributary.store.base import at, introduce, is_remote, options_of
from tests.services.stores import StoreServer

_THREADS = 8


@contextmanager
def prepared(order: Order) -> Iterator[Order]:
    """One folder of files for the rows there are at first, one for the changes of each batch."""
    size = size_of(order.tables)
    write_backfill(order.root / "backfill", size)
    for batch in range(order.all_batches):
        write_changes(order.root / f"changes-{batch}", size, batch=batch)
    yield order


def direct_case(order: Order) -> Row:
    """Our engine: files appear in the folder that it watches, batch after batch."""
    folders = ["backfill", *(f"changes-{batch}" for batch in range(order.all_batches))]
    batches = changes_ingested(order, folders, name="direct", form="avro")
    expect_rows(order, str(order.root / "direct"))
    # the first one brings the rows that there are before any change
    return summarised(batches[1:], warm=order.warm)


def changes_ingested(
    order: Order,
    folders: Sequence[str],
    *,
    name: str,
    form: str,
    master: str = MASTER,
    conf: Mapping[str, str] = MappingProxyType({}),
    bucket: StoreServer | None = None,
) -> list[dict[str, Any]]:
    """Files of these folders appear one folder after the other; what each of them took.

    They, and the lake, are in a bucket if one is given.
    """
    watched = str(order.root / f"{name}-files")
    place, lake = f"path: {watched}", f"path: {order.root}/{name}"
    if bucket is not None:
        watched = f"{bucket.address}/{name}-files"
        place = f"discovery: discovery-bucket, bucket: {bucket.address}, path: {name}-files"
        lake = f"path: {bucket.address}/{name}, storage_options: {json.dumps(bucket.options)}"
        introduce(bucket.address, bucket.options)
    file = order.root / f"{name}.yaml"
    file.write_text(
        f"""\
name: bench-changes
source: {{type: files, {place}, format: {form}, max_files_per_batch: 100000, settle: 0s}}
cdc: {{format: datastream}}
tables: {{each: "{{table}}"}}
lake: {{{lake}}}
spark: {{master: "{master}", driver_memory: {DRIVER_MEMORY}, conf: {json.dumps(dict(conf))}}}
"""
    )
    spark = spark_session(Pipeline.load(file).spark_settings(), app_name="changes")
    batches = []
    for folder in folders:
        _appear(order.source / folder, watched)
        pipeline = Pipeline.load(file)
        watch = Watch(pipeline, batches=100)
        pipeline.run(trigger="available_now", spark=spark)
        batches.append(_together(watch.batches))
    return batches


def spark_case(order: Order) -> Row:
    """One MERGE per table in a thread pool: the newest change of a key wins, deletes delete."""
    spark = bare_session(order, name="merge")
    size = size_of(order.tables)
    lake = order.root / "merge"
    for table in size.tables:
        rows = pa.Table.from_batches(backfill_rows(size, table))
        write_deltalake(str(lake / table), rows.append_column("_position", _zeros(rows.num_rows)))
    batches = []
    # a batch of it takes minutes: a second one is enough to see that
    for batch in range(2):
        folder = order.source / f"changes-{batch}"
        with timed(size.changes * len(size.tables)) as figures:
            with ThreadPoolExecutor(_THREADS) as pool:
                list(pool.map(lambda t, f=folder: _merge(spark, f, lake, t), size.tables))
        batches.append(figures)
    expect_rows(order, str(lake))
    return summarised(batches, warm=1)


def _merge(spark: SparkSession, folder: Path, lake: Path, table: str) -> None:
    files = [str(path) for path in folder.glob(f"shop_{table}/**/*.avro")]
    newest = Window.partitionBy("payload.id").orderBy(
        F.desc("source_timestamp"), F.desc("source_metadata.log_position")
    )
    changes = (
        spark.read.format("avro")
        .load(files)
        .withColumn("_rank", F.row_number().over(newest))
        .filter("_rank = 1")
        .select(
            "payload.*",
            F.col("source_metadata.log_position").alias("_position"),
            F.col("source_metadata.is_deleted").alias("_gone"),
        )
    )
    view = f"changes_{table}"
    session = spark.newSession()
    changes.createOrReplaceGlobalTempView(view)
    columns = [*ROW.names, "_position"]
    newer = "t._position < s._position"
    session.sql(
        f"MERGE INTO delta.`{lake / table}` t USING global_temp.{view} s ON t.id = s.id "
        f"WHEN MATCHED AND {newer} AND s._gone THEN DELETE "
        f"WHEN MATCHED AND {newer} THEN UPDATE SET {', '.join(f't.{c} = s.{c}' for c in columns)} "
        f"WHEN NOT MATCHED AND NOT s._gone THEN INSERT ({', '.join(columns)}) "
        f"VALUES ({', '.join(f's.{c}' for c in columns)})"
    )


def _appear(made: Path, watched: str) -> None:
    """Files are moved into place, as their writer would do it."""
    for path in sorted(made.rglob("bench_*")):
        name = path.relative_to(made)
        if is_remote(watched):
            at(made).copy(str(name), to=at(watched))
            continue
        target = Path(watched) / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.hardlink_to(path)


def _together(batches: list[dict[str, Any]]) -> dict[str, Any]:
    """A round may be cut into several batches."""
    return {key: sum(b.get(key, 0) for b in batches) for key in batches[0]}


def _zeros(count: int) -> pa.Array:
    return pa.repeat(pa.scalar(0, pa.int64()), count)


def expect_rows(order: Order, lake: str) -> None:
    """A side that lost rows would be no comparison."""
    size: Size = size_of(order.tables)
    for table in size.tables:
        found = DeltaTable(f"{lake}/{table}", storage_options=options_of(lake)).count()
        if found != size.rows_after(order.all_batches):
            raise AssertionError(f"{table} has {found} rows")


SUITE = Suite(
    name="changes",
    tables=(1, 20, 100),
    prepared=prepared,
    cases={"direct": direct_case, "merge": spark_case},
    pairs=(Pair("merge_vs_spark_merge", "direct", "merge"),),
)
