"""The broker: one node that is its own controller, with settings for one person and many tests."""

from __future__ import annotations

import base64
import os
import subprocess
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from distributary.dev.artifacts import Artifacts
from distributary.dev.java_service import JavaService
from distributary.dev.ports import HOST
from distributary.dev.security import MECHANISMS, USER, broker_settings, password
from distributary.errors import ErrorCode, SetupError
from distributary.run.connectors import JVM
from distributary.run.java import Java

_MEMORY = "512m"
_ANSWER_SECONDS = 2.0
_FORMAT_SECONDS = 120
_LARGEST_RECORD = 110 * 1024 * 1024
_SETTINGS = Path("kafka", "server.properties")
_DATA = Path("kafka", "data")
_WORDS = Path("kafka", "format.words")

_FIXED = {
    "node.id": "1",
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "log.dirs": str(_DATA),
    "auto.create.topics.enable": "true",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "message.max.bytes": str(_LARGEST_RECORD),
    "replica.fetch.max.bytes": str(_LARGEST_RECORD),
    "socket.request.max.bytes": str(_LARGEST_RECORD + 10 * 1024 * 1024),
    # simulated records may be years old, and must stay nevertheless
    "log.retention.ms": "-1",
    # a killed broker may come back only when its session has ended
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",
    "controller.quorum.election.timeout.ms": "200",
    "controller.quorum.election.backoff.max.ms": "100",
    # the usual buffer is a quarter of the memory
    "log.cleaner.dedupe.buffer.size": str(4 * 1024 * 1024),
    "num.network.threads": "2",
    "num.io.threads": "4",
}


@dataclass(frozen=True, slots=True)
class Broker(JavaService):
    """Kafka, with listeners that ask who is there if the ports have any."""

    name = "kafka"
    title = "the Kafka broker"

    @property
    def address(self) -> str:
        """For `bootstrap_servers`."""
        return f"{HOST}:{self.port}"

    @property
    def port(self) -> int:
        """Without any security."""
        return self.ports.kafka

    @property
    def other_ports(self) -> tuple[int, ...]:
        """The controller's and the secured ones."""
        mine = self.ports
        return mine.controller, mine.sasl_plaintext, mine.sasl_ssl, mine.ssl

    def prepare(self, java: Java, artifacts: Artifacts) -> None:
        """Write the settings; the first time, make the log and the users."""
        path = self.folder / _SETTINGS
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"{key}={value}" for key, value in (_FIXED | self._listeners()).items()]
        if self.ports.ssl:
            lines += broker_settings(self.folder)
        with open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as file:
            file.write("\n".join(lines) + "\n")
        if not (self.folder / _DATA / "meta.properties").is_file():
            self._format(java, artifacts)

    def _listeners(self) -> dict[str, str]:
        mine = self.ports
        open_ports = {
            "PLAINTEXT": mine.kafka,
            "SASL_PLAINTEXT": mine.sasl_plaintext,
            "SASL_SSL": mine.sasl_ssl,
            "SSL": mine.ssl,
        }
        named = [f"{name}://{HOST}:{port}" for name, port in open_ports.items() if port]
        protocols = [f"{name}:{name}" for name in open_ports]
        return {
            "controller.quorum.voters": f"1@{HOST}:{mine.controller}",
            "listeners": ",".join([*named, f"CONTROLLER://{HOST}:{mine.controller}"]),
            "advertised.listeners": ",".join(named),
            "listener.security.protocol.map": ",".join([*protocols, "CONTROLLER:PLAINTEXT"]),
        }

    def _format(self, java: Java, artifacts: Artifacts) -> None:
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        words = ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster}"]
        words += ["-c", str(_SETTINGS)]
        for mechanism in MECHANISMS[1:] if self.ports.ssl else ():
            user = f"[name={USER},password={password(self.folder)}]"
            words += ["--add-scram", f"{mechanism}={user}"]
        # everybody on the machine can read a command line
        told = self.folder / _WORDS
        told.unlink(missing_ok=True)
        with open(os.open(told, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write("\n".join(words) + "\n")
        command = [
            *(str(java.path), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
            *_with_classes(artifacts),
            f"@{_WORDS}",
        ]
        try:
            ended = subprocess.run(  # noqa: S603 - Java, with arguments of this package
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_FORMAT_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise self._unformatted(type(error).__name__) from error
        finally:
            told.unlink(missing_ok=True)
        if ended.returncode:
            raise self._unformatted("\n".join(ended.stderr.strip().splitlines()[-6:]))

    def _unformatted(self, evidence: str) -> SetupError:
        return SetupError(
            "the folder of the Kafka broker could not be made",
            code=ErrorCode.SERVICE_FAILED,
            where=str(self.folder / _DATA),
            evidence=evidence,
            next_step="distributary dev down --wipe, then distributary dev up",
        )

    def command(self, java: Java, artifacts: Artifacts) -> list[str]:
        """`kafka.Kafka` with the settings."""
        return [
            *self._jvm(java, artifacts.kafka, memory=_MEMORY),
            f"-Dlog4j2.configurationFile={JVM / 'log4j2.properties'}",
            f"-Ddistributary.log={self.log.relative_to(self.folder)}",
            "-Ddistributary.log.level=INFO",
            *_with_classes(artifacts),
            *("kafka.Kafka", str(_SETTINGS)),
        ]

    def answers(self) -> bool:
        """Whether it lists its topics."""
        client = AdminClient(
            # what it cannot reach yet is no news for anybody
            {"bootstrap.servers": self.address, "log_level": 0, "reconnect.backoff.max.ms": 200}
        )
        try:
            return bool(client.list_topics(timeout=_ANSWER_SECONDS).brokers)
        except KafkaException:
            return False


def _with_classes(artifacts: Artifacts) -> Sequence[str]:
    return "-cp", os.pathsep.join(str(jar) for jar in artifacts.kafka)
