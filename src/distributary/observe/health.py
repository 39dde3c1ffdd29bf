"""Which of a thousand tables to look at first. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from distributary.observe.rows import TableSummary

SHOWN = 15
_STALE_FACTOR = 10.0
_STALE_AT_LEAST = 600.0
_ENOUGH_BATCHES = 3


class Health(StrEnum):
    """How a table does, the worst first."""

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
    parked: int
    stale: int
    healthy: int
    healthy_not_shown: int
    """The `985 healthy` of a page that shows fifteen of a thousand."""


def assess(table: TableSummary, *, as_of: datetime) -> TableHealth:
    """How one table does, measured by its own habits: a rare type is not stale.

    `as_of` is the pipeline's last batch: while it is stopped, its tables do not all turn stale.
    """
    freshness = table.freshness(as_of)
    if table.parked_batches:
        return TableHealth(table, Health.PARKED, freshness)
    if freshness is None or table.last_commit is None or table.batches < _ENOUGH_BATCHES:
        return TableHealth(table, Health.HEALTHY, freshness)
    lived = (table.last_commit - table.first_seen).total_seconds()
    usual = max(lived / (table.batches - 1), 1.0)
    overdue = freshness / usual
    stale = overdue > _STALE_FACTOR and freshness > _STALE_AT_LEAST
    return TableHealth(table, Health.STALE if stale else Health.HEALTHY, freshness, overdue)


def rank(tables: Iterable[TableSummary], *, as_of: datetime, shown: int = SHOWN) -> Ranking:
    """The worst tables first."""
    assessed = sorted((assess(table, as_of=as_of) for table in tables), key=_badness)
    counts = {health: sum(t.health is health for t in assessed) for health in Health}
    return Ranking(
        shown=tuple(assessed[:shown]),
        total=len(assessed),
        parked=counts[Health.PARKED],
        stale=counts[Health.STALE],
        healthy=counts[Health.HEALTHY],
        healthy_not_shown=sum(t.health is Health.HEALTHY for t in assessed[shown:]),
    )


def _badness(item: TableHealth) -> tuple[int, float, float, str]:
    order = list(Health).index(item.health)
    freshness = item.freshness_seconds if item.freshness_seconds is not None else float("inf")
    weight = float(item.table.parked_records) if item.health is Health.PARKED else item.overdue
    if item.health is Health.HEALTHY:
        weight = 0.0
    return (order, -weight, -freshness, item.table.table)
