"""Kafka topics: the driver decides which offsets are a batch, tasks read them.

They do so by themselves (`source/consumer.py`), or through Spark's Kafka connector where a setting
is one that only a Java client understands.

A position is `{offsets: {topic: {partition: next offset}}, ids: {topic: id}}`. Where a batch did
not start at the position before it (a partition was new, retention had eaten records, or a topic
was made again), its end position says where under `from`, so that the batch can be opened again and
be the same. An id is what a broker gives a topic when it is made: offsets of one id say nothing
about another. Brokers before 2.8 have none, and neither have positions that are older than this.
"""

from __future__ import annotations

import base64
import json
import logging
import math
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from functools import partial
from typing import Any, NoReturn, TypeVar

import pyarrow as pa
from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from pyspark.sql import DataFrame, SparkSession, functions

from distributary.config.kafka import KafkaSource as KafkaSourceConfig
from distributary.config.pipeline import PipelineConfig
from distributary.errors import DistributaryError, ErrorCode, SourceError, SourceUnavailableError
from distributary.model.manifest import SourceRange
from distributary.model.record import RAW
from distributary.source.base import (
    BatchInput,
    Position,
    line_with,
    parallelism,
    replaced,
)
from distributary.source.consumer import (
    ALL_BROKERS_DOWN,
    REFUSED,
    ConsumerReader,
    Partition,
    read,
    refused,
    shares,
)

# What a broker says about its partitions, asked by the driver.

Offsets = dict[Partition, int]
_Answer = TypeVar("_Answer")

