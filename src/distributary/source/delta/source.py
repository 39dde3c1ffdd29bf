"""Delta tables as sources: a table is a topic of one partition, and its rows are the offsets.

Reading begins with a snapshot of the table, the oldest files first, and continues commit by commit
(`source_log.py`). If another table takes its place and is to be read, reading begins with a
snapshot of the new table: the batch's end names this start under `from`. `from` also names the
start of a batch that has passed commits without records, because the log may lose those at any
time. Tasks open the files with Arrow, on a disk or in a bucket: no record passes through the JVM.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from distributary.config.sources.delta import DeltaSourceConfig
from distributary.delta.parquet import INT96_UNIT
from distributary.errors import (
    DistributaryError,
    DivergedError,
    ErrorCode,
    SourceError,
    SourceUnavailableError,
    clean,
)
from distributary.model.manifest import SourceRange
from distributary.model.record import RAW, TIMESTAMP
from distributary.source.base import (
    BatchInput,
    Position,
    files_of,
    line_with,
    parallelism,
    replaced,
    spread,
    unverified,
)
from distributary.source.delta.source_log import AddedFile, DeltaLog, LogPosition, vanished
from distributary.store.base import at, introduce

_log = logging.getLogger(__name__)
ROWS_PER_ARROW_BATCH = 65_536
_AT_ONCE = 8 * 1024 * 1024
"""The size up to which a file of a bucket is read in one request: most of it is the needed
column."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of the source table, with the offset of its first row."""

    path: str
    rows: int
    offset: int
    modified_us: int
    size: int | None = None
    partition: Mapping[str, Any] = field(default_factory=dict)
    """The values of the table's partition columns."""


