"""The interface between a stream of records and the engine.

A source is a sequence of positions. The engine asks where the next batch may end, and opens the
records between two positions as often as it needs: the same two positions always give the same
records. Positions are plain JSON and are kept in the manifests, so that a manifest alone decides a
batch.
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
from distributary.model.record import LastRecords, Partition

UNKNOWN_COUNT = 1 << 31
"""A count from this number on stands for an unknown one."""

Position = Mapping[str, Any]
"""A point in the stream before which everything has been read; JSON that only its source
interprets."""


Reader = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""A function that runs in a task and turns the frame's rows into batches of `model.record.RAW`."""


class Verify(Protocol):
    """A check for whether a source is unchanged since a batch was planned."""

    def __call__(self, *, decided: bool) -> None:
        """Raise SourceError if it is not.

        A retry does not help a batch that was `decided` before.
        """
        ...


def unverified(*, decided: bool) -> None:
    """Accept all records: the source cannot be replaced, or has no means to check it."""


_PARALLELISM: Cache[int] = Cache(4)


def parallelism(spark: SparkSession) -> int:
    """Return how many tasks run in parallel; a Connect session has no context to ask."""
    return _PARALLELISM.of((spark,), lambda: _parallelism(spark))


def is_local(spark: SparkSession) -> bool:
    """Return whether tasks run on this machine, with the files that this process sees."""
    try:
        return str(spark.sparkContext.master).startswith("local")
    except PySparkException:
        # The location of a Connect server is unknown.
        return False


def _parallelism(spark: SparkSession) -> int:
    try:
        return max(1, spark.sparkContext.defaultParallelism)
    except PySparkException:
        # A range has as many partitions as tasks can run in parallel.
        rows = spark.range(1024).select(spark_partition_id().alias("p")).distinct()
        return max(1, rows.count())


