"""Reading of Kafka offset ranges in this process with librdkafka, in tasks and for previews.

The caller decides where to end. A consumer is assigned partitions and offsets, belongs to no group
and commits nothing. Offsets may have gaps, where a topic is compacted or a transaction ends. So a
range is done when an offset at or after its end was seen: of a record, or of the partition's end.
"""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from distributary.errors import ErrorCode, SourceError, SourceUnavailableError, clean
from distributary.model.cache import Cache
from distributary.model.manifest import SourceRange
from distributary.model.record import HEADER, RAW, TIMESTAMP, Partition

_log = logging.getLogger(__name__)

REFUSED = frozenset(
    {
        # librdkafka's own codes are negative: this is a local authentication failure.
        -169,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
    }
)
"""The codes by which a broker refuses a client."""
ALL_BROKERS_DOWN = -187
_END = -191
_OUT_OF_RANGE = frozenset({KafkaError.OFFSET_OUT_OF_RANGE, -140, -139})
"""The codes for a missing offset: the broker's, and librdkafka's for a forbidden reset and for a
truncated log."""
_PASSING = frozenset({ALL_BROKERS_DOWN, -195, -185})
"""The codes of connection problems and timeouts after which librdkafka continues."""

_MOST_RECORDS = 20_000
_MOST_BYTES = 32 << 20
"""The largest number of bytes of records taken from librdkafka at once, estimated from the records
before."""
_WAIT_SECONDS = 0.1
_PATIENCE_SECONDS = 30.0
"""Seconds without a record of any partition after which the broker counts as unavailable."""
_DOWN_SECONDS = 5.0
"""The same if no broker can be reached, or all refuse this client."""
_OLDEST_MS, _NEWEST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999: producers may write any number as a time, and tables hold no other years."""

_OPTIONS: Mapping[str, str | int | bool] = {
    # The default of the Java client, and so of Spark's connector; librdkafka's is read_committed.
    "isolation.level": "read_uncommitted",
    "check.crcs": True,
    "queued.min.messages": _MOST_RECORDS,
    "queued.max.messages.kbytes": 65_536,
    # By default, a full queue is checked again after a second.
    "fetch.queue.backoff.ms": 2,
    # Only applies at the end of a partition, where there is nothing to wait for.
    "fetch.wait.max.ms": 10,
    # The largest possible answer, because a record may be larger than a fetch.
    "receive.message.max.bytes": 2**31 - 1,
    # Limits what is sent, but no fetch may be smaller.
    "message.max.bytes": 1_000,
    "reconnect.backoff.max.ms": 1_000,
    "topic.metadata.propagation.max.ms": 5_000,
}
_FIXED_OPTIONS: Mapping[str, str | int | bool] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    # Never skip offsets silently.
    "auto.offset.reset": "error",
    "allow.auto.create.topics": False,
    "max.poll.interval.ms": 86_400_000,
    "log_level": 2,
}


def shares(ranges: Sequence[SourceRange], tasks: int) -> list[list[SourceRange]]:
    """Distribute ranges over tasks of about equal size; a large range is cut.

    A cut never leaves a small rest of a range or of a share.
    """
    total = sum(r.records for r in ranges)
    count = max(1, min(tasks, total))
    slack = total // count // 8
    assigned: list[list[SourceRange]] = [[] for _ in range(count)]
    passed = number = 0
    for r in ranges:
        start = r.start
        while start < r.end:
            while number < count - 1 and passed >= total * (number + 1) // count - slack:
                number += 1
            end = start + total * (number + 1) // count - passed
            if number == count - 1 or r.end - end <= slack:
                end = r.end
            assigned[number].append(SourceRange(r.topic, r.partition, start, end, end - start))
            passed += end - start
            start = end
    return [share for share in assigned if share]


@dataclass(frozen=True, slots=True)
class ConsumerReader:
    """A reader of a task's ranges as raw records."""

    tasks: Sequence[Sequence[SourceRange]]
    group: str
    """The consumer group, which changes when topics were created again: cached consumers of the old
    group are not used for them."""
    fail_on_data_loss: bool
    options: Mapping[str, str] = field(repr=False)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the ranges of the tasks whose numbers are in `batches`."""
        key = (self.group, *sorted(self.options.items()))
        for batch in batches:
            for number in batch.column(0).to_pylist() if self.tasks else ():
                client = _KEPT.take(key) or Client(self.options, group=self.group)
                try:
                    yield from client.read(self.tasks[number], strict=self.fail_on_data_loss)
                except BaseException:
                    client.close()
                    raise
                _KEPT.keep(key, client)


def read(
    options: Mapping[str, str], ranges: Sequence[SourceRange], *, most_bytes: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Read the records of these ranges in this process.

    With `most_bytes`, reading ends with the batch that reaches this size.
    """
    # Prefetched records count, too.
    queue = {} if most_bytes is None else {"queued.max.messages.kbytes": str(most_bytes >> 10)}
    client = Client({**options, **queue}, group="distributary-peek")
    taken = 0
    try:
        for batch in client.read(ranges, strict=True):
            yield batch
            taken += batch.nbytes
            if most_bytes is not None and taken >= most_bytes:
                return
    finally:
        client.close()


