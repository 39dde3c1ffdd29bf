"""Many pipelines as plain lines: the name of a pipeline, then what happened to it."""

from __future__ import annotations

import functools

from distributary.cli.actions.lines import Lines, Say
from distributary.cli.words import counted
from distributary.observe.events import Event, ProcessStarted, Stopped, TaskFailed


class UpLines:
    """Listens to all of them; one thread at a time."""

    def __init__(self, say: Say, *, step: Say) -> None:
        self._say, self._step = say, step
        self._by_pipeline: dict[str, Lines] = {}

    def __call__(self, event: Event) -> None:
        """One event."""
        say = functools.partial(_named, event.pipeline, self._say)
        match event:
            case ProcessStarted():
                again = f", {counted(event.restarts, 'restart')}" if event.restarts else ""
                say(f"process {event.pid} started{again}")
            case Stopped():
                say(f"{event.reason} after {counted(event.batches, 'batch', 'batches')}")
            case TaskFailed():
                say(f"{event.task} failed: {event.error.code} {event.error.what}")
            case _:
                lines = self._by_pipeline.get(event.pipeline)
                if lines is None:
                    step = functools.partial(_named, event.pipeline, self._step)
                    lines = self._by_pipeline[event.pipeline] = Lines(say, note=say, step=step)
                lines(event)


def _named(pipeline: str, say: Say, text: str) -> None:
    say(f"{pipeline}  {text}")
