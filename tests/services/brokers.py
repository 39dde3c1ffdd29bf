"""Two brokers that are one cluster, for tests in which a partition gets another leader."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from distributary_lab.services.processes import HOST
from distributary_lab.services.servers import KafkaService
from distributary_lab.services.services import Services
from tests.waiting import eventually

FIRST, SECOND = 1, 2
_CLUSTER = "c2lzdGVyLWJyb2tlcnMtMQ"


class FirstBroker(KafkaService):
    """The one that is also the controller: it stays."""

    cluster = _CLUSTER

    def settings(self) -> dict[str, str]:
        """Whoever should lead a partition is elected as soon as it can."""
        return super().settings() | {
            "leader.imbalance.check.interval.seconds": "1",
            "leader.imbalance.per.broker.percentage": "0",
        }


class SecondBroker(KafkaService):
    """The one that comes and goes."""

    name = "second"
    title = "the second Kafka broker"
    other_ports = ()
    listeners: ClassVar = {"PLAINTEXT": "second"}
    cluster = _CLUSTER

    def settings(self) -> dict[str, str]:
        """No controller, but the address of one."""
        return super().settings() | {
            "node.id": str(SECOND),
            "process.roles": "broker",
            "listeners": f"PLAINTEXT://{HOST}:{self.port}",
        }


class TwoBrokers(Services):
    """A cluster in the place of a broker and a registry."""

    kinds = (FirstBroker, SecondBroker)

    @property
    def servers(self) -> str:
        """The address for `bootstrap_servers`."""
        return ",".join(broker.address for broker in self._both())

    @cached_property
    def admin(self) -> AdminClient:
        """A client that asks the first one."""
        return AdminClient({"bootstrap.servers": self.kafka, "log_level": 2})

    def stop(self) -> tuple[str, ...]:
        """End both; the second one would wait for its controller, which ends, too."""
        self.kill_second()
        return super().stop()

    def kill_second(self) -> None:
        """End it as a crash would."""
        self._kill("second")

    def restart_second(self) -> None:
        """The same again, with what it had; then it is elected for what it should lead."""
        self._restart("second")

    def create(self, topic: str) -> None:
        """A topic with one partition, which both have, and which the second would rather lead."""
        new = NewTopic(topic, num_partitions=1, replica_assignment=[[SECOND, FIRST]])
        for future in self.admin.create_topics([new]).values():
            future.result()
        self.wait_for(topic, leader=SECOND, both=True)

    def wait_for(self, topic: str, *, leader: int, both: bool = False) -> None:
        """Until this one leads the partition, and, if wanted, both have all of it."""

        def is_so() -> bool:
            try:
                told = self.admin.list_topics(topic, timeout=5).topics[topic].partitions[0]
            except (KafkaException, KeyError):
                return False
            return bool(told.leader == leader and (not both or {*told.isrs} == {FIRST, SECOND}))

        eventually(is_so, seconds=60)
