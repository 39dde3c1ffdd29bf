"""What rules have found, over all batches: the engine sums, this module names. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

# as with rows, what is parked counts from the row that says `resumed`
RULES_SQL = """
SELECT pipeline, "table", r['rule'] AS rule,
       first_value(r['action'] ORDER BY at DESC) AS action,
       sum(r['checked']) AS checked, sum(r['violated']) AS violated,
       first_value(r['unfit'] ORDER BY at DESC) AS unfit,
       first_value(r['example'] ORDER BY at DESC) FILTER (WHERE r['violated'] > 0) AS example,
       max(at) FILTER (WHERE r['violated'] > 0) AS last_violated, max(at) AS last_checked
FROM (SELECT pipeline, "table", at, unnest(expectations) AS r
      FROM ledger WHERE outcome <> 'parked')
GROUP BY pipeline, "table", r['rule']
"""

_MOST_TABLES = 5


@dataclass(frozen=True, slots=True)
class TableRule:
    """What one rule has found in one table."""

    pipeline: str
    table: str
    rule: str
    action: str
    checked: int
    """Rows for which it was evaluated."""
    violated: int
    """Rows that broke it."""
    unfit: str
    """Why it could not be applied to the table in its last batch; empty if it was."""
    example: str
    """A record that broke it, as `trace` wants it; empty if none did."""
    last_violated: datetime | None
    last_checked: datetime


@dataclass(frozen=True, slots=True)
class RuleStatus:
    """What one rule has found in all tables of a pipeline."""

    rule: str
    action: str
    checked: int
    violated: int
    tables: int
    """Tables to which it is applied."""
    violating: tuple[TableRule, ...]
    """Those with the most rows that broke it, the worst first."""
    violating_tables: int
    """How many there are, shown or not."""
    unfit: tuple[TableRule, ...]
    """Some of the tables to which it cannot be applied."""
    unfit_tables: int
    last_violated: datetime | None


def table_rules(found: pa.Table) -> tuple[TableRule, ...]:
    """The answer to the query above, by rule and table."""
    rows = (
        TableRule(**{**row, "unfit": row["unfit"] or "", "example": row["example"] or ""})
        for row in found.to_pylist()
    )
    return tuple(sorted(rows, key=lambda row: (row.pipeline, row.rule, row.table)))


def rule_statuses(rules: Iterable[TableRule]) -> tuple[RuleStatus, ...]:
    """One line for each rule of a pipeline, those that were broken most first."""
    by_rule: dict[str, list[TableRule]] = defaultdict(list)
    for row in rules:
        by_rule[row.rule].append(row)
    found = [_status(name, rows) for name, rows in by_rule.items()]
    return tuple(sorted(found, key=lambda one: (-one.violated, one.rule)))


def _status(rule: str, rows: list[TableRule]) -> RuleStatus:
    broken = sorted((r for r in rows if r.violated), key=lambda r: (-r.violated, r.table))
    unfit = [r for r in rows if r.unfit]
    moments = [r.last_violated for r in broken if r.last_violated is not None]
    return RuleStatus(
        rule=rule,
        action=max(rows, key=lambda r: r.last_checked).action,
        checked=sum(r.checked for r in rows),
        violated=sum(r.violated for r in rows),
        tables=len(rows) - len(unfit),
        violating=tuple(broken[:_MOST_TABLES]),
        violating_tables=len(broken),
        unfit=tuple(unfit[:_MOST_TABLES]),
        unfit_tables=len(unfit),
        last_violated=max(moments, default=None),
    )
