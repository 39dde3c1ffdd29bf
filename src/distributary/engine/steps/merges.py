"""Step `publish` of change data: merge the batch of a log into its tables.

Many tables are merged in parallel, each by one small task without a query plan of Spark. A table
that cannot be merged is parked alone: its log continues, and `resume` merges the missed batches.
Only strictly newer events are applied, so merging a batch twice changes nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from distributary.changes.history import merge_history
from distributary.changes.merge_order import MergeOrder, Undecided
from distributary.changes.rebuild import merge_in_order
from distributary.changes.spark_target import merge_table_with_spark, needs_spark
from distributary.config.cdc import MergeConfig
from distributary.config.lake import LakeConfig
from distributary.config.pipeline_config import PipelineConfig
from distributary.delta.tables import may_pass
from distributary.engine.context import RunContext
from distributary.engine.kill_points import KillPoint, reached
from distributary.engine.planning.strategies import strategy_of
from distributary.engine.planning.table_book import (
    LOG,
    Pending,
    files_of_commit,
    log_files,
    log_of,
    merge_config,
    own_columns,
    table_folder,
)
from distributary.engine.steps.unwritable import BEHIND_OTHERS, in_rounds, park_failed
from distributary.errors import DistributaryError, ErrorCode, LakeUnavailableError, PublishError
from distributary.model import layout
from distributary.model.manifest import ASIDE, Manifest, Mark, TableEntry
from distributary.model.table import Role, TablePlan
from distributary.publish.base import Outcome, Published, Publisher
from distributary.publish.parking import park
from distributary.source.base import parallelism
from distributary.spark.in_process import real
from distributary.spark.session import named
from distributary.spark.versions import require_delta
from distributary.stage.exchange import documents_batch, documents_of
from distributary.stage.guard import keep_zip_directories
from distributary.stage.job import run_tasks
from distributary.store.base import at, introduce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


T = TypeVar("T")

FROM_LOG = (Role.MERGED, Role.HISTORY)
"""The roles of tables that are merged from a log."""
DERIVED = (*FROM_LOG, Role.AGGREGATE)
"""The roles of tables that are made of other tables, after those have the batch."""
_LONGEST_ERROR = 500
_DONE = "merged"
_NOT_MERGED = "the pipeline file has no `cdc`, and no key for it in `keys`"


def derived_entries(
    config: PipelineConfig,
    entries: Iterable[TableEntry],
    tables: Mapping[str, TablePlan],
    pending: Pending,
) -> tuple[TableEntry, ...]:
    """Return the entries of the tables that are built from a batch's logs."""
    if not strategy_of(config).merges:
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
        if table.role in FROM_LOG and log_of(name) in logs
    )


def merge_of(
    config: PipelineConfig,
    merge: MergeConfig,
    entry: TableEntry,
    mark: Mark,
    files: Sequence[str],
    *,
    undecided: Undecided = "refuse",
) -> MergeOrder:
    """Return the order to merge one table."""
    log = log_of(entry.table.name)
    arrival = strategy_of(config).arrival
    if mark.app_id.endswith(tuple(f"/{lane}" for lane in ASIDE)):
        # replayed events, and rows read from the database, arrive late in any case
        arrival = "unknown"
    is_history = entry.table.role is Role.HISTORY
    return MergeOrder(
        table=entry.table.name,
        role=entry.table.role,
        path=entry.table.path,
        tombstones=layout.tombstones(config.lake.address, entry.table.name),
        files=tuple(files),
        columns=own_columns(entry.table),
        app_id=mark.app_id,
        batch=mark.batch,
        now_us=time.time_ns() // 1000,
        deletes=merge.deletes,
        deletes_as=merge.deletes_as,
        evolution=merge.evolution,
        horizon=int(merge.keep_tombstones.total_seconds()),
        source_hash=mark.source_hash,
        comment=entry.table.comment,
        log=table_folder(config, log) if merge.log else "",
        current=table_folder(config, log.removesuffix(LOG)) if is_history else "",
        arrival=arrival,
        undecided=undecided,
        chosen=merge.begins_versions(log.removesuffix(LOG)) if is_history else (),
    )


def merge_all(
    spark: SparkSession, lake: LakeConfig, merges: Sequence[MergeOrder]
) -> list[Published]:
    """Merge tables in parallel; the results are in the order of `merges`.

    Tables that only Spark may write are merged by the driver.
    """
    done = in_tasks(spark, lake, merges, _merged_in_task)
    return [done.get(order.table) or merged(order, spark=spark) for order in merges]


