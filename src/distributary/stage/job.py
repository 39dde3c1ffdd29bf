"""The two Spark jobs of a stage, sort and land, and the facts that tasks send to the driver."""

from __future__ import annotations

import hashlib
import pickle
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, assert_never, runtime_checkable

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from distributary.decode.json.kinds import together
from distributary.delta.parquet import UPLOADS, WRITTEN
from distributary.model.cache import Cache
from distributary.model.change import ChangeFacts
from distributary.model.facts import (
    DeadLettersCounted,
    EventsCounted,
    Fact,
    FileStaged,
    LettersFile,
    RecordsErased,
    RecordsFiltered,
    RecordsRead,
    RecordsSkipped,
    RulesCounted,
    SchemaCarried,
    ShapeSeen,
    SortedRun,
)
from distributary.model.manifest import StagedFile
from distributary.model.record import LastRecords, Shapes
from distributary.model.routing import Rejected, RouteKey, StageOrder
from distributary.model.rules.expectation import RuleCount, sum_counts
from distributary.stage.exchange import DOCUMENT, DOCUMENT_DDL, Load, facts_of
from distributary.stage.guard import keep_zip_directories
from distributary.stage.land import land
from distributary.stage.packets import PACKET_DDL, Again, Targets, land_packets, pack
from distributary.stage.partition_keys import to_partitions
from distributary.stage.sort import sort
from distributary.stage.task_outputs import ticket
from distributary.stage.task_plan import TaskPlan
from distributary.stage.unwrap import known_shapes
from distributary.store.base import TransferError, at, introduce, packed, unpacked


@dataclass(frozen=True, slots=True)
class Unresolved:
    """A key without a route, and the offset of its first record."""

    key: RouteKey
    offset: int


@dataclass(slots=True)
class Staged:
    """The facts of all tasks of a stage, summed up."""

    seen: int = 0
    skipped: int = 0
    """Records that were skipped: by policy, or because their table has them already."""
    bytes: int = 0
    """The bytes of the records' values."""
    newest_us: int = 0
    """The time of the newest record in microseconds since 1970; 0 if no record has a time."""
    last: LastRecords = field(default_factory=dict)
    """The last record of each partition, if the order asks for it."""
    files: dict[str, list[StagedFile]] = field(default_factory=lambda: defaultdict(list))
    records: Counter[str] = field(default_factory=Counter)
    """The source records of each table."""
    filtered: Counter[str] = field(default_factory=Counter)
    """The records that conditions keep out of each table."""
    erased: set[tuple[str, int, int, int | None]] = field(default_factory=set)
    """The records with an erased value."""
    dead: Counter[str] = field(default_factory=Counter)
    """The dead letters by error code."""
    changes: dict[str, ChangeFacts] = field(default_factory=lambda: defaultdict(ChangeFacts))
    """The kinds and times of the events of each log."""
    rules: dict[str, tuple[RuleCount, ...]] = field(default_factory=dict)
    """The counts of rules, by table."""
    runs: list[SortedRun] = field(default_factory=list)
    letters: list[str] = field(default_factory=list)
    """Files of dead letters that wait for hop two."""
    shapes: dict[str, Any] = field(default_factory=dict)
    """The shapes of records without a schema, by claim: a profile, or for changes a JSON Schema."""
    carried: set[str] = field(default_factory=set)
    """Schemas that records without a route have carried."""
    heartbeats: dict[str, int] = field(default_factory=dict)
    """The time of the newest heartbeat that tasks recognised, by topic, in microseconds since 1970.
    Heartbeats in Avro are recognised by their routes instead."""

    def unresolved(self, plan: TaskPlan) -> list[Unresolved]:
        """Return the keys without a route, in the order of their first records.

        Change data comes in any order: there the keys with the oldest records are first.
        """
        first: dict[RouteKey, int] = {}
        for run in self.runs:
            for r in run.ranges:
                if r.key not in plan.routing.routes:
                    first[r.key] = min(r.first_offset, first.get(r.key, r.first_offset))
        newest = self.newest() if first else {}
        in_order = sorted(first.items(), key=lambda item: (newest[item[0]], item[1], item[0]))
        return [Unresolved(key, offset) for key, offset in in_order]

    def newest(self) -> dict[RouteKey, int]:
        """Return the time of the newest change of each key."""
        times: dict[RouteKey, int] = {}
        for run in self.runs:
            for r in run.ranges:
                times[r.key] = max(r.newest, times.get(r.key, r.newest))
        return times

    def newest_heartbeats(self, plan: TaskPlan) -> dict[str, int]:
        """Return the time of the newest heartbeat by topic, of all connectors in the batch."""
        if plan.changes is None:
            return {}
        found = dict(self.heartbeats)
        routes = plan.routing.routes.items()
        keys = {key for key, route in routes if isinstance(route, Rejected) and route.heartbeat}
        for key, moment in self.newest().items() if keys else ():
            if key in keys:
                found[key.claim] = max(moment, found.get(key.claim, moment))
        return {topic: moment for topic, moment in found.items() if moment > 0}

    def merge(self, other: Staged) -> None:
        """Add the result of a second job to this one."""
        for name, files in other.files.items():
            self.files[name] += files
        self.records.update(other.records)
        self.filtered.update(other.filtered)
        self.erased |= other.erased
        self.dead.update(other.dead)
        for name, facts in other.changes.items():
            self.changes[name] += facts
        for name, counts in other.rules.items():
            self._count(name, counts)
        self.skipped += other.skipped

    def add(self, facts: Iterable[Fact]) -> None:
        """Add the facts of tasks."""
        for fact in facts:
            match fact:
                case RecordsRead():
                    self._add_read(fact)
                case SortedRun():
                    self.runs.append(fact)
                case LettersFile():
                    self.letters.append(fact.path)
                case ShapeSeen():
                    known = self.shapes.get(fact.claim)
                    shape = dict(fact.shape)
                    self.shapes[fact.claim] = shape if known is None else together(known, shape)
                case SchemaCarried():
                    self.carried.add(fact.text)
                case EventsCounted():
                    self.changes[fact.log] += fact.events
                case RulesCounted():
                    self._count(fact.table, fact.counts)
                case RecordsSkipped():
                    self.skipped += fact.count
                case RecordsFiltered():
                    self.filtered[fact.table] += fact.count
                case RecordsErased():
                    self.erased.update(fact.records)
                case DeadLettersCounted():
                    self.dead.update(fact.counts)
                case FileStaged():
                    self.records[fact.table] += fact.records
                    if fact.file is not None:
                        self.files[fact.table].append(fact.file)
                case _:
                    assert_never(fact)

    def _add_read(self, read: RecordsRead) -> None:
        self.seen += read.records
        self.skipped += read.skipped
        self.bytes += read.bytes
        self.newest_us = max(self.newest_us, read.newest_us)
        for partition, record in read.last.items():
            # Several tasks may have read ranges of one partition.
            self.last[partition] = max(record, self.last.get(partition, record))
        for topic, moment in read.heartbeats.items():
            self.heartbeats[topic] = max(moment, self.heartbeats.get(topic, moment))

    def _count(self, table: str, counts: Iterable[RuleCount]) -> None:
        self.rules[table] = sum_counts((*self.rules.get(table, ()), *counts))


