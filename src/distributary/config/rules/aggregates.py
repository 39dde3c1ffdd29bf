"""The section `aggregates`: tables of sums, counts and bounds that follow other tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from distributary.config.base import (
    Conflict,
    Section,
    Text,
    Texts,
    either,
    matching,
    placeholders,
)
from distributary.config.lake import Tables
from distributary.config.rules.expressions import (
    ExpressionError,
    called_function,
    columns_of,
    valid_expression,
)
from distributary.config.rules.shape import NewColumn
from distributary.model.rules.aggregate_rule import (
    AggregateColumn,
    AggregateFunction,
    AggregateRule,
)
from distributary.model.rules.expectation import any_fits
from distributary.model.rules.shape_rule import SqlExpression
from distributary.model.table_format import DELTA, stored_format

_CALL = re.compile(r"\s*([A-Za-z_]\w*)\s*\((.*)\)\s*", re.DOTALL)
_PLAIN = re.compile(r"[^\W\d]\w*")
_KNOWN = ", ".join(AggregateFunction)
_PLACES = ("type", "table")

_argument = partial(valid_expression, repeatable=True, constant=True)


def _refused(why: str) -> PydanticCustomError:
    return PydanticCustomError("aggregate", "{why}", {"why": why})


def _call(value: str) -> str:
    """Validate the call of an aggregate function."""
    text = value.strip()
    function, argument = split_call(text)
    if argument is not None:
        _argument(argument)
    try:
        called = called_function(text)
    except ExpressionError as error:
        raise _refused(str(error)) from None
    if called != ("count_star" if argument is None else str(function)):
        raise _refused("must be one call of a function with one argument, and nothing else")
    return text


def split_call(text: str) -> tuple[AggregateFunction, str | None]:
    """Return the function and the argument of a call; None stands for the star of `count(*)`."""
    match = _CALL.fullmatch(text)
    if match is None or match[1].lower() not in set(AggregateFunction):
        raise _refused(f"must be a call of {_KNOWN}, such as sum(score)")
    function, argument = AggregateFunction(match[1].lower()), match[2].strip()
    if argument == "*" and function is AggregateFunction.COUNT:
        return function, None
    return function, argument


def _named(value: object) -> object:
    """Return groups as a mapping: an item of a list is a column, or a name with an expression."""
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")]
    if not isinstance(value, list | tuple):
        return value
    groups: dict[Any, Any] = {}
    for item in value:
        if isinstance(item, str) and not _PLAIN.fullmatch(item.strip()):
            raise _refused("must give an expression a name, such as {day: date_trunc('day', seen)}")
        for name, text in item.items() if isinstance(item, Mapping) else ((item, item),):
            if name in groups:
                raise _refused(f"names {name} twice")
            groups[name] = text
    return groups


_Call = Annotated[str, AfterValidator(_call)]
_Group = Annotated[str, AfterValidator(partial(valid_expression, repeatable=True, constant=False))]
_TEXT: dict[str, Any] = {"type": "string"}
_PAIRS: dict[str, Any] = {"type": "object", "additionalProperties": _TEXT, "minProperties": 1}
_Groups = Annotated[
    Mapping[NewColumn, _Group],
    BeforeValidator(_named),
    either(_TEXT, _PAIRS, {"type": "array", "items": {"anyOf": [_TEXT, _PAIRS]}, "minItems": 1}),
]
_Template = Annotated[
    Text,
    matching(
        r"(?:[A-Za-z]|\{(?:type|table)\})(?:\w|\{(?:type|table)\}){0,118}",
        "aggregate_name",
        "must be letters, digits, _ and the placeholders {type} and {table}, a letter first",
    ),
]


class AggregateConfig(Section):
    """A table with a row for each group of another table's rows, kept current in each batch."""

    tables: Texts = Field(default=(), examples=[["silver_*"]])
    """Tables per type that get such a table, with the wildcards * and ?; all tables per type when
    left out. For change data and tables with a key, the table of current rows counts."""
    name: _Template = Field(examples=["gold_{type}_player_agg"])
    """Name of the table. `{table}` is the name of the table per type, `{type}` the part of that
    name that stands for the type; `tables.prefix` comes first."""
    group_by: _Groups = Field(
        min_length=1, examples=[["player_id"], {"day": "date_trunc('day', _timestamp)"}]
    )
    """Columns whose values make a group, or names with expressions in SQL over the columns."""
    columns: Mapping[NewColumn, _Call] = Field(
        min_length=1, examples=[{"games": "count(*)", "points": "sum(score)"}]
    )
    """Columns with a value for each group: a call of count, sum, min, max or avg with an expression
    in SQL over the columns of the table, or `count(*)`."""
    deletes_as: Literal["rewrite", "vectors"] = "rewrite"
    """How a changed row is removed from a large file of the table. rewrite: the file is written
    again without the row; vectors: a deletion vector, a small file beside it, marks the row.
    Readers of the table must then support deletion vectors."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield settings of one entry that contradict each other."""
        names = [*self.group_by, *self.columns]
        folded = [name.casefold() for name in names]
        for number, name in enumerate(names):
            if folded.index(name.casefold()) < number:
                yield ("columns",), f"makes two columns of the name {name}"
                return
        single = len(self.tables) == 1 and not set("*?") & set(self.tables[0])
        if not single and not placeholders(self.name):
            yield ("name",), "needs {type} or {table}: each table gets one of its own"

    def fits(self, table: str) -> bool:
        """Return whether a table gets this aggregate."""
        return any_fits(self.tables, (table,))

    def rule(self) -> AggregateRule:
        """Return the entry as the planner and the tasks use it."""
        columns = []
        for name, text in self.columns.items():
            function, argument = split_call(text)
            inside = None if argument is None else _expression(name, argument)
            columns.append(AggregateColumn(name, function, inside))
        groups = tuple((name, _expression(name, text)) for name, text in self.group_by.items())
        return AggregateRule(self.name, groups, tuple(columns))


def _expression(setting: str, text: str) -> SqlExpression:
    return SqlExpression(setting, text, columns_of(text, repeatable=True))


def aggregate_conflicts(
    aggregates: Sequence[AggregateConfig], tables: Tables
) -> Iterator[Conflict]:
    """Yield what `aggregates` cannot do in this pipeline, each with its place."""
    if not aggregates:
        return
    if not tables.each:
        yield ("aggregates",), "needs tables.each: it follows the tables per type"
    if stored_format(tables.format) != DELTA:
        yield ("tables", "format"), f"must be {DELTA} for aggregates: they follow the table's log"
    others = {name for setting, name in tables.fixed_names().items() if setting != "each"}
    seen: set[str] = set()
    for number, one in enumerate(aggregates):
        if one.name.casefold() in seen:
            yield ("aggregates", number, "name"), "is the name of another entry"
        seen.add(one.name.casefold())
        if one.name in tables.fixed_names().values():
            yield ("aggregates", number, "name"), "is the name of another table"
        for table in sorted(others.intersection(one.tables)):
            why = f"names {table}, but only tables per type have aggregates"
            yield ("aggregates", number, "tables"), why
