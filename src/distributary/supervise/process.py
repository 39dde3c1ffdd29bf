"""Keeps one process at a time: reads its pipes, notices its end, leaves nothing of it behind."""

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

import psutil

from distributary.errors import DistributaryError
from distributary.observe.events import CatalogUpdated, Event, Failed, TableParked, encode
from distributary.observe.log_format import LogLine, read_json

# The way of events from the process of a pipeline to its supervisor, on the pipeline's side.
#
# A thread of its own writes: a supervisor that is slow or paused never holds up a batch.

VARIABLE = "DISTRIBUTARY_EVENTS_FD"
_MOST_WAITING = 10_000
_LAST_WORDS_SECONDS = 5.0

Mask = Callable[[str], str]


class Channel:
    """A listener that sends events down a pipe; when too many wait, new ones are dropped."""

    def __init__(self, fd: int, *, mask: Mask = str) -> None:
        self._fd, self._mask = fd, mask
        self._waiting: queue.Queue[Event | None] = queue.Queue(_MOST_WAITING)
        self._writer = threading.Thread(target=self._write, name="events", daemon=True)
        self._writer.start()

    @classmethod
    def from_environment(cls, *, mask: Mask) -> Channel | None:
        """The channel to the supervisor of this process, if it has one."""
        # taken out, so that no process that this one starts believes it is its own
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
        """Send what waits, as far as anybody reads it."""
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
    """The event without secrets: they could only be in what other programs said."""
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


# A process that ends with its supervisor, however that ends: no orphan is left.
#
# The supervisor holds the other end of a pipe and never writes to it. When the pipe ends, the
# supervisor is gone, also when it was killed: the process asks itself to stop as a person would,
# and is killed with all that it started if that takes too long.

TETHER_VARIABLE = "DISTRIBUTARY_TETHER"


def hold_tether() -> None:
    """Watch the pipe that the environment names, if it names one."""
    # taken out: it is not for the processes that this one starts
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


# One process that the supervisor has started: its session, its pipes, its end.

EVENTS, PRINTED, SAID = "events", "printed", "said"
_CHUNK = 1 << 16
_LONGEST_LINE = 16 << 20
"""A batch of ten thousand tables is told in two MiB."""


@dataclass(slots=True)
class Stream:
    """The end of a pipe that is read here."""

    fd: int
    name: str
    longest: int = _LONGEST_LINE
    _begun: bytearray = field(default_factory=bytearray)
    _skipping: bool = False

    def read(self) -> list[str] | None:
        """Whole lines, as far as there are any now; None at the end of the pipe."""
        try:
            chunk = os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return []
        return self._lines(chunk) if chunk else None

    def rest(self) -> list[str]:
        """All that is still there, with what came last and has no end of a line."""
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
        # a line without end would take all memory
        if not self._skipping:
            self._begun += last
        if len(self._begun) > self.longest:
            self._begun.clear()
            self._skipping = True
        return lines


class Child:
    """A process in a session of its own, so that it can be found with all that it starts."""

    def __init__(self, process: subprocess.Popen[bytes], streams: list[Stream], tether: int):
        self._process, self._tether = process, tether
        self.streams = streams

    @classmethod
    def start(
        cls, command: Sequence[str], *, grace: float, environ: Mapping[str, str] = os.environ
    ) -> Child:
        """Start it; raises OSError. When the supervisor is gone, it has `grace` seconds to end."""
        events_in, events_out = os.pipe()
        tether_in, tether_out = os.pipe()
        variables = {TETHER_VARIABLE: f"{tether_in}:{grace}", VARIABLE: str(events_out)}
        try:
            process = subprocess.Popen(  # noqa: S603 - a command of this package
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**environ, **variables},
                pass_fds=(events_out, tether_in),
                # Ctrl-C in the terminal is for the supervisor, which passes it on
                start_new_session=True,
            )
        except OSError:
            os.close(events_in)
            os.close(tether_out)
            raise
        finally:
            os.close(events_out)
            os.close(tether_in)
        if process.stdout is None or process.stderr is None:
            raise OSError("no pipes")
        streams = [
            Stream(events_in, EVENTS),
            Stream(process.stdout.fileno(), PRINTED),
            Stream(process.stderr.fileno(), SAID),
        ]
        for stream in streams:
            os.set_blocking(stream.fd, False)
        return cls(process, streams, tether_out)

    @property
    def pid(self) -> int:
        """Its number, which is also that of its session."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """How it ended, negative for a signal; None while it runs."""
        return self._process.poll()

    def ask(self) -> None:
        """Ask it to stop; only the process itself, which knows in which order."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def others(self) -> list[int]:
        """Processes of its session besides itself: a JVM, Python workers."""
        return [pid for pid in psutil.pids() if pid != self.pid and _session(pid) == self.pid]

    def kill(self) -> None:
        """End it and all that it started."""
        self._process.kill()
        for pid in self.others():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def forget(self, stream: Stream) -> None:
        """A pipe has ended."""
        self.streams.remove(stream)
        files = {PRINTED: self._process.stdout, SAID: self._process.stderr}
        if (file := files.get(stream.name)) is not None:
            file.close()
        else:
            os.close(stream.fd)

    def close(self) -> None:
        """Give back what this process holds for it."""
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
"""What a process leaves running ends by itself, and removes its temporary files meanwhile."""

Tell = Callable[[Event | LogLine], None]


class Keeper(ABC):
    """What the supervisor's loop drives; nothing here waits.

    Times are seconds of a clock that only goes forward.
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
        self._said = ""

    @property
    def streams(self) -> list[Stream]:
        """The pipes to read."""
        return [] if self._child is None else list(self._child.streams)

    @property
    def pid(self) -> int | None:
        """The number of the process, while there is one."""
        return None if self._child is None else self._child.pid

    def take(self, stream: Stream) -> None:
        """Read a pipe that has something."""
        lines = stream.read()
        if lines is None:
            lines = stream.rest()
            if self._child is not None:
                self._child.forget(stream)
        for line in lines:
            self._hear(stream.name, line)

    def tick(self, now: float) -> None:
        """Whatever is due."""
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
        """End the process now; harmless, for whatever is half done is taken up again."""
        self.stopping = True
        self._tidy_by = float("-inf")
        if self._child is not None:
            self._child.kill()

    def _start(self, now: float) -> None:
        """Start the process; raises OSError."""
        self._printed, self._room, self._said = [], _MOST_PRINTED, ""
        self._kill_at = self._tidy_by = None
        self._began = now
        self._child = Child.start(self._command, grace=self._grace)

    def _is_gone(self, child: Child, now: float) -> bool:
        """Whether nothing of its session is left."""
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
        elif name == SAID and line.strip():
            # lines of our own log, or whatever else there is
            known = read_json(line)
            if known is None:
                # nobody has looked for secrets in what other programs say
                self._said = self._mask(line.strip())
                known = LogLine(message=self._said, event="output", level="WARNING")
            self._tell(replace(known, pipeline=self.name))

    @abstractmethod
    def _happened(self, line: str) -> None:
        """A line of events."""

    @abstractmethod
    def _due(self, now: float) -> None:
        """There is no process: start one if it is time."""

    @abstractmethod
    def _ended(self, code: int, now: float) -> None:
        """The process has ended, and everything that it said was heard."""
