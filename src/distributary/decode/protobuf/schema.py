"""Opens a serialized FileDescriptorSet with the official runtime, and plans its columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FeatureSet,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError as ParseError
from google.protobuf.message_factory import GetMessageClass

from distributary.decode.base import Mask, Positions
from distributary.errors import DecodeError
from distributary.model.record import TIMESTAMP
from distributary.model.table import Column, Origin

OFFICIAL_MAX_DEPTH = 100
"""The levels of submessages that the official parser reads, fixed in its Python package."""


def open_pool(
    body: bytes, message: str, *, change: Callable[[FileDescriptorProto], None] | None = None
) -> DescriptorPool:
    """Return the types of a descriptor set in a new pool; `change` may modify its files first."""
    pool = DescriptorPool()
    try:
        for file in FileDescriptorSet.FromString(body).file:
            if change is not None:
                change(file)
            pool.Add(file)
    except (ParseError, TypeError, ValueError, KeyError) as error:
        raise DecodeError(
            "the compiled schema is not a usable FileDescriptorSet",
            where=f"message {message!r}",
            evidence=f"{type(error).__name__} from the protobuf runtime: {error}",
            next_step="look at the schema in the registry; every import must be in the set, first",
        ) from error
    return pool


def find_message(pool: DescriptorPool, message: str) -> Descriptor:
    """Return the message type with a full name."""
    try:
        return pool.FindMessageTypeByName(message)
    except (KeyError, TypeError, ValueError) as error:
        raise DecodeError(
            "the schema does not define this message",
            where=f"message {message!r}",
            evidence=type(error).__name__,
            next_step="compare the message name, or the message index, with the schema's text",
        ) from error


def message_class(descriptor: Descriptor) -> Any:
    """Return the official runtime's class of a message."""
    try:
        return GetMessageClass(descriptor)
    except RecursionError as error:
        raise DecodeError(
            "the messages of this schema nest too deep for the protobuf runtime",
            where=f"message {descriptor.full_name!r}",
            evidence="a chain of several hundred messages, each a field of the one before",
            next_step="ask the schema's author for fewer levels of messages",
        ) from error


def is_map(field: FieldDescriptor) -> bool:
    """Return True if a field is declared as `map<...>`."""
    return bool(
        field.type == FieldDescriptor.TYPE_MESSAGE
        and field.is_repeated
        and field.message_type.GetOptions().map_entry
    )


def with_open_enums(file: FileDescriptorProto) -> None:
    """Change enum fields to int32, so that unknown numbers of closed enums stay values."""
    for message in _messages(file):
        for field in message.field:
            if field.type == FieldDescriptor.TYPE_ENUM:
                field.type = FieldDescriptor.TYPE_INT32
                field.ClearField("type_name")
                field.ClearField("default_value")


def with_nothing_replaced(file: FileDescriptorProto) -> None:
    """Remove oneofs, maps and lists of messages, so that a merge keeps all unknown fields.

    A message that replaces another, in a oneof or under a key, drops the other's unknown fields.
    And one merged message takes less time to check than many messages in a list.
    """
    with_open_enums(file)
    for message in _messages(file):
        entries = {nested.name for nested in message.nested_type if nested.options.map_entry}
        is_entry = message.options.map_entry
        message.options.ClearField("map_entry")
        del message.oneof_decl[:]
        for field in message.field:
            field.ClearField("oneof_index")
            field.ClearField("proto3_optional")
            if field.type not in (FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_GROUP):
                continue
            field.label = FieldDescriptor.LABEL_OPTIONAL
            if file.edition and (is_entry or field.type_name.rpartition(".")[2] in entries):
                # a map never consists of groups, whatever encoding its file sets for messages
                field.options.features.message_encoding = FeatureSet.LENGTH_PREFIXED


