"""`tables`: what exists."""

from __future__ import annotations

from datetime import UTC, datetime

from distributary.cli.lakes import find_lake
from distributary.cli.output import Paper, Words, styled
from distributary.cli.verb import Invocation
from distributary.cli.words import counted, number, since, size, spelled
from distributary.observe.ledger import Ledger
from distributary.observe.measured import with_measures
from distributary.observe.rows import TableSummary


def show_tables(call: Invocation, *, lake: str | None, pipeline: str | None) -> None:
    """Every table of the lake, or of one pipeline."""
    found = find_lake(call, lake)
    known = Ledger(found.path, storage_options=found.options).tables(pipeline)
    tables = with_measures(found.path, known, storage_options=found.options)
    data = {"lake": found.path, "tables": tables}
    call.out.show(data, lambda paper: draw_tables(paper, tables))


def draw_tables(paper: Paper, tables: tuple[TableSummary, ...]) -> None:
    """One line per table."""
    now = datetime.now(UTC)
    several = len({table.pipeline for table in tables}) > 1
    headers = ["TABLE", "ROLE", "TYPE", "ROWS", "COLUMNS", "SIZE", "BATCHES", "LAST COMMIT"]
    paper.table(
        [*headers, "PIPELINE"] if several else headers,
        ([*_row(t, now), t.pipeline] if several else _row(t, now) for t in tables),
        right=("ROWS", "COLUMNS", "SIZE", "BATCHES"),
        indent=0,
    )
    paper.line(
        f"{counted(len(tables), 'table')}, {counted(sum(t.rows or 0 for t in tables), 'row')}, "
        f"{size(sum(t.bytes for t in tables))}"
    )


def _row(table: TableSummary, now: datetime) -> list[Words]:
    commit: Words = since(table.last_commit, now=now)
    if table.parked_batches:
        commit = styled(f"parked: {counted(table.parked_records, 'record')} wait", "red")
    return [
        table.table,
        table.role,
        spelled(table.type),
        number(table.rows),
        number(table.columns),
        size(table.bytes),
        number(table.batches),
        commit,
    ]
