"""Topics: made when there is none, known again by the id that the broker gave them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from distributary.errors import ConfigError, SourceUnavailableError
from distributary.simulate.kafka_errors import ALREADY_THERE, NOT_THERE, explained, telling

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
    """Never given twice: a topic that was made anew under the same name has another one."""
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