def replaces_nothing(descriptor: Descriptor) -> bool:
    """Return True if `with_nothing_replaced` would not change a type or its inner types."""
    descriptors, seen = [descriptor], {descriptor.full_name}
    while descriptors:
        for field in descriptors.pop().fields:
            if field.enum_type is not None and field.enum_type.is_closed:
                return False
            below = field.message_type
            if below is None:
                continue
            choice = field.containing_oneof
            if field.is_repeated or (choice is not None and len(choice.fields) > 1):
                return False
            if below.full_name not in seen:
                seen.add(below.full_name)
                descriptors.append(below)
    return True


def _messages(file: FileDescriptorProto) -> Iterator[DescriptorProto]:
    """Yield the messages of a file, nested ones included."""
    messages = list(file.message_type)
    while messages:
        message = messages.pop()
        yield message
        messages += message.nested_type


# The plan of a message: each field with its lake type and its conversion.


class ProtobufKind(Enum):
    """The kind of a single value, before it is repeated or put into a map."""

    PLAIN = auto()
    """A value whose engine array is already the lake's array."""
    UINT32 = auto()
    UINT64 = auto()
    ENUM = auto()
    TIMESTAMP = auto()
    DURATION = auto()
    FIELD_MASK = auto()
    STRUCT = auto()
    JSON = auto()
    """A message without fixed columns, kept as JSON text."""
    EMPTY = auto()
    """A message without fields, kept as JSON text: a lake cannot hold a struct without fields."""


TEXT_KINDS = (ProtobufKind.JSON, ProtobufKind.EMPTY)


@dataclass(frozen=True, slots=True)
class ProtobufValue:
    """The plan of one value: its type in the lake and its type in the engine."""

    kind: ProtobufKind
    type: pa.DataType
    engine: pa.DataType
    """The type given to the engine's array; the lake type where no conversion is needed."""
    work: bool
    """True if the engine's array must be converted or checked."""
    wire: int = 0
    """The declared protobuf type of a scalar."""
    wrapped: bool = False
    """True if the scalar is in one of the wrapper messages of `google.protobuf`."""
    message: str = ""
    names: Mapping[int, str] = dataclasses.field(default_factory=dict)
    """The first name of each number of an enum."""
    fields: tuple[ProtobufField, ...] = ()
    """The fields of a struct, in the schema's order."""
    oneofs: tuple[tuple[ProtobufField, ...], ...] = ()
    """The oneofs of a struct: groups of fields of which at most one is set."""

    @property
    def renders_others(self) -> bool:
        """Return True if a JSON text in the value depends on message types of the schema."""
        if self.kind is ProtobufKind.JSON:
            return self.message not in _SELF_DESCRIBING
        return any(field.value.renders_others for field in self.fields)


@dataclass(frozen=True, slots=True)
class ProtobufField:
    """The plan of one message field, and of the column or struct member that it becomes."""

    name: str
    number: int
    place: int
    """Index of the field by ascending number, which is the engine's order."""
    label: str
    """`package.Message.field`, for comments and failures."""
    value: ProtobufValue
    key: ProtobufValue | None
    """The key of a map; a map is never `repeated` here."""
    repeated: bool
    presence: bool
    oneof: str
    """Name of the oneof that the field shares with other fields, if any."""
    group: bool
    note: str
    type: pa.DataType
    engine: pa.DataType
    work: bool


def text(kind: ProtobufKind, message: str) -> ProtobufValue:
    """Plan a message as JSON text; the engine collects its bytes, one item per occurrence."""
    return ProtobufValue(kind, pa.string(), pa.list_(pa.binary()), True, message=message)


def struct(message: str, fields: tuple[ProtobufField, ...]) -> ProtobufValue:
    """Plan a message as a struct with one member for each field."""
    members: dict[str, list[ProtobufField]] = {}
    for field in fields:
        if field.oneof:
            members.setdefault(field.oneof, []).append(field)
    ordered = sorted(fields, key=lambda field: field.place)
    work = bool(members) or ordered != list(fields) or any(field.work for field in fields)
    return ProtobufValue(
        ProtobufKind.STRUCT,
        pa.struct([pa.field(field.name, field.type) for field in fields]),
        pa.struct([pa.field(field.name, field.engine) for field in ordered]),
        work,
        message=message,
        fields=fields,
        oneofs=tuple(map(tuple, members.values())),
    )


