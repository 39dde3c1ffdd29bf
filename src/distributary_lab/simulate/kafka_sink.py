"""A sink that sends messages to a Kafka topic, and the cards that note what it created."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka import Message as Delivered
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pydantic import ValidationError
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from distributary.config.registry import RegistryConfig as RegistryConfig
from distributary.config.sources.kafka import KafkaSourceConfig
from distributary.errors import ConfigError, SourceError, SourceUnavailableError
from distributary.model.record import Format, WriterSchema
from distributary.registry.base import References
from distributary.registry.http.http_registry import HttpRegistry
from distributary.source.kafka.consumer import ALL_BROKERS_DOWN, REFUSED
from distributary.source.kafka.produced import ProducedTopic, new_card, write_card
from distributary_lab.simulate.base import ReferencedRegistry, SinkMessage

# Errors of a broker, for producers.

ALREADY_THERE = KafkaError.TOPIC_ALREADY_EXISTS
NOT_THERE = KafkaError.UNKNOWN_TOPIC_OR_PART

# error codes of librdkafka itself are negative and have no public names
_MESSAGE_TIMED_OUT = -192
_NO_TLS = -181
_UNFIT = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.INVALID_PARTITIONS,
    KafkaError.INVALID_CONFIG,
    KafkaError.POLICY_VIOLATION,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
}

_LOG_IN = "use a listener that needs no password, and a topic with write access"
_CHANGE = "change the limits of the broker or of the topic, or send other messages"
_START = (
    "start it (for a trial: `distributary dev up`), or name another one with --bootstrap-servers"
)


def telling(earlier: KafkaError | None, new: KafkaError) -> KafkaError:
    """Return the more informative of two errors of a client."""
    return earlier if earlier is not None and new.code() == ALL_BROKERS_DOWN else new


def explained(error: KafkaError, *, what: str, servers: str) -> SourceError:
    """Build the error to raise; a temporary failure gets the exit code for retries."""
    kind: type[SourceError] = SourceUnavailableError
    step = _START
    if error.code() in REFUSED | {_NO_TLS}:
        kind, what, step = SourceError, "the broker refuses this client", _LOG_IN
    elif error.code() in _UNFIT:
        kind, step = SourceError, _CHANGE
    return kind(what, where=servers, evidence=error.str(), next_step=step)


_POLL_SECONDS = 0.2
_MESSAGES_PER_POLL = 1_000
_SETTINGS = {
    # no message is doubled or reordered by retries
    "enable.idempotence": True,
    "delivery.timeout.ms": 30_000,
    # the broker decides which messages are too large
    "message.max.bytes": 1_000_000_000,
    # keys go to the same partitions as with a Java client
    "partitioner": "murmur2_random",
    "linger.ms": 20,
    "log_level": 2,
}


class KafkaSink:
    """A sink that sends messages to one existing topic; a write waits for all acknowledgements."""

    def __init__(
        self,
        topic: str,
        *,
        options: Mapping[str, str],
        producer: Callable[[dict[str, Any]], Producer] = Producer,
    ) -> None:
        self.topic = topic
        self.acknowledged = 0
        """Number of messages that the broker has acknowledged."""
        self.offsets: dict[int, tuple[int, int]] = {}
        """First and last offset that was written, by partition."""
        self._servers = options["bootstrap.servers"]
        self._failed: KafkaError | None = None
        self._client_error: KafkaError | None = None
        self._producer = producer({**options, **_SETTINGS, "error_cb": self._remember})

    def write(self, messages: Iterable[SinkMessage]) -> None:
        """Send messages and wait until each is acknowledged.

        Raise SourceUnavailableError when the brokers do not answer in time, SourceError when they
        refuse a message. Messages that were acknowledged before stay sent.
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
            # short waits, so that Ctrl-C is handled
            while self._producer.flush(_POLL_SECONDS) and self._failed is None:
                pass
            self._check(sent, self.acknowledged - before)
        except BaseException:
            # messages of a failed write must not be sent later
            self._producer.purge()
            self._producer.flush(_POLL_SECONDS)
            raise

    def _send(self, message: SinkMessage) -> None:
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
        """Handle the acknowledgement or failure of one message."""
        if error is not None:
            self._failed = self._failed or error
            return
        self.acknowledged += 1
        partition, offset = message.partition() or 0, message.offset() or 0
        first, _ = self.offsets.get(partition, (offset, offset))
        self.offsets[partition] = (first, offset)

    def _forget(self) -> None:
        """Clear the errors of earlier writes."""
        self._failed = self._client_error = None

    def _remember(self, error: KafkaError) -> None:
        """Keep the most informative error of the client."""
        self._client_error = telling(self._client_error, error)

    def _check(self, sent: int, acknowledged: int) -> None:
        """Raise the error of a failed write."""
        if self._failed is None:
            return
        # the client's error explains why a message timed out
        timed_out = self._failed.code() == _MESSAGE_TIMED_OUT
        raise explained(
            self._client_error if timed_out and self._client_error is not None else self._failed,
            what=f"{sent - acknowledged:,} of {sent:,} messages were not delivered to {self.topic}",
            servers=self._servers,
        )


