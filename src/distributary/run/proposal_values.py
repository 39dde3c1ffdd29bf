"""Whether two columns hold the same values, row by row, also where their types differ."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Indexes = npt.NDArray[np.int64]
_NONE: Indexes = np.zeros(0, np.int64)


def lost_and_changed(before: pa.Array, after: pa.Array | None) -> tuple[Indexes, Indexes]:
    """Rows that had a value and have none, and rows that have another; None is: no such column."""
    had = pc.is_valid(before).to_numpy(zero_copy_only=False)
    if after is None:
        return np.flatnonzero(had), _NONE
    before = _as(before, after.type)
    if before.equals(after):
        return _NONE, _NONE
    has = pc.is_valid(after).to_numpy(zero_copy_only=False)
    both = np.flatnonzero(had & has).tolist()
    changed = [row for row in both if not _same(before[row], after[row])]
    return np.flatnonzero(had & ~has), np.array(changed, np.int64)


def _as(values: pa.Array, type: pa.DataType) -> pa.Array:
    """The values as the other type, where that holds all of them as they are."""
    if values.type == type or pa.types.is_string(type) or pa.types.is_binary(type):
        # anything can be spelled as text, which does not make it the same value
        return values
    try:
        return values.cast(type)
    except pa.ArrowException:
        return values


def _same(one: pa.Scalar, other: pa.Scalar) -> bool:
    if one.equals(other):
        return True
    if one.type != other.type:
        return False
    try:
        # what is not a number is not equal to itself
        return repr(one.as_py()) == repr(other.as_py())
    except (ValueError, OverflowError):
        # times that Python cannot hold
        return False
