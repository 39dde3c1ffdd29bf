"""Items of arrays as rows, over Arrow, and what the rows of a record would weigh."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds

from distributary.evolve.types import is_list, is_map, is_struct

Ints = npt.NDArray[np.int64]
_FIXED = 16
"""Bytes of a value of a fixed width, with its share of offsets and validity."""


def items_as_rows(batch: pa.RecordBatch, name: str) -> tuple[pa.RecordBatch, Ints]:
    """Return a row for each item of a column's arrays, and the row that each one came from.

    A null or empty array becomes one row, in which the column is null.
    """
    place = batch.schema.get_field_index(name)
    arrays = batch.column(place)
    lengths = pc.fill_null(pc.list_value_length(arrays), 0).to_numpy().astype(np.int64)
    counts = np.maximum(lengths, 1)
    origin = np.repeat(np.arange(batch.num_rows), counts)
    items = arrays.flatten()
    if not lengths.all():
        empty = np.repeat(lengths == 0, counts)
        items = items.take(pa.array(np.cumsum(~empty) - 1, mask=empty))
    if len(origin) == batch.num_rows:
        columns = list(batch.columns)
    else:
        rows = pa.array(origin)
        columns = [batch.column(n).take(rows) for n in range(batch.num_columns) if n != place]
        columns.insert(place, items)
    columns[place] = items
    field = batch.schema.field(place).with_type(items.type)
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema.set(place, field)), origin


def exploded_bytes(batch: pa.RecordBatch, name: str, repeated: pa.Table) -> Ints:
    """Return about how many bytes the rows have that each row becomes.

    `repeated` are the columns beside the batch that each of its rows has again.
    """
    arrays = batch.column(name)
    lengths = pc.fill_null(pc.list_value_length(arrays), 0).to_numpy().astype(np.int64)
    others = [batch.column(n) for n in batch.schema.names if n != name]
    others += [whole(column) for column in repeated.columns]
    weights = np.zeros(batch.num_rows, np.int64)
    for column in others:
        weights += _weights(column)
    total: Ints = _weights(arrays) + weights * np.maximum(lengths, 1)
    return total


def _weights(array: pa.Array) -> Ints:
    """Return about how many bytes each value has."""
    fixed = np.full(len(array), _FIXED, np.int64)
    if kinds.is_string(array.type) or kinds.is_binary(array.type):
        fixed += pc.fill_null(pc.binary_length(array), 0).to_numpy()
        return fixed
    if is_struct(array.type):
        for field in array.flatten():
            fixed += _weights(field)
        return fixed
    if is_map(array.type):
        entry = pa.struct([array.type.key_field, array.type.item_field])
        array = array.cast(pa.list_(entry))
    if is_list(array.type):
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
        sums = np.concatenate(([0], np.cumsum(_weights(array.flatten()))))
        ends = np.cumsum(lengths)
        fixed += sums[ends] - sums[ends - lengths]
    return fixed


def whole(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    found = column.combine_chunks()
    return found.chunk(0) if isinstance(found, pa.ChunkedArray) else found
