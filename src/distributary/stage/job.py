"""The two Spark jobs of a stage: sort, then land. Only facts pass through the JVM."""

from __future__ import annotations

import hashlib
import pickle
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from distributary.decode.json.kinds import together
from distributary.delta.parquet import UPLOADS, WRITTEN
from distributary.model.cache import Cache
from distributary.model.change import ChangeFacts
from distributary.model.expectation import RuleCount, sum_counts
from distributary.model.manifest import StagedFile
from distributary.model.plan import RouteKey, StageOrder
from distributary.model.record import Shapes
from distributary.stage.catalog import Catalog
from distributary.stage.exchange import FACT, FACT_DDL, Load, Run, facts_of
from distributary.stage.files import ticket
from distributary.stage.guard import keep_zip_directories
from distributary.stage.land import land
from distributary.stage.packets import PACKET_DDL, Again, Targets, land_packets, pack
from distributary.stage.sort import sort
from distributary.stage.unwrap import known_shapes
from distributary.store.base import TransferError, at, introduce, packed, unpacked


@dataclass(frozen=True, slots=True)
class Unresolved:
    """A key that the catalog has no answer for, and where it was first seen."""

    key: RouteKey
    offset: int


@dataclass(slots=True)
class Staged:
    """What all tasks of a stage said."""

    seen: int = 0
    skipped: int = 0
    """Records passed over: by policy, or because their table has them already."""
    bytes: int = 0
    """Bytes of the records' values, as they came."""
    newest_us: int = 0
    """Time of the newest record, in microseconds since 1970; 0: none has a time."""
    files: dict[str, list[StagedFile]] = field(default_factory=lambda: defaultdict(list))
    records: Counter[str] = field(default_factory=Counter)
    """Source records per table."""
    dead: Counter[str] = field(default_factory=Counter)
    """Dead-lettered records by error code."""
    changes: dict[str, ChangeFacts] = field(default_factory=lambda: defaultdict(ChangeFacts))
    """What the events of each log are."""
    rules: dict[str, tuple[RuleCount, ...]] = field(default_factory=dict)
    """What rules have found, by table."""
    runs: list[Run] = field(default_factory=list)
    letters: list[str] = field(default_factory=list)
    """Files of dead letters that wait for hop two."""
    shapes: dict[str, Any] = field(default_factory=dict)
    """What records without a schema look like, by their claim: a profile, or of changes a shape."""
    carried: set[str] = field(default_factory=set)
    """Schemas that came with records which have no route yet."""

    def unresolved(self, catalog: Catalog) -> list[Unresolved]:
        """The keys without a route, in the order in which their first records came.

        Of change data, which comes in any order, those with the oldest records first.
        """
        first: dict[RouteKey, int] = {}
        for run in self.runs:
            for r in run.ranges:
                if r.key not in catalog.routes:
                    first[r.key] = min(r.first_offset, first.get(r.key, r.first_offset))
        newest = self.newest() if first else {}
        in_order = sorted(first.items(), key=lambda item: (newest[item[0]], item[1], item[0]))
        return [Unresolved(key, offset) for key, offset in in_order]

    def newest(self) -> dict[RouteKey, int]:
        """Of change data: when the newest record of each key was made."""
        found: dict[RouteKey, int] = {}
        for run in self.runs:
            for r in run.ranges:
                found[r.key] = max(r.newest, found.get(r.key, r.newest))
        return found

    def merge(self, other: Staged) -> None:
        """Put what a second job said to what the first one said."""
        for name, files in other.files.items():
            self.files[name] += files
        self.records.update(other.records)
        self.dead.update(other.dead)
        for name, facts in other.changes.items():
            self.changes[name] += facts
        for name, counts in other.rules.items():
            self._count(name, counts)
        self.skipped += other.skipped

    def add(self, facts: Iterable[tuple[str, Any]]) -> None:
        """Take in what tasks said."""
        for kind, body in facts:
            match kind:
                case "seen":
                    self.seen += body["records"]
                    self.skipped += body["skipped"]
                    self.bytes += body["bytes"]
                    self.newest_us = max(self.newest_us, body["newest_us"])
                case "dead":
                    self.dead.update(body)
                case "run":
                    self.runs.append(Run.of(body))
                case "letters":
                    self.letters.append(body)
                case "shape":
                    claim, shape = body
                    known = self.shapes.get(claim)
                    self.shapes[claim] = shape if known is None else together(known, shape)
                case "carried":
                    self.carried.add(body)
                case "changes":
                    name, told = body
                    self.changes[name] += ChangeFacts.of(told) or ChangeFacts()
                case "rules":
                    name, counted = body
                    self._count(name, map(RuleCount.of, counted))
                case "skipped":
                    self.skipped += body
                case "file":
                    self.records[body["table"]] += body["records"]
                    if body["file"] is not None:
                        file = body["file"]
                        file["schema_ids"] = tuple(file["schema_ids"])
                        self.files[body["table"]].append(StagedFile(**file))

    def _count(self, table: str, counts: Iterable[RuleCount]) -> None:
        self.rules[table] = sum_counts((*self.rules.get(table, ()), *counts))


