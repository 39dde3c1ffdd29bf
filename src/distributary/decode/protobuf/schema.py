"""A serialized FileDescriptorSet, opened with the official runtime, and the plan of its columns."""

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
"""Submessages below a message that the official parser follows; fixed in its Python package."""


def open_pool(
    body: bytes, message: str, *, change: Callable[[FileDescriptorProto], None] | None = None
) -> DescriptorPool:
    """The types of a descriptor set, apart from every other pool; `change` may alter its files."""
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
    """The type with this full name."""
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
    """The official runtime's class for a message."""
    try:
        return GetMessageClass(descriptor)
    except RecursionError as error:
        raise DecodeError(
            "the protobuf runtime cannot follow the messages of this schema",
            where=f"message {descriptor.full_name!r}",
            evidence="a chain of several hundred messages, each a field of the one before",
            next_step="ask the schema's author for fewer levels of messages",
        ) from error


def is_map(field: FieldDescriptor) -> bool:
    """Whether a field is declared as `map<...>`."""
    return bool(
        field.type == FieldDescriptor.TYPE_MESSAGE
        and field.is_repeated
        and field.message_type.GetOptions().map_entry
    )


def with_open_enums(file: FileDescriptorProto) -> None:
    """Enum fields as int32: numbers that a closed enum does not know are values, not unknown."""
    for message in _messages(file):
        for field in message.field:
            if field.type == FieldDescriptor.TYPE_ENUM:
                field.type = FieldDescriptor.TYPE_INT32
                field.ClearField("type_name")
                field.ClearField("default_value")


