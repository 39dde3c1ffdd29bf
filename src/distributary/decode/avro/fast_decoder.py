"""The fast decoder: `pyruhvro` on a private copy of the schema, with conversion to columns.

`pyruhvro` 0.4 panics on bytes, fixed, decimals and some logical types, cuts ints of more than 32
bits, does not check UTF-8, and does not report bytes that are left over. The private copy has the
same encoding and uses none of these types: a fixed becomes doubles and floats of the same length,
enums and dates become longs, branches of unions become records. A seal of eight bytes is appended
to every payload: where it comes out changed, the payload does not end where its schema ends. No
other module imports `pyruhvro`; where it is missing, the careful reader decodes everything.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.avro.reader import DAYS, MICROS, decimal_in
from distributary.decode.avro.schema import DURATION, AvroKind, AvroValue
from distributary.decode.base import (
    Mask,
    Positions,
    attempt,
    nulls,
    offsets_of,
    owners,
    where,
    with_repeated_keys,
)

try:
    import pyruhvro
except ImportError:
    pyruhvro = None

MAX_BRANCHES = 100
"""The largest number of branches of a union: Arrow numbers them in seven bits, and the engine fills
every branch in every row."""
MAX_FIXED = 64
"""The largest number of bytes of a fixed; the engine needs that many for a null as well."""

_WIRE = {
    **dict.fromkeys(
        (AvroKind.INT, AvroKind.LONG, AvroKind.ENUM, AvroKind.DATE, AvroKind.INSTANT), "long"
    ),
    **dict.fromkeys((AvroKind.STRING, AvroKind.BYTES, AvroKind.DECIMAL, AvroKind.DIGITS), "string"),
    AvroKind.BOOLEAN: "boolean",
    AvroKind.FLOAT: "float",
    AvroKind.DOUBLE: "double",
}
_SEAL_BYTES = 8
_NOTHING = pa.scalar(b"", pa.binary())


class AvroEngine:
    """A decoder of whole arrays of payloads."""

    def __init__(self, row: AvroValue, *, listed: bool, branch: bool) -> None:
        writer = _PrivateSchema()
        content = writer.type(row)
        fields = [{"type": "array", "items": content} if listed else content, "double"]
        if branch:
            fields.insert(0, "long")
        self._schema = json.dumps(writer.record(fields))
        # The seal is a finite number, because NaN bits may change on the way. It is random, because
        # a payload that contained it could end early unnoticed.
        self._seal = secrets.token_bytes(_SEAL_BYTES - 1) + b"\x40"
        self._sealed = pa.scalar(self._seal, pa.binary())

    def decode(self, payloads: pa.BinaryArray) -> tuple[list[pa.Array], Mask] | None:
        """Return the arrays of values and a mask of the payloads that ended at their seal.

        The first array holds the branch numbers, if the schema has branches at the top. The result
        is None where the engine refuses the payloads.
        """
        sealed = pc.binary_join_element_wise(payloads, self._sealed, _NOTHING).to_pylist()
        batch = attempt(lambda: pyruhvro.deserialize_array(sealed, self._schema))
        if batch is None:
            return None
        *arrays, seals = batch.columns
        expected = np.frombuffer(self._seal, np.int64)[0]
        return arrays, seals.to_numpy().view(np.int64) == expected


def has_engine() -> bool:
    """Return True if the engine's package is installed."""
    return pyruhvro is not None


def engine_supports(value: AvroValue) -> bool:
    """Return True if the private schema can hold a value."""
    match value.kind:
        case AvroKind.TEXT:
            return False
        case AvroKind.LIST | AvroKind.MAP if value.item is not None:
            # the engine would read any number of items that take no bytes
            return engine_supports(value.item) and not value.item.weightless
        case AvroKind.STRUCT | AvroKind.EMPTY:
            # members without bytes are left out, and the engine has no records without fields
            carried = [member.value for member in value.members if not member.value.weightless]
            return bool(carried) and all(map(engine_supports, carried))
        case AvroKind.UNION:
            # the engine would take a branch without bytes for null
            carried = [
                branch.value for branch in value.branches if branch.value.kind is not AvroKind.NULL
            ]
            weighty = not any(branch_value.weightless for branch_value in carried)
            few = len(value.branches) <= MAX_BRANCHES
            return few and weighty and all(map(engine_supports, carried))
    return value.size is None or (value.size <= MAX_FIXED and value.size % 4 == 0)


