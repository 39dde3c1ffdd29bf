"""`trace`: where a record went, and where a row came from."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from distributary.cli.lakes import Lake, find_lake
from distributary.cli.logs import usage_error
from distributary.cli.output import Paper, clock, counted, cut, styled
from distributary.cli.verb import Invocation
from distributary.model.table import Role
from distributary.observe.ledger import Ledger
from distributary.observe.log_format import plain
from distributary.observe.rows import TableSummary
from distributary.observe.trace import (
    Conditions,
    Coordinates,
    FileEvent,
    FileTrace,
    RowEvent,
    RowOrigin,
    RowStory,
    Trace,
    Verdict,
    below,
    is_made_of_log,
    missing,
    roots_of,
    trace_file,
    trace_key,
    trace_offset,
    trace_row,
)

# `trace FILE`: the events and rows that a change file became.

_SHOWN = 20
_COLOURS = {"insert": "green", "delete": "red", "truncate": "red"}


def trace_path(call: Invocation, lake: Lake, where: str) -> int | None:
    """What a file or folder became; 1 if nothing is known of it, None if no files were read."""
    roots = roots_of(lake.path, storage_options=lake.options)
    if not roots:
        return None
    path = below(roots, where)
    if path == where.rstrip("/"):
        path = _local(roots, where)
    found = trace_file(lake.path, path, storage_options=lake.options)
    data = {**plain(found), "events": found.events}
    call.out.show(data, lambda paper: _draw_files(paper, found))
    return 0 if found.tables or found.dead_letters else 1


def _local(roots: tuple[str, ...], where: str) -> str:
    """A path from the working directory, if that leads below a root."""
    whole = below(roots, os.path.abspath(where))
    return where.rstrip("/") if whole.startswith("/") else whole


def _draw_files(paper: Paper, found: FileTrace) -> None:
    letters = len(found.dead_letters)
    name = found.path or "all files"
    if not found.tables and not letters:
        paper.line(styled(f"no event and no dead letter comes from {name}", "yellow"))
        return
    told = f"{counted(found.events, 'event')}, {counted(letters, 'dead letter')}"
    paper.line(styled(name, "bold"), f": {told}")
    for table in found.tables:
        more = "" if table.complete else " and more"
        rows = f", rows of {table.table}" if table.table else ""
        paper.line(f"  {counted(len(table.events), 'event')}{more} in {table.log}{rows}")
        for event in table.events[:_SHOWN]:
            _draw_event(paper, event)
        if len(table.events) > _SHOWN:
            paper.line(f"    ... {len(table.events) - _SHOWN} more: --json has them")
    for letter in found.dead_letters[:_SHOWN]:
        place = f"{letter['topic']}/{letter['partition']}/{letter['offset']}"
        paper.line(f"  dead letter {letter['id']}: {letter['error_code']}, {letter['status']}")
        paper.line(styled(f"    {place}: {letter['error_message']}", "dim"))


def _draw_event(paper: Paper, event: FileEvent) -> None:
    key = ", ".join(f"{name}={_text(value)}" for name, value in plain(event.key).items())
    state = {True: "the row now", False: "not the row now", None: ""}[event.current]
    paper.line(
        styled("  > " if event.current else "    ", "green"),
        f"{event.source.offset:>6}  ",
        styled(f"{event.op:8}", _COLOURS.get(event.op, "cyan")),
        f"  {key}",
        styled(f"  {state}", "dim"),
    )
    paper.line(styled(f"            {event.source}", "dim"))


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# `trace TABLE KEY` for change data: a row, and the events that made it what it is.

_LONGEST, _SHORT = 60, 36
_MOST_COLUMNS = 8


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
    call.out.show(data, lambda paper: _draw_story(paper, table, log, keys, found))
    return 0 if found else 1


def draw_values(paper: Paper, values: Mapping[str, Any]) -> None:
    """The columns of a row that are not null."""
    known = {name: value for name, value in plain(values).items() if value is not None}
    paper.table(
        ("COLUMN", "VALUE"),
        ((name, cut(_story_of(value), _LONGEST)) for name, value in known.items()),
        indent=4,
    )


def _source(table: TableSummary) -> tuple[str, str]:
    return table.pipeline, table.type


def _conditions(keys: Sequence[str]) -> Conditions:
    parts = [key.partition("=") for key in keys]
    return tuple((name, value) if equals else ("", name) for name, equals, value in parts)


def _draw_story(
    paper: Paper,
    table: TableSummary,
    log: TableSummary,
    keys: Sequence[str],
    found: Sequence[RowStory],
) -> None:
    if not found:
        paper.line(f"no event in {log.table} is about a row with {' '.join(keys)}")
    for story in found:
        key = ", ".join(f"{name}={_story_of(value)}" for name, value in plain(story.key).items())
        events = counted(len(story.events), "event")
        paper.line(styled(f"{table.table} {key}", "bold"), f": {events} in {log.table}")
        for event in story.events:
            _draw_story_event(paper, event)
        if story.row is not None:
            paper.line("  the row now, by the event marked with >")
            draw_values(paper, story.row)
        elif table.role == Role.MERGED:
            paper.line(styled(f"  {_absence(story)}", "yellow"))


def _absence(story: RowStory) -> str:
    if story.events and story.events[-1].deleted:
        return "the row is gone"
    return "the table has no such row: distributary verify says whether it should have"


def _draw_story_event(paper: Paper, event: RowEvent) -> None:
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
    changes = [f"{n} = {cut(_story_of(v), _SHORT)}" for n, v in plain(event.changed).items()]
    more = len(changes) - _MOST_COLUMNS
    text = ", ".join(changes[:_MOST_COLUMNS]) + (f" and {more} more" if more > 0 else "")
    if changes:
        paper.line(f"      {text}")


def _end(text: str) -> str:
    """The end of a long text: of a file's path the name, of a record its number."""
    return text if len(text) <= _SHORT else f"…{text[1 - _SHORT :]}"


