"""Where `produce` sends to: a topic and a registry, or a table and a folder of schemas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributary.cli.failure import usage_error
from distributary.config.kafka import KafkaSource
from distributary.config.load import load
from distributary.errors import ConfigError
from distributary.registry.files import FileRegistry
from distributary.simulate import DeltaSink
from distributary.simulate.base import Registry, Sink
from distributary.simulate.outlet import BOOTSTRAP_SERVERS, REGISTRY_URL, KafkaTarget, open_outlet


@dataclass(frozen=True, slots=True)
class Target:
    """What the command line says about it."""

    to: str
    path: Path | None
    registry: Path | None
    bootstrap_servers: str | None
    registry_url: str | None
    topic: str | None
    partitions: int | None
    pipeline: Path | None = None
    """A pipeline file that says where Kafka and the registry are, and how to log in to them."""

    @property
    def is_kafka(self) -> bool:
        """Whether it is a topic."""
        return self.to == "kafka"

    def kafka(self, topic: str) -> KafkaTarget:
        """The broker, the registry, and this topic unless another one was named."""
        if self.path is not None or self.registry is not None:
            raise _usage("PATH and --registry are for --to delta: a topic has a name and a server.")
        if self.pipeline is not None:
            return self._as_in(self.pipeline, topic)
        return KafkaTarget(
            topic=self.topic or topic,
            bootstrap_servers=self.bootstrap_servers or BOOTSTRAP_SERVERS,
            registry_url=self.registry_url or REGISTRY_URL,
            partitions=self.partitions,
        )

    def _as_in(self, file: Path, topic: str) -> KafkaTarget:
        if self.bootstrap_servers is not None or self.registry_url is not None:
            raise _usage("--pipeline names the brokers and the registry already.")
        config = load(file).config
        if not isinstance(config.source, KafkaSource) or config.registry is None:
            raise _usage("--pipeline needs a file with a source of type kafka and a registry.")
        named = config.source.topics[0] if config.source.topics else topic
        return KafkaTarget(
            topic=self.topic or named,
            bootstrap_servers=config.source.bootstrap_servers,
            registry_url=next(iter(config.registry.addresses), REGISTRY_URL),
            partitions=self.partitions,
            source=config.source,
            registry=config.registry,
        )

    def delta(self) -> tuple[Path, Path]:
        """The folders of the table and of the schemas."""
        if self.path is None or self.registry is None:
            raise _usage("--to delta needs the folder of a table, and --registry for the schemas.")
        if self.partitions is not None:
            raise _usage("--partitions is for --to kafka: a table has none.")
        return self.path, self.registry


@dataclass(frozen=True, slots=True)
class Opened:
    """Ready to be sent to."""

    name: str
    """For people."""
    registry: Registry
    sink: Sink
    describe: Callable[[], dict[str, Any]]
    """What is known about it by now, for `--json`."""


@contextmanager
def open_target(
    target: Target, *, topic: str, sink: Callable[[Path], DeltaSink]
) -> Iterator[Opened]:
    """Whatever was asked for: the topic of this name, or the table that stands for it."""
    if not target.is_kafka:
        table, folder = target.delta()
        about = {"to": {"kind": "delta", "path": str(table)}, "registry": str(folder)}
        yield Opened(str(table), FileRegistry(folder), sink(table), lambda: about)
        return
    where = target.kafka(topic)
    with open_outlet(where) as outlet:
        place = {"kind": "kafka", "bootstrap_servers": where.bootstrap_servers}

        def describe() -> dict[str, Any]:
            return {"to": place | outlet.describe(), "registry": where.registry_url}

        name = f"topic {where.topic} at {where.bootstrap_servers}"
        yield Opened(name, outlet.registry, outlet.sink, describe)


def _usage(message: str) -> ConfigError:
    return usage_error(message, command="distributary produce")