_PLANS: Cache[TaskPlan] = Cache(2)
"""The plans of this worker: the batch read ahead may have another one than the current batch."""


@dataclass(frozen=True, slots=True)
class TaskPlanFile:
    """A plan in transfer to tasks: a file in the lake, named by the hash of its content."""

    folder: str
    sha256: str

    @classmethod
    def send(cls, plan: TaskPlan, folder: str) -> TaskPlanFile:
        """Write a plan for the workers; Spark Connect has no broadcast variables."""
        data = packed(pickle.dumps(plan))
        file = cls(folder, hashlib.sha256(data).hexdigest())
        at(folder).write(file.sha256, data, durable=False)
        return file

    def remove(self) -> None:
        """Delete the file, when no task needs it any more."""
        at(self.folder).remove(self.sha256)

    @property
    def value(self) -> TaskPlan:
        """Return the plan, read once per worker."""
        return _PLANS.get(self.sha256, self._read)

    def _read(self) -> TaskPlan:
        address = f"{self.folder}/{self.sha256}"
        try:
            data = at(self.folder).read(self.sha256)
        except FileNotFoundError:
            raise
        except OSError as error:
            if error.errno:
                # The driver recognizes errors of the disk by this number.
                raise
            raise TransferError(f"{address}: {error}") from None
        if hashlib.sha256(data).hexdigest() != self.sha256:
            # Unpickling runs code, so a file that another writer of the lake changed must be
            # refused.
            raise OSError(f"{address} differs from the file that the driver wrote")
        plan: TaskPlan = pickle.loads(unpacked(data))  # noqa: S301
        return plan


@runtime_checkable
class LookingReader(Protocol):
    """A reader that inspects records, and is quicker for records of a known shape."""

    def __call__(self, batches: Iterator[pa.RecordBatch], /) -> Iterator[pa.RecordBatch]:
        """Yield the records of tasks, by the tasks' numbers."""

    def knowing(self, shapes: Shapes) -> LookingReader:
        """Return a reader that marks the records which match a known shape."""


