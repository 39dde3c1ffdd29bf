"""Messages into many topics of one broker: each made when it is needed, and noted on a card."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer
from pydantic import ValidationError

from distributary.config.kafka import KafkaSource
from distributary.errors import ConfigError
from distributary.simulate.base import Message
from distributary.simulate.cdc.debezium import DebeziumStream, MessageRound
from distributary.simulate.cdc.sent import CdcSent
from distributary.simulate.kafka import KafkaSink
from distributary.simulate.kafka_topics import Topic, Topics
from distributary.simulate.made import Made, cards_folder, write_card


class TopicsOutlet:
    """Sends to any topic of one broker through one client.

    Args:
        bootstrap_servers: the brokers, host:port.
        partitions: of topics that are made; 1 if not said.
    """

    def __init__(self, bootstrap_servers: str, *, partitions: int | None = None) -> None:
        self._options = _options(bootstrap_servers)
        self._partitions = partitions
        self._topics = Topics(self._options)
        self._cluster = self._topics.cluster()
        self._sinks: dict[str, KafkaSink] = {}
        self._producer: Producer | None = None
        self.made: dict[str, Topic] = {}
        """The topics that were sent to."""

    @property
    def acknowledged(self) -> int:
        """Messages that the broker has said it has."""
        return sum(sink.acknowledged for sink in self._sinks.values())

    def write(self, topic: str, messages: list[Message]) -> None:
        """Send messages to a topic and wait until each is acknowledged."""
        if topic not in self._sinks:
            self._open(topic)
        self._sinks[topic].write(messages)

    def _open(self, name: str) -> None:
        topic = self._topics.ensure(name, partitions=self._partitions)
        self.made[name] = topic
        if topic.created:
            write_card(
                Made(
                    cluster=self._cluster,
                    topic=name,
                    topic_id=topic.id,
                    registry="",
                    subjects=(),
                    schema_ids={},
                    path=cards_folder() / f"{uuid.uuid4().hex}.json",
                )
            )
        self._sinks[name] = KafkaSink(name, options=self._options, producer=self._shared)

    def _shared(self, settings: dict[str, Any]) -> Producer:
        # a client for each of a thousand topics would be thousands of threads
        if self._producer is None:
            self._producer = Producer(settings)
        return self._producer


def send_messages(
    stream: DebeziumStream,
    outlet: TopicsOutlet,
    *,
    interval: float = 0.0,
    on_round: Callable[[MessageRound], None] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> CdcSent:
    """Send all rounds and say what was sent; the order within a topic is that of the stream."""
    for round in stream.rounds():
        if round.number and interval > 0:
            sleep(interval)
        by_topic: dict[str, list[Message]] = {}
        for each in round.messages:
            by_topic.setdefault(each.topic, []).append(each.message)
        for topic, messages in by_topic.items():
            outlet.write(topic, messages)
        if on_round is not None:
            on_round(round)
    return stream.sent()


def _options(bootstrap_servers: str) -> dict[str, str]:
    try:
        source = KafkaSource(type="kafka", bootstrap_servers=bootstrap_servers, topics=("any",))
        return dict(source.client_options())
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise ConfigError(
            "this is no place to send to",
            where="--bootstrap-servers",
            evidence=str(first["msg"]),
            next_step="name a broker as host:port",
        ) from None
