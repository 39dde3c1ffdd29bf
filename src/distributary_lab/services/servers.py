"""The broker and the schema registry of `dev up`: their files, settings and command lines."""

from __future__ import annotations

import base64
import http.client
import os
import subprocess
import sys
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import platformdirs
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from distributary.errors import ErrorCode, SetupError
from distributary.spark.jars import JVM, Lock, Progress, ensure, fetch_now
from distributary.spark.java import Java, archive_options
from distributary_lab.services.processes import HOST, mark

LOCK = Lock(Path(__file__).with_name("jvm"), what="Kafka and the registry", size="about 150 MB")
"""All files, with their exact versions."""

_EVIDENCE_LINES = 8
_LONGEST = 400


@dataclass(frozen=True, slots=True)
class Artifacts:
    """The files of the broker and of the registry."""

    kafka: tuple[Path, ...]
    """The class path of the broker."""
    registry: Path
    """The jar of the registry; its libraries are beside it."""


def ensure_artifacts(progress: Progress | None = None, *, cache: Path | None = None) -> Artifacts:
    """Return the files from the user's cache, fetched if missing; raise SetupError on failure."""
    root = cache or platformdirs.user_cache_path("distributary")
    paths = ensure(LOCK, root / "dev" / LOCK.key, progress)
    (unpacked,) = (path for path in paths if path.suffix != ".jar")
    (registry,) = unpacked.glob("*-runner.jar")
    return Artifacts(tuple(path for path in paths if path != unpacked), registry)


