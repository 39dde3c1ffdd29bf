"""The sink against a client that does what a broker in trouble makes it do."""

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from distributary.errors import SourceError, SourceUnavailableError
from distributary_lab.simulate.base import SinkMessage
from distributary_lab.simulate.kafka_sink import KafkaSink

TIMED_OUT = -192
TRANSPORT = -195


class Delivered:
    def __init__(self, offset: int) -> None:
        self._offset = offset

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset


class Client:
    """Delivers when it is polled; what `fate` gives is what becomes of the n-th message."""

    def __init__(self, fate: Callable[[int], KafkaError | None], *, room: int = 1_000_000) -> None:
        self.fate, self.room = fate, room
        self.settings: dict[str, Any] = {}
        self.waiting: list[tuple[int, Any]] = []
        self.taken = 0
        self.purged = False

    def __call__(self, settings: dict[str, Any]) -> "Client":
        self.settings = settings
        return self

    def produce(self, topic: str, *, on_delivery: Any, **message: Any) -> None:
        if len(self.waiting) >= self.room:
            raise BufferError
        if len(message["value"] or b"") > 10:
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        self.waiting.append((self.taken, on_delivery))
        self.taken += 1

    def poll(self, seconds: float) -> int:
        for n, tell in self.waiting:
            error = self.fate(n)
            tell(error, Delivered(n))
        self.waiting = []
        return 0

    def flush(self, seconds: float) -> int:
        return self.poll(seconds)

    def purge(self) -> None:
        self.purged, self.waiting = True, []


def sink_to(client: Client) -> KafkaSink:
    return KafkaSink("t", options={"bootstrap.servers": "b:1"}, producer=client)  # type: ignore[arg-type]


def some(count: int, value: bytes = b"v") -> list[SinkMessage]:
    return [SinkMessage(b"k", value, (), n, None) for n in range(count)]


def test_every_message_is_acknowledged_even_where_the_queue_is_small() -> None:
    client = Client(lambda n: None, room=7)
    sink = sink_to(client)
    sink.write(some(50))
    sink.write(some(3))
    assert (sink.acknowledged, sink.offsets) == (53, {0: (0, 52)})
    assert client.settings["enable.idempotence"] is True


def test_one_message_that_is_not_delivered_is_an_error() -> None:
    client = Client(lambda n: KafkaError(TIMED_OUT) if n == 8 else None)
    sink = sink_to(client)
    with pytest.raises(SourceUnavailableError) as caught:
        sink.write(some(10))
    assert caught.value.exit_code == 75
    assert sink.acknowledged == 9
    assert client.purged


def test_the_connection_says_more_than_the_clock() -> None:
    client = Client(lambda n: KafkaError(TIMED_OUT))
    sink = sink_to(client)

    def write() -> list[SinkMessage]:
        client.settings["error_cb"](KafkaError(TRANSPORT, "connection refused"))
        client.settings["error_cb"](KafkaError(-187, "all brokers are down"))
        return some(1)

    with pytest.raises(SourceUnavailableError) as caught:
        sink.write(message for _ in range(1) for message in write())
    assert "refused" in caught.value.evidence


def test_a_message_that_no_broker_takes_is_no_reason_to_try_again() -> None:
    sink = sink_to(Client(lambda n: None))
    with pytest.raises(SourceError) as caught:
        sink.write([*some(2), *some(1, b"x" * 11), *some(2)])
    assert not isinstance(caught.value, SourceUnavailableError)
    before = sink.acknowledged
    sink.write(some(1))
    assert sink.acknowledged == before + 1


def test_a_stop_leaves_nothing_behind_to_be_sent() -> None:
    def stopped() -> Any:
        yield from some(2)
        raise KeyboardInterrupt

    client = Client(lambda n: None)
    with pytest.raises(KeyboardInterrupt):
        sink_to(client).write(stopped())
    assert client.purged
