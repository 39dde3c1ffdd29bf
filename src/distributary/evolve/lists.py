"""List and map arrays rebuilt around new values, without touching their offsets."""

from __future__ import annotations

import pyarrow as pa


def compact(array: pa.Array) -> pa.Array:
    """The same lists in an array that holds their values and no others."""
    used = array.offsets[len(array)].as_py() if len(array) else 0
    if array.offset == 0 and used == len(array.values):
        return array
    # a slice keeps all values of the array it was cut from: converting those would be wasted
    return pa.concat_arrays([array])


def with_values(array: pa.Array, type_: pa.DataType, values: pa.Array) -> pa.Array:
    """A compact array's lists and nulls, around as many values of another type."""
    return pa.Array.from_buffers(
        type_, len(array), array.buffers()[:2], array.null_count, 0, [values]
    )
