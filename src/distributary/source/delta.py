"""A Delta table as a topic of one partition: its rows, in the order of commits, are the offsets.

The first thing read is a snapshot of the table, the oldest files first, then commit after commit. A
position is `{snapshot, index, rows}` inside of the snapshot and `{version, index, rows}` after it:
how many files of that version are done, and how many rows that makes in all. `table` is the id of
the table that it is about. When another table is in its place, and that is to be read, it begins
with a snapshot of that one: the batch's end says where under `from`, rows count on, so that no
offset comes twice, and `before` says how many of them are of tables before. Files are opened by the
tasks, with Arrow: no record passes through the JVM.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from distributary.config.source import DeltaSource as DeltaSourceConfig
from distributary.errors import (
    DistributaryError,
    DivergedError,
    ErrorCode,
    SourceError,
    SourceUnavailableError,
)
from distributary.model.manifest import SourceRange
from distributary.model.record import RAW, TIMESTAMP
from distributary.source.base import BatchInput, Position, unverified
from distributary.source.delta_log import AddedFile, DeltaLog

_log = logging.getLogger(__name__)
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
    table: str = ""
    """Id of the table; empty in positions of before it was kept."""
    before: int = 0
    """Rows of tables that were in this one's place before."""

    @classmethod
    def of(cls, position: Position) -> _Place:
        snapshot = "snapshot" in position
        version = position["snapshot" if snapshot else "version"]
        return cls(
            version=int(version),
            index=int(position["index"]),
            rows=int(position["rows"]),
            snapshot=snapshot,
            table=str(position.get("table", "")),
            before=int(position.get("before", 0)),
        )

    def position(self) -> dict[str, Any]:
        key = "snapshot" if self.snapshot else "version"
        position: dict[str, Any] = {key: self.version, "index": self.index, "rows": self.rows}
        if self.table:
            position["table"] = self.table
        return position | {"before": self.before} if self.before else position


