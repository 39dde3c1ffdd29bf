"""The fast decoder: a private copy of the schema that `pyruhvro` gets right, and its columns.

`pyruhvro` 0.4 panics on bytes, fixed, decimals and some logical types, cuts ints of more than 32
bits, does not check UTF-8, and does not say whether bytes are left over. The private copy is the
same on the wire and holds nothing of that: a fixed is as many doubles and floats as fill it, enums
and dates are longs, branches of unions are records. Every payload gets a seal behind it: where it
comes out broken, the data ended somewhere else. Nothing else imports `pyruhvro`; where it is
missing, the careful reader decodes everything.
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
from distributary.decode.avro.schema import DURATION, Kind, Value
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
"""Of a union: Arrow numbers them in seven bits, and the engine fills every branch in every row."""
MAX_FIXED = 64
"""Bytes of a fixed; the engine needs that much also for one that is null."""

_WIRE = {
    **dict.fromkeys((Kind.INT, Kind.LONG, Kind.ENUM, Kind.DATE, Kind.INSTANT), "long"),
    **dict.fromkeys((Kind.STRING, Kind.BYTES, Kind.DECIMAL, Kind.DIGITS), "string"),
    Kind.BOOLEAN: "boolean",
    Kind.FLOAT: "float",
    Kind.DOUBLE: "double",
}
_SEAL_BYTES = 8
_NOTHING = pa.scalar(b"", pa.binary())


class Engine:
    """Decodes whole arrays of payloads."""

    def __init__(self, row: Value, *, listed: bool, branch: bool) -> None:
        writer = _PrivateSchema()
        content = writer.type(row)
        fields = [{"type": "array", "items": content} if listed else content, "double"]
        if branch:
            fields.insert(0, "long")
        self._schema = json.dumps(writer.record(fields))
        # a finite number, because nobody promises to keep the bits of others; a secret, because
        # a payload that knows it could end with it
        self._seal = secrets.token_bytes(_SEAL_BYTES - 1) + b"\x40"
        self._sealed = pa.scalar(self._seal, pa.binary())

    def decode(self, payloads: pa.BinaryArray) -> tuple[list[pa.Array], Mask] | None:
        """The branch numbers, if asked for, and the values; and which payloads ended in time."""
        sealed = pc.binary_join_element_wise(payloads, self._sealed, _NOTHING).to_pylist()
        batch = attempt(lambda: pyruhvro.deserialize_array(sealed, self._schema))
        if batch is None:
            return None
        *arrays, seals = batch.columns
        expected = np.frombuffer(self._seal, np.int64)[0]
        return arrays, seals.to_numpy().view(np.int64) == expected


def has_engine() -> bool:
    """Whether the package of the engine is there."""
    return pyruhvro is not None


def engine_supports(value: Value) -> bool:
    """Whether the private copy can hold a value."""
    match value.kind:
        case Kind.TEXT:
            return False
        case Kind.LIST | Kind.MAP if value.item is not None:
            # the engine would follow any number of items that take no bytes
            return engine_supports(value.item) and not value.item.weightless
        case Kind.STRUCT | Kind.EMPTY:
            # what takes no bytes is left out, and the engine has no records without fields
            carried = [m.value for m in value.members if not m.value.weightless]
            return bool(carried) and all(map(engine_supports, carried))
        case Kind.UNION:
            # a branch that takes no bytes would be null to the engine
            carried = [b.value for b in value.branches if b.value.kind is not Kind.NULL]
            weighty = not any(each.weightless for each in carried)
            few = len(value.branches) <= MAX_BRANCHES
            return few and weighty and all(map(engine_supports, carried))
    return value.size is None or (value.size <= MAX_FIXED and value.size % 4 == 0)


class _PrivateSchema:
    """Writes the private copy."""

    def __init__(self) -> None:
        self._records = 0

    def record(self, types: list[Any]) -> dict[str, Any]:
        self._records += 1
        fields = [{"name": f"f{i}", "type": type_} for i, type_ in enumerate(types)]
        return {"type": "record", "name": f"R{self._records}", "fields": fields}

    def type(self, value: Value) -> Any:
        if value.size is not None:
            doubles, floats = divmod(value.size // 4, 2)
            return self.record(["double"] * doubles + ["float"] * floats)
        match value.kind:
            case Kind.LIST if value.item is not None:
                return {"type": "array", "items": self.type(value.item)}
            case Kind.MAP if value.item is not None:
                return {"type": "map", "values": self.type(value.item)}
            case Kind.STRUCT | Kind.EMPTY:
                carried = [m.value for m in value.members if not m.value.weightless]
                return self.record([self.type(each) for each in carried])
            case Kind.UNION:
                return [self._branch(b.value, is_option(value)) for b in value.branches]
        return _WIRE[value.kind]

    def _branch(self, value: Value, option: bool) -> Any:
        if value.kind is Kind.NULL:
            return "null"
        return self.type(value) if option else self.record([self.type(value)])


def is_option(union: Value) -> bool:
    """Whether a union is null or one other thing, for which Arrow needs no union."""
    return len(union.branches) == 2 and any(b.value.kind is Kind.NULL for b in union.branches)


# From the engine's arrays to the lake's columns. What is wrong, or only doubtful, is not judged
# here: a mask names the elements that the careful reader looks at, None where there are none.

Matrix = npt.NDArray[np.uint8]

_DECIMAL_BYTES = 16
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_DASHES = (8, 13, 18, 23)


def longs(array: pa.Array) -> Positions:
    """The numbers of an array; anything where it is null."""
    return np.frombuffer(array.buffers()[1], np.int64, len(array))


def within(array: pa.Array, low: int, high: int) -> Mask | None:
    """A mask of the numbers outside a range; None when all are inside."""
    numbers = longs(array)
    if numbers.min() >= low and numbers.max() <= high:
        return None
    return (numbers < low) | (numbers > high)


def _numbers(
    array: pa.Array, type_: pa.DataType, ends: tuple[int, int], factor: int = 1
) -> tuple[pa.Array, Mask | None]:
    """Longs between two numbers of a unit, as another type."""
    # the ends of the years are whole seconds, but for the last digits of the upper one
    outside = within(array, ends[0] // factor, ends[1] // factor)
    numbers = longs(array) if outside is None else np.where(outside, 0, longs(array))
    stored = numbers * factor if type_.bit_width == 64 else numbers.astype(np.int32)
    return relabelled(type_, array, stored), outside


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
    """The engine's array as the plan wants it; `doubtful` takes the elements not to be used."""
    if len(array) == 0:
        return pa.array([], value.type)
    if value.size:
        return _fixed(array, value, doubtful)
    made = _MADE.get(value.kind)
    return array if made is None else made(array, value, doubtful)


