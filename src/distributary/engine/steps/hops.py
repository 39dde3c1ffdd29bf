"""Step `stage`: sort the records, resolve new keys, and write each key's records to files."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from distributary.config.pipeline_config import PipelineConfig
from distributary.decode.change.change_formats import decoded_together
from distributary.engine.context import RunContext
from distributary.engine.planning.strategies import strategy_of
from distributary.engine.planning.table_book import Pending, primary_role
from distributary.engine.steps.aggregate_commits import aggregate_entries
from distributary.engine.steps.commits import Reach
from distributary.engine.steps.merges import derived_entries
from distributary.errors import AccountingError, ExpectationError
from distributary.model.change import ChangeFacts
from distributary.model.deadletter import CONTENT, content_keys
from distributary.model.manifest import Counts, Manifest, StagedFile, TableEntry
from distributary.model.routing import Exchange, StageOrder, planned_exchange
from distributary.model.rules.expectation import Action
from distributary.model.table import STAGING, Role, TablePlan
from distributary.model.table_format import TABLE_FORMATS
from distributary.source.base import BatchInput, is_local, parallelism
from distributary.spark.session import named, spark_failed
from distributary.stage.exchange import documents_batch, documents_of, spread
from distributary.stage.job import (
    Staged,
    TaskPlanFile,
    run_exchanged,
    run_land,
    run_sort,
    run_tasks,
)
from distributary.stage.land import without_copies
from distributary.stage.packets import Again, Targets
from distributary.stage.task_outputs import TICKET, new_attempt, prefix, ticket
from distributary.stage.task_plan import TaskPlan
from distributary.store.base import at, reaching

_MOST_TRIES = 5
_DEAD_WORKER = re.compile(
    r"Python worker exited unexpectedly|EOFException|Python worker failed|ExecutorLostFailure"
    # memory of Python and Arrow, not of the JVM
    r"|(?:\b|Arrow)MemoryError"
)


@dataclass(frozen=True, slots=True)
class Begun:
    """A stage whose first hop is under way."""

    source: BatchInput
    order: StageOrder
    plan: TaskPlan
    sorting: Future[Staged]


@dataclass(frozen=True, slots=True)
class Stages:
    """The result of a stage: files and counts of all records."""

    staged: Staged
    tries: int
    seconds: float
    now_us: int
    """The time of the batch in microseconds since 1970."""

    def manifest(
        self,
        context: RunContext,
        batch: int,
        source: BatchInput,
        pending: Pending,
        reach: Reach | None,
    ) -> Manifest:
        """Return the results as the manifest that decides the batch.

        `reach` holds the tables that already have this batch from an attempt whose other files were
        lost.
        """
        kept: Mapping[str, TableEntry] = {} if reach is None else reach.kept
        state = dict(source.decided_end(self.staged.last))
        if context.progress.lane != "stream":
            # a letter that fails again is not a new letter: its row is updated when the batch is
            # settled
            state["failed"] = self._letters_that_failed(context)
        tables = context.planner.book.tables
        entries = tuple(
            TableEntry(
                table=tables[name],
                files=tuple(self.staged.files.get(name, ())),
                records=records,
                changes=tuple(pending.changes.get(name, ())),
                events=self.staged.changes.get(name),
                rules=self.staged.rules.get(name, ()),
                filtered=self.staged.filtered[name],
            )
            for name, records in sorted(self.staged.records.items())
        )
        again = [e for e in entries if e.table.name in kept]
        # in this attempt, all events that the log has already look like copies
        copies = sum(
            kept[e.table.name].records - e.records for e in again if e.table.role is Role.LOG
        )
        drop_entries(again)
        dead = self.staged.dead
        if reach is not None and reach.dead_letters is not None:
            dead = Counter(reach.dead_letters)
        entries = tuple(kept.get(entry.table.name, entry) for entry in entries)
        entries += derived_entries(context.config, entries, tables, pending)
        entries += aggregate_entries(entries, tables, pending)
        self._leave_untouched(context, pending, {e.table.name for e in entries})
        draft = Manifest(
            pipeline=context.config.name,
            life=context.progress.checkpoint.life,
            batch=batch,
            epoch=context.progress.claim.epoch,
            ranges=source.ranges,
            tables=entries,
            counts=Counts(),
            dead_letters=dict(dead),
            schemas=tuple(pending.uses),
            created_at=datetime.now(UTC).isoformat(),
            lane=context.progress.lane,
            source_state=state,
            source_start=dict(source.start),
            stage_seconds=round(self.seconds, 3),
            primary_role=primary_role(context.config),
            bytes_read=self.staged.bytes,
            # the age of replayed letters is no lag
            newest_us=(self.staged.newest_us or None)
            if context.progress.lane == "stream"
            else None,
            heartbeats=self._heartbeats(context),
            batch_us=self.now_us,
            erased=tuple(sorted(self.staged.erased, key=lambda r: (*r[:3], r[3] or 0))),
        )
        counts = Counts(
            read=source.records if source.counted else self.staged.seen,
            written=sum(e.records for e in draft.primary()),
            dead_lettered=sum(dead.values()),
            skipped=self.staged.skipped - copies,
            filtered=sum(e.filtered for e in draft.primary()),
        )
        return replace(draft, counts=counts)

    def _heartbeats(self, context: RunContext) -> dict[str, int]:
        """Return the time of each connector's newest heartbeat; none was sent after it was read."""
        if context.progress.lane != "stream":
            return {}
        now = time.time_ns() // 1000
        found = self.staged.newest_heartbeats(context.planner.task_plan())
        return {topic: min(moment, now) for topic, moment in found.items()}

    def _letters_that_failed(self, context: RunContext) -> dict[str, tuple[str, str]]:
        """Return why dead letters failed again, by content, because older ids are not reliable."""
        name = context.config.tables.dead_letters
        folder = at(context.planner.book.tables[name].path)
        failed: dict[str, tuple[str, str]] = {}
        for file in self.staged.files.pop(name, []):
            columns = [*CONTENT, "error_code", "error_message"]
            content = pa.BufferReader(folder.read(file.path))
            rows = pq.read_table(content, columns=columns)
            for key, row in zip(content_keys(rows), rows.to_pylist(), strict=True):
                failed[key] = (row["error_code"], row["error_message"])
            folder.remove(file.path)
        self.staged.records.pop(name, None)
        return failed

    @staticmethod
    def _leave_untouched(context: RunContext, pending: Pending, touched: set[str]) -> None:
        """Give back changes of tables without rows in this batch, for a later batch."""
        later = {k: pending.changes.pop(k) for k in pending.changes.keys() - touched}
        context.planner.book.give_back(Pending(changes=later))


