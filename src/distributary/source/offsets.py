"""A source that a user writes: records with numbers from 0, which can be read again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession

from distributary.config.pipeline_config import PipelineConfig
from distributary.config.sources.base import SourceConfig
from distributary.errors import DistributaryError
from distributary.model.check import Check, CheckState
from distributary.model.manifest import SourceRange
from distributary.model.record import RAW
from distributary.source.base import BatchInput, Position
from distributary.source.source_entry import SourceEntry
from distributary.source.source_sample import MOST_RECORDS, Sample, records_of

_BATCH = 10_000
"""Records that a reader puts into one Arrow batch."""


class OffsetRecord(NamedTuple):
    """A record of a source that a user writes."""

    value: bytes | None
    key: bytes | None = None
    timestamp: datetime | None = None
    headers: Mapping[str, bytes] = {}


class OffsetSource(ABC):
    """Records in an order that never changes; new records are added at the end.

    The source is sent to a task, which reads a batch: it must pickle, and its module must be
    installed where tasks run.
    """

    topic: str
    """The name of the stream, for coordinates and tables."""
    max_records_per_batch: int = 100_000

    @abstractmethod
    def count(self) -> int:
        """Return the number of records that there are now."""

    @abstractmethod
    def read(self, start: int, end: int) -> Iterable[OffsetRecord]:
        """Yield the records from one number to before another: the same ones each time."""

    def first(self) -> Position:
        """Return the position before the first record."""
        return {"offset": 0}

    def newest(self) -> Position:
        """Return the position after the last record."""
        return {"offset": self.count()}

    def advance(self, start: Position, until: Position) -> Position | None:
        """Return the end of a batch; None without records."""
        begin, end = int(start["offset"]), int(until["offset"])
        return {"offset": min(end, begin + self.max_records_per_batch)} if begin < end else None

    def retrace(self, start: Position, ranges: Sequence[SourceRange]) -> Position:
        """Return the end of a batch that covered these ranges."""
        return {"offset": ranges[-1].end if ranges else int(start["offset"])}

    def open(self, spark: SparkSession, start: Position, end: Position) -> BatchInput:
        """Open the records between two positions."""
        begin, stop = int(start["offset"]), int(end["offset"])

        def reader(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for _ in batches:
                yield from self.batches(begin, stop)

        return BatchInput(
            reader=reader,
            ranges=(SourceRange(self.topic, 0, begin, stop, stop - begin),),
            end=end,
        )

    def peek(self, start: Position) -> Iterator[pa.RecordBatch]:
        """Yield the records after a position."""
        yield from self.batches(int(start["offset"]), self.count())

    def explain(self, error: Exception) -> DistributaryError | None:
        """Return nothing: errors of the source are shown as they are."""
        return None

    def batches(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the records between two numbers as raw records."""
        records = iter(self.read(start, end))
        while some := list(islice(records, _BATCH)):
            rows = [
                {
                    "key": record.key,
                    "value": record.value,
                    "headers": [{"key": k, "value": v} for k, v in record.headers.items()] or None,
                    "topic": self.topic,
                    "partition": 0,
                    "offset": offset,
                    "timestamp": record.timestamp,
                }
                for offset, record in enumerate(some, start)
            ]
            start += len(some)
            yield pa.RecordBatch.from_pylist(rows, schema=RAW)


class OffsetEntry(SourceEntry[SourceConfig]):
    """The entry of a source that a user writes, given the function that builds it from settings."""

    def __init__(self, make: Callable[[SourceConfig], OffsetSource]) -> None:
        self._make = make

    def open(self, settings: SourceConfig, config: PipelineConfig) -> OffsetSource:
        """Return the source."""
        return self._make(settings)

    def sample(self, settings: SourceConfig) -> Sample:
        """Read the first records."""
        source = self._make(settings)
        count = source.count()
        batches = source.batches(0, min(count, MOST_RECORDS))
        records = tuple(record for batch in batches for record in records_of(batch))
        looked_at = f"{len(records):,} of {count:,} records of {source.topic}, the oldest"
        return Sample(source.topic, records, looked_at)

    def checks(
        self, settings: SourceConfig, config: PipelineConfig
    ) -> Iterator[tuple[str, Callable[[], Check]]]:
        """Yield a check that counts the records."""

        def count() -> Check:
            source = self._make(settings)
            found = f"{source.topic} has {source.count():,} records"
            return Check("source", CheckState.PASS, found, "records that can be counted")

        yield "source", count
