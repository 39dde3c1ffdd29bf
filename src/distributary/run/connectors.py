"""Fetches the JVM connectors once, and checks each file.

The lock is `jvm/`. The cache folder is named after it and after the version of PySpark.
Environment:

- `DISTRIBUTARY_JARS`: use these files instead (comma separated, or a folder); nothing is fetched.
- `DISTRIBUTARY_IVY_SETTINGS`: an Ivy settings file, for a mirror; else `~/.ivy2/ivysettings.xml`.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path

import platformdirs

from distributary.errors import ErrorCode, SetupError
from distributary.run.ivy import Lock, Progress, ensure, fetch_now

JVM = Path(__file__).with_name("jvm")
"""The package data of the JVM side."""


def ensure_connectors(progress: Progress | None = None, *, cache: Path | None = None) -> list[Path]:
    """The connector files, fetched first if this user never had them; SetupError if that fails."""
    if not are_locked():
        return _given(os.environ["DISTRIBUTARY_JARS"])
    root = cache or platformdirs.user_cache_path("distributary")
    return ensure(_lock(), root / "connectors" / lock_key(), progress)


def are_locked() -> bool:
    """Whether the connectors are those of the lock, which hold nothing that Spark ships itself."""
    return not os.environ.get("DISTRIBUTARY_JARS")


def lock_key() -> str:
    """Changes when the lock or PySpark does, so that an old cache is never taken for this one."""
    return f"spark-{importlib.metadata.version('pyspark')}-{_lock().key}"


def _lock() -> Lock:
    return Lock(
        JVM,
        what="the JVM connectors",
        size="about 25 MB",
        otherwise="put the files into a folder and name it with DISTRIBUTARY_JARS",
    )


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


def main() -> int:
    """Fetch now, for the Makefile and for images that must start without a network."""
    return fetch_now(
        ensure_connectors, lambda jars: f"{len(jars)} JVM connectors in {jars[0].parent}"
    )


if __name__ == "__main__":
    sys.exit(main())
