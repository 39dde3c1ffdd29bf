"""A topic of the real broker, filled as fast as possible, and its batches by their offsets.

Messages go round the partitions, so batch n is the same range of offsets in each of them, for Spark
as for our engine, which takes an equal share of equal backlogs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count

import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import DataFrame, SparkSession

from benchmarks.order import Order
from distributary.config.registry import RegistryConfig
from distributary.registry.http.http_registry import HttpRegistry
from distributary_lab.services.services import Services
from distributary_lab.simulate.kafka_sink import Topics

PARTITIONS = 4
_TOPIC = "bench"
_FLUSH_SECONDS = 120
_POLL_SECONDS = 0.1
_ROWS_PER_POLL = 5_000
PRODUCER = {
    # offsets are counted on: nothing twice
    "enable.idempotence": True,
    "delivery.report.only.error": True,
    "queue.buffering.max.messages": 500_000,
    "linger.ms": 5,
    "log_level": 2,
}


@contextmanager
def serving(order: Order) -> Iterator[Order]:
    """A broker, a registry and an empty topic, gone when it is over; batches divide evenly."""
    with Services(order.root / "services") as services:
        Topics({"bootstrap.servers": services.kafka}).ensure(_TOPIC, partitions=PARTITIONS)
        yield replace(
            order,
            records=max(PARTITIONS, order.records - order.records % PARTITIONS),
            servers=services.kafka,
            registry=services.registry,
            topic=_TOPIC,
        )


def registry_of(order: Order) -> HttpRegistry:
    """The registry, to write to."""
    return HttpRegistry(RegistryConfig.model_validate({"url": order.registry}))


def fill(order: Order, batches: Iterable[pa.RecordBatch]) -> None:
    """Send columns `value` and, where there is one, `key`."""
    producer = Sender(order.servers, order.topic)
    for batch in batches:
        for start in range(0, batch.num_rows, _ROWS_PER_POLL):
            part = batch.slice(start, _ROWS_PER_POLL)
            values = part["value"].to_pylist()
            has_keys = "key" in part.schema.names
            keys = part["key"].to_pylist() if has_keys else [None] * len(values)
            for key, value in zip(keys, values, strict=True):
                producer.send(key, value)
            producer.poll()
    producer.close()


def records_in(order: Order) -> int:
    """Return the number of messages that the topic has."""
    consumer = Consumer({"bootstrap.servers": order.servers, "group.id": "bench", "log_level": 2})
    try:
        places = [TopicPartition(order.topic, partition) for partition in range(PARTITIONS)]
        ends = [consumer.get_watermark_offsets(p, timeout=_FLUSH_SECONDS) for p in places]
        return sum(end - begin for begin, end in ends)
    finally:
        consumer.close()


class Sender:
    """Sends messages to the partitions in turn; what is not delivered is an error."""

    def __init__(self, servers: str, topic: str) -> None:
        self._failed: list[object] = []
        self._topic = topic
        self._turn = count()
        self._producer = Producer(
            {**PRODUCER, "bootstrap.servers": servers, "on_delivery": self._told}
        )

    def send(self, key: bytes | None, value: bytes, *, timestamp: int = 0) -> None:
        """Queue a message; without a time it has the time at which it is queued."""
        partition = next(self._turn) % PARTITIONS
        while True:
            try:
                self._producer.produce(
                    self._topic, value=value, key=key, partition=partition, timestamp=timestamp
                )
                return
            except BufferError:
                self._producer.poll(_POLL_SECONDS)

    def poll(self) -> None:
        """Hear what was not delivered."""
        self._producer.poll(0)
        if self._failed:
            raise RuntimeError(f"a message was not delivered: {self._failed[0]}")

    def close(self) -> None:
        """Wait until the broker has everything."""
        left = self._producer.flush(_FLUSH_SECONDS)
        self.poll()
        if left:
            raise RuntimeError(f"{left} messages were not delivered in {_FLUSH_SECONDS} s")

    def _told(self, error: object, _: object) -> None:
        if error is not None:
            self._failed.append(error)


def batch_frame(spark: SparkSession, order: Order, number: int) -> DataFrame:
    """The records of one batch, with the connector's own columns."""
    size = order.records // PARTITIONS
    return frame(spark, order, number * size, (number + 1) * size)


def frame(spark: SparkSession, order: Order, start: int, end: int) -> DataFrame:
    """The records between two offsets of every partition."""
    options = {
        "kafka.bootstrap.servers": order.servers,
        "assign": json.dumps({order.topic: list(range(PARTITIONS))}),
        "startingOffsets": json.dumps({order.topic: _each(start)}),
        "endingOffsets": json.dumps({order.topic: _each(end)}),
    }
    return spark.read.format("kafka").options(**options).load()


def _each(offset: int) -> dict[str, int]:
    return {str(partition): offset for partition in range(PARTITIONS)}
