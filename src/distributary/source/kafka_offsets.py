"""What a broker says about its partitions, asked by the driver."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from distributary.errors import SourceError, SourceUnavailableError

Partition = tuple[str, int]
Offsets = dict[Partition, int]

_FIRST_SECONDS = 1.5
_SECONDS = 10.0
_ALL_BROKERS_DOWN = -187
_REFUSED = {
    # librdkafka's own codes are negative and have no public names: local authentication failure
    -169,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
}


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

    def partitions(self, topics: Sequence[str], pattern: str | None) -> list[Partition]:
        """The partitions of these topics, or of all topics whose whole name fits the pattern."""
        known = self._topics()
        if pattern is not None:
            topics = sorted(name for name in known if re.fullmatch(pattern, name))
        for name in topics:
            if name not in known or known[name].error is not None:
                self._no_topic(name, known)
        return [(name, number) for name in topics for number in sorted(known[name].partitions)]

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
        """All topics; a broker that says no is not waited for, one that says nothing is."""
        client = self._admin()
        for patience in (_FIRST_SECONDS, _SECONDS):
            try:
                return client.list_topics(timeout=patience).topics
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
        cause = self._error or error.args[0]
        if cause.code() in _REFUSED or "SASL" in cause.str().upper():
            raise SourceError(
                "the broker refuses these credentials",
                where=self._servers,
                evidence=cause.str(),
                next_step="check source.security, and what the user may read",
            ) from error
        raise SourceUnavailableError(
            "the broker does not answer",
            where=self._servers,
            evidence=cause.str(),
            next_step="start it (for a trial: `distributary dev up`), "
            "or correct source.bootstrap_servers",
        ) from error

    def _no_topic(self, name: str, known: Mapping[str, Any]) -> NoReturn:
        near = get_close_matches(name, [t for t in known if not t.startswith("__")], n=1)
        raise SourceUnavailableError(
            f"the topic {name!r} does not exist",
            where=self._servers,
            evidence=f"did you mean {near[0]!r}?" if near else f"{len(known)} topics are there",
            next_step="create it, or correct source.topics",
        )
