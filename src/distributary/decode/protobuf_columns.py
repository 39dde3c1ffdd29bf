"""From the engine's arrays to the lake's columns: whole arrays at a time, no value by value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.protobuf_json import JsonText
from distributary.decode.protobuf_ranges import UnfitValueError, microseconds
from distributary.decode.protobuf_shape import TEXT_KINDS, Field, Kind, Value
from distributary.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class Problem:
    """An element of an array that is not a row yet."""

    index: int
    code: ErrorCode | None
    """None: nothing is wrong, but only the official runtime gets this record right."""
    reason: str = ""


class Columns:
    """Finishes the batches of one planned message."""

    def __init__(self, message: Value, json_text: JsonText) -> None:
        self.schema = pa.schema(list(message.type))
        self._message = message
        self._json = json_text

    def finish(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[Problem]]:
        """The lake's batch, and the rows in it that must not be used."""
        problems: list[Problem] = []
        if not self._message.fields:
            return batch, problems
        members = self._members(batch.columns, self._message, problems)
        return pa.RecordBatch.from_arrays(members, schema=self.schema), problems

    def _members(
        self, arrays: list[pa.Array], message: Value, problems: list[Problem]
    ) -> list[pa.Array]:
        for oneof in message.oneofs:
            problems.extend(_set_twice([(arrays[f.place], f) for f in oneof]))
        return [
            self._field(arrays[f.place], f, problems) if f.work else arrays[f.place]
            for f in message.fields
        ]

    def _field(self, array: pa.Array, field: Field, problems: list[Problem]) -> pa.Array:
        if field.key is not None:
            return self._map(array, field, field.key, problems)
        if field.repeated:
            return self._list(array, field, problems)
        return self._value(array, field.value, field.label, problems)

    def _list(self, array: pa.ListArray, field: Field, problems: list[Problem]) -> pa.Array:
        below: list[Problem] = []
        if field.value.kind in TEXT_KINDS:
            values = self._texts(([data] for data in array.values.to_pylist()), field.value, below)
        else:
            values = self._value(array.values, field.value, field.label, below)
        problems.extend(_lifted(below, array))
        return _nested(field.type, array, [values])

    def _map(
        self, array: pa.ListArray, field: Field, key: Value, problems: list[Problem]
    ) -> pa.Array:
        keys, items = array.values.field(0), array.values.field(1)
        problems.extend(_repeated_keys(array, keys))
        if key.work:
            keys = self._value(keys, key, field.label, problems)
        below: list[Problem] = []
        if field.value.kind in TEXT_KINDS:
            items = self._texts(items.to_pylist(), field.value, below)
        elif field.value.fields or field.value.work:
            # an entry without a value holds the default of its message, not a null
            items = self._value(_all_valid(items), field.value, field.label, below)
        problems.extend(_lifted(below, array))
        entry = pa.struct([field.type.key_field, field.type.item_field])
        entries = pa.Array.from_buffers(entry, len(keys), [None], 0, children=[keys, items])
        return _nested(field.type, array, [entries])

    def _value(
        self, array: pa.Array, value: Value, label: str, problems: list[Problem]
    ) -> pa.Array:
        if value.wrapped:
            array = _unwrapped(array)
        match value.kind:
            case Kind.UINT32 | Kind.UINT64:
                return array.cast(value.type)
            case Kind.TIMESTAMP | Kind.DURATION:
                return _instants(array, value, label, problems)
            case Kind.FIELD_MASK:
                joined = pc.binary_join(array.field(0), ",")
                return pa.Array.from_buffers(
                    joined.type, len(array), [array.buffers()[0], *joined.buffers()[1:]]
                )
            case Kind.JSON | Kind.EMPTY:
                if len(array.values) == 0:
                    return pa.nulls(len(array), pa.string())
                occurrences = (list_ or None for list_ in array.to_pylist())
                return self._texts(occurrences, value, problems)
            case Kind.STRUCT:
                return self._struct(array, value, problems)
            case _:
                return array

    def _struct(self, array: pa.StructArray, value: Value, problems: list[Problem]) -> pa.Array:
        if not value.work:
            return array
        arrays = [array.field(i) for i in range(len(value.fields))]
        members = self._members(arrays, value, problems)
        return pa.Array.from_buffers(
            value.type, len(array), [array.buffers()[0]], array.null_count, children=members
        )

    def _texts(
        self,
        occurrences: Iterable[list[bytes] | None],
        value: Value,
        problems: list[Problem],
    ) -> pa.Array:
        known: dict[bytes, str] = {}
        texts: list[str | None] = []
        for index, parts in enumerate(occurrences):
            if parts is None:
                texts.append(None)
                continue
            # by the specification, several occurrences of a message merge as their bytes joined
            data = b"".join(parts)
            if data not in known:
                try:
                    known[data] = self._json.render(value.message, data)
                except UnfitValueError as error:
                    problems.append(Problem(index, error.code, error.reason))
                    texts.append(None)
                    continue
            texts.append(known[data])
        return pa.array(texts, pa.string())