def lake_names(descriptor: Descriptor, *, top: bool) -> dict[int, tuple[str, str]]:
    """Return, by field number, the column name and a note if it differs from the field's name.

    Names in a lake do not differ by case, and at the top a leading underscore is reserved for the
    pipeline's own columns. The lowest field number keeps its name, because it is most likely the
    oldest field, and a later field must not rename an existing column.
    """
    taken: set[str] = set()
    names: dict[int, tuple[str, str]] = {}
    others = []
    for field in sorted(descriptor.fields, key=lambda field: field.number):
        if field.name.lower() in taken or (top and field.name.startswith("_")):
            others.append(field)
        else:
            taken.add(field.name.lower())
            names[field.number] = (field.name, "")
    for field in others:
        name = f"field{field.name}" if top and field.name.startswith("_") else field.name
        while name.lower() in taken:
            name = f"{name}__{field.number}"
        taken.add(name.lower())
        names[field.number] = (name, f"renamed from {field.name}")
    return names


MAX_FIELDS = 5_000
"""The largest number of fields of one message with all its submessages; above it fewer levels
become columns."""
MAX_LEVELS = 50
"""The deepest nesting of structs."""


def wire_types(*names: str) -> list[int]:
    """Return the numbers of protobuf types, given names such as `INT32`."""
    return [FieldDescriptorProto.Type.Value(f"TYPE_{name}") for name in names]


