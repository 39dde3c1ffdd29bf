"""The loop of `up`: reads pipes, starts due processes, passes on signals, until all have ended."""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Self

from distributary.config.load import Loaded, load
from distributary.config.pipeline_config import PipelineConfig
from distributary.errors import ConfigError, DistributaryError, ErrorCode
from distributary.model import layout
from distributary.model.names import printable
from distributary.observe.alerts.watch import attach_alerts
from distributary.observe.events import Event, EventBus, TaskFailed
from distributary.observe.ledger.ledger import Ledger
from distributary.observe.log_format import LogLine
from distributary.observe.metrics import Metrics
from distributary.store.base import introduce
from distributary.supervise.member import (
    EndKind,
    Member,
    MemberState,
    MemberStatus,
    Spec,
    chance,
    judge,
)
from distributary.supervise.process import Keeper, Tell

# A command that runs repeatedly beside a pipeline, such as maintenance, but never twice at once.

_JITTER = 0.1
"""The share of the interval by which a start may be late, so that pipelines do not all start at
once.
"""
_MOST = 2_000


class Schedule(Keeper):
    """A command that runs at an interval, counted from start to start.

    If a run takes longer than the interval, the next one follows at once, and missed runs are not
    repeated. The output goes to the log. A failure is sent as an event, and the next run still
    takes place.
    """

    def __init__(
        self,
        task: str,
        command: Sequence[str],
        *,
        pipeline: str,
        every: timedelta,
        grace: float,
        tell: Tell,
        mask: Callable[[str], str] = str,
        describe: Callable[[str], str] = str,
    ) -> None:
        """Create the schedule; `describe` summarises the command's output in a line."""
        super().__init__(pipeline, command, grace=grace, tell=tell, mask=mask)
        self._describe = describe
        self._task, self._every, self._chance = task, every.total_seconds(), chance
        self._next: float | None = None
        self.runs = 0
        """The number of finished runs."""

    @property
    def ended(self) -> bool:
        """Return whether the schedule was stopped and its process has ended."""
        return self.stopping and self.pid is None

    def _due(self, now: float) -> None:
        if self._next is None:
            # the first run waits, too, because a starting pipeline has enough to do
            self._next = self._after(now)
        if now < self._next:
            return
        self._next = self._after(now)
        try:
            self._start(now)
        except OSError as error:
            self._report(DistributaryError(f"{self._task} was not started", evidence=str(error)))

    def _after(self, now: float) -> float:
        return now + self._every * (1 + _JITTER * self._chance())

    def _happened(self, line: str) -> None:
        """Ignore the line: only `run` sends events."""

    def _ended(self, code: int, now: float) -> None:
        self.runs += 1
        printed = self._mask("\n".join(self._printed).strip())
        if printed:
            message = self._describe(printed)[:_MOST]
            line = LogLine(message=message, event=self._task, pipeline=self.name)
            self._tell(line)
        verdict = judge(code, printed, last_error=None, last_line=self._last_line)
        if verdict.kind is EndKind.DONE or self.stopping or verdict.error is None:
            return
        # another process already does the same work
        if verdict.error.code is not ErrorCode.CHECKPOINT_OWNED:
            self._report(verdict.error)

    def _report(self, error: DistributaryError) -> None:
        self._tell(TaskFailed(pipeline=self.name, task=self._task, error=error))


_TICK_SECONDS = 0.1
_LIVE_SECONDS = 10.0
_USAGE = 2


