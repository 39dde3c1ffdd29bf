"""A Delta table as a topic of one partition: its rows, in the order of commits, are the offsets.

Spark's Delta source is the clock: it decides which files belong to a batch and keeps the offsets.
The files themselves are opened by the tasks, with Arrow, because Spark's stream tells neither the
file nor the row of a record, and because no record then has to pass through the JVM.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow import fs
from pyspark.sql import DataFrame, SparkSession

from distributary.config.source import DeltaSource as DeltaSourceConfig
from distributary.errors import ErrorCode, SourceError, SourceUnavailableError
from distributary.model.manifest import SourceRange
from distributary.model.record import RAW, TIMESTAMP
from distributary.source.base import BatchInput, Offsets

_UNREADABLE_FEATURES = {"deletionVectors", "columnMapping"}
_ROWS_PER_ARROW_BATCH = 65_536


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of the source table, with the offset of its first row."""

    path: str
    rows: int
    offset: int
    modified_us: int


@dataclass(frozen=True, slots=True)
class _Added:
    path: str
    rows: int | None
    modified_ms: int


@dataclass(frozen=True, slots=True)
class _Position:
    """Spark's Delta offset: everything before (version, index) has been read, index included."""

    version: int
    index: int
    starting: bool

    @classmethod
    def parse(cls, text: str) -> _Position:
        data = json.loads(text)
        return cls(data["reservoirVersion"], data["index"], data["isStartingVersion"])


