"""Messages into a Kafka topic: each is acknowledged, or it is an error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as Delivered

from distributary.simulate.base import Message
from distributary.simulate.kafka_errors import explained, telling

_PATIENCE_MS = 30_000
_POLL_SECONDS = 0.2
_MESSAGES_PER_POLL = 1_000
_LARGEST_MESSAGE = 1_000_000_000
# librdkafka's own codes have no public names
_MESSAGE_TIMED_OUT = -192

_SETTINGS = {
    # no message twice and none out of order, whatever is tried again
    "enable.idempotence": True,
    "delivery.timeout.ms": _PATIENCE_MS,
    # what is too large is the broker's to say
    "message.max.bytes": _LARGEST_MESSAGE,
    # a key is in the partition in which a Java client would look for it
    "partitioner": "murmur2_random",
    "linger.ms": 20,
    "log_level": 2,
}


class KafkaSink:
    """Sends messages to one topic; a write ends when the broker has all of them.

    Args:
        topic: its name; it must exist.
        options: properties of librdkafka that lead to the brokers.
        producer: makes the client.
    """

    def __init__(
        self,
        topic: str,
        *,
        options: Mapping[str, str],
        producer: Callable[[dict[str, Any]], Producer] = Producer,
    ) -> None:
        self.topic = topic
        self.acknowledged = 0
        """Messages that the broker has said it has."""
        self.offsets: dict[int, tuple[int, int]] = {}
        """First and last offset that was written, by partition."""
        self._servers = options["bootstrap.servers"]
        self._failed: KafkaError | None = None
        self._told: KafkaError | None = None
        self._producer = producer({**options, **_SETTINGS, "error_cb": self._remember})

    def write(self, messages: Iterable[Message]) -> int:
        """Send messages and wait until each is acknowledged.

        Raises SourceUnavailableError when the brokers do not answer in time, SourceError when they
        refuse a message. What was acknowledged before stays sent.
        """
        before, sent = self.acknowledged, 0
        self._forget()
        try:
            for message in messages:
                self._send(message)
                sent += 1
                if sent % _MESSAGES_PER_POLL == 0:
                    self._producer.poll(0)
                if self._failed is not None:
                    break
            # in short waits, so that Ctrl-C gets through
            while self._producer.flush(_POLL_SECONDS) and self._failed is None:
                pass
        except BaseException:
            self._drop()
            raise
        self._check(sent, before)
        return sent

    def _send(self, message: Message) -> None:
        while True:
            try:
                self._producer.produce(
                    self.topic,
                    value=message.value,
                    key=message.key,
                    headers=list(message.headers) or None,
                    timestamp=message.timestamp,
                    on_delivery=self._delivered,
                )
                return
            except BufferError:
                self._producer.poll(_POLL_SECONDS)
                if self._failed is not None:
                    return
            except KafkaException as error:
                self._failed = error.args[0]
                return

    def _delivered(self, error: KafkaError | None, message: Delivered) -> None:
        if error is not None:
            self._failed = self._failed or error
            return
        self.acknowledged += 1
        partition, offset = message.partition() or 0, message.offset() or 0
        first, _ = self.offsets.get(partition, (offset, offset))
        self.offsets[partition] = (first, offset)

    def _forget(self) -> None:
        self._failed = self._told = None

    def _remember(self, error: KafkaError) -> None:
        self._told = telling(self._told, error)

    def _check(self, sent: int, before: int) -> None:
        if self._failed is None:
            return
        self._drop()
        known, lost = self.acknowledged - before, self._failed
        # that a message waited too long says less than why it had to
        timed_out = lost.code() == _MESSAGE_TIMED_OUT
        raise explained(
            self._told if timed_out and self._told is not None else lost,
            what=f"{sent - known:,} of {sent:,} messages were not delivered to {self.topic}",
            servers=self._servers,
        )

    def _drop(self) -> None:
        """Nothing of a failed write is sent behind the caller's back."""
        self._producer.purge()
        self._producer.flush(_POLL_SECONDS)