def with_nothing_replaced(file: FileDescriptorProto) -> None:
    """No oneofs, maps and lists of messages: what is merged into one keeps all unknown fields.

    A message that takes the place of another, in a oneof or under a key, takes away the unknown
    fields of the other; and many messages in a list take longer to look at than one.
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
                # a map is never made of groups, whatever its file says of messages
                field.options.features.message_encoding = FeatureSet.LENGTH_PREFIXED


def replaces_nothing(descriptor: Descriptor) -> bool:
    """Whether a type is one `with_nothing_replaced` as it is, with all that it is made of."""
    waiting, seen = [descriptor], {descriptor.full_name}
    while waiting:
        for field in waiting.pop().fields:
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
                waiting.append(below)
    return True


def _messages(file: FileDescriptorProto) -> Iterator[DescriptorProto]:
    """The messages of a file, whether nested or not."""
    waiting = list(file.message_type)
    while waiting:
        message = waiting.pop()
        yield message
        waiting += message.nested_type


# The plan of a message: every field with its lake type and with the way it is decoded there.


class Kind(Enum):
    """What a single value is, before it is repeated or put into a map."""

    PLAIN = auto()
    """The engine's array is the lake's array already."""
    UINT32 = auto()
    UINT64 = auto()
    ENUM = auto()
    TIMESTAMP = auto()
    DURATION = auto()
    FIELD_MASK = auto()
    STRUCT = auto()
    JSON = auto()
    """A message that has no fixed columns: kept as text."""
    EMPTY = auto()
    """A message without fields: a lake cannot hold a struct without fields."""


TEXT_KINDS = (Kind.JSON, Kind.EMPTY)


@dataclass(frozen=True, slots=True)
class Value:
    """One value: its type in the lake, and its type as the engine gives it."""

    kind: Kind
    type: pa.DataType
    engine: pa.DataType
    """What the engine's array is labelled with; the lake type where no work is left to do."""
    work: bool
    """Whether the engine's array must be converted or checked."""
    wire: int = 0
    """The declared protobuf type of a scalar."""
    wrapped: bool = False
    """Whether the scalar sits in one of the wrapper messages of `google.protobuf`."""
    message: str = ""
    names: Mapping[int, str] = dataclasses.field(default_factory=dict)
    """Of an enum: the first name of each number."""
    fields: tuple[Field, ...] = ()
    """Of a struct, in the schema's order."""
    oneofs: tuple[tuple[Field, ...], ...] = ()
    """Of a struct: the fields of which at most one is set."""

    @property
    def renders_others(self) -> bool:
        """Whether some text in it is made by what its schema says of messages without columns."""
        if self.kind is Kind.JSON:
            return self.message not in _SELF_DESCRIBING
        return any(field.value.renders_others for field in self.fields)


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message and the column, or the struct member, that it becomes."""

    name: str
    number: int
    place: int
    """Its position when the fields of the message are sorted by number, as the engine has them."""
    label: str
    """`package.Message.field`, for comments and failures."""
    value: Value
    key: Value | None
    """Of a map; a map is never `repeated` here."""
    repeated: bool
    presence: bool
    oneof: str
    """The oneof that it shares with other fields, if any."""
    group: bool
    note: str
    type: pa.DataType
    engine: pa.DataType
    work: bool


def text(kind: Kind, message: str) -> Value:
    """A message kept as JSON text; the engine collects its bytes, one item per occurrence."""
    return Value(kind, pa.string(), pa.list_(pa.binary()), True, message=message)


def struct(message: str, fields: tuple[Field, ...]) -> Value:
    """A message with columns of its own."""
    members: dict[str, list[Field]] = {}
    for each in fields:
        if each.oneof:
            members.setdefault(each.oneof, []).append(each)
    ordered = sorted(fields, key=lambda f: f.place)
    work = bool(members) or ordered != list(fields) or any(f.work for f in fields)
    return Value(
        Kind.STRUCT,
        pa.struct([pa.field(f.name, f.type) for f in fields]),
        pa.struct([pa.field(f.name, f.engine) for f in ordered]),
        work,
        message=message,
        fields=fields,
        oneofs=tuple(map(tuple, members.values())),
    )


def lake_names(descriptor: Descriptor, *, top: bool) -> dict[int, tuple[str, str]]:
    """By field number: the name, and a note where it is not the name of the field.

    A lake's names do not differ by case, and names with a leading underscore belong to the
    pipeline's own columns at the top. The lowest field number keeps its name, because it is most
    likely the older field: a later field must not rename a column that exists.
    """
    taken: set[str] = set()
    given: dict[int, tuple[str, str]] = {}
    others = []
    for field in sorted(descriptor.fields, key=lambda f: f.number):
        if field.name.lower() in taken or (top and field.name.startswith("_")):
            others.append(field)
        else:
            taken.add(field.name.lower())
            given[field.number] = (field.name, "")
    for field in others:
        name = f"field{field.name}" if top and field.name.startswith("_") else field.name
        while name.lower() in taken:
            name = f"{name}__{field.number}"
        taken.add(name.lower())
        given[field.number] = (name, f"renamed from {field.name}")
    return given


MAX_FIELDS = 5_000
"""Of one message with all its submessages; beyond it fewer levels become columns."""
MAX_LEVELS = 50
"""Of structs in structs."""


def wire_types(*names: str) -> list[int]:
    """The numbers of protobuf's types, such as `INT32`."""
    return [FieldDescriptorProto.Type.Value(f"TYPE_{name}") for name in names]


