"""A Kafka topic, or several, as a source."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr
from pydantic_core import PydanticCustomError

from distributary.config.base import Conflict, Section
from distributary.config.offsets import StartingOffsets
from distributary.config.security import KafkaSecurity
from distributary.config.text import Text, Topics

_SERVER = re.compile(r"([A-Z_]+://)?([^\s:/,]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")

# Spark sets these itself, and refuses them or loses records when they are set from outside
_OWNED = {
    "kafka.bootstrap.servers": "use bootstrap_servers",
    "kafka.auto.offset.reset": "use starting_offsets",
    "kafka.enable.auto.commit": "progress is kept in the checkpoint",
    "kafka.key.deserializer": "records are always read as bytes",
    "kafka.value.deserializer": "records are always read as bytes",
    "kafka.interceptor.classes": "Spark does not support it",
}


def _join(value: object) -> object:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else value


def _servers(value: str) -> str:
    servers = [server.strip() for server in value.split(",") if server.strip()]
    if not servers or not all(_SERVER.fullmatch(server) for server in servers):
        raise PydanticCustomError("servers", "must be host:port, several separated by commas")
    return ",".join(servers)


def _pattern(value: str) -> str:
    # the pattern is Java's: one that Python refuses is most likely refused there too
    try:
        re.compile(value)
    except re.error:
        raise PydanticCustomError("pattern", "must be a regular expression") from None
    return value


BootstrapServers = Annotated[
    Text,
    BeforeValidator(_join, json_schema_input_type=str | tuple[str, ...]),
    AfterValidator(_servers),
]


class KafkaSource(Section):
    """Records of one or more Kafka topics."""

    type: Literal["kafka"]
    """Kind of source."""
    bootstrap_servers: BootstrapServers = Field(examples=["127.0.0.1:9092"])
    """Brokers to ask first, `host:port`, several separated by commas."""
    topics: Topics = Field(default=(), examples=[["wrapper"]])
    """Topics to read; give these or `topic_pattern`."""
    topic_pattern: Annotated[Text, AfterValidator(_pattern)] | None = Field(
        default=None, examples=["shop\\..*"]
    )
    """Regular expression (Java) for the topics to read; new topics join while it runs."""
    starting_offsets: StartingOffsets = Field(
        default="earliest", examples=["earliest", "2026-01-31T12:00:00Z", {"orders": {"0": 100}}]
    )
    """Where a first run starts: earliest, latest, an ISO time, or offsets by topic and partition.
    Later runs go on where the checkpoint ends."""
    max_records_per_batch: int = Field(default=250_000, ge=1)
    """Most records in one batch."""
    security: KafkaSecurity = Field(default_factory=KafkaSecurity)
    """Protocol, credentials and certificates."""
    fail_on_data_loss: bool = True
    """Stop when records were deleted at the broker before they were read."""
    on_replaced: Literal["stop", "read"] = "stop"
    """What to do when a topic was deleted and made anew: stop, or read the new one from its
    beginning; what was not read of the old one is lost."""
    tombstones: Literal["dead_letter", "skip"] = "dead_letter"
    """What to do with records that have a key and no value."""
    options: Mapping[str, SecretStr] = Field(
        default_factory=dict, examples=[{"kafka.session.timeout.ms": "45000"}]
    )
    """Further settings of the Kafka client, each starting with `kafka.`."""

    def conflicts(self) -> Iterator[Conflict]:
        """One way to choose topics, and no option that is set elsewhere."""
        if self.topics and self.topic_pattern:
            yield ("topic_pattern",), "cannot stand beside topics: give one of the two"
        if not self.topics and not self.topic_pattern:
            yield (), "needs topics or topic_pattern"
        if len(set(self.topics)) != len(self.topics):
            yield ("topics",), "names a topic twice"
        for name in self.options:
            if not name.startswith("kafka."):
                yield ("options", name), "must start with kafka."
            elif name in _OWNED:
                yield ("options", name), f"cannot be set here: {_OWNED[name]}"

    def spark_options(self) -> dict[str, str]:
        """Options of Spark's Kafka connector, without topics and offsets; holds secrets."""
        security = {f"kafka.{k}": v for k, v in self.security.jvm_options().items()}
        return {
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "failOnDataLoss": str(self.fail_on_data_loss).lower(),
            "includeHeaders": "true",
            **security,
            **{name: value.get_secret_value() for name, value in self.options.items()},
        }

    def client_options(self) -> dict[str, str]:
        """Properties of librdkafka for the same brokers; holds secrets."""
        return {"bootstrap.servers": self.bootstrap_servers, **self.security.client_options()}
