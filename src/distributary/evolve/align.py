"""Brings a decoded batch to the columns of its table: casts, reorders and adds nulls."""

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
"""The index of the column or field to take, -1 for nulls; its conversion; the resulting type."""


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
    """A converter of batches from one schema to another, planned once per pair of schemas."""

    def __init__(self, source: pa.Schema, fills: Sequence[Fill], target: pa.Schema) -> None:
        """Plan the conversion of each column; a column that the writer does not have is null."""
        sources = {fill.target: fill.source for fill in fills}
        self._steps: list[_Step] = []
        for field in target:
            name = sources.get(field.name)
            index = -1 if name is None else source.get_field_index(name)
            convert = None if index < 0 else _converter(source.field(index).type, field)
            self._steps.append((index, convert, field.type))
        self._schema = target
        self._picked = [index for index, _, _ in self._steps]
        # usually columns are only selected, which costs microseconds however many they are
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
"""Returns the aligner for a pair of schemas, from this process's cache."""


def align(batch: pa.RecordBatch, fills: tuple[Fill, ...], schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with the table's columns, in the table's order and types."""
    return aligner(batch.schema, fills, schema)(batch)


def _converter(writer_type: pa.DataType, field: pa.Field) -> Convert | None:
    """Return the conversion of an array to the field's type, or None if it needs none."""
    table_type = field.type
    if writer_type == table_type:
        return None
    if not fits(writer_type, table_type):
        raise no_place(field.name, writer_type, table_type)
    if is_struct(table_type):
        return _struct_converter(writer_type, table_type)
    if is_list(table_type):
        return _list_converter(writer_type, table_type)
    if is_map(table_type):
        return _map_converter(writer_type, table_type)
    return lambda array: array.cast(table_type)


def _struct_converter(writer_type: pa.DataType, table_type: pa.DataType) -> Convert:
    places = struct_places(writer_type, table_type)
    origin = {place: index for index, place in enumerate(places) if place is not None}
    fields = list(table_type)
    steps: list[_Step] = []
    for place, field in enumerate(fields):
        index = origin.get(place, -1)
        convert = None
        if index >= 0:
            convert = _converter(writer_type.field(index).type, field)
        steps.append((index, convert, field.type))

    def convert_struct(array: pa.Array) -> pa.Array:
        inner = [array.field(index) for index in range(array.type.num_fields)]
        mask = array.is_null() if array.null_count else None
        children = _filled(inner, steps, len(array))
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask)

    return convert_struct


def _list_converter(writer_type: pa.DataType, table_type: pa.DataType) -> Convert:
    convert = _converter(writer_type.value_type, table_type.value_field)
    plain = None if kinds.is_list(writer_type) else pa.list_(writer_type.value_field)

    def convert_list(array: pa.Array) -> pa.Array:
        array = compact(array if plain is None else array.cast(plain))
        values = array.values if convert is None else convert(array.values)
        return with_values(array, table_type, values)

    return convert_list


def _map_converter(writer_type: pa.DataType, table_type: pa.DataType) -> Convert:
    convert_key = _converter(writer_type.key_type, table_type.key_field)
    convert_item = _converter(writer_type.item_type, table_type.item_field)
    fields = [table_type.key_field, table_type.item_field]

    def convert_map(array: pa.Array) -> pa.Array:
        array = compact(array)
        keys = array.keys if convert_key is None else convert_key(array.keys)
        items = array.items if convert_item is None else convert_item(array.items)
        entries = pa.StructArray.from_arrays([keys, items], fields=fields)
        return with_values(array, table_type, entries)

    return convert_map
