"""Hop two holds rows to their rules: counts, and records that go to the dead letters whole."""

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
from distributary.model.manifest import compact
from distributary.model.plan import StageOrder
from distributary.model.table import Column, Role, TablePlan
from distributary.stage.catalog import Catalog
from distributary.stage.files import Fact, letters_batch
from distributary.stage.partitions import Flags, columns_as_written, without_records

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from distributary.stage.parts import Part


UNKNOWN_FIELDS = "unknown fields"
"""Stands among the names of rules, and can be none: they have no spaces."""

_STREAM = "stream"
_WITHOUT_A_ROW = pa.array(["delete", "truncate"])
_LONGEST_VALUE = 80
_LONGEST_CHECK = 200
_MOST_VALUES = 5


@dataclass(slots=True)
class Held:
    """What is left of a table's parts, and what is to be told about the rest."""

    parts: list[Part] = field(default_factory=list)
    dead: list[pa.RecordBatch] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)


def held_to_rules(parts: list[Part], catalog: Catalog, order: StageOrder) -> Held:
    """The parts of one table without records that a rule sends to the dead letters."""
    table = catalog.tables.get(parts[0].route.table) if parts else None
    if table is None or table.role is not Role.EACH:
        return Held(parts)
    by_type: dict[str, list[Part]] = {}
    for part in parts:
        by_type.setdefault(part.route.type, []).append(part)
    held = Held()
    counts: list[RuleCount] = []
    for type_name, mine in by_type.items():
        filled = [part for part in mine if part.batch.num_rows]
        rules = rules_for(catalog.expectations, table, type_name) if filled else ()
        checks = checks_of(rules, table.columns) if rules else None
        if checks is not None:
            counts += _not_applied(rules, checks)
        if checks is None or not checks.rules:
            held.parts += mine
            continue
        held.parts += [part for part in mine if not part.batch.num_rows]
        names = checks.schema.names
        known = columns_as_written(filled, table, names, catalog, order)
        rows = pa.table([known[name] for name in names], names=names)
        counts += _hold(filled, rows, checks, order, held)
    held.facts += count_facts(table.name, counts)
    return held


def count_changes(table: TablePlan, rows: pa.Table, raw: pa.Table, catalog: Catalog) -> list[Fact]:
    """What rules say about the events that a log gets; none is ever kept out of it.

    Events without a row, and values that an event leaves out, are not judged.
    """
    rules = rules_for(catalog.expectations, table, table.type)
    if not rules:
        return []
    checks = checks_of(rules, table.columns)
    counts = _not_applied(rules, checks)
    has_row = ~np.asarray(pc.is_in(rows.column("_op"), _WITHOUT_A_ROW))
    found = checks(conform(rows, checks.schema, rows=rows.num_rows)) if checks.rules else []
    for rule, verdict in zip(checks.rules, found, strict=True):
        judged = has_row & ~_left_out(rows.column("_unchanged"), rule)
        counts.append(_count(rule, verdict.broken & judged, int(judged.sum()), raw))
    return count_facts(table.name, counts)


def unfit_rules(rules: tuple[Rule, ...], table: TablePlan) -> dict[str, str]:
    """Those of the rules for a table that cannot be applied to it, and why."""
    own = rules_for(rules, table, table.type)
    return dict(checks_of(own, table.columns).unfit) if own else {}


def count_facts(table: str, counts: Iterable[RuleCount]) -> list[Fact]:
    """What a task tells the driver about rules."""
    told = [count.as_dict() for count in sum_counts(counts)]
    return [("rules", compact([table, told]))] if told else []


def count_dropped(raw: pa.Table, decoded: Decoded) -> RuleCount:
    """Records whose payloads had fields that are in no row, as a rule that says `warn`."""
    first = _coordinates(raw, decoded.unknown[0]) if decoded.unknown else None
    checked = raw.num_rows - len(decoded.failed)
    return RuleCount(UNKNOWN_FIELDS, Action.WARN, checked, len(decoded.unknown), first=first)


def _refuses(rule: Rule, order: StageOrder) -> bool:
    """Whether a row that breaks the rule is kept out of the table, with its record.

    A letter that is sent again and fails stays a letter: it must not stop the others.
    """
    again = order.lane != _STREAM
    return rule.action is Action.DEAD_LETTER or (again and rule.action is Action.FAIL)


def _hold(
    parts: Sequence[Part], rows: pa.Table, checks: Checks, order: StageOrder, held: Held
) -> Iterator[RuleCount]:
    """Judge the rows of some parts, and put what is left and what is refused into `held`."""
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
    """Events that do not say what a column of the rule is."""
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
    """Which rule a row breaks, and by what."""
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
        # a moment that Python has no word for
        return f"{printable('.'.join(names))} = ?"
    for name in names[1:]:
        if not isinstance(value, dict):
            break
        value = {key.lower(): inner for key, inner in value.items()}.get(name.lower())
    text = "null" if value is None else value if isinstance(value, str) else str(value)
    return f"{printable('.'.join(names))} = {printable(text, longest=_LONGEST_VALUE)}"


_CHOSEN: Cache[tuple[Rule, ...]] = Cache(50_000)


def rules_for(rules: tuple[Rule, ...], table: TablePlan, type_name: str) -> tuple[Rule, ...]:
    """The rules for rows of a type in a table; a log goes by its table's name too."""

    def chosen() -> tuple[Rule, ...]:
        names = {table.name}
        if table.role is Role.LOG:
            names.add(table.name.removesuffix("_log"))
        types = type_spellings(type_name)
        return tuple(rule for rule in rules if rule.is_for(names, types))

    return _CHOSEN.get((table.name, type_name), chosen, owner=rules)


