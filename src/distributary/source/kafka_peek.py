"""A few records of Kafka in this process, without Spark: for a look ahead."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from distributary.errors import SourceUnavailableError
from distributary.model.record import RAW
from distributary.source.kafka_offsets import Partition

_RECORDS_PER_ARROW_BATCH = 10_000
_PATIENCE_SECONDS = 30.0


def peek(
    options: Mapping[str, str], ranges: Mapping[Partition, tuple[int, int]]
) -> Iterator[pa.RecordBatch]:
    """The records of these offsets, each range with its end left out."""
    left = {one: end for one, (start, end) in ranges.items() if end > start}
    if not left:
        return
    consumer = Consumer(
        {
            **options,
            "group.id": "distributary-peek",
            "enable.auto.commit": False,
            # a range that ends in a transaction's marker has no last record to wait for
            "enable.partition.eof": True,
            "log_level": 2,
        }
    )
    try:
        consumer.assign([TopicPartition(*one, ranges[one][0]) for one in left])
        yield from _consume(consumer, left)
    finally:
        consumer.close()


def _consume(consumer: Consumer, left: dict[Partition, int]) -> Iterator[pa.RecordBatch]:
    patience = time.monotonic() + _PATIENCE_SECONDS
    while left:
        try:
            messages = consumer.consume(_RECORDS_PER_ARROW_BATCH, timeout=1.0)
        except KafkaException as error:
            raise _unavailable(str(error.args[0])) from error
        if messages:
            patience = time.monotonic() + _PATIENCE_SECONDS
        elif time.monotonic() > patience:
            raise _unavailable("no answer")
        wanted = []
        for message in messages:
            one = (str(message.topic()), int(message.partition() or 0))
            end, offset = left.get(one), int(message.offset() or 0)
            if end is None:
                continue
            if message.error() is None and offset < end:
                wanted.append(message)
            if message.error() is not None or offset >= end - 1:
                del left[one]
        if wanted:
            yield _as_raw(wanted)


def _as_raw(messages: list[Message]) -> pa.RecordBatch:
    rows: list[dict[str, Any]] = [
        {
            "key": message.key(),
            "value": message.value(),
            "headers": _headers(message),
            "topic": message.topic(),
            "partition": message.partition(),
            "offset": message.offset(),
            "timestamp": message.timestamp()[1] * 1000,
        }
        for message in messages
    ]
    return pa.RecordBatch.from_pylist(rows, schema=RAW)


def _headers(message: Message) -> list[dict[str, Any]] | None:
    given: Any = message.headers() or []
    return [{"key": name, "value": value} for name, value in given] or None


def _unavailable(evidence: str) -> SourceUnavailableError:
    return SourceUnavailableError(
        "the broker did not give the records that it said it has",
        evidence=evidence,
        next_step="try again; `distributary doctor` checks the broker",
    )
