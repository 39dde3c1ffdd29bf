"""The seam between a stream of records and the engine.

A source is a line of positions. The engine asks where the next batch may end, and opens the records
between two positions, as often as it needs to: the same two always give the same records. Positions
are plain JSON and are kept in the manifests, so that a manifest alone decides a batch.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import spark_partition_id

from distributary.errors import (
    DistributaryError,
    ErrorCode,
    SourceError,
    SourceUnavailableError,
)
from distributary.model.cache import Cache
from distributary.model.manifest import SourceRange

UNTOLD = 1 << 31
"""A bound from here on is a way to say that nobody knows."""

Position = Mapping[str, Any]
"""Everything before it has been read; JSON, understood by its source only."""


Reader = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Runs in a task: turns what the frame carries into batches of `model.record.RAW`."""


class Verify(Protocol):
    """Asks a source whether it is still the one that a batch was planned with."""

    def __call__(self, *, decided: bool) -> None:
        """Raise SourceError if not; of a batch that was `decided` before, trying again is vain."""
        ...


def unverified(*, decided: bool) -> None:
    """Accept what was read: the source cannot be replaced, or cannot tell."""


_PARALLELISM: Cache[int] = Cache(4)


def parallelism(spark: SparkSession) -> int:
    """How many tasks run side by side; asked of the session, because Connect has no context."""
    return _PARALLELISM.of((spark,), lambda: _parallelism(spark))


def is_local(spark: SparkSession) -> bool:
    """Whether tasks run in processes of this machine, which see what this process sees."""
    try:
        return str(spark.sparkContext.master).startswith("local")
    except PySparkException:
        # nobody knows where the server of Connect is
        return False


def _parallelism(spark: SparkSession) -> int:
    try:
        return max(1, spark.sparkContext.defaultParallelism)
    except PySparkException:
        # a range has as many partitions as tasks can run
        rows = spark.range(1024).select(spark_partition_id().alias("p")).distinct()
        return max(1, rows.count())


@dataclass(frozen=True, slots=True)
class BatchInput:
    """The records of one batch, by the source's own account, and the way to read them."""

    reader: Reader
    ranges: tuple[SourceRange, ...]
    end: Position
    """Where the next batch begins."""
    counted: bool = True
    """Whether the ranges' counts are exact: offsets of Kafka may have gaps, and only reading tells
    how many records are between two of them."""
    newest_us: int | None = None
    """Time of the newest record as far as the source knows it without reading."""
    lag: int | None = None
    """Records that the source holds beyond this batch, or None if unknown."""
    lag_by_partition: Mapping[str, int] = field(default_factory=dict)
    """The same by `topic/partition`, where the source has partitions."""
    identities: Mapping[str, str] = field(default_factory=dict)
    """What tells a topic from another one of the same name, where the source knows it."""
    verify: Verify = unverified
    """Called when the records were read, before the batch is decided."""
    start: Position = field(default_factory=dict)
    """Where the batch begins, as far as whoever opened it has said."""
    tasks: int = 1
    """How many tasks read it; the reader of each is given its number."""
    scan: DataFrame | None = None
    """What Spark itself reads, in place of numbers."""

    @property
    def records(self) -> int:
        """How many records the source says there are; at most, where it cannot count them."""
        return sum(r.records for r in self.ranges)

    def frame(self, spark: SparkSession) -> DataFrame:
        """What readers are given, for jobs of Spark SQL."""
        return spark.range(0, self.tasks, 1, self.tasks) if self.scan is None else self.scan

    @property
    def expected(self) -> int | None:
        """The same for people; None where the source can only name a bound that says nothing."""
        return self.records if self.counted or self.records < UNTOLD else None

    def age_seconds(self, told_us: int | None = None) -> float | None:
        """How old the newest record of this batch is; `told_us` is what the records say of it."""
        newest_us = told_us if self.newest_us is None else self.newest_us
        return None if newest_us is None else max(0.0, time.time() - newest_us / 1e6)


def replaced(
    thing: str, *, where: str, evidence: str, read: bool, decided: bool = False
) -> SourceError:
    """What it means that a topic or a table is another one now, and the new one is to be `read`."""
    if read and not decided:
        return SourceUnavailableError(
            f"another {thing} came into the place of the one that was read",
            code=ErrorCode.SOURCE_REPLACED,
            where=where,
            evidence=evidence,
            next_step=f"nothing of the batch is half done: it is planned again, "
            f"with the new {thing}",
        )
    return SourceError(
        f"another {thing} is in the place of the one that was read, or an older copy of it",
        code=ErrorCode.SOURCE_REPLACED,
        where=where,
        evidence=evidence,
        next_step="`distributary reset` begins a new life, with new tables"
        if decided
        else f"to go on with the new {thing} from its beginning set source.on_replaced: read; "
        "to start over with everything, `distributary reset`",
    )


# Sources whose tasks open files by themselves.

File = TypeVar("File")


def spread(
    files: Sequence[File], tasks: int, weight: Callable[[File], int], order: Callable[[File], int]
) -> list[list[File]]:
    """Files to tasks, so that each has about the same to read; a task keeps the order."""
    loads: list[list[File]] = [[] for _ in range(min(tasks, len(files)))]
    lightest = [(0, number) for number in range(len(loads))]
    for file in sorted(files, key=weight, reverse=True):
        size, number = lightest[0]
        loads[number].append(file)
        heapq.heapreplace(lightest, (size + weight(file), number))
    return [sorted(load, key=order) for load in loads]


def files_of(batches: Iterable[pa.RecordBatch], tasks: Sequence[Sequence[File]]) -> Iterator[File]:
    """What the tasks with these numbers read."""
    for batch in batches:
        for number in batch.column(0).to_pylist() if tasks else ():
            yield from tasks[number]


def line_with(sign: str, text: str) -> str:
    """The line of a failed job's words that says what a task has met."""
    return next((line.strip()[:300] for line in text.splitlines() if sign in line), "")


class Source(Protocol):
    """Where records come from. Used by one thread."""

    def first(self) -> Position:
        """Where a pipeline that has never run begins; written down before anything is read."""
        ...

    def newest(self) -> Position:
        """The end of everything that is there now."""
        ...

    def advance(self, start: Position, until: Position) -> Position | None:
        """Where a batch that starts at `start` ends: bounded, at most at `until`; None if empty."""
        ...

    def retrace(self, start: Position, ranges: Sequence[SourceRange]) -> Position:
        """Where a batch ended that covered these ranges."""
        ...

    def open(self, spark: SparkSession, start: Position, end: Position) -> BatchInput:
        """The records between two positions."""
        ...

    def peek(self, start: Position) -> Iterator[pa.RecordBatch]:
        """Raw records past a position, at most one batch, read in this process without Spark."""
        ...

    def explain(self, error: Exception) -> DistributaryError | None:
        """What a failure of Spark's job means, where the source is its cause."""
        ...
