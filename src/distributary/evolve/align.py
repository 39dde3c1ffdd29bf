"""Bring a decoded batch into the shape of its table: cast, reorder, fill up what is missing."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyarrow import types as kinds

from distributary.evolve.types import (
    compact,
    fits,
    fold,
    is_list,
    is_map,
    is_struct,
    no_place,
    same,
    struct_places,
    with_values,
)
from distributary.model.table import Column, Fill

# Defaults of fields: what stands in for a field that a writer does not have.


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
    step, _, rest = path.partition(".")
    found: pa.DataType | None = None
    if is_struct(type_) and (index := type_.get_field_index(step)) >= 0:
        found = type_.field(index).type
    elif is_list(type_) and step == "element":
        found = type_.value_type
    elif is_map(type_) and step == "value":
        found = type_.item_type
    return inner_type(found, rest) if rest and found is not None else found


Convert = Callable[[pa.Array], pa.Array]
Defaults = Mapping[str, str]
"""JSON of what stands in for fields inside a column, by path."""
_Step = tuple[int, Convert | None, pa.Scalar]
"""Which column or field to take, how to convert it, and what stands in where there is none."""


def _filled(arrays: Sequence[pa.Array], steps: Iterable[_Step], rows: int) -> list[pa.Array]:
    return [
        pa.repeat(missing, rows)
        if index < 0
        else arrays[index]
        if convert is None
        else convert(arrays[index])
        for index, convert, missing in steps
    ]


class Aligner:
    """Turns batches of one schema into batches of another; worked out once per pair of schemas."""

    def __init__(self, source: pa.Schema, fills: Sequence[Fill], target: pa.Schema) -> None:
        """A column that the writer does not have is its default; without one it is null."""
        by_target = {fill.target: fill for fill in fills}
        self._steps: list[_Step] = []
        for field in target:
            fill = by_target.get(field.name, Fill("", field.name, field.type))
            index = source.get_field_index(fill.source) if fill.source else -1
            inner = dict(fill.inner_defaults)
            convert = None if index < 0 else _converter(source.field(index).type, field, "", inner)
            self._steps.append((index, convert, constant(fill.value or "null", field.type)))
        self._schema = target
        self._picked = [index for index, _, _ in self._steps]
        # the usual case: columns are only picked, which costs microseconds however many they are
        self._only_picks = all(
            index >= 0 and convert is None and source.field(index).name == field.name
            for (index, convert, _), field in zip(self._steps, target, strict=True)
        )

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Align one batch of the source schema."""
        if self._only_picks:
            return batch.select(self._picked)
        arrays = _filled(batch.columns, self._steps, batch.num_rows)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


aligner = lru_cache(maxsize=4096)(Aligner)
"""The aligner for a pair of schemas, from this process's cache."""


def align(batch: pa.RecordBatch, fills: tuple[Fill, ...], schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the table's columns, in the table's order and types."""
    return aligner(batch.schema, fills, schema)(batch)


def _converter(got: pa.DataType, field: pa.Field, path: str, defaults: Defaults) -> Convert | None:
    """How an array becomes an array of the field's type; None when it is one already."""
    have = field.type
    if got == have:
        return None
    if not fits(got, have):
        raise no_place(field.name, got, have)
    if is_struct(have):
        return _struct_converter(got, have, path, defaults)
    if is_list(have):
        return _list_converter(got, have, path, defaults)
    if is_map(have):
        return _map_converter(got, have, path, defaults)
    return lambda array: array.cast(have)


def _struct_converter(
    got: pa.DataType, have: pa.DataType, path: str, defaults: Defaults
) -> Convert:
    places = struct_places(got, have)
    origin = {place: index for index, place in enumerate(places) if place is not None}
    # a field that is written, if only to a side field, is not missing
    written = {fold(field.name) for field in got}
    fields = list(have)
    steps: list[_Step] = []
    for place, field in enumerate(fields):
        inside = f"{path}.{field.name}" if path else field.name
        index = origin.get(place, -1)
        convert = None
        if index >= 0:
            convert = _converter(got.field(index).type, field, inside, defaults)
        default = "null" if fold(field.name) in written else defaults.get(inside, "null")
        steps.append((index, convert, constant(default, field.type)))

    def convert_struct(array: pa.Array) -> pa.Array:
        inner = [array.field(index) for index in range(array.type.num_fields)]
        mask = array.is_null() if array.null_count else None
        children = _filled(inner, steps, len(array))
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask)

    return convert_struct


def _list_converter(got: pa.DataType, have: pa.DataType, path: str, defaults: Defaults) -> Convert:
    inside = f"{path}.element" if path else "element"
    convert = _converter(got.value_type, have.value_field, inside, defaults)
    plain = None if kinds.is_list(got) else pa.list_(got.value_field)

    def convert_list(array: pa.Array) -> pa.Array:
        array = compact(array if plain is None else array.cast(plain))
        values = array.values if convert is None else convert(array.values)
        return with_values(array, have, values)

    return convert_list


def _map_converter(got: pa.DataType, have: pa.DataType, path: str, defaults: Defaults) -> Convert:
    inside = f"{path}.value" if path else "value"
    convert_key = _converter(got.key_type, have.key_field, "", {})
    convert_item = _converter(got.item_type, have.item_field, inside, defaults)
    fields = [have.key_field, have.item_field]

    def convert_map(array: pa.Array) -> pa.Array:
        array = compact(array)
        keys = array.keys if convert_key is None else convert_key(array.keys)
        items = array.items if convert_item is None else convert_item(array.items)
        entries = pa.StructArray.from_arrays([keys, items], fields=fields)
        return with_values(array, have, entries)

    return convert_map
