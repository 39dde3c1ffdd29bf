"""Rows of one file in the columns of another time: missing ones are null, narrower ones wider."""

from __future__ import annotations

import pyarrow as pa

from distributary.evolve.align import align
from distributary.evolve.place import fits
from distributary.model.table import Fill
from distributary.publish.columns import ColumnConflictError


def conform(table: pa.Table, schema: pa.Schema, *, rows: int, lenient: bool = False) -> pa.Table:
    """The table with exactly these columns, in this order and of these types.

    Raises ColumnConflictError where values would be lost; they are null instead when `lenient`.
    """
    have = set(table.column_names)
    columns = [
        _column(table.column(field.name), field, lenient=lenient)
        if field.name in have
        else pa.nulls(rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema) if columns else table.select([])


def _column(column: pa.ChunkedArray, field: pa.Field, *, lenient: bool) -> pa.ChunkedArray:
    if column.type == field.type:
        return column
    if fits(column.type, field.type):
        source, target = pa.schema([(field.name, column.type)]), pa.schema([field])
        fill = (Fill(field.name, field.name, field.type),)
        batches = pa.table([column], schema=source).to_batches()
        return pa.chunked_array(
            [align(batch, fill, target).column(0) for batch in batches], field.type
        )
    try:
        return column.cast(field.type)
    except pa.ArrowException as error:
        if not lenient:
            raise ColumnConflictError(field.name, str(field.type), str(column.type)) from error
    return pa.chunked_array([pa.array(map(_Cast(field.type), column), field.type)])


class _Cast:
    """One value in another type, or null where that type has no such value."""

    def __init__(self, type_: pa.DataType) -> None:
        self._type = type_

    def __call__(self, value: pa.Scalar) -> object:
        try:
            return value.cast(self._type).as_py()
        except pa.ArrowException:
            return None