class DeltaSource:
    """Reads the message column of a Delta table as it grows."""

    def __init__(
        self, config: DeltaSourceConfig, *, storage_options: Mapping[str, str] | None = None
    ) -> None:
        self._config = config
        self._path = config.path.rstrip("/")
        self._topic = config.topic_name
        self._storage_options = dict(storage_options or {})
        self._filesystem, self._root = fs.FileSystem.from_uri(_as_uri(self._path))

    def stream(self, spark: SparkSession) -> DataFrame:
        """Spark's stream over the table, bounded by bytes: Delta cannot bound by records."""
        table = self._table()
        reader = spark.readStream.format("delta")
        if self._config.starting_version is not None:
            reader = reader.option("startingVersion", str(self._config.starting_version))
        if self._config.starting_timestamp is not None:
            reader = reader.option("startingTimestamp", str(self._config.starting_timestamp))
        if limit := self._bytes_per_batch(table):
            reader = reader.option("maxBytesPerTrigger", f"{limit}b")
        return reader.load(self._path)

    def open_batch(
        self, spark: SparkSession, frame: DataFrame, offsets: Offsets, state: Mapping[str, Any]
    ) -> BatchInput:
        """The files between two of Spark's offsets, spread over tasks by rows."""
        position = int(state.get("position", 0))
        files = self._files(offsets, position)
        end = files[-1].offset + files[-1].rows if files else position
        tasks = _spread(files, spark.sparkContext.defaultParallelism)
        read = SourceRange(self._topic, 0, position, end, end - position)
        return BatchInput(
            frame=spark.range(0, max(1, len(tasks)), 1, max(1, len(tasks))),
            reader=self._reader(tasks),
            ranges=(read,) if end > position else (),
            state={"position": end},
            newest_us=max((f.modified_us for f in files), default=None),
            lag=self._lag(end),
        )

    def peek(self, start: str | None, state: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
        """The next rows of the table, at most one batch of them."""
        table = self._table()
        end = {
            "reservoirVersion": table.version() + 1,
            "index": -1,
            "isStartingVersion": False,
        }
        files = self._files(Offsets(start, json.dumps(end)), int(state.get("position", 0)))
        left = self._config.max_records_per_batch
        for batch in self._reader([files])(iter([pa.record_batch({"task": [0]})])):
            yield batch.slice(0, left)
            left -= batch.num_rows
            if left <= 0:
                return

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
        return max(0, self._table().count() - position)

    def _table(self, version: int | None = None) -> DeltaTable:
        try:
            table = DeltaTable(
                self._path, version=version, storage_options=self._storage_options or None
            )
        except TableNotFoundError as error:
            raise SourceUnavailableError(
                "the source table does not exist",
                where=self._path,
                next_step="create it (for a trial: `distributary produce games --to delta`), "
                "or correct source.path",
            ) from error
        except (DeltaError, OSError) as error:
            raise SourceUnavailableError(
                "the source table cannot be read", where=self._path, evidence=str(error)[:300]
            ) from error
        self._refuse_unreadable(table)
        return table

    def _refuse_unreadable(self, table: DeltaTable) -> None:
        names = {f.name for f in table.schema().fields}
        if self._config.value not in names:
            raise SourceError(
                f"the source table has no column {self._config.value!r}",
                where=self._path,
                evidence=f"its columns are {', '.join(sorted(names))}",
                next_step="set source.value to the column that holds the message",
            )
        features = set(table.protocol().reader_features or ()) & _UNREADABLE_FEATURES
        if features:
            raise SourceError(
                f"the source table uses {', '.join(sorted(features))}, which this source "
                "does not read",
                where=self._path,
                next_step="point source.path at an append-only table without these features",
            )

    def _bytes_per_batch(self, table: DeltaTable) -> int | None:
        limit = self._config.max_records_per_batch
        actions = pa.table(table.get_add_actions(flatten=True))
        if not limit or not actions.num_rows or "num_records" not in actions.column_names:
            return None
        rows, size = pc.sum(actions["num_records"]).as_py(), pc.sum(actions["size_bytes"]).as_py()
        return max(1, int(size / rows * limit)) if rows else None

    def _files(self, offsets: Offsets, position: int) -> list[SourceFile]:
        start = _Position.parse(offsets.start) if offsets.start else None
        files = []
        for added in self._added_between(start, _Position.parse(offsets.end)):
            path = f"{self._root}/{unquote(added.path)}"
            rows = added.rows if added.rows is not None else self._rows_in_footer(path)
            files.append(SourceFile(path, rows, position, added.modified_ms * 1000))
            position += rows
        return files

    def _added_between(self, start: _Position | None, end: _Position) -> Iterator[_Added]:
        """Files after `start` up to and with `end`, in the order in which Spark counts them."""
        if start is None or start.starting:
            version = end.version if end.starting else self._snapshot_version(start, end)
            if version is not None:
                files = self._snapshot_files(version)
                first = start.index + 1 if start else 0
                yield from files[first : end.index + 1 if end.starting else None]
                if end.starting:
                    return
                commits = range(version + 1, end.version + 1)
            else:
                commits = range(int(self._config.starting_version or 0), end.version + 1)
            first_index = 0
        else:
            commits = range(start.version, end.version + 1)
            first_index = start.index + 1
        for version in commits:
            added = [] if version == end.version and end.index < 0 else self._commit_files(version)
            last = end.index + 1 if version == end.version else len(added)
            yield from added[first_index:last]
            first_index = 0

    def _snapshot_version(self, start: _Position | None, end: _Position) -> int | None:
        """The version whose whole content came first, when `end` is already past it."""
        if start is not None:
            return start.version
        explicit = self._config.starting_version, self._config.starting_timestamp
        return None if any(e is not None for e in explicit) else end.version - 1

    def _snapshot_files(self, version: int) -> list[_Added]:
        actions = pa.table(self._table(version).get_add_actions(flatten=True)).to_pylist()
        files = [
            _Added(a["path"], a.get("num_records"), int(a["modification_time"])) for a in actions
        ]
        return sorted(files, key=lambda a: (a.modified_ms, a.path))

    def _commit_files(self, version: int) -> list[_Added]:
        path = f"{self._root}/_delta_log/{version:020d}.json"
        try:
            with self._filesystem.open_input_stream(path) as stream:
                lines = stream.read().decode().splitlines()
        except FileNotFoundError as error:
            if version >= self._table().version() + 1:
                return []
            raise SourceError(
                f"version {version} of the source table is no longer in its log",
                code=ErrorCode.SOURCE_DATA_LOST,
                where=path,
                next_step="the pipeline was away for longer than the log's retention: "
                "`reset` it and read the table again from the start",
            ) from error
        adds = [json.loads(line).get("add") for line in lines if '"add"' in line]
        return [
            _Added(
                add["path"],
                json.loads(add.get("stats") or "{}").get("numRecords"),
                add["modificationTime"],
            )
            for add in adds
            if add and add.get("dataChange", True)
        ]

    def _rows_in_footer(self, path: str) -> int:
        return int(pq.read_metadata(path, filesystem=self._filesystem).num_rows)


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
            pa.array(range(offset, offset + count), pa.int64()),
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


def _as_uri(path: str) -> str:
    from pathlib import Path

    return path if "://" in path else Path(path).resolve().as_uri()
