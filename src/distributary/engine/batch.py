"""The six steps of a batch: source, plan, stage, manifest, publish, settle."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from distributary.delta.removal.erased_records import write_later
from distributary.engine.context import RunContext
from distributary.engine.kill_points import KillPoint, reached
from distributary.engine.monitor import Lag
from distributary.engine.planning.strategies import strategy_of
from distributary.engine.planning.table_book import Pending
from distributary.engine.steps.commits import Reach, publish_all, reach_of, refuse_foreign_marks
from distributary.engine.steps.hops import (
    Begun,
    Stages,
    begin_stage,
    drop_entries,
    drop_files,
    stage_order,
    stage_records,
)
from distributary.engine.steps.merged_events import forget_merged
from distributary.engine.steps.merges import DERIVED
from distributary.engine.steps.whole_transactions import Held, HeldBack, whole_part
from distributary.errors import AccountingError, DistributaryError, DivergedError, StagedFileError
from distributary.model import layout
from distributary.model.manifest import Counts, Manifest, source_hash
from distributary.model.table import Role
from distributary.observe.events import (
    BatchSettled,
    BatchStarted,
    RuleBroken,
    SchemaSeen,
    StepFinished,
    TableWritten,
)
from distributary.observe.ledger.recording import BatchTimes
from distributary.observe.status.pulse import HeldRecords
from distributary.publish.base import Outcome, Published
from distributary.publish.parking import in_lake, parked
from distributary.source.base import BatchInput, Position
from distributary.spark.session import cancel
from distributary.store.base import REQUESTS
from distributary.store.disk import sync_file_system

# Reading ahead: while the driver decides and commits a batch, the workers read and sort the records
# of the next one. Sorted records are not visible to anybody, so a failed batch or a stopped run
# drops them.

Following = Callable[[int, Position], BatchInput | None]
"""A function that opens the batch beginning at a position; None if there are no records yet."""


class ReadAhead:
    """The work on the next batch, at most one. Used by the thread that runs the batches."""

    def __init__(self, context: RunContext, following: Following) -> None:
        self._context = context
        self._following = following
        self._ahead: Begun | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="distributary-ahead")

    def begin(self, batch: int, start: Position) -> None:
        """Begin to sort the batch at a position, if it has records."""
        context = self._context
        if strategy_of(context.config).merges or context.config.shard is not None:
            # not for change data, because the workers merge tables meanwhile; nor for shards,
            # because their jobs wait for each other at a cut
            return
        try:
            source = self._following(batch, start)
        except (DistributaryError, PySparkException):
            # the source is asked again at the batch's turn, and an error is reported then
            return
        if source is None:
            return
        order = stage_order(context, batch, source)
        context.planner.follow_envelope()
        plan = context.planner.task_plan()
        work = begin_stage(context, source, plan, order)
        self._ahead = Begun(source, order, plan, self._pool.submit(work))

    def input(self, batch: int, end: Position) -> BatchInput | None:
        """Return the opened batch from `start`, if it was begun and ends at `end`."""
        ahead = self._ahead
        if ahead is None or ahead.order.batch != batch or ahead.source.end != end:
            return None
        return ahead.source

    def take(self, source: BatchInput) -> Begun | None:
        """Return the work that was begun on this batch; drop work on any other."""
        ahead = self._ahead
        if ahead is None or ahead.source is not source:
            self.drop()
            return None
        self._ahead = None
        return ahead

    def drop(self) -> None:
        """Cancel the work that was begun, and remove its files."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return
        order, sorting = ahead.order, ahead.sorting
        if not sorting.done():
            # if the JVM has ended, so has the job
            with suppress(Py4JError, PySparkException, OSError):
                cancel(self._context.spark, order.attempt)
        wait([sorting])
        if sorting.exception() is None:
            drop_files(self._context, sorting.result())
        if order.folder:
            shutil.rmtree(order.folder, ignore_errors=True)

    def close(self) -> None:
        """Drop everything at the end of the run."""
        self.drop()
        self._pool.shutdown()


@dataclass(frozen=True, slots=True)
class Settled:
    """A settled batch: its results and its end."""

    manifest: Manifest
    counts: Counts
    published: tuple[Published, ...]
    seconds: float


