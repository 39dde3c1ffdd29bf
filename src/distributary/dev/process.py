"""The processes of a folder, as the process table has them: a file with numbers could be old.

Each carries a mark on its command line that names the service, its port and the folder. Whatever
does not carry it is a stranger, also when it has the number of a process of ours that is gone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import psutil

from distributary.errors import ErrorCode, SetupError

_MARK = "-Ddistributary.dev="
_TERM_SECONDS = 30
_KILL_SECONDS = 10
_MOMENT_SECONDS = 0.001

# kept, because only its parent can bury a child
_children: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True, slots=True)
class Running:
    """A service that runs."""

    service: str
    port: int
    processes: tuple[psutil.Process, ...]
    """The oldest first: where `java` is a script that starts Java, both carry the mark."""

    @property
    def pid(self) -> int:
        """The number of the process that was started."""
        return int(self.processes[0].pid)

    @property
    def since(self) -> datetime:
        """When it was started."""
        return datetime.fromtimestamp(self.processes[0].create_time(), UTC)

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return any(map(_is_alive, self.processes))


def _is_alive(process: psutil.Process) -> bool:
    try:
        # a child that ended and was not buried does not run
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def mark(service: str, port: int, folder: Path) -> str:
    """The argument by which a process is known again."""
    return f"{_MARK}{service}:{port}:{folder}"


def running(folder: Path) -> dict[str, Running]:
    """What runs for a folder, by the name of the service."""
    found: list[tuple[float, int, Running]] = []
    for process in psutil.process_iter():
        # it may end while it is looked at
        with suppress(psutil.Error, OSError):
            known = _recognized(process, folder)
            if known is not None:
                found.append((process.create_time(), process.pid, known))
    services: dict[str, Running] = {}
    for _, _, each in sorted(found, key=lambda row: row[:2]):
        first = services.setdefault(each.service, each)
        if first is not each:
            both = first.processes + each.processes
            services[each.service] = replace(first, processes=both)
    return services


def _recognized(process: psutil.Process, folder: Path) -> Running | None:
    if process.uids().real != os.getuid():
        return None
    marks = (word for word in process.cmdline() if word.startswith(_MARK))
    service, _, rest = next(marks, "").removeprefix(_MARK).partition(":")
    port, _, place = rest.partition(":")
    if place != str(folder) or not port.isdecimal():
        return None
    return Running(service, int(port), (process,))


def launch(
    command: Sequence[str], *, service: str, port: int, folder: Path, output: Path
) -> Running:
    """Start a service that outlives this process; what it prints goes to a file."""
    # a terminal that is closed, or Ctrl-C in it, must not reach the service
    try:
        with output.open("wb") as file:
            child = subprocess.Popen(  # noqa: S603 - Java, with arguments of this package
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise SetupError(
            f"{service} could not be started",
            code=ErrorCode.SERVICE_FAILED,
            where=command[0],
            evidence=error.strerror or type(error).__name__,
            next_step="check Java and the folder",
        ) from error
    _children.append(child)
    process = psutil.Process(child.pid)
    # for a moment it has no arguments yet, and nobody would recognize it
    with suppress(psutil.Error):
        while not process.cmdline():
            time.sleep(_MOMENT_SECONDS)
    return Running(service, port, (process,))


def end(services: Iterable[Running], *, gently: bool = True) -> None:
    """Stop processes and wait until they are gone: asked first, then killed."""
    left = [process for service in services for process in service.processes]
    if gently:
        left = _signal(left, signal.SIGTERM, patience=_TERM_SECONDS)
    _signal(left, signal.SIGKILL, patience=_KILL_SECONDS)
    _children[:] = [child for child in _children if child.poll() is None]


def _signal(
    processes: Iterable[psutil.Process], number: int, *, patience: float
) -> list[psutil.Process]:
    """Those that are still there after a while."""
    left: list[psutil.Process] = []
    for process in processes:
        # psutil looks first whether the number still belongs to the process that it was made for
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
            left.append(process)
    _, left = psutil.wait_procs(left, timeout=patience)
    return left
