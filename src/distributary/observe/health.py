"""Which of a thousand tables to look at first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType

from distributary.observe import layout
from distributary.observe.rows import TableSummary
from distributary.publish.marks import Loss, loss_at_a_glance

SHOWN = 15
_STALE_FACTOR = 10.0
_STALE_AT_LEAST = 600.0
_ENOUGH_BATCHES = 3


class Health(StrEnum):
    """How a table does, the worst first."""

    MISSING = "missing"
    """It is not there, though batches were settled for it."""
    BEHIND = "behind"
    """Its log ends before what was settled, or with an empty commit."""
    PARKED = "parked"
    STALE = "stale"
    """It has been quiet for much longer than it usually is."""
    HEALTHY = "healthy"


@dataclass(frozen=True, slots=True)
class TableHealth:
    """A table and how it does."""

    table: TableSummary
    health: Health
    freshness_seconds: float | None
    """Between its last commit and the pipeline's last batch."""
    overdue: float = 0.0
    """How many times its usual pause it has been quiet."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """The tables to look at, and how many more there are."""

    shown: tuple[TableHealth, ...]
    total: int
    missing: int
    behind: int
    parked: int
    stale: int
    healthy: int
    healthy_not_shown: int
    """The `985 healthy` of a page that shows fifteen of a thousand."""


def assess(table: TableSummary, *, as_of: datetime, loss: Loss | None = None) -> TableHealth:
    """How one table does, measured by its own habits: a rare type is not stale.

    `as_of` is the pipeline's last batch: while it is stopped, its tables do not all turn stale.
    """
    freshness = table.freshness(as_of)
    if loss is not None:
        return TableHealth(table, Health(loss), freshness)
    if table.parked_batches:
        return TableHealth(table, Health.PARKED, freshness)
    if freshness is None or table.last_commit is None or table.batches < _ENOUGH_BATCHES:
        return TableHealth(table, Health.HEALTHY, freshness)
    lived = (table.last_commit - table.first_seen).total_seconds()
    usual = max(lived / (table.batches - 1), 1.0)
    overdue = freshness / usual
    stale = overdue > _STALE_FACTOR and freshness > _STALE_AT_LEAST
    return TableHealth(table, Health.STALE if stale else Health.HEALTHY, freshness, overdue)


def rank(
    tables: Iterable[TableSummary],
    *,
    as_of: datetime,
    shown: int = SHOWN,
    losses: Mapping[str, Loss] = MappingProxyType({}),
) -> Ranking:
    """The worst tables first; `losses` by the tables' names."""
    assessed = sorted(
        (assess(table, as_of=as_of, loss=losses.get(table.table)) for table in tables),
        key=_badness,
    )
    counts = {health: sum(t.health is health for t in assessed) for health in Health}
    return Ranking(
        shown=tuple(assessed[:shown]),
        total=len(assessed),
        missing=counts[Health.MISSING],
        behind=counts[Health.BEHIND],
        parked=counts[Health.PARKED],
        stale=counts[Health.STALE],
        healthy=counts[Health.HEALTHY],
        healthy_not_shown=sum(t.health is Health.HEALTHY for t in assessed[shown:]),
    )


def losses_of(lake: str, tables: Iterable[TableSummary]) -> dict[str, Loss]:
    """Tables of a lake on this machine that are gone or behind, seen by names of files only."""
    found = {}
    for table in tables:
        path = layout.place(lake, table.path)
        loss = loss_at_a_glance(path, table.version)
        if loss is not None:
            found[table.table] = loss
    return found


def _badness(item: TableHealth) -> tuple[int, float, float, str]:
    order = list(Health).index(item.health)
    freshness = item.freshness_seconds if item.freshness_seconds is not None else float("inf")
    weight = float(item.table.parked_records) if item.health is Health.PARKED else item.overdue
    if item.health is Health.HEALTHY:
        weight = 0.0
    return (order, -weight, -freshness, item.table.table)
