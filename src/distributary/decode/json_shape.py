"""What the plan of a JSON Schema is made of."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

import pyarrow as pa

from distributary.model.record import TIMESTAMP

MAX_DECIMAL_DIGITS = 38


class Kind(Enum):
    """What a value is."""

    VOID = auto()
    """Never anything but null, or never there."""
    BOOLEAN = auto()
    INTEGER = auto()
    DECIMAL = auto()
    """An integer that a schema lets grow beyond 64 bits."""
    DIGITS = auto()
    """An integer that no decimal can hold: text."""
    NUMBER = auto()
    STRING = auto()
    INSTANT = auto()
    DATE = auto()
    LIST = auto()
    MAP = auto()
    STRUCT = auto()
    TEXT = auto()
    """Anything else: kept as JSON text."""


@dataclass(frozen=True, slots=True)
class Value:
    """One value: its type in the lake, and what must be known to read it."""

    kind: Kind
    type: pa.DataType
    unit: str = ""
    """What people should know about texts, for the column's comment."""
    nullable: bool = False
    """Whether the schema takes an explicit null."""
    allowed: tuple[str, ...] | None = None
    """Of a string: the only values there are."""
    item: Value | None = None
    """Of a list or a map."""
    members: tuple[Member, ...] = ()
    open: bool = False
    """Of a struct: it may have properties that are no members."""
    plain: bool = False
    """Whether its type, its nulls and its members are all that the schema asks for."""

    @property
    def shown(self) -> tuple[Member, ...]:
        """The members that have a place in the lake."""
        return tuple(m for m in self.members if m.value.kind is not Kind.VOID)

    @property
    def leaves_rest(self) -> bool:
        """Whether something in it can be left that has no place in its type."""
        below = [m.value for m in self.members]
        below += [self.item] if self.item is not None else []
        return self.open or any(each.leaves_rest for each in below)


@dataclass(frozen=True, slots=True)
class Member:
    """A property of an object."""

    name: str
    """In the lake."""
    property: str
    """In the payload."""
    value: Value
    required: bool
    note: str = ""


BOOLEAN = Value(Kind.BOOLEAN, pa.bool_())
INTEGER = Value(Kind.INTEGER, pa.int64())
NUMBER = Value(Kind.NUMBER, pa.float64())
STRING = Value(Kind.STRING, pa.string())
INSTANT = Value(Kind.INSTANT, TIMESTAMP)
DATE = Value(Kind.DATE, pa.date32())
TEXT = Value(Kind.TEXT, pa.string(), unit="JSON text")
VOID = Value(Kind.VOID, pa.string())


def integer_of(digits: int) -> Value:
    """An integer of more than 64 bits."""
    for most in (20, MAX_DECIMAL_DIGITS):
        if digits <= most:
            return Value(Kind.DECIMAL, pa.decimal128(most, 0))
    return Value(Kind.DIGITS, pa.string(), unit="integer as text")


def list_of(item: Value, *, plain: bool) -> Value:
    """An array."""
    return Value(Kind.LIST, pa.list_(item.type), item=item, plain=plain and item.plain)


def map_of(item: Value) -> Value:
    """An object whose properties are all alike."""
    return Value(Kind.MAP, pa.map_(pa.string(), item.type), item=item)


def struct_of(members: tuple[Member, ...], *, open: bool, plain: bool) -> Value:
    """An object with columns of its own."""
    shown = [m for m in members if m.value.kind is not Kind.VOID]
    type_ = pa.struct([pa.field(m.name, m.value.type) for m in shown])
    plain = plain and len(shown) == len(members) and all(m.value.plain for m in members)
    return Value(Kind.STRUCT, type_, members=members, open=open, plain=plain)
