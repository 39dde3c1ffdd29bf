"""Messages into a Kafka topic: each is acknowledged, or it is an error."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import platformdirs
from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka import Message as Delivered
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pydantic import ValidationError
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from distributary.config.kafka import KafkaSource
from distributary.config.kafka import Registry as RegistryConfig
from distributary.errors import ConfigError, SourceError, SourceUnavailableError
from distributary.lab.simulate.base import Message, Registry
from distributary.model.record import Format, WriterSchema
from distributary.registry.base import References
from distributary.registry.http.registry import HttpRegistry
from distributary.source.consumer import ALL_BROKERS_DOWN, REFUSED
from distributary.store import disk

# What a broker's no means for whoever sends to it.

ALREADY_THERE = KafkaError.TOPIC_ALREADY_EXISTS
NOT_THERE = KafkaError.UNKNOWN_TOPIC_OR_PART

# librdkafka's own codes are negative and have no public names
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

_LOG_IN = "send to a listener without a password, and to a topic that may be written"
_CHANGE = "change what the broker or the topic allows, or send something else"
_START = (
    "start it (for a trial: `distributary dev up`), or name another one with --bootstrap-servers"
)


def telling(known: KafkaError | None, new: KafkaError) -> KafkaError:
    """Of two complaints of a client the one that says more."""
    return known if known is not None and new.code() == ALL_BROKERS_DOWN else new


def explained(error: KafkaError, *, what: str, servers: str) -> SourceError:
    """The error to raise; whatever a later try could heal has the exit code for that."""
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
    # no message twice and none out of order, whatever is tried again
    "enable.idempotence": True,
    "delivery.timeout.ms": 30_000,
    # what is too large is the broker's to say
    "message.max.bytes": 1_000_000_000,
    # a key is in the partition in which a Java client would look for it
    "partitioner": "murmur2_random",
    "linger.ms": 20,
    "log_level": 2,
}


class KafkaSink:
    """Sends messages to one topic, which must exist; a write ends when the broker has all."""

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

    def write(self, messages: Iterable[Message]) -> None:
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
            self._check(sent, self.acknowledged - before)
        except BaseException:
            # nothing of a failed write is sent behind the caller's back
            self._producer.purge()
            self._producer.flush(_POLL_SECONDS)
            raise

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

    def _check(self, sent: int, known: int) -> None:
        if self._failed is None:
            return
        # that a message waited too long says less than why it had to
        timed_out = self._failed.code() == _MESSAGE_TIMED_OUT
        raise explained(
            self._told if timed_out and self._told is not None else self._failed,
            what=f"{sent - known:,} of {sent:,} messages were not delivered to {self.topic}",
            servers=self._servers,
        )


# Topics: made when there is none, known again by the id that the broker gave them.

_SECONDS = 10.0
_MOMENT_SECONDS = 0.1
_BROKERS_CHOICE = -1
# simulated records may be years old, and must stay nevertheless
_KEPT = {"retention.ms": "-1"}


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic that exists."""

    name: str
    id: str
    """Never given twice: a topic that was made again under the same name has another one."""
    partitions: int
    created: bool = False
    """Whether it was made just now."""


class Topics:
    """The topics of one cluster."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.servers = options["bootstrap.servers"]
        self._error: KafkaError | None = None
        settings: dict[str, Any] = {**options, "log_level": 2, "error_cb": self._remember}
        self._client = AdminClient(settings)

    def cluster(self) -> str:
        """The cluster's own id: another cluster at the same address has another one."""
        try:
            return str(self._client.list_topics(timeout=_SECONDS).cluster_id)
        except KafkaException as error:
            self._fail(error)

    def find(self, name: str) -> Topic | None:
        """A topic, if there is one of this name."""
        # asked about by its name alone, a missing topic would be made by some brokers
        asked = self._client.describe_topics(TopicCollection([name]), request_timeout=_SECONDS)
        try:
            found = asked[name].result()
        except KafkaException as error:
            if error.args[0].code() == NOT_THERE:
                return None
            self._fail(error)
        return Topic(name, str(found.topic_id), len(found.partitions))

    def ensure(self, name: str, *, partitions: int | None = None) -> Topic:
        """The topic, made with so many partitions (1 if not said) unless it is there.

        Raises ConfigError where it is there with another number of partitions.
        """
        found = self.find(name)
        if found is None and self._create(name, partitions or 1):
            return replace(self._appeared(name), created=True)
        found = found or self._appeared(name)
        if partitions not in (None, found.partitions):
            raise ConfigError(
                f"the topic {name} has {found.partitions} partitions already",
                where=f"--partitions {partitions}",
                evidence=self.servers,
                next_step="leave --partitions out, or choose another topic with --topic",
            )
        return found

    def delete(self, name: str) -> None:
        """Remove a topic with everything in it; one that is gone already is no error."""
        try:
            self._client.delete_topics([name], request_timeout=_SECONDS)[name].result()
        except KafkaException as error:
            if error.args[0].code() != NOT_THERE:
                self._fail(error)

    def _create(self, name: str, partitions: int) -> bool:
        wanted = NewTopic(name, partitions, _BROKERS_CHOICE, config=_KEPT)
        try:
            self._client.create_topics([wanted], request_timeout=_SECONDS)[name].result()
        except KafkaException as error:
            if error.args[0].code() == ALREADY_THERE:
                return False
            self._fail(error)
        return True

    def _appeared(self, name: str) -> Topic:
        # the controller has it before every broker knows of it
        looking = Retrying(
            stop=stop_after_delay(_SECONDS),
            wait=wait_fixed(_MOMENT_SECONDS),
            retry=retry_if_result(lambda found: found is None),
            retry_error_callback=lambda state: None,
        )
        found = looking(self.find, name)
        if found is None:
            raise SourceUnavailableError(
                f"the topic {name} was made and does not appear",
                where=self.servers,
                next_step="try again; if that does not help, look into the broker's log",
            )
        return found

    def _remember(self, error: KafkaError) -> None:
        self._error = telling(self._error, error)

    def _fail(self, error: KafkaException) -> NoReturn:
        # what is wrong with a connection is told here, the question itself only times out
        self._client.poll(0)
        cause = self._error or error.args[0]
        raise explained(cause, what="the broker does not answer", servers=self.servers) from error


