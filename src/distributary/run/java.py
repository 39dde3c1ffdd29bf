"""Finds the Java that Spark will use, without starting it where that can be avoided."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from distributary.errors import ErrorCode, SetupError

MINIMUM = 17
"""The oldest Java that Spark 4 runs on."""

_RELEASE = re.compile(r'^JAVA_VERSION="([^"]+)"', re.MULTILINE)
_BANNER = re.compile(r'version "([^"]+)"')


@dataclass(frozen=True, slots=True)
class Java:
    """One Java installation."""

    path: Path
    """The `java` program."""
    version: str
    """As it names itself, `17.0.15` or `1.8.0_392`."""

    @property
    def major(self) -> int:
        """17 for `17.0.15`, 8 for `1.8.0_392`."""
        numbers = [int(part) for part in re.findall(r"\d+", self.version)]
        return numbers[1] if len(numbers) > 1 and numbers[0] == 1 else numbers[0]


def find_java() -> Java | None:
    """The Java of `JAVA_HOME`, else the one on the path: the order in which Spark looks."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if not found or not os.access(found, os.X_OK):
        return None
    version = _written_version(Path(found)) or _asked_version(Path(found))
    return Java(Path(found), version) if version else None


def require_java() -> Java:
    """The Java to use; SetupError when there is none or it is too old."""
    java = find_java()
    if java is None:
        home = os.environ.get("JAVA_HOME")
        raise SetupError(
            f"Spark needs Java {MINIMUM} or newer, and no Java was found",
            code=ErrorCode.JAVA_MISSING,
            where=f"JAVA_HOME={home}" if home else "PATH",
            next_step=_how_to_install(),
        )
    if java.major < MINIMUM:
        raise SetupError(
            f"Spark needs Java {MINIMUM} or newer",
            code=ErrorCode.JAVA_MISSING,
            where=str(java.path),
            evidence=f"found Java {java.version}",
            next_step=_how_to_install(),
        )
    return java


def _written_version(program: Path) -> str | None:
    # every JDK since 9 describes itself beside its programs: reading that costs no JVM
    try:
        text = program.resolve().parent.parent.joinpath("release").read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    match = _RELEASE.search(text)
    return match[1] if match and match[1][0].isdigit() else None


def _asked_version(program: Path) -> str | None:
    # macOS has a `java` that only says that there is no Java: its exit code tells
    try:
        answer = subprocess.run(  # noqa: S603 - the program that Spark itself would start
            [program, "-version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = _BANNER.search(answer.stderr + answer.stdout)
    return match[1] if match and match[1][0].isdigit() else None


def _how_to_install() -> str:
    if sys.platform == "darwin":
        return 'brew install openjdk@17, then export JAVA_HOME="$(brew --prefix openjdk@17)"'
    if shutil.which("apt-get"):
        return "sudo apt-get install openjdk-17-jre-headless"
    return f"install a Java {MINIMUM} runtime and set JAVA_HOME to its folder"


def main() -> int:
    """One line about Java for the Makefile: what was found, or how to get it."""
    try:
        java = require_java()
    except SetupError as error:
        print(f"{error.what} ({error.evidence or error.where}): {error.next_step}", file=sys.stderr)
        return error.exit_code
    print(f"Java {java.version} at {java.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
