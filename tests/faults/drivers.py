"""The product as a user starts it: the command in a process of its own, with its logs kept."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.faults.forkserver import ForkedProcess, ForkServer

COMMAND = Path(sys.executable).with_name("distributary")
_TIED = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
"""The end of the harness, however it comes, is the end of what it started."""
_SILENCE = 600.0
"""Seconds without an event after which a run that should have ended by itself is called stuck."""
_LIMIT = 3600.0
"""Seconds after which it is called stuck whatever happens, on a busy machine too."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a process has ended."""

    exit: int
    code: str
    """Of the error, as `--json` tells it; empty if it told none."""
    next_step: str
    """What the error says is to be done."""
    log: Path
    traceback: bool
    said: str
    """The error's own words, or the last lines of standard error."""

    @property
    def was_killed(self) -> bool:
        return self.exit == -signal.SIGKILL


class Driver:
    """One process of the product, in a session of its own."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        log: Path,
        variables: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        server: ForkServer | None = None,
    ) -> None:
        self.log = log
        self.arguments = list(arguments)
        self._out, self._err = log.with_suffix(".out"), log.with_suffix(".err")
        self.process: subprocess.Popen[bytes] | ForkedProcess
        if server is not None and not prefix:
            out, err = self._out.absolute(), self._err.absolute()
            self.process = server.start(arguments, out=out, err=err, variables=variables or {})
            self.pid = self.process.pid
            return
        with self._out.open("wb") as out_file, self._err.open("wb") as err_file:
            self.process = subprocess.Popen(
                [*_TIED, *prefix, str(COMMAND), *arguments],
                env={**os.environ, "COLUMNS": "200", **(variables or {})},
                stdin=subprocess.DEVNULL,
                stdout=out_file,
                stderr=err_file,
                start_new_session=True,
            )
        self.pid = self.process.pid

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def events(self) -> list[dict[str, Any]]:
        """What it has said so far, line by line."""
        lines = self._err.read_text("utf-8", "replace").splitlines()
        return [_parsed(line) for line in lines if line.startswith("{")]

    def settled(self) -> int:
        return sum(e.get("event") == "batch_settled" for e in self.events())

    def wait_for(self, event: str, *, count: int = 1, seconds: float = 180.0) -> bool:
        """Until it has said something so often; False if it ended or took too long."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if sum(e.get("event") == event for e in self.events()) >= count:
                return True
            if self.ended:
                return False
            time.sleep(0.05)
        return False

    def wait_until_stopped(self, seconds: float = 240.0) -> bool:
        """Until it has paused itself (SIGSTOP); False if it ended instead."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.ended:
            with suppress(psutil.NoSuchProcess):
                if psutil.Process(self.pid).status() == psutil.STATUS_STOPPED:
                    return True
            time.sleep(0.02)
        return False

    def signal(self, kind: signal.Signals, *, group: bool = False) -> None:
        """To the driver alone, or to its whole group."""
        if self.ended:
            return
        # it may end before it is reached
        with suppress(ProcessLookupError):
            if group:
                os.killpg(self.pid, kind)
            else:
                os.kill(self.pid, kind)

    def kill(self, *, group: bool = True) -> Outcome:
        self.signal(signal.SIGKILL, group=group)
        return self.end()

    def stop(self, seconds: float = 600.0) -> Outcome:
        """As Ctrl-C does: it may finish its batch."""
        self.signal(signal.SIGTERM)
        return self.end(seconds)

    def end(self, seconds: float = _LIMIT) -> Outcome:
        """Wait until it is gone; what it started may live on, as after any crash."""
        stuck = not self._ends_within(seconds)
        if stuck:
            os.killpg(self.pid, signal.SIGKILL)
            self.process.wait()
        text = self._err.read_text("utf-8", "replace")
        document = _parsed(self._out.read_text("utf-8", "replace"))
        error = document.get("error") or {}
        words = " | ".join(str(error.get(k, "")) for k in ("what", "evidence", "next_step"))
        return Outcome(
            exit=self.process.returncode,
            code="STUCK" if stuck else str(error.get("code", "")),
            next_step=str(error.get("next_step", "")),
            log=self._err,
            traceback="Traceback (most recent call last)" in text,
            said=words if error else "\n".join(text.splitlines()[-5:]),
        )

    def _ends_within(self, seconds: float) -> bool:
        """Wait for the end, as long as the process goes on to report events."""
        deadline, said, last = time.monotonic() + seconds, -1, time.monotonic()
        while True:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(1.0)
                return True
            # a run says that it is there, also while its batch hangs
            now, events = time.monotonic(), sum(e.get("event") != "beat" for e in self.events())
            if events != said:
                said, last = events, now
            if now > deadline or now - last > _SILENCE:
                return False

    def sweep(self) -> None:
        """End what is left of its session: a JVM and its workers, which end by themselves later."""
        if isinstance(self.process, ForkedProcess):
            # its JVM is that of all
            return
        for process in psutil.process_iter():
            if _session(process.pid) == self.pid:
                with suppress(psutil.NoSuchProcess):
                    process.kill()


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return -1


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