# What a producer made outside of any lake: its card says which topic and subjects were not there.
#
# Cards lie in the user's own folder, because a producer does not know who will read from its
# topic. A topic is known again by the id that its cluster gave it, and a subject by the cluster
# beside which it was made and by the ids of its schemas: names and addresses alone come back.

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Made:
    """One card."""

    cluster: str
    topic: str
    """Where the messages went."""
    topic_id: str | None
    """The id of that topic, if it was made for them."""
    registry: str
    subjects: tuple[str, ...]
    """The subjects that had no version before, in the order in which they were made."""
    schema_ids: Mapping[str, tuple[int, ...]]
    """The ids of everything that was registered, by subject."""
    path: Path
    """Where it lies."""


def cards_folder() -> Path:
    """Where cards lie."""
    return platformdirs.user_state_path("distributary") / "produced"


def new_card() -> Path:
    """Where a card will lie that is not there yet."""
    return cards_folder() / f"{uuid.uuid4().hex}.json"


def cards() -> Iterator[Made]:
    """All cards that can be read."""
    for path in sorted(cards_folder().glob("*.json")):
        try:
            known = json.loads(path.read_text("utf-8"))
            if known.pop("format") != _FORMAT:
                continue
            ids = {name: tuple(found) for name, found in known.pop("schema_ids").items()}
            subjects = tuple(known.pop("subjects"))
            yield Made(**known, subjects=subjects, schema_ids=ids, path=path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            # whatever it was, it is no word on which something may be deleted
            continue


def write_card(card: Made) -> None:
    """Write a card, or put another in its place."""
    content = {"format": _FORMAT, **asdict(card)}
    del content["path"]
    card.path.parent.mkdir(parents=True, exist_ok=True)
    disk.replace(card.path, (json.dumps(content, indent=2) + "\n").encode())


class Notes:
    """A registry that passes everything on, and writes down which subjects were not there before.

    It writes the card of one producer, while that works.
    """

    def __init__(self, topic: Topic, *, cluster: str, registry: HttpRegistry, address: str) -> None:
        self._topic, self._cluster = topic, cluster
        self._registry = registry
        self._address = address.rstrip("/")
        self._path = new_card()
        self._made: list[str] = []
        self._ids: dict[str, set[int]] = {}

    def set_compatibility(self, subject: str, level: str) -> None:
        """Set the level of a subject."""
        self._look(subject)
        self._registry.set_compatibility(subject, level)

    def register(
        self,
        subject: str,
        text: str,
        *,
        format: Format = Format.PROTOBUF,
        references: References = (),
    ) -> int:
        """Register a schema."""
        self._look(subject)
        schema_id = self._registry.register(subject, text, format=format, references=references)
        self._ids[subject].add(schema_id)
        return schema_id

    def by_id(self, schema_id: int) -> WriterSchema:
        """The schema with this id."""
        return self._registry.by_id(schema_id)

    def save(self) -> None:
        """Write down what is known by now; nothing if nothing was made."""
        card = Made(
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

    def _look(self, subject: str) -> None:
        if subject not in self._ids:
            self._ids[subject] = set()
            if not self._registry.versions(subject):
                self._made.append(subject)


# A topic to send to and a registry to fill, opened together and noted on a card.

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
    """Reach both, make the topic unless it is there, and note what was made for `clean`."""
    source, config = validated(target)
    options = source.client_options()
    with HttpRegistry(config) as registry:
        # asked first: without a registry, no topic is made in vain
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


def validated(target: KafkaTarget) -> tuple[KafkaSource, RegistryConfig]:
    """How to reach both; ConfigError where an address is none."""
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
