"""Bring a decoded batch into the shape of its table: cast, reorder, fill up what is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import pyarrow as pa
from pyarrow import types as kinds

from distributary.evolve.types import (
    compact,
    fits,
    is_list,
    is_map,
    is_struct,
    no_place,
    struct_places,
    with_values,
)
from distributary.model.table import Fill

Convert = Callable[[pa.Array], pa.Array]
_Step = tuple[int, Convert | None, pa.DataType]
"""Which column or field to take, -1 for nulls; how to convert it; the type that it then has."""


def _filled(arrays: Sequence[pa.Array], steps: Iterable[_Step], rows: int) -> list[pa.Array]:
    return [
        pa.nulls(rows, type_)
        if index < 0
        else arrays[index]
        if convert is None
        else convert(arrays[index])
        for index, convert, type_ in steps
    ]


class Aligner:
    """Turns batches of one schema into batches of another; worked out once per pair of schemas."""

    def __init__(self, source: pa.Schema, fills: Sequence[Fill], target: pa.Schema) -> None:
        """Work out the way of each column; one that the writer does not have is null."""
        sources = {fill.target: fill.source for fill in fills}
        self._steps: list[_Step] = []
        for field in target:
            name = sources.get(field.name)
            index = -1 if name is None else source.get_field_index(name)
            convert = None if index < 0 else _converter(source.field(index).type, field)
            self._steps.append((index, convert, field.type))
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


def _converter(got: pa.DataType, field: pa.Field) -> Convert | None:
    """How an array becomes an array of the field's type; None when it is one already."""
    have = field.type
    if got == have:
        return None
    if not fits(got, have):
        raise no_place(field.name, got, have)
    if is_struct(have):
        return _struct_converter(got, have)
    if is_list(have):
        return _list_converter(got, have)
    if is_map(have):
        return _map_converter(got, have)
    return lambda array: array.cast(have)


def _struct_converter(got: pa.DataType, have: pa.DataType) -> Convert:
    places = struct_places(got, have)
    origin = {place: index for index, place in enumerate(places) if place is not None}
    fields = list(have)
    steps: list[_Step] = []
    for place, field in enumerate(fields):
        index = origin.get(place, -1)
        convert = None
        if index >= 0:
            convert = _converter(got.field(index).type, field)
        steps.append((index, convert, field.type))

    def convert_struct(array: pa.Array) -> pa.Array:
        inner = [array.field(index) for index in range(array.type.num_fields)]
        mask = array.is_null() if array.null_count else None
        children = _filled(inner, steps, len(array))
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask)

    return convert_struct


def _list_converter(got: pa.DataType, have: pa.DataType) -> Convert:
    convert = _converter(got.value_type, have.value_field)
    plain = None if kinds.is_list(got) else pa.list_(got.value_field)

    def convert_list(array: pa.Array) -> pa.Array:
        array = compact(array if plain is None else array.cast(plain))
        values = array.values if convert is None else convert(array.values)
        return with_values(array, have, values)

    return convert_list


def _map_converter(got: pa.DataType, have: pa.DataType) -> Convert:
    convert_key = _converter(got.key_type, have.key_field)
    convert_item = _converter(got.item_type, have.item_field)
    fields = [have.key_field, have.item_field]

    def convert_map(array: pa.Array) -> pa.Array:
        array = compact(array)
        keys = array.keys if convert_key is None else convert_key(array.keys)
        items = array.items if convert_item is None else convert_item(array.items)
        entries = pa.StructArray.from_arrays([keys, items], fields=fields)
        return with_values(array, have, entries)

    return convert_map
