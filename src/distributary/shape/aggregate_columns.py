"""Aggregates over the columns of a table: their columns and types, and the SQL that computes them.

A group has a state from which its values follow, and which can be added and taken away exactly:
counts and sums of whole numbers and decimals. Bounds can be added; a group that may have lost one
is computed again. A sum of floating-point numbers depends on their order, so there is none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import pyarrow as pa
from pyarrow import types as kinds

from distributary.config.rules.expressions import enclosed
from distributary.model.cache import Cache
from distributary.model.names import printable, quoted
from distributary.model.rules.aggregate_rule import (
    ROWS,
    AggregateColumn,
    AggregateFunction,
    AggregateRule,
)
from distributary.model.rules.shape_rule import SqlExpression
from distributary.model.table import Column
from distributary.shape.checks import missing_column
from distributary.shape.evaluation import ENGINE, engine_words, input_schema
from distributary.shape.resolve import STORED_AS, ShapeError, Unapplied, stored_type

_DELETED = "_deleted"
_DECIMAL = re.compile(r"DECIMAL\((\d+),\s*(\d+)\)")
_FLOATS = frozenset({"FLOAT", "DOUBLE"})
_SUMS = frozenset({AggregateFunction.SUM, AggregateFunction.AVG})
_MOST_KNOWN = 2_000


@dataclass(frozen=True, slots=True)
class PartialState:
    """A part of a group's state: a column of partial results, and one of the table."""

    column: str
    """The column of the aggregate table that holds it."""
    kind: str
    """count, sum, min or max."""
    argument: int | None
    """The number of the expression; None for all rows of the group."""
    sql_type: str
    type: pa.DataType

    @property
    def is_bound(self) -> bool:
        """Return whether it cannot be taken away from."""
        return self.kind in ("min", "max")


