"""What the log says about each event."""

from __future__ import annotations

import re
from typing import Any

from distributary.errors import DistributaryError
from distributary.observe.events import (
    BatchSettled,
    BatchStarted,
    Event,
    Failed,
    Idle,
    ProcessStarted,
    RegistryAsked,
    SchemaSeen,
    StepFinished,
    Stopped,
    TableParked,
    TableResumed,
    TaskFailed,
)
from distributary.observe.log_format import LogLine

_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")
INFO, WARNING, ERROR = "INFO", "WARNING", "ERROR"


def line_of(event: Event) -> LogLine:
    """The line of an event."""
    level, message, more = _told(event)
    return LogLine(
        message=message,
        event=_WORD.sub("_", type(event).__name__).lower(),
        level=level,
        pipeline=event.pipeline,
        batch=getattr(event, "batch", None),
        table=getattr(event, "table", None),
        more=more,
        at=event.at,
    )


def _told(event: Event) -> tuple[str, str, dict[str, Any]]:
    match event:
        case BatchStarted():
            size = "" if event.records is None else f" of {event.records:,} records"
            return INFO, f"batch {event.batch}{size} begins", {"lane": event.lane}
        case StepFinished():
            more = {"step": event.step, "seconds": event.seconds}
            return INFO, f"{event.step} took {event.seconds:.2f} s", more
        case SchemaSeen():
            changes = ", ".join(event.changes) or "no change"
            return INFO, f"{event.label}: {changes}", {"schema_id": event.schema_id}
        case TableParked():
            more = {"records": event.records}
            return ERROR, f"parked, {event.records:,} records wait: {event.error}", more
        case BatchSettled():
            return _settled(event)
        case Failed():
            return _failed(event)
        case TaskFailed():
            return ERROR, f"{event.task}: {event.error.what}", _facts(event.error)
        case _:
            return INFO, *_plain(event)


def _plain(event: Event) -> tuple[str, dict[str, Any]]:
    match event:
        case Idle():
            return "nothing new at the source", {}
        case TableResumed():
            return "still parked" if event.parked else "resumed", {}
        case RegistryAsked():
            asked = sum(each.count for each in event.calls)
            return f"{asked:,} questions to the registry", {"calls": event.calls}
        case ProcessStarted():
            facts = {"pid": event.pid, "restarts": event.restarts}
            return f"process {event.pid} started", facts
        case Stopped():
            more = {"batches": event.batches, "seconds": event.seconds, "reason": event.reason}
            ended = event.reason or "ended"
            return f"{ended} after {event.batches:,} batches; {event.counts.equation()}", more
    return "", {}


def _settled(event: BatchSettled) -> tuple[str, str, dict[str, Any]]:
    counts = event.counts
    more = {
        "read": counts.read,
        "written": counts.written,
        "dead_lettered": counts.dead_lettered,
        "parked": counts.parked,
        "skipped": counts.skipped,
        "tables": event.tables,
        "seconds": event.seconds,
        "lag_records": event.lag_records,
        "lag_seconds": event.lag_seconds,
    }
    message = f"{counts.equation()} in {event.seconds:.2f} s, {event.tables:,} tables"
    return WARNING if counts.dead_lettered or counts.parked else INFO, message, more


def _failed(event: Failed) -> tuple[str, str, dict[str, Any]]:
    again = "" if event.retry_in is None else f"; again in {event.retry_in:.1f} s"
    more = _facts(event.error) | {"retry_in": event.retry_in}
    level = ERROR if event.retry_in is None else WARNING
    return level, f"{event.error.what}{again}", more


def _facts(error: DistributaryError) -> dict[str, Any]:
    facts = error.as_dict()
    names = ("code", "where", "evidence", "next_step")
    return {name: facts[name] for name in names if facts[name]}
