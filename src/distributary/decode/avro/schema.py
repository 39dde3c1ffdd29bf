"""From an Avro schema to the plan of its columns."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from distributary.model.names import printable
from distributary.model.record import TIMESTAMP
from distributary.registry.compile.avro_schema import (
    Array,
    Enum,
    Field,
    Fixed,
    Logical,
    Map,
    Primitive,
    Record,
    Schema,
    Type,
    Union,
    short_name,
    type_name,
)

# The plan of an Avro datum: every value with its lake type and with what it is on the wire.

MAX_DECIMAL_DIGITS = 38
DURATION = pa.struct([pa.field(name, pa.int64()) for name in ("months", "days", "millis")])


class Kind(enum.Enum):
    """What a value is."""

    NULL = enum.auto()
    BOOLEAN = enum.auto()
    INT = enum.auto()
    LONG = enum.auto()
    FLOAT = enum.auto()
    DOUBLE = enum.auto()
    BYTES = enum.auto()
    STRING = enum.auto()
    FIXED = enum.auto()
    ENUM = enum.auto()
    DECIMAL = enum.auto()
    DIGITS = enum.auto()
    """A decimal with more digits than a lake's decimals have: kept as text."""
    DATE = enum.auto()
    INSTANT = enum.auto()
    UUID = enum.auto()
    """Of 16 bytes; one that is a string stays a string."""
    DURATION = enum.auto()
    LIST = enum.auto()
    MAP = enum.auto()
    STRUCT = enum.auto()
    TEXT = enum.auto()
    """A record that is not followed any further: kept as JSON text."""
    EMPTY = enum.auto()
    """A record without columns: a lake cannot hold a struct without fields."""
    UNION = enum.auto()


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

    def below(self) -> list[Value]:
        """The values that it is made of."""
        parts = [m.value for m in self.members] + [b.value for b in self.branches]
        return parts + ([self.item] if self.item is not None else [])

    def lists(self) -> list[Value]:
        """All lists and maps in it, itself included."""
        own = [self] if self.kind in (Kind.LIST, Kind.MAP) else []
        return own + [found for each in self.below() for found in each.lists()]


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


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch of a union."""

    member: str
    """Its name in the struct that a mixed union becomes."""
    value: Value


def levels(value: Value) -> int:
    """How deep records, arrays and maps nest in it, itself included; records kept as text: once."""
    own = value.kind in (Kind.STRUCT, Kind.EMPTY, Kind.LIST, Kind.MAP, Kind.TEXT)
    return own + max(map(levels, value.below()), default=0)


def decimal(precision: int, scale: int, size: int | None, name: str = "") -> Value:
    """A decimal in bytes or in a fixed."""
    kind, type_, unit = Kind.DIGITS, pa.string(), f"decimal({precision},{scale}) as text"
    if precision <= MAX_DECIMAL_DIGITS:
        kind, type_, unit = Kind.DECIMAL, pa.decimal128(precision, scale), ""
    return Value(kind, type_, name, size, precision=precision, scale=scale, unit=unit)


def struct(name: str, members: tuple[Member, ...]) -> Value:
    """A record with columns of its own."""
    fields = [pa.field(m.name, m.value.type) for m in members if m.column]
    return Value(Kind.STRUCT, pa.struct(fields), name, members=members)


_INTEGERS = {Kind.INT, Kind.LONG}
_REALS = {Kind.INT, Kind.FLOAT, Kind.DOUBLE}


def union_of(types: Sequence[Type], values: Sequence[Value]) -> Value:
    """The plan of a union: its one type beside null, the wider number, or a struct of branches."""
    names = _member_names([type_name(each) for each in types])
    branches = tuple(Branch(n, v) for n, v in zip(names, values, strict=True))
    real = [b for b in branches if not b.value.void]
    if len(real) <= 1:
        only = real[0].value if real else Value(Kind.NULL, pa.string())
        return Value(
            Kind.UNION, only.type, only.name, unit=only.unit, branches=branches, plain=True
        )
    # the type that holds the numbers of all branches exactly, if there is one
    kinds = {b.value.kind for b in real}
    wider = pa.int64() if kinds <= _INTEGERS else pa.float64() if kinds <= _REALS else None
    if wider is not None and not any(b.value.unit for b in real):
        return Value(Kind.UNION, wider, branches=branches, plain=True)
    members = [pa.field(b.member, b.value.type) for b in real]
    return Value(Kind.UNION, pa.struct(members), branches=branches)


def _member_names(names: Sequence[str]) -> list[str]:
    """Short names where these differ by more than case, full names elsewhere."""
    often = Counter(short_name(name).casefold() for name in names)
    given: list[str] = []
    for full in names:
        name = short_name(full)
        if often[name.casefold()] > 1:
            name = full.replace(".", "_")
        while name in given:
            name += "_"
        given.append(name)
    return given


MAX_FIELDS = 5_000
"""Of one record with all the records in it; beyond it fewer levels become columns."""
MAX_LEVELS = 50
"""Of structs, lists and maps in each other; records below are JSON text."""
_DOC_CHARACTERS = 200

_PRIMITIVES: Mapping[str, Value] = {
    "null": Value(Kind.NULL, pa.string()),
    "boolean": Value(Kind.BOOLEAN, pa.bool_()),
    "int": Value(Kind.INT, pa.int32()),
    "long": Value(Kind.LONG, pa.int64()),
    "float": Value(Kind.FLOAT, pa.float32()),
    "double": Value(Kind.DOUBLE, pa.float64()),
    "bytes": Value(Kind.BYTES, pa.binary()),
    "string": Value(Kind.STRING, pa.string()),
}
_LOGICAL: Mapping[str, Value] = {
    "date": Value(Kind.DATE, pa.date32()),
    "timestamp-millis": Value(Kind.INSTANT, TIMESTAMP, micros=1_000),
    "timestamp-micros": Value(Kind.INSTANT, TIMESTAMP, micros=1),
    # logical types that lakes do not have: it stays the number
    "timestamp-nanos": Value(Kind.LONG, pa.int64(), unit="nanoseconds since 1970, UTC"),
    "time-millis": Value(Kind.INT, pa.int32(), unit="milliseconds after midnight"),
    "time-micros": Value(Kind.LONG, pa.int64(), unit="microseconds after midnight"),
    **{
        f"local-timestamp-{unit}s": Value(
            Kind.LONG, pa.int64(), unit=f"{unit}seconds since 1970, local time"
        )
        for unit in ("milli", "micro", "nano")
    },
    "uuid": _PRIMITIVES["string"],
}


class _TooManyFieldsError(Exception):
    """A plan has more fields than a table can hold."""


def plan_record(schema: Schema, record: Record, *, recursion_depth: int) -> Value:
    """A record as a struct: its fields in the schema's order, with everything below them.

    Records that contain each other can unfold into more columns than a table can hold: then
    recursion, and after that nesting, is followed less far, and the rest stays JSON text.
    """
    plan = _deepest(schema, recursion_depth, lambda planner: planner.record(record, top=True))
    if plan is not None:
        return plan
    plan = flat_record(schema, record, top=True)
    for levels in range(1, MAX_LEVELS):
        try:
            plan = _planner(schema, 0, levels, MAX_FIELDS).record(record, top=True)
        except _TooManyFieldsError:
            break
    return plan


def flat_record(schema: Schema, record: Record, *, top: bool = False) -> Value:
    """A record as a struct in which the records inside it are JSON text."""
    return _planner(schema, 0, 0).record(record, top=top)


def flat_type(schema: Schema, type_: Type) -> Value:
    """Any type, in which the records inside it are JSON text."""
    return _planner(schema, 0, -1).value(type_)


def plan_type(schema: Schema, type_: Type, *, recursion_depth: int, label: str) -> Value:
    """A value that is no record as a struct with the one member `value`; the wire is the same."""
    value = _deepest(schema, recursion_depth, lambda planner: planner.value(type_))
    value = value or _planner(schema, 0, 0).value(type_)
    return struct("", (Member("value", label, value, True, note=value.unit),))


def _deepest(
    schema: Schema, recursion_depth: int, plan: Callable[[_Planner], Value]
) -> Value | None:
    """The plan that follows recursion as far as there are not too many fields."""
    for depth in range(recursion_depth, -1, -1):
        with suppress(_TooManyFieldsError):
            return plan(_planner(schema, depth, MAX_LEVELS, MAX_FIELDS))
    return None


def _planner(
    schema: Schema, recursion_depth: int, levels: int, fields_left: int = 2**31
) -> _Planner:
    return _Planner(schema, recursion_depth, levels, fields_left)


@dataclass(slots=True)
class _Planner:
    schema: Schema
    recursion_depth: int
    levels: int
    fields_left: int

    def record(
        self, record: Record, around: tuple[str, ...] = (), level: int = 0, *, top: bool = False
    ) -> Value:
        path = (*around, record.name)
        names = _lake_names(record) if top else {f.name: f.name for f in record.fields}
        members = tuple(
            self._member(record, f, names[f.name], path, level + 1) for f in record.fields
        )
        if not top and not any(m.column for m in members):
            unit = "JSON text"
            return Value(Kind.EMPTY, pa.string(), record.name, members=members, unit=unit)
        return struct(record.name, members)

    def value(self, type_: Type, path: tuple[str, ...] = (), level: int = 0) -> Value:
        match self.schema.resolve(type_):
            case Primitive(name, logical):
                if logical is None:
                    return _PRIMITIVES[name]
                if logical.name == "decimal":
                    return decimal(logical.precision, logical.scale, None)
                return _LOGICAL[logical.name]
            case Array(items):
                item = self.value(items, path, level + 1)
                return Value(Kind.LIST, pa.list_(item.type), item=item)
            case Map(values):
                item = self.value(values, path, level + 1)
                return Value(Kind.MAP, pa.map_(pa.string(), item.type), item=item)
            case Union(branches):
                self._spend(len(branches))
                return union_of(branches, [self.value(each, path, level) for each in branches])
            case Enum(name=name, symbols=symbols):
                return Value(Kind.ENUM, pa.string(), name, symbols=symbols)
            case Fixed() as fixed:
                return _fixed(fixed)
            case Record() as record:
                if path.count(record.name) > self.recursion_depth or level > self.levels:
                    return Value(Kind.TEXT, pa.string(), record.name, unit="JSON text")
                return self.record(record, path, level)

    def _member(
        self, record: Record, field: Field, name: str, path: tuple[str, ...], level: int
    ) -> Member:
        self._spend(1)
        value = self.value(field.type, path, level)
        notes = [value.unit, f"renamed from {field.name}" if name != field.name else ""]
        if field.doc:
            notes.append(printable(" ".join(field.doc.split())[:_DOC_CHARACTERS]))
        return Member(
            name,
            f"{record.name}.{field.name}",
            value,
            column=not value.void,
            note="; ".join(filter(None, notes)),
            aliases=tuple(_lake_name(alias) if level == 1 else alias for alias in field.aliases),
        )

    def _spend(self, fields: int) -> None:
        self.fields_left -= fields
        if self.fields_left < 0:
            raise _TooManyFieldsError


def _fixed(fixed: Fixed) -> Value:
    match fixed.logical:
        case Logical("decimal", precision, scale):
            return decimal(precision, scale, fixed.size, fixed.name)
        case Logical("uuid"):
            return Value(Kind.UUID, pa.string(), fixed.name, fixed.size)
        case Logical("duration"):
            return Value(Kind.DURATION, DURATION, fixed.name, fixed.size)
    return Value(Kind.FIXED, pa.binary(), fixed.name, fixed.size)


def _lake_names(record: Record) -> dict[str, str]:
    """The columns' names: a leading underscore belongs to the pipeline's own columns."""
    taken = {f.name for f in record.fields}
    names = {}
    for field in record.fields:
        name = _lake_name(field.name)
        while name != field.name and name in taken:
            name += "_"
        taken.add(name)
        names[field.name] = name
    return names


def _lake_name(name: str) -> str:
    return f"field{name}" if name.startswith("_") else name
