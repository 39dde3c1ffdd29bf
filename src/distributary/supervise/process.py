"""One process at a time: the supervisor reads its pipes and notices its end."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import psutil

from distributary.errors import DistributaryError
from distributary.observe.events import CatalogUpdated, Event, Failed, TableParked, encode
from distributary.observe.log_format import LogLine, read_json

# How events get from the process of a pipeline to its supervisor, on the pipeline's side. A thread
# of its own writes: a supervisor that is slow or paused never delays a batch.

VARIABLE = "DISTRIBUTARY_EVENTS_FD"
_MOST_WAITING = 10_000
_LAST_WORDS_SECONDS = 5.0

Mask = Callable[[str], str]


class Channel:
    """A listener that writes events into a pipe; when too many are queued, new ones are dropped."""

    def __init__(self, fd: int, *, mask: Mask = str) -> None:
        self._fd, self._mask = fd, mask
        self._waiting: queue.Queue[Event | None] = queue.Queue(_MOST_WAITING)
        self._writer = threading.Thread(target=self._write, name="events", daemon=True)
        self._writer.start()

    @classmethod
    def from_environment(cls, *, mask: Mask) -> Channel | None:
        """Return the channel to the supervisor of this process, if there is one."""
        # removed from the environment, so that no child process uses it
        number = os.environ.pop(VARIABLE, "")
        if not number:
            return None
        os.set_inheritable(int(number), False)
        return cls(int(number), mask=mask)

    def __call__(self, event: Event) -> None:
        """Send one event, without secrets; returns at once."""
        with suppress(queue.Full):
            self._waiting.put_nowait(event)

    def close(self) -> None:
        """Send the queued events, as far as the supervisor still reads."""
        with suppress(queue.Full):
            self._waiting.put(None, timeout=_LAST_WORDS_SECONDS)
        self._writer.join(_LAST_WORDS_SECONDS)

    def _write(self) -> None:
        with suppress(OSError), os.fdopen(self._fd, "wb", buffering=0) as pipe:
            while (event := self._waiting.get()) is not None:
                left = memoryview(f"{encode(masked(event, self._mask))}\n".encode())
                while left:
                    left = left[pipe.write(left) or 0 :]


def masked(event: Event, mask: Mask) -> Event:
    """Return the event without secrets, which can only be in texts of other programs."""
    if isinstance(event, Failed):
        return replace(event, error=_masked(event.error, mask))
    if isinstance(event, TableParked | CatalogUpdated):
        return replace(event, error=mask(event.error))
    return event


def _masked(error: DistributaryError, mask: Mask) -> DistributaryError:
    kind, arguments = type(error), error.as_dict()
    texts = {key: mask(arguments[key]) for key in ("where", "evidence", "next_step")}
    hidden = DistributaryError.__new__(kind)
    DistributaryError.__init__(hidden, mask(error.what), code=error.code, **texts)
    hidden.context = {key: mask(value) for key, value in error.context.items()}
    hidden.retryable, hidden.exit_code = error.retryable, error.exit_code
    return hidden


# Every process ends with its supervisor, so that no orphan is left. The supervisor holds the other
# end of a pipe and never writes to it. When the pipe ends, the supervisor is gone, also if it was
# killed. The process then stops as on SIGTERM, and is killed with all of its children if that takes
# too long.

TETHER_VARIABLE = "DISTRIBUTARY_TETHER"


def hold_tether() -> None:
    """Watch the pipe that the environment names, if it names one."""
    # removed from the environment: it is not meant for child processes
    fd, _, grace = os.environ.pop(TETHER_VARIABLE, "").partition(":")
    if not fd:
        return
    os.set_inheritable(int(fd), False)
    watch = threading.Thread(
        target=_watch, args=(int(fd), float(grace)), name="tether", daemon=True
    )
    watch.start()


def _watch(fd: int, grace: float) -> None:
    while os.read(fd, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace)
    # the leader of a session of its own takes its group with it; Spark's JVM has a watchdog
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def start_tied(
    command: Sequence[str],
    *,
    grace: float,
    environ: Mapping[str, str] = os.environ,
    pass_fds: Sequence[int] = (),
    **options: Any,
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a process of this package that ends with this one, however this one ends.

    Returns it with the end of the pipe, which is open as long as the process may run. It then has
    `grace` seconds to end. Raises OSError.
    """
    tether_in, tether_out = os.pipe()
    try:
        process = subprocess.Popen(  # noqa: S603 - a command of this package
            command,
            env={**environ, TETHER_VARIABLE: f"{tether_in}:{grace}"},
            pass_fds=(*pass_fds, tether_in),
            **options,
        )
    except OSError:
        os.close(tether_out)
        raise
    finally:
        os.close(tether_in)
    return process, tether_out


