"""The folder that keeps the data, the logs and the choice of ports."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

import platformdirs

from distributary.dev.ports import Ports
from distributary.errors import ErrorCode, SetupError
from distributary.run.exclusive import held

_FOLDERS = ("kafka", "registry", "logs", "security", "tmp")
_PORTS = "ports.json"
_LOCK = ".lock"


def usual_folder() -> Path:
    """The one of `distributary dev up`."""
    return platformdirs.user_state_path("distributary") / "dev"


@contextmanager
def alone(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """One process at a time starts or stops what belongs to a folder, which is made if need be."""
    try:
        # what passes through the broker is nobody else's
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.joinpath("logs").mkdir(exist_ok=True)
        file = folder.joinpath(_LOCK).open("w")
    except OSError as error:
        raise SetupError(
            "the folder of the broker and the registry cannot be written",
            code=ErrorCode.SERVICE_FAILED,
            where=str(folder),
            evidence=error.strerror or type(error).__name__,
            next_step="make it writable, or name another one with --folder",
        ) from error
    busy = "another process is starting or stopping these services; waiting for it"
    with file, held(file, waiting=lambda: say(busy)):
        yield


def fresh(folder: Path) -> None:
    """An empty folder in place of whatever a killed process left in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)


def remember(folder: Path, ports: Ports) -> None:
    """Keep the ports for the next start of a service that died."""
    draft = folder / f"{_PORTS}.new"
    draft.write_text(json.dumps(asdict(ports), indent=2) + "\n", "utf-8")
    draft.replace(folder / _PORTS)


def remembered(folder: Path) -> Ports | None:
    """The ports of the last start; None where there was none, or the file is damaged."""
    try:
        known = json.loads(folder.joinpath(_PORTS).read_text("utf-8"))
        ports = Ports(**known)
    except (OSError, ValueError, TypeError):
        return None
    return ports if all(isinstance(port, int) for port in asdict(ports).values()) else None


def forget(folder: Path) -> None:
    """The next start chooses ports anew."""
    folder.joinpath(_PORTS).unlink(missing_ok=True)


def contents(folder: Path) -> list[Path]:
    """What was made here; nothing else in the folder is ours to remove."""
    made = (folder / name for name in (*_FOLDERS, _PORTS, _LOCK))
    return [path for path in made if path.exists()]


def wipe(folder: Path) -> None:
    """Remove what was made here, and the folder if nothing else is in it."""
    for path in contents(folder):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()
