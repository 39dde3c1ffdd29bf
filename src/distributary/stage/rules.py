"""Hop two, expectations: rows are checked against rules, counted, and dead-lettered by record."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.config.document import printable
from distributary.config.expectations import enclosed, is_moment, open_engine
from distributary.delta.parquet import conform
from distributary.errors import ErrorCode
from distributary.model.cache import Cache
from distributary.model.deadletter import Decoded
from distributary.model.expectation import (
    Action,
    Coordinates,
    Rule,
    RuleCount,
    sum_counts,
    type_spellings,
)
from distributary.model.facts import Fact, RulesCounted
from distributary.model.plan import StageOrder
from distributary.model.table import Column, Role, TablePlan
from distributary.stage.files import letters_batch
from distributary.stage.partitions import Flags, columns_as_written, without_records
from distributary.stage.task_plan import TaskPlan

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from distributary.stage.decoding import DecodedPart


UNKNOWN_FIELDS = "unknown fields"
"""The name under which dropped fields are counted; no rule has it, because rule names have no
spaces."""

_STREAM = "stream"
_WITHOUT_A_ROW = pa.array(["delete", "truncate"])
_LONGEST_VALUE = 80
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
    # an event of change data has to be in its log, whatever its row is
    if table is None or plan.changes is not None or table.role not in (Role.EACH, Role.LOG):
        return RuledRows(parts)
    by_type: dict[str, list[DecodedPart]] = {}
    # a record that deletes a row has none to be checked
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
        # The value is a time outside of Python's range.
        return f"{printable('.'.join(names))} = ?"
    for name in names[1:]:
        if not isinstance(value, dict):
            break
        value = {key.lower(): inner for key, inner in value.items()}.get(name.lower())
    text = "null" if value is None else value if isinstance(value, str) else str(value)
    return f"{printable('.'.join(names))} = {printable(text, longest=_LONGEST_VALUE)}"


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


# The evaluation of rules over Arrow columns: one prepared query for all rules of a table.
# A statement is prepared once for a set of rules and column types, over a source whose rows change.
# Running it again takes 0.4 ms; parsing it again would take 2 ms.

_MOST_KNOWN = 2_000
"""How many prepared statements are kept."""
_MOST_TRIES = 64
"""How often rows are halved before all remaining rows count as broken."""


class Verdict(NamedTuple):
    """The result of a rule for rows."""

    broken: Flags
    """Rows that break the rule, including those for which it could not be evaluated."""
    failed: Flags
    """Rows for which the rule could not be evaluated, for instance after a failed cast or an
    overflow."""


@dataclass(slots=True)
class _Source:
    """A source that gives the engine the current rows, each time it reads."""

    rows: pa.Table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.rows.__arrow_c_stream__(requested_schema)


class _Engine:
    """The one DuckDB engine of this process; after an error it starts over."""

    def __init__(self) -> None:
        self._connection: DuckDBPyConnection | None = None
        self._prepared = 0
        self.life = 0
        """A number that changes when all prepared statements are gone."""

    def types(self, schema: pa.Schema, expressions: Sequence[str]) -> list[str]:
        """Return the types of expressions over columns.

        Raise the engine's error for invalid ones.
        """
        connection = self._open()
        connection.register("shape", _Source(schema.empty_table()))
        try:
            described = connection.execute(f"DESCRIBE {_select(expressions)} FROM shape").fetchall()
        finally:
            connection.unregister("shape")
        return [str(row[1]) for row in described]

    def prepare(
        self, schema: pa.Schema, expressions: Sequence[str]
    ) -> tuple[_Source, Callable[[], dict[str, Any]]]:
        """Prepare a statement; return the source for its rows, and the call that evaluates it."""
        if self._prepared >= _MOST_KNOWN:
            self.reset()
        connection = self._open()
        self._prepared += 1
        number = self._prepared
        source = _Source(schema.empty_table())
        connection.register(f"rows_{number}", source)
        connection.execute(f"PREPARE rules_{number} AS {_select(expressions)} FROM rows_{number}")
        return source, lambda: connection.execute(f"EXECUTE rules_{number}").fetchnumpy()

    def reset(self) -> None:
        """Close the engine: after some errors it fails every further statement."""
        if self._connection is not None:
            self._connection.close()
        self._connection, self._prepared = None, 0
        self.life += 1

    def _open(self) -> DuckDBPyConnection:
        if self._connection is None:
            self._connection = open_engine()
        return self._connection


def _select(expressions: Sequence[str]) -> str:
    # The expressions were parsed and found harmless when the pipeline file was loaded.
    return "SELECT " + ", ".join(f"{text} AS v{n}" for n, text in enumerate(expressions))


_ENGINE = _Engine()


class Checks:
    """The rules that fit a table, ready to be evaluated."""

    def __init__(self, rules: Sequence[Rule], columns: Sequence[Column]) -> None:
        self.unfit: dict[str, str] = {}
        """The rules that cannot be evaluated, with the reasons."""
        by_name = {column.name.lower(): column for column in columns}
        self.rules = tuple(self._fitting(rules, by_name))
        self.schema = _schema(self.rules, by_name)
        """The columns that the rules use."""
        self._life = -1
        self._source: _Source
        self._evaluate: Callable[[], dict[str, Any]]

    def __call__(self, rows: pa.Table) -> list[Verdict]:
        """Return each rule's verdict on rows with the columns of `schema`."""
        import duckdb

        tries = [_MOST_TRIES]

        def judged(some: pa.Table) -> list[Verdict]:
            try:
                return self._evaluated(some)
            except duckdb.Error:
                # The query catches errors of single rows, so this error is another: find its rows
                # by halving.
                _ENGINE.reset()
            tries[0] -= 1
            half = some.num_rows // 2
            if not half or tries[0] <= 0:
                every = np.ones(some.num_rows, np.bool_)
                return [Verdict(every, every)] * len(self.rules)
            pairs = zip(judged(some.slice(0, half)), judged(some.slice(half)), strict=True)
            return [Verdict(*map(np.concatenate, zip(*pair, strict=True))) for pair in pairs]

        return judged(rows.select(self.schema.names).cast(self.schema))

    def _fitting(self, rules: Sequence[Rule], by_name: dict[str, Column]) -> list[Rule]:
        """Return the rules that can be evaluated; record the reasons for the others in `unfit`."""
        missing = {rule.name: _missing(rule, by_name) for rule in rules}
        complete = [rule for rule in rules if not missing[rule.name]]
        self.unfit = {name: why for name, why in missing.items() if why}
        if len(complete) > 1 and not self._unusable(complete, by_name):
            return complete
        self.unfit |= {r.name: why for r in complete if (why := self._unusable([r], by_name))}
        return [rule for rule in complete if rule.name not in self.unfit]

    @staticmethod
    def _unusable(rules: Sequence[Rule], by_name: dict[str, Column]) -> str:
        """Return the engine's error for these rules; empty if there is none."""
        import duckdb

        plain = [enclosed(rule.check) for rule in rules]
        try:
            types = _ENGINE.types(_schema(rules, by_name), [*plain, *map(_guarded, rules)])
        except duckdb.FatalException as error:
            _ENGINE.reset()
            return _words(error)
        except duckdb.Error as error:
            return _words(error)
        other = next((t for t in types[: len(rules)] if t != "BOOLEAN"), "")
        return f"gives {printable(other)}, not true or false" if other else ""

    def _evaluated(self, rows: pa.Table) -> list[Verdict]:
        if self._life != _ENGINE.life:
            self._source, self._evaluate = _ENGINE.prepare(
                self.schema, [_guarded(rule) for rule in self.rules]
            )
            self._life = _ENGINE.life
        self._source.rows = rows
        try:
            answers = self._evaluate()
        finally:
            self._source.rows = rows.slice(0, 0)
        return [_verdict(answers[f"v{n}"], rows.num_rows) for n in range(len(self.rules))]


