"""`trace`: where a record went, and where a row came from."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from distributary.cli.command.lakes import FoundLake, find_lake
from distributary.cli.command.output import Paper, clock, counted, styled
from distributary.cli.command.verb import (
    LOOK,
    Invocation,
    LakeOption,
    argument,
    complete_tables,
    single,
    verb,
)
from distributary.observe.log_format import cut, plain

if TYPE_CHECKING:
    from distributary.observe.ledger.ledger_rows import TableSummary
    from distributary.observe.row_events import FileEvent, FileTrace, RowEvent, RowStory
    from distributary.observe.trace import Trace


app = single(LOOK)

_SHOWN = 20
_COLOURS = {"insert": "green", "delete": "red", "truncate": "red"}
_LONGEST, _SHORT = 60, 36
_MOST_COLUMNS = 8


@verb(
    app,
    "trace wrapper/0/42 --lake distributary-demo",
    "trace bronze_events _offset=42 --lake distributary-demo",
    "trace shop_orders id=55000000319 --lake distributary-demo",
)
def trace(
    call: Invocation,
    where: Annotated[
        str,
        argument(
            "TOPIC/PARTITION/OFFSET of a record, a change file or a folder of them, or the "
            "name of a table.",
            metavar="WHERE",
            autocompletion=complete_tables,
        ),
    ],
    key: Annotated[
        list[str] | None,
        argument(
            "COLUMN=VALUE of rows in the table; for change data also the values of the key alone.",
            metavar="KEY",
        ),
    ] = None,
    lake: LakeOption = None,
) -> int:
    """Show where a record went, or where a row came from.

    For a row of change data, all events of its key are shown, in the order of the source. An event
    in a change file is named PATH/NUMBER/PLACE: path and number of the file, and the position of
    the event. To try it on change data, run: distributary demo cdc
    """
    from distributary.observe.trace import Coordinates, trace_offset

    found = find_lake(call, lake)
    if key:
        return _trace_rows(call, found, where, key)
    at = Coordinates.parse(where)
    if at is None:
        return _trace_path(call, found, where)
    trace_found = trace_offset(found.path, at)
    call.out.show(trace_found.as_dict(), lambda paper: _draw_record(paper, trace_found, found))
    return 0 if trace_found.places or trace_found.dead_letters else 1


def _draw_record(paper: Paper, trace: Trace, lake: FoundLake) -> None:
    from distributary.observe.trace import TraceVerdict

    good = trace.verdict is TraceVerdict.WRITTEN
    paper.line(styled(trace.sentence(), "green" if good else "yellow"))
    for batch in trace.batches:
        paper.line(
            f"  read in batch {batch.batch} of pipeline {batch.pipeline} ({batch.lane}), "
            f"finished {clock(batch.finished_at)}"
        )
    for place in trace.places:
        where = f"{place.file}, row {place.row}" if place.file else "file unknown"
        paper.line("  ", styled(place.table, "bold"), f"  {where}{' (parked)' * place.parked}")
        _draw_values(paper, place.values)
    for letter in trace.dead_letters:
        paper.line(
            f"  dead letter {letter['id']}: {letter['error_code']}, {letter['status']}: "
            f"{letter['error_message']}"
        )
        paper.line(f"  distributary dlq show {letter['id']}{lake.flag}")


def _draw_values(paper: Paper, values: Mapping[str, Any]) -> None:
    """Print the columns of a row that are not null."""
    known = {name: value for name, value in plain(values).items() if value is not None}
    paper.table(
        ("COLUMN", "VALUE"),
        ((name, cut(_text(value), _LONGEST)) for name, value in known.items()),
        indent=4,
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _trace_path(call: Invocation, lake: FoundLake, where: str) -> int:
    from distributary.observe.row_events import below, roots_of, trace_file

    roots = roots_of(lake.path)
    if not roots:
        raise call.usage(
            f"{where!r} is neither TOPIC/PARTITION/OFFSET nor a table with COLUMN=VALUE, "
            "and nothing in this lake was read from files."
        )
    path = below(roots, where)
    if path == where.rstrip("/"):
        # a relative path counts from the working folder, if that is below a root
        whole = below(roots, os.path.abspath(where))
        path = path if whole.startswith("/") else whole
    found = trace_file(lake.path, path)
    data = {**plain(found), "events": found.events}
    call.out.show(data, lambda paper: _draw_files(paper, found))
    return 0 if found.tables or found.dead_letters else 1


def _draw_files(paper: Paper, found: FileTrace) -> None:
    letters = len(found.dead_letters)
    name = found.path or "all files"
    if not found.tables and not letters:
        paper.line(styled(f"no event and no dead letter comes from {name}", "yellow"))
        return
    summary = f"{counted(found.events, 'event')}, {counted(letters, 'dead letter')}"
    paper.line(styled(name, "bold"), f": {summary}")
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
    state = {True: "the row now", False: "not the row now", None: ""}[event.current]
    paper.line(
        styled("  > " if event.current else "    ", "green"),
        f"{event.source.offset:>6}  ",
        styled(f"{event.op:8}", _COLOURS.get(event.op, "cyan")),
        f"  {_key_text(event.key)}",
        styled(f"  {state}", "dim"),
    )
    paper.line(styled(f"            {event.source}", "dim"))


def _key_text(key: Any) -> str:
    return ", ".join(f"{name}={_text(value)}" for name, value in plain(key).items())


def _trace_rows(call: Invocation, lake: FoundLake, table: str, keys: Sequence[str]) -> int:
    from distributary.observe.row_events import is_made_of_log
    from distributary.observe.trace import trace_row

    tables = lake.ledger().tables(schema_ids=False)
    known = next((t for t in tables if t.table == table), None)
    if known is not None and is_made_of_log(known):
        return _trace_stories(call, lake, tables, known, keys)
    column, equals, value = keys[0].partition("=")
    if len(keys) > 1 or not equals or not column:
        raise call.usage(f"{' '.join(keys)!r} is not COLUMN=VALUE.")
    rows = trace_row(lake.path, table, column, value)
    data = {
        "table": table,
        "column": column,
        "value": value,
        "rows": [{"source": plain(row.source), "values": plain(row.values)} for row in rows],
    }

    def draw(paper: Paper) -> None:
        if not rows:
            paper.line(f"no row of {table} has {keys[0]}")
        for row in rows:
            source = str(row.source) if row.source else "unknown: the table has no coordinates"
            paper.line("from ", styled(source, "bold"))
            _draw_values(paper, row.values)

    call.out.show(data, draw)
    return 0 if rows else 1


def _trace_stories(
    call: Invocation,
    lake: FoundLake,
    tables: Sequence[TableSummary],
    table: TableSummary,
    keys: Sequence[str],
) -> int:
    """Print the events of a row, found by columns; return 1 if no such row ever existed."""
    from distributary.errors import missing
    from distributary.model.table import Role
    from distributary.observe.row_events import trace_key

    source = table.pipeline, table.type
    log = next((t for t in tables if t.role == Role.LOG and (t.pipeline, t.type) == source), None)
    if log is None:
        raise missing("this table has no log", table.table, [])
    parts = [key.partition("=") for key in keys]
    conditions = tuple((name, value) if equals else ("", name) for name, equals, value in parts)
    found = trace_key(lake.path, table, log, conditions)
    data = {
        "table": table.table,
        "log": log.table,
        "asked": list(keys),
        "rows": [plain(story) for story in found],
    }

    def draw(paper: Paper) -> None:
        if not found:
            paper.line(f"no event in {log.table} is about a row with {' '.join(keys)}")
        for story in found:
            events = f": {counted(len(story.events), 'event')} in {log.table}"
            paper.line(styled(f"{table.table} {_key_text(story.key)}", "bold"), events)
            _draw_story(paper, story, merged=table.role == Role.MERGED)

    call.out.show(data, draw)
    return 0 if found else 1


def _draw_story(paper: Paper, story: RowStory, *, merged: bool) -> None:
    for event in story.events:
        _draw_story_event(paper, event)
    if story.row is not None:
        paper.line("  the row as it is now, from the event marked with >")
        _draw_values(paper, story.row)
    elif merged:
        deleted = story.events and story.events[-1].deleted
        unknown = "the table has no such row: distributary verify shows whether it should"
        paper.line(styled(f"  {'the row is gone' if deleted else unknown}", "yellow"))


def _draw_story_event(paper: Paper, event: RowEvent) -> None:
    when = event.source_ts.strftime("%Y-%m-%d %H:%M:%S") if event.source_ts else "time unknown"
    batch = "" if event.batch is None else f"batch {event.batch}  "
    source = str(event.source or "")
    is_long = len(source) > _SHORT
    # the end of a file's path has its name, and that of a record its number
    end = f"…{source[1 - _SHORT :]}" if is_long else source
    paper.line(
        styled("> " if event.current else "  ", "green"),
        f"{when}  ",
        styled(f"{event.op:8}", _COLOURS.get(event.op, "cyan")),
        styled(f"  {batch}{end}", "dim"),
    )
    if is_long:
        # in full, so that it can be passed to `trace`
        paper.line(styled(f"      from {source}", "dim"))
    changes = [f"{n} = {cut(_text(v), _SHORT)}" for n, v in plain(event.changed).items()]
    more = len(changes) - _MOST_COLUMNS
    text = ", ".join(changes[:_MOST_COLUMNS]) + (f" and {more} more" if more > 0 else "")
    if changes:
        paper.line(f"      {text}")
