"""`trace TABLE KEY` for change data: a row, and the events that made it what it is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from distributary.cli.lakes import Lake
from distributary.cli.output import Paper, styled
from distributary.cli.verb import Invocation
from distributary.cli.words import counted, cut
from distributary.model.table import Role
from distributary.observe.plain import plain
from distributary.observe.row_events import Conditions, RowEvent, RowStory, trace_key
from distributary.observe.rows import TableSummary
from distributary.observe.values import missing

_LONGEST, _SHORT = 60, 36
_MOST_COLUMNS = 8
_COLOURS = {"insert": "green", "delete": "red", "truncate": "red"}


def trace_stories(
    call: Invocation,
    lake: Lake,
    tables: Sequence[TableSummary],
    table: TableSummary,
    keys: Sequence[str],
) -> int:
    """The events of a row, by its key or by other columns; 1 if there was never such a row."""
    log = next(
        (t for t in tables if t.role == Role.LOG and _source(t) == _source(table)),
        None,
    )
    if log is None:
        raise missing("this table has no log", table.table, [])
    found = trace_key(lake.path, table, log, _conditions(keys), storage_options=lake.options)
    data = {
        "table": table.table,
        "log": log.table,
        "asked": list(keys),
        "rows": [plain(story) for story in found],
    }
    call.out.show(data, lambda paper: _draw(paper, table, log, keys, found))
    return 0 if found else 1


def draw_values(paper: Paper, values: Mapping[str, Any]) -> None:
    """The columns of a row that are not null."""
    known = {name: value for name, value in plain(values).items() if value is not None}
    paper.table(
        ("COLUMN", "VALUE"),
        ((name, cut(_text(value), _LONGEST)) for name, value in known.items()),
        indent=4,
    )


def _source(table: TableSummary) -> tuple[str, str]:
    return table.pipeline, table.type


def _conditions(keys: Sequence[str]) -> Conditions:
    parts = [key.partition("=") for key in keys]
    return tuple((name, value) if equals else ("", name) for name, equals, value in parts)


def _draw(
    paper: Paper,
    table: TableSummary,
    log: TableSummary,
    keys: Sequence[str],
    found: Sequence[RowStory],
) -> None:
    if not found:
        paper.line(f"no event in {log.table} is about a row with {' '.join(keys)}")
    for story in found:
        key = ", ".join(f"{name}={_text(value)}" for name, value in plain(story.key).items())
        events = counted(len(story.events), "event")
        paper.line(styled(f"{table.table} {key}", "bold"), f": {events} in {log.table}")
        for event in story.events:
            _draw_event(paper, event)
        if story.row is not None:
            paper.line("  the row now, by the event marked with >")
            draw_values(paper, story.row)
        elif table.role == Role.MERGED:
            paper.line(styled(f"  {_absence(story)}", "yellow"))


def _absence(story: RowStory) -> str:
    if story.events and story.events[-1].deleted:
        return "the row is gone"
    return "the table has no such row: distributary verify says whether it should have"


def _draw_event(paper: Paper, event: RowEvent) -> None:
    when = event.source_ts.strftime("%Y-%m-%d %H:%M:%S") if event.source_ts else "time unknown"
    batch = "" if event.batch is None else f"batch {event.batch}  "
    paper.line(
        styled("> " if event.current else "  ", "green"),
        f"{when}  ",
        styled(f"{event.op:8}", _COLOURS.get(event.op, "cyan")),
        styled(f"  {batch}{_end(str(event.source or ''))}", "dim"),
    )
    if len(str(event.source or "")) > _SHORT:
        # whole, to be asked about in turn
        paper.line(styled(f"      from {event.source}", "dim"))
    changes = [f"{n} = {cut(_text(v), _SHORT)}" for n, v in plain(event.changed).items()]
    more = len(changes) - _MOST_COLUMNS
    text = ", ".join(changes[:_MOST_COLUMNS]) + (f" and {more} more" if more > 0 else "")
    if changes:
        paper.line(f"      {text}")


def _end(text: str) -> str:
    """The end of a long text: of a file's path the name, of a record its number."""
    return text if len(text) <= _SHORT else f"…{text[1 - _SHORT :]}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
