"""A run as plain lines: one per batch, one per new schema, a heartbeat."""

from __future__ import annotations

import threading
from collections.abc import Callable

from distributary.cli.words import clock, counted, cut, duration, number, spelled, tally
from distributary.evolve.types import sql_name
from distributary.model.change import CHANGE_COLUMNS
from distributary.observe.events import (
    BatchSettled,
    Event,
    Failed,
    Idle,
    SchemaSeen,
    StepFinished,
    TableParked,
)

_LONGEST = 200
_OF_EVERY_LOG = "".join(f"{c.name} {sql_name(c.type)}, " for c in CHANGE_COLUMNS)
MOST_SCHEMAS = 20
"""A thousand new tables are not a thousand lines."""

Say = Callable[[str], None]


def schema_line(event: SchemaSeen) -> str:
    """`schema chess v3: + rating int`."""
    version = event.label.rpartition(" ")[2]
    named = version if version.startswith("v") else f"id {event.schema_id}"
    # every log has these: what is new are the columns of the source's table
    changes = ", ".join(event.changes).replace(_OF_EVERY_LOG, "") or "no change"
    return f"schema {spelled(event.type)} {named}: {cut(changes, _LONGEST)}"


def batch_line(event: BatchSettled) -> str:
    """Number, rows, rows a second, lag, tables, dead letters."""
    # one that an earlier process had decided was only finished here: its speed would be a fable
    whole = not event.steps or "stage" in event.steps
    parts = [
        f"batch {event.batch}",
        counted(event.counts.read, "row"),
        f"{number(event.records_per_second)} rows/s" if whole else "finished",
        f"lag {lag_text(event)}",
        counted(event.tables, "table"),
        counted(event.counts.dead_lettered, "dead letter"),
        duration(event.seconds),
    ]
    if event.counts.parked:
        parts.append(f"parked {number(event.counts.parked)}")
    return "  ".join(parts)


def lag_text(event: BatchSettled) -> str:
    """Records and seconds, as far as the source tells."""
    age = f" ({duration(event.lag_seconds)})" if event.lag_seconds is not None else ""
    return f"{number(event.lag_records)}{age}"


class Lines:
    """Listens to a run and says what a person would want to read later."""

    def __init__(self, say: Say, *, note: Say, step: Say, most_schemas: int = MOST_SCHEMAS) -> None:
        self._say, self._note, self._step = say, note, step
        self._most_schemas = most_schemas
        self._schemas: list[SchemaSeen] = []
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        """One event."""
        with self._lock:
            self._tell(event)

    def _tell(self, event: Event) -> None:
        match event:
            case SchemaSeen():
                self._schemas.append(event)
            case BatchSettled():
                self._tell_schemas()
                self._say(batch_line(event))
                if event.dead_letters:
                    self._step(f"batch {event.batch}  {tally(event.dead_letters)}")
            case StepFinished():
                self._step(f"batch {event.batch}  {event.step} {duration(event.seconds)}")
            case TableParked():
                waiting = counted(event.records, "record")
                self._note(f"parked {event.table}: {waiting} wait: {event.error}")
            case Idle():
                last = "" if event.batch is None else f", last batch {event.batch}"
                self._say(f"idle at {clock(event.at)}{last}")
            case Failed():
                again = f"; again in {duration(event.retry_in)}" if event.retry_in else ""
                self._note(f"failed: {event.error.code} {event.error.what}{again}")

    def _tell_schemas(self) -> None:
        for event in self._schemas[: self._most_schemas]:
            self._say(schema_line(event))
        more = len(self._schemas) - self._most_schemas
        if more > 0:
            self._say(f"and {counted(more, 'more schema')}: distributary schema history")
        self._schemas.clear()
