"""The processes of a folder's services, found in the process table: a pid file could be outdated.

Each process has a mark on its command line that names the service, its port and the folder. A
process without the mark is not ours, even if it has the pid of an earlier process.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, Self

import psutil

from distributary.errors import ErrorCode, SetupError

_MARK = "distributary_lab.services="
_TERM_SECONDS = 30
_KILL_SECONDS = 10
_MOMENT_SECONDS = 0.001

# kept, because only the parent of a process can reap it
_children: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True, slots=True)
class Running:
    """A running service."""

    service: str
    port: int
    processes: tuple[psutil.Process, ...]
    """The processes, oldest first: if `java` is a script that starts Java, both have the mark."""

    @property
    def pid(self) -> int:
        """Return the pid of the process that was started."""
        return int(self.processes[0].pid)

    @property
    def since(self) -> datetime:
        """Return the time of its start."""
        return datetime.fromtimestamp(self.processes[0].create_time(), UTC)

    @property
    def alive(self) -> bool:
        """Return true when it still runs."""
        return any(map(_is_alive, self.processes))


def _is_alive(process: psutil.Process) -> bool:
    try:
        # a zombie, a child that ended and was not reaped, does not run
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def mark(service: str, port: int, folder: Path) -> str:
    """Return the setting on the command line that identifies a process."""
    return f"{_MARK}{service}:{port}:{folder}"


def lent(folder: Path) -> Path:
    """Return the folder that belongs to another user, for a service that must not run as root."""
    return folder / "lent"


def running(folder: Path) -> dict[str, Running]:
    """Return the running services of a folder, by name."""
    matches: list[tuple[float, int, Running]] = []
    owners = _owners(folder)
    for process in psutil.process_iter():
        # a process may end while it is examined
        with suppress(psutil.Error, OSError):
            match = _recognized(process, folder, owners)
            if match is not None:
                matches.append((process.create_time(), process.pid, match))
    services: dict[str, Running] = {}
    for _, _, service in sorted(matches, key=lambda row: row[:2]):
        first = services.setdefault(service.service, service)
        if first is not service:
            both = first.processes + service.processes
            services[service.service] = replace(first, processes=both)
    return services


def _owners(folder: Path) -> set[int]:
    """Return the users whose processes can be ours, because any user can copy our mark."""
    owners = {os.getuid()}
    if os.getuid() == 0:
        with suppress(OSError):
            owners.add(lent(folder).stat().st_uid)
    return owners


def _recognized(process: psutil.Process, folder: Path, owners: set[int]) -> Running | None:
    """Return the service of a process; None if it does not have the mark of the folder."""
    if process.uids().real not in owners:
        return None
    # Java takes unknown settings with `-D`
    words = (word.removeprefix("-D") for word in process.cmdline())
    marks = (word for word in words if word.startswith(_MARK))
    service, _, rest = next(marks, "").removeprefix(_MARK).partition(":")
    port, _, place = rest.partition(":")
    if place != str(folder) or not port.isdecimal():
        return None
    return Running(service, int(port), (process,))


def launch(
    command: Sequence[str],
    *,
    service: str,
    port: int,
    folder: Path,
    output: Path,
    user: tuple[int, int] | None = None,
) -> Running:
    """Start a service that outlives this process, with its output in a file.

    `user` is another user and group, which only root can choose.
    """
    # the service gets its own session: closing the terminal, or Ctrl-C in it, must not end it
    try:
        with output.open("wb") as file:
            child = subprocess.Popen(  # noqa: S603 - Java, with arguments of this package
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                user=user[0] if user else None,
                group=user[1] if user else None,
                extra_groups=() if user else None,
            )
    except OSError as error:
        raise SetupError(
            f"{service} could not be started",
            code=ErrorCode.SERVICE_FAILED,
            where=command[0],
            evidence=error.strerror or type(error).__name__,
            next_step="check the program and the folder",
        ) from error
    _children.append(child)
    process = psutil.Process(child.pid)
    # a new process has no arguments for a moment, and could not be recognized
    with suppress(psutil.Error):
        while not process.cmdline():
            time.sleep(_MOMENT_SECONDS)
    return Running(service, port, (process,))


def end(services: Iterable[Running], *, gently: bool = True) -> None:
    """Stop processes and wait for their end: by SIGTERM first, then killed with their children."""
    rest = [process for service in services for process in service.processes]
    if gently:
        terminated = [process for process in rest if _sent(process, signal.SIGTERM)]
        _, rest = psutil.wait_procs(terminated, timeout=_TERM_SECONDS)
    # children are listed first: they cannot be found when their parent is gone
    for process in list(rest):
        with suppress(psutil.Error):
            rest += process.children(recursive=True)
    killed = [process for process in rest if _sent(process, signal.SIGKILL)]
    psutil.wait_procs(killed, timeout=_KILL_SECONDS)
    _children[:] = [child for child in _children if child.poll() is None]


def _sent(process: psutil.Process, number: int) -> bool:
    """Send a signal; return false if the process is gone."""
    # psutil first checks that the pid still belongs to the same process
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return False
    return True


HOST = "127.0.0.1"
"""The only address on which the services listen."""

# below the ephemeral ports: an outgoing connection could take the port of a broker that is down for
# a moment, and a client that connects there could even reach itself
_FIRST, _LAST = 15_000, 32_000


def is_free(port: int) -> bool:
    """Return true when a server could listen on the port now."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as attempt:
        # closed connections in TIME_WAIT do not hold the port, for Java neither
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port(*, but: set[int]) -> int:
    """Return a free port that is not in `but`."""
    candidates = random.SystemRandom().sample(range(_FIRST, _LAST), k=200)
    for port in candidates:
        if port not in but and is_free(port):
            return port
    raise SetupError(
        "no free port was found",
        code=ErrorCode.PORT_TAKEN,
        where=f"{HOST}, {_FIRST} to {_LAST}",
        next_step="stop some of the programs that listen on these ports",
    )


