"""The part of `status` about change data: what was told of each table of the source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from distributary.cli.output import Paper, Words, styled
from distributary.cli.words import brief, number, since
from distributary.observe.source_tables import SourceTable, SourceTables

_RARE = ("truncate",)
"""Kinds of change that get a column only where there are any."""


def kinds(changes: Mapping[str, int]) -> str:
    """`insert 244, update 547, delete 139`."""
    told = ", ".join(f"{op} {count:,}" for op, count in changes.items() if count)
    return told or "none yet"


def draw_source_tables(paper: Paper, found: SourceTables, now: datetime) -> None:
    """One line per table of the source, those furthest behind first."""
    ops = [op for op, count in found.changes.items() if count or op not in _RARE]
    numbers = ["ROWS", *(op.upper() for op in ops)]
    paper.table(
        ("TABLE", *numbers, "LAST EVENT", "LAG"),
        (list(_cells(table, ops, now)) for table in found.shown),
        right=(*numbers, "LAG"),
    )
    more = found.total - len(found.shown)
    if more:
        paper.line(f"  and {more:,} more, with less lag")
    if any(table.rows is None for table in found.shown):
        paper.line(styled("  ROWS -: there is only a log, for want of a key or of a row", "dim"))


def _cells(table: SourceTable, ops: list[str], now: datetime) -> Iterator[Words]:
    yield styled(table.table, "red") if table.parked_events else table.table
    yield number(table.rows)
    yield from (number(table.changes.get(op, 0)) for op in ops)
    yield since(table.last_event, now=now)
    behind = f"parked {table.parked_events:,}" if table.parked_events else ""
    yield styled(behind, "red") if behind else brief(table.lag_seconds)
