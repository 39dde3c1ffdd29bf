"""Lineage of one run: gathered by the run, told by a thread of its own.

The run only adds to what is known, which takes no longer when nobody takes the events: there is no
queue that could grow, only one state for each table. What could not be told is told with the next
event. A server that hangs or fails costs a batch nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from distributary.model.table import TablePlan
from distributary.observe.events import BatchSettled, TableWritten
from distributary.observe.lineage_columns import Fields, fields_by_topic
from distributary.observe.lineage_events import (
    Progress,
    RunFacts,
    Told,
    output,
    run_event,
)
from distributary.observe.lineage_names import Dataset
from distributary.observe.lineage_sinks import Sink

_OUTPUTS_PER_EVENT = 100
_PATIENCE_SECONDS = 30.0
"""How long a server is left alone that has just failed."""
_log = logging.getLogger(__name__)

Shape = tuple[TablePlan, Fields]
"""A table, and the fields that its columns hold."""


@dataclass(frozen=True, slots=True)
class _News:
    """What is to be told now."""

    inputs: Mapping[str, Dataset]
    progress: Progress
    whole: tuple[Told, ...]
    """Tables whose columns are new."""
    counts: tuple[Told, ...]
    """Tables of which only numbers are."""
    all: tuple[Told, ...]
    end: tuple[str, str] | None
    """The state in which the run has ended, and why."""


class LineageRun:
    """Tells one sink about one run."""

    def __init__(self, facts: RunFacts, sink: Sink, *, every: float) -> None:
        self.lost = 0
        """Events that could not be delivered."""
        self._facts, self._sink, self._every = facts, sink, every
        self._inputs: dict[str, Dataset] = {}
        self._told: dict[str, Told] = {}
        self._whole: set[str] = set()
        self._counts: set[str] = set()
        self._progress = Progress()
        self._end: tuple[str, str] | None = None
        self._started = False
        self._due = self._quiet_until = time.monotonic()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="lineage", daemon=True)

    def start(self, inputs: Mapping[str, Dataset]) -> None:
        """The run begins."""
        self._inputs.update(inputs)
        self._thread.start()

    def settled(
        self,
        event: BatchSettled,
        inputs: Mapping[str, Dataset],
        tables: Iterable[tuple[TableWritten, Shape]],
    ) -> None:
        """A batch is done; quick, whatever becomes of the events."""
        with self._changed:
            self._inputs.update(inputs)
            self._progress = Progress(
                counts=self._progress.counts + event.counts,
                batches=self._progress.batches + 1,
                last_batch=event.batch,
                bytes_read=self._progress.bytes_read + (event.bytes_read or 0),
            )
            for written, shape in tables:
                self._add(written, shape)
            self._changed.notify()

    def end(self, state: str, error: str = "", *, patience: float) -> None:
        """The run is over: COMPLETE, FAIL or ABORT. Waits for the last events, but not long."""
        with self._changed:
            self._end = (state, error)
            self._changed.notify()
        self._thread.join(patience)
        if self.lost:
            _log.warning("%d lineage events could not be delivered", self.lost)

    def _add(self, written: TableWritten, shape: Shape) -> None:
        name = written.table
        table, origins = shape
        known = self._told.get(name)
        if known is None or (known.table.columns, known.origins) != (table.columns, origins):
            self._whole.add(name)
        before = known or Told(table, origins)
        self._told[name] = Told(
            table,
            origins,
            rows=before.rows + written.rows,
            bytes=before.bytes + written.bytes,
            files=before.files + written.files,
            version=before.version if written.version is None else written.version,
            # it is told once that a table was made
            created=written.created or (before.created and name in self._whole),
        )
        self._counts.add(name)

    def _work(self) -> None:
        while True:
            with self._changed:
                while (wait := self._seconds_to_wait()) > 0:
                    self._changed.wait(wait)
                news = self._take()
            try:
                delivered = self._tell(news)
            except Exception:
                # a table that cannot be described must not end the others' story
                _log.warning("a lineage event could not be made", exc_info=True)
                delivered = news.end is None or self._send(news.end[0], news, error=news.end[1])
            with self._changed:
                self._due = time.monotonic() + self._every
                if not delivered:
                    self._whole |= {told.table.name for told in news.whole}
                    self._counts |= {told.table.name for told in news.counts}
                    self._quiet_until = time.monotonic() + _PATIENCE_SECONDS
            if news.end is not None:
                return

    def _seconds_to_wait(self) -> float:
        now = time.monotonic()
        if self._end is not None:
            return 0.0
        if self._started and not self._whole and not self._counts:
            return _PATIENCE_SECONDS
        due = self._due if self._started and not self._whole else now
        return max(due, self._quiet_until) - now

    def _take(self) -> _News:
        whole, self._whole = self._whole, set()
        counts, self._counts = self._counts - whole, set()
        return _News(
            inputs=dict(self._inputs),
            progress=self._progress,
            whole=tuple(self._told[name] for name in sorted(whole)),
            counts=tuple(self._told[name] for name in sorted(counts)),
            all=tuple(self._told.values()) if whole else (),
            end=self._end,
        )

    def _tell(self, news: _News) -> bool:
        if not self._started:
            self._started = self._send("START", news)
            if not self._started and news.end is None:
                return False
        parts = [(told, True) for told in news.whole] + [(told, False) for told in news.counts]
        fields = fields_by_topic((told.origins for told in news.all), news.inputs)
        first, last = 0, max(0, len(parts) - 1) // _OUTPUTS_PER_EVENT * _OUTPUTS_PER_EVENT
        for at in range(first, last + 1, _OUTPUTS_PER_EVENT):
            ends = news.end is not None and at == last
            if not parts and not ends:
                break
            delivered = self._send(
                news.end[0] if news.end is not None and ends else "RUNNING",
                news,
                parts[at : at + _OUTPUTS_PER_EVENT],
                fields=fields if at == first else {},
                error=news.end[1] if news.end is not None and ends else "",
            )
            if not delivered and news.end is None:
                return False
        return True

    def _send(
        self,
        state: str,
        news: _News,
        parts: Iterable[tuple[Told, bool]] = (),
        *,
        fields: Mapping[str, tuple[str, ...]] | None = None,
        error: str = "",
    ) -> bool:
        facts = self._facts
        event = run_event(
            facts,
            state,
            progress=news.progress,
            inputs=news.inputs,
            outputs=[output(told, news.inputs, facts.clean, whole=whole) for told, whole in parts],
            fields=fields,
            error=error,
        )
        try:
            self._sink(event)
        except OSError as failure:
            self.lost += 1
            if self.lost == 1:
                _log.warning("lineage cannot be delivered, the run goes on: %s", failure)
            return False
        return True
