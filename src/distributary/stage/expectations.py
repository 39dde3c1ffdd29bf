"""Hop two holds rows to their rules: counts, and records that go to the dead letters whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.config.problems import printable
from distributary.errors import ErrorCode
from distributary.model.compact_json import compact
from distributary.model.decoded import Decoded
from distributary.model.expectation import (
    Action,
    Coordinates,
    Rule,
    RuleCount,
    sum_counts,
    type_spellings,
)
from distributary.model.plan import Catalog, StageOrder
from distributary.model.table import Role, TablePlan
from distributary.stage.letters import Letter, letters_batch
from distributary.stage.refusing import Flags, columns_as_written, without_records

if TYPE_CHECKING:
    from distributary.stage.parts import Part
    from distributary.stage.rule_engine import Checks, Verdict

UNKNOWN_FIELDS = "unknown fields"
"""Stands among the names of rules, and can be none: they have no spaces."""

_STREAM = "stream"
_WITHOUT_A_ROW = pa.array(["delete", "truncate"])
_LONGEST_VALUE = 80
_LONGEST_CHECK = 200
_MOST_VALUES = 5


@dataclass(frozen=True, slots=True)
class Held:
    """What is left of a table's parts, and what is to be told about the rest."""

    parts: list[Part]
    dead: list[pa.RecordBatch]
    facts: list[tuple[str, str]]


def held_to_rules(parts: list[Part], catalog: Catalog, order: StageOrder) -> Held:
    """The parts of one table without records that a rule sends to the dead letters."""
    table = catalog.tables.get(parts[0].route.table) if parts else None
    if table is None or table.role is not Role.EACH:
        return Held(parts, [], [])
    by_type: dict[str, list[Part]] = {}
    for part in parts:
        by_type.setdefault(part.route.type, []).append(part)
    kept: list[Part] = []
    dead: list[pa.RecordBatch] = []
    counts: list[RuleCount] = []
    for type_name, mine in by_type.items():
        rules = rules_for(catalog.expectations, table, type_name)
        filled = [part for part in mine if part.batch.num_rows]
        if not rules or not filled:
            kept += mine
            continue
        kept += [part for part in mine if not part.batch.num_rows]
        _hold(filled, _Bench(rules, table, catalog, order), kept, dead, counts)
    return Held(kept, dead, count_facts(table.name, counts))


def count_changes(
    table: TablePlan, rows: pa.Table, raw: pa.Table, catalog: Catalog
) -> list[tuple[str, str]]:
    """What rules say about the events that a log gets; none is ever kept out of it.

    Events without a row, and values that an event leaves out, are not judged.
    """
    rules = rules_for(catalog.expectations, table, table.type)
    if not rules:
        return []
    checks = _checks(rules, table)
    counts = _not_applied(rules, checks)
    has_row = ~np.asarray(pc.is_in(rows.column("_op"), _WITHOUT_A_ROW))
    found = checks(_columns(rows, checks.schema)) if checks.rules else []
    for rule, verdict in zip(checks.rules, found, strict=True):
        judged = has_row & ~_left_out(rows.column("_unchanged"), rule)
        counts.append(_count(rule, verdict.broken & judged, int(judged.sum()), raw))
    return count_facts(table.name, counts)


def unfit_rules(rules: tuple[Rule, ...], table: TablePlan) -> dict[str, str]:
    """Those of the rules for a table that cannot be applied to it, and why."""
    own = rules_for(rules, table, table.type)
    return dict(_checks(own, table).unfit) if own else {}


def count_facts(table: str, counts: Iterable[RuleCount]) -> list[tuple[str, str]]:
    """What a task tells the driver about rules."""
    told = [count.as_dict() for count in sum_counts(counts)]
    return [("rules", compact([table, told]))] if told else []


def count_dropped(raw: pa.Table, decoded: Decoded) -> RuleCount:
    """Records whose payloads had fields that are in no row, as a rule that says `warn`."""
    first = _coordinates(raw, decoded.unknown[0]) if decoded.unknown else None
    checked = raw.num_rows - len(decoded.failed)
    return RuleCount(UNKNOWN_FIELDS, Action.WARN, checked, len(decoded.unknown), first=first)


@dataclass(frozen=True, slots=True)
class _Bench:
    """What it takes to judge the rows of one table and type."""

    rules: tuple[Rule, ...]
    table: TablePlan
    catalog: Catalog
    order: StageOrder

    def refuses(self, rule: Rule) -> bool:
        """Whether a row that breaks the rule is kept out of the table, with its record.

        A letter that is sent again and fails stays a letter: it must not stop the others.
        """
        again = self.order.lane != _STREAM
        return rule.action is Action.DEAD_LETTER or (again and rule.action is Action.FAIL)