def _known(context: RunContext, batch: int) -> Manifest | None:
    """Return a batch that was decided before, with paths checked: others may write to the lake."""
    found = context.progress.manifests.read(batch)
    if found is None:
        return None
    lake = context.config.lake.address
    return replace(found, tables=tuple(in_lake(entry, lake) for entry in found.tables))


StageFunction = Callable[[RunContext, int, BatchInput], Stages]
"""A function that stages a batch whose records do not come from the source."""


def run_batch(
    context: RunContext,
    batch: int,
    source: BatchInput,
    ahead: ReadAhead | None = None,
    *,
    stage: StageFunction | None = None,
) -> Settled:
    """Run one batch from source to tables, exactly once, also after crashes."""
    clock = _Clock(context, batch, source.expected)
    manifest = _known(context, batch)
    fresh = manifest is None
    if manifest is None:
        _refuse_other_records(context, batch, source)
        manifest, source = _decide(context, batch, source, clock, ahead=ahead, stage=stage)
    else:
        _same_records(manifest, source)
        refuse_foreign_marks(context, manifest, fresh=False)
    try:
        published = publish_all(context, manifest, fresh=fresh)
    except StagedFileError:
        # stage the records again; tables that have the batch skip it. If files disappear again, the
        # run retries with pauses
        reach = reach_of(context, manifest)
        if manifest.epoch == context.progress.claim.epoch:
            # the changes were only in the manifest that is replaced
            context.planner.book.give_back(_pending_of(manifest))
        manifest, source = _decide(
            context, batch, source, clock, ahead=ahead, reach=reach, stage=stage
        )
        if context.config.lake.local_path is not None:
            # a commit without an answer may still reach the store
            drop_entries(reach.free)
        published = publish_all(context, manifest, fresh=True)
    clock.step("publish")
    settled = _settle(context, manifest, published, source, clock)
    forget_merged(context, [e.table.name for e in manifest.tables if e.table.role is Role.LOG])
    return settled


def _pending_of(manifest: Manifest) -> Pending:
    """Return the changes of schemas and columns in a manifest."""
    changes = {entry.table.name: list(entry.changes) for entry in manifest.tables if entry.changes}
    return Pending(changes, list(manifest.schemas))


def _decide(
    context: RunContext,
    batch: int,
    source: BatchInput,
    clock: _Clock,
    *,
    ahead: ReadAhead | None,
    reach: Reach | None = None,
    stage: StageFunction | None = None,
) -> tuple[Manifest, BatchInput]:
    """Plan and stage a batch, then write its manifest; return it with the records of the batch.

    `reach` is given for a batch that was decided before: it says which tables have the batch. Of
    change data, the batch may have fewer records than `source`, and raises HeldBack if it has none.
    """
    context.planner.begin_batch()
    clock.step("plan")
    reached(KillPoint.AFTER_PLAN, batch)

    begun = ahead.take(source) if ahead is not None else None
    if stage is None:
        decided_us = None if reach is None else reach.batch_us
        stages = stage_records(context, batch, source, begun, now_us=decided_us)
        if reach is None and context.progress.settled_ranges(batch) is None:
            source, stages, held = _with_whole_transactions(context, batch, source, stages)
            clock.held = held.for_status()
    else:
        stages = stage(context, batch, source)
    clock.stages = stages.tries
    clock.step("stage")
    if ahead is not None:
        # the rest is done by the driver alone
        ahead.begin(batch + 1, source.end)
    reached(KillPoint.AFTER_STAGE, batch)

    try:
        return _decided(context, batch, source, clock, stages, reach), source
    except Exception:
        # a manifest that may exist names these files
        if not context.progress.manifests.in_doubt:
            drop_files(context, stages.staged)
        raise


def _with_whole_transactions(
    context: RunContext, batch: int, source: BatchInput, stages: Stages
) -> tuple[BatchInput, Stages, Held]:
    """Stage a batch again until it has whole transactions; raise HeldBack if it would be empty."""
    while True:
        try:
            part = whole_part(context, source, stages)
        except Exception:
            drop_files(context, stages.staged)
            raise
        if part.source is source:
            return source, stages, part.held
        drop_files(context, stages.staged)
        if part.source is None:
            raise HeldBack(part.held)
        source = part.source
        stages = stage_records(context, batch, source)
        if part.decided:
            return source, stages, part.held


