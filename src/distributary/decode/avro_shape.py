"""The plan of an Avro datum: every value with its lake type and with what it is on the wire."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

import pyarrow as pa

from distributary.model.record import TIMESTAMP

MAX_DECIMAL_DIGITS = 38
DURATION = pa.struct([pa.field(name, pa.int64()) for name in ("months", "days", "millis")])


class Kind(Enum):
    """What a value is."""

    NULL = auto()
    BOOLEAN = auto()
    INT = auto()
    LONG = auto()
    FLOAT = auto()
    DOUBLE = auto()
    BYTES = auto()
    STRING = auto()
    FIXED = auto()
    ENUM = auto()
    DECIMAL = auto()
    DIGITS = auto()
    """A decimal with more digits than a lake's decimals have: kept as text."""
    DATE = auto()
    INSTANT = auto()
    UUID = auto()
    """Of 16 bytes; one that is a string stays a string."""
    DURATION = auto()
    LIST = auto()
    MAP = auto()
    STRUCT = auto()
    TEXT = auto()
    """A record that is not followed any further: kept as JSON text."""
    EMPTY = auto()
    """A record without columns: a lake cannot hold a struct without fields."""
    UNION = auto()


@dataclass(frozen=True, slots=True)
class Value:
    """One value: its type in the lake, and what must be known to read it."""

    kind: Kind
    type: pa.DataType
    name: str = ""
    """Full name of a named type."""
    size: int | None = None
    """Bytes of a fixed, also under a logical type; None for other types."""
    symbols: tuple[str, ...] = ()
    precision: int = 0
    scale: int = 0
    micros: int = 0
    """Of an instant: how many microseconds its unit has."""
    unit: str = ""
    """What people should know about numbers and texts, for the column's comment."""
    item: Value | None = None
    """Of a list or a map."""
    members: tuple[Member, ...] = ()
    """Of a record, in the order of the wire."""
    branches: tuple[Branch, ...] = ()
    plain: bool = False
    """Of a union: its values are of one type, whatever the branch."""

    @property
    def void(self) -> bool:
        """Whether it is never anything but null."""
        return self.kind is Kind.NULL or (
            self.kind is Kind.UNION and all(b.value.void for b in self.branches)
        )

    @property
    def weightless(self) -> bool:
        """Whether it can take no bytes at all."""
        if self.kind in (Kind.STRUCT, Kind.EMPTY):
            return all(m.value.weightless for m in self.members)
        # what a record holds that is kept as text is not known here
        return self.kind in (Kind.NULL, Kind.TEXT) or self.size == 0

    @property
    def shown(self) -> tuple[Member, ...]:
        """The members that have a place in the lake."""
        return tuple(m for m in self.members if m.column)


@dataclass(frozen=True, slots=True)
class Member:
    """A field of a record."""

    name: str
    """In the lake."""
    label: str
    """`namespace.Record.field`, for comments and failures."""
    value: Value
    column: bool
    """False for a field that can only be null: it has no place in the lake."""
    note: str = ""
    aliases: tuple[str, ...] = ()
    default: bytes | None = None
    """Avro data of what the field has where a writer does not know it."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch of a union."""

    member: str
    """Its name in the struct that a mixed union becomes."""
    value: Value


def levels(value: Value) -> int:
    """How deep records, arrays and maps nest in it, itself included; records kept as text: once."""
    below = [m.value for m in value.members] + [b.value for b in value.branches]
    below += [value.item] if value.item is not None else []
    own = value.kind in (Kind.STRUCT, Kind.EMPTY, Kind.LIST, Kind.MAP, Kind.TEXT)
    return own + max(map(levels, below), default=0)


def decimal(precision: int, scale: int, size: int | None, name: str = "") -> Value:
    """A decimal in bytes or in a fixed."""
    kind, type_, unit = Kind.DIGITS, pa.string(), f"decimal({precision},{scale}) as text"
    if precision <= MAX_DECIMAL_DIGITS:
        kind, type_, unit = Kind.DECIMAL, pa.decimal128(precision, scale), ""
    return Value(kind, type_, name, size, precision=precision, scale=scale, unit=unit)


def instant(micros: int) -> Value:
    """A moment in a unit of so many microseconds."""
    return Value(Kind.INSTANT, TIMESTAMP, micros=micros)


def number(kind: Kind, type_: pa.DataType, unit: str) -> Value:
    """A number of a logical type that lakes do not have: it stays the number."""
    return Value(kind, type_, unit=unit)


def list_of(item: Value) -> Value:
    """An array."""
    return Value(Kind.LIST, pa.list_(item.type), item=item)


def map_of(item: Value) -> Value:
    """A map."""
    return Value(Kind.MAP, pa.map_(pa.string(), item.type), item=item)


def struct(name: str, members: tuple[Member, ...]) -> Value:
    """A record with columns of its own."""
    fields = [pa.field(m.name, m.value.type) for m in members if m.column]
    return Value(Kind.STRUCT, pa.struct(fields), name, members=members)


def empty(name: str, members: tuple[Member, ...]) -> Value:
    """A record that has no columns."""
    return Value(Kind.EMPTY, pa.string(), name, members=members, unit="JSON text")


def text(name: str) -> Value:
    """A record kept as JSON text."""
    return Value(Kind.TEXT, pa.string(), name, unit="JSON text")
