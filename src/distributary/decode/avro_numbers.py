"""Numbers of Avro in whole arrays: decimals, dates, timestamps, and what a fixed can stand for.

Every function gives the lake's array and a mask of the elements that must be looked at one by one,
or None where there are none.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distributary.decode.avro_shape import DURATION
from distributary.decode.avro_values import DAYS, MICROS

Mask = npt.NDArray[np.bool_]
Matrix = npt.NDArray[np.uint8]

_DECIMAL_BYTES = 16
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_DASHES = (8, 13, 18, 23)


def longs(array: pa.Array) -> npt.NDArray[np.int64]:
    """The numbers of an array; anything where it is null."""
    return np.frombuffer(array.buffers()[1], np.int64, len(array))


def within(array: pa.Array, low: int, high: int) -> Mask | None:
    """A mask of the numbers outside a range; None when all are inside."""
    numbers = longs(array)
    if numbers.min() >= low and numbers.max() <= high:
        return None
    return (numbers < low) | (numbers > high)


def ints(array: pa.Array) -> tuple[pa.Array, Mask | None]:
    """Longs as ints."""
    outside = within(array, -(2**31), 2**31 - 1)
    return relabelled(pa.int32(), array, longs(array).astype(np.int32)), outside


def dates(array: pa.Array) -> tuple[pa.Array, Mask | None]:
    """Days since 1970 as dates."""
    outside = within(array, *DAYS)
    days = longs(array) if outside is None else np.where(outside, 0, longs(array))
    return relabelled(pa.date32(), array, days.astype(np.int32)), outside


def instants(array: pa.Array, type_: pa.DataType, factor: int) -> tuple[pa.Array, Mask | None]:
    """Numbers of a unit as timestamps."""
    # the ends of the range are whole seconds, but for the last digits of the upper one
    outside = within(array, MICROS[0] // factor, MICROS[1] // factor)
    numbers = longs(array) if outside is None else np.where(outside, 0, longs(array))
    return relabelled(type_, array, numbers * factor), outside


def relabelled(type_: pa.DataType, array: pa.Array, values: npt.NDArray[np.generic]) -> pa.Array:
    """An array's nulls around other values."""
    buffers = [array.buffers()[0], pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(type_, len(array), buffers, array.null_count)


def decimals_from_bytes(array: pa.Array, type_: pa.DataType) -> tuple[pa.Array, Mask | None]:
    """Big-endian numbers of any length as decimals."""
    offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1).astype(np.int64)
    lengths, ends = np.diff(offsets), offsets[1:]
    size = int(offsets[-1])
    data = np.frombuffer(array.buffers()[2], np.uint8, size) if size else np.zeros(1, np.uint8)
    # the sign is in the first byte, and fills what is before it
    first = data[np.minimum(offsets[:-1], len(data) - 1)]
    fill = np.where((lengths > 0) & (first >= 0x80), 0xFF, 0).astype(np.uint8)
    little = np.empty((len(array), _DECIMAL_BYTES), np.uint8)
    for place in range(_DECIMAL_BYTES):
        inside = lengths > place
        little[:, place] = np.where(inside, data[np.where(inside, ends - 1 - place, 0)], fill)
    doubtful = lengths > _DECIMAL_BYTES
    return _decimals(array, little, type_, doubtful)


def decimals_from_fixed(
    array: pa.Array, matrix: Matrix, type_: pa.DataType
) -> tuple[pa.Array, Mask | None]:
    """Big-endian numbers of one length as decimals."""
    size = matrix.shape[1]
    little = np.empty((len(array), _DECIMAL_BYTES), np.uint8)
    used = min(size, _DECIMAL_BYTES)
    little[:, :used] = matrix[:, ::-1][:, :used]
    fill = np.where(matrix[:, 0] >= 0x80, 0xFF, 0).astype(np.uint8)
    little[:, used:] = fill[:, None]
    # what is longer is right only if the bytes before are nothing but the sign
    sign = np.where(little[:, -1] >= 0x80, 0xFF, 0).astype(np.uint8)
    doubtful = (matrix[:, : size - used] != sign[:, None]).any(axis=1)
    return _decimals(array, little, type_, doubtful)


def _decimals(
    array: pa.Array, little: Matrix, type_: pa.DataType, doubtful: Mask
) -> tuple[pa.Array, Mask | None]:
    halves = little.view(np.uint64)
    low, high = halves[:, 0], halves[:, 1].view(np.int64)
    limit = 10**type_.precision
    top_high, top_low = divmod(limit - 1, 2**64)
    bottom_high, bottom_low = divmod(1 - limit, 2**64)
    above = (high > top_high) | ((high == top_high) & (low > np.uint64(top_low)))
    below = (high < bottom_high) | ((high == bottom_high) & (low < np.uint64(bottom_low)))
    doubtful = doubtful | above | below
    if not doubtful.any():
        return relabelled(type_, array, little), None
    little[doubtful] = 0
    return relabelled(type_, array, little), doubtful


def matrix_of(array: pa.StructArray) -> Matrix:
    """The bytes of a fixed, one row each, from the doubles and floats that the engine read."""
    parts = []
    for i in range(array.type.num_fields):
        child = array.field(i)
        width = child.type.bit_width // 8
        raw = np.frombuffer(child.buffers()[1], np.uint8, len(array) * width)
        parts.append(raw.reshape(len(array), width))
    return np.concatenate(parts, axis=1)


def binary_of(array: pa.Array, matrix: Matrix, type_: pa.DataType) -> pa.Array:
    """Rows of bytes as binary or text."""
    rows, size = matrix.shape
    offsets = np.arange(rows + 1, dtype=np.int64) * size
    if array.null_count:
        # no bytes for a null: there may be more of them than an array can hold bytes
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        matrix = matrix[valid]
        offsets = np.concatenate([[0], np.cumsum(valid)]) * size
    buffers = [
        array.buffers()[0],
        pa.py_buffer(offsets.astype(np.int32)),
        pa.py_buffer(np.ascontiguousarray(matrix)),
    ]
    return pa.Array.from_buffers(type_, rows, buffers, array.null_count)


def uuids(array: pa.Array, matrix: Matrix) -> pa.Array:
    """Rows of 16 bytes as the text of UUIDs."""
    digits = np.empty((len(array), 32), np.uint8)
    digits[:, 0::2] = _HEX[matrix >> 4]
    digits[:, 1::2] = _HEX[matrix & 0x0F]
    text = np.full((len(array), 36), ord("-"), np.uint8)
    places = [place for place in range(36) if place not in _DASHES]
    text[:, places] = digits
    return binary_of(array, text, pa.string())


def durations(array: pa.Array, matrix: Matrix) -> pa.Array:
    """Rows of 12 bytes as months, days and milliseconds."""
    parts = np.ascontiguousarray(matrix).view("<u4").astype(np.int64)
    children = [pa.array(np.ascontiguousarray(parts[:, i])) for i in range(3)]
    return pa.Array.from_buffers(
        DURATION, len(array), [array.buffers()[0]], array.null_count, children=children
    )
