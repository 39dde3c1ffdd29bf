"""Hop two, expectations: rows are checked against rules, counted, and dead-lettered by record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.delta.parquet import conform
from distributary.errors import ErrorCode
from distributary.model.cache import Cache
from distributary.model.deadletter import Decoded
from distributary.model.facts import Fact, RulesCounted
from distributary.model.names import printable
from distributary.model.routing import StageOrder
from distributary.model.rules.expectation import (
    Action,
    Coordinates,
    Rule,
    RuleCount,
    sum_counts,
    type_spellings,
)
from distributary.model.table import Role, TablePlan
from distributary.shape.checks import Checks, Verdict, checks_of
from distributary.stage.rows.partitions import Flags, columns_as_written, without_records
from distributary.stage.task_outputs import letters_batch, spelled_value
from distributary.stage.task_plan import TaskPlan

if TYPE_CHECKING:
    from distributary.stage.decoding import DecodedPart


UNKNOWN_FIELDS = "unknown fields"
"""The name under which dropped fields are counted; no rule has it, because rule names have no
spaces."""

_STREAM = "stream"
_WITHOUT_A_ROW = pa.array(["delete", "truncate"])
_LONGEST_CHECK = 200
_MOST_VALUES = 5


@dataclass(slots=True)
class RuledRows:
    """The parts of a table that passed the rules, the dead letters, and facts for the driver."""

    parts: list[DecodedPart] = field(default_factory=list)
    dead: list[pa.RecordBatch] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)


def held_to_rules(parts: list[DecodedPart], plan: TaskPlan, order: StageOrder) -> RuledRows:
    """Remove the records of one table that a rule sends to the dead letters."""
    table = plan.output.tables.get(parts[0].route.table) if parts else None
    # the log of change data must have every event, so no rule refuses one
    if table is None or plan.changes is not None or table.role not in (Role.EACH, Role.LOG):
        return RuledRows(parts)
    by_type: dict[str, list[DecodedPart]] = {}
    # a record that deletes a row has no values to check
    held = RuledRows([part for part in parts if part.tombstones])
    for part in parts:
        if part.tombstones:
            continue
        by_type.setdefault(part.route.type, []).append(part)
    counts: list[RuleCount] = []
    for type_name, mine in by_type.items():
        filled = [part for part in mine if part.batch.num_rows]
        rules = rules_for(plan.output.expectations, table, type_name) if filled else ()
        checks = checks_of(rules, table.columns) if rules else None
        if checks is not None:
            counts += _not_applied(rules, checks)
        if checks is None or not checks.rules:
            held.parts += mine
            continue
        held.parts += [part for part in mine if not part.batch.num_rows]
        names = checks.schema.names
        values = columns_as_written(filled, table, names, plan, order)
        rows = pa.table([values[name] for name in names], names=names)
        counts += _hold(filled, rows, checks, order, held)
    held.facts += count_facts(table.name, counts)
    return held


def count_changes(table: TablePlan, rows: pa.Table, raw: pa.Table, plan: TaskPlan) -> list[Fact]:
    """Count the events of a log that break rules; all events stay in the log.

    Events without a row are not checked, nor are columns that an event leaves out.
    """
    rules = rules_for(plan.output.expectations, table, table.type)
    if not rules:
        return []
    checks = checks_of(rules, table.columns)
    counts = _not_applied(rules, checks)
    has_row = ~np.asarray(pc.is_in(rows.column("_op"), _WITHOUT_A_ROW))
    verdicts = checks(conform(rows, checks.schema, rows=rows.num_rows)) if checks.rules else []
    for rule, verdict in zip(checks.rules, verdicts, strict=True):
        judged = has_row & ~_left_out(rows.column("_unchanged"), rule)
        counts.append(_count(rule, verdict.broken & judged, int(judged.sum()), raw))
    return count_facts(table.name, counts)


def unfit_rules(rules: tuple[Rule, ...], table: TablePlan) -> dict[str, str]:
    """Return the rules for a table that cannot be applied to it, with the reasons."""
    chosen = rules_for(rules, table, table.type)
    return dict(checks_of(chosen, table.columns).unfit) if chosen else {}


def count_facts(table: str, counts: Iterable[RuleCount]) -> list[Fact]:
    """Return the counts of rules as facts for the driver."""
    summed = sum_counts(counts)
    return [RulesCounted(table, summed)] if summed else []


def count_dropped(raw: pa.Table, decoded: Decoded) -> RuleCount:
    """Count records whose payloads had unknown fields, as a rule with the action `warn`."""
    first = _coordinates(raw, decoded.unknown[0]) if decoded.unknown else None
    checked = raw.num_rows - len(decoded.failed)
    return RuleCount(UNKNOWN_FIELDS, Action.WARN, checked, len(decoded.unknown), first=first)


def _refuses(rule: Rule, order: StageOrder) -> bool:
    """Return whether a row that breaks the rule is kept out of the table, with its record.

    A replayed letter that breaks a `fail` rule stays a letter: it must not stop the other letters.
    """
    again = order.lane != _STREAM
    return rule.action is Action.DEAD_LETTER or (again and rule.action is Action.FAIL)


def _hold(
    parts: Sequence[DecodedPart], rows: pa.Table, checks: Checks, order: StageOrder, held: RuledRows
) -> Iterator[RuleCount]:
    """Check the rows of some parts, add passed parts and letters to `held`, and yield counts."""
    verdicts = list(zip(checks.rules, checks(rows), strict=True))
    start = 0
    for part in parts:
        here = slice(start, start + part.batch.num_rows)
        refused = np.zeros(part.batch.num_rows, np.bool_)
        for rule, verdict in verdicts:
            broken = verdict.broken[here]
            yield _count(rule, broken, len(broken), part.raw)
            if _refuses(rule, order):
                refused |= broken
        if not refused.any():
            held.parts.append(part)
        else:
            rest, first = without_records(part, refused)
            held.parts.append(rest)
            letters = []
            for row in first.tolist():
                why = _message(order, verdicts, rows, start + row)
                letters.append(part.letter(row, ErrorCode.EXPECTATION_FAILED, why, "rules"))
            held.dead.append(letters_batch(part.raw, letters, order))
        start = here.stop


def _not_applied(rules: Iterable[Rule], checks: Checks) -> list[RuleCount]:
    return [
        RuleCount(rule.name, rule.action, unfit=checks.unfit[rule.name])
        for rule in rules
        if rule.name in checks.unfit
    ]


def _count(rule: Rule, broken: Flags, checked: int, raw: pa.Table) -> RuleCount:
    violated = int(broken.sum())
    first = _coordinates(raw, int(np.argmax(broken))) if violated else None
    return RuleCount(rule.name, rule.action, checked, violated, first=first)


def _coordinates(raw: pa.Table, row: int) -> Coordinates:
    topic, partition, offset = (
        raw.column(name)[row].as_py() for name in ("topic", "partition", "offset")
    )
    return str(topic), int(partition), int(offset)


def _left_out(unchanged: pa.ChunkedArray, rule: Rule) -> Flags:
    """Return the events that leave out a column of the rule."""
    flags = np.zeros(len(unchanged), np.bool_)
    lists = unchanged.combine_chunks()
    wanted = {names[0].lower() for names in rule.columns}
    owners = np.asarray(pc.list_parent_indices(lists))
    names = pc.list_flatten(lists).to_pylist()
    flags[[o for o, name in zip(owners, names, strict=True) if name.lower() in wanted]] = True
    return flags


def _message(
    order: StageOrder, verdicts: Sequence[tuple[Rule, Verdict]], rows: pa.Table, row: int
) -> str:
    """Describe the rule that a row breaks, and the row's values."""
    broken = [(r, v) for r, v in verdicts if _refuses(r, order) and v.broken[row]]
    rule, verdict = broken[0]
    how = " cannot be evaluated" if verdict.failed[row] else ""
    parts = [f"{rule.name}{how}: {printable(rule.check, longest=_LONGEST_CHECK)}"]
    parts += [spelled_value(rows, names, row) for names in rule.columns[:_MOST_VALUES]]
    if len(broken) > 1:
        parts.append(f"also breaks {', '.join(other.name for other, _ in broken[1:])}")
    return "; ".join(filter(None, parts))


_CHOSEN: Cache[tuple[Rule, ...]] = Cache(50_000)


def rules_for(rules: tuple[Rule, ...], table: TablePlan, type_name: str) -> tuple[Rule, ...]:
    """Return the rules for rows of a type in a table; a log also has the rules of its table."""

    def chosen() -> tuple[Rule, ...]:
        names = {table.name}
        if table.role is Role.LOG:
            names.add(table.name.removesuffix("_log"))
        types = type_spellings(type_name)
        return tuple(rule for rule in rules if rule.is_for(names, types))

    return _CHOSEN.get((table.name, type_name), chosen, owner=rules)
