"""Kafka topics: the driver decides which offsets are a batch, Spark's tasks read them.

A position is `{offsets: {topic: {partition: next offset}}}`. Where a batch did not start at the
position before it (a partition was new, or retention had eaten records), its end position says
where under `from`, so that the batch can be opened again and be the same.
"""

from __future__ import annotations

import base64
import json
import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions

from distributary.config.kafka import KafkaSource as KafkaSourceConfig
from distributary.errors import DistributaryError, ErrorCode, SourceError, SourceUnavailableError
from distributary.model.manifest import SourceRange
from distributary.model.record import RAW
from distributary.source.base import BatchInput, Position
from distributary.source.kafka_offsets import Broker, Offsets, Partition
from distributary.source.kafka_peek import peek

_log = logging.getLogger(__name__)
_EARLIEST, _LATEST = -2, -1
_LOST = ("OffsetOutOfRange", "may have been lost", "FAILED_TO_READ_OFFSET", "KAFKA_DATA_LOSS")
_MOST_UNEVEN = 1.25
"""What a task may have more to read than its share."""
_UNREACHABLE = ("TimeoutException", "kafka.common.errors", "DisconnectException", "KAFKA_")


class KafkaSource:
    """Reads topics by ranges of offsets."""

    def __init__(self, config: KafkaSourceConfig) -> None:
        self._config = config
        level = config.options.get("kafka.isolation.level")
        committed = level is not None and level.get_secret_value() == "read_committed"
        self._broker = Broker(config.client_options(), committed_only=committed)
        self._newest: Offsets = {}
        # one group for the whole run: Spark keeps its consumers by group and partition
        self._group = f"distributary-{uuid.uuid4().hex[:12]}"

    def first(self) -> Position:
        """Where the settings say; partitions that come later are read from their beginning."""
        partitions = self._partitions()
        chosen = self._config.starting_offsets
        if isinstance(chosen, datetime):
            return _position(self._broker.since(partitions, int(chosen.timestamp() * 1000)))
        if chosen == "latest":
            return _position(self._broker.latest(partitions))
        found = self._broker.earliest(partitions)
        if chosen != "earliest":
            found |= self._given(partitions)
        return _position(found)

    def newest(self) -> Position:
        """One past the newest record of every partition; new partitions and topics included."""
        self._newest = self._broker.latest(self._partitions())
        return _position(self._newest)

    def advance(self, start: Position, until: Position) -> Position | None:
        """A share of every partition's backlog, so that none of them starves."""
        ends, known = _offsets(until), _offsets(start)
        oldest = self._broker.earliest(ends)
        moved = self._after_losses(known, ends, oldest)
        starts = {one: moved.get(one, known.get(one, oldest[one])) for one in ends}
        waiting = {one: ends[one] - starts[one] for one in ends if ends[one] > starts[one]}
        if not waiting:
            return None
        taken = _shares(waiting, self._config.max_records_per_batch)
        reached = known | starts | {one: starts[one] + count for one, count in taken.items()}
        jumps = {one: starts[one] for one in taken if known.get(one) != starts[one]}
        return _position(reached, jumps)

    def retrace(self, start: Position, ranges: Sequence[SourceRange]) -> Position:
        """The ends of the ranges."""
        known = _offsets(start)
        ends = {(r.topic, r.partition): r.end for r in ranges}
        jumps = {
            (r.topic, r.partition): r.start
            for r in ranges
            if known.get((r.topic, r.partition)) != r.start
        }
        return _position(known | ends, jumps)

    def open(self, spark: SparkSession, start: Position, end: Position) -> BatchInput:
        """The records between two positions, read by Spark's Kafka connector."""
        starts = _offsets(start) | _offsets(end, "from")
        ends = _offsets(end)
        read = tuple(
            SourceRange(*one, starts[one], ends[one], ends[one] - starts[one])
            for one in sorted(ends)
            if one in starts and ends[one] > starts[one]
        )
        lag = {
            f"{topic}/{partition}": max(0, newest - ends.get((topic, partition), 0))
            for (topic, partition), newest in self._newest.items()
        }
        return BatchInput(
            frame=self._frame(spark, read),
            reader=KafkaReader(),
            ranges=read,
            end=end,
            counted=False,
            lag=sum(lag.values()) if lag else None,
            lag_by_partition=lag,
        )

    def peek(self, start: Position) -> Iterator[pa.RecordBatch]:
        """The next records of every partition, at most one batch of them."""
        until = self.newest()
        end = self.advance(start, until)
        if end is None:
            return
        starts = _offsets(start) | _offsets(end, "from")
        ranges = {one: (starts[one], last) for one, last in _offsets(end).items() if one in starts}
        yield from peek(self._config.client_options(), ranges)

    def explain(self, error: Exception) -> DistributaryError | None:
        """What a failure of Spark's job means, where it is about the broker."""
        text = str(error)
        if any(sign in text for sign in _LOST):
            return SourceError(
                "records were deleted at the broker while they were being read",
                code=ErrorCode.SOURCE_DATA_LOST,
                where=self._config.bootstrap_servers,
                evidence=_first_line(text),
                next_step="give the topic a longer retention, and run again",
            )
        if any(sign in text for sign in _UNREACHABLE):
            return SourceUnavailableError(
                "the broker stopped answering in the middle of a batch",
                where=self._config.bootstrap_servers,
                evidence=_first_line(text),
                next_step="nothing of the batch is half done: it is tried again",
            )
        return None

    def _partitions(self) -> list[Partition]:
        return self._broker.partitions(self._config.topics, self._config.topic_pattern)

    def _given(self, partitions: Sequence[Partition]) -> Offsets:
        """Offsets by topic and partition from the settings; -1 stands for the end."""
        chosen = self._config.starting_offsets
        if isinstance(chosen, str | datetime):
            return {}
        flat = {(topic, p): offset for topic, ps in chosen.items() for p, offset in ps.items()}
        ends = self._broker.latest([one for one in partitions if flat.get(one) == _LATEST])
        plain = {one: flat[one] for one in partitions if flat.get(one, _EARLIEST) >= 0}
        return plain | ends

    def _after_losses(self, known: Offsets, ends: Offsets, oldest: Offsets) -> Offsets:
        """Partitions that can only be read from further on; SourceError unless that is allowed."""
        lost = {
            one: oldest[one] - offset
            for one, offset in known.items()
            if one in oldest and oldest[one] > offset
        }
        gone = [one for one, offset in known.items() if one in ends and offset > ends[one]]
        if not lost and not gone:
            return {}
        told = [f"{t}/{p}: {n:,} records from {known[t, p]:,} on" for (t, p), n in lost.items()]
        told += [f"{t}/{p}: ends at {ends[t, p]:,}, before {known[t, p]:,}" for t, p in gone]
        total = f"{sum(lost.values()):,} records are gone" if lost else "a topic was made anew"
        if self._config.fail_on_data_loss:
            raise SourceError(
                f"the broker has deleted records before they were read: {total}",
                code=ErrorCode.SOURCE_DATA_LOST,
                where=f"{self._config.bootstrap_servers}, {len(told)} partitions",
                evidence="; ".join(told[:10]) + ("; ..." if len(told) > 10 else ""),
                next_step="give the topic a longer retention; to go on without these records set "
                "source.fail_on_data_loss: false",
            )
        _log.warning("going on without deleted records: %s; %s", total, "; ".join(told[:10]))
        return {one: oldest[one] for one in [*lost, *gone]}

    def _frame(self, spark: SparkSession, ranges: Sequence[SourceRange]) -> DataFrame:
        assigned: dict[str, list[int]] = {}
        starts: dict[str, dict[str, int]] = {}
        ends: dict[str, dict[str, int]] = {}
        for r in ranges:
            assigned.setdefault(r.topic, []).append(r.partition)
            starts.setdefault(r.topic, {})[str(r.partition)] = r.start
            ends.setdefault(r.topic, {})[str(r.partition)] = r.end
        options = {
            "kafka.group.id": self._group,
            **self._config.spark_options(),
            "assign": json.dumps(assigned),
            "startingOffsets": json.dumps(starts),
            "endingOffsets": json.dumps(ends),
        }
        tasks = spark.sparkContext.defaultParallelism
        if len(ranges) < tasks:
            options["minPartitions"] = str(tasks)
        frame = spark.read.format("kafka").options(**options).load().select(*RAW.names)
        if alike([r.records for r in ranges], tasks):
            frame = frame.coalesce(tasks)
        # as a list of structs they take 15 s for 250,000 records on the way to Arrow, even empty
        return frame.withColumn("headers", functions.to_json("headers"))


