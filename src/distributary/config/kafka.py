"""A Kafka topic, or several, as a source."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
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
    ContextName,
    Duration,
    HttpUrl,
    PositiveDuration,
    Sealed,
    Section,
    Text,
    Topics,
    Urls,
    either,
    nearest,
    parse_moment,
    unpaired_login,
)
from distributary.config.librdkafka import LOGIN_MODULES, Translation, translate
from distributary.errors import ConfigError, ErrorCode

# Where a Kafka topic is first read from.

PartitionOffsets = Mapping[str, Mapping[int, int]]
"""Topic, partition, offset; -2 is the earliest, -1 the latest."""
Offsets = Literal["earliest", "latest"] | datetime | PartitionOffsets

_WORDS = {"earliest": -2, "latest": -1}
_NUMBER = re.compile(r"-?[0-9]{1,18}")
_HINT = (
    "must be earliest, latest, a time such as 2026-01-31T12:00:00Z, or topic: {partition: offset}"
)


def parse_offsets(value: object) -> Offsets:
    """A word, an ISO time (UTC where it names no zone), or offsets by topic and partition."""
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
    """The form that `parse_offsets` reads back."""
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


# How to reach a broker that asks who you are.

StoreType = Literal["JKS", "PKCS12", "PEM"]


class KafkaSecurity(Section):
    """Protocol, credentials and certificates of a Kafka connection."""

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """How the connection is secured."""
    mechanism: (
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI", "AWS_MSK_IAM"]
        | None
    ) = None
    """How the client proves who it is, for the SASL protocols."""
    username: Text | None = None
    """User or API key, for PLAIN and SCRAM."""
    password: SecretStr | None = None
    """Password or API secret, for PLAIN and SCRAM."""
    ca_location: Text | None = None
    """PEM file of the authorities to trust; the system's own when left out."""
    certificate_location: Text | None = None
    """PEM file of the client's certificate."""
    key_location: Text | None = None
    """PEM file of the client's private key (PKCS#8)."""
    key_password: SecretStr | None = None
    """Password of the private key, in a PEM file or in the key store."""
    truststore_location: Text | None = None
    """Java trust store; use it or `ca_location`."""
    truststore_password: SecretStr | None = None
    """Password of the trust store."""
    truststore_type: StoreType = "JKS"
    """Kind of the trust store."""
    keystore_location: Text | None = None
    """Java key store; use it or `certificate_location` with `key_location`."""
    keystore_password: SecretStr | None = None
    """Password of the key store."""
    keystore_type: StoreType = "JKS"
    """Kind of the key store."""

    def conflicts(self) -> Iterator[Conflict]:
        """Credentials must fit the protocol and come in pairs."""
        sasl = self.protocol.startswith("SASL_")
        if sasl and self.mechanism is None:
            yield ("protocol",), "needs mechanism, such as PLAIN"
        if self.mechanism is not None and not sasl:
            yield ("mechanism",), "needs protocol SASL_SSL or SASL_PLAINTEXT"
        if self.mechanism in LOGIN_MODULES and not (self.username and self.password):
            yield ("mechanism",), "needs username and password"
        if bool(self.certificate_location) != bool(self.key_location):
            yield ("certificate_location",), "goes together with key_location"
        if self.ca_location and self.truststore_location:
            yield ("truststore_location",), "cannot stand beside ca_location"
        if self.certificate_location and self.keystore_location:
            yield ("keystore_location",), "cannot stand beside certificate_location"

    def jvm_options(self) -> dict[str, str]:
        """Properties of the Java client, for Spark; holds secrets."""
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
            # the Java client takes two PEM files only by content
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
        """Properties of librdkafka, for admin clients and producers; holds secrets."""
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
        """What a Java client can do and librdkafka cannot."""
        if self.mechanism is not None and self.mechanism not in LOGIN_MODULES:
            yield ("mechanism",), "is a login of Java"
        if self.truststore_location and self.truststore_type != "PEM":
            yield ("truststore_location",), "is a store that only Java reads"
        if self.keystore_location and self.keystore_type == "JKS":
            yield ("keystore_location",), "is a store that only Java reads"

    def _jaas(self) -> str | None:
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

    # changes of a row have one key, and are in one partition
    in_order: ClassVar[bool] = True

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
    """What to do when a topic was deleted and made again: stop, or read the new one from its
    beginning; what was not read of the old one is lost."""
    tombstones: Literal["dead_letter", "skip"] = "dead_letter"
    """What to do with records that have a key and no value."""
    reader: Literal["auto", "native", "spark"] = "auto"
    """Who reads the records. native: each task itself, with librdkafka; spark: Spark's Kafka
    connector, a Java client; auto: native, unless a setting is one that only Java understands."""
    options: Mapping[str, SecretStr] = Field(
        default_factory=dict, examples=[{"kafka.session.timeout.ms": "45000"}]
    )
    """Further settings of the Kafka client, as the Java client names them, each starting with
    `kafka.`."""

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
        if self.reader == "native":
            for place, why in self.only_for_java():
                yield place, f"cannot stand beside reader: native: {why}"

    def only_for_java(self) -> Iterator[Conflict]:
        """The settings for which Spark's connector is needed, and why; without their values."""
        for place, why in self.security.only_for_java():
            yield ("security", *place), why
        for name, why in sorted(self._translated().unknown.items()):
            yield ("options", f"kafka.{name}"), why

    @property
    def is_native(self) -> bool:
        """Whether tasks read by themselves."""
        return self.reader != "spark" and not any(self.only_for_java())

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
        return {
            "bootstrap.servers": self.bootstrap_servers,
            **self.security.client_options(),
            **self._translated().connection,
        }

    def consumer_options(self) -> dict[str, str]:
        """The same for a consumer, with certificates and keys by content; holds secrets.

        So they are those of the driver, and a task needs no file of them where it runs.
        """
        options = self.client_options() | self._translated().reading
        for name in ("ssl.ca", "ssl.certificate", "ssl.key"):
            path = options.get(f"{name}.location")
            if path is not None and not Path(path).is_dir():
                options[f"{name}.pem"] = _content(path)
                del options[f"{name}.location"]
        return options

    def _translated(self) -> Translation:
        return translate(
            {
                name.removeprefix("kafka."): value.get_secret_value()
                for name, value in self.options.items()
                if name.startswith("kafka.") and name not in _OWNED
            }
        )


