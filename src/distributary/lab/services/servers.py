"""The broker: one node that is its own controller, with settings for one person and many tests."""

from __future__ import annotations

import base64
import http.client
import os
import subprocess
import sys
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from distributary.errors import ErrorCode, SetupError
from distributary.lab.services.processes import HOST, Ports, mark
from distributary.lab.services.security import MECHANISMS, USER, broker_settings, password, place
from distributary.spark.jars import JVM, Lock, Progress, ensure, fetch_now
from distributary.spark.java import Java, archive_options

# The broker and the registry as files: fetched once, checked against the lock in `jvm/`.

LOCK = Lock(Path(__file__).with_name("jvm"), what="Kafka and the registry", size="about 150 MB")
"""Every file, with its exact version."""


@dataclass(frozen=True, slots=True)
class Artifacts:
    """What a JVM needs to be one of the two."""

    kafka: tuple[Path, ...]
    """The class path of the broker."""
    registry: Path
    """The jar that is the registry; its libraries lie beside it."""


def ensure_artifacts(progress: Progress | None = None, *, cache: Path | None = None) -> Artifacts:
    """The files in the user's cache, fetched if this user never had them; else SetupError."""
    root = cache or platformdirs.user_cache_path("distributary")
    paths = ensure(LOCK, root / "dev" / LOCK.key, progress)
    (unpacked,) = (path for path in paths if path.suffix != ".jar")
    (registry,) = unpacked.glob("*-runner.jar")
    return Artifacts(tuple(path for path in paths if path != unpacked), registry)


def main() -> int:
    """Fetch now, for the Makefile and for machines that will have no network."""
    return fetch_now(
        ensure_artifacts, lambda found: f"Kafka and the registry in {found.kafka[0].parent}"
    )


# What the broker and the registry have in common: a JVM that starts quickly and stays small.

_EVIDENCE_LINES = 8
_LONGEST = 400

# the second compiler and the concurrent collector pay only after minutes
_SMALL = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")
_CAREFUL = ("-XX:+ExitOnOutOfMemoryError", "-Djava.net.preferIPv4Stack=true")


@dataclass(frozen=True, slots=True)
class JavaService(ABC):
    """One of the two, in a folder, at its ports."""

    folder: Path
    ports: Ports

    @property
    @abstractmethod
    def name(self) -> str:
        """How people call it."""

    @property
    @abstractmethod
    def title(self) -> str:
        """What it is, for a sentence."""

    @property
    @abstractmethod
    def address(self) -> str:
        """What goes into a pipeline file."""

    @property
    @abstractmethod
    def port(self) -> int:
        """The port in its address."""

    @property
    @abstractmethod
    def other_ports(self) -> tuple[int, ...]:
        """Where it listens besides; 0 for none."""

    @abstractmethod
    def prepare(self, java: Java, artifacts: Artifacts) -> None:
        """Write what it reads when it starts."""

    @abstractmethod
    def command(self, java: Java, artifacts: Artifacts) -> list[str]:
        """How it is started, with the folder as its working directory.

        Paths are relative to that: a comma or a semicolon in the folder's name means something
        else in many settings.
        """

    @abstractmethod
    def answers(self) -> bool:
        """Whether it speaks its protocol: an open port says little."""

    @property
    def log(self) -> Path:
        """What it writes down; kept small by itself."""
        return self.folder / "logs" / f"{self.name}.log"

    @property
    def output(self) -> Path:
        """What it prints."""
        return self.folder / "logs" / f"{self.name}.out"

    def evidence(self) -> str:
        """The last lines of what it said since its start."""
        lines: list[str] = []
        for file in (self.log, self.output):
            text = file.read_text("utf-8", "replace") if file.is_file() else ""
            said = [line[:_LONGEST] for line in text.splitlines() if line.strip()]
            lines += said[-_EVIDENCE_LINES:]
        return "\n".join(lines)

    def _jvm(self, java: Java, jars: Sequence[Path], *, memory: str) -> list[str]:
        """The JVM with its flags, up to the class path."""
        return small_jvm(
            java, jars, memory=memory, service=self.name, port=self.port, folder=self.folder
        )


