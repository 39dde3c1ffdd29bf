"""The settings of a Kafka source and of its security."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    SecretStr,
)
from pydantic_core import PydanticCustomError

from distributary.config.base import (
    MOMENT_SCHEMA,
    Conflict,
    Section,
    Text,
    Topics,
    either,
    nearest,
    parse_moment,
)
from distributary.config.sources.base import SourceConfig
from distributary.config.sources.librdkafka import LOGIN_MODULES, Translation, translate
from distributary.errors import ConfigError, ErrorCode
from distributary.model.dataset import Dataset, topic_dataset

# Starting offsets of a Kafka topic.

PartitionOffsets = Mapping[str, Mapping[int, int]]
"""Offsets by topic and partition; -2 is the earliest, -1 the latest."""
Offsets = Literal["earliest", "latest"] | datetime | PartitionOffsets

_WORDS = {"earliest": -2, "latest": -1}
_NUMBER = re.compile(r"-?[0-9]{1,18}")
_HINT = (
    "must be earliest, latest, a time such as 2026-01-31T12:00:00Z, or topic: {partition: offset}"
)


def parse_offsets(value: object) -> Offsets:
    """Parse a word, an ISO time (UTC without a zone), or offsets by topic and partition."""
    match value:
        case "earliest" | "latest":
            return value
        case Mapping() if value:
            return {str(topic): _partitions(offsets) for topic, offsets in value.items()}
    try:
        return parse_moment(value)
    except PydanticCustomError:
        close = nearest(value.strip(), _WORDS) if isinstance(value, str) else ""
        suggestion = {"suggestion": close} if close else None
        raise PydanticCustomError("offsets", _HINT, suggestion) from None


def format_offsets(value: Offsets) -> str | dict[str, dict[str, int]]:
    """Format offsets so that `parse_offsets` reads them back."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, str):
        return value
    return {t: {str(p): offset for p, offset in parts.items()} for t, parts in value.items()}


def _partitions(offsets: object) -> dict[int, int]:
    if not isinstance(offsets, Mapping) or not offsets:
        raise PydanticCustomError("offsets", _HINT)
    return {
        _number(partition, at_least=0): _WORDS.get(str(offset)) or _number(offset, at_least=-2)
        for partition, offset in offsets.items()
    }


def _number(value: object, at_least: int) -> int:
    text = str(value).strip()
    if not _NUMBER.fullmatch(text) or int(text) < at_least:
        raise PydanticCustomError("offsets", _HINT)
    return int(text)


def _mapping_of(values: dict[str, object]) -> dict[str, object]:
    return {"type": "object", "minProperties": 1, "additionalProperties": values}


StartingOffsets = Annotated[
    Offsets,
    PlainValidator(parse_offsets),
    PlainSerializer(format_offsets, return_type=str | dict[str, dict[str, int]]),
    either(
        {"enum": ["earliest", "latest"]},
        MOMENT_SCHEMA,
        _mapping_of(_mapping_of({"type": ["integer", "string"]})),
    ),
]


# Security of the connection to the brokers.

StoreType = Literal["JKS", "PKCS12", "PEM"]