@dataclass(frozen=True)
class Aggregates:
    """The aggregates of one entry over a table with certain columns."""

    groups: tuple[tuple[Column, str], ...]
    """The columns of the group with their expressions."""
    plain: dict[str, str]
    """Groups that are just a column of the table, with that column."""
    values: tuple[tuple[AggregateColumn, pa.DataType, str], ...]
    """The columns of the entry with their types and the SQL that gives them from the state."""
    arguments: tuple[str, ...]
    """The expressions that states read."""
    states: tuple[PartialState, ...]
    inputs: pa.Schema
    """The columns of the source table that expressions read."""
    skips_deleted: bool
    unapplied: tuple[Unapplied, ...] = field(default=(), compare=False)
    """Columns of the entry that the table gives no reason to compute, with the reasons."""

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """Return the columns of the aggregate table."""
        own = [Column(c.name, type_, comment=c.text) for c, type_, _ in self.values]
        mine = {column.name for column in own}
        hidden = [
            Column(s.column, s.type, comment=f"state: {s.kind}")
            for s in self.states
            if s.column not in mine
        ]
        return (*(group for group, _ in self.groups), *own, *hidden)

    @cached_property
    def schema(self) -> pa.Schema:
        """Return the columns of the aggregate table as an Arrow schema."""
        return input_schema(self.columns)

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the names of the columns of the group."""
        return tuple(group.name for group, _ in self.groups)

    @property
    def signature(self) -> list[object]:
        """Return what two computations must have in common to be added."""
        groups = [[group.name, str(group.type), text] for group, text in self.groups]
        values = [[c.name, c.text, str(type_)] for c, type_, _ in self.values]
        states = [[s.column, s.kind, str(s.type)] for s in self.states]
        return [groups, values, states, self.skips_deleted]

    @cached_property
    def text(self) -> str:
        """Return a text that is equal for aggregates with the same statements."""
        inputs = [[f.name, str(f.type)] for f in self.inputs]
        return json.dumps([self.signature, self.arguments, inputs], ensure_ascii=False)

    def of_several(self) -> Aggregates:
        """Return the aggregates of the rows of several tables, with the table's number first."""
        taken = {name.lower() for name in (*self.inputs.names, *self.schema.names)}
        name = "_table"
        while name in taken:
            name += "_"
        number = (Column(name, pa.int32()), quoted(name))
        inputs = self.inputs.append(pa.field(name, pa.int32()))
        return replace(self, groups=(number, *self.groups), inputs=inputs)

    # Statements. A partial result has the columns of the group, then _s0, _s1 and so on.

    def partial(self, source: str) -> str:
        """Return the statement that computes partial results of rows of the source table."""
        groups = [f"{text} AS {quoted(group.name)}" for group, text in self.groups]
        arguments = [f"{text} AS _a{number}" for number, text in enumerate(self.arguments)]
        where = f" WHERE NOT coalesce({quoted(_DELETED)}, false)" if self.skips_deleted else ""
        read = f"SELECT {', '.join([*groups, *arguments])} FROM {source}{where}"  # noqa: S608
        states = [
            f"CAST({_function(s)} AS {s.sql_type}) AS _s{n}" for n, s in enumerate(self.states)
        ]
        names = ", ".join(map(quoted, self.keys))
        return f"SELECT {names}, {', '.join(states)} FROM ({read}) GROUP BY {names}"  # noqa: S608

    def combined(self, source: str) -> str:
        """Return the statement that makes one partial result for each group of several."""
        states = [
            f"CAST({'sum' if not s.is_bound else s.kind}(_s{n}) AS {s.sql_type}) AS _s{n}"
            for n, s in enumerate(self.states)
        ]
        names = ", ".join(map(quoted, self.keys))
        return f"SELECT {names}, {', '.join(states)} FROM {source} GROUP BY {names}"  # noqa: S608

    def rows(self, source: str, *more: str) -> str:
        """Return the statement that makes rows of the table, and `more`, of partial results."""
        hidden = self.columns[len(self.groups) + len(self.values) :]
        number = {state.column: n for n, state in enumerate(self.states)}
        items = [quoted(name) for name in self.keys]
        items += [f"{text} AS {quoted(column.name)}" for column, _, text in self.values]
        items += [
            f"{self._plain_state(number[column.name])} AS {quoted(column.name)}"
            for column in hidden
        ]
        items += list(more)
        return f"SELECT {', '.join(items)} FROM {source}"  # noqa: S608

    def finished(self, net: str, old: str, *, once: bool) -> str:
        """Return the statement that adds `net` to rows in `old`, and makes rows of the table."""
        merged = self.merged(net, old, once=once)
        return self.rows(f"({merged})", "_s0", "_lost")

    def appended(self, source: str, old: str) -> str:
        """Return the statement that adds rows to groups in `old`, and makes rows of the table.

        No row left: this is `partial` and `finished` in one.
        """
        names = ", ".join(map(quoted, self.keys))
        states = ", ".join(
            f"_s{n} AS _p{n}, CAST(NULL AS {state.sql_type}) AS _m{n}"
            for n, state in enumerate(self.states)
        )
        net = f"(SELECT {names}, {states} FROM ({self.partial(source)}))"  # noqa: S608
        return self.finished(net, old, once=True)

    def _plain_state(self, number: int) -> str:
        """Return a part of the state as the table has it: a sum of no values is null."""
        if self.states[number].kind != "sum":
            return f"_s{number}"
        return f"CASE WHEN _s{number - 1} > 0 THEN _s{number} END"

    def same_group(self, one: str, other: str) -> str:
        """Return the condition by which rows of two tables are of the same group."""
        pairs = (f"{one}.{quoted(n)} IS NOT DISTINCT FROM {other}.{quoted(n)}" for n in self.keys)
        return " AND ".join(pairs)

    def among(self, items: str, rows: str, keys: str) -> str:
        """Return the statement that selects from the rows `o` whose groups are in `keys`."""
        same = self.same_group("o", "k")
        return f"SELECT {items} FROM {rows} o SEMI JOIN {keys} k ON {same}"  # noqa: S608

    def compared(self, found: str, expected: str) -> str:
        """Return the statement that finds the groups in which two tables differ."""
        names = ", ".join(map(quoted, self.keys))
        return (
            f"WITH a AS (SELECT * FROM {found} EXCEPT ALL SELECT * FROM {expected}), "  # noqa: S608
            f"b AS (SELECT * FROM {expected} EXCEPT ALL SELECT * FROM {found}), "
            f"wrong AS (SELECT {names}, 1 AS _has, 0 AS _wants FROM a UNION ALL "
            f"SELECT {names}, 0, 1 FROM b) SELECT {names}, CASE WHEN sum(_has) > 0 AND "
            "sum(_wants) > 0 THEN 'differs' WHEN sum(_has) > 0 THEN 'is not there' "
            f"ELSE 'is missing' END AS _what FROM wrong GROUP BY {names}"
        )

    def net(self, source: str, *, once: bool) -> str:
        """Return the statement that puts what came (p) and what left (m) of a group in one row.

        The column `_kind` is 1 for what came and -1 for what left. Where all of it happened `once`,
        in one commit, groups of which as much came as left are as they were.
        """
        names = ", ".join(map(quoted, self.keys))
        numbers = range(len(self.states))
        items = [
            f"min(_s{n}) FILTER (_kind = {kind}) AS {side}{n}"
            for side, kind in (("_p", 1), ("_m", -1))
            for n in numbers
        ]
        net = f"SELECT {names}, {', '.join(items)} FROM {source} GROUP BY {names}"  # noqa: S608
        if not once:
            return net
        other = " OR ".join(f"_p{n} IS DISTINCT FROM _m{n}" for n in numbers)
        return f"SELECT * FROM ({net}) WHERE {other}"  # noqa: S608

    def merged(self, net: str, old: str, *, once: bool) -> str:
        """Return the statement that adds `net` to the state of rows in `old`.

        `_lost` is true for groups whose bound may have left: the others do not say what follows it.
        What left in one commit (`once`) had been there before it, and what came in it has not.
        """
        items = [f"n.{quoted(name)}" for name in self.keys]
        lost = ["false"]
        for n, state in enumerate(self.states):
            if not state.is_bound:
                zero = f"CAST(0 AS {state.sql_type})"
                new = (
                    f"coalesce(o._s{n}, {zero}) + coalesce(_p{n}, {zero}) - coalesce(_m{n}, {zero})"
                )
                items.append(f"CAST({new} AS {state.sql_type}) AS _s{n}")
                continue
            function, beyond, before = (
                ("least", ">", "<") if state.kind == "min" else ("greatest", "<", ">")
            )
            both = f"{function}(o._s{n}, _p{n})"
            known = f"o._s{n}" if once else both
            stays = f"coalesce(_m{n} {beyond} {known}, _m{n} IS NULL)"
            if once:
                back = f"coalesce(_p{n} = _m{n} OR _p{n} {before} _m{n}, false)"
                items.append(f"CASE WHEN {stays} THEN {both} WHEN {back} THEN _p{n} END AS _s{n}")
                lost.append(f"NOT ({stays} OR {back})")
            else:
                items.append(f"CASE WHEN {stays} THEN {both} END AS _s{n}")
                lost.append(f"NOT {stays}")
        items.append(f"({' OR '.join(lost)}) AS _lost")
        return (
            f"SELECT {', '.join(items)} FROM {net} n LEFT JOIN {old} o "  # noqa: S608
            f"ON {self.same_group('n', 'o')}"
        )