def small_jvm(
    java: Java, jars: Sequence[Path], *, memory: str, service: str, port: int, folder: Path
) -> list[str]:
    """A JVM that starts quickly, stays small and carries its mark, up to the class path."""
    classes = platformdirs.user_cache_path("distributary") / "dev" / f"{service}-classes"
    return [
        str(java.path),
        f"-Xmx{memory}",
        *_SMALL,
        *_CAREFUL,
        *archive_options(java, jars, train=True, folder=classes),
        # libraries unpack themselves there, and leave that behind when they are killed
        f"-Djava.io.tmpdir=tmp/{service}",
        mark(service, port, folder),
    ]


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


# The schema registry: Apicurio, which speaks Confluent's protocol, with its tables in one file.

_REGISTRY_MEMORY = "384m"
_REGISTRY_ANSWER_SECONDS = 5.0
_PATH = "/apis/ccompat/v7"

_REGISTRY_FIXED = {
    "quarkus.http.host": HOST,
    "quarkus.banner.enabled": "false",
    "quarkus.log.console.enable": "false",
    "quarkus.log.file.enable": "true",
    "quarkus.log.file.json": "false",
    "quarkus.log.file.format": "%d{yyyy-MM-dd'T'HH:mm:ss.SSS} %p %c{1}: %m%e%n",
    "quarkus.log.file.rotation.max-file-size": "10M",
    "quarkus.log.file.rotation.max-backup-index": "2",
    "quarkus.http.access-log.enabled": "false",
    "apicurio.import.work-dir": "tmp/registry",
    "apicurio.storage.snapshot.location": "tmp/registry",
    "apicurio.storage.kind": "sql",
    "apicurio.storage.sql.kind": "h2",
    # the usual delay of half a second would cost a killed registry what it has already promised
    "apicurio.datasource.url": "jdbc:h2:file:./registry/schemas;WRITE_DELAY=0",
    "apicurio.datasource.jdbc.initial-size": "1",
    "apicurio.datasource.jdbc.min-size": "1",
    "apicurio.datasource.jdbc.max-size": "10",
    # as Confluent's registry allows it
    "apicurio.rest.deletion.artifact.enabled": "true",
    "apicurio.rest.deletion.artifact-version.enabled": "true",
    "apicurio.rest.deletion.group.enabled": "true",
    # a list of subjects that silently ends after 1,000 helps nobody
    "apicurio.ccompat.max-subjects": "1000000",
    # it would call an Avro schema with an alias the same as the one without
    "apicurio.ccompat.use-canonical-hash": "false",
}


@dataclass(frozen=True, slots=True)
class Registry(JavaService):
    """Apicurio, with an encrypted port as well if one is given."""

    name = "registry"
    title = "the schema registry"

    @property
    def address(self) -> str:
        """For `registry.url`."""
        return f"http://{HOST}:{self.port}{_PATH}"

    @property
    def port(self) -> int:
        """Without encryption."""
        return self.ports.registry

    @property
    def other_ports(self) -> tuple[int, ...]:
        """The encrypted one."""
        return (self.ports.https,)

    def prepare(self, java: Java, artifacts: Artifacts) -> None:
        """Make the folder of the database."""
        (self.folder / "registry").mkdir(parents=True, exist_ok=True)

    def command(self, java: Java, artifacts: Artifacts) -> list[str]:
        """The jar, with its settings as properties: they win over variables of the environment."""
        settings = _REGISTRY_FIXED | {
            "quarkus.http.port": str(self.port),
            "quarkus.log.file.path": str(self.log.relative_to(self.folder)),
        }
        if self.ports.https:
            home = place(self.folder).relative_to(self.folder)
            settings |= {
                "quarkus.http.ssl-port": str(self.ports.https),
                "quarkus.http.insecure-requests": "enabled",
                "quarkus.http.ssl.certificate.files": str(home / "server.pem"),
                "quarkus.http.ssl.certificate.key-files": str(home / "server.key"),
            }
        return [
            *self._jvm(java, [artifacts.registry], memory=_REGISTRY_MEMORY),
            *(f"-D{key}={value}" for key, value in settings.items()),
            *("-jar", str(artifacts.registry)),
        ]

    def answers(self) -> bool:
        """Whether it lists its subjects."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=_REGISTRY_ANSWER_SECONDS)
        try:
            connection.request("GET", f"{_PATH}/subjects")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


if __name__ == "__main__":
    sys.exit(main())
