"""The fast decoder: `ptars` on a private copy of the message types, with conversion to columns.

`ptars` differs from the official runtime in how it merges well-known types, names enum aliases, and
reads maps, recursion and timestamps out of range. The private copy has none of these: it is flat,
wire compatible, and uses its own names. No other module imports `ptars`; where it is missing, the
official runtime decodes everything.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError as ParseError
from google.protobuf.message_factory import GetMessageClass

from distributary.decode.base import (
    RefusedError,
    attempt,
    json_number,
    offsets_of,
    owners,
    where,
    with_repeated_keys,
)
from distributary.decode.protobuf.schema import (
    OFFICIAL_MAX_DEPTH,
    TEXT_KINDS,
    ProtobufField,
    ProtobufKind,
    ProtobufValue,
    find_message,
    is_map,
    message_class,
    microseconds,
    wire_types,
)
from distributary.decode.protobuf.wire import judge
from distributary.errors import ErrorCode

try:
    import ptars
except ImportError:
    ptars = None  # type: ignore[assignment]

MAX_TAG_SLOTS = 100_000
"""The largest number of table slots of the engine: for each message and call it clears a table as
long as the highest field number."""

_PACKAGE = "lake"
_PARTS: dict[ProtobufKind, list[int]] = {
    **dict.fromkeys((ProtobufKind.TIMESTAMP, ProtobufKind.DURATION), wire_types("INT64", "INT32")),
    ProtobufKind.FIELD_MASK: wire_types("STRING"),
}


class ProtobufEngine:
    """A decoder of whole arrays of payloads that the official parser accepts."""

    def __init__(self, message: ProtobufValue) -> None:
        self._message = message
        self._schema = pa.schema(list(message.engine))

    @cached_property
    def _handler(self) -> Any:
        # built at the first payload, because the driver plans with decoders that never decode
        private = _private_type(self._message)
        config = ptars.PtarsConfig(enum_repr="string", list_value_nullable=True)
        return ptars.HandlerPool([private.file], config).get_for_message(private)

    def decode(self, payloads: pa.BinaryArray) -> pa.RecordBatch | None:
        """Return one column per field, sorted by number, with the engine types of the plan.

        The result is None where the engine refuses the payloads.
        """
        batch = attempt(lambda: self._handler.array_to_record_batch(payloads))
        return None if batch is None else pa.record_batch(_Labelled(batch, self._schema))

    def not_utf8(self, payloads: Sequence[bytes], *, size: int) -> list[int]:
        """Return the payloads with text that is not UTF-8, which the private types check."""
        # built again for each call, because calls are rare and it would double a decoder's memory
        strict = message_class(_private_type(self._message))
        return judge(strict, payloads, size=size).rejected


def has_engine() -> bool:
    """Return True if the engine's package is installed."""
    return ptars is not None


def engine_supports(message: ProtobufValue) -> bool:
    """Return True if the engine decodes a message: no groups and no very high field numbers."""
    structs = list(_structs(message))
    slots = sum(max((field.number for field in struct.fields), default=0) for struct in structs)
    return slots <= MAX_TAG_SLOTS and not any(
        field.group for struct in structs for field in struct.fields
    )


def _private_type(message: ProtobufValue) -> Descriptor:
    pool, files = DescriptorPool(), _PrivateFiles()
    files.message(message)
    pool.Add(files.enums)
    pool.Add(files.messages)
    return find_message(pool, f"{_PACKAGE}.M0")


def _structs(value: ProtobufValue) -> Iterator[ProtobufValue]:
    if value.kind is ProtobufKind.STRUCT:
        yield value
        for field in value.fields:
            yield from _structs(field.value)


class _Labelled:
    """The engine's arrays under other names and types of the same layout, without a copy."""

    def __init__(self, batch: pa.RecordBatch, schema: pa.Schema) -> None:
        self._batch = batch
        self._schema = schema

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self._schema.__arrow_c_schema__(), self._batch.__arrow_c_array__()[1]