def _hold(
    parts: Sequence[Part],
    bench: _Bench,
    kept: list[Part],
    dead: list[pa.RecordBatch],
    counts: list[RuleCount],
) -> None:
    checks = _checks(bench.rules, bench.table)
    counts += _not_applied(bench.rules, checks)
    if not checks.rules:
        kept += parts
        return
    names = checks.schema.names
    known = columns_as_written(parts, bench.table, names, bench.catalog, bench.order)
    rows = pa.table([known[name] for name in names], names=names)
    verdicts = checks(rows)
    start = 0
    for part in parts:
        here = slice(start, start + part.batch.num_rows)
        start = here.stop
        refused = np.zeros(part.batch.num_rows, np.bool_)
        for rule, verdict in zip(checks.rules, verdicts, strict=True):
            broken = verdict.broken[here]
            counts.append(_count(rule, broken, len(broken), part.raw))
            if bench.refuses(rule):
                refused |= broken
        if not refused.any():
            kept.append(part)
            continue
        rest, first = without_records(part, refused)
        kept.append(rest)
        bad = [
            Letter(
                int(row),
                ErrorCode.EXPECTATION_FAILED,
                _message(bench, checks.rules, verdicts, rows, here.start + int(row)),
                "rules",
                type=part.route.type,
                schema_id=part.route.schema_id,
            )
            for row in first
        ]
        dead.append(letters_batch(part.raw, bad, bench.order))


def _checks(rules: tuple[Rule, ...], table: TablePlan) -> Checks:
    # the engine is loaded by those who have a rule, and by nobody else
    from distributary.stage.rule_engine import checks_of

    return checks_of(rules, table.columns)


def _columns(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of a schema; null where these rows have none of them."""
    have = set(rows.column_names)
    arrays = [
        rows.column(f.name) if f.name in have else pa.nulls(rows.num_rows, f.type) for f in schema
    ]
    return pa.table(arrays, schema=schema)


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
    """Events that do not say what a column of the rule is."""
    flags = np.zeros(len(unchanged), np.bool_)
    lists = unchanged.combine_chunks()
    wanted = {names[0].lower() for names in rule.columns}
    owners = np.asarray(pc.list_parent_indices(lists))
    names = pc.list_flatten(lists).to_pylist()
    flags[[o for o, name in zip(owners, names, strict=True) if name.lower() in wanted]] = True
    return flags


def _message(
    bench: _Bench,
    rules: Sequence[Rule],
    verdicts: Sequence[Verdict],
    rows: pa.Table,
    row: int,
) -> str:
    """Which rule a row breaks, and by what."""
    pairs = zip(rules, verdicts, strict=True)
    broken = [(r, v) for r, v in pairs if bench.refuses(r) and v.broken[row]]
    rule, verdict = broken[0]
    how = " cannot be evaluated" if verdict.failed[row] else ""
    parts = [f"{rule.name}{how}: {printable(rule.check, longest=_LONGEST_CHECK)}"]
    parts += [_value(rows, names, row) for names in rule.columns[:_MOST_VALUES]]
    if len(broken) > 1:
        parts.append(f"also breaks {', '.join(other.name for other, _ in broken[1:])}")
    return "; ".join(filter(None, parts))


def _value(rows: pa.Table, names: tuple[str, ...], row: int) -> str:
    by_name = {name.lower(): name for name in rows.column_names}
    if names[0].lower() not in by_name:
        return ""
    try:
        value: Any = rows.column(by_name[names[0].lower()])[row].as_py()
    except (ValueError, OverflowError):
        # a moment that Python has no word for
        return f"{printable('.'.join(names))} = ?"
    for name in names[1:]:
        if not isinstance(value, dict):
            break
        value = {key.lower(): inner for key, inner in value.items()}.get(name.lower())
    text = "null" if value is None else value if isinstance(value, str) else str(value)
    return f"{printable('.'.join(names))} = {printable(text, longest=_LONGEST_VALUE)}"


_CHOSEN: dict[tuple[str, str], tuple[Rule, ...]] = {}
_OF: list[tuple[Rule, ...]] = [()]


def rules_for(rules: tuple[Rule, ...], table: TablePlan, type_name: str) -> tuple[Rule, ...]:
    """The rules for rows of a type in a table; a log goes by its table's name too."""
    if _OF[0] is not rules:
        _OF[0] = rules
        _CHOSEN.clear()
    key = (table.name, type_name)
    if key not in _CHOSEN:
        names = {table.name}
        if table.role is Role.LOG:
            names.add(table.name.removesuffix("_log"))
        types = type_spellings(type_name)
        _CHOSEN[key] = tuple(rule for rule in rules if rule.is_for(names, types))
    return _CHOSEN[key]
