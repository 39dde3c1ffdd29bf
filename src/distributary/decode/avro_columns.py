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

from distributary.decode import avro_numbers as numbers
from distributary.decode.avro_engine import is_option
from distributary.decode.avro_numbers import Mask
from distributary.decode.avro_shape import Kind, Value
from distributary.decode.avro_values import decimal_in


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
            return _checked(numbers.ints(array), doubtful)
        case Kind.DATE:
            return _checked(numbers.dates(array), doubtful)
        case Kind.INSTANT:
            return _checked(numbers.instants(array, value.type, value.micros), doubtful)
        case Kind.DECIMAL:
            return _checked(numbers.decimals_from_bytes(array, value.type), doubtful)
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
    unknown = numbers.within(array, 0, len(value.symbols) - 1)
    if unknown is not None:
        doubtful.extend(np.flatnonzero(unknown).tolist())
        if not value.symbols:
            return pa.nulls(len(array), pa.string())
        indices = np.where(unknown, 0, numbers.longs(array))
        array = numbers.relabelled(pa.int64(), array, indices)
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
    matrix = numbers.matrix_of(array)
    match value.kind:
        case Kind.UUID:
            return numbers.uuids(array, matrix)
        case Kind.DURATION:
            return numbers.durations(array, matrix)
        case Kind.DECIMAL:
            answer = numbers.decimals_from_fixed(array, matrix, value.type)
            return _checked(answer, doubtful)
    data = numbers.binary_of(array, matrix, pa.binary())
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