# Topics: created when missing, and identified by the id from the broker.

_SECONDS = 10.0
_MOMENT_SECONDS = 0.1
_BROKERS_CHOICE = -1
# simulated records may be years old: retention must not delete them
_KEPT = {"retention.ms": "-1"}


@dataclass(frozen=True, slots=True)
class ExistingTopic:
    """A topic that exists."""

    name: str
    id: str
    """The id of the topic; a topic that was created again under the same name has another one."""
    partitions: int
    created: bool = False
    """Whether this process created it."""


class Topics:
    """The topics of one cluster."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.servers = options["bootstrap.servers"]
        self._error: KafkaError | None = None
        settings: dict[str, Any] = {**options, "log_level": 2, "error_cb": self._remember}
        self._client = AdminClient(settings)

    def cluster(self) -> str:
        """Return the id of the cluster, which its card names."""
        try:
            return str(self._client.list_topics(timeout=_SECONDS).cluster_id)
        except KafkaException as error:
            self._fail(error)

    def find(self, name: str) -> ExistingTopic | None:
        """Return the topic of this name; None if there is none."""
        # a metadata request for a missing topic would create it on some brokers; describe does not
        futures = self._client.describe_topics(TopicCollection([name]), request_timeout=_SECONDS)
        try:
            description = futures[name].result()
        except KafkaException as error:
            if error.args[0].code() == NOT_THERE:
                return None
            self._fail(error)
        return ExistingTopic(name, str(description.topic_id), len(description.partitions))

    def ensure(self, name: str, *, partitions: int | None = None) -> ExistingTopic:
        """Return the topic, created with so many partitions (1 if not given) when missing.

        Raise ConfigError when it exists with another number of partitions.
        """
        topic = self.find(name)
        if topic is None and self._create(name, partitions or 1):
            return replace(self._appeared(name), created=True)
        topic = topic or self._appeared(name)
        if partitions not in (None, topic.partitions):
            raise ConfigError(
                f"the topic {name} has {topic.partitions} partitions already",
                where=f"--partitions {partitions}",
                evidence=self.servers,
                next_step="leave --partitions out, or choose another topic with --topic",
            )
        return topic

    def _create(self, name: str, partitions: int) -> bool:
        """Create a topic; return false if it exists already."""
        topic = NewTopic(name, partitions, _BROKERS_CHOICE, config=_KEPT)
        try:
            self._client.create_topics([topic], request_timeout=_SECONDS)[name].result()
        except KafkaException as error:
            if error.args[0].code() == ALREADY_THERE:
                return False
            self._fail(error)
        return True

    def _appeared(self, name: str) -> ExistingTopic:
        # the controller knows a new topic before every broker does
        """Wait until the brokers know the topic, and return it."""
        looking = Retrying(
            stop=stop_after_delay(_SECONDS),
            wait=wait_fixed(_MOMENT_SECONDS),
            retry=retry_if_result(lambda topic: topic is None),
            retry_error_callback=lambda state: None,
        )
        topic = looking(self.find, name)
        if topic is None:
            raise SourceUnavailableError(
                f"the topic {name} was created and did not appear",
                where=self.servers,
                next_step="try again; if that does not help, look into the broker's log",
            )
        return topic

    def _remember(self, error: KafkaError) -> None:
        self._error = telling(self._error, error)

    def _fail(self, error: KafkaException) -> NoReturn:
        # the client reports connection errors by callback; the request itself only times out
        self._client.poll(0)
        cause = self._error or error.args[0]
        raise explained(cause, what="the broker does not answer", servers=self.servers) from error


# What a producer created is noted on a card, by which `clean` removes it.


class Notes:
    """A registry that forwards all calls, and notes on a card which subjects it created."""

    def __init__(
        self, topic: ExistingTopic, *, cluster: str, registry: HttpRegistry, address: str
    ) -> None:
        self._topic, self._cluster = topic, cluster
        self._registry = registry
        self._address = address.rstrip("/")
        self._path = new_card()
        self._made: list[str] = []
        self._ids: dict[str, set[int]] = {}

    def set_compatibility(self, subject: str, level: str) -> None:
        """Set the level of a subject."""
        self._note_if_new(subject)
        self._registry.set_compatibility(subject, level)

    def register(
        self,
        subject: str,
        text: str,
        *,
        format: Format = Format.PROTOBUF,
        references: References = (),
    ) -> int:
        """Register a schema and return its id."""
        self._note_if_new(subject)
        schema_id = self._registry.register(subject, text, format=format, references=references)
        self._ids[subject].add(schema_id)
        return schema_id

    def by_id(self, schema_id: int) -> WriterSchema:
        """Return the schema with this id."""
        return self._registry.by_id(schema_id)

    def save(self) -> None:
        """Write the card; nothing is written if nothing was created."""
        card = ProducedTopic(
            cluster=self._cluster,
            topic=self._topic.name,
            topic_id=self._topic.id if self._topic.created else None,
            registry=self._address,
            subjects=tuple(self._made),
            schema_ids={name: tuple(sorted(ids)) for name, ids in self._ids.items()},
            path=self._path,
        )
        if card.topic_id or card.schema_ids:
            write_card(card)

    def _note_if_new(self, subject: str) -> None:
        """Note a subject that has no version yet."""
        if subject not in self._ids:
            self._ids[subject] = set()
            if not self._registry.versions(subject):
                self._made.append(subject)


# A topic and a registry, opened together, with a card of what was created.

BOOTSTRAP_SERVERS = "127.0.0.1:9092"
REGISTRY_URL = "http://127.0.0.1:8081/apis/ccompat/v7"
"""The addresses of `distributary dev up`, which are also the defaults of pipeline files."""

_OPTIONS = {
    "bootstrap_servers": "--bootstrap-servers",
    "topics": "--topic",
    "url": "--registry-url",
}


@dataclass(frozen=True, kw_only=True)
class KafkaTarget:
    """The topic, brokers and registry to send to."""

    topic: str
    bootstrap_servers: str = BOOTSTRAP_SERVERS
    registry_url: str = REGISTRY_URL
    partitions: int | None = None
    """Number of partitions if the topic is created; 1 when left out."""
    source: KafkaSourceConfig | None = None
    """Source settings of a pipeline file, for the login to the brokers."""
    registry: RegistryConfig | None = None
    """Registry settings of a pipeline file, for the login to the registry."""


@dataclass(frozen=True, slots=True)
class Outlet:
    """An open topic and registry."""

    topic: ExistingTopic
    sink: KafkaSink
    registry: ReferencedRegistry

    def describe(self) -> dict[str, Any]:
        """Return the topic and the acknowledged offsets, for `--json`."""
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
    """Open topic and registry, create the topic if missing, and note that for `clean`."""
    source, config = validated(target)
    options = source.client_options()
    with HttpRegistry(config) as registry:
        # the registry is checked first: without it, no topic should be created
        registry.compatibility()
        topics = Topics(options)
        cluster = topics.cluster()
        topic = topics.ensure(target.topic, partitions=target.partitions)
        sink = KafkaSink(topic.name, options=options)
        if not noted:
            yield Outlet(topic, sink, registry)
            return
        notes = Notes(topic, cluster=cluster, registry=registry, address=config.places[0])
        notes.save()
        try:
            yield Outlet(topic, sink, notes)
        finally:
            notes.save()


def validated(target: KafkaTarget) -> tuple[KafkaSourceConfig, RegistryConfig]:
    """Return the settings of source and registry; raise ConfigError for an invalid address."""
    if target.source is not None and target.registry is not None:
        return target.source, target.registry
    try:
        source = KafkaSourceConfig(
            type="kafka", bootstrap_servers=target.bootstrap_servers, topics=(target.topic,)
        )
        return source, RegistryConfig(url=target.registry_url)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise ConfigError(
            "the topic, the broker or the registry is not a valid address",
            where=_OPTIONS.get(str(next(iter(first["loc"]), "")), ""),
            evidence=str(first["msg"]),
            next_step="name a broker as host:port, a registry by its address, and a topic",
        ) from None