def _guarded(rule: Rule) -> str:
    """Return SQL that gives true for true or unknown, false for false, and null for an error."""
    return f"TRY(coalesce({enclosed(rule.check)}, true))"


def _verdict(answer: Any, count: int) -> Verdict:
    if len(answer) != count:
        raise ValueError(f"{len(answer)} answers for {count} rows")
    failed = np.ma.getmaskarray(answer)
    broken = ~np.ma.filled(answer, False).astype(np.bool_)
    return Verdict(broken, failed)


def _schema(rules: Sequence[Rule], by_name: dict[str, Column]) -> pa.Schema:
    """Return the table's columns that some rules name."""
    named = (by_name.get(names[0].lower()) for rule in rules for names in rule.columns)
    used = dict.fromkeys(column for column in named if column is not None)
    return pa.schema([pa.field(column.name, column.type) for column in used])


def _missing(rule: Rule, by_name: dict[str, Column]) -> str:
    """Return the column or field that a rule names and the table lacks.

    Empty if none is missing.
    """
    for names in rule.columns:
        column = by_name.get(names[0].lower())
        if column is None:
            if is_moment(names):
                continue
            return f"no column {printable(names[0])}"
        here = column.type
        for name in names[1:]:
            if not pa.types.is_struct(here):
                break
            inside = {field.name.lower(): field.type for field in here}
            if name.lower() not in inside:
                return f"no field {printable('.'.join(names))}"
            here = inside[name.lower()]
    return ""


def _words(error: Exception) -> str:
    """Return the first line of the engine's error."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return printable(lines[0], longest=200)


_KNOWN: Cache[Checks] = Cache(_MOST_KNOWN)


def checks_of(rules: tuple[Rule, ...], columns: Sequence[Column]) -> Checks:
    """Return the checks for a table with these columns; tables with equal columns share them."""
    wanted = {names[0].lower() for rule in rules for names in rule.columns}
    used = tuple(column for column in columns if column.name.lower() in wanted)
    key = (rules, tuple((column.name, column.type) for column in used))
    return _KNOWN.get(key, lambda: Checks(rules, used))


@atexit.register
def _end() -> None:
    """Release the engine before the interpreter ends: DuckDB complains about open objects."""
    _KNOWN.clear()
    _ENGINE.reset()
    gc.unfreeze()