@dataclass(slots=True)
class Supervisor:
    """Runs pipelines until each is done or has failed for good, or all are stopped."""

    members: Sequence[Member]
    schedules: Sequence[Schedule] = ()
    """Commands that run beside the pipelines, as long as one of them runs."""
    on_stop: Callable[[], None] = lambda: None
    """Called when a stop was requested."""
    stopped_by: int | None = None
    """The signal that requested the stop."""
    _beat: float = field(default_factory=time.monotonic)
    _requests: list[int] = field(default_factory=list)

    @property
    def _keepers(self) -> tuple[Keeper, ...]:
        return (*self.members, *self.schedules)

    @property
    def statuses(self) -> list[MemberStatus]:
        """Return the status of each pipeline; any thread may call this."""
        return [member.status for member in self.members]

    @property
    def is_live(self) -> bool:
        """Return whether the loop is running."""
        return time.monotonic() - self._beat < _LIVE_SECONDS

    @property
    def exit_code(self) -> int:
        """Return 0; 1 if a pipeline failed for good or a table is still parked.

        2 if none could start.
        """
        if self.stopped_by is not None:
            return 128 + self.stopped_by
        failed = [m.status for m in self.members if m.status.state is MemberState.FAILED]
        exits = {status.error.exit_code for status in failed if status.error is not None}
        if len(failed) == len(self.members) and exits == {_USAGE}:
            return _USAGE
        return int(bool(failed) or any(member.parked for member in self.members))

    def ask(self, number: int = signal.SIGTERM) -> None:
        """Request a stop, as a signal does; the second request kills. Any thread may call this."""
        self._requests.append(number)

    def run(self) -> None:
        """Run until all pipelines have ended; no process is left behind, whatever happens."""
        try:
            with self._listening() as woken:
                while not self._is_over():
                    self._beat = now = time.monotonic()
                    self._obey(now)
                    for keeper in self._keepers:
                        keeper.tick(now)
                    self._read(woken)
        finally:
            self._kill_all()

    def run_beside(self, ended: threading.Event) -> None:
        """Run the schedules in a thread until `ended` is set, without handling signals."""
        try:
            while not ended.is_set() or not self._is_over():
                for schedule in self.schedules:
                    schedule.tick(time.monotonic())
                self._read(None)
        finally:
            self._kill_all()

    def _is_over(self) -> bool:
        if not all(member.ended for member in self.members):
            return False
        for schedule in self.schedules:
            if not schedule.stopping:
                schedule.stop(time.monotonic())
        return all(schedule.ended for schedule in self.schedules)

    def _obey(self, now: float) -> None:
        """Handle signals: the first one stops the processes, the second one kills them."""
        while self._requests:
            number = self._requests.pop(0)
            if self.stopped_by is None:
                self.stopped_by = number
                for keeper in self._keepers:
                    keeper.stop(now)
                self.on_stop()
            else:
                for keeper in self._keepers:
                    keeper.kill()

    def _read(self, woken: int | None) -> None:
        """Wait for a pipe, a signal, or the next tick."""
        pipes = {s.fd: (keeper, s) for keeper in self._keepers for s in keeper.streams}
        poll = select.poll()
        for fd in (*pipes, *(() if woken is None else (woken,))):
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(_TICK_SECONDS * 1000):
            if fd == woken:
                os.read(fd, 64)
            else:
                keeper, stream = pipes[fd]
                keeper.take(stream)

    def _kill_all(self) -> None:
        """Kill all remaining processes after an error of the supervisor itself."""
        keepers = [k for k in self._keepers if k.pid is not None]
        for keeper in keepers:
            keeper.kill()
        while any(keeper.pid is not None for keeper in keepers):
            for keeper in keepers:
                keeper.tick(time.monotonic())
            time.sleep(0.01)

    @contextmanager
    def _listening(self) -> Iterator[int]:
        """Record signals for the loop and wake it up."""

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


# From files to pipelines that can run side by side; each file is checked separately.

Command = Callable[[Path], Sequence[str]]


@dataclass(frozen=True, slots=True)
class SupervisedPipelines:
    """The pipelines to run, with the settings of those whose file is valid."""

    specs: tuple[Spec, ...]
    loaded: tuple[Loaded, ...] = field(repr=False)

    def mask(self, text: str) -> str:
        """Return a text without the secrets of any pipeline."""
        for pipeline in self.loaded:
            text = pipeline.mask(text)
        return text


