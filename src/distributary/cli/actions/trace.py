"""`trace`: where a record went, and where a row came from."""

from __future__ import annotations

from collections.abc import Sequence

from distributary.cli.actions.trace_files import trace_path
from distributary.cli.actions.trace_story import draw_values, trace_stories
from distributary.cli.failure import usage_error
from distributary.cli.lakes import Lake, find_lake
from distributary.cli.output import Paper, styled
from distributary.cli.verb import Invocation
from distributary.cli.words import clock
from distributary.observe.ledger import Ledger
from distributary.observe.locate import Coordinates
from distributary.observe.plain import plain
from distributary.observe.row_events import is_made_of_log
from distributary.observe.trace import RowOrigin, Trace, Verdict, trace_offset, trace_row

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