_CATALOGS: Cache[Catalog] = Cache(2)
"""Of this worker: the batch under way may have another than the one that is read ahead."""


@dataclass(frozen=True, slots=True)
class CatalogFile:
    """A catalog on its way to tasks: a file in the lake, named by the hash of what is in it."""

    folder: str
    sha256: str

    @classmethod
    def send(cls, catalog: Catalog, folder: str) -> CatalogFile:
        """Put it where workers find it. A broadcast variable is more than Spark Connect has."""
        data = packed(pickle.dumps(catalog))
        file = cls(folder, hashlib.sha256(data).hexdigest())
        at(folder).write(file.sha256, data, durable=False)
        return file

    def remove(self) -> None:
        """Nobody will ask for it any more."""
        at(self.folder).remove(self.sha256)

    @property
    def value(self) -> Catalog:
        """The catalog, read once per worker."""
        return _CATALOGS.get(self.sha256, self._read)

    def _read(self) -> Catalog:
        address = f"{self.folder}/{self.sha256}"
        try:
            data = at(self.folder).read(self.sha256)
        except FileNotFoundError:
            raise
        except OSError as error:
            if error.errno:
                # a disk's: the driver knows it by this number
                raise
            raise TransferError(f"{address}: {error}") from None
        if hashlib.sha256(data).hexdigest() != self.sha256:
            # whoever can write to the lake must not be able to run code here
            raise OSError(f"{address} is not what the driver has written")
        catalog: Catalog = pickle.loads(unpacked(data))  # noqa: S301
        return catalog


@runtime_checkable
class LookingReader(Protocol):
    """A reader that looks into records, which is cheaper where they look like those before them."""

    def __call__(self, batches: Iterator[pa.RecordBatch], /) -> Iterator[pa.RecordBatch]:
        """The records of tasks, by their numbers."""

    def knowing(self, shapes: Shapes) -> LookingReader:
        """One that is told what records looked like, and tells of each whether it looks so."""


