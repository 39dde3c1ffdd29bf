"""A topic of Kafka with notifications about new files, read in this process."""

from __future__ import annotations

from collections.abc import Iterator

from distributary.config.sources.files import FileNotifications
from distributary.source.files.notifications import Offsets, QueueEnd, QueueMessage
from distributary.source.kafka.broker import Broker, partitions_of
from distributary.source.kafka.consumer import read
from distributary.source.kafka.source import ranges_of


class KafkaQueue:
    """A topic of Kafka; satisfies `NotificationQueue`."""

    def __init__(self, config: FileNotifications) -> None:
        self._topic, self._options = config.topic, config.client_options()
        self._broker = Broker(self._options)

    def end(self) -> QueueEnd:
        """Return the current end. Raises SourceError."""
        topics = self._broker.topics((self._topic,), None)
        return QueueEnd(topics[self._topic].id, self._broker.latest(partitions_of(topics)))

    def messages(self, begin: Offsets, end: Offsets) -> Iterator[QueueMessage]:
        """Yield the messages between two ends. Raises SourceError if some are deleted."""
        for batch in read(self._options, ranges_of(dict(begin), dict(end))):
            values, headers = batch.column("value"), batch.column("headers")
            yield from zip(values.to_pylist(), headers.to_pylist(), strict=True)
