"""The broker and the registry as files: fetched once, checked against the lock in `jvm/`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from distributary.run.ivy import Lock, Progress, ensure, fetch_now

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


if __name__ == "__main__":
    sys.exit(main())