def in_tasks(
    spark: SparkSession,
    lake: LakeConfig,
    orders: Sequence[T],
    work: Callable[[Sequence[T]], Iterable[Published]],
) -> dict[str, Published]:
    """Work on the tables of some orders side by side; return the results by table.

    Each task works on a share of the orders. An order without a result is left to the driver.
    """
    if not orders:
        return {}
    tasks = min(len(orders), parallelism(spark))
    shares = [orders[number::tasks] for number in range(tasks)]
    place, options = lake.address, lake.options_of_tasks

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_zip_directories()
        introduce(place, options)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                results = work(shares[number])
                yield documents_batch((_DONE, json.dumps(asdict(one))) for one in results)

    bodies = [json.loads(document) for _, document in documents_of(run_tasks(spark, tasks, task))]
    return {b["table"]: Published(**b | {"outcome": Outcome(b["outcome"])}) for b in bodies}


def _merged_in_task(orders: Sequence[MergeOrder]) -> Iterator[Published]:
    """Merge tables in a task, without those that only Spark may write."""
    return (merged(order) for order in orders if not _needs_spark(order))


def _needs_spark(order: MergeOrder) -> bool:
    try:
        return order.role is Role.MERGED and needs_spark(order)
    except (DistributaryError, OSError):
        # the merge will report the error
        return False


def merged(order: MergeOrder, *, spark: SparkSession | None = None) -> Published:
    """Merge one table, with Spark if a session is given; the caller parks it after a failure."""
    try:
        if order.role is Role.HISTORY:
            result = merge_history(order)
        elif spark is None:
            result = merge_in_order(order)
        else:
            session = real(spark)
            require_delta(session, "a table with features that only Spark writes")
            result = merge_table_with_spark(session, order)
        outcome = Outcome.SKIPPED if result.skipped else Outcome.PUBLISHED
        return Published(result.table, outcome, result.version if result.version >= 0 else None)
    except Exception as error:
        # a defect in one table's data must not stop the merges of all others
        return failed(order.table, error)


def failed(table: str, error: Exception) -> Published:
    """Return the result for a table that could not be brought up to date."""
    text, passing = f"{type(error).__name__}: {error}", False
    if isinstance(error, DistributaryError):
        text = f"{error.code}: {error.evidence or error.what}"
        passing = isinstance(error, PublishError) and may_pass(error)
    return Published(table, Outcome.PARKED, error=text[:_LONGEST_ERROR], may_pass=passing)


def publish_waiting(
    publisher: Publisher,
    config: PipelineConfig,
    entry: TableEntry,
    mark: Mark,
    *,
    spark: SparkSession | None = None,
    undecided: Undecided = "refuse",
) -> Published:
    """Commit the files of an entry that waits, or merge the batch of its log.

    With a session, tables that only Spark may write are merged, too.
    """
    if entry.table.role not in FROM_LOG:
        return publisher.publish(entry, mark)
    name, log = entry.table.name, log_of(entry.table.name)
    path, how = table_folder(config, log), merge_config(config, name)
    if how is None:
        raise PublishError(
            f"table {name} is built from a log, but the pipeline file no longer has its settings",
            where="keys",
            evidence=_NOT_MERGED,
            next_step=f"put `cdc` or `keys` back into the file, then `distributary resume {name}`",
        )
    known = publisher.committed(path, mark)
    if known is None or known.batch < mark.batch:
        raise PublishError(
            f"table {name} waits for batch {mark.batch} of its log",
            where=path,
            evidence=f"the newest batch of {log} is {'none' if known is None else known.batch}",
            next_step=f"`distributary resume {log}` comes first",
        )
    # a table without a batch of this life may lack events of an earlier life
    first = publisher.committed(entry.table.path, mark) is None
    files = log_files(path, None if first else mark.batch)
    order = merge_of(config, how, entry, mark, files, undecided=undecided)
    result = merged(order, spark=spark if _needs_spark(order) else None)
    if result.outcome is Outcome.PARKED:
        raise PublishError(
            f"table {name} could not be merged",
            where=entry.table.path,
            evidence=result.error,
            next_step=f"fix it, then `distributary resume {name}`; {log} is complete",
        )
    return result


def is_behind(context: RunContext, entry: TableEntry, mark: Mark) -> bool:
    """Return whether a log may hold unmerged events from before this life.

    An earlier life that ended by `reset` may have written to a log without merging it. The next
    life finds these events in the log, so they are not delivered again. This is checked before the
    log's own commit.
    """
    if (
        entry.table.role is not Role.LOG
        or context.progress.lane != "stream"
        or not entry.table.exists
    ):
        return False
    if entry.table.name in context.publishing.followed:
        return False
    known = context.publishing.publisher.committed(entry.table.path, mark)
    return known is None or known.batch >= mark.batch


