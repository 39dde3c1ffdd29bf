"""The search for the Java that Spark will use, without starting it if possible."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from distributary.errors import ErrorCode, SetupError

MINIMUM = 17
"""The oldest Java that Spark 4 runs on."""

_RELEASE = re.compile(r'^JAVA_VERSION="([^"]+)"', re.MULTILINE)
_BANNER = re.compile(r'version "([^"]+)"')


@dataclass(frozen=True, slots=True)
class Java:
    """One Java installation."""

    path: Path
    """The path of the program `java`."""
    version: str
    """The version as Java names it, `17.0.15` or `1.8.0_392`."""

    @property
    def major(self) -> int:
        """Return the major version: 17 for `17.0.15`, 8 for `1.8.0_392`."""
        numbers = [int(part) for part in re.findall(r"\d+", self.version)]
        return numbers[1] if len(numbers) > 1 and numbers[0] == 1 else numbers[0]


def find_java() -> Java | None:
    """Find the Java of `JAVA_HOME`, otherwise that on the path: the order in which Spark looks."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if not program or not os.access(program, os.X_OK):
        return None
    version = _written_version(Path(program)) or _printed_version(Path(program))
    return Java(Path(program), version) if version else None


def require_java() -> Java:
    """Return the Java to use; raise SetupError if there is none or it is too old."""
    java, home = find_java(), os.environ.get("JAVA_HOME")
    if java is not None and java.major >= MINIMUM:
        return java
    none_found = "" if java else ", and no Java was found"
    raise SetupError(
        f"Spark needs Java {MINIMUM} or newer{none_found}",
        code=ErrorCode.JAVA_MISSING,
        where=str(java.path) if java else f"JAVA_HOME={home}" if home else "PATH",
        evidence=f"found Java {java.version}" if java else "",
        next_step=_how_to_install(),
    )


def _written_version(program: Path) -> str | None:
    # Every JDK since 9 has a file with its version: reading it starts no JVM.
    try:
        text = program.resolve().parent.parent.joinpath("release").read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    match = _RELEASE.search(text)
    return match[1] if match and match[1][0].isdigit() else None


def _printed_version(program: Path) -> str | None:
    # macOS has a `java` that only reports a missing Java, by its exit code.
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
    """Print one line about Java for the Makefile: its version, or how to install it."""
    try:
        java = require_java()
    except SetupError as error:
        print(f"{error.what} ({error.evidence or error.where}): {error.next_step}", file=sys.stderr)
        return error.exit_code
    print(f"Java {java.version} at {java.path}")
    return 0


# A class-data archive halves the start of Spark, which loads thousands of classes before its first
# job: the JVM of a short-lived session writes the loaded classes when it ends, and later JVMs map
# that file. The JVM itself checks that the archive belongs to this Java and these jars, and
# continues without it if not.

_CLAIM_SECONDS = 600
_KEPT = 2


def archive_options(
    java: Java, jars: Sequence[Path], *, train: bool, folder: Path | None = None
) -> list[str]:
    """Return the JVM options that use the archive, or that write it at the end of this session.

    `jars` is everything on the class path, with a folder standing for all files in it.
    """
    folder = folder or platformdirs.user_cache_path("distributary") / "classes"
    try:
        archive = folder / f"{_key(java, jars)}.jsa"
        part = archive.with_suffix(".part")
        folder.mkdir(parents=True, exist_ok=True)
        # The file of an earlier JVM is used if it is complete.
        if part.exists() and _finished(part):
            part.rename(archive)
        if archive.exists():
            # Mark the archive as used, so that it is the last to be dropped.
            archive.touch()
            _drop_old(folder)
            return [f"-XX:SharedArchiveFile={archive}"]
        if train and _claimed(archive.with_suffix(".claim"), part):
            return [f"-XX:ArchiveClassesAtExit={part}"]
    except OSError:
        # If the cache cannot be written, only speed is lost.
        return []
    return []


def _key(java: Java, jars: Sequence[Path]) -> str:
    lines = [f"{java.path} {java.version}", *(f"{jar} {jar.stat().st_mtime_ns}" for jar in jars)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _drop_old(folder: Path) -> None:
    # Each archive is about 180 MB, and archives of deleted environments would stay forever.
    written = [*folder.glob("*.jsa"), *folder.glob("*.part")]
    for old in sorted(written, key=_used, reverse=True)[_KEPT:]:
        old.unlink(missing_ok=True)


def _finished(part: Path) -> bool:
    # The JVM writes the header, with its magic number, after everything else.
    with part.open("rb") as file:
        return any(file.read(4))


def _claimed(claim: Path, part: Path) -> bool:
    """Return whether this process may write the archive: one at a time, or after a killed one."""
    with suppress(FileNotFoundError):
        if time.time() - _used(claim) > _CLAIM_SECONDS:
            claim.unlink()
            part.unlink(missing_ok=True)
    try:
        claim.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _used(path: Path) -> float:
    return path.stat().st_mtime


if __name__ == "__main__":
    sys.exit(main())
