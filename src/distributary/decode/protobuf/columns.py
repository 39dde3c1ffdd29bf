"""From the engine's arrays to the lake's columns: whole arrays at a time, no value by value."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError as ParseError
from google.protobuf.message_factory import GetMessageClass

from distributary.decode.base import (
    RefusedError,
    json_number,
    offsets_of,
    owners,
    where,
    with_repeated_keys,
)
from distributary.decode.protobuf.schema import (
    OFFICIAL_MAX_DEPTH,
    TEXT_KINDS,
    Field,
    Kind,
    Value,
    find_message,
    is_map,
    message_class,
    microseconds,
)
from distributary.errors import ErrorCode

# Messages without fixed columns are JSON text, as `google.protobuf.json_format` gives it, but an
# `Any` whose type is not known, or whose value does not parse as that type, is kept: it becomes
# `{"@type": ..., "value": <base64>}`.

_ANY = "google.protobuf.Any"
_OFFICIAL = {
    f"google.protobuf.{name}"
    for name in (
        "BoolValue BytesValue DoubleValue Duration FieldMask FloatValue Int32Value Int64Value "
        "ListValue StringValue Struct Timestamp UInt32Value UInt64Value Value"
    ).split()
}
_TEXT_NUMBERS = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)


class JsonText:
    """Renders messages of one descriptor set."""

    def __init__(self, pool: DescriptorPool) -> None:
        self._pool = pool
        self._classes: dict[str, Any] = {}

    def render(self, message: str, data: bytes) -> str:
        """One serialized message as compact JSON; RefusedError where a value has no text."""
        cls = self._classes.get(message)
        if cls is None:
            cls = self._classes[message] = message_class(find_message(self._pool, message))
        try:
            value = self._message(cls.FromString(data), 0)
        except ParseError as error:
            reason = f"the {message} in it does not parse"
            raise RefusedError(ErrorCode.PAYLOAD_MISMATCH, reason) from error
        except UnicodeDecodeError as error:
            # from the keys of a map: those the runtime does not give as bytes
            reason = f"the {message} in it holds text that is not UTF-8"
            raise RefusedError(ErrorCode.INVALID_UTF8, reason) from error
        except RecursionError as error:
            reason = f"the {message} in it nests too deep for JSON text"
            raise RefusedError(ErrorCode.NESTING_TOO_DEEP, reason) from error
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    def _message(self, message: Any, depth: int) -> Any:
        name = message.DESCRIPTOR.full_name
        if name == _ANY:
            return self._any(message, depth)
        if name in _OFFICIAL:
            return _official(message, name)
        return self._fields(message, depth)

    def _fields(self, message: Any, depth: int) -> dict[str, Any]:
        content: dict[str, Any] = {}
        for field, value in message.ListFields():
            name = f"[{field.full_name}]" if field.is_extension else field.name
            if is_map(field):
                item = field.message_type.fields_by_name["value"]
                content[name] = {
                    _key(field, key): self._item(item, value[key], depth) for key in value
                }
            elif field.is_repeated:
                content[name] = [self._item(field, each, depth) for each in value]
            else:
                content[name] = self._item(field, value, depth)
        return content

    def _item(self, field: FieldDescriptor, value: Any, depth: int) -> Any:
        is_message = field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE
        return self._message(value, depth + 1) if is_message else _scalar(field, value)

    def _any(self, message: Any, depth: int) -> dict[str, Any]:
        if not message.ListFields():
            return {}
        url, data = _utf8(message.DESCRIPTOR.fields[0], message.type_url), message.value
        content = self._unpacked(url, data) if depth < OFFICIAL_MAX_DEPTH else None
        if content is None:
            return {"@type": url, "value": b64encode(data).decode("ascii")}
        name = content.DESCRIPTOR.full_name
        if name == _ANY or name in _OFFICIAL:
            return {"@type": url, "value": self._message(content, depth + 1)}
        return {"@type": url, **self._fields(content, depth + 1)}

    def _unpacked(self, url: str, data: bytes) -> Any | None:
        try:
            descriptor = self._pool.FindMessageTypeByName(url.rpartition("/")[2])
            return GetMessageClass(descriptor).FromString(data)
        except (KeyError, ParseError):
            return None


def _official(message: Any, name: str) -> Any:
    try:
        return json_format.MessageToDict(message, preserving_proto_field_name=True)
    except RecursionError:
        raise
    except Exception as error:
        # the runtime quotes the value in its message, which must not leave with the failure
        reason = f"a {name} in it has a value that JSON text cannot hold"
        raise RefusedError(ErrorCode.VALUE_OUT_OF_RANGE, reason) from error


def _key(field: FieldDescriptor, key: Any) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    return str(_utf8(field, key))


def _scalar(field: FieldDescriptor, value: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return b64encode(value).decode("ascii")
    if field.enum_type is not None:
        if field.enum_type.full_name == "google.protobuf.NullValue":
            return None
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    if field.cpp_type in _TEXT_NUMBERS:
        return str(value)
    if isinstance(value, float):
        return json_number(value, single=field.type == FieldDescriptor.TYPE_FLOAT)
    return _utf8(field, value)


def _utf8(field: FieldDescriptor, value: Any) -> Any:
    # the parser checks the text of proto3 only; the runtime gives what is not UTF-8 as bytes
    if isinstance(value, bytes):
        reason = f"field {field.full_name} holds text that is not UTF-8"
        raise RefusedError(ErrorCode.INVALID_UTF8, reason)
    return value


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
        return _nested(field.type, array, values, below, problems)

    def _map(
        self, array: pa.ListArray, field: Field, key: Value, problems: list[Problem]
    ) -> pa.Array:
        keys, items = array.values.field(0), array.values.field(1)
        # the last entry of a key counts
        problems.extend(Problem(index, None) for index in with_repeated_keys(array, keys))
        if key.work:
            keys = self._value(keys, key, field.label, problems)
        below: list[Problem] = []
        if field.value.kind in TEXT_KINDS:
            items = self._texts(items.to_pylist(), field.value, below)
        elif field.value.fields or field.value.work:
            # an entry without a value holds the default of its message, not a null
            items = self._value(_all_valid(items), field.value, field.label, below)
        entry = pa.struct([field.type.key_field, field.type.item_field])
        entries = pa.Array.from_buffers(entry, len(keys), [None], 0, children=[keys, items])
        return _nested(field.type, array, entries, below, problems)

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
            case Kind.STRUCT if value.work:
                arrays = [array.field(i) for i in range(len(value.fields))]
                members = self._members(arrays, value, problems)
                return pa.Array.from_buffers(
                    value.type, len(array), [array.buffers()[0]], array.null_count, children=members
                )
        return array

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
                except RefusedError as error:
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
            given.append(np.diff(offsets_of(array)) > 0)
        elif array.null_count < len(array):
            given.append(array.is_valid().to_numpy(zero_copy_only=False))
    if len(given) < 2:
        return ()
    return [Problem(i, None) for i in where(np.sum(given, axis=0) > 1)]


def _instants(array: pa.StructArray, value: Value, label: str, problems: list[Problem]) -> pa.Array:
    seconds, nanos = (array.field(i).to_numpy() for i in (0, 1))
    micros, outside = microseconds(value.kind, seconds, nanos)
    if outside.any():
        reason = f"field {label} is outside the range of {value.message}"
        code = ErrorCode.VALUE_OUT_OF_RANGE
        problems.extend(Problem(index, code, reason) for index in where(outside))
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


def _nested(
    type_: pa.DataType,
    like: pa.ListArray,
    items: pa.Array,
    below: list[Problem],
    problems: list[Problem],
) -> pa.Array:
    """Lists of other items; the problems of the items become problems of the lists."""
    lists = owners(offsets_of(like), [problem.index for problem in below])
    problems.extend(
        replace(problem, index=index) for index, problem in zip(lists, below, strict=True)
    )
    return pa.Array.from_buffers(type_, len(like), [None, like.buffers()[1]], 0, children=[items])
