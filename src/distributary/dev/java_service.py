"""What the broker and the registry have in common: a JVM that starts quickly and stays small."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from distributary.dev.artifacts import Artifacts
from distributary.dev.ports import Ports
from distributary.dev.process import mark
from distributary.run.class_archive import archive_options
from distributary.run.java import Java

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
