"""`tables`: the tables of a lake, now or at an earlier moment."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from distributary.cli.command.lakes import (
    FoundLake,
    find_lake,
)
from distributary.cli.command.output import (
    Paper,
    Words,
    counted,
    number,
    since,
    size,
    spelled,
    styled,
)
from distributary.cli.command.verb import (
    LOOK,
    CutOption,
    Invocation,
    LakeOption,
    PipelineName,
    single,
    verb,
)
from distributary.model.names import one_line
from distributary.observe.log_format import cut

if TYPE_CHECKING:
    from distributary.engine.planning.table_names import NameClash
    from distributary.observe.ledger.ledger_rows import TableSummary


app = single(LOOK)
_MOST_CLASHES = 20


@verb(app, "tables --lake distributary-demo")
def tables(
    call: Invocation,
    lake: LakeOption = None,
    pipeline: PipelineName = None,
    as_of: CutOption = None,
) -> None:
    """List the tables with rows, columns and last commit; at a cut with their versions."""
    from distributary.engine.planning.table_names import clashes
    from distributary.observe.status.health import with_measures

    found = find_lake(call, lake)
    if as_of is not None:
        _tables_at(call, found, as_of, pipeline)
        return
    known = found.ledger().tables(pipeline)
    every = with_measures(found.path, known)
    shown = {table.table for table in every}
    alike = [clash for clash in clashes(found.path) if {clash.name, clash.table} & shown]

    def draw(paper: Paper) -> None:
        _draw_tables(paper, every)
        _draw_clashes(paper, alike)

    call.out.show({"lake": found.path, "tables": every, "clashes": alike}, draw)


def _tables_at(call: Invocation, lake: FoundLake, as_of: str, pipeline: str | None) -> None:
    from distributary.observe.cuts import Cuts, measured

    cuts = Cuts(lake.path)
    point = cuts.find(as_of, pipeline=pipeline)
    every = [measured(cuts, point, table) for table in cuts.cut(point).tables]
    headers = ("TABLE", "ROLE", "VERSION>", "ROWS>", "COLUMNS>", "SIZE>")

    def draw(paper: Paper) -> None:
        rows = [
            (
                one_line(each["table"]),
                each["role"],
                number(each["version"]),
                number(each["rows"]),
                number(each["columns"]),
                size(each["bytes"]),
            )
            for each in every
        ]
        paper.table(headers, rows, indent=0)

    call.out.show({"lake": lake.path, "as_of": as_of, "tables": every}, draw)


def _draw_clashes(paper: Paper, found: Sequence[NameClash]) -> None:
    for clash in found[:_MOST_CLASHES]:
        owner = f" of {cut(clash.owner, 80)}" if clash.owner else ""
        paper.line(
            f"{clash.name}{owner} is also claimed by {cut(clash.claimed_by, 80)}: {clash.table}"
        )
    paper.more(len(found) - _MOST_CLASHES)


def _draw_tables(paper: Paper, tables: Sequence[TableSummary]) -> None:
    from distributary.model.table import Role
    from distributary.observe.status.health import DERIVED, written_rows

    now = datetime.now(UTC)
    several = len({table.pipeline for table in tables}) > 1
    numbers = ("ROWS>", "COLUMNS>", "SIZE>", "BATCHES>")
    headers = ["TABLE", "ROLE", "TYPE", *numbers, "LAST COMMIT"]
    paper.table(
        [*headers, "PIPELINE"] if several else headers,
        ([*_table_cells(t, now), *([t.pipeline] if several else [])] for t in tables),
        indent=0,
    )
    letters = sum(t.rows or 0 for t in tables if t.role == Role.DEAD_LETTERS)
    made = sum(t.rows or 0 for t in tables if t.role in DERIVED)
    parts = [counted(len(tables), "table"), counted(written_rows(tables), "row")]
    parts += [f"{counted(made, 'row')} made of logs"] if made else []
    parts += [counted(letters, "dead letter")] if letters else []
    paper.line(", ".join([*parts, size(sum(t.bytes for t in tables))]))


def _table_cells(table: TableSummary, now: datetime) -> list[Words]:
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