class Client:
    """A consumer, and the last error of its connections."""

    def __init__(self, options: Mapping[str, str], *, group: str) -> None:
        self._servers = options["bootstrap.servers"]
        self._error: KafkaError | None = None
        try:
            self._consumer = Consumer(
                {
                    "group.id": group,
                    **_OPTIONS,
                    **options,
                    **_FIXED_OPTIONS,
                    "error_cb": self._remember,
                }
            )
        except (KafkaException, ValueError) as error:
            raise SourceError(
                "librdkafka refuses these settings",
                where=self._servers,
                evidence=clean(str(error)),
                next_step="correct source.security or source.options, or set source.reader: spark",
            ) from None

    def close(self) -> None:
        """Close the connections and threads."""
        self._consumer.close()

    def read(self, ranges: Sequence[SourceRange], *, strict: bool) -> Iterator[pa.RecordBatch]:
        """Read the records of these ranges, one per partition.

        If `strict`, fail if some are deleted.
        """
        self._error = None
        left = _Left({(r.topic, r.partition): r for r in ranges if r.end > r.start})
        if not left.ends:
            return
        self._consumer.assign(left.places())
        most, moved = 1_000, time.monotonic()
        while left.ends:
            messages = self._taken(min(most, left.offsets))
            failures: list[Message] = []
            if any(map(Message.error, messages)):
                failures = [message for message in messages if message.error() is not None]
                messages = [message for message in messages if message.error() is None]
            if messages:
                self._error = None
                places = _places(messages, left.topic)
                keep, done = left.seen(*places)
                self._finish(done, left)
                if not keep.all():
                    messages = list(compress(messages, keep))
                    places = _Places(*(values.filter(pa.array(keep)) for values in places))
                batch = _as_raw(messages, places)
                most = _at_once(batch)
                if batch.num_rows:
                    yield batch
                moved = time.monotonic()
            for message in failures:
                self._answer(message, left, strict=strict)
            if not messages:
                self._keep_patience(moved, left, strict=strict)
        self._consumer.unassign()

    def _taken(self, most: int) -> list[Message]:
        try:
            return self._consumer.consume(most, timeout=_WAIT_SECONDS)
        except KafkaException as error:
            raise self._unavailable(error.args[0]) from error

    def _finish(self, done: Sequence[Partition], left: _Left) -> None:
        """Stop reading these partitions: a partition that waits at its end makes the others wait.

        librdkafka aborts the process if a partition is unassigned that was not assigned.
        """
        assigned = [one for one in done if left.ends.pop(one, None) is not None]
        if assigned:
            self._consumer.incremental_unassign([TopicPartition(*one) for one in assigned])

    def _answer(self, message: Message, left: _Left, *, strict: bool) -> None:
        """Handle a message that is an error and no record."""
        error = message.error()
        one = (str(message.topic()), int(message.partition() or 0))
        if error is None or one not in left.ends or error.code() in _PASSING:
            # Ignore finished partitions and errors of no partition; connection errors come
            # elsewhere.
            return
        if error.code() == _END:
            if int(message.offset() or 0) >= left.ends[one]:
                self._finish([one], left)
        elif error.code() in _OUT_OF_RANGE:
            self._after_loss(one, left, strict=strict)
        elif error.code() in REFUSED:
            raise refused(self._servers, clean(error.str()))
        else:
            raise self._unavailable(error)

    def _after_loss(self, one: Partition, left: _Left, *, strict: bool) -> None:
        """Continue with the records of the range that are left, if there are any."""
        oldest, end = self._bounds(one)
        position = left.positions[one]
        gone = (
            f"{one[0]}/{one[1]}: offset {position:,} was due, the broker has {oldest:,} to {end:,}"
        )
        if strict:
            raise SourceError(
                "records were deleted at the broker while they were being read",
                code=ErrorCode.SOURCE_DATA_LOST,
                where=self._servers,
                evidence=clean(gone),
            )
        _log.warning("continuing without deleted records: %s", clean(gone))
        last = left.ends[one]
        self._finish([one], left)
        if position < oldest < last:
            left.ends[one], left.positions[one] = last, oldest
            self._consumer.incremental_assign([TopicPartition(*one, oldest)])

    def _keep_patience(self, moved: float, left: _Left, *, strict: bool) -> None:
        """Raise an error if the broker has been silent for too long."""
        error, waited = self._error, time.monotonic() - moved
        hopeless = error is not None and error.code() in REFUSED | {ALL_BROKERS_DOWN}
        # Not at once: a cached consumer learns only now what happened since the batch before.
        if waited < (_DOWN_SECONDS if hopeless else _PATIENCE_SECONDS):
            return
        if error is not None and error.code() in REFUSED:
            raise refused(self._servers, clean(error.str()))
        if error is not None:
            raise self._unavailable(error)
        for one in list(left.ends):
            # A truncated log ends before the range does, and reports nothing.
            if self._bounds(one)[1] < left.ends[one]:
                self._after_loss(one, left, strict=strict)
        if left.ends:
            raise self._unavailable(None)

    def _bounds(self, one: Partition) -> tuple[int, int]:
        """Return the oldest offset and the end of a partition."""
        try:
            watermarks = self._consumer.get_watermark_offsets(
                TopicPartition(*one), timeout=_PATIENCE_SECONDS
            )
        except KafkaException as error:
            raise self._unavailable(error.args[0]) from error
        if watermarks is None:
            raise self._unavailable(None)
        return int(watermarks[0]), int(watermarks[1])

    def _remember(self, error: KafkaError) -> None:
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            # This client uses no group.
            return
        if self._error is not None and self._error.code() in REFUSED:
            # Brokers that refuse a client are reported as down too, which is not the cause.
            return
        if self._error is None or error.code() in REFUSED or error.code() == ALL_BROKERS_DOWN:
            self._error = error

    def _unavailable(self, error: KafkaError | None) -> SourceUnavailableError:
        return SourceUnavailableError(
            "the broker did not deliver records that it has announced",
            where=self._servers,
            evidence="no answer" if error is None else clean(error.str()),
            next_step="run again; `distributary doctor` checks the broker",
        )


