"""The `Pipeline` that users import: it runs as `distributary run` does, with maintenance beside."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from queue import SimpleQueue
from typing import TYPE_CHECKING

from distributary.config.file.document import OriginKind
from distributary.config.runtime import Trigger
from distributary.engine import pipeline as engine
from distributary.engine.loop import RunSummary
from distributary.errors import DistributaryError
from distributary.observe.events import BatchSettled, Event
from distributary.observe.log_format import LogFormat, LogLine, spell
from distributary.observe.notebook import html_table
from distributary.supervise.upkeep import maintained
from distributary.threads import begun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OF_A_RUN = ("run.", "spark.", "trigger")
"""Settings that maintenance does not read, so that a call may set them otherwise than the file."""

_log = logging.getLogger(__name__)


class Pipeline(engine.Pipeline):
    """The settings of one pipeline, ready to run; a run that goes on keeps its tables in order."""

    __slots__ = ()

    def run(
        self, *, trigger: Trigger | str | None = None, spark: SparkSession | None = None
    ) -> RunSummary:
        """Run until the trigger says that it is done, or `stop` is set.

        Raises ConfigError for an argument that is wrong.
        """
        chosen = self.chosen_trigger(trigger)
        if not self._is_as_its_file():
            return super().run(trigger=chosen, spark=spark)
        with maintained(self.loaded, chosen, self.bus, _write):
            return super().run(trigger=chosen, spark=spark)

    def batches(
        self, *, trigger: Trigger | str | None = None, spark: SparkSession | None = None
    ) -> Iterator[BatchSettled]:
        """Run, and yield each batch when it is settled.

        Leaving the loop stops the run after the batch under way; the next call goes on behind it.
        Raises the error that ended the run.
        """
        chosen = self.chosen_trigger(trigger)
        events: SimpleQueue[BatchSettled | None] = SimpleQueue()

        def note(event: Event) -> None:
            if isinstance(event, BatchSettled):
                events.put(event)

        detach = self.bus.subscribe(note)
        was_stopped = self.stop.is_set()
        run = begun(lambda: self.run(trigger=chosen, spark=spark), name="run")
        run.add_done_callback(lambda _: events.put(None))
        try:
            while (batch := events.get()) is not None:
                yield batch
            run.result()
        finally:
            # the caller may leave the loop early: the run must end then
            self.stop.set()
            run.exception()
            detach()
            if not was_stopped:
                self.stop.clear()

    def _repr_html_(self) -> str:
        """Return where records come from and go to, and the last batch, for a notebook."""
        config = self.config
        facts = [
            ("source", config.source.type),
            ("tables", config.tables.each or config.tables.bronze or ""),
            ("lake", self.lake),
            ("trigger", str(config.trigger)),
        ]
        if (last := self._last_batch()) is not None:
            facts.append(("last batch", last))
        return html_table(f"pipeline {config.name}", (), facts)

    def _last_batch(self) -> str | None:
        """Return the last batch and its account; nothing without a lake that can be read."""
        try:
            rows = self.ledger().batches(self.config.name, last=1)
        except DistributaryError:
            return None
        return f"{rows[0].batch}: {rows[0].counts.equation()}" if rows else None

    def _is_as_its_file(self) -> bool:
        """Return whether a process that reads the file would maintain the same tables."""
        origins = self.loaded.origins.items()
        given = [key for key, origin in origins if origin.kind is OriginKind.FLAG]
        return self.loaded.path is not None and all(key.startswith(_OF_A_RUN) for key in given)


def _write(line: LogLine) -> None:
    _log.info("%s", spell(line, LogFormat.TEXT))
