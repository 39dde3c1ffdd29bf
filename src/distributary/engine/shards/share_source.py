"""The source of a job that reads its share of a bronze table.

A batch never crosses a cut. A job continues after a cut only when every job has settled everything
before it: so a table that moves to another job has one writer at a time, and its commits stay in
order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from distributary.config.pipeline_config import PipelineConfig
from distributary.config.shard import Part, Shard, job_name, shard_of
from distributary.config.sources.base import storage_options_of
from distributary.config.sources.delta import DeltaSourceConfig
from distributary.engine.shards.progress import Division, Epoch, Progress, StreamCuts, place
from distributary.errors import DistributaryError, ErrorCode, SourceUnavailableError
from distributary.model.manifest import SourceRange
from distributary.model.record import RAW
from distributary.source.base import BatchInput, Position, files_of
from distributary.source.delta.source import (
    ROWS_PER_ARROW_BATCH,
    DeltaReader,
    DeltaSource,
    SourceFile,
    read_file,
)
from distributary.stage.bronze import WHOLE
from distributary.stage.task_outputs import TYPE
from distributary.stage.unwrap import MARKED, ShardFilter
from distributary.store.base import Store, at, reaching

# Rows of a bronze table as raw records, each marked if this job takes it.

_COLUMNS = (
    *("type", "payload", WHOLE.name, "key", "headers"),
    *("_topic", "_partition", "_offset", "_timestamp"),
)
_shard_of = lru_cache(maxsize=100_000)(shard_of)


@dataclass(frozen=True, slots=True)
class BronzeReader:
    """Opens a task's files of the bronze table; satisfies `Reader`.

    Coordinates, key, headers and value are those of the record at its original source, so that
    tables and dead letters name the original source and not bronze.
    """

    tasks: Sequence[Sequence[SourceFile]]
    part: int | str
    shards: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Each incoming row is the number of a task."""
        for file in files_of(batches, self.tasks):
            yield from self.read(file)

    def read(self, file: SourceFile) -> Iterator[pa.RecordBatch]:
        """Read the rows of one file as raw records; a file of another job's type is not opened."""
        type_name = file.partition.get(TYPE.name)
        if type_name and self.part not in ("unified", _shard_of(type_name, self.shards)):
            yield from _unread(file.rows)
            return
        for rows in read_file(file, _COLUMNS):
            yield self._marked(rows)

    def _marked(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        arrays = [
            rows.column("key"),
            pc.coalesce(rows.column(WHOLE.name), rows.column("payload")),
            rows.column("headers"),
            *(rows.column(f"_{name}") for name in ("topic", "partition", "offset", "timestamp")),
        ]
        raw = [array.cast(field.type) for array, field in zip(arrays, RAW, strict=True)]
        mine = self._mine(rows.column("type"))
        return pa.RecordBatch.from_arrays([*raw, mine], schema=MARKED)

    def _mine(self, types: pa.StringArray) -> pa.BooleanArray:
        """Mark the records of this job; records without a type belong to the first shard."""
        if self.part == "unified":
            return types.is_valid()
        encoded = types.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        mine = pa.array([_shard_of(name, self.shards) == self.part for name in names], pa.bool_())
        taken: pa.BooleanArray = mine.take(encoded.indices)
        return pc.fill_null(taken, fill_value=self.part == 0)


def _unread(rows: int) -> Iterator[pa.RecordBatch]:
    """Yield records of another job, which counts them, without their content."""
    for start in range(0, rows, ROWS_PER_ARROW_BATCH):
        count = min(ROWS_PER_ARROW_BATCH, rows - start)
        nothing = [pa.nulls(count, column.type) for column in RAW]
        mine = pa.repeat(pa.scalar(False), count)
        yield pa.RecordBatch.from_arrays([*nothing, mine], schema=MARKED)


_MOST_COUNTED = 500
"""The number of commits beyond which waiting records are not counted."""


def shard_source(config: PipelineConfig, shard: Shard) -> ShardSource:
    """Return the source of one shard, or of the job of the unified table."""
    source = cast(DeltaSourceConfig, config.source)
    # each job counts its own rows, so the start of the table's count does not matter
    table = DeltaSource(
        # cuts refer to versions of this table, so no other table may replace it
        source.model_copy(
            update={"value": "payload", "starting_version": 0, "on_replaced": "stop"}
        ),
        storage_options=storage_options_of(source, config.lake),
    )
    lake = config.lake.address
    return ShardSource(
        table,
        part=shard.part,
        bronze=at(source.path),
        cuts=StreamCuts.of(lake, shard.of),
        progress=Progress(config, shard.of),
    )


class ShardSource:
    """A source of this job's records; positions are versions of the bronze table."""

    def __init__(
        self, table: DeltaSource, *, part: Part, bronze: Store, cuts: StreamCuts, progress: Progress
    ) -> None:
        self._table = table
        self._part = part
        self._bronze = bronze
        self._has_begun = False
        """Whether the bronze table was found; it is not removed afterwards."""
        self._cuts = cuts
        self._progress = progress
        self._passed = 0
        """Cuts that all jobs have passed."""

    def first(self) -> Position:
        """Return the start of the first epoch with work for this job."""
        for epoch in self._division().epochs:
            if epoch.takes(self._part):
                return epoch.begin(None)
        raise self._not_yet()

    def newest(self) -> Position:
        """Return the end of the bronze table."""
        with reaching(self._bronze.address):
            self._has_begun = self._has_begun or self._bronze.exists("_delta_log")
        if not self._has_begun:
            # the bronze job exists, but has written nothing yet
            return self._division().epochs[0].begin(None)
        return self._table.newest()

    def advance(self, start: Position, until: Position) -> Position | None:
        """Return the end of a batch of limited size, at most up to the next cut."""
        # cuts are read after `until`: see progress.py
        division = self._division()
        if division.announced is not None:
            return None
        for number, epoch in enumerate(division.epochs):
            end = self._within(epoch, start, until)
            if end is not None:
                self._wait_for_others(division, number)
                return end
        return None

    def retrace(self, start: Position, ranges: Sequence[SourceRange]) -> Position:
        """Return the position after the last row of a batch."""
        newest = self.newest()
        for epoch in self._division().epochs:
            if self._within(epoch, start, newest) is not None:
                return self._table.retrace(epoch.begin(start), ranges)
        return self._table.retrace(start, ranges)

    def open(self, spark: SparkSession, start: Position, end: Position) -> BatchInput:
        """Open the rows between two positions, each marked if this job takes it."""
        epoch = self._epoch_before(end)
        opened = self._table.open(spark, epoch.begin(start), end)
        tasks = cast(DeltaReader, opened.reader).tasks
        lag = self._lag(end)
        topic = next((r.topic for r in opened.ranges), self._table.topic)
        return replace(
            opened,
            reader=BronzeReader(tasks, self._part, epoch.shards),
            lag=lag,
            lag_by_partition={} if lag is None else {f"{topic}/0": lag},
        )

    def peek(self, start: Position) -> Iterator[pa.RecordBatch]:
        """Return the next records of this job, of at most one batch."""
        end = self.advance(start, self.newest())
        if end is None:
            return
        epoch = self._epoch_before(end)
        reader = BronzeReader((), self._part, epoch.shards)
        for file in self._table.files(epoch.begin(start), end):
            yield from ShardFilter().own(reader.read(file))

    def explain(self, error: Exception) -> DistributaryError | None:
        """Return the error for a failed job, as for any Delta table."""
        return self._table.explain(error)

    def _within(self, epoch: Epoch, start: Position, until: Position) -> Position | None:
        """Return the end of the next batch in an epoch; None if the epoch is finished."""
        if not epoch.takes(self._part) or epoch.is_before(start):
            return None
        begin, limit = epoch.begin(start), epoch.end(until)
        return self._table.advance(begin, limit) if place(begin) < place(limit) else None

    def _epoch_before(self, end: Position) -> Epoch:
        """Return the epoch of a batch that ends at a position."""
        epochs = self._division().epochs
        return next(e for e in reversed(epochs) if (e.first, 0) < place(end))

    def _wait_for_others(self, division: Division, number: int) -> None:
        if number <= self._passed or self._part == "unified":
            return
        before = division.epochs[:number]
        for part in range(division.most):
            behind = part != self._part and self._progress.behind(self._table, part, before)
            if behind:
                raise SourceUnavailableError(
                    "another job has not finished the records before the change of shards",
                    code=ErrorCode.SHARD_WAITING,
                    where=f"version {division.epochs[number].first} of {self._bronze.address}",
                    evidence=f"{job_name(self._progress.of, part)}: {behind}",
                    next_step="let the other job run: it stops there by itself, and then this "
                    "one continues",
                )
        self._passed = number

    def _division(self) -> Division:
        division = self._cuts.read()
        if not division.epochs:
            raise self._not_yet()
        return division

    def _lag(self, end: Position) -> int | None:
        newest = self._table.newest()
        if newest["version"] - end["version"] > _MOST_COUNTED:
            return None
        return sum(file.rows for file in self._table.files(end, newest))

    def _not_yet(self) -> SourceUnavailableError:
        return SourceUnavailableError(
            "the types have not been spread yet, or not to this job",
            code=ErrorCode.SHARD_WAITING,
            where=self._cuts.store.address,
            next_step=f"start the bronze job {self._progress.of}: it divides the stream",
        )