class _PrivateFiles:
    """The writer of the private types: enums in one file, messages in another that imports it."""

    def __init__(self) -> None:
        # proto2 allows an enum to start with any number, and proto3 has fields without presence
        self.enums = FileDescriptorProto(name="e.proto", package=_PACKAGE, syntax="proto2")
        self.messages = FileDescriptorProto(
            name="m.proto", package=_PACKAGE, syntax="proto3", dependency=["e.proto"]
        )

    def message(self, value: ProtobufValue) -> str:
        message = self._new()
        for field in value.fields:
            self._add(message, field)
        return f".{_PACKAGE}.{message.name}"

    def _new(self) -> DescriptorProto:
        return self.messages.message_type.add(name=f"M{len(self.messages.message_type)}")

    def _add(self, message: DescriptorProto, field: ProtobufField) -> None:
        if field.key is not None:
            entry = self._new()
            self._declare(entry, 1, field.key)
            self._declare(entry, 2, field.value, repeated=field.value.kind in TEXT_KINDS)
            type_name = f".{_PACKAGE}.{entry.name}"
            _declare(message, field.number, FieldDescriptorProto.TYPE_MESSAGE, True, type_name)
            return
        # A message kept as text is collected as a list, because its occurrences merge by
        # concatenation.
        repeated = field.repeated or field.value.kind in TEXT_KINDS
        presence = field.presence and not repeated
        self._declare(message, field.number, field.value, repeated=repeated, presence=presence)

    def _declare(
        self,
        message: DescriptorProto,
        number: int,
        value: ProtobufValue,
        *,
        repeated: bool = False,
        presence: bool = False,
    ) -> None:
        type_, type_name = self._type(value)
        declared = _declare(message, number, type_, repeated, type_name)
        if presence and type_ != FieldDescriptorProto.TYPE_MESSAGE:
            # a oneof of its own gives a proto3 field its presence
            declared.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"o{number}")

    def _type(self, value: ProtobufValue) -> tuple[int, str]:
        if value.kind in TEXT_KINDS:
            return FieldDescriptorProto.TYPE_BYTES, ""
        if value.kind is ProtobufKind.ENUM:
            return FieldDescriptorProto.TYPE_ENUM, self._enum(value)
        if value.kind is ProtobufKind.STRUCT:
            return FieldDescriptorProto.TYPE_MESSAGE, self.message(value)
        parts = [value.wire] if value.wrapped else _PARTS.get(value.kind)
        if parts is None:
            return value.wire, ""
        message = self._new()
        for number, type_ in enumerate(parts, start=1):
            _declare(message, number, type_, value.kind is ProtobufKind.FIELD_MASK)
        return FieldDescriptorProto.TYPE_MESSAGE, f".{_PACKAGE}.{message.name}"

    def _enum(self, value: ProtobufValue) -> str:
        # the names of values belong to the scope around their enum, so each enum gets its own
        # message
        around = self.enums.message_type.add(name=f"E{len(self.enums.message_type)}")
        enum = around.enum_type.add(name="E")
        for number, name in value.names.items():
            enum.value.add(name=name, number=number)
        return f".{_PACKAGE}.{around.name}.E"


def _declare(
    message: DescriptorProto, number: int, type_: int, repeated: bool, type_name: str = ""
) -> FieldDescriptorProto:
    label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
    return message.field.add(
        name=f"f{number}", number=number, type=type_, label=label, type_name=type_name or None
    )


# Messages without fixed columns become JSON text in the form of `google.protobuf.json_format`. An
# `Any` of an unknown type, or with a value that does not parse as its type, becomes `{"@type": ...,
# "value": <base64>}`.

_ANY = "google.protobuf.Any"
_OFFICIAL = {
    f"google.protobuf.{name}"
    for name in (
        "BoolValue BytesValue DoubleValue Duration FieldMask FloatValue Int32Value Int64Value "
        "ListValue StringValue Struct Timestamp UInt32Value UInt64Value Value"
    ).split()
}
_TEXT_NUMBERS = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)


_TROUBLE: dict[type[Exception], tuple[ErrorCode, str]] = {
    ParseError: (ErrorCode.PAYLOAD_MISMATCH, "does not parse"),
    # raised for map keys, which the runtime does not return as bytes
    UnicodeDecodeError: (ErrorCode.INVALID_UTF8, "holds text that is not UTF-8"),
    RecursionError: (ErrorCode.NESTING_TOO_DEEP, "nests too deep for JSON text"),
}