class DeltaSource:
    """Reads the message column of a Delta table as it grows."""

    def __init__(
        self, config: DeltaSourceConfig, *, storage_options: Mapping[str, str] | None = None
    ) -> None:
        self._config = config
        self._topic = config.topic_name
        self._log = DeltaLog(config.path, value=config.value, storage_options=storage_options)
        self._opened: _Place | None = None
        """Where the batch ends that was opened last."""
        self._told = ""
        """Id of the new table that the log has been told about."""

    def first(self) -> Position:
        """The table as it is now, or the version that the settings name."""
        if self._config.starting_version is not None:
            return _Place(self._config.starting_version, 0, 0).position()
        if self._config.starting_timestamp is not None:
            version, (_, table) = self._version_at_start(), self._log.known()
            return _Place(version, 0, 0, table=table).position()
        self._log.newest_version()
        newest, table = self._log.known()
        return _Place(newest, 0, 0, snapshot=True, table=table).position()

    def newest(self) -> Position:
        """Behind the newest commit; how many rows that is nobody needs to know."""
        return {"version": self._log.newest_version() + 1, "index": 0, "rows": -1}

    def advance(self, start: Position, until: Position) -> Position | None:
        """As many whole files as the limit allows, one at least."""
        left = self._config.max_records_per_batch
        begin, jump = self._begin(start)
        end: _Place | None = None
        for file, after in self._files(begin, _Place.of(until)):
            if end is not None and file.rows > left:
                break
            left -= file.rows
            end = after
        return end.position() | jump if end else None

    def retrace(self, start: Position, ranges: Sequence[SourceRange]) -> Position:
        """The place behind the row with which the batch ended."""
        newest = _Place.of(self.newest())
        begin, jump = self._begin(start)
        rows = max((r.end for r in ranges), default=begin.rows)
        for _, after in self._files(begin, newest):
            if after.rows >= rows:
                if after.rows == rows:
                    return after.position() | jump
                break
        raise DivergedError(
            "a batch of before does not end where a file of the source table ends",
            where=self._log.path,
            evidence=f"it ended before offset {rows}",
            next_step="the table was written anew: `reset` the pipeline",
        )

    def open(self, spark: SparkSession, start: Position, end: Position) -> BatchInput:
        """The files between two positions, spread over tasks by rows."""
        begun, ended = _Place.of(end.get("from", start)), _Place.of(end)
        self._log.newest_version()
        self._opened = ended
        # a batch that is decided needs its ranges only, unless it must be read again
        there = self._is_there(ended)
        files = self.files(start, end) if there else []
        tasks = _spread(files, spark.sparkContext.defaultParallelism)
        rows = ended.rows - begun.rows
        read = SourceRange(self._topic, 0, begun.rows, ended.rows, rows)
        lag = self._lag(ended) if there else None
        return BatchInput(
            frame=spark.range(0, max(1, len(tasks)), 1, max(1, len(tasks))),
            reader=self._reader(tasks),
            ranges=(read,) if rows else (),
            end=end,
            counted=there,
            newest_us=max((f.modified_us for f in files), default=None),
            lag=lag,
            lag_by_partition={} if lag is None else {f"{self._topic}/0": lag},
            identities={self._topic: ended.table} if ended.table else {},
            verify=unverified if there else partial(self._refuse, ended),
        )

    def files(self, start: Position, end: Position) -> list[SourceFile]:
        """The files between two positions, in order."""
        found = self._files(_Place.of(end.get("from", start)), _Place.of(end))
        return [_source_file(file, after) for file, after in found]

    def peek(self, start: Position) -> Iterator[pa.RecordBatch]:
        """The next rows of the table, at most one batch of them."""
        newest = _Place.of(self.newest())
        found = self._files(self._begin(start)[0], newest)
        files = [_source_file(file, after) for file, after in found]
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
        try:
            self._log.newest_version()
            if self._opened is not None and not self._is_there(self._opened):
                self._refuse(self._opened, decided=False)
        except SourceError as cause:
            return cause
        return SourceError(
            "a file of the source table vanished while it was being read",
            code=ErrorCode.SOURCE_DATA_LOST,
            where=self._log.path,
            next_step="vacuum the source table with a longer retention; to read what is there now, "
            "`reset` the pipeline",
        )

    def _begin(self, start: Position) -> tuple[_Place, dict[str, Any]]:
        """Where the batch behind a position begins, and what its end says if that is elsewhere.

        Raises SourceError if the table is another one now, unless that one is to be read.
        """
        place = _Place.of(start)
        newest, table = self._log.known()
        if self._is_there(place):
            return replace(place, table=table), {}
        if self._config.on_replaced == "stop":
            self._refuse(place, decided=False)
        if self._told != table:
            self._told = table
            _log.warning(
                "another table is in the place of the one that was read: reading it from its "
                "beginning; what was not read of the old one is lost: %s: %s",
                self._log.path,
                self._before_and_now(place),
            )
        rows = place.rows
        begin = _Place(newest, 0, rows, snapshot=True, table=table, before=rows)
        return begin, {"from": begin.position()}

    def _is_there(self, place: _Place) -> bool:
        """Whether the table is the one of a place, and has come as far."""
        newest, table = self._log.known()
        if not place.table and not place.rows:
            # nothing was read: a version that the settings name may be yet to come
            return True
        past = place.version - (0 if place.snapshot else 1)
        return place.table in ("", table) and past <= newest

    def _refuse(self, place: _Place, *, decided: bool) -> None:
        if self._config.on_replaced == "read" and not decided:
            raise SourceUnavailableError(
                "another table came into the place of the source table while it was read",
                code=ErrorCode.SOURCE_REPLACED,
                where=self._log.path,
                evidence=self._before_and_now(place),
                next_step="nothing of the batch is half done: it is planned again, "
                "with the new table",
            )
        raise SourceError(
            "another table is in the place of the source table, or an older copy of it",
            code=ErrorCode.SOURCE_REPLACED,
            where=self._log.path,
            evidence=self._before_and_now(place),
            next_step="`distributary reset` begins a new life, with new tables"
            if decided
            else "to go on with the new table from its beginning set source.on_replaced: read; "
            "to begin anew with everything, `distributary reset`",
        )

    def _before_and_now(self, place: _Place) -> str:
        newest, table = self._log.known()
        return (
            f"read up to version {place.version} and row {place.rows:,} with id "
            f"{place.table or 'unknown'}; now it ends with version {newest} and has id {table}"
        )

    def _files(self, start: _Place, end: _Place) -> Iterator[tuple[AddedFile, _Place]]:
        """Files between two places, each with the place behind it."""
        place = start
        while place.snapshot:
            files = self._log.snapshot(place.version)
            if end.snapshot and place.index >= end.index:
                return
            if place.index >= len(files):
                place = replace(place, version=place.version + 1, index=0, snapshot=False)
                break
            file = files[place.index]
            place = replace(place, index=place.index + 1, rows=place.rows + file.rows)
            yield file, place
        while (place.version, place.index) < (end.version, end.index) and not end.snapshot:
            files = self._log.commit(place.version)
            if place.index >= len(files):
                place = replace(place, version=place.version + 1, index=0)
                continue
            file = files[place.index]
            place = replace(place, index=place.index + 1, rows=place.rows + file.rows)
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

    def _lag(self, place: _Place) -> int | None:
        """Rows of the table past a place; unknown when the stream did not start at row 0."""
        if self._config.starting_version is not None or self._config.starting_timestamp is not None:
            return None
        return max(0, self._log.count() - (place.rows - place.before))


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