class _PrivateSchema:
    """The writer of the private copy of a schema."""

    def __init__(self) -> None:
        self._records = 0

    def record(self, types: list[Any]) -> dict[str, Any]:
        self._records += 1
        fields = [{"name": f"f{i}", "type": type_} for i, type_ in enumerate(types)]
        return {"type": "record", "name": f"R{self._records}", "fields": fields}

    def type(self, value: AvroValue) -> Any:
        if value.size is not None:
            doubles, floats = divmod(value.size // 4, 2)
            return self.record(["double"] * doubles + ["float"] * floats)
        match value.kind:
            case AvroKind.LIST if value.item is not None:
                return {"type": "array", "items": self.type(value.item)}
            case AvroKind.MAP if value.item is not None:
                return {"type": "map", "values": self.type(value.item)}
            case AvroKind.STRUCT | AvroKind.EMPTY:
                carried = [member.value for member in value.members if not member.value.weightless]
                return self.record([self.type(member_value) for member_value in carried])
            case AvroKind.UNION:
                return [self._branch(branch.value, is_option(value)) for branch in value.branches]
        return _WIRE[value.kind]

    def _branch(self, value: AvroValue, option: bool) -> Any:
        if value.kind is AvroKind.NULL:
            return "null"
        return self.type(value) if option else self.record([self.type(value)])


def is_option(union: AvroValue) -> bool:
    """Return True if a union is null or one other type, for which Arrow needs no union."""
    return len(union.branches) == 2 and any(
        branch.value.kind is AvroKind.NULL for branch in union.branches
    )


# Conversion of the engine's arrays to the lake's columns. Values that are wrong or doubtful are not
# judged here: a mask marks the elements for the careful reader, and is None where there are none.

Matrix = npt.NDArray[np.uint8]

_DECIMAL_BYTES = 16
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_DASHES = (8, 13, 18, 23)


def longs(array: pa.Array) -> Positions:
    """Return the numbers of an array; those of null elements are arbitrary."""
    return np.frombuffer(array.buffers()[1], np.int64, len(array))


def within(array: pa.Array, low: int, high: int) -> Mask | None:
    """Return a mask of the numbers outside a range, or None if all are inside."""
    numbers = longs(array)
    if numbers.min() >= low and numbers.max() <= high:
        return None
    return (numbers < low) | (numbers > high)


def _numbers(
    array: pa.Array, type_: pa.DataType, ends: tuple[int, int], factor: int = 1
) -> tuple[pa.Array, Mask | None]:
    """Convert longs to another type, with a mask of those outside the range `ends`.

    `factor` is the number of stored units in one unit of the array.
    """
    # both ends fall on whole units, except for the last digits of the upper one
    outside = within(array, ends[0] // factor, ends[1] // factor)
    numbers = longs(array) if outside is None else np.where(outside, 0, longs(array))
    stored = numbers * factor if type_.bit_width == 64 else numbers.astype(np.int32)
    return relabelled(type_, array, stored), outside


def relabelled(type_: pa.DataType, array: pa.Array, values: npt.NDArray[np.generic]) -> pa.Array:
    """Return an array of other values with the nulls of `array`."""
    buffers = [array.buffers()[0], pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(type_, len(array), buffers, array.null_count)


def decimals_from_bytes(array: pa.Array, type_: pa.DataType) -> tuple[pa.Array, Mask | None]:
    """Convert big-endian numbers of any length to decimals, with a mask of doubtful ones."""
    offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1).astype(np.int64)
    lengths, ends = np.diff(offsets), offsets[1:]
    size = int(offsets[-1])
    data = np.frombuffer(array.buffers()[2], np.uint8, size) if size else np.zeros(1, np.uint8)
    # the first byte holds the sign, which fills the leading bytes of the decimal
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
    """Convert big-endian numbers of one length to decimals, with a mask of doubtful ones."""
    size = matrix.shape[1]
    little = np.empty((len(array), _DECIMAL_BYTES), np.uint8)
    used = min(size, _DECIMAL_BYTES)
    little[:, :used] = matrix[:, ::-1][:, :used]
    fill = np.where(matrix[:, 0] >= 0x80, 0xFF, 0).astype(np.uint8)
    little[:, used:] = fill[:, None]
    # a longer number fits only if its leading bytes repeat the sign
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
    """Return the bytes of a fixed, one row each, from the engine's doubles and floats."""
    parts = []
    for i in range(array.type.num_fields):
        child = array.field(i)
        width = child.type.bit_width // 8
        raw = np.frombuffer(child.buffers()[1], np.uint8, len(array) * width)
        parts.append(raw.reshape(len(array), width))
    return np.concatenate(parts, axis=1)


def binary_of(array: pa.Array, matrix: Matrix, type_: pa.DataType) -> pa.Array:
    """Convert rows of bytes to an array of binary or text, with the nulls of `array`."""
    rows, size = matrix.shape
    offsets = np.arange(rows + 1, dtype=np.int64) * size
    if array.null_count:
        # nulls get no bytes: with many nulls the bytes could exceed what an array can hold
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
    """Convert rows of 16 bytes to the texts of UUIDs."""
    digits = np.empty((len(array), 32), np.uint8)
    digits[:, 0::2] = _HEX[matrix >> 4]
    digits[:, 1::2] = _HEX[matrix & 0x0F]
    text = np.full((len(array), 36), ord("-"), np.uint8)
    places = [place for place in range(36) if place not in _DASHES]
    text[:, places] = digits
    return binary_of(array, text, pa.string())


def durations(array: pa.Array, matrix: Matrix) -> pa.Array:
    """Convert rows of 12 bytes to months, days and milliseconds."""
    parts = np.ascontiguousarray(matrix).view("<u4").astype(np.int64)
    children = [pa.array(np.ascontiguousarray(parts[:, i])) for i in range(3)]
    return pa.Array.from_buffers(
        DURATION, len(array), [array.buffers()[0]], array.null_count, children=children
    )


def lake_array(array: pa.Array, value: AvroValue, doubtful: list[int]) -> pa.Array:
    """Convert the engine's array to the planned type; add doubtful elements to `doubtful`."""
    if len(array) == 0:
        return pa.array([], value.type)
    if value.size:
        return _fixed(array, value, doubtful)
    convert = _CONVERSIONS.get(value.kind)
    return array if convert is None else convert(array, value, doubtful)


def _checked(converted: tuple[pa.Array, Mask | None], doubtful: list[int]) -> pa.Array:
    array, mask = converted
    if mask is not None:
        doubtful.extend(where(mask))
    return array


def _empty(array: pa.Array, value: AvroValue, doubtful: list[int]) -> pa.Array:
    # the record holds only numbers of branches, which the engine has checked
    return _only(pa.repeat(pa.scalar("{}"), len(array)), ~nulls(array))


def _texts(array: pa.StringArray, value: AvroValue, doubtful: list[int]) -> pa.Array:
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


def _symbols(array: pa.Array, value: AvroValue, doubtful: list[int]) -> pa.Array:
    unknown = within(array, 0, len(value.symbols) - 1)
    if unknown is not None:
        doubtful.extend(where(unknown))
        if not value.symbols:
            return pa.nulls(len(array), pa.string())
        indices = np.where(unknown, 0, longs(array))
        array = relabelled(pa.int64(), array, indices)
    return pa.array(value.symbols, pa.string()).take(array)


def _digits(data: Iterable[bytes | None], value: AvroValue, doubtful: list[int]) -> pa.Array:
    texts: list[str | None] = []
    for index, number_bytes in enumerate(data):
        number = None if number_bytes is None else decimal_in(number_bytes, value)
        texts.append(None if number is None else format(number, "f"))
        if number is None and number_bytes is not None:
            doubtful.append(index)
    return pa.array(texts, pa.string())


def _fixed(array: pa.StructArray, value: AvroValue, doubtful: list[int]) -> pa.Array:
    matrix = matrix_of(array)
    match value.kind:
        case AvroKind.UUID:
            return uuids(array, matrix)
        case AvroKind.DURATION:
            return durations(array, matrix)
        case AvroKind.DECIMAL:
            converted = decimals_from_fixed(array, matrix, value.type)
            return _checked(converted, doubtful)
    data = binary_of(array, matrix, pa.binary())
    return data if value.kind is AvroKind.FIXED else _digits(data.to_pylist(), value, doubtful)


def _items(array: pa.Array, value: AvroValue, doubtful: list[int]) -> pa.Array:
    """Convert lists and maps."""
    item, below = cast(AvroValue, value.item), list[int]()
    if value.kind is AvroKind.LIST:
        content = lake_array(array.values, item, below)
    else:
        keys = _texts(array.keys, value, below)
        items = lake_array(array.items, item, below)
        doubtful.extend(with_repeated_keys(array, _binary(array.keys)))
        entry = pa.struct([value.type.key_field, value.type.item_field])
        content = pa.Array.from_buffers(entry, len(keys), [None], 0, children=[keys, items])
    doubtful.extend(owners(offsets_of(array), below))
    return _rebuilt(value.type, array, array.buffers()[:2], [content])


def _struct(array: pa.StructArray, value: AvroValue, doubtful: list[int]) -> pa.Array:
    carried = iter(range(array.type.num_fields))
    children = []
    for member in value.members:
        child = None if member.value.weightless else array.field(next(carried))
        if member.column and child is not None:
            children.append(lake_array(child, member.value, doubtful))
        elif member.column:
            # a member without bytes has no array in the engine, and always the same content
            nothing = pa.scalar(_from_nothing(member.value), member.value.type)
            children.append(pa.repeat(nothing, len(array)))
    return _rebuilt(value.type, array, array.buffers()[:1], children)


def _from_nothing(value: AvroValue) -> Any:
    match value.kind:
        case AvroKind.EMPTY:
            return "{}"
        case AvroKind.FIXED:
            return b""
        case AvroKind.STRUCT:
            return {member.name: _from_nothing(member.value) for member in value.shown}
    return None


def _union(array: pa.Array, value: AvroValue, doubtful: list[int]) -> pa.Array:
    if is_option(value):
        (only,) = (
            branch.value for branch in value.branches if branch.value.kind is not AvroKind.NULL
        )
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
        any_chosen = np.logical_or.reduce([chosen for chosen, _ in members])
        return _only(pa.StructArray.from_arrays(children, fields=list(value.type)), any_chosen)
    joined = pa.nulls(len(array), value.type)
    for chosen, content in members:
        joined = pc.if_else(pa.array(chosen), content.cast(value.type), joined)
    return joined


def _only(array: pa.Array, chosen: Mask) -> pa.Array:
    """Return the chosen elements, and null in the place of the others."""
    if array.null_count:
        chosen = chosen & ~nulls(array)
    buffers = array.buffers()
    children: list[pa.Array] = []
    if pa.types.is_struct(array.type):
        buffers, children = buffers[:1], [array.field(i) for i in range(array.type.num_fields)]
    elif pa.types.is_list(array.type) or pa.types.is_map(array.type):
        buffers, children = buffers[:2], [array.values]
    buffers[0] = pa.py_buffer(np.packbits(chosen, bitorder="little"))
    others = len(array) - int(np.count_nonzero(chosen))
    return pa.Array.from_buffers(array.type, len(array), buffers, others, children=children)


def _rebuilt(
    type_: pa.DataType, like: pa.Array, buffers: list[pa.Buffer], children: list[pa.Array]
) -> pa.Array:
    return pa.Array.from_buffers(type_, len(like), buffers, like.null_count, children=children)


_INT = (-(2**31), 2**31 - 1)
_CONVERSIONS: dict[AvroKind, Callable[[pa.Array, AvroValue, list[int]], pa.Array]] = {
    AvroKind.EMPTY: _empty,
    AvroKind.STRING: _texts,
    AvroKind.BYTES: lambda a, v, doubtful: _binary(a),
    AvroKind.ENUM: _symbols,
    AvroKind.INT: lambda a, v, doubtful: _checked(_numbers(a, v.type, _INT), doubtful),
    AvroKind.DATE: lambda a, v, doubtful: _checked(_numbers(a, v.type, DAYS), doubtful),
    AvroKind.INSTANT: lambda a, v, doubtful: _checked(
        _numbers(a, v.type, MICROS, v.micros), doubtful
    ),
    AvroKind.DECIMAL: lambda a, v, doubtful: _checked(decimals_from_bytes(a, v.type), doubtful),
    AvroKind.DIGITS: lambda a, v, doubtful: _digits(_binary(a).to_pylist(), v, doubtful),
    AvroKind.LIST: _items,
    AvroKind.MAP: _items,
    AvroKind.STRUCT: _struct,
    AvroKind.UNION: _union,
}
