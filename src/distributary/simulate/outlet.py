"""A topic to send to and a registry to fill, opened together and noted on a card."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from distributary.config.kafka import KafkaSource
from distributary.config.registry import Registry as RegistryConfig
from distributary.errors import ConfigError
from distributary.registry.http import HttpRegistry
from distributary.simulate.base import Registry
from distributary.simulate.kafka import KafkaSink
from distributary.simulate.kafka_topics import Topic, Topics
from distributary.simulate.made import Notes

BOOTSTRAP_SERVERS = "127.0.0.1:9092"
REGISTRY_URL = "http://127.0.0.1:8081/apis/ccompat/v7"
"""Where `distributary dev up` puts them, and where pipeline files look for them."""

_OPTIONS = {
    "bootstrap_servers": "--bootstrap-servers",
    "topics": "--topic",
    "url": "--registry-url",
}


@dataclass(frozen=True, kw_only=True)
class KafkaTarget:
    """Where to send to."""

    topic: str
    bootstrap_servers: str = BOOTSTRAP_SERVERS
    registry_url: str = REGISTRY_URL
    partitions: int | None = None
    """Of a topic that is made; 1 if not said."""
    source: KafkaSource | None = None
    """How to log in to the brokers, from a pipeline file."""
    registry: RegistryConfig | None = None
    """How to log in to the registry, likewise."""


@dataclass(frozen=True, slots=True)
class Outlet:
    """Both, open."""

    topic: Topic
    sink: KafkaSink
    registry: Registry

    def describe(self) -> dict[str, Any]:
        """The topic, and what the broker has acknowledged, for `--json`."""
        return {
            "topic": self.topic.name,
            "partitions": self.topic.partitions,
            "created": self.topic.created,
            "acknowledged": self.sink.acknowledged,
            "offsets": {
                str(partition): {"first": first, "last": last}
                for partition, (first, last) in sorted(self.sink.offsets.items())
            },
        }


@contextmanager
def open_outlet(target: KafkaTarget, *, noted: bool = True) -> Iterator[Outlet]:
    """Reach both, make the topic unless it is there, and note what was made.

    Args:
        target: where to.
        noted: whether `clean` shall be able to remove it again.
    """
    source, config = _validated(target)
    options = source.client_options()
    with HttpRegistry(config) as registry:
        # asked first: without a registry, no topic is made in vain
        registry.compatibility()
        topics = Topics(options)
        cluster = topics.cluster()
        topic = topics.ensure(target.topic, partitions=target.partitions)
        notes = Notes(topic, cluster=cluster, registry=registry, address=config.places[0])
        if not noted:
            yield Outlet(topic, KafkaSink(topic.name, options=options), registry)
            return
        notes.save()
        try:
            yield Outlet(topic, KafkaSink(topic.name, options=options), notes.registry)
        finally:
            notes.save()


def _validated(target: KafkaTarget) -> tuple[KafkaSource, RegistryConfig]:
    if target.source is not None and target.registry is not None:
        return target.source, target.registry
    try:
        source = KafkaSource(
            type="kafka", bootstrap_servers=target.bootstrap_servers, topics=(target.topic,)
        )
        return source, RegistryConfig(url=target.registry_url)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise ConfigError(
            "this is no place to send to",
            where=_OPTIONS.get(str(next(iter(first["loc"]), "")), ""),
            evidence=str(first["msg"]),
            next_step="name a broker as host:port, a registry by its address, and a topic",
        ) from None