_SCALARS: dict[int, Value] = {
    wire: Value(kind, type_, engine or type_, engine is not None, wire)
    for kind, type_, engine, wires in (
        (Kind.PLAIN, pa.bool_(), None, wire_types("BOOL")),
        (Kind.PLAIN, pa.binary(), None, wire_types("BYTES")),
        (Kind.PLAIN, pa.string(), None, wire_types("STRING")),
        (Kind.PLAIN, pa.float64(), None, wire_types("DOUBLE")),
        (Kind.PLAIN, pa.float32(), None, wire_types("FLOAT")),
        (Kind.PLAIN, pa.int32(), None, wire_types("INT32", "SINT32", "SFIXED32")),
        (Kind.PLAIN, pa.int64(), None, wire_types("INT64", "SINT64", "SFIXED64")),
        (Kind.UINT32, pa.int64(), pa.uint32(), wire_types("UINT32", "FIXED32")),
        (Kind.UINT64, pa.decimal128(20, 0), pa.uint64(), wire_types("UINT64", "FIXED64")),
    )
    for wire in wires
}
_OFFICIAL = "google.protobuf."
_INSTANTS = {
    f"{_OFFICIAL}Timestamp": (Kind.TIMESTAMP, TIMESTAMP),
    f"{_OFFICIAL}Duration": (Kind.DURATION, pa.int64()),
}
_SECONDS_AND_NANOS = pa.struct([pa.field("seconds", pa.int64()), pa.field("nanos", pa.int32())])
_WRAPPERS = {
    f"{_OFFICIAL}{name}Value": wire_types(name.upper())[0]
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
_SELF_DESCRIBING = {f"{_OFFICIAL}{name}" for name in ("Struct", "Value", "ListValue")}
_SHAPELESS = {f"{_OFFICIAL}Any"} | _SELF_DESCRIBING


def plan_message(descriptor: Descriptor, *, recursion_depth: int) -> Value:
    """A message as a struct: its fields in the schema's order, with everything below them.

    Messages that contain each other can unfold into more columns than a table can hold: then
    recursion, and after that nesting, is followed less far, and the rest stays JSON text.
    """
    known: dict[str, Value | None] = {}
    for depth in range(recursion_depth, -1, -1):
        planner = _Planner(depth, MAX_LEVELS, known)
        if planner.fits(descriptor):
            return planner.message(descriptor, ())
    levels = 0
    while _Planner(0, levels + 1, known).fits(descriptor):
        levels += 1
    return _Planner(0, levels, known).message(descriptor, ())


def columns_of(message: Value) -> tuple[Column, ...]:
    """The lake columns of a planned message."""
    return tuple(
        Column(
            f.name,
            f.type,
            comment="; ".join(filter(None, (f"field {f.label} (#{f.number})", f.note))),
            number=f.number,
            origin=Origin(f.label),
        )
        for f in message.fields
    )


def can_nest_deeper(descriptor: Descriptor, levels: int) -> bool:
    """Whether payloads of this message can hold more levels of messages than these."""
    reached = {descriptor.full_name: descriptor}
    for _ in range(levels + 1):
        below = [f.message_type for d in reached.values() for f in d.fields]
        reached = {d.full_name: d for d in below if d is not None}
    return bool(reached)


@dataclass(frozen=True, slots=True)
class _Planner:
    recursion_depth: int
    levels: int
    known: dict[str, Value | None]
    """The well-known types that were met, by name; None for every other type."""

    def fits(self, descriptor: Descriptor) -> bool:
        """Whether the plan stays below the limit; counted first, because plans are costly."""
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

    def message(self, descriptor: Descriptor, ancestors: tuple[str, ...]) -> Value:
        names = lake_names(descriptor, top=not ancestors)
        numbers = sorted(names)
        path = (*ancestors, descriptor.full_name)
        fields = tuple(
            self._field(field, numbers.index(field.number), names[field.number], path)
            for field in descriptor.fields
        )
        return struct(descriptor.full_name, fields)

    def _field(
        self, field: FieldDescriptor, place: int, named: tuple[str, str], path: tuple[str, ...]
    ) -> Field:
        name, renamed = named
        key: Value | None = None
        if is_map(field):
            entry = field.message_type.fields_by_name
            key, value = self._value(entry["key"], path), self._value(entry["value"], path)
            both = pa.struct([pa.field("key", key.engine), pa.field("value", value.engine)])
            type_, engine = pa.map_(key.type, value.type), pa.list_(both)
        else:
            value = self._value(field, path)
            type_, engine = value.type, value.engine
        repeated = field.is_repeated and key is None
        if repeated:
            each = pa.binary() if value.kind in TEXT_KINDS else engine
            type_, engine = pa.list_(type_), pa.list_(each)
        oneof = field.containing_oneof
        shared = oneof is not None and len(oneof.fields) > 1
        return Field(
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
            note="; ".join(filter(None, (_unit(value, nested=False), renamed))),
            type=type_,
            engine=engine,
            work=value.work or key is not None,
        )

    def _value(self, field: FieldDescriptor, path: tuple[str, ...]) -> Value:
        if field.enum_type is not None:
            names: dict[int, str] = {}
            for value in field.enum_type.values:
                names.setdefault(value.number, value.name)
            return Value(Kind.ENUM, pa.string(), pa.string(), False, field.type, names=names)
        if field.message_type is None:
            return _SCALARS[field.type]
        message = field.message_type
        if self._is_struct(message, path):
            return self.message(message, path)
        return self.known[message.full_name] or text(Kind.JSON, message.full_name)

    def _is_struct(self, message: Descriptor, path: tuple[str, ...]) -> bool:
        name = message.full_name
        if name not in self.known:
            self.known[name] = _well_known(message)
        cut = path.count(name) > self.recursion_depth or len(path) > self.levels
        return self.known[name] is None and not cut


def _well_known(descriptor: Descriptor) -> Value | None:
    name = descriptor.full_name
    # somebody may define other messages under these names: those are ordinary messages
    form = [(f.number, f.type, f.is_repeated) for f in descriptor.fields]
    if name in _SHAPELESS:
        return text(Kind.JSON, name)
    if not form:
        return text(Kind.EMPTY, name)
    numbers = [(1, FieldDescriptor.TYPE_INT64, False), (2, FieldDescriptor.TYPE_INT32, False)]
    if name in _INSTANTS and form == numbers:
        kind, type_ = _INSTANTS[name]
        return Value(kind, type_, _SECONDS_AND_NANOS, True, message=name)
    if name in _WRAPPERS and form == [(1, _WRAPPERS[name], False)]:
        inner = _SCALARS[_WRAPPERS[name]]
        engine = pa.struct([pa.field("value", inner.engine)])
        return replace(inner, engine=engine, work=True, wrapped=True, message=name)
    if name == f"{_OFFICIAL}FieldMask" and form == [(1, FieldDescriptor.TYPE_STRING, True)]:
        paths = pa.struct([pa.field("paths", pa.list_(pa.string()))])
        return Value(Kind.FIELD_MASK, pa.string(), paths, True, message=name)
    return None


def _unit(value: Value, *, nested: bool) -> str:
    match value.kind:
        case Kind.DURATION:
            return "durations in microseconds" if nested else "in microseconds"
        case Kind.JSON if not nested:
            return "JSON text"
        case Kind.STRUCT:
            return next(filter(None, (_unit(f.value, nested=True) for f in value.fields)), "")
        case _:
            return ""


# Values that a message can carry and the lake cannot hold.

_SECONDS = {
    # 0001-01-01T00:00:00Z to 9999-12-31T23:59:59Z, as timestamp.proto defines it
    Kind.TIMESTAMP: (-62_135_596_800, 253_402_300_799),
    # ten thousand years either way, as duration.proto defines it
    Kind.DURATION: (-315_576_000_000, 315_576_000_000),
}
_MAX_NANOS = 999_999_999


def microseconds(
    kind: Kind, seconds: Positions, nanos: npt.NDArray[np.int32]
) -> tuple[Positions, Mask]:
    """Timestamps or durations in microseconds, and a mask of what is outside their range."""
    low, high = _SECONDS[kind]
    if len(seconds) and kind is Kind.TIMESTAMP:
        # the usual case, in few steps: small arrays are many
        usual = nanos.min() >= 0 and nanos.max() <= _MAX_NANOS
        if usual and seconds.min() >= low and seconds.max() <= high:
            return seconds * 1_000_000 + nanos // 1_000, np.zeros(len(seconds), np.bool_)
    least = 0 if kind is Kind.TIMESTAMP else -_MAX_NANOS
    outside = (seconds < low) | (seconds > high) | (nanos < least) | (nanos > _MAX_NANOS)
    # nanoseconds are cut off towards zero: half a microsecond less than nothing is nothing
    rest = np.sign(nanos).astype(np.int64) * (np.abs(nanos.astype(np.int64)) // 1_000)
    return np.where(outside, 0, seconds) * 1_000_000 + rest, outside
