"""A Delta table as a topic of one partition: its rows, in the order of commits, are the offsets.

The first thing read is a snapshot of the table, the oldest files first, then commit after commit. A
position is `{snapshot, index, rows}` inside of the snapshot and `{version, index, rows}` after it:
how many files of that version are done, and how many rows that makes in all. Files are opened by
the tasks, with Arrow: no record passes through the JVM.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from distributary.config.source import DeltaSource as DeltaSourceConfig
from distributary.errors import DistributaryError, DivergedError, ErrorCode, SourceError
from distributary.model.manifest import SourceRange
from distributary.model.record import RAW, TIMESTAMP
from distributary.source.base import BatchInput, Position
from distributary.source.delta_log import AddedFile, DeltaLog

_ROWS_PER_ARROW_BATCH = 65_536


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of the source table, with the offset of its first row."""

    path: str
    rows: int
    offset: int
    modified_us: int


@dataclass(frozen=True, slots=True)
class _Place:
    """A position, parsed."""

    version: int
    index: int
    """Files of this version that are done."""
    rows: int
    """Rows before this place: the next offset."""
    snapshot: bool = False

    @classmethod
    def of(cls, position: Position) -> _Place:
        snapshot = "snapshot" in position
        version = position["snapshot" if snapshot else "version"]
        return cls(int(version), int(position["index"]), int(position["rows"]), snapshot)

    def position(self) -> Position:
        key = "snapshot" if self.snapshot else "version"
        return {key: self.version, "index": self.index, "rows": self.rows}


class DeltaSource:
    """Reads the message column of a Delta table as it grows."""

    def __init__(
        self, config: DeltaSourceConfig, *, storage_options: Mapping[str, str] | None = None
    ) -> None:
        self._config = config
        self._topic = config.topic_name
        self._log = DeltaLog(config.path, value=config.value, storage_options=storage_options)

    def first(self) -> Position:
        """The table as it is now, or the version that the settings name."""
        if self._config.starting_version is not None:
            return _Place(self._config.starting_version, 0, 0).position()
        if self._config.starting_timestamp is not None:
            return _Place(self._version_at_start(), 0, 0).position()
        return _Place(int(self._log.table().version()), 0, 0, snapshot=True).position()

    def newest(self) -> Position:
        """Behind the newest commit; how many rows that is nobody needs to know."""
        return {"version": self._log.newest_version() + 1, "index": 0, "rows": -1}

    def advance(self, start: Position, until: Position) -> Position | None:
        """As many whole files as the limit allows, one at least."""
        left = self._config.max_records_per_batch
        place = _Place.of(start)
        end: _Place | None = None
        for file, after in self._files(place, _Place.of(until)):
            if end is not None and file.rows > left:
                break
            left -= file.rows
            end = after
        return end.position() if end else None

    def retrace(self, start: Position, ranges: Sequence[SourceRange]) -> Position:
        """The place behind the row with which the batch ended."""
        rows = max((r.end for r in ranges), default=_Place.of(start).rows)
        for _, after in self._files(_Place.of(start), _Place.of(self.newest())):
            if after.rows >= rows:
                if after.rows == rows:
                    return after.position()
                break
        raise DivergedError(
            "a batch of before does not end where a file of the source table ends",
            where=self._log.path,
            evidence=f"it ended before offset {rows}",
            next_step="the table was written anew: `reset` the pipeline",
        )

    def open(self, spark: SparkSession, start: Position, end: Position) -> BatchInput:
        """The files between two positions, spread over tasks by rows."""
        begun, ended = _Place.of(start), _Place.of(end)
        files = self.files(start, end)
        tasks = _spread(files, spark.sparkContext.defaultParallelism)
        rows = ended.rows - begun.rows
        read = SourceRange(self._topic, 0, begun.rows, ended.rows, rows)
        lag = self._lag(ended.rows)
        return BatchInput(
            frame=spark.range(0, max(1, len(tasks)), 1, max(1, len(tasks))),
            reader=self._reader(tasks),
            ranges=(read,) if rows else (),
            end=end,
            newest_us=max((f.modified_us for f in files), default=None),
            lag=lag,
            lag_by_partition={} if lag is None else {f"{self._topic}/0": lag},
        )

    def files(self, start: Position, end: Position) -> list[SourceFile]:
        """The files between two positions, in order."""
        found = self._files(_Place.of(start), _Place.of(end))
        return [_source_file(file, after) for file, after in found]

    def peek(self, start: Position) -> Iterator[pa.RecordBatch]:
        """The next rows of the table, at most one batch of them."""
        files = self.files(start, self.newest())
        left = self._config.max_records_per_batch
        for batch in self._reader([files])(iter([pa.record_batch({"task": [0]})])):
            yield batch.slice(0, left)
            left -= batch.num_rows
            if left <= 0:
                return

    def explain(self, error: Exception) -> DistributaryError | None:
        """A file that was there when the batch was planned and is gone now."""
        if "FileNotFoundError" not in str(error):
            return None
        return SourceError(
            "a file of the source table vanished while it was being read",
            code=ErrorCode.SOURCE_DATA_LOST,
            where=self._log.path,
            next_step="vacuum the source table with a longer retention; to read what is there now, "
            "`reset` the pipeline",
        )

    def _files(self, start: _Place, end: _Place) -> Iterator[tuple[AddedFile, _Place]]:
        """Files between two places, each with the place behind it."""
        place = start
        while place.snapshot:
            files = self._log.snapshot(place.version)
            if end.snapshot and place.index >= end.index:
                return
            if place.index >= len(files):
                place = _Place(place.version + 1, 0, place.rows)
                break
            file = files[place.index]
            place = _Place(place.version, place.index + 1, place.rows + file.rows, snapshot=True)
            yield file, place
        while (place.version, place.index) < (end.version, end.index) and not end.snapshot:
            files = self._log.commit(place.version)
            if place.index >= len(files):
                place = _Place(place.version + 1, 0, place.rows)
                continue
            file = files[place.index]
            place = _Place(place.version, place.index + 1, place.rows + file.rows)
            yield file, place

    def _version_at_start(self) -> int:
        """The first version that is not older than `starting_timestamp`."""
        moment = self._config.starting_timestamp
        table = self._log.table()
        since = moment.timestamp() * 1000 if moment else 0.0
        later = [int(h["version"]) for h in table.history() if h.get("timestamp", 0) >= since]
        return min(later, default=int(table.version()) + 1)

    def _reader(self, tasks: Sequence[Sequence[SourceFile]]) -> DeltaReader:
        return DeltaReader(
            topic=self._topic,
            value=self._config.value,
            key=self._config.key,
            headers=self._config.headers,
            timestamp=self._config.timestamp,
            tasks=tasks,
        )

    def _lag(self, position: int) -> int | None:
        """Rows of the table past a position; unknown when the stream did not start at row 0."""
        if self._config.starting_version is not None or self._config.starting_timestamp is not None:
            return None
        return max(0, self._log.count() - position)


