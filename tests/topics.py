"""Topics of the real broker, filled by tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.waiting import eventually

Header = tuple[str, bytes]


class Topics:
    """What a test does to a broker."""

    def __init__(self, servers: str, options: Mapping[str, str] | None = None) -> None:
        self._options = {"bootstrap.servers": servers, "log_level": "2", **(options or {})}
        self.admin = AdminClient(self._options)

    def create(self, name: str, partitions: int = 1, **config: str) -> str:
        topic = NewTopic(
            name, partitions, 1, config={k.replace("_", "."): v for k, v in config.items()}
        )
        for future in self.admin.create_topics([topic]).values():
            future.result()
        # the controller has it before the broker tells of it
        eventually(lambda: len(self._partitions(name)) == partitions, seconds=30)
        return name

    def _partitions(self, name: str) -> Mapping[int, object]:
        found = self.admin.list_topics(timeout=10).topics.get(name)
        return {} if found is None else found.partitions

    def grow(self, name: str, partitions: int) -> None:
        for future in self.admin.create_partitions([NewPartitions(name, partitions)]).values():
            future.result()

    def forget(self, name: str, before: Mapping[int, int]) -> None:
        """Delete records as retention would."""
        ends = [TopicPartition(name, number, offset) for number, offset in before.items()]
        for future in self.admin.delete_records(ends).values():
            future.result()

    def delete(self, name: str) -> None:
        for future in self.admin.delete_topics([name], operation_timeout=30).values():
            future.result()

    def send(
        self,
        name: str,
        values: Iterable[bytes | None],
        *,
        partition: int | None = None,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Header] | None = None,
    ) -> int:
        """Send values; returns how many the broker has acknowledged."""
        producer = Producer({**self._options, "message.max.bytes": 110_000_000})
        failed: list[object] = []
        count = 0
        for number, value in enumerate(values):
            options = {} if partition is None else {"partition": partition}
            while True:
                try:
                    producer.produce(
                        name,
                        value=value,
                        key=keys[number] if keys else None,
                        headers=list(headers) if headers else None,
                        on_delivery=lambda error, _: failed.append(error) if error else None,
                        **options,
                    )
                    break
                except BufferError:
                    producer.poll(0.5)
            producer.poll(0)
            count += 1
        assert producer.flush(60) == 0
        assert not failed, failed
        return count
