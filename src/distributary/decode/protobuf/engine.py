"""The fast decoder: a private copy of the message types, made so that `ptars` gets them right.

`ptars` differs from the official runtime in how it merges well-known types, names enum aliases and
reads maps, recursion and timestamps out of range. The private copy holds none of these: it is flat,
wire compatible, and its names are ours. Nothing else imports `ptars`; where it is missing, the
official runtime decodes everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool

from distributary.decode.base import attempt
from distributary.decode.protobuf.schema import (
    TEXT_KINDS,
    Field,
    Kind,
    Value,
    find_message,
    message_class,
    wire_types,
)
from distributary.decode.protobuf.wire import judge

try:
    import ptars
except ImportError:
    ptars = None  # type: ignore[assignment]

MAX_TAG_SLOTS = 100_000
"""The engine clears a table as long as the highest field number, for each message and call."""

_PACKAGE = "lake"
_PARTS: dict[Kind, list[int]] = {
    **dict.fromkeys((Kind.TIMESTAMP, Kind.DURATION), wire_types("INT64", "INT32")),
    Kind.FIELD_MASK: wire_types("STRING"),
}


class Engine:
    """Decodes whole arrays of payloads that the official parser accepts."""

    def __init__(self, message: Value) -> None:
        private = _private_type(message)
        config = ptars.PtarsConfig(enum_repr="string", list_value_nullable=True)
        self._handler = ptars.HandlerPool([private.file], config).get_for_message(private)
        self._message = message
        self._schema = pa.schema(list(message.engine))

    def decode(self, payloads: pa.BinaryArray) -> pa.RecordBatch | None:
        """One column per field, sorted by number, labelled with the engine types of the plan."""
        batch = attempt(lambda: self._handler.array_to_record_batch(payloads))
        return None if batch is None else pa.record_batch(_Labelled(batch, self._schema))

    def not_utf8(self, payloads: Sequence[bytes], *, size: int) -> list[int]:
        """The payloads whose text is not UTF-8: the parser checks it in the private types."""
        # built anew, because it is seldom asked for and would double the memory of every decoder
        strict = message_class(_private_type(self._message))
        return judge(strict, payloads, size=size).rejected


def has_engine() -> bool:
    """Whether the package of the engine is there."""
    return ptars is not None


def engine_supports(message: Value) -> bool:
    """Whether the engine decodes such messages: it skips groups, and high field numbers cost."""
    structs = list(_structs(message))
    slots = sum(max((f.number for f in each.fields), default=0) for each in structs)
    return slots <= MAX_TAG_SLOTS and not any(f.group for each in structs for f in each.fields)


def _private_type(message: Value) -> Descriptor:
    pool, files = DescriptorPool(), _PrivateFiles()
    files.message(message)
    pool.Add(files.enums)
    pool.Add(files.messages)
    return find_message(pool, f"{_PACKAGE}.M0")


def _structs(value: Value) -> Iterator[Value]:
    if value.kind is Kind.STRUCT:
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
    """Writes the private types: enums in one file, messages in another that imports it."""

    def __init__(self) -> None:
        # proto2 lets an enum start with any number, proto3 has fields without presence
        self.enums = FileDescriptorProto(name="e.proto", package=_PACKAGE, syntax="proto2")
        self.messages = FileDescriptorProto(
            name="m.proto", package=_PACKAGE, syntax="proto3", dependency=["e.proto"]
        )

    def message(self, value: Value) -> str:
        message = self._new()
        for field in value.fields:
            self._add(message, field)
        return f".{_PACKAGE}.{message.name}"

    def _new(self) -> DescriptorProto:
        return self.messages.message_type.add(name=f"M{len(self.messages.message_type)}")

    def _add(self, message: DescriptorProto, field: Field) -> None:
        if field.key is not None:
            entry = self._new()
            self._declare(entry, 1, field.key)
            self._declare(entry, 2, field.value, repeated=field.value.kind in TEXT_KINDS)
            type_name = f".{_PACKAGE}.{entry.name}"
            _declare(message, field.number, FieldDescriptorProto.TYPE_MESSAGE, True, type_name)
            return
        # a text kind is collected as a list: occurrences of one field merge by concatenation
        repeated = field.repeated or field.value.kind in TEXT_KINDS
        presence = field.presence and not repeated
        self._declare(message, field.number, field.value, repeated=repeated, presence=presence)

    def _declare(
        self,
        message: DescriptorProto,
        number: int,
        value: Value,
        *,
        repeated: bool = False,
        presence: bool = False,
    ) -> None:
        type_, type_name = self._type(value)
        declared = _declare(message, number, type_, repeated, type_name)
        if presence and type_ != FieldDescriptorProto.TYPE_MESSAGE:
            # a oneof of its own is what gives a proto3 field its presence
            declared.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"o{number}")

    def _type(self, value: Value) -> tuple[int, str]:
        if value.kind in TEXT_KINDS:
            return FieldDescriptorProto.TYPE_BYTES, ""
        if value.kind is Kind.ENUM:
            return FieldDescriptorProto.TYPE_ENUM, self._enum(value)
        if value.kind is Kind.STRUCT:
            return FieldDescriptorProto.TYPE_MESSAGE, self.message(value)
        parts = [value.wire] if value.wrapped else _PARTS.get(value.kind)
        if parts is None:
            return value.wire, ""
        message = self._new()
        for number, type_ in enumerate(parts, start=1):
            _declare(message, number, type_, value.kind is Kind.FIELD_MASK)
        return FieldDescriptorProto.TYPE_MESSAGE, f".{_PACKAGE}.{message.name}"

    def _enum(self, value: Value) -> str:
        # value names live beside their enum, so each enum gets a message around it
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
