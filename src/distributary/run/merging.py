"""Tables that are made of a log catch up with it, many at once, each as one small task.

No query plan of Spark is made for them. A table that cannot be merged is for the caller to park,
alone: its log goes on, and `resume` merges what it has missed. Only what is strictly newer is
applied, so that doing a batch again, or too much of a log, changes nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from distributary.config.cdc import Cdc
from distributary.config.pipeline import PipelineConfig
from distributary.errors import DistributaryError, PublishError
from distributary.merge.apply import merge_table
from distributary.merge.choose import choose
from distributary.merge.history import merge_history
from distributary.merge.order import MergeOrder, MergeResult
from distributary.merge.spark_merge import merge_table_with_spark
from distributary.model.manifest import TableEntry
from distributary.model.table import Column, Role, TablePlan
from distributary.observe import layout
from distributary.publish.base import CommittedMark, Mark, Outcome, Published, Publisher
from distributary.publish.failures import may_pass
from distributary.run.change_tables import log_files, log_of, own_columns
from distributary.run.tables import Pending, table_folder
from distributary.stage.runs import FACT_DDL, facts_batch, facts_of
from distributary.stage.worker import keep_zip_directories

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DERIVED = (Role.MERGED, Role.HISTORY)
"""Tables that are made of a log."""
_LONGEST_ERROR = 500
_DONE, _LARGE = "merged", "large"


@dataclass(frozen=True, slots=True)
class Merge:
    """One table to bring up to date."""

    role: Role
    order: MergeOrder


def derived_entries(
    config: PipelineConfig,
    entries: Iterable[TableEntry],
    tables: Mapping[str, TablePlan],
    pending: Pending,
) -> tuple[TableEntry, ...]:
    """What a batch does to the tables that are made of the logs it speaks of."""
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
        if table.role in DERIVED and log_of(name) in logs
    )


def merge_of(config: PipelineConfig, entry: TableEntry, mark: Mark, files: Sequence[str]) -> Merge:
    """What a merge is told about one table."""
    cdc = config.cdc or Cdc(format="datastream")
    lake = config.lake.local_path
    order = MergeOrder(
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
    return Merge(entry.table.role, order)


def merge_all(spark: SparkSession, merges: Sequence[Merge]) -> list[Published]:
    """Merge tables side by side, large ones by Spark; the results are in the merges' order."""
    if not merges:
        return []
    tasks = min(len(merges), max(1, spark.sparkContext.defaultParallelism))
    shares = [merges[number::tasks] for number in range(tasks)]

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_zip_directories()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield facts_batch(_told(merge) for merge in shares[number])

    told = spark.range(0, tasks, 1, tasks).mapInArrow(task, FACT_DDL).toArrow()
    facts = [body for kind, body in facts_of(told.to_batches()) if kind == _DONE]
    done = {b["table"]: Published(**b | {"outcome": Outcome(b["outcome"])}) for b in facts}
    return [done.get(merge.order.table) or merged(merge, spark=spark) for merge in merges]


def _told(merge: Merge) -> tuple[str, str]:
    if _is_large(merge):
        return _LARGE, json.dumps(merge.order.table)
    return _DONE, json.dumps(asdict(merged(merge)))


def _is_large(merge: Merge) -> bool:
    try:
        return merge.role is Role.MERGED and choose(merge.order) == "spark"
    except (DistributaryError, OSError):
        # the merge itself will say what is wrong with the table
        return False


def merged(merge: Merge, *, spark: SparkSession | None = None) -> Published:
    """Merge one table, by Spark if it is given; one that fails is for the caller to park."""
    try:
        return _published(_merged(merge, spark))
    except DistributaryError as error:
        text = f"{error.code}: {error.evidence or error.what}"
        passing = isinstance(error, PublishError) and may_pass(error)
    except Exception as error:
        # a defect in one table's data must not stop the merges of all others
        text, passing = f"{type(error).__name__}: {error}", False
    name = merge.order.table
    return Published(name, Outcome.PARKED, error=text[:_LONGEST_ERROR], may_pass=passing)


def _merged(merge: Merge, spark: SparkSession | None) -> MergeResult:
    if merge.role is Role.HISTORY:
        return merge_history(merge.order)
    return merge_table(merge.order) if spark is None else merge_table_with_spark(spark, merge.order)


def _published(result: MergeResult) -> Published:
    outcome = Outcome.SKIPPED if result.skipped else Outcome.PUBLISHED
    return Published(result.table, outcome, result.version if result.version >= 0 else None)


class MergingPublisher:
    """Publishes what waits for a table that is made of a log: the log's rows of that batch."""

    def __init__(
        self, inner: Publisher, config: PipelineConfig, *, spark: SparkSession | None = None
    ) -> None:
        """With a session, large tables are merged by Spark."""
        self._inner = inner
        self._config = config
        self._spark = spark

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
        name, log = entry.table.name, log_of(entry.table.name)
        path = table_folder(self._config, log)
        known = self._inner.committed(path, mark)
        if known is None or known.batch < mark.batch:
            raise PublishError(
                f"table {name} waits for batch {mark.batch} of its log",
                where=path,
                evidence=f"the newest batch of {log} is {'none' if known is None else known.batch}",
                next_step=f"`distributary resume {log}` comes first",
            )
        # a table without any batch of this life may lack what an earlier one has left in the log
        first = self._inner.committed(entry.table.path, mark) is None
        files = log_files(path, None if first else mark.batch)
        merge = merge_of(self._config, entry, mark, files)
        result = merged(merge, spark=self._spark if _is_large(merge) else None)
        if result.outcome is Outcome.PARKED:
            raise PublishError(
                f"table {name} could not be merged",
                where=entry.table.path,
                evidence=result.error,
                next_step=f"mend it, then `distributary resume {name}`; {log} is complete",
            )
        return result
