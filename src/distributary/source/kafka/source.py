"""Kafka topics as sources: the driver decides the offsets of a batch, tasks read them.

Tasks read the records themselves (`consumer.py`), or through Spark's Kafka connector if a setting
is only understood by a Java client.

A position is `{offsets: {topic: {partition: next offset}}, ids: {topic: id}}`. A batch may not
start at the position before it: a partition was new, the broker had deleted records, or a topic was
created again. Its end position then names the start under `from`, so that the same batch can be
opened again. A broker gives an id to each topic that is created: offsets of one id say nothing
about another. Brokers before 2.8 have no ids, and neither have positions of earlier versions.

Manifests also keep `last: {topic: {partition: [offset, checksum]}}`, the last record that was read
of each partition. A broker that was restored from an older copy keeps the ids of its topics. Once
it has grown past the position, only this record shows that the topic holds other records now. A run
compares these records when it starts and after an interruption of the connection.
"""

from __future__ import annotations

import base64
import json
import logging
import math
import re
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions

from distributary.config.sources.kafka import KafkaSourceConfig
from distributary.errors import DistributaryError, ErrorCode, SourceError, SourceUnavailableError
from distributary.model.manifest import SourceRange
from distributary.model.record import RAW, LastRecords, Partition, last_records
from distributary.source.base import (
    BatchInput,
    Position,
    line_with,
    parallelism,
    replaced,
)
from distributary.source.kafka.broker import ANSWER_SECONDS, Broker, Offsets, Topic, partitions_of
from distributary.source.kafka.consumer import (
    ConsumerReader,
    read,
    shares,
)

_log = logging.getLogger(__name__)
_EARLIEST, _LATEST = -2, -1
_LOST = (
    *("OffsetOutOfRange", "may have been lost", "FAILED_TO_READ_OFFSET", "KAFKA_DATA_LOSS"),
    ErrorCode.SOURCE_DATA_LOST,
)
_MOST_UNEVEN = 1.25
"""The factor by which a task may exceed its share of the records."""
_GLANCE_SECONDS = 2.5
_SAME_PARTITIONS_SECONDS = 15.0
"""The time for which the list of partitions is cached."""
_UNREACHABLE = (
    *("TimeoutException", "kafka.common.errors", "DisconnectException", "KAFKA_"),
    ErrorCode.SOURCE_UNAVAILABLE,
)
_REFUSED = f"{ErrorCode.SOURCE_INVALID}: "
"""The beginning of a task's message if librdkafka or the broker refused to read."""
_SMALL_FETCHES = {"fetch.message.max.bytes": "65536", "queued.min.messages": "1"}
"""Consumer settings for reading one record of each partition; larger records are read whole."""
_Ids = Mapping[str, str]


def _broker(config: KafkaSourceConfig, *, seconds: float = ANSWER_SECONDS) -> Broker:
    level = config.options.get("kafka.isolation.level")
    committed = level is not None and level.get_secret_value() == "read_committed"
    return Broker(config.client_options(), committed_only=committed, seconds=seconds)


class KafkaEnds:
    """The current ends of the partitions, over a connection of its own for another thread."""

    def __init__(self, config: KafkaSourceConfig) -> None:
        self._config = config
        self._broker = _broker(config, seconds=_GLANCE_SECONDS)
        self._cached: tuple[float, list[Partition]] = (-math.inf, [])

    def ask(self) -> dict[str, int]:
        """Return the offset after the newest record by `topic/partition`.

        Raises SourceUnavailableError.
        """
        moment, partitions = self._cached
        if time.monotonic() - moment > _SAME_PARTITIONS_SECONDS:
            partitions = self._broker.partitions(self._config.topics, self._config.topic_pattern)
            self._cached = time.monotonic(), partitions
        return {f"{t}/{p}": offset for (t, p), offset in self._broker.latest(partitions).items()}

    @staticmethod
    def reached(position: Position) -> dict[str, int]:
        """Return the first unread offset at a position, by `topic/partition`."""
        return {f"{t}/{p}": offset for (t, p), offset in _offsets(position).items()}


