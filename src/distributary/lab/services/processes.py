"""The processes of a folder, as the process table has them: a file with numbers could be old.

Each carries a mark on its command line that names the service, its port and the folder. Whatever
does not carry it is a stranger, also when it has the number of a process of ours that is gone.
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

_MARK = "distributary.lab.services="
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
    """The setting on the command line by which a process is known again."""
    return f"{_MARK}{service}:{port}:{folder}"


def lent(folder: Path) -> Path:
    """What belongs to another user, if a service of the folder must not run as root."""
    return folder / "lent"


def running(folder: Path) -> dict[str, Running]:
    """What runs for a folder, by the name of the service."""
    found: list[tuple[float, int, Running]] = []
    owners = _owners(folder)
    for process in psutil.process_iter():
        # it may end while it is looked at
        with suppress(psutil.Error, OSError):
            known = _recognized(process, folder, owners)
            if known is not None:
                found.append((process.create_time(), process.pid, known))
    services: dict[str, Running] = {}
    for _, _, each in sorted(found, key=lambda row: row[:2]):
        first = services.setdefault(each.service, each)
        if first is not each:
            both = first.processes + each.processes
            services[each.service] = replace(first, processes=both)
    return services


def _owners(folder: Path) -> set[int]:
    """Whose processes can be ours: anybody can write our mark on a command line."""
    owners = {os.getuid()}
    if os.getuid() == 0:
        with suppress(OSError):
            owners.add(lent(folder).stat().st_uid)
    return owners


def _recognized(process: psutil.Process, folder: Path, owners: set[int]) -> Running | None:
    if process.uids().real not in owners:
        return None
    # Java takes a setting that means nothing to it with `-D`
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
    """Start a service that outlives this process; what it prints goes to a file.

    `user` is another user and group, for root alone.
    """
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
    # for a moment it has no arguments yet, and nobody would recognize it
    with suppress(psutil.Error):
        while not process.cmdline():
            time.sleep(_MOMENT_SECONDS)
    return Running(service, port, (process,))


def end(services: Iterable[Running], *, gently: bool = True) -> None:
    """Stop processes and wait until they are gone: asked first, then killed with their children."""
    rest = [process for each in services for process in each.processes]
    if gently:
        asked = [process for process in rest if _sent(process, signal.SIGTERM)]
        _, rest = psutil.wait_procs(asked, timeout=_TERM_SECONDS)
    # looked up before their parent is gone, because nobody could find them afterwards
    for process in list(rest):
        with suppress(psutil.Error):
            rest += process.children(recursive=True)
    killed = [process for process in rest if _sent(process, signal.SIGKILL)]
    psutil.wait_procs(killed, timeout=_KILL_SECONDS)
    _children[:] = [child for child in _children if child.poll() is None]


def _sent(process: psutil.Process, number: int) -> bool:
    """Send a signal; False if there is nobody any more."""
    # psutil looks first whether the number still belongs to the process that it was made for
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return False
    return True


HOST = "127.0.0.1"
"""The only address on which anything here listens."""

# below the ports that systems give to outgoing connections: one of those could take the port of a
# broker that is down for a moment, and a client that knocks there could even reach itself
_FIRST, _LAST = 15_000, 32_000


def is_free(port: int) -> bool:
    """Whether a server could listen there now."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as attempt:
        # connections that ended a moment ago do not hold the port, for Java neither
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port(*, but: set[int]) -> int:
    """A free port that is not one of these."""
    candidates = random.SystemRandom().sample(range(_FIRST, _LAST), k=200)
    for port in candidates:
        if port not in but and is_free(port):
            return port
    raise SetupError(
        "no free port was found",
        code=ErrorCode.PORT_TAKEN,
        where=f"{HOST}, {_FIRST} to {_LAST}",
        next_step="end some of the programs that listen there",
    )


def require_free(port: int, *, service: str) -> None:
    """SetupError with the name of whoever listens there."""
    if is_free(port):
        return
    raise SetupError(
        f"port {port} is taken, and {service} needs one",
        code=ErrorCode.PORT_TAKEN,
        where=f"{HOST}:{port}",
        evidence=_owner(port),
        next_step="end the program that listens there, or choose another port"
        " with --kafka-port or --registry-port",
        port=port,
    )


def _owner(port: int) -> str:
    # not every system lets everybody look
    with suppress(psutil.Error, OSError):
        for each in psutil.net_connections(kind="tcp"):
            if each.status == psutil.CONN_LISTEN and each.laddr.port == port and each.pid:
                return f"{psutil.Process(each.pid).name()}, process {each.pid}"
    return ""


class Guarded(ABC):
    """Services of one folder, for `with`: started at its beginning, stopped at its end.

    They also end when this process is killed: a second one waits on a pipe whose other end closes
    with this one.
    """

    watcher: ClassVar[tuple[str, ...]]
    """What Python runs to wait, and to stop the services of the folder that it is told then."""

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
    """A process that stops the services of a folder as soon as this one is gone."""
    return subprocess.Popen(  # noqa: S603 - a module of this package
        [sys.executable, *watcher, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Ctrl-C in the terminal is not for the one who tidies up after it
        start_new_session=True,
    )
