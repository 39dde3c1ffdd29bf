"""The lag that `status` shows, against the broker's own ends and the ledger."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from datetime import datetime
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import SparkSession

from distributary.model.record import Format
from distributary.observe.events import BatchSettled
from tests.engine.test_kafka_faults import Going
from tests.engine.test_kafka_streams import person
from tests.lakes.streams import Stream
from tests.registry.frames import frame
from tests.services.secured import SecuredServices
from tests.waiting import eventually

PARTITIONS, BATCH, SAMPLES = 2, 300, 6


class Ends:
    """What the broker has, partition by partition, over time."""

    def __init__(self, servers: str, topic: str) -> None:
        self._consumer = Consumer({"bootstrap.servers": servers, "group.id": "ends"})
        self._places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        self.times: list[float] = []
        self.ends: list[dict[str, int]] = []

    def ask(self) -> None:
        found = {}
        for place in self._places:
            _, end = self._consumer.get_watermark_offsets(place, timeout=10)
            found[f"{place.topic}/{place.partition}"] = end
        self.times.append(time.time())
        self.ends.append(found)

    def around(self, moment: datetime) -> tuple[dict[str, int], dict[str, int]]:
        """Return the last ends before a moment and the first ones after it."""
        index = bisect_right(self.times, moment.timestamp())
        return self.ends[max(index - 2, 0)], self.ends[min(index + 1, len(self.ends) - 1)]

    def close(self) -> None:
        self._consumer.close()


def read_until(run: Going, moment: datetime) -> tuple[dict[str, int], dict[str, int]]:
    """Return by partition where the batches ended before a moment, and where the next one did."""
    reached: dict[str, int] = {}
    for row in run.pipeline.ledger().batches(run.pipeline.config.name):
        ends = {f"{r.topic}/{r.partition}": r.end for r in row.ranges}
        if row.finished_at > moment:
            return reached, reached | ends
        reached |= ends
    return reached, reached


def test_lag_is_that_of_one_moment_while_batches_are_under_way(
    services: SecuredServices, tmp_path: Path, spark: SparkSession
) -> None:
    stream = Stream(
        services,
        tmp_path,
        payload="{format: protobuf}",
        tables="{each: people}",
        partitions=PARTITIONS,
    )
    number = stream.registry.register(stream.subject, person(1), format=Format.PROTOBUF)
    value = frame(b"\x08\x01", schema_id=number)
    producer = Producer({"bootstrap.servers": services.kafka})
    ends, over = Ends(services.kafka, stream.topic), threading.Event()

    def produce() -> None:
        # faster than any pipeline of batches as small as these
        while not over.is_set():
            for number in range(PARTITIONS):
                for _ in range(60):
                    producer.produce(stream.topic, value, partition=number)
            producer.flush()
            ends.ask()

    producing = threading.Thread(target=produce)
    producing.start()
    shown = []
    try:
        with Going(stream, spark, source=f"  max_records_per_batch: {BATCH}") as run:
            batches = [0]

            def another() -> bool:
                return sum(isinstance(e, BatchSettled) for e in run.events) > batches[0]

            while len(shown) < SAMPLES:
                eventually(another, seconds=120)
                batches[0] += 1
                found = run.status()
                if found.backlog is not None:
                    shown.append(found)
            settled = len(run.events)
            eventually(lambda: len(run.events) > settled + 10, seconds=120)
    finally:
        over.set()
        producing.join()
        ends.close()
    assert any(each.under_way for each in shown)
    for each in shown:
        assert each.lag.lag_at is not None and each.lag.lag_records is not None
        before, after = ends.around(each.lag.lag_at)
        read, read_next = read_until(run, each.lag.lag_at)
        least = sum(before.values()) - sum(read_next.values())
        most = sum(after.values()) - sum(read.values())
        assert least - BATCH <= each.lag.lag_records <= most + BATCH, each.lag
        assert each.backlog is not None
        assert each.backlog.records == sum(each.backlog.partitions.values())
