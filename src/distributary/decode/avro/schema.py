"""Plans of columns made from Avro schemas."""

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
    AvroField,
    AvroRecord,
    Enum,
    Fixed,
    Logical,
    Map,
    Primitive,
    Schema,
    Type,
    Union,
    short_name,
    type_name,
)

# The plan of an Avro datum: each value with its lake type and its encoding in the payload.

MAX_DECIMAL_DIGITS = 38
DURATION = pa.struct([pa.field(name, pa.int64()) for name in ("months", "days", "millis")])


class AvroKind(enum.Enum):
    """The kind of an Avro value, which decides how it is read."""

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
    """A decimal with more digits than a lake's decimals have, kept as text."""
    DATE = enum.auto()
    INSTANT = enum.auto()
    UUID = enum.auto()
    """A UUID in 16 bytes; a UUID that is a string has the kind STRING."""
    DURATION = enum.auto()
    LIST = enum.auto()
    MAP = enum.auto()
    STRUCT = enum.auto()
    TEXT = enum.auto()
    """A record that is kept as JSON text, because it is nested too deep."""
    EMPTY = enum.auto()
    """A record without columns, kept as JSON text: a lake cannot hold a struct without fields."""
    UNION = enum.auto()


@dataclass(frozen=True, slots=True)
class AvroValue:
    """The plan of one value: its type in the lake and its encoding in the payload."""

    kind: AvroKind
    type: pa.DataType
    name: str = ""
    """Full name of a named type."""
    size: int | None = None
    """Bytes of a fixed, also under a logical type; None for other types."""
    symbols: tuple[str, ...] = ()
    precision: int = 0
    scale: int = 0
    micros: int = 0
    """Microseconds in one unit of an instant."""
    unit: str = ""
    """A note on the unit or form of numbers and texts, for the column's comment."""
    item: AvroValue | None = None
    """The item of a list or a map."""
    members: tuple[AvroMember, ...] = ()
    """The fields of a record, in the order of the payload."""
    branches: tuple[Branch, ...] = ()
    plain: bool = False
    """True for a union whose values have one type, whatever the branch."""

    @property
    def void(self) -> bool:
        """Return True if the value can only be null."""
        return self.kind is AvroKind.NULL or (
            self.kind is AvroKind.UNION and all(branch.value.void for branch in self.branches)
        )

    @property
    def weightless(self) -> bool:
        """Return True if the value can take no bytes at all."""
        if self.kind in (AvroKind.STRUCT, AvroKind.EMPTY):
            return all(member.value.weightless for member in self.members)
        # the content of a record that is kept as text is not planned here, so it may take no bytes
        return self.kind in (AvroKind.NULL, AvroKind.TEXT) or self.size == 0

    @property
    def shown(self) -> tuple[AvroMember, ...]:
        """Return the members that have a column."""
        return tuple(member for member in self.members if member.column)

    def below(self) -> list[AvroValue]:
        """Return the values directly inside this one."""
        parts = [member.value for member in self.members] + [
            branch.value for branch in self.branches
        ]
        return parts + ([self.item] if self.item is not None else [])

    def lists(self) -> list[AvroValue]:
        """Return all lists and maps inside this value, with the value itself."""
        own_list = [self] if self.kind in (AvroKind.LIST, AvroKind.MAP) else []
        return own_list + [list_value for inner in self.below() for list_value in inner.lists()]


@dataclass(frozen=True, slots=True)
class AvroMember:
    """The plan of one field of a record."""

    name: str
    """Name in the lake."""
    label: str
    """`namespace.Record.field`, for comments and failures."""
    value: AvroValue
    column: bool
    """False for a field that can only be null: it has no column."""
    note: str = ""
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Branch:
    """The plan of one branch of a union."""

    member: str
    """Name of the branch in the struct that a mixed union becomes."""
    value: AvroValue


def levels(value: AvroValue) -> int:
    """Return how deep records, arrays and maps nest; a record kept as text is one level."""
    own_level = value.kind in (
        AvroKind.STRUCT,
        AvroKind.EMPTY,
        AvroKind.LIST,
        AvroKind.MAP,
        AvroKind.TEXT,
    )
    return own_level + max(map(levels, value.below()), default=0)