@contextmanager
def beside(schedule: Schedule) -> Iterator[None]:
    """Run a schedule in a thread of this process while the context lasts."""
    ended = threading.Event()
    supervisor = Supervisor([], schedules=[schedule])
    thread = threading.Thread(
        target=supervisor.run_beside, args=(ended,), name="upkeep", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def own_command(*words: str) -> tuple[str, ...]:
    """Return the command line of a command of this program."""
    # -P: Python must not import from the working folder
    return (sys.executable, "-P", "-m", "distributary", *words)


def run_command(*options: str) -> Command:
    """Return a function that builds the command line of a pipeline's process.

    Its output is machine-readable.
    """
    machine_options = ("--json", "--log-format", "json")
    return lambda file: own_command("run", *machine_options, *options, "--", str(file))


def plan_of(files: Sequence[Path], command: Command) -> SupervisedPipelines:
    """Return one pipeline for each file; a mistake in one file does not affect the others."""
    seen: dict[str, Path] = {}
    specs: list[Spec] = []
    loaded: list[Loaded] = []
    for file in files:
        try:
            pipeline = load(file)
            name = pipeline.config.name
            if name in seen:
                # a name identifies one checkpoint in a lake, and one pipeline in logs
                raise ConfigError(
                    f"two files have a pipeline named {name}",
                    where=printable(str(file)),
                    evidence=f"the other one is {printable(str(seen[name]))}",
                    next_step="give each pipeline a name of its own, and each file once",
                )
        except DistributaryError as error:
            # its own name is unknown or taken
            free = f"{printable(file.name)}#{len(specs) + 1}"
            specs.append(Spec(free, str(file), (), refused=error))
            continue
        seen[name] = file
        loaded.append(pipeline)
        specs.append(Spec(name, str(file), command(file), pipeline.config.restart, pipeline.mask))
    return SupervisedPipelines(tuple(specs), tuple(loaded))


# The listeners that the files of pipelines configure, attached to a bus in one place. `up` attaches
# them once, to the bus with the events of all its pipelines; `run` attaches them to its own bus.
# The process of a pipeline under `up` attaches none: it only sends events.

_log = logging.getLogger(__name__)

Render = Callable[[str], tuple[str, bytes]]
"""Renders `/metrics` for an `Accept` header: the content type and the numbers."""


@contextmanager
def alerting(configs: Sequence[PipelineConfig], bus: EventBus) -> Iterator[None]:
    """Send alerts while the context lasts; the open ones are stored in the lake."""
    with ExitStack() as stack:
        for config in configs:
            local = config.lake.local_path
            # alerts cannot be stored in an object store, but in the checkpoint's folder
            home = layout.pipeline(str(local), config.name) if local else config.checkpoint_path
            stack.enter_context(attach_alerts(bus, config, state_folder=Path(home)))
        yield


@contextmanager
def counting(configs: Sequence[PipelineConfig], bus: EventBus) -> Iterator[Render]:
    """Count metrics while the context lasts, however often pipelines are restarted."""
    metrics = Metrics()
    for config in configs:
        metrics.limit(config.name, max_tables=config.metrics.max_tables)
        try:
            introduce(config.lake.address, config.lake.options)
            summaries = Ledger(config.lake.address).tables(config.name, schema_ids=False)
            metrics.remember(config.name, summaries)
        except DistributaryError as error:
            # the pipeline itself reports a lake that does not answer
            _log.warning("metrics of %s begin without its ledger: %s", config.name, error.code)
    detach = bus.subscribe(metrics.listen)
    try:
        yield metrics.render
    finally:
        detach()


# Passes the events of pipelines on to listeners, in a thread of its own. A listener that hangs, or
# a terminal that does not scroll, delays only the other listeners: pipes are still read. When too
# many events are queued, the oldest are dropped and counted in the log.

_MOST_WAITING = 20_000
_LAST_WORDS_SECONDS = 5.0


class Relay:
    """A queue of events and log lines from the supervisor's loop to a bus and to the log."""

    def __init__(
        self, bus: EventBus, write: Callable[[LogLine], None], *, most: int = _MOST_WAITING
    ) -> None:
        self._bus, self._write = bus, write
        self._most = most
        self._waiting: deque[Event | LogLine] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._dropped = 0
        self._thread = threading.Thread(target=self._hand_on, name="relay", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(_LAST_WORDS_SECONDS)

    def __call__(self, item: Event | LogLine) -> None:
        """Take an event or a line; returns at once."""
        with self._changed:
            self._waiting.append(item)
            if len(self._waiting) > self._most:
                self._waiting.popleft()
                self._dropped += 1
            self._changed.notify()

    def _hand_on(self) -> None:
        while (item := self._next()) is not None:
            if isinstance(item, LogLine):
                self._write(item)
            else:
                self._bus.publish(item)

    def _next(self) -> Event | LogLine | None:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._waiting) or self._closed)
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                text = f"{dropped:,} events and lines were dropped: a listener is too slow"
                return LogLine(message=text, event="dropped", level="WARNING")
            return self._waiting.popleft() if self._waiting else None