# A token instead of a password: OAuth's client credentials.

_PUBLIC = frozenset(
    {"audience", "resource", "organization", "client_assertion_type", "requested_token_type"}
)
_OAUTH_OWNED = ("grant_type", "client_id", "client_secret", "scope")


class OAuth(Section):
    """An identity provider that gives a token for an id and a secret."""

    token_url: HttpUrl = Field(examples=["https://login.example.com/oauth2/token"])
    """Address at which the provider gives tokens."""
    client_id: Text
    """Who asks for the token."""
    client_secret: SecretStr
    """The secret that belongs to `client_id`."""
    scope: Text | None = Field(default=None, examples=["schema:read"])
    """What the token shall be good for; several scopes have spaces between them."""
    credentials: Literal["header", "body"] = "header"
    """Where id and secret are sent: in the header, as the standard has it, or in the body."""
    parameters: Annotated[Mapping[str, SecretStr], Sealed(_PUBLIC)] = Field(
        default_factory=dict, examples=[{"audience": "schema-registry"}]
    )
    """Further parameters that the provider asks for; all but the standard's public ones, such as
    audience and resource, are hidden like secrets."""

    def conflicts(self) -> Iterator[Conflict]:
        """Nothing is said twice, and nothing empty."""
        if not self.client_secret.get_secret_value().strip():
            yield ("client_secret",), "must not be empty"
        for name in self.parameters:
            if name in _OAUTH_OWNED:
                yield ("parameters", name), "cannot be set here: it has a setting of its own"
            elif not name.strip() or not name.isprintable():
                yield ("parameters", name), "must be one line of printable text"


