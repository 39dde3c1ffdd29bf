"""Step `publish`, second half, for change data: tables made of a log catch up with its batch.

A log is committed first. What it says is then merged, many tables at once, each as one small task
that needs no query plan of Spark. A table that cannot be merged is parked alone: its log goes on,
and `resume` merges what it has missed. Only what is strictly newer is applied, so that doing a
batch again changes nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import pyarrow as pa

from distributary.config.cdc import Cdc
from distributary.config.pipeline import PipelineConfig
from distributary.errors import DistributaryError, PublishError
from distributary.merge.apply import merge_table
from distributary.merge.order import MergeOrder, MergeResult
from distributary.model.manifest import TableEntry
from distributary.model.table import Column, Role, TablePlan
from distributary.observe import layout
from distributary.publish.base import CommittedMark, Mark, Outcome, Published, Publisher
from distributary.run.change_tables import LOG, log_files, log_of, own_columns
from distributary.run.tables import Pending, table_folder
from distributary.stage.runs import FACT_DDL, facts_batch, facts_of
from distributary.stage.worker import keep_zip_directories

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DERIVED = (Role.MERGED, Role.HISTORY)
"""Tables that are made of a log."""


def derived_entries(
    config: PipelineConfig,
    entries: Iterable[TableEntry],
    tables: Mapping[str, TablePlan],
    pending: Pending,
) -> tuple[TableEntry, ...]:
    """What a batch does to the tables that are made of the logs it writes to."""
    if config.cdc is None:
        return ()
    logs = {entry.table.name: entry for entry in entries if entry.table.role is Role.LOG}
    return tuple(
        TableEntry(
            table=table,
            files=(),
            records=logs[log_of(name)].records,
            changes=tuple(pending.changes.get(name, ())),
            events=logs[log_of(name)].events,
        )
        for name, table in sorted(tables.items())
        if table.role in DERIVED and log_of(name) in logs and logs[log_of(name)].files
    )


def merge_order(
    config: PipelineConfig, entry: TableEntry, mark: Mark, files: Sequence[str]
) -> MergeOrder:
    """What a merge is told about one table."""
    cdc = config.cdc or Cdc(format="datastream")
    lake = config.lake.local_path
    return MergeOrder(
        table=entry.table.name,
        path=entry.table.path,
        tombstones=layout.tombstones(str(lake or config.lake.path), entry.table.name),
        files=tuple(files),
        columns=own_columns(entry.table),
        app_id=mark.app_id,
        batch=mark.batch,
        now_us=time.time_ns() // 1000,
        deletes=cdc.deletes,
        evolution=cdc.evolution,
        horizon=int(cdc.keep_tombstones.total_seconds()),
        source_hash=mark.source_hash,
        comment=entry.table.comment,
    )


def merge_all(spark: SparkSession, orders: Sequence[MergeOrder]) -> list[Published]:
    """Merge tables side by side; the results are in the orders' order."""
    if not orders:
        return []
    tasks = min(len(orders), max(1, spark.sparkContext.defaultParallelism))
    shares = [orders[number::tasks] for number in range(tasks)]

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_zip_directories()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield facts_batch(_told(order) for order in shares[number])

    told = spark.range(0, tasks, 1, tasks).mapInArrow(task, FACT_DDL).toArrow()
    results = {body["table"]: Published(**body) for _, body in facts_of(told.to_batches())}
    return [results[order.table] for order in orders]


def _told(order: MergeOrder) -> tuple[str, str]:
    return "merged", json.dumps(asdict(merged(order)))


def merged(order: MergeOrder) -> Published:
    """Merge one table; one that cannot be merged is for the caller to park."""
    try:
        result = merge_table(order)
    except DistributaryError as error:
        return Published(order.table, Outcome.PARKED, error=f"{error.code}: {error.what}")
    except Exception as error:
        # a defect in one table's data must not stop the merges of all others
        text = f"{type(error).__name__}: {error}"
        return Published(order.table, Outcome.PARKED, error=text[:500])
    return _published(result)


def _published(result: MergeResult) -> Published:
    outcome = Outcome.SKIPPED if result.skipped else Outcome.PUBLISHED
    return Published(result.table, outcome, result.version if result.version >= 0 else None)


class MergingPublisher:
    """Publishes what waits for a table that is made of a log: the log's rows of that batch."""

    def __init__(self, inner: Publisher, config: PipelineConfig) -> None:
        self._inner = inner
        self._config = config

    def columns(self, path: str) -> tuple[Column, ...] | None:
        """As the inner publisher."""
        return self._inner.columns(path)

    def partition_columns(self, path: str) -> tuple[str, ...]:
        """As the inner publisher."""
        return self._inner.partition_columns(path)

    def committed(self, path: str, mark: Mark) -> CommittedMark | None:
        """As the inner publisher."""
        return self._inner.committed(path, mark)

    def publish(self, entry: TableEntry, mark: Mark) -> Published:
        """Commit the files of an entry, or merge the batch of its log."""
        if entry.table.role not in DERIVED:
            return self._inner.publish(entry, mark)
        log = table_folder(self._config, log_of(entry.table.name))
        files = log_files(log, mark.batch)
        result = merged(merge_order(self._config, entry, mark, files))
        if result.outcome is Outcome.PARKED:
            raise PublishError(
                f"table {entry.table.name} could not be merged",
                where=entry.table.path,
                evidence=result.error,
                next_step=f"mend it, then `distributary resume {entry.table.name}`; its log "
                f"{entry.table.name}{LOG} is complete",
            )
        return result