# A process that the supervisor has started: its session, its pipes, its end.

EVENTS, PRINTED, STDERR = "events", "printed", "stderr"
_CHUNK = 1 << 16
_LONGEST_LINE = 16 << 20
"""An event about a batch of ten thousand tables has two MiB."""


@dataclass(slots=True)
class Stream:
    """The end of a pipe that the supervisor reads."""

    fd: int
    name: str
    longest: int = _LONGEST_LINE
    _begun: bytearray = field(default_factory=bytearray)
    _skipping: bool = False

    def read(self) -> list[str] | None:
        """Return the complete lines that are available now; None at the end of the pipe."""
        try:
            chunk = os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return []
        return self._lines(chunk) if chunk else None

    def rest(self) -> list[str]:
        """Return all remaining lines, including a last one without a line break."""
        lines: list[str] = []
        with suppress(BlockingIOError):
            while chunk := os.read(self.fd, _CHUNK):
                lines += self._lines(chunk)
        left, self._begun = self._begun, bytearray()
        return [*lines, left.decode("utf-8", "replace")] if left else lines

    def _lines(self, chunk: bytes) -> list[str]:
        lines: list[str] = []
        *whole, last = chunk.split(b"\n")
        for part in whole:
            if not self._skipping:
                lines.append((bytes(self._begun) + part).decode("utf-8", "replace"))
            self._begun.clear()
            self._skipping = False
        # a line without an end would take all memory
        if not self._skipping:
            self._begun += last
        if len(self._begun) > self.longest:
            self._begun.clear()
            self._skipping = True
        return lines


class Child:
    """A process in a session of its own, by which the supervisor finds it and its children."""

    def __init__(self, process: subprocess.Popen[bytes], streams: list[Stream], tether: int):
        self._process, self._tether = process, tether
        self.streams = streams

    @classmethod
    def start(
        cls, command: Sequence[str], *, grace: float, environ: Mapping[str, str] = os.environ
    ) -> Child:
        """Start the process.

        Raises OSError. If the supervisor ends, the process has `grace` seconds to end.
        """
        events_in, events_out = os.pipe()
        try:
            process, tether = start_tied(
                command,
                grace=grace,
                environ={**environ, VARIABLE: str(events_out)},
                pass_fds=(events_out,),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # Ctrl-C in the terminal is for the supervisor, which passes it on
                start_new_session=True,
            )
        except OSError:
            os.close(events_in)
            raise
        finally:
            os.close(events_out)
        if process.stdout is None or process.stderr is None:
            raise OSError("no pipes")
        streams = [
            Stream(events_in, EVENTS),
            Stream(process.stdout.fileno(), PRINTED),
            Stream(process.stderr.fileno(), STDERR),
        ]
        for stream in streams:
            os.set_blocking(stream.fd, False)
        return cls(process, streams, tether)

    @property
    def pid(self) -> int:
        """Return the id of the process, which is also the id of its session."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process runs."""
        return self._process.poll()

    def ask(self) -> None:
        """Ask the process to stop.

        Only the process itself, which stops its children in the right order.
        """
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def others(self) -> list[int]:
        """Return the other processes of its session: a JVM, Python workers."""
        return [pid for pid in psutil.pids() if pid != self.pid and _session(pid) == self.pid]

    def kill(self) -> None:
        """Kill the process and all of its children."""
        self._process.kill()
        for pid in self.others():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def forget(self, stream: Stream) -> None:
        """Close a pipe that has ended."""
        self.streams.remove(stream)
        files = {PRINTED: self._process.stdout, STDERR: self._process.stderr}
        if (file := files.get(stream.name)) is not None:
            file.close()
        else:
            os.close(stream.fd)

    def close(self) -> None:
        """Close the pipes and files that this process holds for the child."""
        for stream in tuple(self.streams):
            self.forget(stream)
        os.close(self._tether)


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