def _source_file(file: AddedFile, after: _Place) -> SourceFile:
    return SourceFile(file.path, file.rows, after.rows - file.rows, file.modified_us)


@dataclass(frozen=True, slots=True)
class DeltaReader:
    """Opens a task's files and gives their rows as raw records."""

    topic: str
    value: str
    key: str | None
    headers: str | None
    timestamp: str | None
    tasks: Sequence[Sequence[SourceFile]]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Each incoming row is the number of a task."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for file in self.tasks[number] if self.tasks else ():
                    yield from self._read(file)

    def _read(self, file: SourceFile) -> Iterator[pa.RecordBatch]:
        columns = [c for c in (self.value, self.key, self.headers, self.timestamp) if c]
        offset = file.offset
        with pq.ParquetFile(file.path) as parquet:
            for rows in parquet.iter_batches(_ROWS_PER_ARROW_BATCH, columns=columns):
                yield self._as_raw(rows, file, offset)
                offset += rows.num_rows

    def _as_raw(self, rows: pa.RecordBatch, file: SourceFile, offset: int) -> pa.RecordBatch:
        count = rows.num_rows
        time = (
            rows.column(self.timestamp).cast(TIMESTAMP)
            if self.timestamp
            else pa.repeat(pa.scalar(file.modified_us, TIMESTAMP), count)
        )
        arrays = [
            rows.column(self.key).cast(pa.binary()) if self.key else pa.nulls(count, pa.binary()),
            rows.column(self.value).cast(pa.binary()),
            rows.column(self.headers).cast(RAW.field("headers").type)
            if self.headers
            else pa.nulls(count, RAW.field("headers").type),
            pa.repeat(pa.scalar(self.topic, pa.string()), count),
            pa.repeat(pa.scalar(0, pa.int32()), count),
            pa.array(np.arange(offset, offset + count, dtype=np.int64)),
            time,
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=RAW)


def _spread(files: Sequence[SourceFile], tasks: int) -> list[list[SourceFile]]:
    """Files to tasks, so that each has about the same number of rows; order is kept in a task."""
    loads: list[list[SourceFile]] = [[] for _ in range(min(tasks, len(files)))]
    rows = [0] * len(loads)
    for file in sorted(files, key=lambda f: -f.rows):
        lightest = rows.index(min(rows))
        loads[lightest].append(file)
        rows[lightest] += file.rows
    return [sorted(load, key=lambda f: f.offset) for load in loads]
