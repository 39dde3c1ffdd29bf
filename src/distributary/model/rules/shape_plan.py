"""Shapes: changes to the columns of records before they reach a table."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from distributary.model.record import TIMESTAMP
from distributary.model.rules.shape_rule import MaskMethod, ShapeFunction, SqlExpression
from distributary.model.table import Column

RECORD_COLUMNS = {
    "_key": pa.binary(),
    "_topic": pa.string(),
    "_partition": pa.int32(),
    "_offset": pa.int64(),
    "_timestamp": TIMESTAMP,
    "_batch_time": TIMESTAMP,
}
"""The columns about the record that expressions may name, whatever `tables.metadata` says."""
BATCH_TIME = "_batch_time"
"""The time of the batch: the same for all of its rows, also if it is staged again."""


@dataclass(frozen=True, slots=True)
class Computed:
    """A column that an expression gives."""

    expression: SqlExpression
    sql: str
    """The expression, cast to a type that a table can hold."""
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Mask:
    """The mask of a column, or of a field inside of it."""

    column: str
    fields: tuple[str, ...]
    """The path to a field of the column; empty for all values in it."""
    method: MaskMethod
    length: int = 0
    """For truncate, the number of characters that stay."""
    scope: str = ""
    """For hash, the place for which its values are made."""

    def describe(self) -> str:
        """Return the field and the method, such as `email by token`."""
        return f"{'.'.join((self.column, *self.fields))} by {self.method}"


@dataclass(frozen=True, slots=True)
class ShapePlan:
    """An entry of `shape` for the records of one schema: the columns before, and those after it.

    It is made once, by the planner, so that tasks shape the records as the plan says.
    """

    inputs: tuple[Column, ...]
    """The columns that expressions read. One that the schema lacks is null."""
    where: SqlExpression | None
    computed: tuple[Computed, ...]
    sources: tuple[str | int, ...]
    """For each column after it: the name of the column before, or the number of a computed one."""
    columns: tuple[Column, ...]
    """The columns after it, as a writer's columns: the table evolves by them."""
    exploded: Column | None = None
    """The column of arrays whose items become rows, as it is before that."""
    masks: tuple[Mask, ...] = ()
    """The masks of columns, by the names that they have after it."""
    unmasked: tuple[pa.DataType, ...] = ()
    """The types of the columns before the masks, if there are any."""
    function: ShapeFunction | None = None
    """The function that returns the columns after it; such a shape has nothing else."""
