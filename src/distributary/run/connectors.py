"""Fetches the JVM connectors once, with the Ivy that PySpark ships, and checks each file.

The lock is `jvm/ivy.xml` (which files) and `jvm/SHA256SUMS` (what is in them). The cache folder is
named after both and after the version of PySpark, appears whole or not at all, and is shared by
every process of a user. Environment:

- `DISTRIBUTARY_JARS`: use these files instead (comma separated, or a folder); nothing is fetched.
- `DISTRIBUTARY_IVY_SETTINGS`: an Ivy settings file, for a mirror; else `~/.ivy2/ivysettings.xml`.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

from distributary.errors import ErrorCode, SetupError
from distributary.run.java import require_java

Progress = Callable[[str], None]

JVM = Path(__file__).with_name("jvm")
"""The package data of the JVM side."""

_FETCH_SECONDS = 900
_EVIDENCE_LINES = 6
_CREDENTIALS = re.compile(r"//[^/\s@]+@")
_DOWNLOADING = re.compile(r"^downloading \S*/(\S+\.jar)\b")


def ensure_connectors(progress: Progress | None = None, *, cache: Path | None = None) -> list[Path]:
    """The connector files, fetched first if this user never had them; SetupError if that fails."""
    if not are_locked():
        return _given(os.environ["DISTRIBUTARY_JARS"])
    root = cache or platformdirs.user_cache_path("distributary")
    folder = root / "connectors" / lock_key()
    if not _complete(folder):
        say = progress or (lambda _: None)
        with _alone(folder, say):
            # whoever held the lock before us may have done the work
            if not _complete(folder):
                _fetch(folder, say)
    return [folder / name for name in sorted(_sums())]


def are_locked() -> bool:
    """Whether the connectors are those of the lock, which hold nothing that Spark ships itself."""
    return not os.environ.get("DISTRIBUTARY_JARS")


def lock_key() -> str:
    """Changes when the lock or PySpark does, so that an old cache is never taken for this one."""
    digest = hashlib.sha256()
    for name in ("ivy.xml", "SHA256SUMS"):
        digest.update(JVM.joinpath(name).read_bytes())
    return f"spark-{importlib.metadata.version('pyspark')}-{digest.hexdigest()[:16]}"


def _sums() -> dict[str, str]:
    lines = JVM.joinpath("SHA256SUMS").read_text("ascii").splitlines()
    return {name: digest for digest, name in (line.split() for line in lines)}


def _complete(folder: Path) -> bool:
    return all(folder.joinpath(name).is_file() for name in _sums())


def _given(value: str) -> list[Path]:
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


@contextmanager
def _alone(folder: Path, say: Progress) -> Iterator[None]:
    """One process at a time; the lock goes with its process, so none is left behind."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = folder.with_name(f"{folder.name}.lock").open("w")
    except OSError as error:
        raise _unusable(folder.parent, error) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process is fetching the JVM connectors; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(folder: Path, say: Progress) -> None:
    java = require_java().path
    for leftover in folder.parent.glob(f"{folder.name}.part-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        part = Path(tempfile.mkdtemp(prefix=f"{folder.name}.part-", dir=folder.parent))
    except OSError as error:
        raise _unusable(folder.parent, error) from error
    try:
        say("fetching the JVM connectors (once, about 25 MB)")
        _run_ivy(java, part, say)
        jars = part / "jars"
        _verify(jars)
        # an incomplete folder is one that somebody deleted files from
        shutil.rmtree(folder, ignore_errors=True)
        jars.rename(folder)
    except OSError as error:
        raise _unusable(folder.parent, error) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _run_ivy(java: Path, part: Path, say: Progress) -> None:
    settings = _ivy_settings()
    command = [
        str(java),
        "-Dsun.net.client.defaultConnectTimeout=20000",
        "-Dsun.net.client.defaultReadTimeout=60000",
        *("-cp", str(_ivy_jar())),
        "org.apache.ivy.Main",
        *("-settings", str(settings)),
        *("-ivy", str(JVM / "ivy.xml")),
        *("-cache", str(part / "cache")),
        *("-types", "jar", "bundle"),
        *("-retrieve", str(part / "jars" / "[artifact]-[revision].[ext]")),
    ]
    last: deque[str] = deque(maxlen=_EVIDENCE_LINES)
    total, seen = len(_sums()), 0
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
                # a line of dots is a progress bar, not evidence
                if line.strip(" .\t\n") and not line.startswith("."):
                    last.append(_CREDENTIALS.sub("//***@", line.strip()))
        finally:
            guard.cancel()
    if ivy.returncode:
        raise SetupError(
            "the JVM connectors could not be fetched",
            code=ErrorCode.CONNECTORS_MISSING,
            where=f"Ivy settings {settings}",
            evidence="\n".join(last),
            next_step="check the network, name a mirror in an Ivy settings file with"
            " DISTRIBUTARY_IVY_SETTINGS, or put the files into a folder and name it with"
            " DISTRIBUTARY_JARS",
        )


def _ivy_settings() -> Path:
    named = os.environ.get("DISTRIBUTARY_IVY_SETTINGS")
    own = Path.home() / ".ivy2" / "ivysettings.xml"
    if named:
        return Path(named).expanduser()
    return own if own.is_file() else JVM / "ivysettings.xml"


def spark_jars() -> Path:
    """The folder of the jars that Spark itself ships."""
    home = os.environ.get("SPARK_HOME")
    if home:
        return Path(home, "jars")
    # found without an import, which would take longer than everything else here
    spec = importlib.util.find_spec("pyspark")
    places = spec.submodule_search_locations if spec else None
    return Path(places[0] if places else "", "jars")


def _ivy_jar() -> Path:
    found = sorted(spark_jars().glob("ivy-*.jar"))
    if not found:
        raise SetupError(
            "this Spark comes without Ivy",
            code=ErrorCode.CONNECTORS_MISSING,
            where=str(spark_jars()),
            next_step="pip install --force-reinstall pyspark, or name the connectors with"
            " DISTRIBUTARY_JARS",
        )
    return found[-1]


def _verify(jars: Path) -> None:
    for name, expected in _sums().items():
        jar = jars / name
        actual = hashlib.sha256(jar.read_bytes()).hexdigest() if jar.is_file() else "no such file"
        if actual != expected:
            raise SetupError(
                f"{name} is not the file that the lock names",
                code=ErrorCode.CONNECTORS_MISSING,
                where=f"Ivy settings {_ivy_settings()}",
                evidence=f"sha256 {actual}, expected {expected}",
                next_step="check the mirror that the Ivy settings name",
            )


def _unusable(folder: Path, error: OSError) -> SetupError:
    return SetupError(
        "the cache of the JVM connectors cannot be written",
        code=ErrorCode.CONNECTORS_MISSING,
        where=str(folder),
        evidence=error.strerror or type(error).__name__,
        next_step="make the folder writable, set XDG_CACHE_HOME to one that is, or name the"
        " connectors with DISTRIBUTARY_JARS",
    )


def main() -> int:
    """Fetch now, for the Makefile and for images that must start without a network."""
    try:
        jars = ensure_connectors(lambda line: print(line, file=sys.stderr))
    except SetupError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(f"{len(jars)} JVM connectors in {jars[0].parent}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
