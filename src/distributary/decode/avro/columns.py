"""From the engine's arrays to the lake's columns: whole arrays at a time, no value by value.

What is wrong, or only doubtful, is not judged here: it is named, and the careful reader judges it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.avro.engine import is_option
from distributary.decode.avro.reader import DAYS, MICROS, decimal_in
from distributary.decode.avro.schema import DURATION, Kind, Value

# Numbers of Avro in whole arrays: decimals, dates, timestamps, and what a fixed can stand for.
#
# Every function gives the lake's array and a mask of the elements that must be looked at one by
# one, or None where there are none.

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


def lake_array(array: pa.Array, value: Value, doubtful: list[int]) -> pa.Array:
    """The engine's array as the plan wants it.

    Args:
        array: What the engine gave.
        value: The plan.
        doubtful: Takes the positions of elements that must not be used.
    """
    if len(array) == 0:
        return pa.array([], value.type)
    if value.size:
        return _fixed(array, value, doubtful)
    match value.kind:
        case Kind.EMPTY:
            # only the numbers of branches are in it, and the engine has checked them
            objects = pa.repeat(pa.scalar("{}"), len(array))
            return _only(objects, array.is_valid().to_numpy(zero_copy_only=False))
        case Kind.STRING:
            return _texts(array, doubtful)
        case Kind.BYTES:
            return _binary(array)
        case Kind.ENUM:
            return _symbols(array, value, doubtful)
        case Kind.INT:
            return _checked(ints(array), doubtful)
        case Kind.DATE:
            return _checked(dates(array), doubtful)
        case Kind.INSTANT:
            return _checked(instants(array, value.type, value.micros), doubtful)
        case Kind.DECIMAL:
            return _checked(decimals_from_bytes(array, value.type), doubtful)
        case Kind.DIGITS:
            return _digits(_binary(array).to_pylist(), value, doubtful)
        case Kind.LIST if value.item is not None:
            return _list(array, value, value.item, doubtful)
        case Kind.MAP if value.item is not None:
            return _map(array, value, value.item, doubtful)
        case Kind.STRUCT:
            return _struct(array, value, doubtful)
        case Kind.UNION:
            return _union(array, value, doubtful)
    return array


def _checked(answer: tuple[pa.Array, Mask | None], doubtful: list[int]) -> pa.Array:
    array, mask = answer
    if mask is not None:
        doubtful.extend(np.flatnonzero(mask).tolist())
    return array


def _texts(array: pa.StringArray, doubtful: list[int]) -> pa.Array:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        for index, data in enumerate(_binary(array).to_pylist()):
            try:
                (data or b"").decode()
            except UnicodeDecodeError:
                doubtful.append(index)
    return array


def _binary(array: pa.StringArray) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(), len(array), array.buffers(), array.null_count)


def _symbols(array: pa.Array, value: Value, doubtful: list[int]) -> pa.Array:
    unknown = within(array, 0, len(value.symbols) - 1)
    if unknown is not None:
        doubtful.extend(np.flatnonzero(unknown).tolist())
        if not value.symbols:
            return pa.nulls(len(array), pa.string())
        indices = np.where(unknown, 0, longs(array))
        array = relabelled(pa.int64(), array, indices)
    return pa.array(value.symbols, pa.string()).take(array)


def _digits(data: Iterable[bytes | None], value: Value, doubtful: list[int]) -> pa.Array:
    texts: list[str | None] = []
    for index, each in enumerate(data):
        number = None if each is None else decimal_in(each, value)
        texts.append(None if number is None else format(number, "f"))
        if number is None and each is not None:
            doubtful.append(index)
    return pa.array(texts, pa.string())


def _fixed(array: pa.StructArray, value: Value, doubtful: list[int]) -> pa.Array:
    matrix = matrix_of(array)
    match value.kind:
        case Kind.UUID:
            return uuids(array, matrix)
        case Kind.DURATION:
            return durations(array, matrix)
        case Kind.DECIMAL:
            answer = decimals_from_fixed(array, matrix, value.type)
            return _checked(answer, doubtful)
    data = binary_of(array, matrix, pa.binary())
    return data if value.kind is Kind.FIXED else _digits(data.to_pylist(), value, doubtful)


def _list(array: pa.ListArray, value: Value, item: Value, doubtful: list[int]) -> pa.Array:
    below: list[int] = []
    values = lake_array(array.values, item, below)
    doubtful.extend(_owners(array, below))
    return _rebuilt(value.type, array, array.buffers()[:2], [values])


def _map(array: pa.MapArray, value: Value, item: Value, doubtful: list[int]) -> pa.Array:
    below: list[int] = []
    keys = _texts(array.keys, below)
    items = lake_array(array.items, item, below)
    doubtful.extend(_owners(array, below))
    doubtful.extend(_with_repeated_keys(array))
    entry = pa.struct([value.type.key_field, value.type.item_field])
    entries = pa.Array.from_buffers(entry, len(keys), [None], 0, children=[keys, items])
    return _rebuilt(value.type, array, array.buffers()[:2], [entries])


def _struct(array: pa.StructArray, value: Value, doubtful: list[int]) -> pa.Array:
    carried = iter(range(array.type.num_fields))
    children = []
    for member in value.members:
        child = None if member.value.weightless else array.field(next(carried))
        if member.column:
            children.append(_filled(child, len(array), member.value, doubtful))
    return _rebuilt(value.type, array, array.buffers()[:1], children)


def _filled(array: pa.Array | None, count: int, value: Value, doubtful: list[int]) -> pa.Array:
    """The array of a value; one that takes no bytes has none in the engine, and one content."""
    if array is not None:
        return lake_array(array, value, doubtful)
    return pa.repeat(pa.scalar(_from_nothing(value), value.type), count)


def _from_nothing(value: Value) -> Any:
    match value.kind:
        case Kind.EMPTY:
            return "{}"
        case Kind.FIXED:
            return b""
        case Kind.STRUCT:
            return {m.name: _from_nothing(m.value) for m in value.shown}
    return None


def _union(array: pa.Array, value: Value, doubtful: list[int]) -> pa.Array:
    if is_option(value):
        (only,) = (b.value for b in value.branches if b.value.kind is not Kind.NULL)
        return lake_array(array, only, doubtful)
    codes = array.type_codes.to_numpy()
    members = []
    for index, branch in enumerate(value.branches):
        if branch.value.void:
            continue
        chosen = codes == index
        below: list[int] = []
        content = lake_array(array.field(index).field(0), branch.value, below)
        doubtful.extend(i for i in below if chosen[i])
        members.append((chosen, content))
    if len(members) == 1:
        ((chosen, content),) = members
        return _only(content, chosen)
    if not value.plain:
        children = [_only(content, chosen) for chosen, content in members]
        some = np.logical_or.reduce([chosen for chosen, _ in members])
        return _only(pa.StructArray.from_arrays(children, fields=list(value.type)), some)
    joined = pa.nulls(len(array), value.type)
    for chosen, content in members:
        joined = pc.if_else(pa.array(chosen), content.cast(value.type), joined)
    return joined


def _only(array: pa.Array, chosen: Mask) -> pa.Array:
    """The chosen elements, and null in the place of the others."""
    if array.null_count:
        chosen = chosen & array.is_valid().to_numpy(zero_copy_only=False)
    buffers = array.buffers()
    children: list[pa.Array] = []
    if pa.types.is_struct(array.type):
        buffers, children = buffers[:1], [array.field(i) for i in range(array.type.num_fields)]
    elif pa.types.is_list(array.type) or pa.types.is_map(array.type):
        buffers, children = buffers[:2], [array.values]
    buffers[0] = pa.py_buffer(np.packbits(chosen, bitorder="little"))
    nulls = len(array) - int(np.count_nonzero(chosen))
    return pa.Array.from_buffers(array.type, len(array), buffers, nulls, children=children)


def _rebuilt(
    type_: pa.DataType, like: pa.Array, buffers: list[pa.Buffer], children: list[pa.Array]
) -> pa.Array:
    return pa.Array.from_buffers(type_, len(like), buffers, like.null_count, children=children)


def _owners(array: pa.Array, below: list[int]) -> Iterable[int]:
    """The lists or maps that these values are in."""
    if not below:
        return ()
    owners: list[int] = (np.searchsorted(_offsets(array), below, side="right") - 1).tolist()
    return owners


def _with_repeated_keys(array: pa.MapArray) -> Iterable[int]:
    """Maps in which a key occurs again: the last entry counts."""
    lengths = np.diff(_offsets(array))
    if lengths.max() < 2:
        return ()
    encoded = _binary(array.keys).dictionary_encode()
    size = len(encoded.dictionary)
    owner = np.repeat(np.arange(len(array)), lengths)
    places = np.sort(owner * size + encoded.indices.to_numpy())
    again: list[int] = np.unique(places[1:][places[1:] == places[:-1]] // size).tolist()
    return again


def _offsets(array: pa.Array) -> npt.NDArray[np.int32]:
    return np.frombuffer(array.buffers()[1], np.int32, len(array) + 1)