def read_file(file: SourceFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Read the rows of a file, in a task. Raises FileNotFoundError with the path if it is gone."""
    folder, _, name = file.path.rpartition("/")
    try:
        with (
            at(folder).open(name, ahead=_AT_ONCE, size=file.size) as opened,
            pq.ParquetFile(opened, coerce_int96_timestamp_unit=INT96_UNIT) as parquet,
        ):
            yield from parquet.iter_batches(ROWS_PER_ARROW_BATCH, columns=list(columns))
    except FileNotFoundError:
        raise FileNotFoundError(file.path) from None
    except OSError as error:
        raise SourceUnavailableError(
            "a file of the source table cannot be read", where=file.path, evidence=clean(str(error))
        ) from None


class DeltaEnds:
    """The current end of the table, read through a log of its own by another thread."""

    def __init__(
        self, config: DeltaSourceConfig, *, storage_options: Mapping[str, str] | None = None
    ) -> None:
        self._place = f"{config.topic_name}/0"
        self._log = DeltaLog(config.path, value=config.value, storage_options=storage_options)
        self._counted: tuple[tuple[int, str], int] | None = None

    def ask(self) -> dict[str, int]:
        """Return the number of rows of the table. Raises SourceUnavailableError."""
        self._log.newest_version()
        version_and_id = self._log.known()
        if self._counted is None or self._counted[0] != version_and_id:
            self._counted = version_and_id, self._log.count()
        return {self._place: self._counted[1]}

    def reached(self, position: Position) -> dict[str, int]:
        """Return the number of rows of this table before a position."""
        place = LogPosition.of(position)
        return {self._place: place.rows - place.before}


class DeltaSource:
    """A source that reads the message column of a Delta table as it grows."""

    def __init__(
        self, config: DeltaSourceConfig, *, storage_options: Mapping[str, str] | None = None
    ) -> None:
        self._config = config
        self.topic = config.topic_name
        self._log = DeltaLog(config.path, value=config.value, storage_options=storage_options)
        self._opened: LogPosition | None = None
        """The end of the batch that was opened last."""
        self._warned_about = ""
        """The id of the new table for which a warning was logged."""

    def first(self) -> Position:
        """Return the start: the current snapshot, or the version that the settings name."""
        if self._config.starting_version is not None:
            return LogPosition(self._config.starting_version, 0, 0).position()
        moment = self._config.starting_timestamp
        if moment is not None:
            table, since = self._log.table(), moment.timestamp() * 1000
            later = [int(h["version"]) for h in table.history() if h.get("timestamp", 0) >= since]
            version = min(later, default=int(table.version()) + 1)
            return LogPosition(version, 0, 0, table=self._log.known()[1]).position()
        self._log.newest_version()
        newest, identity = self._log.known()
        return LogPosition(newest, 0, 0, snapshot=True, table=identity).position()

    def newest(self) -> Position:
        """Return the position after the newest commit; its number of rows is not needed."""
        return {"version": self._log.newest_version() + 1, "index": 0, "rows": -1}

    def advance(self, start: Position, until: Position) -> Position | None:
        """Return the end of a batch of whole files, as many as the limit allows, at least one."""
        left = self._config.max_records_per_batch
        begin, jump = self._begin(start)
        end: LogPosition | None = None
        limit = LogPosition.of(until)
        for file, after in self._files(begin, limit):
            if end is not None and file.rows > left:
                break
            left -= file.rows
            end = after
        if end is None:
            if limit.version > begin.version:
                self._log.passed = {LogPosition.of(start): begin.through(limit.version, self._log)}
            return None
        return end.position() | jump

    def retrace(self, start: Position, ranges: Sequence[SourceRange]) -> Position:
        """Return the position after the last row of a batch that covered these ranges."""
        newest = LogPosition.of(self.newest())
        begin, jump = self._begin(start)
        rows = max((r.end for r in ranges), default=begin.rows)
        for _, after in self._files(begin, newest):
            if after.rows >= rows:
                if after.rows == rows:
                    return after.position() | jump
                break
        raise DivergedError(
            "an earlier batch does not end at the end of a file of the source table",
            where=self._log.path,
            evidence=f"the batch ended before offset {rows}",
            next_step="the table was rewritten: `reset` the pipeline",
        )

    def open(self, spark: SparkSession, start: Position, end: Position) -> BatchInput:
        """Open the files between two positions, spread over tasks by rows."""
        begun, ended = LogPosition.of(end.get("from", start)), LogPosition.of(end)
        self._log.newest_version()
        self._opened = ended
        # A decided batch only needs its ranges, unless it must be read again.
        there = self._is_there(ended)
        files = self.files(start, end) if there else []
        most = parallelism(spark)
        tasks = spread(files, most, weight=lambda f: f.rows, order=lambda f: f.offset)
        rows = ended.rows - begun.rows
        read = SourceRange(self.topic, 0, begun.rows, ended.rows, rows)
        lag = self._lag(ended) if there else None
        return BatchInput(
            tasks=max(1, len(tasks)),
            reader=self._reader(tasks),
            ranges=(read,) if rows else (),
            end=end,
            counted=there,
            newest_us=max((f.modified_us for f in files), default=None),
            lag=lag,
            lag_by_partition={} if lag is None else {f"{self.topic}/0": lag},
            identities={self.topic: ended.table} if ended.table else {},
            verify=unverified if there else partial(self._refuse, ended),
        )

    def files(self, start: Position, end: Position) -> list[SourceFile]:
        """Return the files between two positions, in order."""
        between = self._files(LogPosition.of(end.get("from", start)), LogPosition.of(end))
        return [_source_file(*pair) for pair in between]

    def peek(self, start: Position) -> Iterator[pa.RecordBatch]:
        """Read the next rows of the table, at most one batch of them."""
        newest = LogPosition.of(self.newest())
        left = self._config.max_records_per_batch
        files: list[SourceFile] = []
        for pair in self._files(self._begin(start)[0], newest):
            files.append(_source_file(*pair))
            if sum(file.rows for file in files) >= left:
                break
        try:
            for batch in self._reader([files])(iter([pa.record_batch({"task": [0]})])):
                yield batch.slice(0, left)
                left -= batch.num_rows
                if left <= 0:
                    return
        except FileNotFoundError as error:
            raise vanished(str(error)) from error

    def explain(self, error: Exception) -> DistributaryError | None:
        """Return the source's error for a failed job: a missing file, or an unreachable store."""
        text = str(error)
        missing = [line for line in text.splitlines() if "FileNotFoundError" in line]
        if not missing and "SourceUnavailableError" in text:
            return SourceUnavailableError(
                "the source table could not be read in the middle of a batch",
                where=self._log.path,
                evidence=line_with("seen:", text),
                next_step="the batch is tried again: no part of it was written",
            )
        if not missing:
            return None
        try:
            self._log.newest_version()
            if self._opened is not None and not self._is_there(self._opened):
                self._refuse(self._opened, decided=False)
        except SourceError as cause:
            return cause
        if not any(f"{self._log.root}/" in line for line in missing):
            return None
        return vanished(self._log.path)

    def _begin(self, start: Position) -> tuple[LogPosition, dict[str, Any]]:
        """Return the start of the batch after a position, and the `from` that its end needs.

        Raises SourceError if another table is in the place, unless that one is to be read.
        """
        place = LogPosition.of(start)
        newest, table = self._log.known()
        if self._is_there(place):
            begin = replace(self._onward(place), table=table)
            moved = begin.rank != place.rank
            return begin, {"from": begin.position()} if moved else {}
        if self._config.on_replaced == "stop":
            self._refuse(place, decided=False)
        if self._warned_about != table:
            self._warned_about = table
            _log.warning(
                "another table is in the place of the table that was read: the new table is read "
                "from its beginning; unread records of the old table are lost: %s: %s",
                self._log.path,
                self._before_and_now(place),
            )
        rows = place.rows
        begin = LogPosition(newest, 0, rows, snapshot=True, table=table, before=rows)
        return begin, {"from": begin.position()}

    def _onward(self, place: LogPosition) -> LogPosition:
        """Return the position, or a later one if no unread record is in between.

        A log loses its oldest commits, also those that were read. The rows of the table, less the
        rows of the commits that are left, show what the lost commits added.
        """
        passed = self._log.passed.get(place)
        if passed is not None or place.version > self._log.known()[0]:
            return passed or place
        try:
            self._listed(place)
        except SourceError as error:
            if error.code is not ErrorCode.SOURCE_DATA_LOST:
                raise
            oldest = self._log.oldest_behind(place.version)
            # A table that only grows had at least as many rows as were read of it.
            if self._log.rows_before(oldest) != place.rows - place.before:
                raise
            # The same number of rows may also result from deleted and newly added rows.
            files = self._log.fingerprint_before(oldest)
            if place.files not in (None, files):
                raise self._log.unclear(place.version, oldest) from error
            passed = replace(place.behind(oldest), files=files)
            self._log.passed = {place: passed}
            return passed
        return place

    def _is_there(self, place: LogPosition) -> bool:
        """Return whether the table is that of a position, and has come as far."""
        newest, table = self._log.known()
        if not place.table and not place.rows:
            # Nothing was read: a version that the settings name may not exist yet.
            return True
        past = place.version - (0 if place.snapshot else 1)
        return place.table in ("", table) and past <= newest and self._has_commit_of(place)

    def _has_commit_of(self, place: LogPosition) -> bool:
        """Return whether the last commit that was read is unchanged, or lost.

        A table that was restored from an older copy and has grown since has another commit there.
        """
        if place.commit is None:
            return True
        version, digest = place.commit
        return self._log.digest(version) in ("", digest)

    def _refuse(self, place: LogPosition, *, decided: bool) -> None:
        read, evidence = self._config.on_replaced == "read", self._before_and_now(place)
        raise replaced("table", where=self._log.path, evidence=evidence, read=read, decided=decided)

    def _before_and_now(self, place: LogPosition) -> str:
        newest, table = self._log.known()
        begun = place.snapshot or place.index > 0
        read = place.version if begun else place.version - 1
        other = "" if self._has_commit_of(place) else ", and this version has another commit"
        return (
            f"read up to version {read} and row {place.rows:,} with id "
            f"{place.table or 'unknown'}; now the table ends with version {newest} and has id "
            f"{table}{other}"
        )

    def _files(
        self, start: LogPosition, end: LogPosition
    ) -> Iterator[tuple[AddedFile, LogPosition]]:
        """Yield the files between two positions, each with the position after it."""
        place = start
        while place.rank < end.rank:
            files = self._listed(place)
            if place.index >= len(files):
                place = place.through(place.version + 1, self._log)
                continue
            file = files[place.index]
            place = place.after(file, self._log)
            if place.index == len(files):
                # The log may lose a version that is done, so the position moves on to the next one.
                place = place.through(place.version + 1, self._log)
            yield file, place

    def _listed(self, place: LogPosition) -> tuple[AddedFile, ...]:
        """Return the files of the version of a position."""
        files_of_version = self._log.snapshot if place.snapshot else self._log.commit
        return files_of_version(place.version)

    def _reader(self, tasks: Sequence[Sequence[SourceFile]]) -> DeltaReader:
        return DeltaReader(
            topic=self.topic,
            value=self._config.value,
            key=self._config.key,
            headers=self._config.headers,
            timestamp=self._config.timestamp,
            tasks=tasks,
            table=self._log.path,
            storage_options=self._log.storage_options,
        )

    def _lag(self, place: LogPosition) -> int | None:
        """Return the rows of the table after a position.

        None if the stream did not start at row 0.
        """
        if not self._config.reads_all:
            return None
        return max(0, self._log.count() - (place.rows - place.before))


def _source_file(file: AddedFile, after: LogPosition) -> SourceFile:
    return SourceFile(
        file.path, file.rows, after.rows - file.rows, file.modified_us, file.size, file.partition
    )


@dataclass(frozen=True, slots=True)
class DeltaReader:
    """A reader that opens a task's files and yields their rows as raw records."""

    topic: str
    value: str
    key: str | None
    headers: str | None
    timestamp: str | None
    tasks: Sequence[Sequence[SourceFile]]
    table: str
    storage_options: Mapping[str, str] = field(repr=False)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the files of the tasks whose numbers are in `batches`."""
        introduce(self.table, self.storage_options)
        for file in files_of(batches, self.tasks):
            yield from self._read(file)

    def _read(self, file: SourceFile) -> Iterator[pa.RecordBatch]:
        columns = [c for c in (self.value, self.key, self.headers, self.timestamp) if c]
        offset = file.offset
        for rows in read_file(file, columns):
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