# Where schemas come from.

_ONLY_FOR_SERVERS = (
    *("username", "password", "token", "oauth", "logical_cluster", "identity_pool"),
    *("context", "ca_location", "certificate_location"),
)


class Registry(Section):
    """A server that speaks the Confluent schema registry's API, or a folder of schemas."""

    url: HttpUrl | None = Field(default=None, examples=["http://127.0.0.1:8081/apis/ccompat/v7"])
    """Address of the registry; give one of `url`, `urls` and `path`."""
    urls: Urls = ()
    """Several addresses of one registry: the next is asked when one does not answer."""
    path: Text | None = Field(default=None, examples=["./schemas"])
    """Folder of schemas, in place of a server."""
    username: Text | None = None
    """User or API key."""
    password: SecretStr | None = None
    """Password or API secret."""
    token: SecretStr | None = None
    """Bearer token, in place of username and password."""
    oauth: OAuth | None = None
    """Where to get a token that ends by itself, in place of `token`."""
    logical_cluster: Text | None = Field(default=None, examples=["lsrc-a1b2c3"])
    """Confluent Cloud: the registry that a token is shown to (header `target-sr-cluster`)."""
    identity_pool: Text | None = Field(default=None, examples=["pool-a1b2"])
    """Confluent Cloud: the pool that a token is for (header `Confluent-Identity-Pool-Id`)."""
    context: ContextName | None = Field(default=None, examples=[".team"])
    """Context of the registry: subjects and ids are those of this one; the default one when left
    out."""
    ca_location: Text | None = None
    """PEM file of the authorities to trust; the system's own when left out."""
    certificate_location: Text | None = None
    """PEM file of the client's certificate."""
    key_location: Text | None = None
    """PEM file of the client's private key."""
    key_password: SecretStr | None = None
    """Password of the private key."""
    timeout: PositiveDuration = timedelta(seconds=10)
    """How long to wait for one answer."""
    cache_ttl: Duration = timedelta(minutes=1)
    """How long the latest version of a subject is believed; schemas by id never change."""
    unknown_id_grace: Duration = timedelta(seconds=5)
    """How long an id that the registry does not know is asked for again before its records are
    dead-lettered as UNKNOWN_SCHEMA_ID."""

    def conflicts(self) -> Iterator[Conflict]:
        """One place to look, one way to sign in."""
        places = [self.url is not None, bool(self.urls), self.path is not None]
        if sum(places) != 1:
            yield (), "needs exactly one of url, urls and path"
        if self.path is not None:
            for name in _ONLY_FOR_SERVERS:
                if getattr(self, name) is not None:
                    yield (name,), "means nothing for a folder of schemas"
        yield from unpaired_login(self.username, self.password)
        if self.key_location and not self.certificate_location:
            yield ("key_location",), "goes together with certificate_location"
        if self.token is not None and self.username is not None:
            yield ("token",), "cannot stand beside username and password"
        if self.oauth is not None and (self.token is not None or self.username is not None):
            yield ("oauth",), "cannot stand beside token, or username and password"
        for name in ("logical_cluster", "identity_pool"):
            given: str | None = getattr(self, name)
            if given is not None and not given.isascii():
                yield (name,), "must be ASCII: it is sent as a header"
            if given is not None and self.path is None and not (self.token or self.oauth):
                yield (name,), "goes together with token or oauth"

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses to try in order; none for a folder."""
        return (self.url,) if self.url else self.urls

    @property
    def places(self) -> tuple[str, ...]:
        """The addresses with the context, because each context counts its ids for itself."""
        if self.context is None:
            return self.addresses
        return tuple(f"{address.rstrip('/')}/contexts/{self.context}" for address in self.addresses)
