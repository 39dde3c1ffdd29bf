"""The thread of alerts: it applies the rules to events, and passes notices to couriers.

The thread of a batch only puts events into a queue. This thread does the rest, including timeouts
and the file of open alerts.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from distributary.config.base import mask as masked
from distributary.config.load import secret_values
from distributary.config.pipeline_config import PipelineConfig
from distributary.errors import DistributaryError, ErrorCode, FencedError, OwnedError
from distributary.observe.alerts.delivery import Courier, Limit, utc_now
from distributary.observe.alerts.rules import HEARD, Rules, Wording
from distributary.observe.alerts.targets import make_targets
from distributary.observe.events import Beat, Event, EventBus, Failed
from distributary.store import disk

# The state of alerts across restarts: one small file, which is replaced atomically.

NAME = "alerts.json"
_FORMAT = 1
_LARGEST = 64 * 1024 * 1024


class AlertMemory:
    """The file of one pipeline. An unusable folder loses the state, but never stops the run."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._written = b""
        self._complained = False

    def read(self) -> Mapping[str, Any]:
        """Return the stored state; empty if there is no valid one."""
        try:
            if self._path.stat().st_size > _LARGEST:
                raise ValueError("too large")
            content = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, RecursionError, ValueError) as error:
            self._complain("cannot be read and is started over", error)
            return {}
        usable = isinstance(content, dict) and content.get("format") == _FORMAT
        return content if usable else {}

    def write(self, content: Mapping[str, Any]) -> None:
        """Store the state, if it has changed."""
        data = json.dumps({"format": _FORMAT, **content}).encode()
        if data == self._written:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            disk.replace(self._path, data)
        except OSError as error:
            self._complain("cannot be written: a restart may repeat alerts", error)
            return
        self._written = data

    def _complain(self, what: str, error: Exception) -> None:
        if not self._complained:
            self._complained = True
            _log.warning("%s %s (%s)", self._path, what, type(error).__name__)


_log = logging.getLogger(__name__)

_MOST_EVENTS = 100_000
_TICK_SECONDS = 1.0
_CLOSE_SECONDS = 5.0


class Watch:
    """The alerts of one pipeline during its run."""

    def __init__(
        self,
        config: PipelineConfig,
        couriers: Sequence[Courier],
        memory: AlertMemory,
        *,
        clock: Callable[[], datetime] = utc_now,
        mask: Callable[[str], str] = str,
        tick_seconds: float = _TICK_SECONDS,
    ) -> None:
        self._name = config.name
        self._couriers = couriers
        self._memory = memory
        self._clock = clock
        self._tick_seconds = tick_seconds
        self._rules = Rules(config, now=clock(), mask=mask)
        self._events: queue.Queue[Event | None] = queue.Queue(_MOST_EVENTS)
        self._thread = threading.Thread(target=self._work, name="alerts", daemon=True)
        self._failed = False
        self._closing = False
        self._remembered: tuple[int, ...] = ()

    def start(self) -> None:
        """Restore the state of the last process, and start the thread."""
        known = self._memory.read()
        self._rules.recall(known)
        targets = known.get("targets")
        for courier in self._couriers:
            kept = targets.get(courier.name) if isinstance(targets, dict) else None
            courier.recall(kept if isinstance(kept, dict) else {})
            courier.start()
        self._thread.start()

    def hear(self, event: Event) -> None:
        """Queue an event of any pipeline; never wait, never raise."""
        if event.pipeline != self._name or not isinstance(event, HEARD):
            return
        if not isinstance(event, Beat):
            # the monitor may send a beat between a failure and the end of the run
            self._failed = isinstance(event, Failed) and event.retry_in is None
        try:
            self._events.put_nowait(event)
        except queue.Full:
            _log.warning("alerts fell behind: an event of %s is left out", self._name)

    def ended_by(self, error: BaseException) -> None:
        """Raise an alert for the error that ended the run, unless there is one already."""
        about_process = isinstance(error, FencedError | OwnedError)
        if self._failed or about_process or not isinstance(error, Exception):
            return
        if not isinstance(error, DistributaryError):
            error = DistributaryError(
                "an unexpected error ended the run",
                code=ErrorCode.INTERNAL,
                evidence=type(error).__name__,
                next_step="run again with --debug to see the traceback",
            )
        self.hear(Failed(pipeline=self._name, error=error))

    def close(self, timeout: float = _CLOSE_SECONDS) -> None:
        """Deliver notices for a limited time; store the rest."""
        until = time.monotonic() + timeout
        self._closing = True
        with suppress(queue.Full):
            self._events.put_nowait(None)
        self._thread.join(max(0.0, until - time.monotonic()))
        for courier in self._couriers:
            courier.finish()
        for courier in self._couriers:
            courier.join(until)
        if not self._thread.is_alive():
            self._remember()

    def _work(self) -> None:
        while not (self._closing and self._events.empty()):
            event = None
            with suppress(queue.Empty):
                event = self._events.get(timeout=self._tick_seconds)
            self._tell(event)

    def _tell(self, event: Event | None) -> None:
        try:
            now = self._clock()
            notices = self._rules.tick(now) if event is None else self._rules.hear(event)
        except Exception:
            # an event that makes the rules fail must not end all alerts
            _log.warning("alerts of %s failed on an event", self._name, exc_info=True)
            return
        for notice in notices:
            for courier in self._couriers:
                courier.offer(notice)
        if not self._events.empty():
            return
        # stored before it is sent: otherwise, after a kill in between, the next process would send
        # it again
        if self._remembered != self._revisions():
            self._remember()
        for courier in self._couriers:
            courier.poke()

    def _revisions(self) -> tuple[int, ...]:
        return (self._rules.revision, *(courier.revision for courier in self._couriers))

    def _remember(self) -> None:
        # read first, so that later changes are stored the next time
        self._remembered = self._revisions()
        content: dict[str, Any] = self._rules.memory()
        content["targets"] = {courier.name: courier.memory() for courier in self._couriers}
        self._memory.write(content)


@contextmanager
def attach_alerts(
    bus: EventBus,
    config: PipelineConfig,
    *,
    state_folder: Path,
    close_seconds: float = _CLOSE_SECONDS,
) -> Iterator[Watch | None]:
    """Send alerts about a pipeline while the context lasts, if there are targets.

    Open alerts are stored in `state_folder`, which belongs to this pipeline only.
    """
    if not config.alerts.to:
        yield None
        return
    alerts, hidden = config.alerts, frozenset(secret_values(config))
    summarise = Wording(config, str).held_back
    couriers = [
        Courier(
            target,
            Limit(alerts.at_most, summarise, one_by_one=target.one_by_one),
            give_up_after=settings.give_up_after,
        )
        for target, settings in zip(make_targets(alerts), alerts.to, strict=True)
    ]
    memory = AlertMemory(state_folder)
    watch = Watch(config, couriers, memory, mask=lambda text: masked(text, hidden))
    watch.start()
    unsubscribe = bus.subscribe(watch.hear)
    try:
        yield watch
    except BaseException as error:
        watch.ended_by(error)
        raise
    finally:
        unsubscribe()
        watch.close(close_seconds)