_UNKNOWN = "A" * 22
"""The id of every topic, as a broker without ids (before 2.8) has it: 16 bytes of zero."""
_FEW = 50
"""Topics up to which asking for each is cheaper than asking for all: 1,000 take 35 ms, and the list
of 1,000 takes 5 ms, but has no ids."""
_BELIEVED_SECONDS = 1.0
"""How long ids are believed where asking for them is a question of its own."""
_FIRST_SECONDS = (0.3, 1.5)
_SECONDS = 10.0
_NOT_SUPPORTED = -165


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the broker has it now."""

    partitions: tuple[int, ...]
    id: str = ""
    """Another one when the topic is deleted and made again; empty if the broker does not tell."""


class Broker:
    """Asks for topics and offsets; one connection, opened at the first question."""

    def __init__(
        self,
        options: Mapping[str, str],
        *,
        committed_only: bool = False,
        seconds: float = _SECONDS,
    ) -> None:
        """An answer is waited for so many seconds."""
        self._seconds = seconds
        self._servers = options["bootstrap.servers"]
        self._options = dict(options)
        level = IsolationLevel
        self._level = level.READ_COMMITTED if committed_only else level.READ_UNCOMMITTED
        self._error: KafkaError | None = None
        self._client: AdminClient | None = None
        self._believed: tuple[float, Sequence[str], dict[str, Topic]] = (0.0, (), {})

    def partitions(self, topics: Sequence[str], pattern: str | None) -> list[Partition]:
        """The partitions of these topics, or of all topics whose whole name fits the pattern."""
        return _partitions(self.topics(topics, pattern))

    def topics(self, names: Sequence[str], pattern: str | None) -> dict[str, Topic]:
        """These topics, or all topics whose whole name fits the pattern."""
        if pattern is None and len(names) <= _FEW:
            # one question for partitions and ids, and not about all topics of the cluster
            told = self.described(names)
            if len(told) == len(names):
                return {name: told[name] for name in names}
        known = self._topics()
        if pattern is not None:
            names = sorted(name for name in known if re.fullmatch(pattern, name))
        told = self._recently_described(names)
        found = {}
        for name in names:
            if name not in known or known[name].error is not None:
                self._no_topic(name, known)
            id_ = told[name].id if name in told else ""
            found[name] = Topic(tuple(sorted(known[name].partitions)), id_)
        return found

    def names(self) -> list[str]:
        """All topics but the broker's own."""
        return sorted(name for name in self._topics() if not name.startswith("__"))

    def described(self, names: Sequence[str]) -> dict[str, Topic]:
        """What the broker tells about these topics; those that it does not tell about are left out.

        Raises SourceUnavailableError if it does not answer.
        """
        return self._patiently(lambda client, patience: _described(client, names, patience))

    def earliest(self, partitions: Iterable[Partition]) -> Offsets:
        """The oldest record that each partition still has."""
        return self._offsets(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def latest(self, partitions: Iterable[Partition]) -> Offsets:
        """One past the newest record of each partition."""
        return self._offsets(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def since(self, partitions: Sequence[Partition], moment_ms: int) -> Offsets:
        """The first record of each partition that is not older; its end where there is none."""
        found = self._offsets(partitions, OffsetSpec.for_timestamp(moment_ms))
        ends = self.latest([one for one in partitions if found[one] < 0])
        return {one: ends.get(one, offset) for one, offset in found.items()}

    def _topics(self) -> Mapping[str, Any]:
        """All topics."""
        return self._patiently(lambda client, patience: client.list_topics(timeout=patience).topics)

    def _recently_described(self, names: Sequence[str]) -> dict[str, Topic]:
        """As `described`, but asked once a second: polls are more frequent than that."""
        moment, asked, told = self._believed
        if time.monotonic() - moment > _BELIEVED_SECONDS or asked != names:
            told = self.described(names)
            self._believed = time.monotonic(), names, told
        return told

    def _patiently(self, ask: Callable[[AdminClient, float], _Answer]) -> _Answer:
        """Ask; a broker that says no is not waited for, one that says nothing is."""
        client = self._admin()
        for patience in (*_FIRST_SECONDS, self._seconds):
            try:
                return ask(client, patience)
            except KafkaException as error:
                # what the connection had to say is delivered only when it is asked for
                client.poll(0)
                if self._error is not None or patience == self._seconds:
                    self._fail(error)
        raise AssertionError("the last try either answers or fails")

    def _offsets(self, partitions: Iterable[Partition], spec: OffsetSpec) -> Offsets:
        wanted = {TopicPartition(*one): spec for one in partitions}
        if not wanted:
            return {}
        try:
            futures = self._admin().list_offsets(
                wanted, isolation_level=self._level, request_timeout=self._seconds
            )
            return {(tp.topic, tp.partition): f.result().offset for tp, f in futures.items()}
        except KafkaException as error:
            self._fail(error)

    def _admin(self) -> AdminClient:
        if self._client is None:
            self._error = None
            options: dict[str, Any] = {**self._options, "error_cb": self._remember, "log_level": 2}
            self._client = AdminClient(options)
        return self._client

    def _remember(self, error: KafkaError) -> None:
        # what is wrong with a connection is told here, the question itself only times out
        if self._error is None or error.code() != ALL_BROKERS_DOWN:
            self._error = error

    def _fail(self, error: KafkaException) -> NoReturn:
        # a client that could not connect may hold on to its last attempt for a long time
        self._client = None
        told = [each for each in (error.args[0], self._error) if each is not None]
        # by the code alone: the text of an outage names the listener, as in `sasl_ssl://`
        refusal = next((each for each in told if each.code() in REFUSED), None)
        if refusal is not None:
            raise refused(self._servers, refusal.str()) from error
        raise SourceUnavailableError(
            "the broker does not answer",
            where=self._servers,
            evidence=told[-1].str(),
            next_step="start it (for a trial: `distributary dev up`), "
            "or correct source.bootstrap_servers or source.security",
        ) from error

    def _no_topic(self, name: str, known: Mapping[str, Any]) -> NoReturn:
        near = get_close_matches(name, [t for t in known if not t.startswith("__")], n=1)
        raise SourceUnavailableError(
            f"the topic {name!r} does not exist",
            where=self._servers,
            evidence=f"did you mean {near[0]!r}?" if near else f"{len(known)} topics are there",
            next_step="create it, or correct source.topics",
        )


def _described(client: AdminClient, names: Sequence[str], patience: float) -> dict[str, Topic]:
    if not names:
        return {}
    futures = client.describe_topics(TopicCollection(list(names)), request_timeout=patience)
    found = {}
    for name, future in futures.items():
        try:
            told = future.result()
        except KafkaException as error:
            # the broker's own answers are positive: no such topic, or none that may be seen
            if error.args[0].code() > 0 or error.args[0].code() == _NOT_SUPPORTED:
                continue
            raise
        id_ = str(told.topic_id)
        partitions = tuple(sorted(partition.id for partition in told.partitions))
        found[name] = Topic(partitions, "" if id_ == _UNKNOWN else id_)
    return found


_log = logging.getLogger(__name__)
_EARLIEST, _LATEST = -2, -1
_LOST = (
    *("OffsetOutOfRange", "may have been lost", "FAILED_TO_READ_OFFSET", "KAFKA_DATA_LOSS"),
    ErrorCode.SOURCE_DATA_LOST,
)
_MOST_UNEVEN = 1.25
"""What a task may have more to read than its share."""
_GLANCE_SECONDS = 2.5
_SAME_PARTITIONS_SECONDS = 15.0
"""How long it is believed that no partition was added."""
_UNREACHABLE = (
    *("TimeoutException", "kafka.common.errors", "DisconnectException", "KAFKA_"),
    ErrorCode.SOURCE_UNAVAILABLE,
)
_REFUSED = f"{ErrorCode.SOURCE_INVALID}: "
"""How the words of a task begin that librdkafka or the broker did not let read."""
_Ids = Mapping[str, str]


def _broker(config: KafkaSourceConfig, *, seconds: float = _SECONDS) -> Broker:
    level = config.options.get("kafka.isolation.level")
    committed = level is not None and level.get_secret_value() == "read_committed"
    return Broker(config.client_options(), committed_only=committed, seconds=seconds)


class KafkaEnds:
    """Where the partitions end now, asked over a connection of its own: by another thread."""

    def __init__(self, config: KafkaSourceConfig) -> None:
        self._config = config
        self._broker = _broker(config, seconds=_GLANCE_SECONDS)
        self._known: tuple[float, list[Partition]] = (-math.inf, [])

    def ask(self) -> dict[str, int]:
        """By `topic/partition`, one past the newest record. Raises SourceUnavailableError."""
        moment, partitions = self._known
        if time.monotonic() - moment > _SAME_PARTITIONS_SECONDS:
            partitions = self._broker.partitions(self._config.topics, self._config.topic_pattern)
            self._known = time.monotonic(), partitions
        return {f"{t}/{p}": offset for (t, p), offset in self._broker.latest(partitions).items()}

    @staticmethod
    def reached(position: Position) -> dict[str, int]:
        """By `topic/partition`, the first record that is not read at a position."""
        return {f"{t}/{p}": offset for (t, p), offset in _offsets(position).items()}


def require_broker(config: PipelineConfig) -> None:
    """Raise SourceUnavailableError where the broker of a pipeline does not answer."""
    reads_bronze = config.shard is not None and not config.shard.lands
    if isinstance(config.source, KafkaSourceConfig) and not reads_bronze:
        KafkaSource(config.source).newest()


class KafkaSource:
    """Reads topics by ranges of offsets."""

    def __init__(self, config: KafkaSourceConfig) -> None:
        self._config = config
        self._is_native = config.is_native
        self._broker = _broker(config)
        self._newest: Offsets = {}
        self._ids: _Ids = {}
        """Of the topics when `newest` was asked last."""
        self._opened: _Ids = {}
        """Of the topics of the batch that was opened last."""
        self._ended: dict[str, Offsets] = {}
        """By the id of a topic that is gone: where it ended when it was last seen."""
        self._told: set[str] = set()
        """Topics, by name or id, that the log has been told about."""
        # one group for the whole run: consumers are kept by it
        self._group = _new_group()

    def first(self) -> Position:
        """Where the settings say; partitions that come later are read from their beginning."""
        topics = self._topics()
        partitions = _partitions(topics)
        chosen = self._config.starting_offsets
        if isinstance(chosen, datetime):
            found = self._broker.since(partitions, int(chosen.timestamp() * 1000))
        elif chosen == "latest":
            found = self._broker.latest(partitions)
        elif chosen == "earliest":
            found = self._broker.earliest(partitions)
        else:
            flat = {(topic, p): at for topic, each in chosen.items() for p, at in each.items()}
            ends = self._broker.latest([one for one in partitions if flat.get(one) == _LATEST])
            plain = {one: flat[one] for one in partitions if flat.get(one, _EARLIEST) >= 0}
            found = self._broker.earliest(partitions) | plain | ends
        return _position(found, _ids(topics))

    def newest(self) -> Position:
        """One past the newest record of every partition; new partitions and topics included."""
        # ids first: what is replaced behind this question is noticed when a batch is verified
        topics = self._topics()
        newest, ids = self._broker.latest(_partitions(topics)), _ids(topics)
        for topic, id_ in self._ids.items():
            if ids.get(topic) != id_:
                self._ended[id_] = {one: o for one, o in self._newest.items() if one[0] == topic}
        self._newest, self._ids = newest, ids
        return _position(newest, ids)

    def advance(self, start: Position, until: Position) -> Position | None:
        """A share of every partition's backlog, so that none of them starves."""
        ends, before = _offsets(until), _offsets(start)
        oldest = self._broker.earliest(ends)
        again = self._made_anew(start, until, oldest)
        self._tell_missing(start, until)
        known = {one: offset for one, offset in before.items() if one[0] not in again}
        moved = self._after_losses(known, ends, oldest)
        starts = {one: moved.get(one, known.get(one, oldest[one])) for one in ends}
        waiting = {one: ends[one] - starts[one] for one in ends if ends[one] > starts[one]}
        if not waiting:
            return None
        taken = _shares(waiting, self._config.max_records_per_batch)
        reached = known | starts | {one: starts[one] + count for one, count in taken.items()}
        jumps = {
            one: starts[one]
            for one in ends
            if (one in taken or one in before) and before.get(one) != starts[one]
        }
        return _position(reached, {**start.get("ids", {}), **until.get("ids", {})}, jumps)

    def retrace(self, start: Position, ranges: Sequence[SourceRange]) -> Position:
        """The ends of the ranges."""
        before = _offsets(start)
        ends = {(r.topic, r.partition): r.end for r in ranges}
        jumps = {
            (r.topic, r.partition): r.start
            for r in ranges
            if before.get((r.topic, r.partition)) != r.start
        }
        # only a topic that was made again is ever read from further back: its other partitions
        # start over too, and its id is learned with the next batch
        again = {one[0] for one, offset in jumps.items() if offset < before.get(one, 0)}
        known = {one: offset for one, offset in before.items() if one[0] not in again}
        ids = {topic: id_ for topic, id_ in start.get("ids", {}).items() if topic not in again}
        return _position(known | ends, ids, jumps)

    def open(self, spark: SparkSession, start: Position, end: Position) -> BatchInput:
        """The records between two positions, each task's share read when it runs."""
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
            verify=partial(self._verify, self._opened),
        )

    def peek(self, start: Position) -> Iterator[pa.RecordBatch]:
        """The next records of every partition, at most one batch of them."""
        until = self.newest()
        end = self.advance(start, until)
        if end is None:
            return
        starts = _offsets(start) | _offsets(end, "from")
        yield from read(self._config.consumer_options(), ranges_of(starts, _offsets(end)))

    def explain(self, error: Exception) -> DistributaryError | None:
        """What a failure of Spark's job means, where it is about the broker."""
        text = str(error)
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
                next_step="check source.security and source.options, and what the user may read",
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
            next_step="nothing of the batch is half done: it is tried again",
        )

    def _topics(self) -> dict[str, Topic]:
        return self._broker.topics(self._config.topics, self._config.topic_pattern)

    def _verify(self, ids: _Ids, *, decided: bool) -> None:
        """Raise SourceError if one of these topics is another one now.

        One that is not there was not read from since: what was read of it counts.
        """
        now = _ids(self._broker.described(list(ids)))
        changed = {topic: id_ for topic, id_ in now.items() if id_ != ids[topic]}
        if not changed:
            return
        told = [f"{topic}: was {ids[topic]}, is {id_}" for topic, id_ in changed.items()]
        raise self._replaced(told, decided=decided)

    def _made_anew(self, start: Position, until: Position, oldest: Offsets) -> set[str]:
        """Topics that are no longer those that were read; SourceError unless that is allowed."""
        known, ends = _offsets(start), _offsets(until)
        then, now = start.get("ids", {}), until.get("ids", {})
        odd = {
            one[0]
            for one, offset in known.items()
            if one in ends and not oldest[one] <= offset <= ends[one]
        }
        # an id of before the offsets were asked for is no proof that the topic is the same
        self._verify({t: now[t] for t in odd if t in now}, decided=False)
        again = {t for t, id_ in now.items() if then.get(t, id_) != id_}
        # where no id tells, nothing but a topic made again ends before what was read of it
        again |= {
            t
            for (t, p), offset in known.items()
            if offset > ends.get((t, p), offset) and not (t in then and t in now)
        }
        told = [self._before_and_now(topic, start, until) for topic in sorted(again)]
        if again and self._config.on_replaced == "stop":
            raise self._replaced(told)
        news = [now.get(topic, topic) for topic in again]
        if not self._told.issuperset(news):
            self._told.update(news)
            # consumers that Spark has kept may hold records of the old topic
            self._group = _new_group()
            _log.warning(
                "reading topics that were made again from their beginning: %s", _some(told)
            )
        return again

    def _before_and_now(self, topic: str, start: Position, until: Position) -> str:
        known = {one: offset for one, offset in _offsets(start).items() if one[0] == topic}
        then, now = (p.get("ids", {}).get(topic, "unknown") for p in (start, until))
        ended = self._ended.get(then)
        lost = (
            "how many of its records were not read is not known"
            if ended is None
            else f"{sum(max(0, o - known.get(one, 0)) for one, o in ended.items()):,} records of "
            "it were seen and not read"
        )
        ends = sum(offset for one, offset in _offsets(until).items() if one[0] == topic)
        return (
            f"{topic}: read up to {sum(known.values()):,} with id {then}, {lost}; "
            f"it ends at {ends:,} with id {now}"
        )

    def _replaced(self, told: Sequence[str], *, decided: bool = False) -> SourceError:
        read, where = self._config.on_replaced == "read", self._config.bootstrap_servers
        return replaced("topic", where=where, evidence=_some(told), read=read, decided=decided)

    def _tell_missing(self, start: Position, until: Position) -> None:
        """Topics of a pattern that were read and are not there: nobody else would ask for them."""
        pattern = self._config.topic_pattern
        gone = {
            topic
            for topic in start.get("offsets", {}).keys() - until.get("offsets", {}).keys()
            if pattern is not None and re.fullmatch(pattern, topic)
        }
        if not gone <= self._told:
            _log.warning("topics that were read are no longer there: %s", _some(sorted(gone)))
        self._told |= gone

    def _after_losses(self, known: Offsets, ends: Offsets, oldest: Offsets) -> Offsets:
        """Partitions that can only be read from further on; SourceError unless that is allowed."""
        lost = {
            one: oldest[one] - offset
            for one, offset in known.items()
            if one in oldest and oldest[one] > offset
        }
        cut = [one for one, offset in known.items() if one in ends and offset > ends[one]]
        if not lost and not cut:
            return {}
        told = [f"{t}/{p}: {n:,} records from {known[t, p]:,} on" for (t, p), n in lost.items()]
        told += [f"{t}/{p}: cut at {ends[t, p]:,}, before {known[t, p]:,}" for t, p in cut]
        total = f"{sum(lost.values()):,} records are gone" if lost else "a log was cut"
        if self._config.fail_on_data_loss:
            raise SourceError(
                f"the broker has deleted records before they were read: {total}",
                code=ErrorCode.SOURCE_DATA_LOST,
                where=f"{self._config.bootstrap_servers}, {len(told)} partitions",
                evidence=_some(told),
                next_step="give the topic a longer retention; to go on without these records set "
                "source.fail_on_data_loss: false",
            )
        _log.warning("going on without deleted records: %s; %s", total, _some(told))
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
            "assign": json.dumps({topic: list(map(int, each)) for topic, each in starts.items()}),
            "startingOffsets": json.dumps(starts),
            "endingOffsets": json.dumps(ends),
        }
        tasks = parallelism(spark)
        if len(ranges) < tasks:
            options["minPartitions"] = str(tasks)
        frame = spark.read.format("kafka").options(**options).load().select(*RAW.names)
        if alike([r.records for r in ranges], tasks):
            frame = frame.coalesce(tasks)
        # as a list of structs they take 15 s for 250,000 records on the way to Arrow, even empty
        return frame.withColumn("headers", functions.to_json("headers"))

    def _still_there(self, ranges: Sequence[SourceRange]) -> tuple[SourceRange, ...]:
        """What the broker still has of ranges.

        Spark's connector cuts a range in two, and fails where nothing is left of the first one.
        """
        ends = {(r.topic, r.partition): r.end for r in ranges}
        starts = {(r.topic, r.partition): r.start for r in ranges}
        oldest = self._broker.earliest(ends)
        gone = {one: oldest[one] for one, start in starts.items() if oldest[one] > start}
        if gone:
            told = [f"{t}/{p}: {starts[t, p]:,} was to be read" for t, p in gone]
            _log.warning("going on without deleted records: %s", _some(told))
        return ranges_of(starts | gone, ends)


