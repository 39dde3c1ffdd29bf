"""The driver's questions to a Kafka broker about its topics and partitions."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NoReturn, TypeVar

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from distributary.errors import SourceUnavailableError
from distributary.model.record import Partition
from distributary.source.kafka.consumer import (
    ALL_BROKERS_DOWN,
    REFUSED,
    refused,
)

Offsets = dict[Partition, int]
_Answer = TypeVar("_Answer")

_UNKNOWN = "A" * 22
"""The id of every topic of a broker without ids (before 2.8): 16 zero bytes."""
_FEW = 50
"""The number of topics up to which describing each is cheaper than listing all: describing 1,000
takes 35 ms, and listing them takes 5 ms, but gives no ids."""
_BELIEVED_SECONDS = 1.0
"""The time for which ids are cached if they need a separate request."""
_FIRST_SECONDS = (0.3, 1.5)
ANSWER_SECONDS = 10.0
_NOT_SUPPORTED = -165


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the broker has it now."""

    partitions: tuple[int, ...]
    id: str = ""
    """The topic's id, which changes when the topic is deleted and created again; empty if
    unknown."""


class Broker:
    """A connection for topics and offsets, opened at the first request."""

    def __init__(
        self,
        options: Mapping[str, str],
        *,
        committed_only: bool = False,
        seconds: float = ANSWER_SECONDS,
    ) -> None:
        """Wait up to `seconds` for an answer.

        With `committed_only`, offsets end at open transactions.
        """
        self._seconds = seconds
        self._servers = options["bootstrap.servers"]
        self._options = dict(options)
        level = IsolationLevel
        self._level = level.READ_COMMITTED if committed_only else level.READ_UNCOMMITTED
        self._error: KafkaError | None = None
        self._client: AdminClient | None = None
        self.interruptions = 0
        """The number of lost connections and unanswered requests."""
        self._believed: tuple[float, Sequence[str], dict[str, Topic]] = (0.0, (), {})

    def partitions(self, topics: Sequence[str], pattern: str | None) -> list[Partition]:
        """Return the partitions of these topics, or of all topics that match the pattern."""
        return partitions_of(self.topics(topics, pattern))

    def topics(self, names: Sequence[str], pattern: str | None) -> dict[str, Topic]:
        """Return these topics, or all topics whose name matches the pattern."""
        if pattern is None and len(names) <= _FEW:
            # One request for partitions and ids, and not for all topics of the cluster.
            described = self.described(names)
            if len(described) == len(names):
                return {name: described[name] for name in names}
        listed = self._topics()
        if pattern is not None:
            names = sorted(name for name in listed if re.fullmatch(pattern, name))
        described = self._recently_described(names)
        chosen = {}
        for name in names:
            if name not in listed or listed[name].error is not None:
                self._no_topic(name, listed)
            id_ = described[name].id if name in described else ""
            chosen[name] = Topic(tuple(sorted(listed[name].partitions)), id_)
        return chosen

    def names(self) -> list[str]:
        """Return the names of all topics except internal ones."""
        return sorted(name for name in self._topics() if not name.startswith("__"))

    def described(self, names: Sequence[str]) -> dict[str, Topic]:
        """Describe these topics; topics that the broker does not know are left out.

        Raises SourceUnavailableError if the broker does not answer.
        """
        return self._patiently(lambda client, patience: _described(client, names, patience))

    def cluster(self) -> str:
        """Return the id of the cluster: another cluster at the same address has another id."""
        return self._patiently(lambda client, patience: str(_cluster(client, patience)))

    def delete(self, topic: str) -> None:
        """Delete a topic with all its records; a topic that is not there is no error."""
        self._patiently(lambda client, patience: _delete(client, topic, patience))

    def earliest(self, partitions: Iterable[Partition]) -> Offsets:
        """Return the offset of the oldest record in each partition."""
        return self._offsets(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def latest(self, partitions: Iterable[Partition]) -> Offsets:
        """Return the offset after the newest record of each partition."""
        return self._offsets(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def since(self, partitions: Sequence[Partition], moment_ms: int) -> Offsets:
        """Return the first offset of each partition at or after a time.

        Its end if there is none.
        """
        offsets = self._offsets(partitions, OffsetSpec.for_timestamp(moment_ms))
        ends = self.latest([one for one in partitions if offsets[one] < 0])
        return {one: ends.get(one, offset) for one, offset in offsets.items()}

    def _topics(self) -> Mapping[str, Any]:
        """List all topics."""
        return self._patiently(lambda client, patience: client.list_topics(timeout=patience).topics)

    def _recently_described(self, names: Sequence[str]) -> dict[str, Topic]:
        """Describe topics as `described` does, but once a second: polls are more frequent."""
        moment, cached_names, described = self._believed
        if time.monotonic() - moment > _BELIEVED_SECONDS or cached_names != names:
            described = self.described(names)
            self._believed = time.monotonic(), names, described
        return described

    def _patiently(self, ask: Callable[[AdminClient, float], _Answer]) -> _Answer:
        """Send a request; a broker that refuses is not waited for, a silent one is."""
        client = self._admin()
        for patience in (*_FIRST_SECONDS, self._seconds):
            try:
                return ask(client, patience)
            except KafkaException as error:
                # The client delivers errors of its connection only when it is polled.
                client.poll(0)
                if self._error is not None or patience == self._seconds:
                    self._fail(error)
        raise AssertionError("the last attempt either answers or fails")

    def _offsets(self, partitions: Iterable[Partition], spec: OffsetSpec) -> Offsets:
        wanted = {TopicPartition(*one): spec for one in partitions}
        if not wanted:
            return {}
        client = self._admin()
        # delivers what happened to the connection since the question before
        client.poll(0)
        try:
            futures = client.list_offsets(
                wanted, isolation_level=self._level, request_timeout=self._seconds
            )
            return {(tp.topic, tp.partition): f.result().offset for tp, f in futures.items()}
        except KafkaException as error:
            self._fail(error)

    def _admin(self) -> AdminClient:
        if self._client is None:
            self._error = None
            options: dict[str, Any] = {**self._options, "error_cb": self._remember, "log_level": 2}
            self._client = AdminClient(options)
        return self._client

    def _remember(self, error: KafkaError) -> None:
        # Errors of the connection are reported here; the request itself only times out.
        self.interruptions += 1
        if self._error is None or error.code() != ALL_BROKERS_DOWN:
            self._error = error

    def _fail(self, error: KafkaException) -> NoReturn:
        # A client that could not connect may hold on to its last attempt for a long time.
        self._client = None
        self.interruptions += 1
        errors = [e for e in (error.args[0], self._error) if e is not None]
        # Only the code counts: the text of an outage names the listener, as in `sasl_ssl://`.
        refusal = next((e for e in errors if e.code() in REFUSED), None)
        if refusal is not None:
            raise refused(self._servers, refusal.str()) from error
        raise SourceUnavailableError(
            "the broker does not answer",
            where=self._servers,
            evidence=errors[-1].str(),
            next_step="start the broker (for a trial: `distributary dev up`), "
            "or correct source.bootstrap_servers or source.security",
        ) from error

    def _no_topic(self, name: str, listed: Mapping[str, Any]) -> NoReturn:
        near = get_close_matches(name, [t for t in listed if not t.startswith("__")], n=1)
        raise SourceUnavailableError(
            f"the topic {name!r} does not exist",
            where=self._servers,
            evidence=f"did you mean {near[0]!r}?"
            if near
            else f"the broker has {len(listed)} topics",
            next_step="create the topic, or correct source.topics",
        )


def _described(client: AdminClient, names: Sequence[str], patience: float) -> dict[str, Topic]:
    if not names:
        return {}
    futures = client.describe_topics(TopicCollection(list(names)), request_timeout=patience)
    topics = {}
    for name, future in futures.items():
        try:
            description = future.result()
        except KafkaException as error:
            # Positive codes are the broker's: the topic does not exist, or may not be seen.
            if error.args[0].code() > 0 or error.args[0].code() == _NOT_SUPPORTED:
                continue
            raise
        id_ = str(description.topic_id)
        partitions = tuple(sorted(partition.id for partition in description.partitions))
        topics[name] = Topic(partitions, "" if id_ == _UNKNOWN else id_)
    return topics


def _cluster(client: AdminClient, patience: float) -> str | None:
    return client.list_topics(timeout=patience).cluster_id


def _delete(client: AdminClient, topic: str, patience: float) -> None:
    try:
        client.delete_topics([topic], request_timeout=patience)[topic].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise


def partitions_of(topics: Mapping[str, Topic]) -> list[Partition]:
    """Return every partition of the topics."""
    return [(name, number) for name, topic in topics.items() for number in topic.partitions]
