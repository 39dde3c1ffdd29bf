"""What a broker says about its partitions, asked by the driver."""

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

from distributary.errors import SourceError, SourceUnavailableError

Partition = tuple[str, int]
Offsets = dict[Partition, int]
_Answer = TypeVar("_Answer")

_UNKNOWN = "A" * 22
"""The id of every topic, as a broker without ids (before 2.8) has it: 16 bytes of zero."""
_FEW = 50
"""Topics up to which asking for each is cheaper than asking for all: 1,000 take 35 ms, and the list
of 1,000 takes 5 ms, but has no ids."""
_BELIEVED_SECONDS = 1.0
"""How long ids are believed where asking for them is a question of its own."""
_FIRST_SECONDS = 1.5
_SECONDS = 10.0
_ALL_BROKERS_DOWN = -187
_NOT_SUPPORTED = -165
_REFUSED = {
    # librdkafka's own codes are negative and have no public names: local authentication failure
    -169,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
}


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the broker has it now."""

    partitions: tuple[int, ...]
    id: str = ""
    """Another one when the topic is deleted and made anew; empty if the broker does not tell."""


class Broker:
    """Asks for topics and offsets; one connection, opened at the first question."""

    def __init__(self, options: Mapping[str, str], *, committed_only: bool = False) -> None:
        self._servers = options["bootstrap.servers"]
        self._options = dict(options)
        self._level = (
            IsolationLevel.READ_COMMITTED if committed_only else IsolationLevel.READ_UNCOMMITTED
        )
        self._error: KafkaError | None = None
        self._client: AdminClient | None = None
        self._believed: tuple[float, Sequence[str], dict[str, Topic]] = (0.0, (), {})

    def partitions(self, topics: Sequence[str], pattern: str | None) -> list[Partition]:
        """The partitions of these topics, or of all topics whose whole name fits the pattern."""
        found = self.topics(topics, pattern)
        return [(name, number) for name, topic in found.items() for number in topic.partitions]

    def topics(self, names: Sequence[str], pattern: str | None) -> dict[str, Topic]:
        """These topics, or all topics whose whole name fits the pattern."""
        if pattern is None and len(names) <= _FEW:
            # one question for partitions and ids, and not about all topics of the cluster
            told = self.described(names)
            if len(told) == len(names):
                return {name: told[name] for name in names}
        known = self._topics()
        if pattern is not None:
            names = sorted(name for name in known if re.fullmatch(pattern, name))
        told = self._recently_described(names)
        for name in names:
            if name not in known or known[name].error is not None:
                self._no_topic(name, known)
        return {
            name: Topic(
                tuple(sorted(known[name].partitions)), told[name].id if name in told else ""
            )
            for name in names
        }

    def described(self, names: Sequence[str]) -> dict[str, Topic]:
        """What the broker tells about these topics; those that it does not tell about are left out.

        Raises SourceUnavailableError if it does not answer.
        """
        return self._patiently(lambda client, patience: _described(client, names, patience))

    def earliest(self, partitions: Iterable[Partition]) -> Offsets:
        """The oldest record that each partition still has."""
        return self._offsets(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def latest(self, partitions: Iterable[Partition]) -> Offsets:
        """One past the newest record of each partition."""
        return self._offsets(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def since(self, partitions: Sequence[Partition], moment_ms: int) -> Offsets:
        """The first record of each partition that is not older; its end where there is none."""
        found = self._offsets(partitions, OffsetSpec.for_timestamp(moment_ms))
        ends = self.latest([one for one in partitions if found[one] < 0])
        return {one: ends.get(one, offset) for one, offset in found.items()}

    def _topics(self) -> Mapping[str, Any]:
        """All topics."""
        return self._patiently(lambda client, patience: client.list_topics(timeout=patience).topics)

    def _recently_described(self, names: Sequence[str]) -> dict[str, Topic]:
        """As `described`, but asked once a second: polls are more frequent than that."""
        moment, asked, told = self._believed
        if time.monotonic() - moment > _BELIEVED_SECONDS or asked != names:
            told = self.described(names)
            self._believed = time.monotonic(), names, told
        return told

    def _patiently(self, ask: Callable[[AdminClient, float], _Answer]) -> _Answer:
        """Ask; a broker that says no is not waited for, one that says nothing is."""
        client = self._admin()
        for patience in (_FIRST_SECONDS, _SECONDS):
            try:
                return ask(client, patience)
            except KafkaException as error:
                # what the connection had to say is delivered only when it is asked for
                client.poll(0)
                if self._error is not None or patience == _SECONDS:
                    self._fail(error)
        raise AssertionError("the last try either answers or fails")

    def _offsets(self, partitions: Iterable[Partition], spec: OffsetSpec) -> Offsets:
        wanted = {TopicPartition(*one): spec for one in partitions}
        if not wanted:
            return {}
        try:
            futures = self._admin().list_offsets(
                wanted, isolation_level=self._level, request_timeout=_SECONDS
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
        # what is wrong with a connection is told here, the question itself only times out
        if self._error is None or error.code() != _ALL_BROKERS_DOWN:
            self._error = error

    def _fail(self, error: KafkaException) -> NoReturn:
        # a client that could not connect may hold on to its last attempt for a long time
        self._client = None
        told = [each for each in (error.args[0], self._error) if each is not None]
        # by the code alone: the text of an outage names the listener, as in `sasl_ssl://`
        refusal = next((each for each in told if each.code() in _REFUSED), None)
        if refusal is not None:
            raise SourceError(
                "the broker refuses these credentials",
                where=self._servers,
                evidence=refusal.str(),
                next_step="check source.security, and what the user may read",
            ) from error
        raise SourceUnavailableError(
            "the broker does not answer",
            where=self._servers,
            evidence=told[-1].str(),
            next_step="start it (for a trial: `distributary dev up`), "
            "or correct source.bootstrap_servers or source.security",
        ) from error

    def _no_topic(self, name: str, known: Mapping[str, Any]) -> NoReturn:
        near = get_close_matches(name, [t for t in known if not t.startswith("__")], n=1)
        raise SourceUnavailableError(
            f"the topic {name!r} does not exist",
            where=self._servers,
            evidence=f"did you mean {near[0]!r}?" if near else f"{len(known)} topics are there",
            next_step="create it, or correct source.topics",
        )


def _described(client: AdminClient, names: Sequence[str], patience: float) -> dict[str, Topic]:
    if not names:
        return {}
    futures = client.describe_topics(TopicCollection(list(names)), request_timeout=patience)
    found = {}
    for name, future in futures.items():
        try:
            told = future.result()
        except KafkaException as error:
            # the broker's own answers are positive: no such topic, or none that may be seen
            if error.args[0].code() > 0 or error.args[0].code() == _NOT_SUPPORTED:
                continue
            raise
        id_ = str(told.topic_id)
        partitions = tuple(sorted(partition.id for partition in told.partitions))
        found[name] = Topic(partitions, "" if id_ == _UNKNOWN else id_)
    return found