_SCALARS: dict[int, ProtobufValue] = {
    wire: ProtobufValue(kind, type_, engine or type_, engine is not None, wire)
    for kind, type_, engine, wires in (
        (ProtobufKind.PLAIN, pa.bool_(), None, wire_types("BOOL")),
        (ProtobufKind.PLAIN, pa.binary(), None, wire_types("BYTES")),
        (ProtobufKind.PLAIN, pa.string(), None, wire_types("STRING")),
        (ProtobufKind.PLAIN, pa.float64(), None, wire_types("DOUBLE")),
        (ProtobufKind.PLAIN, pa.float32(), None, wire_types("FLOAT")),
        (ProtobufKind.PLAIN, pa.int32(), None, wire_types("INT32", "SINT32", "SFIXED32")),
        (ProtobufKind.PLAIN, pa.int64(), None, wire_types("INT64", "SINT64", "SFIXED64")),
        (ProtobufKind.UINT32, pa.int64(), pa.uint32(), wire_types("UINT32", "FIXED32")),
        (ProtobufKind.UINT64, pa.decimal128(20, 0), pa.uint64(), wire_types("UINT64", "FIXED64")),
    )
    for wire in wires
}
_OFFICIAL = "google.protobuf."
_INSTANTS = {
    f"{_OFFICIAL}Timestamp": (ProtobufKind.TIMESTAMP, TIMESTAMP),
    f"{_OFFICIAL}Duration": (ProtobufKind.DURATION, pa.int64()),
}
_SECONDS_AND_NANOS = pa.struct([pa.field("seconds", pa.int64()), pa.field("nanos", pa.int32())])
_WRAPPERS = {
    f"{_OFFICIAL}{name}Value": wire_types(name.upper())[0]
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
_SELF_DESCRIBING = {f"{_OFFICIAL}{name}" for name in ("Struct", "Value", "ListValue")}
_SHAPELESS = {f"{_OFFICIAL}Any"} | _SELF_DESCRIBING


def plan_message(descriptor: Descriptor, *, recursion_depth: int) -> ProtobufValue:
    """Plan a message as a struct, with its fields in the schema's order and all levels below.

    Messages that contain each other can unfold into more columns than a table can hold. Then fewer
    levels of recursion, and after that of nesting, become columns, and the rest stays JSON text.
    """
    well_known: dict[str, ProtobufValue | None] = {}
    for depth in range(recursion_depth, -1, -1):
        planner = _Planner(depth, MAX_LEVELS, well_known)
        if planner.fits(descriptor):
            return planner.message(descriptor, ())
    levels = 0
    while _Planner(0, levels + 1, well_known).fits(descriptor):
        levels += 1
    return _Planner(0, levels, well_known).message(descriptor, ())


def columns_of(message: ProtobufValue) -> tuple[Column, ...]:
    """Return the lake columns of a planned message."""
    return tuple(
        Column(
            field.name,
            field.type,
            comment="; ".join(filter(None, (f"field {field.label} (#{field.number})", field.note))),
            number=field.number,
            origin=Origin(field.label),
        )
        for field in message.fields
    )


def can_nest_deeper(descriptor: Descriptor, levels: int) -> bool:
    """Return True if payloads of a message can hold more than `levels` levels of messages."""
    reached = {descriptor.full_name: descriptor}
    for _ in range(levels + 1):
        inner_types = [f.message_type for d in reached.values() for f in d.fields]
        reached = {d.full_name: d for d in inner_types if d is not None}
    return bool(reached)


@dataclass(frozen=True, slots=True)
class _Planner:
    recursion_depth: int
    levels: int
    well_known: dict[str, ProtobufValue | None]
    """The plans of well-known types that were met, by name; None for every other type."""

    def fits(self, descriptor: Descriptor) -> bool:
        """Return True if the plan stays below the field limit; counting is cheaper than a plan."""
        count = 0
        left: list[tuple[Descriptor, tuple[str, ...]]] = [(descriptor, (descriptor.full_name,))]
        while left:
            message, path = left.pop()
            count += len(message.fields)
            if count > MAX_FIELDS:
                return False
            for field in message.fields:
                below = field.message_type
                if is_map(field):
                    below = below.fields_by_name["value"].message_type
                if below is not None and self._is_struct(below, path):
                    left.append((below, (*path, below.full_name)))
        return True

    def message(self, descriptor: Descriptor, ancestors: tuple[str, ...]) -> ProtobufValue:
        names = lake_names(descriptor, top=not ancestors)
        numbers = sorted(names)
        path = (*ancestors, descriptor.full_name)
        fields = tuple(
            self._field(field, numbers.index(field.number), names[field.number], path)
            for field in descriptor.fields
        )
        return struct(descriptor.full_name, fields)

    def _field(
        self,
        field: FieldDescriptor,
        place: int,
        name_and_note: tuple[str, str],
        path: tuple[str, ...],
    ) -> ProtobufField:
        name, note = name_and_note
        key: ProtobufValue | None = None
        if is_map(field):
            entry = field.message_type.fields_by_name
            key, value = self._value(entry["key"], path), self._value(entry["value"], path)
            entry_type = pa.struct([pa.field("key", key.engine), pa.field("value", value.engine)])
            type_, engine = pa.map_(key.type, value.type), pa.list_(entry_type)
        else:
            value = self._value(field, path)
            type_, engine = value.type, value.engine
        repeated = field.is_repeated and key is None
        if repeated:
            item_type = pa.binary() if value.kind in TEXT_KINDS else engine
            type_, engine = pa.list_(type_), pa.list_(item_type)
        oneof = field.containing_oneof
        shared = oneof is not None and len(oneof.fields) > 1
        return ProtobufField(
            name=name,
            number=field.number,
            place=place,
            label=field.full_name,
            value=value,
            key=key,
            repeated=repeated,
            presence=field.has_presence,
            oneof=oneof.name if shared else "",
            group=field.type == FieldDescriptor.TYPE_GROUP,
            note="; ".join(filter(None, (_unit(value, nested=False), note))),
            type=type_,
            engine=engine,
            work=value.work or key is not None,
        )

    def _value(self, field: FieldDescriptor, path: tuple[str, ...]) -> ProtobufValue:
        if field.enum_type is not None:
            names: dict[int, str] = {}
            for value in field.enum_type.values:
                names.setdefault(value.number, value.name)
            return ProtobufValue(
                ProtobufKind.ENUM, pa.string(), pa.string(), False, field.type, names=names
            )
        if field.message_type is None:
            return _SCALARS[field.type]
        message = field.message_type
        if self._is_struct(message, path):
            return self.message(message, path)
        return self.well_known[message.full_name] or text(ProtobufKind.JSON, message.full_name)

    def _is_struct(self, message: Descriptor, path: tuple[str, ...]) -> bool:
        name = message.full_name
        if name not in self.well_known:
            self.well_known[name] = _well_known(message)
        cut = path.count(name) > self.recursion_depth or len(path) > self.levels
        return self.well_known[name] is None and not cut


def _well_known(descriptor: Descriptor) -> ProtobufValue | None:
    name = descriptor.full_name
    # a schema may define its own messages under these names, which are ordinary messages then
    form = [(field.number, field.type, field.is_repeated) for field in descriptor.fields]
    if name in _SHAPELESS:
        return text(ProtobufKind.JSON, name)
    if not form:
        return text(ProtobufKind.EMPTY, name)
    numbers = [(1, FieldDescriptor.TYPE_INT64, False), (2, FieldDescriptor.TYPE_INT32, False)]
    if name in _INSTANTS and form == numbers:
        kind, type_ = _INSTANTS[name]
        return ProtobufValue(kind, type_, _SECONDS_AND_NANOS, True, message=name)
    if name in _WRAPPERS and form == [(1, _WRAPPERS[name], False)]:
        inner = _SCALARS[_WRAPPERS[name]]
        engine = pa.struct([pa.field("value", inner.engine)])
        return replace(inner, engine=engine, work=True, wrapped=True, message=name)
    if name == f"{_OFFICIAL}FieldMask" and form == [(1, FieldDescriptor.TYPE_STRING, True)]:
        paths = pa.struct([pa.field("paths", pa.list_(pa.string()))])
        return ProtobufValue(ProtobufKind.FIELD_MASK, pa.string(), paths, True, message=name)
    return None


def _unit(value: ProtobufValue, *, nested: bool) -> str:
    match value.kind:
        case ProtobufKind.DURATION:
            return "durations in microseconds" if nested else "in microseconds"
        case ProtobufKind.JSON if not nested:
            return "JSON text"
        case ProtobufKind.STRUCT:
            return next(
                filter(None, (_unit(field.value, nested=True) for field in value.fields)), ""
            )
        case _:
            return ""


# Ranges of timestamps and durations that the lake can hold.

_SECONDS = {
    # 0001-01-01T00:00:00Z to 9999-12-31T23:59:59Z, as timestamp.proto defines it
    ProtobufKind.TIMESTAMP: (-62_135_596_800, 253_402_300_799),
    # ten thousand years either way, as duration.proto defines it
    ProtobufKind.DURATION: (-315_576_000_000, 315_576_000_000),
}
_MAX_NANOS = 999_999_999


def microseconds(
    kind: ProtobufKind, seconds: Positions, nanos: npt.NDArray[np.int32]
) -> tuple[Positions, Mask]:
    """Convert timestamps or durations to microseconds, with a mask of those out of range."""
    low, high = _SECONDS[kind]
    if len(seconds) and kind is ProtobufKind.TIMESTAMP:
        # The usual case takes few steps, because there are many small arrays.
        usual = nanos.min() >= 0 and nanos.max() <= _MAX_NANOS
        if usual and seconds.min() >= low and seconds.max() <= high:
            return seconds * 1_000_000 + nanos // 1_000, np.zeros(len(seconds), np.bool_)
    least = 0 if kind is ProtobufKind.TIMESTAMP else -_MAX_NANOS
    outside = (seconds < low) | (seconds > high) | (nanos < least) | (nanos > _MAX_NANOS)
    # nanoseconds are cut off towards zero, also for negative durations
    rest = np.sign(nanos).astype(np.int64) * (np.abs(nanos.astype(np.int64)) // 1_000)
    return np.where(outside, 0, seconds) * 1_000_000 + rest, outside
