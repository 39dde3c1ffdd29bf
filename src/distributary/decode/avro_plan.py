"""From an Avro schema to the plan of its columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from distributary.decode import avro_shape as shape
from distributary.decode.avro_shape import Kind, Member, Value
from distributary.decode.avro_unions import union_of
from distributary.registry.avro_defaults import Defaults
from distributary.registry.avro_model import (
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
)
from distributary.registry.hostile import printable

MAX_FIELDS = 5_000
"""Of one record with all the records in it; beyond it fewer levels become columns."""
MAX_LEVELS = 50
"""Of structs, lists and maps in each other; records below are JSON text."""
_NO_LIMIT = 2**31
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
    "timestamp-millis": shape.instant(1_000),
    "timestamp-micros": shape.instant(1),
    "timestamp-nanos": shape.number(Kind.LONG, pa.int64(), "nanoseconds since 1970, UTC"),
    "time-millis": shape.number(Kind.INT, pa.int32(), "milliseconds after midnight"),
    "time-micros": shape.number(Kind.LONG, pa.int64(), "microseconds after midnight"),
    **{
        f"local-timestamp-{name[:-7]}s": shape.number(
            Kind.LONG, pa.int64(), f"{name} since 1970, local time"
        )
        for name in ("milliseconds", "microseconds", "nanoseconds")
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
    defaults = Defaults(schema.named)
    for depth in range(recursion_depth, -1, -1):
        try:
            planner = _Planner(schema, depth, MAX_LEVELS, MAX_FIELDS, defaults)
            return planner.record(record, top=True)
        except _TooManyFieldsError:
            continue
    plan = flat_record(schema, record, top=True)
    for levels in range(1, MAX_LEVELS):
        try:
            plan = _Planner(schema, 0, levels, MAX_FIELDS, defaults).record(record, top=True)
        except _TooManyFieldsError:
            break
    return plan


def flat_record(schema: Schema, record: Record, *, top: bool = False) -> Value:
    """A record as a struct in which the records inside it are JSON text."""
    return _Planner(schema, 0, 0, _NO_LIMIT, Defaults(schema.named)).record(record, top=top)


def flat_type(schema: Schema, type_: Type) -> Value:
    """Any type, in which the records inside it are JSON text."""
    return _Planner(schema, 0, -1, _NO_LIMIT, Defaults(schema.named)).value(type_)


def plan_type(schema: Schema, type_: Type, *, recursion_depth: int, label: str) -> Value:
    """A value that is no record as a struct with the one member `value`; the wire is the same."""
    defaults = Defaults(schema.named)
    for depth in range(recursion_depth, -1, -1):
        try:
            value = _Planner(schema, depth, MAX_LEVELS, MAX_FIELDS, defaults).value(type_)
            break
        except _TooManyFieldsError:
            continue
    else:
        value = _Planner(schema, 0, 0, _NO_LIMIT, defaults).value(type_)
    return shape.struct("", (Member("value", label, value, True, note=value.unit),))


@dataclass(slots=True)
class _Planner:
    schema: Schema
    recursion_depth: int
    levels: int
    fields_left: int
    defaults: Defaults

    def record(
        self, record: Record, around: tuple[str, ...] = (), level: int = 0, *, top: bool = False
    ) -> Value:
        path = (*around, record.name)
        names = _lake_names(record) if top else {f.name: f.name for f in record.fields}
        members = tuple(
            self._member(record, f, names[f.name], path, level + 1) for f in record.fields
        )
        if not top and not any(m.column for m in members):
            return shape.empty(record.name, members)
        return shape.struct(record.name, members)

    def value(self, type_: Type, path: tuple[str, ...] = (), level: int = 0) -> Value:
        match self.schema.resolve(type_):
            case Primitive(name, logical):
                return _primitive(name, logical)
            case Array(items):
                return shape.list_of(self.value(items, path, level + 1))
            case Map(values):
                return shape.map_of(self.value(values, path, level + 1))
            case Union(branches):
                self._spend(len(branches))
                return union_of(branches, [self.value(each, path, level) for each in branches])
            case Enum(name=name, symbols=symbols):
                return Value(Kind.ENUM, pa.string(), name, symbols=symbols)
            case Fixed() as fixed:
                return _fixed(fixed)
            case Record() as record:
                cut = path.count(record.name) > self.recursion_depth or level > self.levels
                return shape.text(record.name) if cut else self.record(record, path, level)

    def _member(
        self,
        record: Record,
        field: Field,
        name: str,
        path: tuple[str, ...],
        level: int,
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
            default=self.defaults.encoded(record.name, field),
        )

    def _spend(self, fields: int) -> None:
        self.fields_left -= fields
        if self.fields_left < 0:
            raise _TooManyFieldsError


def _primitive(name: str, logical: Logical | None) -> Value:
    if logical is None:
        return _PRIMITIVES[name]
    if logical.name == "decimal":
        return shape.decimal(logical.precision, logical.scale, None)
    return _LOGICAL[logical.name]


def _fixed(fixed: Fixed) -> Value:
    match fixed.logical:
        case Logical("decimal", precision, scale):
            return shape.decimal(precision, scale, fixed.size, fixed.name)
        case Logical("uuid"):
            return Value(Kind.UUID, pa.string(), fixed.name, fixed.size)
        case Logical("duration"):
            return Value(Kind.DURATION, shape.DURATION, fixed.name, fixed.size)
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
