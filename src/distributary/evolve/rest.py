"""Columns as JSON text, one object per row, computed column by column.

Nulls are left out of objects and kept in lists. Numbers keep all their digits; NaN and the
infinities, which JSON does not have, are strings, as are timestamps (ISO-8601, UTC), dates and
binary values (base64). Every value is built for the whole column at once, without a loop over rows.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds

from distributary.evolve.lists import compact, with_values
from distributary.evolve.types import is_list, is_map, is_struct

_NULL = pa.scalar(None, pa.string())
_TEXTS = pa.list_(pa.string())
_ESCAPED = {"\\": "\\\\", '"': '\\"'} | {
    chr(code): json.dumps(chr(code))[1:-1] for code in range(0x20)
}
_ORDINARY = bytes(set(range(256)) - {ord(character) for character in _ESCAPED})


def rest_as_json(batch: pa.RecordBatch, names: Sequence[str]) -> pa.StringArray:
    """The given columns of each row as one JSON object; null for a row in which all are null."""
    columns = [(name, batch.column(name)) for name in names]
    if not columns:
        return pa.nulls(batch.num_rows, pa.string())
    text = _object(columns)
    filled = _any_valid([array for _, array in columns])
    return text if filled is None else pc.if_else(filled, text, _NULL)


def _object(members: Sequence[tuple[str, pa.Array]]) -> pa.Array:
    parts = [_json(array, before=json.dumps(name) + ":") for name, array in members]
    filled = _any_valid(parts)
    if filled is not None:
        # the join drops a row in which it skips every part
        parts[0] = pc.if_else(filled, parts[0], "")
    inside = pc.binary_join_element_wise(*parts, ",", null_handling="skip")
    return pc.binary_join_element_wise("{", inside, "}", "")


def _any_valid(arrays: Sequence[pa.Array]) -> pa.Array | None:
    """Which rows have a value in any of the arrays; None when all have."""
    if any(array.null_count == 0 for array in arrays):
        return None
    return reduce(pc.or_, (array.is_valid() for array in arrays))


def _json(array: pa.Array, *, before: str = "") -> pa.Array:
    """Each value as JSON text with something before it; null stays null."""
    type_ = array.type
    if is_struct(type_):
        text = _struct_json(array)
    elif is_map(type_):
        text = _map_json(array)
    elif is_list(type_):
        text = _list_json(array)
    elif kinds.is_floating(type_):
        text = _float_json(array)
    elif kinds.is_integer(type_) or kinds.is_decimal(type_) or kinds.is_boolean(type_):
        text = array.cast(pa.string())
    else:
        return pc.binary_join_element_wise(before + '"', _plain_text(array), '"', "")
    return pc.binary_join_element_wise(before, text, "") if before else text


def _plain_text(array: pa.Array) -> pa.Array:
    type_ = array.type
    if kinds.is_binary(type_) or kinds.is_large_binary(type_) or kinds.is_fixed_size_binary(type_):
        # Arrow has no kernel for it
        texts = [None if v is None else base64.b64encode(v).decode() for v in array.to_pylist()]
        return pa.array(texts, pa.string())
    text = array if kinds.is_string(type_) else array.cast(pa.string())
    if kinds.is_timestamp(type_):
        return pc.replace_substring(text, " ", "T", max_replacements=1)
    return _escaped(text)


def _escaped(text: pa.Array) -> pa.Array:
    present = _special_characters(text)
    # the backslash comes first: what the others put in must not be escaped again
    for character, escape in _ESCAPED.items():
        if character in present:
            text = pc.replace_substring(text, character, escape)
    return text


def _special_characters(text: pa.Array) -> set[str]:
    """The characters to escape that occur in any value, by one look at all bytes."""
    data = text.buffers()[2]
    if data is not None and data.size > text.nbytes:
        # a slice shares the bytes of the whole: look at its own only
        data = pa.concat_arrays([text]).buffers()[2]
    if data is None:
        return set()
    return set(data.to_pybytes().translate(None, _ORDINARY).decode())


def _float_json(array: pa.Array) -> pa.Array:
    text = array.cast(pa.string())
    finite = pc.is_finite(array)
    if pc.all(finite, min_count=0).as_py():
        return text
    named = pc.if_else(pc.greater(array, 0), '"Infinity"', '"-Infinity"')
    named = pc.if_else(pc.is_nan(array), '"NaN"', named)
    return pc.if_else(finite, text, named)


def _struct_json(array: pa.Array) -> pa.Array:
    members = [(field.name, array.field(i)) for i, field in enumerate(array.type)]
    text = _object(members) if members else pa.repeat(pa.scalar("{}"), len(array))
    return pc.if_else(array.is_valid(), text, _NULL) if array.null_count else text


def _list_json(array: pa.Array) -> pa.Array:
    lists = compact(array if kinds.is_list(array.type) else _as_list(array))
    return _joined(lists, pc.fill_null(_json(lists.values), "null"), "[", "]")


def _map_json(array: pa.Array) -> pa.Array:
    entries = compact(array)
    values = pc.fill_null(_json(entries.items), "null")
    members = pc.binary_join_element_wise(_key_json(entries.keys), values, ":")
    return _joined(entries, members, "{", "}")


def _key_json(keys: pa.Array) -> pa.Array:
    """Keys as JSON strings: a number, a list or a struct becomes its JSON text, in quotes."""
    text = _json(keys)
    if pc.all(pc.starts_with(text, '"'), min_count=0).as_py():
        return text
    return pc.binary_join_element_wise('"', _escaped(text), '"', "")


def _joined(lists: pa.Array, texts: pa.Array, opening: str, closing: str) -> pa.Array:
    inside = pc.binary_join(with_values(lists, _TEXTS, texts), ",")
    return pc.binary_join_element_wise(opening, inside, closing, "")


def _as_list(array: pa.Array) -> pa.Array:
    return array.cast(pa.list_(array.type.value_field))