def _decided(
    context: RunContext,
    batch: int,
    source: BatchInput,
    clock: _Clock,
    stages: Stages,
    reach: Reach | None,
) -> Manifest:
    """Check the source, then write the manifest."""
    source.verify(decided=reach is not None)
    pending = context.planner.book.take_pending()
    try:
        manifest = _written_down(context, batch, source, stages, pending, reach)
    except Exception:
        if not context.progress.manifests.in_doubt:
            context.planner.book.give_back(pending)
        raise
    clock.step("manifest")
    reached(KillPoint.AFTER_MANIFEST, batch)
    return manifest


def _written_down(
    context: RunContext,
    batch: int,
    source: BatchInput,
    stages: Stages,
    pending: Pending,
    reach: Reach | None,
) -> Manifest:
    """Check the counts and the tables, then write the manifest."""
    manifest = stages.manifest(context, batch, source, pending, reach)
    if not manifest.counts.balanced:
        raise AccountingError(
            "the batch does not add up and was not committed",
            where=f"pipeline {context.config.name}, batch {batch}",
            evidence=manifest.counts.equation().replace("=", "!="),
            next_step="run it again; if the error stays, it is a defect: report it with this line",
        )
    # every reason to refuse the batch is checked before it is decided
    refuse_foreign_marks(context, manifest, fresh=True)
    context.progress.claim.check()
    # the manifest names these files, so they must survive a crash that it survives
    if context.config.lake.local_path is not None:
        sync_file_system(context.config.lake.local_path)
    if reach is None:
        context.progress.manifests.create(manifest)
    else:
        context.progress.manifests.replace(manifest)
    return manifest


def _settle(
    context: RunContext,
    manifest: Manifest,
    published: tuple[Published, ...],
    source: BatchInput,
    clock: _Clock,
) -> Settled:
    """Write the ledger's row, send the events, and remove what is no longer needed."""
    reached(KillPoint.BEFORE_SETTLE, manifest.batch)
    context.progress.claim.check()
    if manifest.erased:
        name = layout.folder_name(f"{manifest.app_id}-{manifest.batch}")
        write_later(context.config.lake.address, name, manifest.erased)
    parked_tables = {p.table for p in published if p.outcome is Outcome.PARKED}
    own = (e for e in manifest.primary() if e.table.name in parked_tables)
    counts = manifest.with_parked(sum(entry.records for entry in own))
    lag = context.reports.lag(source, manifest.newest_us)
    context.ledger.record(
        manifest,
        published,
        times=clock.times(),
        counts=counts,
        lag_records=lag.records,
        lag_seconds=lag.seconds,
        event_seconds=lag.event_seconds,
        stages=clock.stages,
        requests=clock.requests or None,
    )
    context.progress.manifests.settle(manifest.batch)
    context.progress.manifests.prune(keep=context.config.run.keep_manifests)
    # a merged table does not exist until an event has a key
    derived = {e.table.name for e in manifest.tables if e.table.role in DERIVED}
    done = [
        p.table
        for p in published
        if p.outcome is not Outcome.PARKED and (p.version is not None or p.table not in derived)
    ]
    if clock.stages:
        context.planner.committed(done)
    else:
        context.planner.reread(done)
    # from the manifest, because the planner does not know the tables of an earlier process's batch
    there = set(done)
    context.register(e.table for e in manifest.tables if e.table.name in there)
    clock.step("settle")
    seconds = time.monotonic() - clock.began
    settled = Settled(manifest, counts, published, seconds)
    _announce(context, settled, lag, clock)
    return settled


def _announce(context: RunContext, settled: Settled, lag: Lag, clock: _Clock) -> None:
    manifest, name = settled.manifest, context.config.name
    for use in manifest.schemas:
        context.reports.bus.publish(
            SchemaSeen(
                pipeline=name,
                batch=manifest.batch,
                type=use.type,
                table=use.table,
                schema_id=use.schema_id,
                label=use.label,
                changes=tuple(change.describe() for change in use.changes),
            )
        )
    context.reports.publish_registry_calls()
    context.reports.bus.publish(
        BatchSettled(
            pipeline=name,
            batch=manifest.batch,
            counts=settled.counts,
            rows=sum(entry.rows for entry in manifest.tables),
            tables=len(manifest.tables),
            seconds=settled.seconds,
            lane=manifest.lane,
            lag_records=lag.records,
            lag_seconds=lag.seconds,
            event_seconds=lag.event_seconds,
            dead_letters=dict(manifest.dead_letters),
            steps=clock.seconds,
            written=_written(settled),
            broken_rules=_broken_rules(manifest),
            lag_by_partition=lag.by_partition,
            life=manifest.life,
            bytes_read=manifest.bytes_read,
            requests=clock.requests,
            topics=tuple(dict.fromkeys(r.topic for r in manifest.ranges)),
            parked_tables=tuple(dict.fromkeys(p.table for p in parked(context.publishing.parking))),
            heartbeats={
                topic: datetime.fromtimestamp(sent_us / 1e6, UTC)
                for topic, sent_us in manifest.heartbeats.items()
            },
            held=clock.held,
        )
    )