Reader = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] | LookingReader
Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Runs in a worker: facts, of what it is given."""


def run_tasks(spark: SparkSession, count: int, task: Task) -> Iterator[tuple[str, Any]]:
    """The facts of so many tasks; each is given its number.

    By the plainest job that Spark has: the first one of Spark SQL takes seconds, in which the JVM
    loads and compiles what plans, optimizes and generates code. A Connect server has only that.
    """
    try:
        context = spark.sparkContext
    except PySparkException:
        return _collected(spark.range(0, count, 1, count).mapInArrow(task, FACT_DDL))

    def numbered(numbers: Iterable[int]) -> Iterator[bytes]:
        for facts in task([pa.record_batch({"task": list(numbers)})]):
            yield facts.serialize().to_pybytes()

    try:
        told = context.parallelize(range(count), count).mapPartitions(numbered).collect()
    except Py4JJavaError as error:
        # a failure that Spark SQL would have given a class
        raise PySparkException(str(error)) from error
    return facts_of(pa.ipc.read_record_batch(each, FACT) for each in told)


def run_sort(
    spark: SparkSession,
    count: int,
    scan: DataFrame | None,
    reader: Reader,
    catalog: CatalogFile,
    order: StageOrder,
) -> Staged:
    """Hop one over what `reader` makes of the numbers of so many tasks, or of `scan`."""

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _awaited(
            lambda: sort(_records(reader, batches, catalog.value), catalog.value, order), order
        )

    staged = Staged()
    if scan is None:
        staged.add(run_tasks(spark, count, task))
    else:
        staged.add(_collected(scan.mapInArrow(task, FACT_DDL)))
    return staged


def _records(
    reader: Reader, batches: Iterable[pa.RecordBatch], catalog: Catalog
) -> Iterator[pa.RecordBatch]:
    if catalog.infer and isinstance(reader, LookingReader):
        reader = reader.knowing(known_shapes(catalog))
    return reader(iter(batches))


def run_exchanged(
    frame: DataFrame,
    reader: Reader,
    catalog: CatalogFile,
    targets: Targets,
    again: Again | None,
    order: StageOrder,
) -> Staged:
    """Both hops as one job, where workers share no disk; with `again`, of its keys alone."""

    def hop_one(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _begun(order)
        try:
            # one packet after the other: all of them would be a second copy of the records
            records = _records(reader, batches, catalog.value)
            yield from pack(records, catalog.value, order, targets, again)
        except BaseException:
            WRITTEN.take_back()
            raise

    def hop_two(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _awaited(lambda: land_packets(batches, catalog.value, order), order)

    packets = frame.mapInArrow(hop_one, PACKET_DDL).repartitionById(targets.partitions, "target")
    staged = Staged()
    staged.add(_collected(packets.mapInArrow(hop_two, FACT_DDL)))
    return staged


def run_land(
    spark: SparkSession, loads: Sequence[Load], catalog: CatalogFile, order: StageOrder
) -> Staged:
    """Hop two, one task a load. Nothing it writes is visible to readers of a table."""
    staged = Staged()
    if not loads:
        return staged
    # Spark pickles what a task holds object by object, ten times slower than this, and every task
    # would unpack the loads of all others
    packed = [pickle.dumps(load) for load in loads]

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                # made by the driver a moment ago, of paths and numbers
                load: Load = pickle.loads(packed[number])  # noqa: S301
                yield from _awaited(partial(_landed, load, catalog, order), order)

    staged.add(run_tasks(spark, len(loads), task))
    return staged


def _landed(load: Load, catalog: CatalogFile, order: StageOrder) -> Iterator[pa.RecordBatch]:
    # asked for here, where the worker knows how to log in
    return land(load, catalog.value, order)


def _awaited(
    work: Callable[[], Iterator[pa.RecordBatch]], order: StageOrder
) -> Iterator[pa.RecordBatch]:
    """A task of a worker. One that fails, or that nobody waits for, takes back what it wrote."""
    _begun(order)
    try:
        facts = list(work())
        # whoever takes the ticket away after this finds the files
        WRITTEN.check()
    except BaseException:
        WRITTEN.take_back()
        raise
    WRITTEN.end()
    yield from facts


def _begun(order: StageOrder) -> None:
    """What a worker does before every task."""
    keep_zip_directories()
    introduce(order.lake, order.storage_options)
    introduce(order.checkpoint, order.storage_options)
    UPLOADS.forget()
    # without a folder that all see, nobody can tell a task that it is not wanted any more
    WRITTEN.begin(ticket(order) if order.folder else "")


def _collected(facts: DataFrame) -> Iterator[tuple[str, Any]]:
    return facts_of(facts.toArrow().to_batches())
