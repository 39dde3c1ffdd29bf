"""The download of a lock's files, with the Ivy that PySpark ships; each file is verified.

A lock is a folder with `ivy.xml` (the list of files) and `SHA256SUMS` (their checksums). The files
appear in a cache all at once or not at all, and all processes of a user share them. `.tar.gz`
archives are unpacked into a folder of their name. The variable `DISTRIBUTARY_IVY_SETTINGS` names an
Ivy settings file, for a mirror; otherwise `~/.ivy2/ivysettings.xml` is used if it exists. With
`DISTRIBUTARY_JARS` (comma separated, or a folder) no JVM connectors are fetched.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import xml.etree.ElementTree as ElementTree
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import platformdirs

from distributary.errors import ErrorCode, SetupError
from distributary.spark.java import require_java
from distributary.spark.versions import minor_of, require_supported, spark_version
from distributary.store.disk import held

Progress = Callable[[str], None]
_Fetched = TypeVar("_Fetched")

SETTINGS = Path(__file__).with_name("jvm") / "ivysettings.xml"
"""The Ivy settings for users without their own."""

_FETCH_SECONDS = 900
_EVIDENCE_LINES = 6
_CREDENTIALS = re.compile(r"//[^/\s@]+@")
_ARCHIVE = ".tar.gz"
_DOWNLOADING = re.compile(r"^downloading \S*/(\S+\.(?:jar|tar\.gz))\b")


@dataclass(frozen=True, slots=True)
class Lock:
    """A list of files to fetch, and the words for messages about them."""

    folder: Path
    """The folder with `ivy.xml` and `SHA256SUMS`."""
    what: str
    """The name of the files in messages: `the JVM connectors`."""
    size: str
    """The size of the download, for progress messages."""
    otherwise: str = ""
    """Another way to get the files, for users without a network."""

    @property
    def key(self) -> str:
        """Return a hash of the lock, so that an old cache is never used for a new lock."""
        digest = hashlib.sha256()
        for name in ("ivy.xml", "SHA256SUMS"):
            digest.update(self.folder.joinpath(name).read_bytes())
        return digest.hexdigest()[:16]

    @property
    def sums(self) -> dict[str, str]:
        """Return the SHA-256 of every file to fetch."""
        lines = self.folder.joinpath("SHA256SUMS").read_text("ascii").splitlines()
        return {name: digest for digest, name in (line.split() for line in lines)}

    def paths(self, cache: Path) -> list[Path]:
        """Return the paths of the files and unpacked archives in a cache, sorted."""
        return [cache / name.removesuffix(_ARCHIVE) for name in sorted(self.sums)]


def fetch_now(fetch: Callable[[Progress], _Fetched], said: Callable[[_Fetched], str]) -> int:
    """Run a fetch as a command: print its result or error, and return the exit code."""
    try:
        fetched = fetch(lambda line: print(line, file=sys.stderr))
    except SetupError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(said(fetched))
    return 0


def ensure(lock: Lock, cache: Path, progress: Progress | None = None) -> list[Path]:
    """Return the lock's files, fetched into `cache` if they are missing. Raises SetupError."""
    paths = lock.paths(cache)
    if not _complete(paths):
        say = progress or (lambda _: None)
        try:
            cache.parent.mkdir(parents=True, exist_ok=True)
            file = cache.with_name(f"{cache.name}.lock").open("w")
        except OSError as error:
            raise _unusable(lock, cache.parent, error) from error
        waiting = f"another process is fetching {lock.what}; waiting for it"
        with file, held(file, waiting=lambda: say(waiting)):
            # The process that held the lock before may have done the work.
            if not _complete(paths):
                _fetch(lock, cache, say)
    return paths


def _complete(paths: list[Path]) -> bool:
    return all(path.exists() for path in paths)