def decimal(precision: int, scale: int, size: int | None, name: str = "") -> AvroValue:
    """Plan a decimal stored in bytes or in a fixed."""
    kind, type_, unit = AvroKind.DIGITS, pa.string(), f"decimal({precision},{scale}) as text"
    if precision <= MAX_DECIMAL_DIGITS:
        kind, type_, unit = AvroKind.DECIMAL, pa.decimal128(precision, scale), ""
    return AvroValue(kind, type_, name, size, precision=precision, scale=scale, unit=unit)


def struct(name: str, members: tuple[AvroMember, ...]) -> AvroValue:
    """Plan a record as a struct with one field for each member that has a column."""
    fields = [pa.field(member.name, member.value.type) for member in members if member.column]
    return AvroValue(AvroKind.STRUCT, pa.struct(fields), name, members=members)


_INTEGERS = {AvroKind.INT, AvroKind.LONG}
_REALS = {AvroKind.INT, AvroKind.FLOAT, AvroKind.DOUBLE}


def union_of(types: Sequence[Type], values: Sequence[AvroValue]) -> AvroValue:
    """Plan a union: the one type beside null, the wider number, or a struct of branches."""
    names = _member_names([type_name(type_) for type_ in types])
    branches = tuple(Branch(name, value) for name, value in zip(names, values, strict=True))
    real = [branch for branch in branches if not branch.value.void]
    if len(real) <= 1:
        only = real[0].value if real else AvroValue(AvroKind.NULL, pa.string())
        return AvroValue(
            AvroKind.UNION, only.type, only.name, unit=only.unit, branches=branches, plain=True
        )
    # the type that holds the numbers of all branches exactly, if there is one
    kinds = {branch.value.kind for branch in real}
    wider = pa.int64() if kinds <= _INTEGERS else pa.float64() if kinds <= _REALS else None
    if wider is not None and not any(branch.value.unit for branch in real):
        return AvroValue(AvroKind.UNION, wider, branches=branches, plain=True)
    members = [pa.field(branch.member, branch.value.type) for branch in real]
    return AvroValue(AvroKind.UNION, pa.struct(members), branches=branches)


def _member_names(names: Sequence[str]) -> list[str]:
    """Return short names where they differ by more than case, full names elsewhere."""
    uses = Counter(short_name(name).casefold() for name in names)
    member_names: list[str] = []
    for full in names:
        name = short_name(full)
        if uses[name.casefold()] > 1:
            name = full.replace(".", "_")
        while name in member_names:
            name += "_"
        member_names.append(name)
    return member_names


MAX_FIELDS = 5_000
"""The largest number of fields of one record with all its inner records; above it fewer levels
become columns."""
MAX_LEVELS = 50
"""The deepest nesting of structs, lists and maps; records below it are JSON text."""
_DOC_CHARACTERS = 200

_PRIMITIVES: Mapping[str, AvroValue] = {
    "null": AvroValue(AvroKind.NULL, pa.string()),
    "boolean": AvroValue(AvroKind.BOOLEAN, pa.bool_()),
    "int": AvroValue(AvroKind.INT, pa.int32()),
    "long": AvroValue(AvroKind.LONG, pa.int64()),
    "float": AvroValue(AvroKind.FLOAT, pa.float32()),
    "double": AvroValue(AvroKind.DOUBLE, pa.float64()),
    "bytes": AvroValue(AvroKind.BYTES, pa.binary()),
    "string": AvroValue(AvroKind.STRING, pa.string()),
}
_LOGICAL: Mapping[str, AvroValue] = {
    "date": AvroValue(AvroKind.DATE, pa.date32()),
    "timestamp-millis": AvroValue(AvroKind.INSTANT, TIMESTAMP, micros=1_000),
    "timestamp-micros": AvroValue(AvroKind.INSTANT, TIMESTAMP, micros=1),
    # lakes do not have these logical types, so their values stay numbers
    "timestamp-nanos": AvroValue(AvroKind.LONG, pa.int64(), unit="nanoseconds since 1970, UTC"),
    "time-millis": AvroValue(AvroKind.INT, pa.int32(), unit="milliseconds after midnight"),
    "time-micros": AvroValue(AvroKind.LONG, pa.int64(), unit="microseconds after midnight"),
    **{
        f"local-timestamp-{unit}s": AvroValue(
            AvroKind.LONG, pa.int64(), unit=f"{unit}seconds since 1970, local time"
        )
        for unit in ("milli", "micro", "nano")
    },
    "uuid": _PRIMITIVES["string"],
}


