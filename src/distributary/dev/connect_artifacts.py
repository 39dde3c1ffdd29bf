"""Kafka Connect and Debezium as files: fetched once, checked against the lock in `jvm_connect/`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from distributary.run.ivy import Lock, Progress, ensure, fetch_now

LOCK = Lock(
    Path(__file__).with_name("jvm_connect"), what="Kafka Connect and Debezium", size="about 30 MB"
)
"""Every file that the broker does not have as well, with its exact version."""


@dataclass(frozen=True, slots=True)
class ConnectArtifacts:
    """What a JVM needs beside the broker's files to be a worker with the connector."""

    jars: tuple[Path, ...]
    """The rest of the class path."""
    plugins: Path
    """The folder that holds the connector."""


def ensure_connect(
    progress: Progress | None = None, *, cache: Path | None = None
) -> ConnectArtifacts:
    """The files in the user's cache, fetched if this user never had them; else SetupError."""
    root = cache or platformdirs.user_cache_path("distributary")
    paths = ensure(LOCK, root / "dev" / LOCK.key, progress)
    (plugins,) = (path for path in paths if path.is_dir())
    return ConnectArtifacts(tuple(path for path in paths if path != plugins), plugins)


def main() -> int:
    """Fetch now, for the Makefile and for machines that will have no network."""
    return fetch_now(
        ensure_connect, lambda found: f"Kafka Connect and Debezium in {found.plugins.parent}"
    )


if __name__ == "__main__":
    sys.exit(main())
