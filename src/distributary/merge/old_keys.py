"""The key that a row had before an event gave it another one, as the event's envelope tells it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.merge.definitions import resolve
from distributary.merge.keys import Definition
from distributary.merge.sequence import Ints

OLD_KEY = pa.field("_old_key", pa.string())
"""A JSON object of the old key's columns; null for most events."""
_MEMBER = '"old_key":'


def old_keys_in(envelopes: pa.Array, asked: Ints) -> pa.Array:
    """The old key in each envelope that is asked; null where there is none."""
    some = envelopes.take(pa.array(asked))
    told = asked[pc.match_substring(some, _MEMBER).fill_null(False).to_numpy(zero_copy_only=False)]
    found: list[str | None] = [None] * len(envelopes)
    for row, text in zip(told.tolist(), envelopes.take(pa.array(told)).to_pylist(), strict=True):
        found[row] = _old_key(text)
    return pa.array(found, OLD_KEY.type)


def _old_key(envelope: str) -> str | None:
    key = _object(envelope).get("old_key")
    return json.dumps(key, ensure_ascii=False) if isinstance(key, dict) and key else None


def _object(text: str) -> dict[str, Any]:
    try:
        # as text a number keeps its digits
        content = json.loads(text, parse_float=str)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


@dataclass(frozen=True, slots=True)
class OldKeys:
    """Old keys that a table can be asked about, all of one definition."""

    definition: Definition
    events: Ints
    """Whose old keys they are."""
    rows: pa.Table
    """The columns of the key, as the table has them."""


def read_old_keys(texts: pa.ChunkedArray, events: Ints, schema: pa.Schema) -> list[OldKeys]:
    """The old keys of some events; one that the table's columns cannot hold is left out."""
    groups: dict[Definition, list[tuple[int, dict[str, Any]]]] = {}
    for event, text in zip(events.tolist(), texts.take(events).to_pylist(), strict=True):
        key = _object(text or "{}")
        names = {name: resolve([name], schema.names) for name in key}
        definition = resolve(key, schema.names)
        if definition is not None:
            values = {(names[name] or ("",))[0]: value for name, value in key.items()}
            groups.setdefault(definition, []).append((event, values))
    return [_typed(definition, told, schema) for definition, told in sorted(groups.items())]


def _typed(
    definition: Definition, told: Sequence[tuple[int, dict[str, Any]]], schema: pa.Schema
) -> OldKeys:
    good = np.ones(len(told), np.bool_)
    columns: list[pa.Array] = []
    fields = [schema.field(name) for name in definition]
    for field in fields:
        scalars = [_scalar(values[field.name], field.type) for _, values in told]
        good &= np.array([each is not None for each in scalars])
        columns.append(_column(scalars, field.type))
    rows = pa.table(columns, schema=pa.schema(fields)).filter(pa.array(good))
    return OldKeys(definition, np.array([event for event, _ in told], np.int64)[good], rows)


def _column(scalars: Iterable[pa.Scalar | None], type_: pa.DataType) -> pa.Array:
    return pa.array([None if each is None else each.as_py() for each in scalars], type_)


def _scalar(value: Any, type_: pa.DataType) -> pa.Scalar | None:
    """A value of JSON in a column's type, or None if it is none of that type."""
    try:
        if isinstance(value, str) and pa.types.is_binary(type_):
            return pa.scalar(base64.b64decode(value, validate=True), type_)
        if isinstance(value, str) and not pa.types.is_string(type_):
            return pa.scalar(value).cast(type_)
        if isinstance(value, int | float) and pa.types.is_decimal(type_):
            return pa.scalar(str(value)).cast(type_)
        return pa.scalar(value, type_)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return None