# Rules over Arrow columns: one prepared query evaluates all rules of a table at once.
#
# A statement is prepared once for some rules and types of columns, over a source that gives
# whatever rows it holds at the moment. The same query again takes 0.4 ms; from the text it would
# be 2 ms.

_MOST_KNOWN = 2_000
"""Prepared statements that are kept."""
_MOST_TRIES = 64
"""How often rows are halved before all of the rest count as broken."""


class Verdict(NamedTuple):
    """What a rule says about rows."""

    broken: Flags
    """Rows that break it; among them those for which it has no value."""
    failed: Flags
    """Rows for which it could not be evaluated: a cast, an overflow."""


@dataclass(slots=True)
class _Source:
    """Gives the engine the rows of the moment, however often it asks."""

    rows: pa.Table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.rows.__arrow_c_stream__(requested_schema)


class _Engine:
    """The one engine of this process; after an error it starts over."""

    def __init__(self) -> None:
        self._connection: DuckDBPyConnection | None = None
        self._prepared = 0
        self.life = 0
        """Changes when everything that was prepared is gone."""

    def types(self, schema: pa.Schema, expressions: Sequence[str]) -> list[str]:
        """The types of expressions over columns; raises what the engine has against them."""
        connection = self._open()
        connection.register("shape", _Source(schema.empty_table()))
        try:
            found = connection.execute(f"DESCRIBE {_select(expressions)} FROM shape").fetchall()
        finally:
            connection.unregister("shape")
        return [str(row[1]) for row in found]

    def prepare(
        self, schema: pa.Schema, expressions: Sequence[str]
    ) -> tuple[_Source, Callable[[], dict[str, Any]]]:
        """A source to put rows into, and the call that evaluates the expressions for them."""
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
        """Forget everything: after some errors an engine answers nothing any more."""
        if self._connection is not None:
            self._connection.close()
        self._connection, self._prepared = None, 0
        self.life += 1

    def _open(self) -> DuckDBPyConnection:
        if self._connection is None:
            self._connection = open_engine()
        return self._connection


def _select(expressions: Sequence[str]) -> str:
    # they were parsed and found harmless when the file was loaded
    return "SELECT " + ", ".join(f"{text} AS v{n}" for n, text in enumerate(expressions))


_ENGINE = _Engine()


class Checks:
    """Those of some rules that fit a table, ready to be evaluated."""

    def __init__(self, rules: Sequence[Rule], columns: Sequence[Column]) -> None:
        self.unfit: dict[str, str] = {}
        """Rules that cannot be evaluated, and why."""
        by_name = {column.name.lower(): column for column in columns}
        self.rules = tuple(self._fitting(rules, by_name))
        self.schema = _schema(self.rules, by_name)
        """The columns that the rules look at."""
        self._life = -1
        self._source: _Source
        self._evaluate: Callable[[], dict[str, Any]]

    def __call__(self, rows: pa.Table) -> list[Verdict]:
        """What each of the rules says about rows that have the columns of `schema`."""
        import duckdb

        tries = [_MOST_TRIES]

        def judged(some: pa.Table) -> list[Verdict]:
            try:
                return self._evaluated(some)
            except duckdb.Error:
                # not an error of one row, which the query itself catches: find the rows by halves
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
        """The rules that can be evaluated; says of the others why they cannot."""
        missing = {rule.name: _missing(rule, by_name) for rule in rules}
        known = [rule for rule in rules if not missing[rule.name]]
        self.unfit = {name: why for name, why in missing.items() if why}
        if len(known) > 1 and not self._unusable(known, by_name):
            return known
        self.unfit |= {r.name: why for r in known if (why := self._unusable([r], by_name))}
        return [rule for rule in known if rule.name not in self.unfit]

    @staticmethod
    def _unusable(rules: Sequence[Rule], by_name: dict[str, Column]) -> str:
        """What the engine has against these rules; empty if nothing."""
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
            found = self._evaluate()
        finally:
            self._source.rows = rows.slice(0, 0)
        return [_verdict(found[f"v{n}"], rows.num_rows) for n in range(len(self.rules))]


def _guarded(rule: Rule) -> str:
    """True or unknown: true. False: false. An error: null."""
    return f"TRY(coalesce({enclosed(rule.check)}, true))"


def _verdict(answer: Any, count: int) -> Verdict:
    if len(answer) != count:
        raise ValueError(f"{len(answer)} answers for {count} rows")
    failed = np.ma.getmaskarray(answer)
    broken = ~np.ma.filled(answer, False).astype(np.bool_)
    return Verdict(broken, failed)


def _schema(rules: Sequence[Rule], by_name: dict[str, Column]) -> pa.Schema:
    """The table's columns that some rules name."""
    named = (by_name.get(names[0].lower()) for rule in rules for names in rule.columns)
    found = dict.fromkeys(column for column in named if column is not None)
    return pa.schema([pa.field(column.name, column.type) for column in found])


def _missing(rule: Rule, by_name: dict[str, Column]) -> str:
    """Which column the table does not have, or which field a column does not."""
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
    """The engine's first line."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return printable(lines[0], longest=200)


_KNOWN: Cache[Checks] = Cache(_MOST_KNOWN)


def checks_of(rules: tuple[Rule, ...], columns: Sequence[Column]) -> Checks:
    """The checks for a table with these columns; tables of one kind share them."""
    wanted = {names[0].lower() for rule in rules for names in rule.columns}
    used = tuple(column for column in columns if column.name.lower() in wanted)
    key = (rules, tuple((column.name, column.type) for column in used))
    return _KNOWN.get(key, lambda: Checks(rules, used))


@atexit.register
def _end() -> None:
    """As with the engine that parses: what is held or hidden at the end is complained about."""
    _KNOWN.clear()
    _ENGINE.reset()
    gc.unfreeze()