_MOST_PRINTED = 1 << 20
_TIDY_SECONDS = 10.0
"""The time in which children of an ended process end by themselves and remove their files."""

Tell = Callable[[Event | LogLine], None]


class Keeper(ABC):
    """A process that the supervisor's loop drives; its methods never wait.

    Times are seconds of a monotonic clock.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        grace: float,
        tell: Tell,
        mask: Callable[[str], str] = str,
    ) -> None:
        self.name, self._command, self._grace = name, command, grace
        self._tell, self._mask = tell, mask
        self.stopping = False
        self._child: Child | None = None
        self._began = 0.0
        self._kill_at: float | None = None
        self._tidy_by: float | None = None
        self._printed: list[str] = []
        self._room = 0
        self._last_line = ""

    @property
    def streams(self) -> list[Stream]:
        """Return the pipes to read."""
        return [] if self._child is None else list(self._child.streams)

    @property
    def pid(self) -> int | None:
        """Return the id of the process, if one runs."""
        return None if self._child is None else self._child.pid

    def take(self, stream: Stream) -> None:
        """Read a pipe that has data."""
        lines = stream.read()
        if lines is None:
            lines = stream.rest()
            if self._child is not None:
                self._child.forget(stream)
        for line in lines:
            self._hear(stream.name, line)

    def tick(self, now: float) -> None:
        """Do whatever is due: start, kill or finish the process."""
        if self._child is None:
            if not self.stopping:
                self._due(now)
            return
        if self._kill_at is not None and now >= self._kill_at:
            self.kill()
        child, code = self._child, self._child.exit_code()
        if code is None or not self._is_gone(child, now):
            return
        for stream in child.streams:
            for line in stream.rest():
                self._hear(stream.name, line)
        child.close()
        self._child = None
        self._ended(code, now)

    def stop(self, now: float) -> None:
        """Ask the process to end, and start no other."""
        self.stopping = True
        self._kill_at = now + self._grace
        if self._child is not None:
            self._child.ask()

    def kill(self) -> None:
        """Kill the process now; this is harmless, because interrupted work is resumed later."""
        self.stopping = True
        self._tidy_by = float("-inf")
        if self._child is not None:
            self._child.kill()

    def _start(self, now: float) -> None:
        """Start the process; raises OSError."""
        self._printed, self._room, self._last_line = [], _MOST_PRINTED, ""
        self._kill_at = self._tidy_by = None
        self._began = now
        self._child = Child.start(self._command, grace=self._grace)

    def _is_gone(self, child: Child, now: float) -> bool:
        """Return whether no process of the child's session is left."""
        if not child.others():
            return True
        if self._tidy_by is None:
            self._tidy_by = now + _TIDY_SECONDS
        if now < self._tidy_by:
            return False
        child.kill()
        return True

    def _hear(self, name: str, line: str) -> None:
        if name == EVENTS:
            self._happened(line)
        elif name == PRINTED:
            self._room -= len(line) + 1
            if self._room >= 0:
                self._printed.append(line)
        elif name == STDERR and line.strip():
            # lines of our own log, or output of other programs
            known = read_json(line)
            if known is None:
                # output of other programs has not been searched for secrets yet
                self._last_line = self._mask(line.strip())
                known = LogLine(message=self._last_line, event="output", level="WARNING")
            self._tell(replace(known, pipeline=self.name))

    @abstractmethod
    def _happened(self, line: str) -> None:
        """Handle a line with an event."""

    @abstractmethod
    def _due(self, now: float) -> None:
        """Start a process if it is time; none runs."""

    @abstractmethod
    def _ended(self, code: int, now: float) -> None:
        """Handle the end of the process; all of its output has been read."""
