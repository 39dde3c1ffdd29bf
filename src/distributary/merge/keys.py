"""Keys of rows: which rows of two tables have equal ones, whatever the types of their columns.

Null equals null, and so do two NaN and the two zeros of floating point, as they do in Spark.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.evolve.rest import rest_as_json
from distributary.evolve.types import is_nested
from distributary.merge.sequence import Ints

Definition = tuple[str, ...]
"""The names of a key's columns as the table has them, sorted: order does not make a key."""

_NO_KEY = "{}"


class KeyIndex:
    """Groups rows by their key, and finds the group of rows elsewhere."""

    def __init__(self, rows: pa.Table, definition: Definition) -> None:
        self.definition = definition
        self._values: list[pa.Array] = []
        self._steps: list[Ints] = []
        groups: Ints | None = None
        for name in definition:
            column = comparable(rows.column(name))
            values = pc.unique(column)
            codes = _codes(column, values)
            self._values.append(values)
            if groups is None:
                groups = codes
            else:
                # numbered anew at each column, so that the product never overflows
                known, groups = np.unique(groups * len(values) + codes, return_inverse=True)
                self._steps.append(known)
        self.groups: Ints = np.zeros(rows.num_rows, np.int64) if groups is None else groups
        """The group of each of the rows."""
        self.count = int(self.groups.max()) + 1 if len(self.groups) else 0

    def find(self, rows: pa.Table) -> Ints:
        """The group of each row of another table; -1 where no row of this one has its key."""
        found: Ints | None = None
        steps = iter(self._steps)
        for name, values in zip(self.definition, self._values, strict=True):
            codes = _codes(comparable(rows.column(name)), values)
            if found is None:
                found = codes
                continue
            known = next(steps)
            pairs = np.where((found < 0) | (codes < 0), -1, found * len(values) + codes)
            at = np.searchsorted(known, pairs)
            at[at == len(known)] = 0
            found = np.where((pairs >= 0) & (known[at] == pairs), at, -1) if len(known) else pairs
        return np.zeros(rows.num_rows, np.int64) - 1 if found is None else found


def comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column in a form in which equal keys are equal values."""
    if pa.types.is_floating(column.type):
        # the sum of the two zeros is the positive one
        zeroed = pc.add(column, pa.scalar(0.0, column.type))
        return pc.if_else(pc.is_nan(zeroed), pa.scalar(float("nan"), column.type), zeroed)
    if is_nested(column.type):
        return pa.chunked_array([_texts([column], ["value"])])
    return column


def key_texts(rows: pa.Table, definition: Definition) -> pa.Array:
    """Each row's key as one JSON object that is the same wherever and whenever it is written."""
    columns = [comparable(rows.column(name)) for name in definition]
    return _texts(columns, definition).fill_null(_NO_KEY)


def _texts(columns: Sequence[pa.ChunkedArray], names: Sequence[str]) -> pa.Array:
    table = pa.table(dict(zip(names, columns, strict=True)))
    texts = [rest_as_json(batch, names) for batch in table.combine_chunks().to_batches()]
    return pa.concat_arrays(texts) if texts else pa.array([], pa.string())


def _codes(column: pa.ChunkedArray, values: pa.Array) -> Ints:
    found = pc.index_in(column, value_set=values).fill_null(-1)
    codes: Ints = found.to_numpy().astype(np.int64)
    return codes