class KafkaSource:
    """A source that reads topics by ranges of offsets."""

    def __init__(self, config: KafkaSourceConfig) -> None:
        self._config = config
        self._is_native = config.is_native
        self._broker = _broker(config)
        self._newest: Offsets = {}
        self._ids: _Ids = {}
        """The ids of the topics at the last call of `newest`."""
        self._opened: _Ids = {}
        """The ids of the topics of the batch that was opened last."""
        self._ended: dict[str, Offsets] = {}
        """The last known ends of topics that are gone, by id."""
        self._warned_about: set[str] = set()
        """Topics, by name or id, for which a warning was logged."""
        self._last: LastRecords | None = None
        """The last records that were read; None before the first position is known."""
        self._compared_at: int | None = None
        """The number of interruptions at the last comparison of the last records."""
        # One group for the whole run, because consumers are cached by group.
        self._group = _new_group()

    def first(self) -> Position:
        """Return the start that the settings name.

        Later partitions are read from their beginning.
        """
        topics = self._topics()
        partitions = partitions_of(topics)
        chosen = self._config.starting_offsets
        if isinstance(chosen, datetime):
            offsets = self._broker.since(partitions, int(chosen.timestamp() * 1000))
        elif chosen == "latest":
            offsets = self._broker.latest(partitions)
        elif chosen == "earliest":
            offsets = self._broker.earliest(partitions)
        else:
            flat = {(topic, p): at for topic, parts in chosen.items() for p, at in parts.items()}
            ends = self._broker.latest([one for one in partitions if flat.get(one) == _LATEST])
            plain = {one: flat[one] for one in partitions if flat.get(one, _EARLIEST) >= 0}
            offsets = self._broker.earliest(partitions) | plain | ends
        return _position(offsets, _ids(topics))

    def newest(self) -> Position:
        """Return the offset after the newest record of all partitions, including new ones."""
        # Ids are read first: a topic that is replaced after that is noticed when a batch is
        # verified.
        topics = self._topics()
        newest, ids = self._broker.latest(partitions_of(topics)), _ids(topics)
        for topic, id_ in self._ids.items():
            if ids.get(topic) != id_:
                self._ended[id_] = {one: o for one, o in self._newest.items() if one[0] == topic}
        self._newest, self._ids = newest, ids
        return _position(newest, ids)

    def advance(self, start: Position, until: Position) -> Position | None:
        """Return the end of a batch that takes a share of every partition's backlog."""
        ends, before = _offsets(until), _offsets(start)
        oldest = self._broker.earliest(ends)
        again = self._recreated(start, until, oldest)
        self._warn_about_missing(start, until)
        kept = {one: offset for one, offset in before.items() if one[0] not in again}
        moved = self._after_losses(kept, ends, oldest)
        starts = {one: moved.get(one, kept.get(one, oldest[one])) for one in ends}
        waiting = {one: ends[one] - starts[one] for one in ends if ends[one] > starts[one]}
        if not waiting:
            return None
        taken = _shares(waiting, self._config.max_records_per_batch)
        reached = kept | starts | {one: starts[one] + count for one, count in taken.items()}
        jumps = {
            one: starts[one]
            for one in ends
            if (one in taken or one in before) and before.get(one) != starts[one]
        }
        return _position(reached, {**start.get("ids", {}), **until.get("ids", {})}, jumps)

    def retrace(self, start: Position, ranges: Sequence[SourceRange]) -> Position:
        """Return the ends of the ranges as a position."""
        before = _offsets(start)
        ends = {(r.topic, r.partition): r.end for r in ranges}
        jumps = {
            (r.topic, r.partition): r.start
            for r in ranges
            if before.get((r.topic, r.partition)) != r.start
        }
        # Only a topic that was created again is read from an earlier offset: its other partitions
        # start over too, and its id is read with the next batch.
        again = {one[0] for one, offset in jumps.items() if offset < before.get(one, 0)}
        kept = {one: offset for one, offset in before.items() if one[0] not in again}
        ids = {topic: id_ for topic, id_ in start.get("ids", {}).items() if topic not in again}
        return _position(kept | ends, ids, jumps)

    def open(self, spark: SparkSession, start: Position, end: Position) -> BatchInput:
        """Open the records between two positions; each task reads its share when it runs."""
        starts = _offsets(start) | _offsets(end, "from")
        ends = _offsets(end)
        ranges = ranges_of(starts, ends)
        lag = {
            f"{topic}/{partition}": max(0, newest - ends.get((topic, partition), 0))
            for (topic, partition), newest in self._newest.items()
        }
        topics = {r.topic for r in ranges}
        self._opened = {t: id_ for t, id_ in end.get("ids", {}).items() if t in topics}
        native = self._native(spark, ranges) if self._is_native else None
        return BatchInput(
            reader=native or raw_records,
            tasks=1 if native is None else max(1, len(native.tasks)),
            scan=self._spark(spark, ranges) if native is None else None,
            ranges=ranges,
            end=end,
            counted=False,
            lag=sum(lag.values()) if lag else None,
            lag_by_partition=lag,
            identities=self._opened,
            end_after=partial(self._end_after, start, end),
            verify=partial(self._verify, self._opened),
            reads=self._reads,
            read=partial(self._read, ranges) if self._is_native else None,
            shorter=partial(self._shorter, spark, start, end),
            longer=partial(self._longer, spark, start, end),
        )

    def _reads(self, topic: str) -> bool:
        """Return whether the settings name a topic."""
        pattern = self._config.topic_pattern
        return topic in self._config.topics or (
            pattern is not None and re.fullmatch(pattern, topic) is not None
        )

    def _read(
        self, ranges: Sequence[SourceRange], topics: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Read the records of some topics in these ranges."""
        wanted = [one for one in ranges if one.topic in topics]
        return read(self._config.consumer_options(), wanted)

    def _shorter(
        self, spark: SparkSession, start: Position, end: Position, ends: Offsets
    ) -> BatchInput:
        """Open a batch with earlier ends of some partitions."""
        earlier = {**end, "offsets": _nested(_offsets(end) | ends)}
        return replace(self.open(spark, start, earlier), start=start)

    def _longer(self, spark: SparkSession, start: Position, end: Position) -> BatchInput | None:
        """Open a batch with another share of the records that were there when it was planned."""
        further = self.advance(end, _position(self._newest, self._ids))
        if further is None or "from" in further:
            # lost records and new partitions are the beginning of another batch
            return None
        later = {**end, **further}
        return replace(self.open(spark, start, later), start=start)

    def peek(self, start: Position) -> Iterator[pa.RecordBatch]:
        """Read the next records of every partition, at most one batch of them."""
        until = self.newest()
        end = self.advance(start, until)
        if end is None:
            return
        starts = _offsets(start) | _offsets(end, "from")
        yield from read(self._config.consumer_options(), ranges_of(starts, _offsets(end)))

    def explain(self, error: Exception) -> DistributaryError | None:
        """Return the error of the source for a failed Spark job, if the broker is the cause."""
        text = str(error)
        self._compared_at = None
        lost = any(sign in text for sign in _LOST)
        refused = line_with(_REFUSED, text)
        if not (lost or refused or any(sign in text for sign in _UNREACHABLE)):
            return None
        try:
            self._verify(self._opened, decided=False)
        except SourceError as cause:
            if cause.code is not ErrorCode.SOURCE_UNAVAILABLE:
                return cause
        if refused:
            return SourceError(
                refused.partition(_REFUSED)[2],
                where=self._config.bootstrap_servers,
                evidence=_evidence(text),
                next_step="check source.security, source.options and the user's read permissions",
            )
        if lost:
            return SourceError(
                "records were deleted at the broker while they were being read",
                code=ErrorCode.SOURCE_DATA_LOST,
                where=self._config.bootstrap_servers,
                evidence=_evidence(text),
                next_step="give the topic a longer retention, and run again",
            )
        return SourceUnavailableError(
            "the broker stopped answering in the middle of a batch",
            where=self._config.bootstrap_servers,
            evidence=_evidence(text),
            next_step="the batch is tried again: no part of it was written",
        )

    def _topics(self) -> dict[str, Topic]:
        return self._broker.topics(self._config.topics, self._config.topic_pattern)

    def _verify(self, ids: _Ids, *, decided: bool) -> None:
        """Raise SourceError if one of these topics was created again.

        A topic that does not exist was not read from since, so the records that were read of it
        count.
        """
        now = _ids(self._broker.described(list(ids)))
        changed = {topic: id_ for topic, id_ in now.items() if id_ != ids[topic]}
        if not changed:
            return
        changes = [f"{topic}: was {ids[topic]}, is {id_}" for topic, id_ in changed.items()]
        raise self._replaced(changes, decided=decided)

    def _recreated(self, start: Position, until: Position, oldest: Offsets) -> set[str]:
        """Return the topics that were created again since `start`.

        Raise SourceError if not allowed.
        """
        offsets, ends = _offsets(start), _offsets(until)
        then, now = start.get("ids", {}), until.get("ids", {})
        odd = {
            one[0]
            for one, offset in offsets.items()
            if one in ends and not oldest[one] <= offset <= ends[one]
        }
        # An id from before the request for offsets does not prove that the topic is the same.
        self._verify({t: now[t] for t in odd if t in now}, decided=False)
        again = {t for t, id_ in now.items() if then.get(t, id_) != id_}
        # Without ids, only a topic that was created again ends before the offsets that were read.
        again |= {
            t
            for (t, p), offset in offsets.items()
            if offset > ends.get((t, p), offset) and not (t in then and t in now)
        }
        changes = [self._before_and_now(topic, start, until) for topic in sorted(again)]
        other = self._with_other_records(start, ends, oldest, again)
        changes += [f"{topic}: {why}" for topic, why in sorted(other.items())]
        again |= other.keys()
        if again and self._config.on_replaced == "stop":
            raise self._replaced(changes)
        self._last = {one: r for one, r in (self._last or {}).items() if one[0] not in again}
        news = [now.get(topic, topic) for topic in again]
        if not self._warned_about.issuperset(news):
            self._warned_about.update(news)
            # Consumers that Spark has cached may hold records of the old topic.
            self._group = _new_group()
            _log.warning(
                "topics were created again and are read from their beginning: %s", _some(changes)
            )
        return again

    def _end_after(self, start: Position, end: Position, last: LastRecords) -> Position:
        """Return a position together with the last records that were read before it."""
        known = _last(start) if self._last is None else self._last
        self._last = known | last
        nested: dict[str, dict[str, tuple[int, int]]] = {}
        for (topic, partition), record in sorted(self._last.items()):
            nested.setdefault(topic, {})[str(partition)] = record
        return {**end, "last": nested} if nested else end

    def _with_other_records(
        self, start: Position, ends: Offsets, oldest: Offsets, again: Collection[str]
    ) -> dict[str, str]:
        """Return the topics whose last record that was read is another one now, and which.

        Records that are gone, by retention or compaction, prove nothing. A client of Java's reads
        topics that this process may have no access to: these are not compared.
        """
        if self._last is None:
            self._last = _last(start)
        interruptions = self._broker.interruptions
        if not self._is_native or self._compared_at == interruptions:
            return {}
        known = {
            one: record
            for one, record in self._last.items()
            if one[0] not in again and one in ends and oldest[one] <= record[0] < ends[one]
        }
        ranges = [SourceRange(*one, at, at + 1, 1) for one, (at, _) in sorted(known.items())]
        options = {**self._config.consumer_options(), **_SMALL_FETCHES}
        found: LastRecords = {}
        try:
            for batch in read(options, ranges) if ranges else ():
                found |= last_records(batch)
        except SourceError as error:
            if error.code is not ErrorCode.SOURCE_DATA_LOST:
                raise
            # deleted since the broker was asked for its oldest records: compared next time
            return {}
        self._compared_at = interruptions
        return {
            one[0]: f"the record at offset {record[0]:,} of partition {one[1]} is another one than "
            "the one that was read there"
            for one, record in found.items()
            if record != known[one]
        }

    def _before_and_now(self, topic: str, start: Position, until: Position) -> str:
        offsets = {one: offset for one, offset in _offsets(start).items() if one[0] == topic}
        then, now = (p.get("ids", {}).get(topic, "unknown") for p in (start, until))
        ended = self._ended.get(then)
        lost = (
            "the number of unread records is unknown"
            if ended is None
            else f"{sum(max(0, o - offsets.get(one, 0)) for one, o in ended.items()):,} records "
            "were seen and not read"
        )
        ends = sum(offset for one, offset in _offsets(until).items() if one[0] == topic)
        return (
            f"{topic}: read up to {sum(offsets.values()):,} with id {then}, {lost}; "
            f"the topic ends at {ends:,} with id {now}"
        )

    def _replaced(self, changes: Sequence[str], *, decided: bool = False) -> SourceError:
        read, where = self._config.on_replaced == "read", self._config.bootstrap_servers
        return replaced("topic", where=where, evidence=_some(changes), read=read, decided=decided)

    def _warn_about_missing(self, start: Position, until: Position) -> None:
        """Log a warning for topics of a pattern that were read and no longer exist."""
        pattern = self._config.topic_pattern
        gone = {
            topic
            for topic in start.get("offsets", {}).keys() - until.get("offsets", {}).keys()
            if pattern is not None and re.fullmatch(pattern, topic)
        }
        if not gone <= self._warned_about:
            _log.warning("topics that were read no longer exist: %s", _some(sorted(gone)))
        self._warned_about |= gone

    def _after_losses(self, offsets: Offsets, ends: Offsets, oldest: Offsets) -> Offsets:
        """Return later starts for partitions that lost records.

        Raise SourceError if not allowed.
        """
        lost = {
            one: oldest[one] - offset
            for one, offset in offsets.items()
            if one in oldest and oldest[one] > offset
        }
        cut = [one for one, offset in offsets.items() if one in ends and offset > ends[one]]
        if not lost and not cut:
            return {}
        losses = [f"{t}/{p}: {n:,} records from {offsets[t, p]:,} on" for (t, p), n in lost.items()]
        losses += [f"{t}/{p}: cut at {ends[t, p]:,}, before {offsets[t, p]:,}" for t, p in cut]
        total = f"{sum(lost.values()):,} records are lost" if lost else "a log was cut"
        if self._config.fail_on_data_loss:
            raise SourceError(
                f"the broker has deleted records before they were read: {total}",
                code=ErrorCode.SOURCE_DATA_LOST,
                where=f"{self._config.bootstrap_servers}, {len(losses)} partitions",
                evidence=_some(losses),
                next_step="give the topic a longer retention; to continue without these records, "
                "set source.fail_on_data_loss: false",
            )
        _log.warning("continuing without deleted records: %s; %s", total, _some(losses))
        return {one: oldest[one] for one in lost} | {one: ends[one] for one in cut}

    def _native(self, spark: SparkSession, ranges: Sequence[SourceRange]) -> ConsumerReader:
        return ConsumerReader(
            tasks=shares(ranges, parallelism(spark)),
            group=self._group,
            fail_on_data_loss=self._config.fail_on_data_loss,
            options=self._config.consumer_options(),
        )

    def _spark(self, spark: SparkSession, ranges: Sequence[SourceRange]) -> DataFrame:
        if not self._config.fail_on_data_loss:
            ranges = self._still_there(ranges)
            if not ranges:
                return spark.range(0)
        starts = _nested({(r.topic, r.partition): r.start for r in ranges})
        ends = _nested({(r.topic, r.partition): r.end for r in ranges})
        options = {
            "kafka.group.id": self._group,
            **self._config.spark_options(),
            "assign": json.dumps({topic: list(map(int, parts)) for topic, parts in starts.items()}),
            "startingOffsets": json.dumps(starts),
            "endingOffsets": json.dumps(ends),
        }
        tasks = parallelism(spark)
        if len(ranges) < tasks:
            options["minPartitions"] = str(tasks)
        frame = spark.read.format("kafka").options(**options).load().select(*RAW.names)
        if alike([r.records for r in ranges], tasks):
            frame = frame.coalesce(tasks)
        # Headers as a list of structs take 15 s for 250,000 records on the way to Arrow, even if
        # empty.
        return frame.withColumn("headers", functions.to_json("headers"))

    def _still_there(self, ranges: Sequence[SourceRange]) -> tuple[SourceRange, ...]:
        """Return the parts of ranges that the broker still has.

        Spark's connector cuts a range in two, and fails if nothing is left of the first part.
        """
        ends = {(r.topic, r.partition): r.end for r in ranges}
        starts = {(r.topic, r.partition): r.start for r in ranges}
        oldest = self._broker.earliest(ends)
        gone = {one: oldest[one] for one, start in starts.items() if oldest[one] > start}
        if gone:
            losses = [f"{t}/{p}: offset {starts[t, p]:,} was due" for t, p in gone]
            _log.warning("continuing without deleted records: %s", _some(losses))
        return ranges_of(starts | gone, ends)


def raw_records(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn Spark's columns into raw records.

    Headers come as JSON; the other columns are cast to the types of raw records.
    """
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
    # In Spark's JSON a header without a value has no `value`, and bytes are base64.
    return [
        {
            "key": header.get("key"),
            "value": base64.b64decode(header["value"]) if "value" in header else None,
        }
        for header in json.loads(text)
    ]


def ranges_of(starts: Offsets, ends: Offsets) -> tuple[SourceRange, ...]:
    """Return the ranges between two sets of offsets, without empty ones."""
    return tuple(
        SourceRange(*one, starts[one], ends[one], ends[one] - starts[one])
        for one in sorted(ends)
        if one in starts and ends[one] > starts[one]
    )


def _position(offsets: Offsets, ids: _Ids, jumps: Offsets | None = None) -> Position:
    position: dict[str, Any] = {"offsets": _nested(offsets)}
    if ids:
        position["ids"] = dict(sorted(ids.items()))
    return position | {"from": _nested(jumps)} if jumps else position


def _nested(offsets: Offsets) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        nested.setdefault(topic, {})[str(partition)] = offset
    return nested


def _offsets(position: Position, part: str = "offsets") -> Offsets:
    nested = position.get(part, {})
    return {(topic, int(p)): int(o) for topic, parts in nested.items() for p, o in parts.items()}


def _last(position: Position) -> LastRecords:
    nested = position.get("last", {})
    return {
        (topic, int(p)): (int(offset), int(checksum))
        for topic, parts in nested.items()
        for p, (offset, checksum) in parts.items()
    }


def _ids(topics: Mapping[str, Topic]) -> dict[str, str]:
    return {name: topic.id for name, topic in topics.items() if topic.id}


def _new_group() -> str:
    return f"distributary-{uuid.uuid4().hex[:12]}"


def _some(texts: Sequence[str]) -> str:
    return "; ".join(texts[:10]) + ("; ..." if len(texts) > 10 else "")


def _shares(waiting: Offsets, limit: int) -> Offsets:
    """Return how many records of each backlog a batch takes: proportional, and at least one."""
    total = sum(waiting.values())
    if total <= limit:
        return waiting
    return {one: max(1, count * limit // total) for one, count in waiting.items()}


def alike(counts: Sequence[int], tasks: int) -> bool:
    """Return whether the tasks would have about equal work, whichever partitions each reads.

    Every task sorts its records into a run, and each run holds a few records of each type: with
    fewer runs, a table is assembled from fewer pieces.
    """
    most = -(-len(counts) // tasks) * max(counts, default=0)
    return len(counts) > tasks and 0 < most * tasks <= _MOST_UNEVEN * sum(counts)


def _evidence(text: str) -> str:
    """Return the evidence in a task's error, or the first line about Kafka."""
    if seen := line_with("  seen: ", text):
        return seen.removeprefix("seen: ")
    lines = [line for line in text.splitlines() if "kafka" in line.lower()] or text.splitlines()
    return lines[0].strip()[:300] if lines else ""