@dataclass(frozen=True, slots=True)
class KafkaReader:
    """Spark's columns as raw records."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Headers come as JSON; of the others only the types may be spelled differently."""
        for batch in batches:
            columns = [
                _headers(batch.column(f.name))
                if f.name == "headers"
                else batch.column(f.name).cast(f.type)
                for f in RAW
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=RAW)


def _headers(texts: pa.StringArray) -> pa.ListArray:
    type_ = RAW.field("headers").type
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), type_)
    encoded = texts.dictionary_encode()
    distinct = pa.array([_parsed(text) for text in encoded.dictionary.to_pylist()], type_)
    return distinct.take(encoded.indices)


def _parsed(text: str) -> list[dict[str, Any]]:
    # a header without a value has no `value` in Spark's JSON, and bytes are base64 there
    return [
        {
            "key": header.get("key"),
            "value": base64.b64decode(header["value"]) if "value" in header else None,
        }
        for header in json.loads(text)
    ]


def _position(offsets: Offsets, jumps: Offsets | None = None) -> Position:
    position = {"offsets": _nested(offsets)}
    return position | {"from": _nested(jumps)} if jumps else position


def _nested(offsets: Offsets) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        nested.setdefault(topic, {})[str(partition)] = offset
    return nested


def _offsets(position: Position, part: str = "offsets") -> Offsets:
    nested = position.get(part, {})
    return {(topic, int(p)): int(o) for topic, parts in nested.items() for p, o in parts.items()}


def _shares(waiting: Offsets, limit: int) -> Offsets:
    """How much of each backlog a batch takes: in proportion, and at least one record of each."""
    total = sum(waiting.values())
    if total <= limit:
        return waiting
    return {one: max(1, count * limit // total) for one, count in waiting.items()}


def alike(counts: Sequence[int], tasks: int) -> bool:
    """Whether so many tasks would have about the same to do, whichever partitions each reads.

    Every task sorts what it reads into a run, and each run holds a few records of each type: the
    fewer runs there are, the fewer pieces a table is put together from.
    """
    most = -(-len(counts) // tasks) * max(counts, default=0)
    return len(counts) > tasks and 0 < most * tasks <= _MOST_UNEVEN * sum(counts)


def _first_line(text: str) -> str:
    lines = [line for line in text.splitlines() if "kafka" in line.lower()] or text.splitlines()
    return lines[0].strip()[:300] if lines else ""