_KEPT: Cache[Client] = Cache(2)
"""The cached clients of this worker, with open connections; dropped ones are closed by their
destructor."""


class _Places(NamedTuple):
    """The topics, partitions and offsets of some records."""

    topics: pa.StringArray
    partitions: pa.Int32Array
    offsets: pa.Int64Array


def _places(messages: Sequence[Message], topic: str | None) -> _Places:
    """Return the coordinates of messages; `topic` is that of all messages, which saves time."""
    count = len(messages)
    topics = (
        pa.array(map(Message.topic, messages), pa.string(), size=count)
        if topic is None
        else pa.repeat(pa.scalar(topic, pa.string()), count)
    )
    return _Places(
        topics,
        pa.array(np.fromiter(map(Message.partition, messages), np.int32, count)),
        pa.array(np.fromiter(map(Message.offset, messages), np.int64, count)),
    )


class _Left:
    """The offsets of each partition that are still to be read."""

    def __init__(self, ranges: Mapping[Partition, SourceRange]) -> None:
        self.ends = {one: r.end for one, r in ranges.items()}
        self.positions = {one: r.start for one, r in ranges.items()}
        topics = {topic for topic, _ in ranges}
        self.topic = next(iter(topics)) if len(topics) == 1 else None
        """The topic of all records, if there is only one."""

    @property
    def offsets(self) -> int:
        """Return the number of offsets between the positions and the ends."""
        return sum(end - self.positions[one] for one, end in self.ends.items())

    def places(self) -> list[TopicPartition]:
        return [TopicPartition(*one, offset) for one, offset in self.positions.items()]

    def seen(
        self, topics: pa.StringArray, partitions: pa.Int32Array, offsets: pa.Int64Array
    ) -> tuple[np.ndarray, list[Partition]]:
        """Return a mask of the wanted records, and the partitions that are done."""
        numbers, places = partitions.to_numpy(), offsets.to_numpy()
        keep = np.zeros(len(numbers), bool)
        done = []
        for one, end in self.ends.items():
            mine = numbers == one[1]
            if self.topic is None:
                mine &= pc.equal(topics, one[0]).to_numpy(zero_copy_only=False)
            here = np.flatnonzero(mine)
            if not len(here):
                continue
            # A consumer yields the records of a partition in order.
            last = int(places[here[-1]])
            keep[here] = places[here] < end
            self.positions[one] = min(last + 1, end)
            if last >= end - 1:
                done.append(one)
        return keep, done