class JsonText:
    """A renderer of messages of one descriptor set as JSON text."""

    def __init__(self, pool: DescriptorPool) -> None:
        self._pool = pool
        self._classes: dict[str, Any] = {}

    def render(self, message: str, data: bytes) -> str:
        """Return a serialized message as compact JSON; raise `RefusedError` for bad values."""
        cls = self._classes.get(message)
        if cls is None:
            cls = self._classes[message] = message_class(find_message(self._pool, message))
        try:
            value = self._message(cls.FromString(data), 0)
        except (*_TROUBLE,) as error:
            code, what = next(
                trouble for kind, trouble in _TROUBLE.items() if isinstance(error, kind)
            )
            raise RefusedError(code, f"the inner message {message} {what}") from error
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
                content[name] = [self._item(field, item_value, depth) for item_value in value]
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
        # the runtime's message quotes the value, and a failure must not contain values
        reason = f"an inner {name} has a value that JSON text cannot hold"
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
        enum_value = field.enum_type.values_by_number.get(value)
        return value if enum_value is None else enum_value.name
    if field.cpp_type in _TEXT_NUMBERS:
        return str(value)
    if isinstance(value, float):
        return json_number(value, single=field.type == FieldDescriptor.TYPE_FLOAT)
    return _utf8(field, value)


def _utf8(field: FieldDescriptor, value: Any) -> Any:
    # the parser checks only proto3 texts, and the runtime returns a text that is not UTF-8 as bytes
    if isinstance(value, bytes):
        reason = f"field {field.full_name} holds text that is not UTF-8"
        raise RefusedError(ErrorCode.INVALID_UTF8, reason)
    return value


@dataclass(frozen=True, slots=True)
class ProtobufProblem:
    """An element of an array that cannot be used as a row yet."""

    index: int
    code: ErrorCode | None
    """The reason for the failure; None if only the official runtime decodes this record
    correctly."""
    reason: str = ""


