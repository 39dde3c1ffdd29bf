"""An Avro schema as data: every named type once, and references to them by full name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")


@dataclass(frozen=True, slots=True)
class Logical:
    """A logical type on a type that it may annotate; all others are dropped when a text is read."""

    name: str
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True, slots=True)
class Connect:
    """What Kafka Connect, which knows more types than Avro, means by a primitive type."""

    name: str
    """`io.debezium.time.Date`."""
    parameters: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Primitive:
    """One of the eight primitive types."""

    name: str
    logical: Logical | None = None
    connect: Connect | None = None


@dataclass(frozen=True, slots=True)
class Name:
    """A record, an enum or a fixed, which the schema defines elsewhere."""

    full: str


@dataclass(frozen=True, slots=True)
class Array:
    """A list of items."""

    items: Type


@dataclass(frozen=True, slots=True)
class Map:
    """Values by string keys."""

    values: Type


@dataclass(frozen=True, slots=True)
class Union:
    """One of several types; never a union itself."""

    branches: tuple[Type, ...]


Type = Primitive | Name | Array | Map | Union


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a record."""

    name: str
    type: Type
    aliases: tuple[str, ...] = ()
    doc: str = ""
    default: str | None = None
    """JSON text of a value of the type; None when the field has no default."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record."""

    name: str
    fields: tuple[Field, ...]
    aliases: tuple[str, ...] = ()
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Enum:
    """An enum."""

    name: str
    symbols: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    doc: str = ""
    default: str | None = None
    """The symbol that stands for those which a reader does not know."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """So many bytes."""

    name: str
    size: int
    aliases: tuple[str, ...] = ()
    doc: str = ""
    logical: Logical | None = None


Named = Record | Enum | Fixed


@dataclass(frozen=True, slots=True)
class Schema:
    """A whole schema."""

    top: Type
    named: Mapping[str, Named]

    def resolve(self, type_: Type) -> Primitive | Array | Map | Union | Named:
        """The type itself, or what its name stands for."""
        return self.named[type_.full] if isinstance(type_, Name) else type_


def short_name(full: str) -> str:
    """A full name without its namespace."""
    return full.rpartition(".")[2]


def type_name(type_: Type) -> str:
    """What a union calls a branch: `string`, `array`, `shop.Order`."""
    match type_:
        case Primitive(name=name):
            return name
        case Name(full):
            return full
    return type(type_).__name__.lower()