def _properties(server: str) -> dict[str, str]:
    lines = Path(__file__).with_name(f"{server}.properties").read_text("utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


def small_jvm(
    java: Java, jars: Sequence[Path], *, memory: str, service: str, port: int, folder: Path
) -> list[str]:
    """Return the command of a small, fast-starting JVM with its mark, up to the class path."""
    return [
        str(java.path),
        f"-Xmx{memory}",
        # the second compiler and the concurrent collector pay off only after minutes
        *("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData"),
        *("-XX:+ExitOnOutOfMemoryError", "-Djava.net.preferIPv4Stack=true"),
        *archive_options(java, jars, train=True, folder=_classes(service)),
        # libraries unpack files there, and leave them behind when they are killed
        f"-Djava.io.tmpdir=tmp/{service}",
        f"-D{mark(service, port, folder)}",
    ]


def _classes(service: str) -> Path:
    return platformdirs.user_cache_path("distributary") / "dev" / f"{service}-classes"


@dataclass(frozen=True, slots=True)
class JavaService(ABC):
    """A service in a folder, with its ports."""

    name: ClassVar[str]
    title: ClassVar[str]
    other_ports: ClassVar[tuple[str, ...]] = ()
    """Names of further ports that it listens on."""

    folder: Path
    ports: Mapping[str, int]

    @property
    @abstractmethod
    def address(self) -> str:
        """Return the address for a pipeline file."""

    @abstractmethod
    def prepare(self, java: Java, artifacts: Artifacts) -> None:
        """Write the files that the service reads when it starts."""

    @abstractmethod
    def command(self, java: Java, artifacts: Artifacts) -> list[str]:
        """Return the command line, to run with the folder as working directory.

        Paths are relative, because a comma or a semicolon in the folder's name has a meaning in
        many settings.
        """

    @abstractmethod
    def answers(self) -> bool:
        """Return true when the service speaks its protocol: an open port is not enough."""

    @property
    def port(self) -> int:
        """Return the port in its address."""
        return self.ports[self.name]

    @property
    def log(self) -> Path:
        """Return the path of its log, which it keeps small."""
        return self.folder / "logs" / f"{self.name}.log"

    @property
    def output(self) -> Path:
        """Return the path of its standard output."""
        return self.log.with_suffix(".out")

    def evidence(self) -> str:
        """Return the last lines of its log and output since its start."""
        lines: list[str] = []
        for file in (self.log, self.output):
            text = file.read_text("utf-8", "replace") if file.is_file() else ""
            printed = [line[:_LONGEST] for line in text.splitlines() if line.strip()]
            lines += printed[-_EVIDENCE_LINES:]
        return "\n".join(lines)

    def _jvm(self, java: Java, jars: Sequence[Path], *, memory: str) -> list[str]:
        return small_jvm(
            java, jars, memory=memory, service=self.name, port=self.port, folder=self.folder
        )


@dataclass(frozen=True, slots=True)
class KafkaService(JavaService):
    """Kafka with one node that is its own controller, with settings for one user."""

    name = "kafka"
    title = "the Kafka broker"
    other_ports = ("controller",)
    listeners: ClassVar[Mapping[str, str]] = {"PLAINTEXT": "kafka"}
    """The name of a port for each protocol of clients."""
    cluster: ClassVar[str] = ""
    """Id of the cluster; empty for a new one."""

    @property
    def address(self) -> str:
        """Return the address for `bootstrap_servers`."""
        return f"{HOST}:{self.port}"

    def settings(self) -> dict[str, str]:
        """Return the content of its settings file."""
        controller = f"{HOST}:{self.ports['controller']}"
        open_to = [f"{name}://{HOST}:{self.ports[port]}" for name, port in self.listeners.items()]
        protocols = [f"{name}:{name}" for name in self.listeners]
        return _properties("broker") | {
            "log.dirs": str(self._home("data")),
            "controller.quorum.voters": f"1@{controller}",
            "listeners": ",".join([*open_to, f"CONTROLLER://{controller}"]),
            "advertised.listeners": ",".join(open_to),
            "listener.security.protocol.map": ",".join([*protocols, "CONTROLLER:PLAINTEXT"]),
        }

    def users(self) -> list[str]:
        """Return arguments of the formatting tool that create users with passwords."""
        return []

    def prepare(self, java: Java, artifacts: Artifacts) -> None:
        """Write the settings; the first time, format the log folder and create the users."""
        path = self.folder / self._home("server.properties")
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_private(path, [f"{key}={value}" for key, value in self.settings().items()])
        if not (self.folder / self._home("data", "meta.properties")).is_file():
            self._format(java, artifacts)

    def _home(self, *names: str) -> Path:
        return Path(self.name, *names)

    def _format(self, java: Java, artifacts: Artifacts) -> None:
        new_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        cluster = self.cluster or new_id
        arguments = ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster}"]
        # all users of the machine can read a command line, so arguments with passwords go to a file
        arguments_file = self.folder / self._home("format.words")
        settings = str(self._home("server.properties"))
        _write_private(arguments_file, [*arguments, "-c", settings, *self.users()])
        # the formatting tool loads mostly the same classes as the broker
        archive = archive_options(java, artifacts.kafka, train=False, folder=_classes(self.name))
        flags = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *archive)
        try:
            ended = subprocess.run(  # noqa: S603 - Java, with arguments of this package
                [str(java.path), *flags, *_class_path(artifacts), f"@{self._home('format.words')}"],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=120,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise self._unformatted(type(error).__name__) from error
        finally:
            arguments_file.unlink(missing_ok=True)
        if ended.returncode:
            raise self._unformatted("\n".join(ended.stderr.strip().splitlines()[-6:]))

    def _unformatted(self, evidence: str) -> SetupError:
        return SetupError(
            "the folder of the Kafka broker could not be formatted",
            code=ErrorCode.SERVICE_FAILED,
            where=str(self.folder / self._home("data")),
            evidence=evidence,
            next_step="distributary dev down --wipe, then distributary dev up",
        )

    def command(self, java: Java, artifacts: Artifacts) -> list[str]:
        """Return the command of `kafka.Kafka` with the settings."""
        return [
            *self._jvm(java, artifacts.kafka, memory="512m"),
            f"-Dlog4j2.configurationFile={JVM / 'log4j2.properties'}",
            f"-Ddistributary.log={self.log.relative_to(self.folder)}",
            "-Ddistributary.log.level=INFO",
            *_class_path(artifacts),
            *("kafka.Kafka", str(self._home("server.properties"))),
        ]

    def answers(self) -> bool:
        """Return true when the broker lists its topics."""
        client = AdminClient(
            # a broker that is still starting is no error, so the client logs nothing
            {"bootstrap.servers": self.address, "log_level": 0, "reconnect.backoff.max.ms": 200}
        )
        try:
            return bool(client.list_topics(timeout=2.0).brokers)
        except KafkaException:
            return False


def _class_path(artifacts: Artifacts) -> Sequence[str]:
    return "-cp", os.pathsep.join(str(jar) for jar in artifacts.kafka)


def _write_private(path: Path, lines: Sequence[str]) -> None:
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
        file.write("\n".join(lines) + "\n")


_PATH = "/apis/ccompat/v7"


@dataclass(frozen=True, slots=True)
class RegistryService(JavaService):
    """The Apicurio registry, with Confluent's API and its tables in one file."""

    name = "registry"
    title = "the schema registry"

    @property
    def address(self) -> str:
        """Return the address for `registry.url`."""
        return f"http://{HOST}:{self.port}{_PATH}"

    def settings(self) -> dict[str, str]:
        """Return the properties of its JVM, which take precedence over environment variables."""
        return _properties("registry") | {
            "quarkus.http.port": str(self.port),
            "quarkus.log.file.path": str(self.log.relative_to(self.folder)),
        }

    def prepare(self, java: Java, artifacts: Artifacts) -> None:
        """Create the folder of the database."""
        (self.folder / "registry").mkdir(parents=True, exist_ok=True)

    def command(self, java: Java, artifacts: Artifacts) -> list[str]:
        """Return the command of the jar with its settings."""
        return [
            *self._jvm(java, [artifacts.registry], memory="384m"),
            *(f"-D{key}={value}" for key, value in self.settings().items()),
            *("-jar", str(artifacts.registry)),
        ]

    def answers(self) -> bool:
        """Return true when the registry lists its subjects."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=5.0)
        try:
            connection.request("GET", f"{_PATH}/subjects")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


if __name__ == "__main__":
    # fetches the files for the Makefile and for machines without a network
    sys.exit(
        fetch_now(ensure_artifacts, lambda it: f"Kafka and the registry in {it.kafka[0].parent}")
    )