def require_free(port: int, *, service: str) -> None:
    """Raise SetupError, with the name of the process that listens, when a port is taken."""
    if is_free(port):
        return
    raise SetupError(
        f"port {port} is taken, and {service} needs it",
        code=ErrorCode.PORT_TAKEN,
        where=f"{HOST}:{port}",
        evidence=_owner(port),
        next_step="stop the program that listens there, or choose another port"
        " with --kafka-port or --registry-port",
        port=port,
    )


def _owner(port: int) -> str:
    # some systems show connections only to root
    """Return the name and pid of the process that listens on a port; empty if unknown."""
    with suppress(psutil.Error, OSError):
        for socket_ in psutil.net_connections(kind="tcp"):
            if socket_.status == psutil.CONN_LISTEN and socket_.laddr.port == port and socket_.pid:
                return f"{psutil.Process(socket_.pid).name()}, process {socket_.pid}"
    return ""


class Guarded(ABC):
    """Services of one folder for a `with` block: started at its beginning, stopped at its end.

    They also end when this process is killed: a second process waits on a pipe that closes with
    this one.
    """

    watcher: ClassVar[tuple[str, ...]]
    """Arguments of the Python process that waits, and then stops the services of its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.expanduser().resolve()

    @abstractmethod
    def start(self) -> object:
        """Start what does not run, and wait until it answers."""

    @abstractmethod
    def stop(self) -> object:
        """Stop what runs, and wait until it is gone."""

    def __enter__(self) -> Self:
        self._watching = watching(self.watcher, self.folder)
        try:
            self.start()
        except BaseException:
            self._dismiss()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._dismiss()

    def _dismiss(self) -> None:
        self._watching.terminate()
        self._watching.communicate()


def watching(watcher: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    """Start a process that stops the services of a folder when this process is gone."""
    return subprocess.Popen(  # noqa: S603 - a module of this package
        [sys.executable, *watcher, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Ctrl-C in the terminal must not end the process that stops the services
        start_new_session=True,
    )
