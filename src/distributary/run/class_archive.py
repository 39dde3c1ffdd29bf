"""A class-data archive for the JVM: the second start of Spark takes half the time of the first.

Spark loads thousands of classes before its first job. A short-lived session asks its JVM to write
what it loaded into an archive when it ends (`-XX:ArchiveClassesAtExit`); later ones map that file.
The JVM checks by itself that the archive belongs to this Java and these jars, and goes on without
it if not.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import platformdirs

from distributary.run.java import Java

_CLAIM_SECONDS = 600
_KEPT = 2


def archive_options(
    java: Java, jars: Sequence[Path], *, train: bool, folder: Path | None = None
) -> list[str]:
    """The JVM options that use the archive, or else write it at the end of this session.

    `jars` is everything on the class path, a folder for all files in it.
    """
    folder = folder or platformdirs.user_cache_path("distributary") / "classes"
    try:
        archive = folder / f"{_key(java, jars)}.jsa"
        folder.mkdir(parents=True, exist_ok=True)
        _adopt(archive)
        if archive.exists():
            # most recently used: the last to be dropped
            archive.touch()
            _drop_old(folder)
            return [f"-XX:SharedArchiveFile={archive}"]
        if train and _claimed(archive):
            return [f"-XX:ArchiveClassesAtExit={_part(archive)}"]
    except OSError:
        # only speed is lost where the cache cannot be written
        return []
    return []


def _key(java: Java, jars: Sequence[Path]) -> str:
    lines = [f"{java.path} {java.version}", *(f"{jar} {jar.stat().st_mtime_ns}" for jar in jars)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _part(archive: Path) -> Path:
    return archive.with_suffix(".part")


def _adopt(archive: Path) -> None:
    """Take over what an earlier JVM wrote, if it was allowed to finish."""
    part = _part(archive)
    if part.exists() and _finished(part):
        part.rename(archive)


def _drop_old(folder: Path) -> None:
    # each is some 180 MB, and those of a deleted environment would stay for ever
    written = [*folder.glob("*.jsa"), *folder.glob("*.part")]
    for old in sorted(written, key=_used, reverse=True)[_KEPT:]:
        old.unlink(missing_ok=True)


def _finished(part: Path) -> bool:
    # the JVM writes the header, with its magic number, after everything else
    with part.open("rb") as file:
        return any(file.read(4))


def _claimed(archive: Path) -> bool:
    """Whether this process may write it: one at a time, and another if that one was killed."""
    claim = archive.with_suffix(".claim")
    with suppress(FileNotFoundError):
        if time.time() - _used(claim) > _CLAIM_SECONDS:
            claim.unlink()
            _part(archive).unlink(missing_ok=True)
    try:
        os.close(os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True


def _used(path: Path) -> float:
    return path.stat().st_mtime