def _set_twice(members: list[tuple[pa.Array, Field]]) -> Iterable[Problem]:
    """Elements with several members of a oneof: the last one on the wire counts, order is lost."""
    given = []
    for array, field in members:
        if field.value.kind in TEXT_KINDS:
            given.append(np.diff(_offsets(array)) > 0)
        elif array.null_count < len(array):
            given.append(array.is_valid().to_numpy(zero_copy_only=False))
    if len(given) < 2:
        return ()
    return [Problem(int(i), None) for i in np.flatnonzero(np.sum(given, axis=0) > 1)]


def _repeated_keys(array: pa.ListArray, keys: pa.Array) -> Iterable[Problem]:
    """Maps in which a key occurs again: the last entry counts."""
    lengths = np.diff(_offsets(array))
    if len(lengths) == 0 or lengths.max() < 2:
        return ()
    encoded = keys.dictionary_encode()
    size = len(encoded.dictionary)
    owner = np.repeat(np.arange(len(array)), lengths)
    places = np.sort(owner * size + encoded.indices.to_numpy())
    again = places[1:][places[1:] == places[:-1]]
    return [Problem(int(i), None) for i in np.unique(again // size)]


def _instants(array: pa.StructArray, value: Value, label: str, problems: list[Problem]) -> pa.Array:
    seconds, nanos = (array.field(i).to_numpy() for i in (0, 1))
    micros, outside = microseconds(value.kind, seconds, nanos)
    if outside.any():
        reason = f"field {label} is outside the range of {value.message}"
        problems.extend(
            Problem(int(i), ErrorCode.VALUE_OUT_OF_RANGE, reason) for i in np.flatnonzero(outside)
        )
    buffers = [array.buffers()[0], pa.py_buffer(micros)]
    return pa.Array.from_buffers(value.type, len(array), buffers, array.null_count)


def _unwrapped(array: pa.StructArray) -> pa.Array:
    inner = array.field(0)
    buffers = [array.buffers()[0], *inner.buffers()[1:]]
    return pa.Array.from_buffers(inner.type, len(array), buffers, array.null_count)


def _all_valid(array: pa.Array) -> pa.Array:
    if array.null_count == 0 or not pa.types.is_struct(array.type):
        return array
    children = [array.field(i) for i in range(array.type.num_fields)]
    return pa.Array.from_buffers(array.type, len(array), [None], 0, children=children)


def _nested(type_: pa.DataType, like: pa.ListArray, children: list[pa.Array]) -> pa.Array:
    return pa.Array.from_buffers(type_, len(like), [None, like.buffers()[1]], 0, children=children)


def _lifted(below: list[Problem], array: pa.ListArray) -> Iterable[Problem]:
    """The problems of a list's items as problems of the list."""
    if not below:
        return ()
    owners = np.searchsorted(_offsets(array), [p.index for p in below], side="right") - 1
    return [Problem(int(o), p.code, p.reason) for o, p in zip(owners, below, strict=True)]


def _offsets(array: pa.ListArray) -> npt.NDArray[np.int32]:
    return np.frombuffer(array.buffers()[1], np.int32, len(array) + 1)
