"""The entries of `aggregates`: groups of a table's rows, and the values that are kept for each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from distributary.model.rules.shape_rule import SqlExpression

ROWS = "_rows"
"""The column of an aggregate table with the number of rows in a group."""


class AggregateFunction(StrEnum):
    """A function over the rows of a group."""

    COUNT = "count"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    AVG = "avg"


@dataclass(frozen=True, slots=True)
class AggregateColumn:
    """A column of an aggregate table, with its function."""

    name: str
    function: AggregateFunction
    expression: SqlExpression | None
    """The argument of the function; None for `count(*)`."""

    @property
    def text(self) -> str:
        """Return the column as the pipeline file has it."""
        argument = "*" if self.expression is None else self.expression.text
        return f"{self.function}({argument})"


@dataclass(frozen=True, slots=True)
class AggregateRule:
    """One entry of `aggregates`, as the planner and the tasks use it."""

    name: str
    """The template of the table's name, by which the entry is found again."""
    group_by: tuple[tuple[str, SqlExpression], ...]
    columns: tuple[AggregateColumn, ...]