def _function(state: PartialState) -> str:
    if state.argument is None:
        return "count(*)"
    return f"{state.kind}(_a{state.argument})"


class _Resolution:
    """One entry and the columns of one table."""

    def __init__(
        self, rule: AggregateRule, columns: Sequence[Column], *, skips_deleted: bool
    ) -> None:
        self._rule = rule
        self._skips_deleted = skips_deleted
        self._there = {column.name.lower(): column for column in columns}
        self._inputs: dict[str, Column] = {}
        self._arguments: dict[str, int] = {}
        self._states: list[PartialState] = []
        self._unapplied: list[Unapplied] = []

    def aggregates(self) -> Aggregates:
        """Return the resolved aggregates."""
        self._state(ROWS, "count", None, "BIGINT")
        groups, plain = [], {}
        for name, expression in self._rule.group_by:
            type_, text = self._group(expression)
            comment = " ".join(expression.text.split())
            groups.append((Column(name, type_, comment=comment), text))
            if (column := self._plain(expression)) is not None:
                plain[name] = column.name
        values = []
        for wanted in self._rule.columns:
            try:
                values.append(self._value(wanted))
            except ShapeError as error:
                self._unapplied.append(Unapplied(wanted.name, str(error)))
        deleted = self._there.get(_DELETED)
        skips = self._skips_deleted and deleted is not None
        if skips and deleted is not None:
            self._inputs[_DELETED] = deleted
        return Aggregates(
            groups=tuple(groups),
            plain=plain,
            values=tuple(values),
            arguments=tuple(self._arguments),
            states=tuple(self._states),
            inputs=input_schema(tuple(self._inputs.values())),
            skips_deleted=skips,
            unapplied=tuple(self._unapplied),
        )

    def _group(self, expression: SqlExpression) -> tuple[pa.DataType, str]:
        found, text = self._typed(expression)
        type_ = self._stored(text, found)
        if found in _FLOATS or not _has_order(type_):
            raise ShapeError(
                f"group_by: {printable(expression.setting)} is {printable(found)}, by which rows "
                "are not grouped; cast it, such as to VARCHAR"
            )
        return type_, text

    def _value(self, column: AggregateColumn) -> tuple[AggregateColumn, pa.DataType, str]:
        name, function = column.name, column.function
        if column.expression is None:
            return column, pa.int64(), "_s0"
        before = dict(self._inputs)
        try:
            found, text = self._typed(column.expression)
            if function in _SUMS:
                scale, summed = _summed(found)
            type_ = self._stored(text, found)
            if function in (AggregateFunction.MIN, AggregateFunction.MAX) and not _has_order(type_):
                raise ShapeError(f"{printable(found)} has no order here")
        except ShapeError:
            self._inputs = before
            raise
        argument = self._arguments.setdefault(text, len(self._arguments))
        if function is AggregateFunction.COUNT:
            return column, pa.int64(), self._state(name, "count", argument, "BIGINT")
        if function in (AggregateFunction.MIN, AggregateFunction.MAX):
            return column, type_, self._state(name, str(function), argument, found, type_)
        count = self._state(f"_{name}_count", "count", argument, "BIGINT")
        if function is AggregateFunction.SUM:
            result = pa.int64() if summed == "BIGINT" else pa.decimal128(38, scale)
            total = self._state(name, "sum", argument, summed, result)
            return column, result, f"CASE WHEN {count} > 0 THEN {total} END"
        wide = f"DECIMAL(38, {scale})"
        total = self._state(f"_{name}_sum", "sum", argument, wide, pa.decimal128(38, scale))
        mean = f"CASE WHEN {count} > 0 THEN CAST({total} AS DOUBLE) / {count} END"
        return column, pa.float64(), mean

    def _state(
        self,
        column: str,
        kind: str,
        argument: int | None,
        sql_type: str,
        type_: pa.DataType | None = None,
    ) -> str:
        """Note a part of the state; return its name in partial results."""
        self._states.append(PartialState(column, kind, argument, sql_type, type_ or pa.int64()))
        return f"_s{len(self._states) - 1}"

    def _plain(self, expression: SqlExpression) -> Column | None:
        """Return the column that an expression names and does nothing with."""
        if len(expression.columns) != 1 or len(expression.columns[0]) != 1:
            return None
        (name,) = expression.columns[0]
        bare = expression.text.strip() in (name, quoted(name))
        return self._there.get(name.lower()) if bare else None

    def _typed(self, expression: SqlExpression) -> tuple[str, str]:
        """Return the type of an expression and its SQL, which gives null where it fails."""
        import duckdb

        if why := missing_column(expression.columns, self._there):
            raise ShapeError(why)
        used = [self._there.get(names[0].lower()) for names in expression.columns]
        mine = [column for column in used if column is not None]
        inputs = {column.name: column for column in mine}
        try:
            schema = input_schema(tuple(inputs.values()))
            (found,) = ENGINE.types(schema, [enclosed(expression.text)])
        except duckdb.Error as error:
            if isinstance(error, duckdb.FatalException):
                ENGINE.reset()
            raise ShapeError(engine_words(error)) from None
        self._inputs |= {column.name.lower(): column for column in mine}
        stored = STORED_AS.get(found, "VARCHAR" if found.startswith("ENUM(") else "")
        text = enclosed(expression.text)
        text = f"CAST({text} AS {stored})" if stored else text
        column = self._plain(expression)
        if column is not None and not stored:
            return found, quoted(column.name)
        return stored or found, f"TRY({text})"

    def _stored(self, text: str, found: str) -> pa.DataType:
        schema = ENGINE.schema(input_schema(tuple(self._inputs.values())), [text])
        type_ = stored_type(schema.field(0).type)
        if type_ is None:
            raise ShapeError(f"gives {printable(found)}, which no table holds")
        return type_


