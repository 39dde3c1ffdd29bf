"""The plan of a message: every field with its lake type and with the way it is decoded there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

import pyarrow as pa

from distributary.model.record import TIMESTAMP

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
    names: Mapping[int, str] = field(default_factory=dict)
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