def _fetch(lock: Lock, cache: Path, say: Progress) -> None:
    java = require_java().path
    for leftover in cache.parent.glob(f"{cache.name}.part-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        part = Path(tempfile.mkdtemp(prefix=f"{cache.name}.part-", dir=cache.parent))
    except OSError as error:
        raise _unusable(lock, cache.parent, error) from error
    try:
        say(f"fetching {lock.what} (once, {lock.size})")
        _run_ivy(lock, java, part, say)
        files = part / "files"
        _verify(lock, files)
        for archive in files.glob(f"*{_ARCHIVE}"):
            _unpack(archive)
        # If the folder exists, files were deleted from it: replace it.
        shutil.rmtree(cache, ignore_errors=True)
        files.rename(cache)
    except OSError as error:
        raise _unusable(lock, cache.parent, error) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _run_ivy(lock: Lock, java: Path, part: Path, say: Progress) -> None:
    settings = _ivy_settings()
    command = [
        str(java),
        "-Dsun.net.client.defaultConnectTimeout=20000",
        "-Dsun.net.client.defaultReadTimeout=60000",
        *("-cp", str(_ivy_jar(lock))),
        "org.apache.ivy.Main",
        *("-settings", str(settings)),
        *("-ivy", str(lock.folder / "ivy.xml")),
        *("-cache", str(part / "cache")),
        *("-types", "jar", "bundle", "tar.gz"),
        *("-retrieve", str(part / "files" / "[artifact]-[revision](-[classifier]).[ext]")),
    ]
    last: deque[str] = deque(maxlen=_EVIDENCE_LINES)
    total, seen = len(lock.sums), 0
    with subprocess.Popen(  # noqa: S603 - a fixed command, nothing from outside in it
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as ivy:
        guard = threading.Timer(_FETCH_SECONDS, ivy.kill)
        guard.start()
        try:
            for line in ivy.stdout or ():
                started = _DOWNLOADING.match(line)
                if started:
                    seen += 1
                    say(f"fetching {started[1]} ({seen} of {total})")
                # A line of dots is a progress bar and no evidence.
                if line.strip(" .\t\n") and not line.startswith("."):
                    last.append(_CREDENTIALS.sub("//***@", line.strip()))
        finally:
            guard.cancel()
    if ivy.returncode:
        step = "check the network, or name a mirror in an Ivy settings file with"
        raise SetupError(
            f"{lock.what} could not be fetched",
            code=ErrorCode.CONNECTORS_MISSING,
            where=f"Ivy settings {settings}",
            evidence="\n".join(last),
            next_step=_or(f"{step} DISTRIBUTARY_IVY_SETTINGS", lock.otherwise),
        )


def _unpack(archive: Path) -> None:
    with tarfile.open(archive) as tar:
        # The first releases of Python 3.11 lack the filter; the checksum was verified in any case.
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(archive.with_name(archive.name.removesuffix(_ARCHIVE)))  # noqa: S202
    archive.unlink()


def _ivy_settings() -> Path:
    named = os.environ.get("DISTRIBUTARY_IVY_SETTINGS")
    users = Path.home() / ".ivy2" / "ivysettings.xml"
    if named:
        return Path(named).expanduser()
    return users if users.is_file() else SETTINGS


def spark_jars() -> Path:
    """Return the folder of the jars that Spark ships."""
    home = os.environ.get("SPARK_HOME")
    if home:
        return Path(home, "jars")
    # `find_spec` avoids the import, which would take longer than everything else here.
    spec = importlib.util.find_spec("pyspark")
    places = spec.submodule_search_locations if spec else None
    return Path(places[0] if places else "", "jars")


def _ivy_jar(lock: Lock) -> Path:
    jars = sorted(spark_jars().glob("ivy-*.jar"))
    if not jars:
        raise SetupError(
            "the Spark installation has no Ivy",
            code=ErrorCode.CONNECTORS_MISSING,
            where=str(spark_jars()),
            next_step=_or("pip install --force-reinstall pyspark", lock.otherwise),
        )
    return jars[-1]


def _verify(lock: Lock, files: Path) -> None:
    for name, expected in lock.sums.items():
        file = files / name
        actual = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "no such file"
        if actual != expected:
            raise SetupError(
                f"{name} differs from the file that the lock names",
                code=ErrorCode.CONNECTORS_MISSING,
                where=f"Ivy settings {_ivy_settings()}",
                evidence=f"sha256 {actual}, expected {expected}",
                next_step="check the mirror in the Ivy settings",
            )


def _unusable(lock: Lock, folder: Path, error: OSError) -> SetupError:
    step = "make the folder writable, or set XDG_CACHE_HOME to a writable folder"
    return SetupError(
        f"the cache of {lock.what} cannot be written",
        code=ErrorCode.CONNECTORS_MISSING,
        where=str(folder),
        evidence=error.strerror or type(error).__name__,
        next_step=_or(step, lock.otherwise),
    )


def _or(step: str, otherwise: str) -> str:
    return f"{step}, or {otherwise}" if otherwise else step


JVM = Path(__file__).with_name("jvm")
"""The package data of the JVM side, with a folder for the lock of each version of Spark."""


def ensure_connectors(progress: Progress | None = None, *, cache: Path | None = None) -> list[Path]:
    """Return the connector files, fetched first if this user lacks them. Raises SetupError."""
    if not are_locked():
        return _named_jars(os.environ["DISTRIBUTARY_JARS"])
    return ensure(_lock(), _cache(cache), progress)


def have_connectors() -> bool:
    """Return whether the connectors are there already, so that nothing has to be fetched."""
    return not are_locked() or _complete(_lock().paths(_cache()))


def _cache(root: Path | None = None) -> Path:
    return (root or platformdirs.user_cache_path("distributary")) / "connectors" / lock_key()


def are_locked() -> bool:
    """Return whether the lock's connectors are used, which hold no classes of Spark."""
    return not os.environ.get("DISTRIBUTARY_JARS")


def lock_key() -> str:
    """Return a key that changes with the lock and with Spark, for the cache's folder."""
    return f"spark-{spark_version()}-{_lock().key}"


def connector_versions() -> dict[str, str]:
    """Return the versions of the locked connectors by name, such as `delta-spark_4.1_2.13`."""
    lock = ElementTree.parse(_lock().folder / "ivy.xml")  # noqa: S314 - a file of this package
    return {d.attrib["name"]: d.attrib["rev"] for d in lock.iter("dependency")}


def _lock() -> Lock:
    """Return the lock for the Spark that starts here. Raises SetupError if there is none."""
    return Lock(
        JVM / minor_of(require_supported()),
        what="the JVM connectors",
        size="about 25 MB",
        otherwise="put the files into a folder and name it with DISTRIBUTARY_JARS",
    )


def _named_jars(value: str) -> list[Path]:
    named = [Path(part.strip()).expanduser() for part in value.split(",") if part.strip()]
    jars = [
        jar for path in named for jar in (sorted(path.glob("*.jar")) if path.is_dir() else [path])
    ]
    missing = [str(jar) for jar in jars if not jar.is_file()]
    if missing or not jars:
        raise SetupError(
            "DISTRIBUTARY_JARS names files that do not exist" if missing else "no jar was found",
            code=ErrorCode.CONNECTORS_MISSING,
            where=f"DISTRIBUTARY_JARS={value}",
            evidence=", ".join(missing),
            next_step="name existing jar files or a folder of them, or unset DISTRIBUTARY_JARS",
        )
    return [jar.resolve() for jar in jars]


if __name__ == "__main__":
    # Fetch now, for the Makefile and for images that must start without a network.
    sys.exit(
        fetch_now(ensure_connectors, lambda jars: f"{len(jars)} JVM connectors in {jars[0].parent}")
    )