def _written(settled: Settled) -> tuple[TableWritten, ...]:
    done = {p.table: p for p in settled.published}
    return tuple(
        TableWritten(
            table=entry.table.name,
            role=str(entry.table.role),
            rows=entry.rows,
            bytes=sum(file.size for file in entry.files),
            files=len(entry.files),
            outcome=str(result.outcome),
            version=result.version,
            created=not entry.table.exists and result.version == 0,
        )
        for entry in settled.manifest.tables
        if (result := done.get(entry.table.name)) is not None
    )


def _broken_rules(manifest: Manifest) -> tuple[RuleBroken, ...]:
    return tuple(
        RuleBroken(
            table=entry.table.name,
            rule=count.rule,
            action=str(count.action),
            checked=count.checked,
            violated=count.violated,
            example=count.example,
        )
        for entry in manifest.tables
        for count in entry.rules
        if count.violated
    )


def _refuse_other_records(context: RunContext, batch: int, source: BatchInput) -> None:
    """Raise DivergedError if the ledger has settled this batch number with other records."""
    if batch > context.progress.newest_settled:
        return
    done = context.ledger.settled(
        context.config.name, context.progress.checkpoint.life, context.progress.lane, batch
    )
    if done is not None and done != source_hash(source.ranges):
        raise DivergedError(
            f"batch {batch} was finished before with other records",
            where=context.progress.checkpoint.store.address,
            evidence=f"the ledger has batches up to {context.progress.newest_settled}; "
            "the checkpoint is older and would divide the records into other batches",
            next_step="put the newest copy of the checkpoint back, or start a new life with "
            "`distributary reset`, which reads the source again",
        )


def _same_records(manifest: Manifest, source: BatchInput) -> None:
    """Raise DivergedError if an existing manifest is about other records than the batch."""
    if source.ranges and manifest.source_hash != source_hash(source.ranges):
        raise DivergedError(
            f"the manifest of batch {manifest.batch} is about other records",
            evidence=f"manifest {manifest.source_hash}, source {source_hash(source.ranges)}",
            next_step="the checkpoint mixes files of two copies: restore one copy completely",
        )


class _Clock:
    """Measures the steps of a batch and sends events about them."""

    def __init__(self, context: RunContext, batch: int, records: int | None) -> None:
        self.began = self._last = time.monotonic()
        self.started_at = datetime.now(UTC)
        self.stages = 0
        self.held: HeldRecords | None = None
        """The records that the batch has held back."""
        self._asked = REQUESTS.total()
        self._context, self._batch = context, batch
        self.seconds: dict[str, float] = {}
        context.reports.bus.publish(
            BatchStarted(
                pipeline=context.config.name,
                batch=batch,
                lane=context.progress.lane,
                records=records,
            )
        )

    def step(self, name: str) -> None:
        """Note that a step has ended."""
        now = time.monotonic()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now
        self._context.reports.bus.publish(
            StepFinished(
                pipeline=self._context.config.name,
                batch=self._batch,
                step=name,
                seconds=self.seconds[name],
            )
        )

    @property
    def requests(self) -> int:
        """Return the number of requests to buckets since the batch began.

        Those of the read-ahead are included.
        """
        return REQUESTS.total() - self._asked

    def times(self) -> BatchTimes:
        """Return the times for the ledger."""
        return BatchTimes(
            started_at=self.started_at,
            plan=self.seconds.get("plan", 0.0),
            stage=self.seconds.get("stage", 0.0),
            manifest=self.seconds.get("manifest", 0.0),
            publish=self.seconds.get("publish", 0.0),
        )