def _at_once(batch: pa.RecordBatch) -> int:
    """Return how many records to take next, by the size of these."""
    if not batch.num_rows:
        return _MOST_RECORDS
    fitting = int(_MOST_BYTES * batch.num_rows // batch.nbytes)
    return max(1, min(_MOST_RECORDS, fitting))


def _as_raw(messages: Sequence[Message], places: _Places) -> pa.RecordBatch:
    # `map` calls the methods without a Python loop, which would take as long as the calls.
    stamps = map(itemgetter(1), map(Message.timestamp, messages))
    times = np.fromiter(stamps, np.int64, len(messages))
    columns = [
        pa.array(list(map(Message.key, messages)), pa.binary()),
        pa.array(list(map(Message.value, messages)), pa.binary()),
        _headers(messages),
        *places,
        pa.array(times.clip(_OLDEST_MS, _NEWEST_MS) * 1000).cast(TIMESTAMP),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RAW)


Headers = list[tuple[str, bytes | None]] | None


def _headers(messages: Sequence[Message]) -> pa.ListArray:
    """Return the headers of messages; null for a message without any, as in Spark's connector."""
    lists: list[Headers]
    try:
        lists = list(map(Message.headers, messages))  # type: ignore[arg-type]
    except SystemError:
        lists = [_odd_headers(message) for message in messages]
    if not any(lists):
        return pa.nulls(len(lists), RAW.field("headers").type)
    ends = np.cumsum([0, *(len(headers or ()) for headers in lists)], dtype=np.int32)
    pairs = [pair for headers in lists for pair in headers or ()]
    names = pa.array([name for name, _ in pairs], pa.string())
    values = pa.array([value for _, value in pairs], pa.binary())
    absent = pa.array([not headers for headers in lists])
    return pa.ListArray.from_arrays(
        pa.array(ends),
        pa.StructArray.from_arrays([names, values], fields=list(HEADER)),
        type=RAW.field("headers").type,
        mask=absent,
    )


_item = ctypes.pythonapi.PyTuple_GetItem
_item.restype, _item.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_ssize_t]


def _odd_headers(message: Message) -> Headers:
    """Return headers with names that may be no text: the client raises once, then returns NULL.

    The NULL is no Python object, and must not be touched.
    """
    try:
        pairs = message.headers()
    except SystemError:
        pairs = message.headers()
    headers: Headers = pairs  # type: ignore[assignment]
    return headers and [(pair[0] if _item(pair, 0) else "\ufffd", pair[1]) for pair in headers]


def refused(servers: str, evidence: str) -> SourceError:
    """Return the error for a broker that refuses the credentials."""
    return SourceError(
        "the broker refuses these credentials",
        where=servers,
        evidence=evidence,
        next_step="check source.security, and the user's read permissions",
    )
