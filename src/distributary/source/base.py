"""The seam between a stream of records and the engine."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from distributary.model.manifest import SourceRange


class Reader(Protocol):
    """Runs in a task: turns what the frame carries into raw records."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches of `model.record.RAW`."""
        ...


@dataclass(frozen=True, slots=True)
class BatchInput:
    """The records of one batch, by the source's own account, and the way to read them."""

    frame: DataFrame
    reader: Reader
    ranges: tuple[SourceRange, ...]
    state: Mapping[str, Any] = field(default_factory=dict)
    """Given back to the source with the next batch."""
    newest_us: int | None = None
    """Time of the newest record as far as the source knows it without reading."""
    lag: int | None = None
    """Records that the source holds beyond this batch, or None if unknown."""

    @property
    def records(self) -> int:
        """How many records the source says there are."""
        return sum(r.records for r in self.ranges)

    def age_seconds(self) -> float | None:
        """How old the newest record of this batch is."""
        return None if self.newest_us is None else max(0.0, time.time() - self.newest_us / 1e6)


@dataclass(frozen=True, slots=True)
class Offsets:
    """Where a batch begins and ends, in the words of Spark's source."""

    start: str | None
    end: str


class Source(Protocol):
    """A stream that Spark drives and a batch that the engine reads."""

    def stream(self, spark: SparkSession) -> DataFrame:
        """The streaming frame whose offsets Spark keeps."""
        ...

    def open_batch(
        self, spark: SparkSession, frame: DataFrame, offsets: Offsets, state: Mapping[str, Any]
    ) -> BatchInput:
        """The records between two offsets."""
        ...

    def peek(self, start: str | None, state: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
        """Raw records past an offset, at most one batch, read in this process without Spark."""
        ...
