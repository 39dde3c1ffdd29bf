"""The loop of `up`: reads pipes, starts what is due, passes signals on, ends when all have."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from distributary.supervise.member import Member
from distributary.supervise.schedule import Schedule
from distributary.supervise.status import PipelineStatus, State

_TICK_SECONDS = 0.1
_LIVE_SECONDS = 10.0
_USAGE = 2


@dataclass(slots=True)
class Supervisor:
    """Runs pipelines until each is done, has failed for good, or all are stopped."""

    members: Sequence[Member]
    schedules: Sequence[Schedule] = ()
    """What runs beside them, as long as one of them runs."""
    on_stop: Callable[[], None] = lambda: None
    """Told when a stop was asked for."""
    stopped_by: int | None = None
    """The signal that asked for it."""
    _beat: float = field(default_factory=time.monotonic)
    _asked: list[int] = field(default_factory=list)

    @property
    def statuses(self) -> list[PipelineStatus]:
        """What is known of each pipeline now; for any thread."""
        return [member.status for member in self.members]

    @property
    def is_live(self) -> bool:
        """Whether the loop goes round."""
        return time.monotonic() - self._beat < _LIVE_SECONDS

    @property
    def exit_code(self) -> int:
        """0; 1 if a pipeline failed for good or a table still waits; 2 if none could be started."""
        if self.stopped_by is not None:
            return 128 + self.stopped_by
        failed = [m.status for m in self.members if m.status.state is State.FAILED]
        exits = {each.error.exit_code for each in failed if each.error is not None}
        if len(failed) == len(self.members) and exits == {_USAGE}:
            return _USAGE
        return int(bool(failed) or any(member.parked for member in self.members))

    def ask(self, number: int = signal.SIGTERM) -> None:
        """Ask for a stop, as a signal does; a second time, for the end. From any thread."""
        self._asked.append(number)

    def run(self) -> None:
        """Until all have ended; whatever happens, no process is left."""
        try:
            with self._listening() as woken:
                while not self._is_over():
                    self._beat = now = time.monotonic()
                    self._obey(now)
                    for keeper in (*self.members, *self.schedules):
                        keeper.tick(now)
                    self._read(woken)
        finally:
            self._leave_nobody()

    def _is_over(self) -> bool:
        if not all(member.ended for member in self.members):
            return False
        for schedule in self.schedules:
            if not schedule.stopping:
                schedule.stop(time.monotonic())
        return all(schedule.ended for schedule in self.schedules)

    def _obey(self, now: float) -> None:
        """The first signal asks, the second one ends."""
        while self._asked:
            number = self._asked.pop(0)
            if self.stopped_by is None:
                self.stopped_by = number
                for keeper in (*self.members, *self.schedules):
                    keeper.stop(now)
                self.on_stop()
            else:
                for keeper in (*self.members, *self.schedules):
                    keeper.kill()

    def _read(self, woken: int) -> None:
        """Wait for a pipe, a signal, or the next tick."""
        pipes = {
            stream.fd: (keeper, stream)
            for keeper in (*self.members, *self.schedules)
            for stream in keeper.streams
        }
        poll = select.poll()
        for fd in (*pipes, woken):
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(_TICK_SECONDS * 1000):
            if fd == woken:
                os.read(woken, 64)
            else:
                keeper, stream = pipes[fd]
                keeper.take(stream)

    def _leave_nobody(self) -> None:
        """After an error of the supervisor itself; else there is nobody left."""
        keepers = [k for k in (*self.members, *self.schedules) if k.pid is not None]
        for keeper in keepers:
            keeper.kill()
        while any(keeper.pid is not None for keeper in keepers):
            for keeper in keepers:
                keeper.tick(time.monotonic())
            time.sleep(0.01)

    @contextmanager
    def _listening(self) -> Iterator[int]:
        """Signals are noted here and obeyed by the loop, which they wake."""

        def note(number: int, frame: FrameType | None) -> None:
            self.ask(number)

        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        before_wake = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        before = {n: signal.signal(n, note) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield woken
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(before_wake)
            os.close(wake)
            os.close(woken)