def _has_order(type_: pa.DataType) -> bool:
    """Return whether values of a type are compared the same way everywhere."""
    scalar = kinds.is_integer(type_) or kinds.is_decimal(type_) or kinds.is_floating(type_)
    scalar = scalar or kinds.is_boolean(type_) or kinds.is_string(type_)
    return bool(scalar or kinds.is_date32(type_) or kinds.is_timestamp(type_))


def _summed(found: str) -> tuple[int, str]:
    """Return the scale of an exact sum of values of a type, and its type in SQL."""
    if found == "INTEGER":
        return 0, "BIGINT"
    if found == "BIGINT":
        # a sum of two values may exceed BIGINT, which must not park the table
        return 0, "DECIMAL(38, 0)"
    if match := _DECIMAL.fullmatch(found):
        return int(match[2]), f"DECIMAL(38, {match[2]})"
    if found in _FLOATS:
        raise ShapeError(
            f"{printable(found)} has no exact sum: it depends on the order; cast it, such as to "
            "DECIMAL(18, 6)"
        )
    raise ShapeError(f"{printable(found)} has no sum")


_KNOWN: Cache[Aggregates | ShapeError] = Cache(_MOST_KNOWN)


def aggregates_of(
    rule: AggregateRule, columns: Sequence[Column], *, skips_deleted: bool
) -> Aggregates:
    """Return the aggregates of an entry over a table's columns; tables that agree share them.

    Rows that are marked as deleted do not count if the table has them. Raise ShapeError if the
    groups cannot be made.
    """
    texts = (*(e for _, e in rule.group_by), *(c.expression for c in rule.columns))
    names = {path[0].lower() for text in texts if text is not None for path in text.columns}
    names |= {_DELETED} if skips_deleted else set()
    used = tuple(column for column in columns if column.name.lower() in names)
    key = (rule, skips_deleted, tuple((column.name, column.type) for column in used))

    def resolved() -> Aggregates | ShapeError:
        try:
            return _Resolution(rule, used, skips_deleted=skips_deleted).aggregates()
        except ShapeError as error:
            return error

    found = _KNOWN.get(key, resolved)
    if isinstance(found, ShapeError):
        raise found
    return found