def stage_records(
    context: RunContext,
    batch: int,
    source: BatchInput,
    begun: Begun | None = None,
    *,
    now_us: int | None = None,
) -> Stages:
    """Stage a batch; remove the files between the two hops afterwards, also after an error.

    `now_us` is the time of a batch that was decided before.
    """
    began = time.monotonic()
    order = stage_order(context, batch, source, now_us=now_us) if begun is None else begun.order
    staged: Staged | None = None
    try:
        if order.folder:
            staged, tries = _sorted(context, batch, source, order, begun)
            _check_seen(staged, source, batch)
            _landed(context, staged, order)
        else:
            staged, tries = _exchanged(context, batch, source, order, begun)
            _check_seen(staged, source, batch)
        _drop_copies(context, staged, order)
        _refuse_broken(context, staged, order)
        # the ticket is removed: from here on, the files may belong to a decided batch
        with reaching(order.folder):
            for path in Path(order.folder).glob(f"*{TICKET}") if order.folder else ():
                path.unlink()
    except Exception:
        if staged is not None:
            drop_files(context, staged)
        raise
    finally:
        if order.folder:
            shutil.rmtree(order.folder, ignore_errors=True)
    return Stages(staged, tries, time.monotonic() - began, order.now_us)


def choose_exchange(wanted: str, spark: SparkSession, folder: Path) -> Exchange:
    """Choose the exchange, by testing which files the workers can see."""
    planned = planned_exchange(wanted, local=is_local(spark))
    if planned is not None:
        return planned
    path = folder / f"seen-{uuid.uuid4().hex}"
    tasks = 2 * parallelism(spark)

    def looks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield documents_batch([("seen", json.dumps(os.path.exists(path)))])

    with reaching(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        path.touch()
    try:
        answers = documents_of(run_tasks(spark, tasks, looks))
        seen = [json.loads(answer) for _, answer in answers]
    except PySparkException as error:
        raise spark_failed(error) from error
    finally:
        path.unlink(missing_ok=True)
    why = f"{sum(seen)} of {len(seen)} tasks saw a file that the driver wrote to {folder}"
    return Exchange("disk" if all(seen) else "spark", why)


def begin_stage(
    context: RunContext, source: BatchInput, plan: TaskPlan, order: StageOrder
) -> Callable[[], Staged]:
    """Begin a stage ahead of time: hop one, or both hops if they are one job.

    The plan is sent here, by the thread that runs the batches.
    """
    sent = context.staging.sent(plan)
    if order.folder:
        return partial(hop_one, context.spark, source, sent, plan, order)
    return partial(_job, context, source, sent, plan, order, targets_of(context, plan))


def targets_of(context: RunContext, plan: TaskPlan) -> Targets:
    """Assign keys to tasks by the weights of the previous batch.

    All copies of a change go to one task.
    """
    partitions = parallelism(context.spark)
    if decoded_together(plan.changes):
        return Targets(partitions)
    return Targets.by_weight(context.staging.weights, partitions)


def _job(
    context: RunContext,
    source: BatchInput,
    sent: TaskPlanFile,
    plan: TaskPlan,
    order: StageOrder,
    targets: Targets,
    again: Again | None = None,
) -> Staged:
    """Run both hops as one job."""
    frame = source.frame(context.spark)
    job = partial(run_exchanged, frame, source.reader, sent, targets, again)
    return _hop(job, order, list(plan.output.tables.values()), context.spark, "sort and land")


def _exchanged(
    context: RunContext,
    batch: int,
    source: BatchInput,
    order: StageOrder,
    begun: Begun | None,
) -> tuple[Staged, int]:
    """Run the job over all records, then over records of new keys, or all again.

    All records are processed again if an answer changes a table that has files of this batch: they
    would lack a column, or have one of another type.
    """
    staged: Staged | None = None
    again: Again | None = None
    for number in range(1, _MOST_TRIES + 1):
        plan = begun.plan if begun is not None and number == 1 else context.planner.task_plan()
        if begun is not None and number == 1:
            found = begun.sorting.result()
        else:
            targets = targets_of(context, plan)
            found = _job(context, source, context.staging.sent(plan), plan, order, targets, again)
        if staged is None:
            staged, first = found, plan
        else:
            staged.merge(found)
            staged.runs += found.runs
        try:
            _answer(context, found)
        except Exception:
            drop_files(context, staged)
            raise
        # the records of these keys were not landed yet
        new = frozenset(one.key for one in found.unresolved(plan))
        if not new and not _outdated(context, staged, plan):
            context.staging.weights = dict(staged.records)
            return staged, number
        again = Again.after(first, new)
        if _outdated(context, staged, plan):
            drop_files(context, staged)
            staged, again = None, None
    raise _incomplete_plan(context, batch)


def _answer(context: RunContext, staged: Staged) -> None:
    """Resolve new keys and record new schemas."""
    context.planner.learn(staged.shapes, staged.carried)
    if missing := staged.unresolved(context.planner.task_plan()):
        context.planner.resolve(missing)
    context.planner.follow_newest(staged.newest())


def _outdated(context: RunContext, staged: Staged, used: TaskPlan) -> bool:
    """Return whether the plan of a landed table or the route of a landed key has changed."""
    now = context.planner.task_plan()
    if now is used:
        return False
    keys = {r.key for run in staged.runs for r in run.ranges} & used.routing.routes.keys()
    return any(now.routing.routes.get(key) != used.routing.routes[key] for key in keys) or any(
        now.output.tables[name].columns != used.output.tables[name].columns
        for name in staged.files
        if name in used.output.tables
    )


def _incomplete_plan(context: RunContext, batch: int) -> AccountingError:
    return AccountingError(
        f"the plan for batch {batch} is still incomplete after {_MOST_TRIES} attempts",
        where=f"pipeline {context.config.name}",
        next_step="run again with --debug and report the log",
    )


def hop_one(
    spark: SparkSession,
    source: BatchInput,
    sent: TaskPlanFile,
    plan: TaskPlan,
    order: StageOrder,
) -> Staged:
    """Read and sort the records of a batch."""
    tables = [plan.output.tables[plan.output.bronze]] if plan.output.bronze else []
    job = partial(run_sort, spark, source.tasks, source.scan, source.reader, sent)
    return _hop(job, order, tables, spark, "sort")


def _sorted(
    context: RunContext,
    batch: int,
    source: BatchInput,
    order: StageOrder,
    begun: Begun | None,
) -> tuple[Staged, int]:
    """Run hop one, again if an answer changes the keys of records (unions of Avro)."""
    for number in range(1, _MOST_TRIES + 1):
        if begun is not None and number == 1:
            # an older plan is good enough, because unknown keys are resolved below
            staged = begun.sorting.result()
        else:
            plan = context.planner.task_plan()
            staged = hop_one(context.spark, source, context.staging.sent(plan), plan, order)
        try:
            _answer(context, staged)
        except Exception:
            drop_files(context, staged)
            raise
        if not staged.unresolved(context.planner.task_plan()):
            return staged, number
        drop_files(context, staged)
    raise _incomplete_plan(context, batch)


def _landed(context: RunContext, staged: Staged, order: StageOrder) -> None:
    plan = context.planner.task_plan()
    sent = context.staging.sent(plan)
    tasks = parallelism(context.spark)
    related = decoded_together(plan.changes)
    # events that must be decoded together are adjacent
    loads = spread(staged.runs, staged.letters, plan.routing.routes, tasks=tasks, by_run=related)
    names = {name for load in loads for name in load.tables} | {plan.output.unified}
    tables = [
        plan.output.tables[n] for n in (*names, plan.output.dead_letters) if n in plan.output.tables
    ]
    job = partial(run_land, context.spark, loads, sent)
    staged.merge(_hop(job, order, tables, context.spark, "land"))


def _refuse_broken(context: RunContext, staged: Staged, order: StageOrder) -> None:
    """Raise ExpectationError if rows break a rule with the action `fail`."""
    broken = [
        (count, table)
        for table, counts in staged.rules.items()
        for count in counts
        if count.action is Action.FAIL and count.violated
    ]
    # a replayed letter stays a letter instead
    if not broken or order.lane != "stream":
        return
    worst, table = max(broken, key=lambda pair: (pair[0].violated, pair[1]))
    others = f"; {len(broken) - 1} more rules or tables" if len(broken) > 1 else ""
    raise ExpectationError(
        f"rows of table {table} break the rule {worst.rule}, which says fail",
        where=f"pipeline {context.config.name}, batch {order.batch}",
        evidence=f"{worst.violated:,} of {worst.checked:,} rows, "
        f"the first at {worst.example}{others}",
        next_step="fix what the producer sends or the rule, or set its action to warn"
        + (" or dead_letter" if strategy_of(context.config).rejects_rows else ""),
        rule=worst.rule,
        table=table,
    )


def _drop_copies(context: RunContext, staged: Staged, order: StageOrder) -> None:
    """Remove copies of events that two tasks have both landed."""
    plan = context.planner.task_plan()
    if not decoded_together(plan.changes):
        return
    for name, files in staged.files.items():
        if plan.output.tables[name].role is Role.LOG and len(files) > 1:
            staged.files[name], copies = without_copies(plan.output.tables[name], files, order)
            staged.records[name] -= copies.total()
            staged.skipped += copies.total()
            staged.changes[name] -= ChangeFacts(copies)


def _hop(
    job: Callable[[StageOrder], Staged],
    order: StageOrder,
    tables: Sequence[TablePlan],
    spark: SparkSession,
    step: str,
) -> Staged:
    """Run a named job that writes to these tables."""
    with named(spark, pipeline=order.pipeline, batch=order.batch, step=step, attempt=order.attempt):
        return _attempted_safely(job, order, tables)


def _attempted_safely(
    job: Callable[[StageOrder], Staged], order: StageOrder, tables: Sequence[TablePlan]
) -> Staged:
    """Run a job; remove its files if it fails.

    If a record has killed its worker or exhausted its memory, run the job again with every decoder
    in a child process.
    """
    try:
        return _attempted(job, order, tables)
    except Exception as error:
        if not _DEAD_WORKER.search(str(error)):
            raise
    again = replace(order, guarded=True, attempt=new_attempt(order.pipeline))
    return _attempted(job, again, tables)


def _attempted(
    job: Callable[[StageOrder], Staged], order: StageOrder, tables: Sequence[TablePlan]
) -> Staged:
    if order.folder:
        with reaching(order.folder):
            Path(order.folder).mkdir(parents=True, exist_ok=True)
            Path(ticket(order)).touch()
    try:
        return job(order)
    except BaseException:
        # tasks that still run remove the files that they write from now on
        if order.folder:
            Path(ticket(order)).unlink(missing_ok=True)
        drop_attempt(prefix(order), tables)
        raise


def drop_attempt(names: str, tables: Iterable[TablePlan]) -> None:
    """Remove the files of an attempt from these tables."""
    for table in tables:
        plain = TABLE_FORMATS[table.format].stages_apart
        folder = at(f"{table.path}/{STAGING}" if plain else table.path)
        with suppress(OSError):
            for file in folder.files(recursive=plain or bool(table.partition_by)):
                if file.name.rpartition("/")[2].startswith(names):
                    folder.remove(file.name)


def drop_undecided(context: RunContext) -> None:
    """Remove the sorted runs and staged files of a killed process."""
    runs, lake = (
        context.progress.checkpoint.runs(context.progress.lane),
        context.config.lake.local_path,
    )
    for path in runs.glob(f"*/*{TICKET}"):
        names = path.name.removesuffix(TICKET)
        drop_attempt(names, context.planner.book.tables.values())
        # the tables of types are not known yet
        for file in lake.glob(f"*/{names}*") if lake is not None else ():
            file.unlink(missing_ok=True)
    for attempt in runs.glob("*"):
        shutil.rmtree(attempt, ignore_errors=True)


def stage_order(
    context: RunContext, batch: int, source: BatchInput, *, now_us: int | None = None
) -> StageOrder:
    """Return the stage order for the tasks of a batch; `now_us` is its time if it was decided."""
    attempt, lake = new_attempt(context.config.name), context.config.lake
    return StageOrder(
        pipeline=context.config.name,
        lane=context.progress.lane,
        batch=batch,
        attempt=attempt,
        now_us=time.time_ns() // 1000 if now_us is None else now_us,
        folder=""
        if context.staging.exchange == "spark"
        else str(context.progress.checkpoint.runs(context.progress.lane) / attempt),
        lake=lake.address,
        checkpoint=lake.checkpoint,
        storage_options=lake.options_of_tasks,
        mask_key=mask_key(context.config),
        life=context.progress.checkpoint.life,
        identities=source.identities,
        last_records=source.end_after is not None,
    )


def mask_key(config: PipelineConfig) -> bytes:
    """Return the key of masks; empty if there is none."""
    masking = config.masking
    secret = None if masking is None else masking.key
    return b"" if secret is None else secret.get_secret_value().encode()


def _check_seen(staged: Staged, source: BatchInput, batch: int) -> None:
    """Raise AccountingError unless the tasks' count equals the source's count."""
    agree = staged.seen == source.records if source.counted else staged.seen <= source.records
    if not agree:
        raise AccountingError(
            f"the source holds {source.records:,} records for batch {batch}, the tasks have read "
            f"{staged.seen:,}",
            next_step="the source changed under the batch: run it again",
        )


def drop_entries(entries: Iterable[TableEntry]) -> None:
    """Remove staged files that no table will commit."""
    for entry in entries:
        _remove(entry.table, entry.files)


def _remove(table: TablePlan, files: Iterable[StagedFile]) -> None:
    folder = at(table.path)
    for file in files:
        # files that stay are removed by `maintain` or `clean`
        with suppress(OSError):
            folder.remove(file.path)


def drop_files(context: RunContext, staged: Staged) -> None:
    """Remove the files of a stage that will not be committed."""
    for name, files in staged.files.items():
        _remove(context.planner.book.tables[name], files)