def _story_of(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


_GOOD = frozenset({Verdict.WRITTEN})


def trace_record(call: Invocation, where: str, *, lake: str | None) -> int:
    """What became of the record at TOPIC/PARTITION/OFFSET, or of a file; 1 if it is nowhere."""
    found = find_lake(call, lake)
    if Coordinates.parse(where) is None and (code := trace_path(call, found, where)) is not None:
        return code
    at = coordinates(where)
    trace = trace_offset(
        found.path, at.topic, at.partition, at.offset, storage_options=found.options
    )
    call.out.show(trace.as_dict(), lambda paper: _draw(paper, trace, found))
    return 0 if trace.places or trace.dead_letters else 1


def trace_rows(call: Invocation, table: str, keys: Sequence[str], *, lake: str | None) -> int:
    """Where rows of a table come from; 1 if there is no such row."""
    found = find_lake(call, lake)
    tables = Ledger(found.path, storage_options=found.options).tables(schema_ids=False)
    known = next((t for t in tables if t.table == table), None)
    if known is not None and is_made_of_log(known):
        return trace_stories(call, found, tables, known, keys)
    column, equals, value = keys[0].partition("=")
    if len(keys) > 1 or not equals or not column:
        raise usage_error(f"{' '.join(keys)!r} is not COLUMN=VALUE.", command="distributary trace")
    rows = trace_row(found.path, table, column, value, storage_options=found.options)
    data = {
        "table": table,
        "column": column,
        "value": value,
        "rows": [{"source": plain(row.source), "values": plain(row.values)} for row in rows],
    }
    call.out.show(data, lambda paper: _draw_rows(paper, table, keys[0], rows))
    return 0 if rows else 1


def coordinates(text: str) -> Coordinates:
    """The parts of TOPIC/PARTITION/OFFSET."""
    found = Coordinates.parse(text)
    if found is None:
        raise usage_error(
            f"{text!r} is neither TOPIC/PARTITION/OFFSET nor a table with COLUMN=VALUE, "
            "and nothing in this lake was read from files.",
            command="distributary trace",
        )
    return found


def _draw(paper: Paper, trace: Trace, lake: Lake) -> None:
    paper.line(styled(trace.sentence(), "green" if trace.verdict in _GOOD else "yellow"))
    for batch in trace.batches:
        paper.line(
            f"  read in batch {batch.batch} of pipeline {batch.pipeline} ({batch.lane}), "
            f"settled {clock(batch.finished_at)}"
        )
    for place in trace.places:
        where = f"{place.file}, row {place.row}" if place.file else "file unknown"
        paper.line("  ", styled(place.table, "bold"), f"  {where}{' (parked)' * place.parked}")
        draw_values(paper, place.values)
    for letter in trace.dead_letters:
        paper.line(
            f"  dead letter {letter['id']}: {letter['error_code']}, {letter['status']}: "
            f"{letter['error_message']}"
        )
        paper.line(f"  distributary dlq show {letter['id']}{lake.flag}")


def _draw_rows(paper: Paper, table: str, key: str, rows: tuple[RowOrigin, ...]) -> None:
    if not rows:
        paper.line(f"no row of {table} has {key}")
    for row in rows:
        source = str(row.source) if row.source else "unknown: the table keeps no coordinates"
        paper.line("from ", styled(source, "bold"))
        draw_values(paper, row.values)
