"""One process that the supervisor has started: its session, its pipes, its end."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import psutil

from distributary.supervise import channel
from distributary.supervise.tether import tether_variable

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
        cls,
        command: Sequence[str],
        *,
        grace: float,
        environ: Mapping[str, str] = os.environ,
    ) -> Child:
        """Start it; raises OSError.

        Args:
            command: the program and its arguments.
            grace: seconds that it gets to end when the supervisor is gone.
            environ: the environment, to which the two pipes are added.
        """
        events_in, events_out = os.pipe()
        tether_in, tether_out = os.pipe()
        variables = tether_variable(tether_in, grace=grace) | {channel.VARIABLE: str(events_out)}
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
        self._close(stream)

    def close(self) -> None:
        """Give back what this process holds for it."""
        for stream in tuple(self.streams):
            self.forget(stream)
        os.close(self._tether)

    def _close(self, stream: Stream) -> None:
        files = {PRINTED: self._process.stdout, SAID: self._process.stderr}
        file = files.get(stream.name)
        if file is None:
            os.close(stream.fd)
        else:
            file.close()


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1