def derive(
    context: RunContext,
    manifest: Manifest,
    published: tuple[Published, ...],
    *,
    queued: set[str],
    behind: set[str],
    fresh: bool,
) -> tuple[Published, ...]:
    """Merge a batch into the tables of its logs."""
    mark = Mark(context.progress.app_id, manifest.batch, manifest.source_hash)
    results = {e.table.name: Published(e.table.name, Outcome.PUBLISHED) for e in manifest.tables}
    results |= {result.table: result for result in published}
    entries = {entry.table.name: entry for entry in manifest.tables}
    merges: list[MergeOrder] = []
    for name, entry in entries.items():
        if entry.table.role not in FROM_LOG:
            continue
        how = merge_config(context.config, name)
        log = log_of(name)
        if how is None or name in queued or results[log].outcome is Outcome.PARKED:
            why = BEHIND_OTHERS if name in queued else f"waits for {log}" if how else _NOT_MERGED
            park(entry, mark, folder=context.publishing.parking, reason=why)
            results[name] = Published(name, Outcome.PARKED, error=why)
            continue
        whole = log in behind
        files = _files(context, entries[log], mark, results[log], whole=whole, fresh=fresh)
        if files:
            merges.append(merge_of(context.config, how, entry, mark, files))
    current = [order for order in merges if order.role is not Role.HISTORY]
    for result in _merged(context, current, manifest.batch):
        results[result.table] = _kept(context, entries[result.table], mark, result)
    # a history takes the incarnations of the source from its table
    histories = []
    for order in merges:
        table = log_of(order.table).removesuffix(LOG)
        if order.role is Role.HISTORY and results[table].outcome is Outcome.PARKED:
            waits = Published(order.table, Outcome.PARKED, error=f"waits for {table}")
            results[order.table] = _kept(context, entries[order.table], mark, waits)
        elif order.role is Role.HISTORY:
            histories.append(order)
    for result in _merged(context, histories, manifest.batch):
        results[result.table] = _kept(context, entries[result.table], mark, result)
    context.publishing.followed.update(_written(entries.values(), results))
    return tuple(results[entry.table.name] for entry in manifest.tables)


def _kept(context: RunContext, entry: TableEntry, mark: Mark, result: Published) -> Published:
    """Park a table that could not be merged, and return its result."""
    if result.outcome is not Outcome.PARKED:
        return result
    return park_failed(context, entry, mark, result.error)


def _merged(context: RunContext, merges: list[MergeOrder], batch: int) -> list[Published]:
    def merge(chosen: Sequence[MergeOrder]) -> list[Published]:
        return merge_all(context.spark, context.config.lake, chosen)

    before = KillPoint.BEFORE_MERGE
    return write_derived(context, merges, merge, batch=batch, step="merge", before=before)


def write_derived(
    context: RunContext,
    orders: Sequence[T],
    work: Callable[[Sequence[T]], list[Published]],
    *,
    batch: int,
    step: str,
    before: KillPoint,
) -> list[Published]:
    """Write the tables that are made of others, and retry temporary failures.

    Raise LakeUnavailableError if the lake cannot be reached for any of them.
    """
    if not orders:
        return []
    context.progress.claim.check()
    reached(before, batch)

    def some(chosen: Sequence[T]) -> list[Published]:
        with named(context.spark, pipeline=context.config.name, batch=batch, step=step):
            results = work(chosen)
        if len(chosen) == len(orders):
            _refuse_unreachable_lake(results)
        return results

    attempts = context.config.run.publish_attempts
    return in_rounds(some, orders, again=lambda result: result.may_pass, attempts=attempts)


def _files(
    context: RunContext,
    log: TableEntry,
    mark: Mark,
    published: Published,
    *,
    whole: bool,
    fresh: bool,
) -> list[str]:
    """Return the files of a log with the events that its tables need."""
    path = log.table.path
    if whole:
        return log_files(path)
    if fresh and log.files:
        moves = context.config.tables.publisher == "spark"
        if not moves or all(at(path).look(file.path) for file in log.files):
            return [f"{path}/{file.path}" for file in log.files]
        # Spark's writer has created its own files
        return files_of_commit(path, published.version or 0) or log_files(path, mark.batch)
    # another process has decided the batch: its files may have been compacted since, or not staged
    # because the log had them already
    known = context.publishing.publisher.committed(path, mark)
    return log_files(path, mark.batch) if known and known.batch >= mark.batch else []


def _refuse_unreachable_lake(results: list[Published]) -> None:
    """Raise LakeUnavailableError if no table at all could be merged."""
    away = [r for r in results if r.error.startswith(f"{ErrorCode.LAKE_UNAVAILABLE}:")]
    if len(results) > 1 and len(away) == len(results):
        raise LakeUnavailableError(
            "no table can be merged",
            evidence=away[0].error,
            next_step="check that the lake can be reached and written to, and has room",
        )


def _written(entries: Iterable[TableEntry], results: dict[str, Published]) -> set[str]:
    """Return the logs that have this batch."""
    return {
        entry.table.name
        for entry in entries
        if entry.table.role is Role.LOG and results[entry.table.name].outcome is not Outcome.PARKED
    }