class KafkaSecurity(Section):
    """The protocol, credentials and certificates of a Kafka connection."""

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """The security protocol of the connection."""
    mechanism: (
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI", "AWS_MSK_IAM"]
        | None
    ) = None
    """The SASL mechanism, for the SASL protocols."""
    username: Text | None = None
    """User name or API key, for PLAIN and SCRAM."""
    password: SecretStr | None = None
    """Password or API secret, for PLAIN and SCRAM."""
    ca_location: Text | None = None
    """PEM file of the certificate authorities to trust. The system's authorities are trusted when
    left out."""
    certificate_location: Text | None = None
    """PEM file of the client's certificate."""
    key_location: Text | None = None
    """PEM file of the client's private key (PKCS#8)."""
    key_password: SecretStr | None = None
    """Password of the private key, in a PEM file or in the key store."""
    truststore_location: Text | None = None
    """Java trust store; set this or `ca_location`."""
    truststore_password: SecretStr | None = None
    """Password of the trust store."""
    truststore_type: StoreType = "JKS"
    """Format of the trust store."""
    keystore_location: Text | None = None
    """Java key store; set this, or `certificate_location` and `key_location`."""
    keystore_password: SecretStr | None = None
    """Password of the key store."""
    keystore_type: StoreType = "JKS"
    """Format of the key store."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield credentials that do not fit the protocol or lack their counterpart."""
        sasl = self.protocol.startswith("SASL_")
        if sasl and self.mechanism is None:
            yield ("protocol",), "needs mechanism, such as PLAIN"
        if self.mechanism is not None and not sasl:
            yield ("mechanism",), "needs protocol SASL_SSL or SASL_PLAINTEXT"
        if self.mechanism in LOGIN_MODULES and not (self.username and self.password):
            yield ("mechanism",), "needs username and password"
        if bool(self.certificate_location) != bool(self.key_location):
            yield ("certificate_location",), "must be set together with key_location"
        if self.ca_location and self.truststore_location:
            yield ("truststore_location",), "cannot be combined with ca_location"
        if self.certificate_location and self.keystore_location:
            yield ("keystore_location",), "cannot be combined with certificate_location"

    def jvm_options(self) -> dict[str, str]:
        """Return the properties of the Java client, for Spark; they hold secrets."""
        options: dict[str, str | None] = {
            "security.protocol": self.protocol,
            "sasl.mechanism": self.mechanism,
            "sasl.jaas.config": self._jaas(),
            "ssl.key.password": _reveal(self.key_password),
        }
        if self.ca_location:
            options |= {"ssl.truststore.location": self.ca_location, "ssl.truststore.type": "PEM"}
        if self.truststore_location:
            options |= {
                "ssl.truststore.location": self.truststore_location,
                "ssl.truststore.type": self.truststore_type,
                "ssl.truststore.password": _reveal(self.truststore_password),
            }
        if self.certificate_location and self.key_location:
            # the Java client takes a certificate and a key in PEM by content only, not by path
            options |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.certificate.chain": _content(self.certificate_location),
                "ssl.keystore.key": _content(self.key_location),
            }
        if self.keystore_location:
            options |= {
                "ssl.keystore.location": self.keystore_location,
                "ssl.keystore.type": self.keystore_type,
                "ssl.keystore.password": _reveal(self.keystore_password),
            }
        return {name: value for name, value in options.items() if value is not None}

    def client_options(self) -> dict[str, str]:
        """Return the properties of librdkafka for all its clients; they hold secrets."""
        options = {
            "security.protocol": self.protocol,
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.username if self.mechanism in LOGIN_MODULES else None,
            "sasl.password": _reveal(self.password) if self.mechanism in LOGIN_MODULES else None,
            "ssl.ca.location": self.ca_location,
            "ssl.certificate.location": self.certificate_location,
            "ssl.key.location": self.key_location,
            "ssl.key.password": _reveal(self.key_password),
        }
        if self.truststore_type == "PEM" and self.truststore_location:
            options["ssl.ca.location"] = self.truststore_location
        if self.keystore_type == "PKCS12" and self.keystore_location:
            options["ssl.keystore.location"] = self.keystore_location
            options["ssl.keystore.password"] = _reveal(self.keystore_password)
        if self.keystore_type == "PEM" and self.keystore_location:
            options["ssl.certificate.location"] = self.keystore_location
            options["ssl.key.location"] = self.keystore_location
        return {name: value for name, value in options.items() if value is not None}

    def only_for_java(self) -> Iterator[Conflict]:
        """Yield the settings that a Java client supports and librdkafka does not."""
        if self.mechanism is not None and self.mechanism not in LOGIN_MODULES:
            yield ("mechanism",), "is a SASL mechanism that only the Java client supports"
        if self.truststore_location and self.truststore_type != "PEM":
            yield ("truststore_location",), "is a store that only the Java client reads"
        if self.keystore_location and self.keystore_type == "JKS":
            yield ("keystore_location",), "is a store that only the Java client reads"

    def _jaas(self) -> str | None:
        """Return the JAAS configuration of the Java client; None when no login module is needed."""
        module = LOGIN_MODULES.get(self.mechanism or "")
        if module is None:
            return None
        user, password = _quoted(self.username or ""), _quoted(_reveal(self.password) or "")
        return f"{module} required username={user} password={password};"


def _reveal(secret: SecretStr | None) -> str | None:
    return secret.get_secret_value() if secret else None


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _content(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "a certificate or key file cannot be read",
            code=ErrorCode.CONFIG_UNREADABLE,
            where=path,
            evidence=type(error).__name__,
            next_step="check ca_location, certificate_location and key_location in source.security",
        ) from None


_SERVER = re.compile(r"([A-Z_]+://)?([^\s:/,]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")