@dataclass(frozen=True, slots=True)
class BatchInput:
    """The records of one batch, as the source counts them, and the way to read them."""

    reader: Reader
    ranges: tuple[SourceRange, ...]
    end: Position
    """The start of the next batch."""
    counted: bool = True
    """True if the counts of the ranges are exact; Kafka's offsets may have gaps, so that only
    reading shows the number of records."""
    newest_us: int | None = None
    """The time of the newest record, if the source knows it without reading."""
    lag: int | None = None
    """The number of records in the source after this batch; None if unknown."""
    lag_by_partition: Mapping[str, int] = field(default_factory=dict)
    """The lag by `topic/partition`, if the source has partitions."""
    identities: Mapping[str, str] = field(default_factory=dict)
    """The ids that distinguish topics of the same name, if the source knows them."""
    end_after: Callable[[LastRecords], Position] | None = None
    """A function that adds the last records that tasks read to `end`; None if `end` needs none."""
    verify: Verify = unverified
    """The check that runs after the records were read, before the batch is decided."""
    start: Position = field(default_factory=dict)
    """The start of the batch, if the caller has set it."""
    tasks: int = 1
    """The number of tasks that read the batch; each reader gets its task's number."""
    scan: DataFrame | None = None
    """The frame that Spark itself reads, in place of numbers."""
    reads: Callable[[str], bool] = bool
    """A function that returns whether the source reads a topic, even if it does not exist yet."""
    read: Callable[[Sequence[str]], Iterator[pa.RecordBatch]] | None = None
    """A function that reads the batch's records of some topics in this process; None if only
    tasks can read them."""
    shorter: Callable[[Mapping[Partition, int]], BatchInput] | None = None
    """A function that opens the batch with earlier ends of some partitions; None if it cannot end
    earlier."""
    longer: Callable[[], BatchInput | None] | None = None
    """A function that opens the batch with more records; None without further records."""

    @property
    def records(self) -> int:
        """Return the number of records by the source, or an upper bound if it cannot count."""
        return sum(r.records for r in self.ranges)

    def decided_end(self, last: LastRecords) -> Position:
        """Return the position that the manifest keeps, given the last records that were read."""
        return self.end if self.end_after is None else self.end_after(last)

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the input of readers as a frame, for jobs of Spark SQL."""
        return spark.range(0, self.tasks, 1, self.tasks) if self.scan is None else self.scan

    @property
    def expected(self) -> int | None:
        """Return the number of records for display.

        None if the source only has a meaningless bound.
        """
        return self.records if self.counted or self.records < UNKNOWN_COUNT else None

    def age_seconds(self, recorded_us: int | None = None) -> float | None:
        """Return the age of the newest record; `recorded_us` is the newest time in the records."""
        newest_us = recorded_us if self.newest_us is None else self.newest_us
        return None if newest_us is None else max(0.0, time.time() - newest_us / 1e6)


def replaced(
    thing: str, *, where: str, evidence: str, read: bool, decided: bool = False
) -> SourceError:
    """Return the error for a topic or table that was replaced.

    `read` if the new one is to be read.
    """
    if read and not decided:
        return SourceUnavailableError(
            f"another {thing} has replaced the {thing} that was read",
            code=ErrorCode.SOURCE_REPLACED,
            where=where,
            evidence=evidence,
            next_step=f"the batch is planned again with the new {thing}: nothing of it is "
            "half done",
        )
    return SourceError(
        f"another {thing}, or an older copy, has replaced the {thing} that was read",
        code=ErrorCode.SOURCE_REPLACED,
        where=where,
        evidence=evidence,
        next_step="`distributary reset` starts again, with new tables"
        if decided
        else f"if it is an older copy, put the newest one back; to read the new {thing} from its "
        "beginning, set source.on_replaced: read, which writes records a second time that it has "
        "in common with the other; to start again with everything, use `distributary reset`",
    )


# Helpers for sources whose tasks open files themselves.

File = TypeVar("File")


def spread(
    files: Sequence[File], tasks: int, weight: Callable[[File], int], order: Callable[[File], int]
) -> list[list[File]]:
    """Distribute files over tasks of about equal weight; each task's files are in order."""
    loads: list[list[File]] = [[] for _ in range(min(tasks, len(files)))]
    lightest = [(0, number) for number in range(len(loads))]
    for file in sorted(files, key=weight, reverse=True):
        size, number = lightest[0]
        loads[number].append(file)
        heapq.heapreplace(lightest, (size + weight(file), number))
    return [sorted(load, key=order) for load in loads]


def files_of(batches: Iterable[pa.RecordBatch], tasks: Sequence[Sequence[File]]) -> Iterator[File]:
    """Yield the files of the tasks whose numbers are in `batches`."""
    for batch in batches:
        for number in batch.column(0).to_pylist() if tasks else ():
            yield from tasks[number]


def line_with(sign: str, text: str) -> str:
    """Return the first line of a failed job's message that contains `sign`; empty if none does."""
    return next((line.strip()[:300] for line in text.splitlines() if sign in line), "")


class Source(Protocol):
    """A source of records, used by one thread."""

    def first(self) -> Position:
        """Return the start of a pipeline that has never run.

        It is stored before anything is read.
        """
        ...

    def newest(self) -> Position:
        """Return the current end of the source."""
        ...

    def advance(self, start: Position, until: Position) -> Position | None:
        """Return the end of a batch from `start`, at most `until` and of limited size.

        None if empty.
        """
        ...

    def retrace(self, start: Position, ranges: Sequence[SourceRange]) -> Position:
        """Return the end of a batch that covered these ranges."""
        ...

    def open(self, spark: SparkSession, start: Position, end: Position) -> BatchInput:
        """Open the records between two positions."""
        ...

    def peek(self, start: Position) -> Iterator[pa.RecordBatch]:
        """Read raw records after a position, at most one batch, in this process without Spark."""
        ...

    def explain(self, error: Exception) -> DistributaryError | None:
        """Return the error for a failed Spark job if the source is the cause; otherwise None."""
        ...
