"""Keeps one process at a time: reads its pipes, notices its end, leaves nothing of it behind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from distributary.observe.events import Event
from distributary.observe.log_format import LogLine, read_json
from distributary.supervise.child import EVENTS, PRINTED, SAID, Child, Stream

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
        code = self._child.exit_code()
        if code is not None and self._is_gone(self._child, now):
            self._bury(self._child, code, now)

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

    def _bury(self, child: Child, code: int, now: float) -> None:
        for stream in child.streams:
            for line in stream.rest():
                self._hear(stream.name, line)
        child.close()
        self._child = None
        self._ended(code, now)

    def _hear(self, name: str, line: str) -> None:
        if name == EVENTS:
            self._happened(line)
        elif name == PRINTED:
            self._room -= len(line) + 1
            if self._room >= 0:
                self._printed.append(line)
        elif name == SAID and line.strip():
            self._relay(line)

    def _relay(self, line: str) -> None:
        """What it says on standard error: lines of our own log, or whatever else there is."""
        known = read_json(line)
        if known is None:
            # nobody has looked for secrets in what other programs say
            self._said = self._mask(line.strip())
            known = LogLine(message=self._said, event="output", level="WARNING")
        self._tell(
            LogLine(
                message=known.message,
                event=known.event,
                level=known.level,
                pipeline=self.name,
                batch=known.batch,
                table=known.table,
                more=known.more,
                at=known.at,
            )
        )

    @abstractmethod
    def _happened(self, line: str) -> None:
        """A line of events."""

    @abstractmethod
    def _due(self, now: float) -> None:
        """There is no process: start one if it is time."""

    @abstractmethod
    def _ended(self, code: int, now: float) -> None:
        """The process has ended, and everything that it said was heard."""