def raw_records(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Spark's columns as raw records.

    Headers come as JSON; of the others only the types may be spelled differently.
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
    # a header without a value has no `value` in Spark's JSON, and bytes are base64 there
    return [
        {
            "key": header.get("key"),
            "value": base64.b64decode(header["value"]) if "value" in header else None,
        }
        for header in json.loads(text)
    ]


def ranges_of(starts: Offsets, ends: Offsets) -> tuple[SourceRange, ...]:
    """What lies between, without partitions that have nothing there."""
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


def _partitions(topics: Mapping[str, Topic]) -> list[Partition]:
    return [(name, number) for name, topic in topics.items() for number in topic.partitions]


def _ids(topics: Mapping[str, Topic]) -> dict[str, str]:
    return {name: topic.id for name, topic in topics.items() if topic.id}


def _new_group() -> str:
    return f"distributary-{uuid.uuid4().hex[:12]}"


def _some(told: Sequence[str]) -> str:
    return "; ".join(told[:10]) + ("; ..." if len(told) > 10 else "")


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


def _evidence(text: str) -> str:
    """What a task of ours has seen, or the first line that is about Kafka."""
    if seen := line_with("  seen: ", text):
        return seen.removeprefix("seen: ")
    lines = [line for line in text.splitlines() if "kafka" in line.lower()] or text.splitlines()
    return lines[0].strip()[:300] if lines else ""