def _checked(answer: tuple[pa.Array, Mask | None], doubtful: list[int]) -> pa.Array:
    array, mask = answer
    if mask is not None:
        doubtful.extend(where(mask))
    return array


def _empty(array: pa.Array, value: Value, doubtful: list[int]) -> pa.Array:
    # only the numbers of branches are in it, and the engine has checked them
    return _only(pa.repeat(pa.scalar("{}"), len(array)), ~nulls(array))


def _texts(array: pa.StringArray, value: Value, doubtful: list[int]) -> pa.Array:
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
        doubtful.extend(where(unknown))
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


def _items(array: pa.Array, value: Value, doubtful: list[int]) -> pa.Array:
    """Lists and maps."""
    item, below = cast(Value, value.item), list[int]()
    if value.kind is Kind.LIST:
        content = lake_array(array.values, item, below)
    else:
        keys = _texts(array.keys, value, below)
        items = lake_array(array.items, item, below)
        doubtful.extend(with_repeated_keys(array, _binary(array.keys)))
        entry = pa.struct([value.type.key_field, value.type.item_field])
        content = pa.Array.from_buffers(entry, len(keys), [None], 0, children=[keys, items])
    doubtful.extend(owners(offsets_of(array), below))
    return _rebuilt(value.type, array, array.buffers()[:2], [content])


def _struct(array: pa.StructArray, value: Value, doubtful: list[int]) -> pa.Array:
    carried = iter(range(array.type.num_fields))
    children = []
    for member in value.members:
        child = None if member.value.weightless else array.field(next(carried))
        if member.column and child is not None:
            children.append(lake_array(child, member.value, doubtful))
        elif member.column:
            # what takes no bytes has no array in the engine, and one content
            nothing = pa.scalar(_from_nothing(member.value), member.value.type)
            children.append(pa.repeat(nothing, len(array)))
    return _rebuilt(value.type, array, array.buffers()[:1], children)


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
_MADE: dict[Kind, Callable[[pa.Array, Value, list[int]], pa.Array]] = {
    Kind.EMPTY: _empty,
    Kind.STRING: _texts,
    Kind.BYTES: lambda a, v, doubtful: _binary(a),
    Kind.ENUM: _symbols,
    Kind.INT: lambda a, v, doubtful: _checked(_numbers(a, v.type, _INT), doubtful),
    Kind.DATE: lambda a, v, doubtful: _checked(_numbers(a, v.type, DAYS), doubtful),
    Kind.INSTANT: lambda a, v, doubtful: _checked(_numbers(a, v.type, MICROS, v.micros), doubtful),
    Kind.DECIMAL: lambda a, v, doubtful: _checked(decimals_from_bytes(a, v.type), doubtful),
    Kind.DIGITS: lambda a, v, doubtful: _digits(_binary(a).to_pylist(), v, doubtful),
    Kind.LIST: _items,
    Kind.MAP: _items,
    Kind.STRUCT: _struct,
    Kind.UNION: _union,
}