# Spark sets these options itself; it refuses them, or loses records, when they are set from outside
_OWNED = {
    "kafka.bootstrap.servers": "use bootstrap_servers",
    "kafka.auto.offset.reset": "use starting_offsets",
    "kafka.enable.auto.commit": "the checkpoint holds the progress",
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
    # this is a Java regular expression; one that Python refuses is probably refused there too
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


class KafkaSourceConfig(SourceConfig):
    """A source that reads the records of one or more Kafka topics."""

    # all changes of a row have the same key, and so are in one partition
    in_order: ClassVar[bool] = True
    task_module: ClassVar[str] = "distributary.source.kafka.consumer"

    type: Literal["kafka"]
    """Kind of source."""
    bootstrap_servers: BootstrapServers = Field(examples=["127.0.0.1:9092"])
    """Brokers to connect to first, as `host:port`, several separated by commas."""
    topics: Topics = Field(default=(), examples=[["wrapper"]])
    """Topics to read; set this or `topic_pattern`."""
    topic_pattern: Annotated[Text, AfterValidator(_pattern)] | None = Field(
        default=None, examples=["shop\\..*"]
    )
    """Java regular expression for the topics to read. New topics that match are read while the
    pipeline runs."""
    starting_offsets: StartingOffsets = Field(
        default="earliest", examples=["earliest", "2026-01-31T12:00:00Z", {"orders": {"0": 100}}]
    )
    """Position at which a first run starts: earliest, latest, an ISO time, or offsets by topic and
    partition. Later runs continue from the checkpoint."""
    max_records_per_batch: int = Field(default=250_000, ge=1)
    """The largest number of records in one batch."""
    security: KafkaSecurity = Field(default_factory=KafkaSecurity)
    """The protocol, credentials and certificates of the connection."""
    fail_on_data_loss: bool = True
    """Stop the run when the broker deleted records before they were read."""
    on_replaced: Literal["stop", "read"] = "stop"
    """What to do when a topic was deleted and created again. stop: stop the run; read: read the new
    topic from its beginning. Records of the old topic that were not read are lost."""
    tombstones: Literal["dead_letter", "skip"] = "dead_letter"
    """What to do with records that have a key and no value."""
    reader: Literal["auto", "native", "spark"] = "auto"
    """The client that reads the records. native: each task reads with librdkafka; spark: Spark's
    Kafka connector, which is a Java client; auto: native, unless a setting needs the Java
    client."""
    options: Mapping[str, SecretStr] = Field(
        default_factory=dict, examples=[{"kafka.session.timeout.ms": "45000"}]
    )
    """Further settings of the Kafka client, by the names of the Java client, each with the prefix
    `kafka.`."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a missing or double choice of topics, and options that must not be set."""
        if self.topics and self.topic_pattern:
            yield ("topic_pattern",), "cannot be combined with topics: set one of the two"
        if not self.topics and not self.topic_pattern:
            yield (), "needs topics or topic_pattern"
        if len(set(self.topics)) != len(self.topics):
            yield ("topics",), "names a topic twice"
        for name in self.options:
            if not name.startswith("kafka."):
                yield ("options", name), "must start with kafka."
            elif name in _OWNED:
                yield ("options", name), f"cannot be set here: {_OWNED[name]}"
        if self.reader == "native":
            for place, why in self.only_for_java():
                yield place, f"cannot be combined with reader: native: {why}"

    def only_for_java(self) -> Iterator[Conflict]:
        """Yield the settings that need Spark's connector, and why, without their values."""
        for place, why in self.security.only_for_java():
            yield ("security", *place), why
        for name, why in sorted(self._translated().unknown.items()):
            yield ("options", f"kafka.{name}"), why

    @property
    def is_native(self) -> bool:
        """Return true when tasks read with librdkafka."""
        return self.reader != "spark" and not any(self.only_for_java())

    def spark_options(self) -> dict[str, str]:
        """Return options of Spark's connector, without topics and offsets; they hold secrets."""
        security = {f"kafka.{k}": v for k, v in self.security.jvm_options().items()}
        return {
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "failOnDataLoss": str(self.fail_on_data_loss).lower(),
            "includeHeaders": "true",
            **security,
            **{name: value.get_secret_value() for name, value in self.options.items()},
        }

    def client_options(self) -> dict[str, str]:
        """Return the properties of librdkafka for these brokers; they hold secrets."""
        return {
            "bootstrap.servers": self.bootstrap_servers,
            **self.security.client_options(),
            **self._translated().connection,
        }

    def consumer_options(self) -> dict[str, str]:
        """Return the properties of a consumer; they hold secrets.

        Certificates and keys are given by content: the driver reads the files, so a task does not
        need them on its machine.
        """
        options = self.client_options() | self._translated().reading
        for name in ("ssl.ca", "ssl.certificate", "ssl.key"):
            path = options.get(f"{name}.location")
            if path is not None and not Path(path).is_dir():
                options[f"{name}.pem"] = _content(path)
                del options[f"{name}.location"]
        return options

    @property
    def known_topics(self) -> tuple[str, ...]:
        """Return the topics that are named; none for a pattern."""
        return self.topics

    def topics_among(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the topics that are named, or those of `names` that match the pattern."""
        pattern = self.topic_pattern
        if pattern is None:
            return self.topics
        return tuple(name for name in names if re.fullmatch(pattern, name))

    @property
    def skips_tombstones(self) -> bool:
        """Return true when records with a key and no value are skipped."""
        return self.tombstones == "skip"

    @property
    def servers(self) -> str:
        """Return the brokers."""
        return self.bootstrap_servers

    def datasets(self, topics: Iterable[str]) -> dict[str, Dataset]:
        """Return the topics that are named or were seen."""
        names = dict.fromkeys((*self.topics, *topics))
        return {name: topic_dataset(self.bootstrap_servers, name) for name in names}

    def _translated(self) -> Translation:
        return translate(
            {
                name.removeprefix("kafka."): value.get_secret_value()
                for name, value in self.options.items()
                if name.startswith("kafka.") and name not in _OWNED
            }
        )


def kafka_of(source: SourceConfig) -> KafkaSourceConfig | None:
    """Return the settings of a Kafka source, for tools that write to topics; else None."""
    return source if isinstance(source, KafkaSourceConfig) else None
