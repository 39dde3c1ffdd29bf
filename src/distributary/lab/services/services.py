"""A broker and a registry that belong together: started, killed and stopped as one.

Run as a program, it waits until the process that started it is gone, then stops those of a folder.
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
from distributary.lab.services.processes import (
    Guarded,
    Running,
    end,
    free_port,
    is_free,
    launch,
    require_free,
    running,
)
from distributary.lab.services.servers import Broker, JavaService, Registry, ensure_artifacts
from distributary.spark.jars import Progress
from distributary.spark.java import require_java
from distributary.store.disk import held, replace

USUAL_PORTS = {"kafka": 9092, "registry": 8081}
"""Where pipeline files look for them."""

_FOLDERS = ("kafka", "registry", "logs", "security", "tmp")
_PORTS = "ports.json"
_LOCK = ".lock"
_START_SECONDS = 120
_POLL_SECONDS = 0.1

Ports = Mapping[str, int]
"""The numbers of ports by their names."""


class State(StrEnum):
    """Whether a service runs and answers."""

    UP = "up"
    SILENT = "not answering"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Condition:
    """What is known of a service; nothing but the log where it does not run."""

    state: State
    log: Path
    address: str | None = None
    pid: int | None = None
    since: datetime | None = None


class Services(Guarded):
    """The two of one folder. Used with `with`, they end with this process, however it ends.

    A port that is not named is the one it had before, else a free one.
    """

    watcher = ("-m", "distributary.lab.services.services")
    kinds: ClassVar[tuple[type[JavaService], type[JavaService]]] = (Broker, Registry)

    def __init__(
        self,
        folder: Path,
        *,
        kafka_port: int | None = None,
        registry_port: int | None = None,
        usual: Ports | None = None,
    ) -> None:
        """With `usual` ports, these are taken where none is named and none was before."""
        super().__init__(folder)
        self._asked = {"kafka": kafka_port or 0, "registry": registry_port or 0}
        self._usual = usual or {}
        self._ports: Ports = {}

    @property
    def kafka(self) -> str:
        """The address for `bootstrap_servers`."""
        return self._both()[0].address

    @property
    def registry(self) -> str:
        """The address for `registry.url`."""
        return self._both()[1].address

    def start(self, progress: Progress | None = None) -> tuple[str, ...]:
        """Start what does not run and wait until both answer; the names of what was started.

        Raises SetupError when a port is taken or a service does not start, ConfigError when one
        runs at another port than the one that is asked for. What this call started is ended then.
        """
        return self._start(progress or (lambda _: None))

    def _start(self, say: Progress, *, only: str = "") -> tuple[str, ...]:
        launched: dict[str, Running] = {}
        with alone(self.folder, say):
            live = running(self.folder)
            self._ports = choose_ports(
                [name for kind in self.kinds for name in (kind.name, *kind.other_ports)],
                asked=self._asked,
                live=live,
                before=self._ports or remembered(self.folder) or {},
                usual=self._usual,
            )
            # the registry first: it loads while the broker's folder is made
            wanted = [each for each in reversed(self._both()) if only in ("", each.name)]
            try:
                missing = [each for each in wanted if each.name not in live]
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
                # what made somebody start it again may stand there
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
        """Stop both and wait until they are gone; the names of what was stopped."""
        if not self.folder.exists():
            return _end_all(self.folder)
        with alone(self.folder, lambda _: None):
            stopped = _end_all(self.folder)
            forget(self.folder)
        return stopped

    def wipe(self) -> tuple[str, ...]:
        """Stop both and remove their data, logs and secrets; the names of what was stopped."""
        stopped = self.stop()
        wipe(self.folder)
        return stopped

    def status(self) -> dict[str, Condition]:
        """How they are, asked in their own protocols."""
        live = running(self.folder)
        ports = {name: each.port for name, each in live.items()}
        found: dict[str, Condition] = {}
        for kind in self.kinds:
            service, process = kind(self.folder, ports), live.get(kind.name)
            if process is None or not process.alive:
                found[kind.name] = Condition(State.DOWN, service.log)
                continue
            state = State.UP if service.answers() else State.SILENT
            found[kind.name] = Condition(
                state, service.log, service.address, process.pid, process.since
            )
        return found

    def kill_kafka(self) -> None:
        """End the broker as a crash would."""
        self._kill("kafka")

    def restart_kafka(self) -> None:
        """The broker again, at the same port with the same data; killed first if it runs."""
        self._restart("kafka")

    def kill_registry(self) -> None:
        """End the registry as a crash would."""
        self._kill("registry")

    def restart_registry(self) -> None:
        """The registry again, at the same port with the same data; killed first if it runs."""
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
    """The ports of a start; ConfigError where a service runs at another one than was asked for.

    The one in use goes before the one asked for, that of before, the usual one and a free one.
    """
    chosen: dict[str, int] = {}
    for name in names:
        service, wish, old = live.get(name), asked.get(name, 0), before.get(name, 0)
        if service and wish and wish != service.port:
            raise ConfigError(
                f"{name} runs already, at port {service.port}",
                where=f"--{name}-port {wish}",
                evidence=f"process {service.pid}",
                next_step="distributary dev down, then distributary dev up with the other port",
            )
        # nobody but the broker itself needs to find its controller again
        if name == "controller" and old and "kafka" not in live and not is_free(old):
            old = 0
        wishes = (service.port if service else 0, wish, old, usual.get(name, 0))
        chosen[name] = next(filter(None, wishes), 0) or free_port(but={*chosen.values()})
    return chosen


def wait_until_up(service: JavaService, process: Running) -> None:
    """Until it answers; SetupError with its last words if it does not."""
    deadline = time.monotonic() + _START_SECONDS
    while not service.answers():
        late = time.monotonic() > deadline
        if late or not process.alive:
            how = f"did not answer within {_START_SECONDS} s" if late else "ended when it started"
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
    """The one of `distributary dev up`: it keeps the data, the logs and the choice of ports."""
    return platformdirs.user_state_path("distributary") / "dev"


@contextmanager
def alone(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """One process at a time starts or stops what belongs to a folder, which is made if need be."""
    try:
        # what passes through the broker is nobody else's, and who can change it runs code in it
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
    """An empty folder in place of whatever a killed process left in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)


def remember(folder: Path, ports: Ports) -> None:
    """Keep the ports for the next start of a service that died."""
    text = json.dumps(dict(ports), indent=2) + "\n"
    replace(folder / _PORTS, text.encode(), durable=False)


def remembered(folder: Path) -> Ports | None:
    """The ports of the last start; None where there was none, or the file is damaged."""
    try:
        known = json.loads(folder.joinpath(_PORTS).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    whole = isinstance(known, dict) and known.keys() >= {*USUAL_PORTS, "controller"}
    return known if whole and all(isinstance(port, int) for port in known.values()) else None


def forget(folder: Path) -> None:
    """The next start chooses ports again."""
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


if __name__ == "__main__":
    # the pipe on standard input ends with the process at its other end
    sys.stdin.buffer.read()
    Services(Path(sys.argv[1])).stop()
