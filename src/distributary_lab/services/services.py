"""A broker and a registry that are started, killed and stopped together.

Run as a program, it waits for the end of the process that started it, then stops the services of a
folder.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import ClassVar

import platformdirs

from distributary.errors import ConfigError, ErrorCode, SetupError
from distributary.spark.jars import Progress
from distributary.spark.java import require_java
from distributary.store.disk import held, replace
from distributary_lab.services.processes import (
    Guarded,
    Running,
    end,
    free_port,
    is_free,
    launch,
    require_free,
    running,
)
from distributary_lab.services.servers import (
    JavaService,
    KafkaService,
    RegistryService,
    ensure_artifacts,
)

USUAL_PORTS = {"kafka": 9092, "registry": 8081}
"""The ports that pipeline files use by default."""

_FOLDERS = ("kafka", "registry", "logs", "security", "tmp")
_PORTS = "ports.json"
_LOCK = ".lock"
_START_SECONDS = 120
_POLL_SECONDS = 0.1

Ports = Mapping[str, int]
"""Port numbers by name."""


class ServiceState(StrEnum):
    """Whether a service runs and answers."""

    UP = "up"
    SILENT = "not answering"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Condition:
    """The state of a service; only the log is known when it does not run."""

    state: ServiceState
    log: Path
    address: str | None = None
    pid: int | None = None
    since: datetime | None = None


class Services(Guarded):
    """The broker and the registry of one folder. With `with`, they end with this process.

    A port that is not given is the same as before, else a free one.
    """

    watcher = ("-m", "distributary_lab.services.services")
    kinds: ClassVar[tuple[type[JavaService], type[JavaService]]] = (KafkaService, RegistryService)

    def __init__(
        self,
        folder: Path,
        *,
        kafka_port: int | None = None,
        registry_port: int | None = None,
        usual: Ports | None = None,
    ) -> None:
        """Create the services; `usual` ports apply where none is given or was used before."""
        super().__init__(folder)
        self._requested = {"kafka": kafka_port or 0, "registry": registry_port or 0}
        self._usual = usual or {}
        self._ports: Ports = {}

    @property
    def kafka(self) -> str:
        """Return the address for `bootstrap_servers`."""
        return self._both()[0].address

    @property
    def registry(self) -> str:
        """Return the address for `registry.url`."""
        return self._both()[1].address

    def start(self, progress: Progress | None = None) -> tuple[str, ...]:
        """Start what does not run and wait until both answer; return the names of the started ones.

        Raise SetupError when a port is taken or a service does not start, ConfigError when one runs
        at another port than the requested one. Services that this call started are then ended.
        """
        return self._start(progress or (lambda _: None))

    def _start(self, say: Progress, *, only: str = "") -> tuple[str, ...]:
        launched: dict[str, Running] = {}
        with alone(self.folder, say):
            live = running(self.folder)
            self._ports = choose_ports(
                [name for kind in self.kinds for name in (kind.name, *kind.other_ports)],
                asked=self._requested,
                live=live,
                before=self._ports or remembered(self.folder) or {},
                usual=self._usual,
            )
            # the registry starts first: it loads while the broker's folder is formatted
            wanted = [service for service in reversed(self._both()) if only in ("", service.name)]
            try:
                missing = [service for service in wanted if service.name not in live]
                if missing:
                    self._launch(missing, launched, say)
                for service in wanted:
                    wait_until_up(service, (live | launched)[service.name])
            except BaseException:
                end(launched.values(), gently=False)
                if not live:
                    forget(self.folder)
                raise
        return tuple(sorted(launched))

    def _launch(
        self, missing: Sequence[JavaService], launched: dict[str, Running], say: Progress
    ) -> None:
        for service in missing:
            for port in (service.name, *service.other_ports):
                require_free(self._ports[port], service=service.title)
        java, artifacts = require_java(), ensure_artifacts(say)
        remember(self.folder, self._ports)
        for service in missing:
            say(f"starting {service.title} at {service.address}")
            if service.log.exists():
                # the old log may explain why a service had to be started again
                service.log.replace(service.log.with_suffix(".previous.log"))
            fresh(self.folder / "tmp" / service.name)
            service.prepare(java, artifacts)
            launched[service.name] = launch(
                service.command(java, artifacts),
                service=service.name,
                port=service.port,
                folder=self.folder,
                output=service.output,
            )

    def stop(self) -> tuple[str, ...]:
        """Stop both, wait until they are gone, and return the names of what was stopped."""
        if not self.folder.exists():
            return _end_all(self.folder)
        with alone(self.folder, lambda _: None):
            stopped = _end_all(self.folder)
            forget(self.folder)
        return stopped

    def wipe(self) -> tuple[str, ...]:
        """Stop both, remove data, logs and secrets, and return the names of what was stopped."""
        stopped = self.stop()
        wipe(self.folder)
        return stopped

    def status(self) -> dict[str, Condition]:
        """Return the state of both services, asked in their own protocols."""
        live = running(self.folder)
        ports = {name: service.port for name, service in live.items()}
        conditions: dict[str, Condition] = {}
        for kind in self.kinds:
            service, process = kind(self.folder, ports), live.get(kind.name)
            if process is None or not process.alive:
                conditions[kind.name] = Condition(ServiceState.DOWN, service.log)
                continue
            state = ServiceState.UP if service.answers() else ServiceState.SILENT
            conditions[kind.name] = Condition(
                state, service.log, service.address, process.pid, process.since
            )
        return conditions

    def kill_kafka(self) -> None:
        """Kill the broker, as a crash would."""
        self._kill("kafka")

    def restart_kafka(self) -> None:
        """Restart the broker with the same port and data; it is killed first if it runs."""
        self._restart("kafka")

    def kill_registry(self) -> None:
        """Kill the registry, as a crash would."""
        self._kill("registry")

    def restart_registry(self) -> None:
        """Restart the registry with the same port and data; it is killed first if it runs."""
        self._restart("registry")

    def _restart(self, name: str) -> None:
        self._kill(name)
        self._start(lambda _: None, only=name)

    def _kill(self, name: str) -> None:
        live = running(self.folder)
        end([live[name]] if name in live else [], gently=False)

    def _both(self) -> tuple[JavaService, JavaService]:
        if not self._ports:
            raise SetupError(
                "the broker and the registry were not started",
                code=ErrorCode.NOT_FOUND,
                where=str(self.folder),
                next_step="call start()",
            )
        broker, registry = self.kinds
        return broker(self.folder, self._ports), registry(self.folder, self._ports)


def _end_all(folder: Path) -> tuple[str, ...]:
    live = running(folder)
    end(live.values())
    return tuple(sorted(live))


def choose_ports(
    names: Sequence[str], *, asked: Ports, live: Mapping[str, Running], before: Ports, usual: Ports
) -> Ports:
    """Choose the ports; raise ConfigError when a service runs at another port than requested.

    Order of preference: the port in use, the requested one, the previous one, the usual one, a free
    one.
    """
    chosen: dict[str, int] = {}
    for name in names:
        service, requested, old = live.get(name), asked.get(name, 0), before.get(name, 0)
        if service and requested and requested != service.port:
            raise ConfigError(
                f"{name} runs already, at port {service.port}",
                where=f"--{name}-port {requested}",
                evidence=f"process {service.pid}",
                next_step="distributary dev down, then distributary dev up with the other port",
            )
        # only the broker itself uses the controller's port, so a taken one can be replaced
        if name == "controller" and old and "kafka" not in live and not is_free(old):
            old = 0
        candidates = (service.port if service else 0, requested, old, usual.get(name, 0))
        chosen[name] = next(filter(None, candidates), 0) or free_port(but={*chosen.values()})
    return chosen


def wait_until_up(service: JavaService, process: Running) -> None:
    """Wait until a service answers; raise SetupError with the end of its log if it does not."""
    deadline = time.monotonic() + _START_SECONDS
    while not service.answers():
        late = time.monotonic() > deadline
        if late or not process.alive:
            how = f"did not answer within {_START_SECONDS} s" if late else "ended while starting"
            raise SetupError(
                f"{service.title} {how}",
                code=ErrorCode.SERVICE_FAILED,
                where=str(service.log),
                evidence=service.evidence(),
                next_step="read the log; distributary dev down --wipe removes the data, if it is"
                " damaged",
            )
        time.sleep(_POLL_SECONDS)


def usual_folder() -> Path:
    """Return the folder of `distributary dev up`, with data, logs and ports."""
    return platformdirs.user_state_path("distributary") / "dev"


@contextmanager
def alone(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Lock a folder while its services are started or stopped; create it if missing."""
    try:
        # the folder is private: write access to it means running code in the services
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "it belongs to another user")
        folder.chmod(0o700)
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
    """Replace a folder by an empty one."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)


def remember(folder: Path, ports: Ports) -> None:
    """Save the ports for the next start."""
    text = json.dumps(dict(ports), indent=2) + "\n"
    replace(folder / _PORTS, text.encode(), durable=False)


def remembered(folder: Path) -> Ports | None:
    """Return the ports of the last start; None if unknown or damaged."""
    try:
        ports = json.loads(folder.joinpath(_PORTS).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    whole = isinstance(ports, dict) and ports.keys() >= {*USUAL_PORTS, "controller"}
    return ports if whole and all(isinstance(port, int) for port in ports.values()) else None


def forget(folder: Path) -> None:
    """Forget the ports, so that the next start chooses new ones."""
    folder.joinpath(_PORTS).unlink(missing_ok=True)


def contents(folder: Path) -> list[Path]:
    """Return the files and folders that the services created."""
    paths = (folder / name for name in (*_FOLDERS, _PORTS, _LOCK))
    return [path for path in paths if path.exists()]


def wipe(folder: Path) -> None:
    """Remove what the services created, and the folder if it is then empty."""
    for path in contents(folder):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


if __name__ == "__main__":
    # the pipe on standard input closes when the starting process ends
    sys.stdin.buffer.read()
    Services(Path(sys.argv[1])).stop()