class _TooManyFieldsError(Exception):
    """A plan with more fields than a table can hold."""


def plan_record(schema: Schema, record: AvroRecord, *, recursion_depth: int) -> AvroValue:
    """Plan a record as a struct, with its fields in the schema's order and all levels below.

    Records that contain each other can unfold into more columns than a table can hold. Then fewer
    levels of recursion, and after that of nesting, become columns, and the rest stays JSON text.
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


def flat_record(schema: Schema, record: AvroRecord, *, top: bool = False) -> AvroValue:
    """Plan a record as a struct whose inner records are JSON text."""
    return _planner(schema, 0, 0).record(record, top=top)


def flat_type(schema: Schema, type_: Type) -> AvroValue:
    """Plan any type with its inner records as JSON text."""
    return _planner(schema, 0, -1).value(type_)


def plan_type(schema: Schema, type_: Type, *, recursion_depth: int, label: str) -> AvroValue:
    """Plan a value that is no record as a struct with one member `value`, read the same way."""
    value = _deepest(schema, recursion_depth, lambda planner: planner.value(type_))
    value = value or _planner(schema, 0, 0).value(type_)
    return struct("", (AvroMember("value", label, value, True, note=value.unit),))


def _deepest(
    schema: Schema, recursion_depth: int, plan: Callable[[_Planner], AvroValue]
) -> AvroValue | None:
    """Return the plan that follows recursion as deep as the limit of fields allows, or None."""
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
        self, record: AvroRecord, around: tuple[str, ...] = (), level: int = 0, *, top: bool = False
    ) -> AvroValue:
        path = (*around, record.name)
        names = _lake_names(record) if top else {field.name: field.name for field in record.fields}
        members = tuple(
            self._member(record, field, names[field.name], path, level + 1)
            for field in record.fields
        )
        if not top and not any(member.column for member in members):
            unit = "JSON text"
            return AvroValue(AvroKind.EMPTY, pa.string(), record.name, members=members, unit=unit)
        return struct(record.name, members)

    def value(self, type_: Type, path: tuple[str, ...] = (), level: int = 0) -> AvroValue:
        match self.schema.resolve(type_):
            case Primitive(name, logical):
                if logical is None:
                    return _PRIMITIVES[name]
                if logical.name == "decimal":
                    return decimal(logical.precision, logical.scale, None)
                return _LOGICAL[logical.name]
            case Array(items):
                item = self.value(items, path, level + 1)
                return AvroValue(AvroKind.LIST, pa.list_(item.type), item=item)
            case Map(values):
                item = self.value(values, path, level + 1)
                return AvroValue(AvroKind.MAP, pa.map_(pa.string(), item.type), item=item)
            case Union(branches):
                self._spend(len(branches))
                return union_of(branches, [self.value(branch, path, level) for branch in branches])
            case Enum(name=name, symbols=symbols):
                return AvroValue(AvroKind.ENUM, pa.string(), name, symbols=symbols)
            case Fixed() as fixed:
                return _fixed(fixed)
            case AvroRecord() as record:
                if path.count(record.name) > self.recursion_depth or level > self.levels:
                    return AvroValue(AvroKind.TEXT, pa.string(), record.name, unit="JSON text")
                return self.record(record, path, level)

    def _member(
        self, record: AvroRecord, field: AvroField, name: str, path: tuple[str, ...], level: int
    ) -> AvroMember:
        self._spend(1)
        value = self.value(field.type, path, level)
        notes = [value.unit, f"renamed from {field.name}" if name != field.name else ""]
        if field.doc:
            notes.append(printable(" ".join(field.doc.split())[:_DOC_CHARACTERS]))
        return AvroMember(
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


def _fixed(fixed: Fixed) -> AvroValue:
    match fixed.logical:
        case Logical("decimal", precision, scale):
            return decimal(precision, scale, fixed.size, fixed.name)
        case Logical("uuid"):
            return AvroValue(AvroKind.UUID, pa.string(), fixed.name, fixed.size)
        case Logical("duration"):
            return AvroValue(AvroKind.DURATION, DURATION, fixed.name, fixed.size)
    return AvroValue(AvroKind.FIXED, pa.binary(), fixed.name, fixed.size)


def _lake_names(record: AvroRecord) -> dict[str, str]:
    """Return the column name of each field; a leading underscore is reserved for the pipeline."""
    taken = {field.name for field in record.fields}
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