Reader = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] | LookingReader
Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""A function that runs in a worker and turns batches into facts."""


def run_tasks(spark: SparkSession, count: int, task: Task) -> list[pa.RecordBatch]:
    """Run a number of tasks and return their facts; each task gets its number.

    This uses a plain RDD job: the first job of Spark SQL takes seconds, because the JVM loads and
    compiles the planner. A Connect server only has Spark SQL.
    """
    try:
        context = spark.sparkContext
    except PySparkException:
        return _collected(spark.range(0, count, 1, count).mapInArrow(task, DOCUMENT_DDL))

    def numbered(numbers: Iterable[int]) -> Iterator[bytes]:
        for facts in task([pa.record_batch({"task": list(numbers)})]):
            yield facts.serialize().to_pybytes()

    try:
        results = context.parallelize(range(count), count).mapPartitions(numbered).collect()
    except Py4JJavaError as error:
        # Spark SQL raises this class for the same failure.
        raise PySparkException(str(error)) from error
    return [pa.ipc.read_record_batch(data, DOCUMENT) for data in results]


def run_sort(
    spark: SparkSession,
    count: int,
    scan: DataFrame | None,
    reader: Reader,
    plan: TaskPlanFile,
    order: StageOrder,
) -> Staged:
    """Run hop one on the records that `reader` makes of the tasks' numbers, or of `scan`."""

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _run_wanted(
            lambda: sort(_records(reader, batches, plan.value), plan.value, order), order
        )

    staged = Staged()
    if scan is None:
        staged.add(facts_of(run_tasks(spark, count, task)))
    else:
        staged.add(facts_of(_collected(scan.mapInArrow(task, DOCUMENT_DDL))))
    return staged


def _records(
    reader: Reader, batches: Iterable[pa.RecordBatch], plan: TaskPlan
) -> Iterator[pa.RecordBatch]:
    if plan.routing.infer and isinstance(reader, LookingReader):
        reader = reader.knowing(known_shapes(plan))
    return reader(iter(batches))


def run_exchanged(
    frame: DataFrame,
    reader: Reader,
    plan: TaskPlanFile,
    targets: Targets,
    again: Again | None,
    order: StageOrder,
) -> Staged:
    """Run both hops as one job, for workers that share no disk; with `again`, for its keys only."""

    def hop_one(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _begin_task(order)
        try:
            # One packet at a time: all of them would be a second copy of the records.
            records = _records(reader, batches, plan.value)
            yield from pack(records, plan.value, order, targets, again)
        except BaseException:
            WRITTEN.take_back()
            raise

    def hop_two(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _run_wanted(lambda: land_packets(batches, plan.value, order), order)

    packets = to_partitions(frame.mapInArrow(hop_one, PACKET_DDL), "target", targets.partitions)
    staged = Staged()
    staged.add(facts_of(_collected(packets.mapInArrow(hop_two, DOCUMENT_DDL))))
    return staged


def run_land(
    spark: SparkSession, loads: Sequence[Load], plan: TaskPlanFile, order: StageOrder
) -> Staged:
    """Run hop two, one task per load. The written files are not visible to readers yet."""
    staged = Staged()
    if not loads:
        return staged
    # Spark pickles a task's objects one by one, ten times slower than this, and every task would
    # unpickle the loads of all others.
    packed = [pickle.dumps(load) for load in loads]

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                # The driver itself has pickled this load, which holds only paths and numbers.
                load: Load = pickle.loads(packed[number])  # noqa: S301
                yield from _run_wanted(partial(_landed, load, plan, order), order)

    staged.add(facts_of(run_tasks(spark, len(loads), task)))
    return staged


def _landed(load: Load, plan: TaskPlanFile, order: StageOrder) -> Iterator[pa.RecordBatch]:
    # The plan is read here, because the worker has the store's credentials only now.
    return land(load, plan.value, order)


def _run_wanted(
    work: Callable[[], Iterator[pa.RecordBatch]], order: StageOrder
) -> Iterator[pa.RecordBatch]:
    """Run a task's work; remove its files if it fails, or if the driver no longer wants it."""
    _begin_task(order)
    try:
        facts = list(work())
        # If the ticket is removed after this check, the driver finds the files.
        WRITTEN.check()
    except BaseException:
        WRITTEN.take_back()
        raise
    WRITTEN.end()
    yield from facts


def _begin_task(order: StageOrder) -> None:
    """Prepare a worker for a task."""
    keep_zip_directories()
    introduce(order.lake, order.storage_options)
    introduce(order.checkpoint, order.storage_options)
    UPLOADS.forget()
    # Without a folder that all workers see, the driver cannot cancel a task.
    WRITTEN.begin(ticket(order) if order.folder else "")


def _collected(documents: DataFrame) -> list[pa.RecordBatch]:
    return list(documents.toArrow().to_batches())
