"""Defaults of fields: what stands in for a field that a writer does not have."""

from __future__ import annotations

import base64
import json
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyarrow import types as kinds

from distributary.evolve.types import is_list, is_map, is_struct, same
from distributary.model.table import Column


@lru_cache(maxsize=4096)
def constant(text: str, type_: pa.DataType) -> pa.Scalar:
    """A default's JSON as a value of a column's type.

    Bytes are base64; decimals, dates and timestamps (ISO-8601, UTC) are text. The type may have
    become wider since the default was written.
    """
    return pa.scalar(_value(json.loads(text), type_), type_)


def _value(given: Any, type_: pa.DataType) -> Any:
    if given is None:
        return None
    if is_struct(type_):
        return {f.name: _value(given.get(f.name), f.type) for f in type_}
    if is_list(type_):
        return [_value(each, type_.value_type) for each in given]
    if is_map(type_):
        return [(key, _value(each, type_.item_type)) for key, each in given.items()]
    if kinds.is_string(type_):
        return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    if kinds.is_binary(type_):
        return base64.b64decode(given)
    if kinds.is_decimal(type_):
        return Decimal(str(given))
    if kinds.is_date(type_):
        return date.fromisoformat(given)
    if kinds.is_timestamp(type_):
        return datetime.fromisoformat(given)
    return float(given) if kinds.is_floating(type_) else given


def grown_defaults(have: Column, writer: Column, grown: pa.DataType) -> tuple[tuple[str, str], ...]:
    """The defaults of a column's inner fields after a writer has added fields to it."""
    known = dict(have.inner_defaults)
    for path, default in writer.inner_defaults:
        now, theirs = inner_type(grown, path), inner_type(writer.type, path)
        new = inner_type(have.type, path) is None
        if new and now is not None and theirs is not None and same(now, theirs):
            known[path] = default
    return tuple(known.items())


def inner_type(type_: pa.DataType, path: str) -> pa.DataType | None:
    """The type of a field inside a type, `element.price` in a list of structs; None: no such."""
    found: pa.DataType | None = type_
    for step in path.split("."):
        if found is None:
            break
        if is_struct(found):
            index = found.get_field_index(step)
            found = found.field(index).type if index >= 0 else None
        elif is_list(found) and step == "element":
            found = found.value_type
        elif is_map(found) and step == "value":
            found = found.item_type
        else:
            found = None
    return found
