"""The tables of a source: their events, their lag and their newest change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from distributary.model.change import OPS
from distributary.model.table import Role
from distributary.observe.ledger.ledger_rows import (
    TableSummary,
)
from distributary.observe.status.health import (
    with_measures,
)


@dataclass(frozen=True, slots=True)
class SourceTableStatus:
    """A table of the source as the lake has it."""

    type: str
    """The names of the table at the source: `["shop","","orders"]`."""
    table: str
    """The table of its current rows."""
    log: str
    rows: int | None
    """Current rows; None where there is no such table, as of one without a key."""
    events: int
    """The number of events in the log."""
    changes: Mapping[str, int] = field(default_factory=dict)
    """The number of events by kind: insert, update, delete, read, truncate."""
    last_event: datetime | None = None
    """The time at which the source made the newest change in the table."""
    lag_seconds: float | None = None
    """From that change to its commit; while newer ones wait, to the pipeline's last batch."""
    parked_events: int = 0
    """Events that the table, or its log, waits for."""


@dataclass(frozen=True, slots=True)
class SourceTables:
    """The ones to look at first, and how many there are."""

    shown: tuple[SourceTableStatus, ...]
    total: int
    changes: Mapping[str, int]
    """Events of all tables, by kind."""


def source_tables(
    lake: str, tables: Sequence[TableSummary], *, as_of: datetime, shown: int
) -> SourceTables | None:
    """Return the source's tables, the furthest behind first; None without change data."""
    logs = {t.type: t for t in tables if t.role == Role.LOG}
    if not logs:
        return None
    merged = {t.type: t for t in tables if t.role == Role.MERGED}
    every = [_source_table(log, merged.get(kind), as_of) for kind, log in logs.items()]
    every.sort(key=lambda each: (-each.parked_events, -(each.lag_seconds or 0.0), each.table))
    sums = {op: sum(log.changes.get(op, 0) for log in logs.values()) for op in OPS}
    first = [merged[each.type] for each in every[:shown] if each.type in merged]
    measured = with_measures(lake, first)
    rows = {table.type: table.rows for table in measured}
    visible = (replace(each, rows=rows.get(each.type)) for each in every[:shown])
    return SourceTables(tuple(visible), len(every), sums)


def _source_table(
    log: TableSummary, merged: TableSummary | None, as_of: datetime
) -> SourceTableStatus:
    table = merged or log
    parked = max(log.parked_records, table.parked_records)
    until = as_of if parked else table.last_event_at
    lag = None
    if table.last_event is not None and until is not None:
        lag = (until - table.last_event).total_seconds()
    return SourceTableStatus(
        type=log.type,
        table=table.table,
        log=log.table,
        rows=None,
        events=log.rows or 0,
        changes=dict(log.changes),
        last_event=table.last_event,
        lag_seconds=lag,
        parked_events=parked,
    )