class Columns:
    """A converter of the engine's batches of one planned message to lake columns."""

    def __init__(self, message: ProtobufValue, json_text: JsonText) -> None:
        self.schema = pa.schema(list(message.type))
        self._message = message
        self._json = json_text

    def finish(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[ProtobufProblem]]:
        """Return the lake's batch, and the rows in it that must not be used."""
        problems: list[ProtobufProblem] = []
        if not self._message.fields:
            return batch, problems
        members = self._members(batch.columns, self._message, problems)
        return pa.RecordBatch.from_arrays(members, schema=self.schema), problems

    def _members(
        self, arrays: list[pa.Array], message: ProtobufValue, problems: list[ProtobufProblem]
    ) -> list[pa.Array]:
        for oneof in message.oneofs:
            problems.extend(_set_twice([(arrays[field.place], field) for field in oneof]))
        return [
            self._field(arrays[field.place], field, problems) if field.work else arrays[field.place]
            for field in message.fields
        ]

    def _field(
        self, array: pa.Array, field: ProtobufField, problems: list[ProtobufProblem]
    ) -> pa.Array:
        if field.key is not None:
            return self._map(array, field, field.key, problems)
        if field.repeated:
            return self._list(array, field, problems)
        return self._value(array, field.value, field.label, problems)

    def _list(
        self, array: pa.ListArray, field: ProtobufField, problems: list[ProtobufProblem]
    ) -> pa.Array:
        below: list[ProtobufProblem] = []
        if field.value.kind in TEXT_KINDS:
            values = self._texts(([data] for data in array.values.to_pylist()), field.value, below)
        else:
            values = self._value(array.values, field.value, field.label, below)
        return _nested(field.type, array, values, below, problems)

    def _map(
        self,
        array: pa.ListArray,
        field: ProtobufField,
        key: ProtobufValue,
        problems: list[ProtobufProblem],
    ) -> pa.Array:
        keys, items = array.values.field(0), array.values.field(1)
        # the last entry of a repeated key counts, which only the official runtime gets right
        problems.extend(ProtobufProblem(index, None) for index in with_repeated_keys(array, keys))
        if key.work:
            keys = self._value(keys, key, field.label, problems)
        below: list[ProtobufProblem] = []
        if field.value.kind in TEXT_KINDS:
            items = self._texts(items.to_pylist(), field.value, below)
        elif field.value.fields or field.value.work:
            # an entry without a value holds the default message, not a null
            items = self._value(_all_valid(items), field.value, field.label, below)
        entry = pa.struct([field.type.key_field, field.type.item_field])
        entries = pa.Array.from_buffers(entry, len(keys), [None], 0, children=[keys, items])
        return _nested(field.type, array, entries, below, problems)

    def _value(
        self, array: pa.Array, value: ProtobufValue, label: str, problems: list[ProtobufProblem]
    ) -> pa.Array:
        if value.wrapped:
            array = _unwrapped(array)
        match value.kind:
            case ProtobufKind.UINT32 | ProtobufKind.UINT64:
                return array.cast(value.type)
            case ProtobufKind.TIMESTAMP | ProtobufKind.DURATION:
                return _instants(array, value, label, problems)
            case ProtobufKind.FIELD_MASK:
                joined = pc.binary_join(array.field(0), ",")
                return pa.Array.from_buffers(
                    joined.type, len(array), [array.buffers()[0], *joined.buffers()[1:]]
                )
            case ProtobufKind.JSON | ProtobufKind.EMPTY:
                if len(array.values) == 0:
                    return pa.nulls(len(array), pa.string())
                occurrences = (list_ or None for list_ in array.to_pylist())
                return self._texts(occurrences, value, problems)
            case ProtobufKind.STRUCT if value.work:
                arrays = [array.field(i) for i in range(len(value.fields))]
                members = self._members(arrays, value, problems)
                return pa.Array.from_buffers(
                    value.type, len(array), [array.buffers()[0]], array.null_count, children=members
                )
        return array

    def _texts(
        self,
        occurrences: Iterable[list[bytes] | None],
        value: ProtobufValue,
        problems: list[ProtobufProblem],
    ) -> pa.Array:
        rendered: dict[bytes, str] = {}
        texts: list[str | None] = []
        for index, parts in enumerate(occurrences):
            if parts is None:
                texts.append(None)
                continue
            # by the specification, several occurrences of a message merge like their joined bytes
            data = b"".join(parts)
            if data not in rendered:
                try:
                    rendered[data] = self._json.render(value.message, data)
                except RefusedError as error:
                    problems.append(ProtobufProblem(index, error.code, error.reason))
                    texts.append(None)
                    continue
            texts.append(rendered[data])
        return pa.array(texts, pa.string())


def _set_twice(members: list[tuple[pa.Array, ProtobufField]]) -> Iterable[ProtobufProblem]:
    """Return the elements with several members of a oneof, whose order the engine has lost.

    The last member in the payload counts, which only the official runtime finds.
    """
    members_set = []
    for array, field in members:
        if field.value.kind in TEXT_KINDS:
            members_set.append(np.diff(offsets_of(array)) > 0)
        elif array.null_count < len(array):
            members_set.append(array.is_valid().to_numpy(zero_copy_only=False))
    if len(members_set) < 2:
        return ()
    return [ProtobufProblem(i, None) for i in where(np.sum(members_set, axis=0) > 1)]


def _instants(
    array: pa.StructArray, value: ProtobufValue, label: str, problems: list[ProtobufProblem]
) -> pa.Array:
    seconds, nanos = (array.field(i).to_numpy() for i in (0, 1))
    micros, outside = microseconds(value.kind, seconds, nanos)
    if outside.any():
        reason = f"field {label} is outside the range of {value.message}"
        code = ErrorCode.VALUE_OUT_OF_RANGE
        problems.extend(ProtobufProblem(index, code, reason) for index in where(outside))
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
    below: list[ProtobufProblem],
    problems: list[ProtobufProblem],
) -> pa.Array:
    """Return lists of other items, and turn the problems of items into problems of their lists."""
    lists = owners(offsets_of(like), [problem.index for problem in below])
    problems.extend(
        replace(problem, index=index) for index, problem in zip(lists, below, strict=True)
    )
    return pa.Array.from_buffers(type_, len(like), [None, like.buffers()[1]], 0, children=[items])
