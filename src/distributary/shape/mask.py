"""Masks of people's data over Arrow columns: keyed hashes, tokens, fixed texts, beginnings.

A value is hashed once for each batch and column, however many rows have it.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds

from distributary.evolve.types import is_list, is_map, is_struct
from distributary.model.rules.shape_plan import Mask
from distributary.model.rules.shape_rule import MaskMethod

REDACTED = "***"
_DIGEST = "sha256"

Change = Callable[[pa.Array], pa.Array]


def masked_type(type_: pa.DataType, mask: Mask) -> pa.DataType:
    """Return the type of a column after a mask; raise ValueError with the reason if it has none."""
    return _at(type_, mask.fields, lambda leaf: _leaf_type(leaf, mask.method))


def _at(
    type_: pa.DataType, fields: Sequence[str], change: Callable[[pa.DataType], pa.DataType]
) -> pa.DataType:
    if is_list(type_):
        return pa.list_(type_.value_field.with_type(_at(type_.value_type, fields, change)))
    if is_struct(type_):
        inside = [
            field.with_type(_at(field.type, fields[1:], change))
            if not fields or field.name == fields[0]
            else field
            for field in type_
        ]
        return pa.struct(inside)
    return change(type_)


def _leaf_type(type_: pa.DataType, method: MaskMethod) -> pa.DataType:
    if method == "redact":
        return type_
    if is_map(type_):
        raise ValueError("is a map, which only redact can mask")
    if method == "truncate" and not kinds.is_string(type_):
        raise ValueError("is not text, which truncate needs")
    return pa.string()


def masked(array: pa.Array, mask: Mask, key: bytes) -> pa.Array:
    """Return a column with the values that a mask leaves; null stays null."""
    return _changed(array, mask.fields, _change(mask, key))


def _changed(array: pa.Array, fields: Sequence[str], change: Change) -> pa.Array:
    """Change the values of a nested field, or all values inside of a column."""
    if is_list(array.type):
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
        ends = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
        items = _changed(array.flatten(), fields, change)
        type_ = pa.list_(array.type.value_field.with_type(items.type))
        return pa.ListArray.from_arrays(pa.array(ends), items, type=type_, mask=array.is_null())
    if is_struct(array.type):
        parts, inside = [], []
        for field, part in zip(array.type, array.flatten(), strict=True):
            if not fields or field.name == fields[0]:
                part = _changed(part, fields[1:], change)
            parts.append(part)
            inside.append(field.with_type(part.type))
        return pa.StructArray.from_arrays(parts, fields=inside, mask=array.is_null())
    return change(array)


def _change(mask: Mask, key: bytes) -> Change:
    """Return the function that masks values without fields of their own."""
    match mask.method:
        case "redact":
            return _redacted
        case "truncate":
            return lambda texts: pc.utf8_slice_codeunits(texts, 0, mask.length)
    if not key:
        raise ValueError("a mask needs masking.key, but the task has none")
    if mask.method == "hash":
        # another hash function than that of values, so that no value can ask for this key
        key = hmac.digest(key, mask.scope.encode(), "sha512")
    return lambda values: _digests(values, key)


def _redacted(values: pa.Array) -> pa.Array:
    if kinds.is_string(values.type):
        return pc.if_else(values.is_valid(), REDACTED, pa.scalar(None, pa.string()))
    return pa.nulls(len(values), values.type)


def _digests(values: pa.Array, key: bytes) -> pa.Array:
    """Return the HMAC-SHA256 of each value's text in UTF-8, or of its bytes, in hex."""
    if kinds.is_timestamp(values.type) or kinds.is_date(values.type):
        values = values.cast(pa.string())
    distinct = values.dictionary_encode()
    spell = _spelling(values.type)
    found = [
        None if value is None else hmac.digest(key, _bytes(spell(value)), _DIGEST).hex()
        for value in distinct.dictionary.to_pylist()
    ]
    return pa.array(found, pa.string()).take(distinct.indices)


def _spelling(type_: pa.DataType) -> Callable[[Any], str | bytes]:
    """Return the spelling of values that equal values of other types share: 42, 42.0 and '42'."""
    if kinds.is_decimal(type_):
        return _decimal
    if kinds.is_floating(type_):
        return lambda number: str(int(number)) if number.is_integer() else repr(number)
    if kinds.is_boolean(type_):
        return lambda flag: "true" if flag else "false"
    return lambda value: value if isinstance(value, bytes) else str(value)


def _decimal(number: Decimal) -> str:
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _bytes(spelled: str | bytes) -> bytes:
    return spelled if isinstance(spelled, bytes) else spelled.encode()
