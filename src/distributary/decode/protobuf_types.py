"""From a message descriptor to the plan of its columns."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from distributary.decode import protobuf_shape as shape
from distributary.decode.protobuf_descriptors import is_map
from distributary.decode.protobuf_names import lake_names
from distributary.decode.protobuf_shape import Field, Kind, Value
from distributary.model.table import Column, Origin

MAX_FIELDS = 5_000
"""Of one message with all its submessages; beyond it fewer levels become columns."""
MAX_LEVELS = 50
"""Of structs in structs."""

_SCALARS: dict[int, Value] = {
    FieldDescriptor.TYPE_BOOL: shape.plain(pa.bool_(), FieldDescriptor.TYPE_BOOL),
    FieldDescriptor.TYPE_BYTES: shape.plain(pa.binary(), FieldDescriptor.TYPE_BYTES),
    FieldDescriptor.TYPE_DOUBLE: shape.plain(pa.float64(), FieldDescriptor.TYPE_DOUBLE),
    FieldDescriptor.TYPE_FLOAT: shape.plain(pa.float32(), FieldDescriptor.TYPE_FLOAT),
    FieldDescriptor.TYPE_STRING: shape.plain(pa.string(), FieldDescriptor.TYPE_STRING),
    **{
        wire: shape.plain(pa.int32(), wire)
        for wire in (
            FieldDescriptor.TYPE_INT32,
            FieldDescriptor.TYPE_SINT32,
            FieldDescriptor.TYPE_SFIXED32,
        )
    },
    **{
        wire: shape.plain(pa.int64(), wire)
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
        wire: Value(Kind.UINT64, shape.UINT64_TYPE, pa.uint64(), True, wire)
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
        return shape.struct(descriptor.full_name, fields)

    def _field(
        self, field: FieldDescriptor, place: int, named: tuple[str, str], path: tuple[str, ...]
    ) -> Field:
        name, renamed = named
        key, value = self._key_and_value(field, path)
        repeated = field.is_repeated and key is None
        type_, engine = shape.field_types(value, key=key, repeated=repeated)
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
        return self.known[message.full_name] or shape.text(Kind.JSON, message.full_name)

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
        return shape.text(Kind.JSON, name)
    if not form:
        return shape.text(Kind.EMPTY, name)
    if name in _INSTANTS and form == _INSTANT:
        return shape.instant(_INSTANTS[name], name)
    if name in _WRAPPERS and form == [(1, _WRAPPERS[name], False)]:
        return shape.wrapped(_SCALARS[_WRAPPERS[name]], name)
    if name == "google.protobuf.FieldMask" and form == [(1, FieldDescriptor.TYPE_STRING, True)]:
        return shape.field_mask(name)
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
