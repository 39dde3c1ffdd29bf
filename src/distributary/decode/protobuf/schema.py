"""From a message descriptor to the plan of its columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from distributary.decode.protobuf.descriptors import is_map
from distributary.model.record import TIMESTAMP
from distributary.model.table import Column, Origin

# The plan of a message: every field with its lake type and with the way it is decoded there.

UINT64_TYPE = pa.decimal128(20, 0)


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


def plain(type_: pa.DataType, wire: int) -> Value:
    """A scalar that needs no conversion."""
    return Value(Kind.PLAIN, type_, type_, False, wire)


def wrapped(inner: Value, message: str) -> Value:
    """A scalar in a wrapper message: null when the message is absent."""
    return Value(
        inner.kind,
        inner.type,
        pa.struct([pa.field("value", inner.engine)]),
        True,
        inner.wire,
        wrapped=True,
        message=message,
    )


def instant(kind: Kind, message: str) -> Value:
    """A Timestamp or a Duration: two numbers that become one."""
    parts = pa.struct([pa.field("seconds", pa.int64()), pa.field("nanos", pa.int32())])
    type_ = TIMESTAMP if kind is Kind.TIMESTAMP else pa.int64()
    return Value(kind, type_, parts, True, message=message)


def field_mask(message: str) -> Value:
    """A FieldMask: its paths as one text."""
    paths = pa.struct([pa.field("paths", pa.list_(pa.string()))])
    return Value(Kind.FIELD_MASK, pa.string(), paths, True, message=message)


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


def field_types(
    value: Value, *, key: Value | None, repeated: bool
) -> tuple[pa.DataType, pa.DataType]:
    """The lake's and the engine's type of a field."""
    if key is not None:
        entry = pa.struct([pa.field("key", key.engine), pa.field("value", value.engine)])
        return pa.map_(key.type, value.type), pa.list_(entry)
    if repeated:
        each = pa.binary() if value.kind in TEXT_KINDS else value.engine
        return pa.list_(value.type), pa.list_(each)
    return value.type, value.engine


# What the fields of a message are called in the lake.


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

_SCALARS: dict[int, Value] = {
    FieldDescriptor.TYPE_BOOL: plain(pa.bool_(), FieldDescriptor.TYPE_BOOL),
    FieldDescriptor.TYPE_BYTES: plain(pa.binary(), FieldDescriptor.TYPE_BYTES),
    FieldDescriptor.TYPE_DOUBLE: plain(pa.float64(), FieldDescriptor.TYPE_DOUBLE),
    FieldDescriptor.TYPE_FLOAT: plain(pa.float32(), FieldDescriptor.TYPE_FLOAT),
    FieldDescriptor.TYPE_STRING: plain(pa.string(), FieldDescriptor.TYPE_STRING),
    **{
        wire: plain(pa.int32(), wire)
        for wire in (
            FieldDescriptor.TYPE_INT32,
            FieldDescriptor.TYPE_SINT32,
            FieldDescriptor.TYPE_SFIXED32,
        )
    },
    **{
        wire: plain(pa.int64(), wire)
        for wire in (
            FieldDescriptor.TYPE_INT64,
            FieldDescriptor.TYPE_SINT64,
            FieldDescriptor.TYPE_SFIXED64,
        )
    },
    **{
        wire: Value(Kind.UINT32, pa.int64(), pa.uint32(), True, wire)
        for wire in (FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_FIXED32)
    },
    **{
        wire: Value(Kind.UINT64, UINT64_TYPE, pa.uint64(), True, wire)
        for wire in (FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_FIXED64)
    },
}

_INSTANT = [(1, FieldDescriptor.TYPE_INT64, False), (2, FieldDescriptor.TYPE_INT32, False)]
_INSTANTS = {
    "google.protobuf.Timestamp": Kind.TIMESTAMP,
    "google.protobuf.Duration": Kind.DURATION,
}
_WRAPPERS = {
    "google.protobuf.DoubleValue": FieldDescriptor.TYPE_DOUBLE,
    "google.protobuf.FloatValue": FieldDescriptor.TYPE_FLOAT,
    "google.protobuf.Int64Value": FieldDescriptor.TYPE_INT64,
    "google.protobuf.UInt64Value": FieldDescriptor.TYPE_UINT64,
    "google.protobuf.Int32Value": FieldDescriptor.TYPE_INT32,
    "google.protobuf.UInt32Value": FieldDescriptor.TYPE_UINT32,
    "google.protobuf.BoolValue": FieldDescriptor.TYPE_BOOL,
    "google.protobuf.StringValue": FieldDescriptor.TYPE_STRING,
    "google.protobuf.BytesValue": FieldDescriptor.TYPE_BYTES,
}
_SHAPELESS = {
    "google.protobuf.Any",
    "google.protobuf.Struct",
    "google.protobuf.Value",
    "google.protobuf.ListValue",
}


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
        Column(f.name, f.type, comment=_comment(f), number=f.number, origin=Origin(f.label))
        for f in message.fields
    )


def can_nest_deeper(descriptor: Descriptor, levels: int) -> bool:
    """Whether payloads of this message can hold more levels of messages than these."""
    reached = {descriptor.full_name: descriptor}
    for _ in range(levels + 1):
        below = [f.message_type for d in reached.values() for f in d.fields]
        reached = {d.full_name: d for d in below if d is not None}
    return bool(reached)


def _comment(field: Field) -> str:
    text = f"field {field.label} (#{field.number})"
    return f"{text}; {field.note}" if field.note else text


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
        key, value = self._key_and_value(field, path)
        repeated = field.is_repeated and key is None
        type_, engine = field_types(value, key=key, repeated=repeated)
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

    def _key_and_value(
        self, field: FieldDescriptor, path: tuple[str, ...]
    ) -> tuple[Value | None, Value]:
        if not is_map(field):
            return None, self._value(field, path)
        entry = field.message_type.fields_by_name
        return self._value(entry["key"], path), self._value(entry["value"], path)

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
    if name in _INSTANTS and form == _INSTANT:
        return instant(_INSTANTS[name], name)
    if name in _WRAPPERS and form == [(1, _WRAPPERS[name], False)]:
        return wrapped(_SCALARS[_WRAPPERS[name]], name)
    if name == "google.protobuf.FieldMask" and form == [(1, FieldDescriptor.TYPE_STRING, True)]:
        return field_mask(name)
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
    kind: Kind, seconds: npt.NDArray[np.int64], nanos: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
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
