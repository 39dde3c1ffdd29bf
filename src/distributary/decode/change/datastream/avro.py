"""Datastream events in Avro: decoded by a private copy of their schema, then read by type."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.avro.decoder import AvroDecoder
from distributary.decode.avro.schema import MAX_FIELDS
from distributary.decode.base import DecodeLimits, Gathered, Mask, nulls
from distributary.decode.change import values
from distributary.decode.change.base import Events, column_names
from distributary.decode.change.values import MAX_DIMENSIONS, TOO_DEEP, Read, arrays, json_texts
from distributary.errors import DecodeError, ErrorCode
from distributary.model.names import printable
from distributary.model.record import TIMESTAMP
from distributary.model.table import Column, Origin

# The Avro schema of Datastream events, and a private copy of it for the decoder inside.
#
# The copy is the same on the wire, but has names of our own, because a source's names need not be
# Avro's, and none of the logical types that refuse a value: what a value means is decided
# afterwards, where one that the lake cannot hold is kept beside the row. Datastream also writes
# logical types where Avro does not look for them, on the field instead of its type.

PRIMITIVES = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
_NAMED = ("record", "error", "enum", "fixed")
_LEGAL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ANNOTATIONS = ("logicalType", "precision", "scale")


@dataclass(frozen=True, slots=True)
class Typed:
    """A type with the namespace around it, in which its names are to be found."""

    json: Any
    space: str = ""

    @property
    def logical(self) -> str:
        """Its logical type, if it has one."""
        name = self.json.get("logicalType") if isinstance(self.json, dict) else None
        return name if isinstance(name, str) else ""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a record."""

    name: str
    type: Typed


class Schema:
    """A schema's text with all types that it names."""

    def __init__(self, body: bytes) -> None:
        try:
            self.top = Typed(json.loads(body))
            self._named = dict(_definitions(self.top.json, ""))
        except (ValueError, RecursionError, KeyError) as error:
            raise _unusable(type(error).__name__) from error

    def resolved(self, typed: Typed) -> Typed:
        """A type itself, where it is only named or wrapped; what is not known stays a name."""
        for _ in range(100):
            given = typed.json
            if isinstance(given, dict) and isinstance(given.get("type"), dict | list):
                typed = Typed(given["type"], typed.space)
            elif isinstance(given, dict) and not _is_known(given.get("type")):
                typed = Typed(given.get("type"), typed.space)
            elif isinstance(given, str) and given not in PRIMITIVES:
                found = self._named.get(_full(given, typed.space)) or self._named.get(given)
                if found is None:
                    return typed
                typed = found
            else:
                return _inside(typed)
        return typed

    def kind(self, typed: Typed) -> str:
        """`record`, `array`, `union`, `long` and so on; a name if that is all there is."""
        given = self.resolved(typed).json
        if isinstance(given, list):
            return "union"
        kind = given.get("type") if isinstance(given, dict) else given
        return kind if isinstance(kind, str) else ""

    def fields(self, typed: Typed) -> list[Field]:
        """The fields of a record."""
        record = self.resolved(typed)
        fields = [Field(str(f["name"]), _annotated(f, record.space)) for f in record.json["fields"]]
        if len({f.name for f in fields}) < len(fields):
            raise _unusable("a record has two fields of one name")
        return fields

    def branches(self, typed: Typed) -> list[Typed]:
        """The branches of a union."""
        union = self.resolved(typed)
        return [Typed(each, union.space) for each in union.json]

    def only(self, typed: Typed) -> Typed:
        """A type without the null beside it."""
        if self.kind(typed) != "union":
            return typed
        real = [each for each in self.branches(typed) if self.kind(each) != "null"]
        return real[0] if len(real) == 1 else typed


class PrivateCopy:
    """Writes types again, with names of its own."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._records = 0
        self._written: dict[int, str] = {}

    def record(self, types: list[Any]) -> dict[str, Any]:
        """A record of some types; its fields are f0, f1 and so on."""
        fields = [{"name": f"f{index}", "type": each} for index, each in enumerate(types)]
        return {"type": "record", "name": self._name(), "fields": fields}

    def beside_null(self, typed: Typed, inner: Any) -> Any:
        """What a type without null becomes, with the null where the type has it."""
        if self._schema.kind(typed) != "union":
            return inner
        branches = self._schema.branches(typed)
        return ["null" if self._schema.kind(b) == "null" else inner for b in branches]

    def bare(self, typed: Typed) -> Any:
        """A type as it is, but for logical types at the top of it."""
        only = self._schema.only(typed)
        kind = self._schema.kind(only)
        inner = kind if kind in PRIMITIVES else self.whole(only)
        return self.beside_null(typed, inner) if only is not typed else inner

    def whole(self, typed: Typed) -> Any:
        """A type as it is, everything in it included."""
        resolved = self._schema.resolved(typed)
        given = resolved.json
        if isinstance(given, list):
            return [self.whole(Typed(each, resolved.space)) for each in given]
        if not isinstance(given, dict):
            return given
        kind = given.get("type")
        if kind in ("array", "map"):
            part = "items" if kind == "array" else "values"
            return {"type": kind, part: self.whole(Typed(given.get(part), resolved.space))}
        if kind not in _NAMED:
            return given
        if id(given) in self._written:
            return self._written[id(given)]
        name = self._written[id(given)] = self._name()
        copy = {key: value for key, value in given.items() if key not in ("namespace", "aliases")}
        copy["name"] = name
        if kind in ("record", "error"):
            copy["fields"] = [
                {"name": _legal(f.name, i), "type": self.whole(f.type)}
                for i, f in enumerate(self._schema.fields(resolved))
            ]
        return copy

    def _name(self) -> str:
        self._records += 1
        return f"R{self._records}"


def size(given: Any) -> int:
    """How many fields of records and branches of unions a type has in it."""
    if isinstance(given, list):
        return len(given) + sum(map(size, given))
    if not isinstance(given, dict):
        return 0
    fields = given.get("fields", ())
    inner = [field["type"] for field in fields] + [given.get("items"), given.get("values")]
    return len(fields) + sum(map(size, inner))


def _definitions(given: Any, space: str) -> Iterator[tuple[str, Typed]]:
    """Every named type in a schema's JSON, by its full name."""
    if isinstance(given, list):
        for each in given:
            yield from _definitions(each, space)
    if not isinstance(given, dict):
        return
    if given.get("type") in _NAMED and isinstance(given.get("name"), str):
        yield _full(given["name"], str(given.get("namespace") or space)), Typed(given, space)
        space = _inside(Typed(given, space)).space
    for part in ("type", "items", "values"):
        yield from _definitions(given.get(part), space)
    fields = given.get("fields")
    for field in fields if isinstance(fields, list) else ():
        if isinstance(field, dict):
            yield from _definitions(field.get("type"), space)


def _full(name: str, space: str) -> str:
    return name.removeprefix(".") if "." in name or not space else f"{space}.{name}"


def _inside(typed: Typed) -> Typed:
    """A named type with the namespace that holds inside it."""
    given = typed.json
    if not isinstance(given, dict) or given.get("type") not in _NAMED:
        return typed
    name = str(given.get("name"))
    space = name.rpartition(".")[0] if "." in name else str(given.get("namespace") or typed.space)
    return Typed(given, space)


def _legal(name: str, index: int) -> str:
    return name if _LEGAL.fullmatch(name) else f"field{index}"


def _is_known(kind: Any) -> bool:
    return kind in PRIMITIVES or kind in _NAMED or kind in ("array", "map")


def _annotated(field: dict[str, Any], space: str) -> Typed:
    """A field's type with the logical type that stands on the field."""
    given = field.get("type")
    if not isinstance(field.get("logicalType"), str):
        return Typed(given, space)
    more = {key: field[key] for key in _ANNOTATIONS if key in field}
    if isinstance(given, str) and given in PRIMITIVES:
        return Typed({"type": given, **more}, space)
    if isinstance(given, list):
        branches = [
            {"type": b, **more} if isinstance(b, str) and b in PRIMITIVES - {"null"} else b
            for b in given
        ]
        return Typed(branches, space)
    return Typed(given, space)


def _unusable(evidence: str) -> DecodeError:
    return DecodeError(
        "the schema is not usable Avro",
        where="schema of change events",
        evidence=evidence,
        next_step="look at the header of the file",
    )


# What each of Datastream's unified types becomes in the lake.
#
# | in the file | lake |
# |---|---|
# | boolean, int, long, float, double, bytes, string, enum | as they are |
# | string as `json`, `number`, `varchar` | text |
# | record `varchar`, `year` | its value |
# | bytes as `decimal` | decimal; text beyond 38 digits |
# | int as `date`, record `calendarDate` | date |
# | long as `timestamp-*`, `local-timestamp-*`, record `datetime` | timestamp in UTC |
# | record `timestampTz` | timestamp in UTC; the clock's offset stays in the envelope |
# | `time-micros`, `time-millis` | text `HH:MM:SS.ffffff` |
# | record `timeTz` | text `HH:MM:SS.ffffff+HH:MM` |
# | long as `time-interval-micros` | text `[-]HH:MM:SS.ffffff` |
# | record `interval` | text, ISO 8601 |
# | record `multidimensionalArray_*` | text, a JSON array |
# | anything else | as for any Avro payload |

_INTEGERS = ("int", "long")
_MOST_DIGITS = 4_000


@dataclass(frozen=True, slots=True)
class Plan:
    """How a value of the source is read."""

    wire: Any
    """Its type in the private copy."""
    read: Read = values.same
    type: pa.DataType | None = None
    """In the lake; None for whatever the decoder inside makes of it."""
    note: str = ""


_Made = tuple[Read, pa.DataType, str]
_LOGICAL: Mapping[tuple[str, str], _Made] = {
    ("int", "date"): (values.dates, pa.date32(), ""),
    ("long", "time-interval-micros"): (values.spans, pa.string(), "hours, minutes and seconds"),
    **{
        (kind, f"time-{unit}"): (values.times(factor), pa.string(), "time of day")
        for kind in _INTEGERS
        for unit, factor in (("micros", 1), ("millis", 1_000))
    },
    **{
        ("long", f"{local}timestamp-{unit}"): (values.instants(factor), TIMESTAMP, note)
        for local, note in (("", ""), ("local-", "wall clock, said to be UTC"))
        for unit, factor in (("micros", 1), ("millis", 1_000))
    },
    ("string", "json"): (values.same, pa.string(), "JSON text"),
    ("string", "number"): (values.same, pa.string(), "number as text"),
    ("string", "varchar"): (values.same, pa.string(), ""),
}
_RECORDS: Mapping[str, tuple[tuple[str, ...], _Made]] = {
    "datetime": (
        ("date", "time"),
        (values.datetimes, TIMESTAMP, "wall clock, said to be UTC"),
    ),
    "timestamptz": (("timestamp", "offset"), (values.zoned_instants, TIMESTAMP, "")),
    "timetz": (("time", "offset"), (values.zoned_times, pa.string(), "time of day with offset")),
    "interval": (
        ("months", "hours", "micros"),
        (values.intervals, pa.string(), "ISO 8601 duration"),
    ),
    "calendardate": (("year", "month", "day"), (values.calendar_dates, pa.date32(), "")),
}
_ARRAY = ("nestedArray", "elementValue")


class Planner:
    """Plans the values of one schema."""

    def __init__(self, schema: Schema, copy: PrivateCopy) -> None:
        self._schema = schema
        self._copy = copy

    def plan(self, typed: Typed) -> Plan | None:
        """How values of a type are read; None for one that is only ever null."""
        schema, copy = self._schema, self._copy
        only = schema.only(typed)
        kind = schema.kind(only)
        if kind == "null" or (kind == "union" and not self._real(only)):
            return None
        plan = self._record(only) if kind == "record" else self._leaf(only, kind)
        if plan is None:
            return Plan(copy.whole(typed))
        return Plan(copy.beside_null(typed, plan.wire), plan.read, plan.type, plan.note)

    def _real(self, union: Typed) -> bool:
        return any(self._schema.kind(each) != "null" for each in self._schema.branches(union))

    def _leaf(self, typed: Typed, kind: str) -> Plan | None:
        resolved = self._schema.resolved(typed)
        logical = typed.logical or resolved.logical
        if kind == "bytes" and logical == "decimal":
            return _decimal(resolved.json)
        made = _LOGICAL.get((kind, logical))
        return Plan(kind, *made) if made else None

    def _record(self, typed: Typed) -> Plan | None:
        resolved = self._schema.resolved(typed).json
        name = str(resolved.get("name")).rpartition(".")[2].replace("_", "").lower()
        fields = self._schema.fields(typed)
        names = tuple(f.name for f in fields)
        if name.startswith("multidimensionalarray") and names == _ARRAY:
            return self._array(fields[1].type)
        kinds = [self._schema.kind(f.type) for f in fields]
        if name == "varchar" and names[:1] == ("value",) and kinds[0] == "string":
            return self._member(kinds, pa.string())
        if name == "year" and names == ("year",) and kinds[0] == "int":
            return self._member(kinds, pa.int32())
        wanted, made = _RECORDS.get(name, ((), None))
        if made is None or names != wanted or not all(kind in _INTEGERS for kind in kinds):
            return None
        return Plan(self._copy.record(list(kinds)), *made)

    def _member(self, kinds: list[str], type_: pa.DataType) -> Plan | None:
        if any(kind not in ("int", "long", "string") for kind in kinds):
            return None
        return Plan(self._copy.record(list(kinds)), values.member(0), type_)

    def _array(self, element: Typed) -> Plan | None:
        plan = self.plan(element)
        if plan is None:
            return None
        # the type of an array does not say how many dimensions it has: a level for each that
        # PostgreSQL allows, and one for seeing that there are more
        wire: Any = self._copy.record([["null", "long"], plan.wire])
        for _ in range(MAX_DIMENSIONS):
            wire = self._copy.record([["null", {"type": "array", "items": wire}], plan.wire])
        is_json = self._schema.only(element).logical == "json"
        return Plan(wire, arrays(plan.read, is_json=is_json), pa.string(), "JSON array")


def _decimal(given: Any) -> Plan | None:
    precision, scale = given.get("precision"), given.get("scale", 0)
    if type(precision) is not int or type(scale) is not int:
        return None
    if not 1 <= precision <= _MOST_DIGITS or not 0 <= scale <= precision:
        return None
    fits = precision <= 38
    type_ = pa.decimal128(precision, scale) if fits else pa.string()
    note = "" if fits else f"decimal({precision},{scale}) as text"
    return Plan("bytes", values.decimals(precision, scale), type_, note)


_LABEL = re.compile(r"^field R\d+\.\w+: ")
_MICROS = ("timestamp-micros", "local-timestamp-micros")


@dataclass(frozen=True, slots=True)
class _Payload:
    """A column of the source's table."""

    place: str
    """Its field in the private copy."""
    read: Read
    column: Column


class _Layout:
    """Where everything is in the private copy of a schema."""

    def __init__(self, schema: Schema) -> None:
        self._schema, self._copy = schema, PrivateCopy(schema)
        self.top: dict[str, str] = {}
        self.records: dict[str, str] = {}
        self.metadata: dict[str, str] = {}
        self.plans: list[tuple[str, str, Plan]] = []
        """Name, field in the private copy, and type of the payload's columns."""
        self.unit = 1_000
        wires = [self._wire(f, f"f{i}") for i, f in enumerate(schema.fields(schema.top))]
        self.private = self._copy.record(wires)

    def _wire(self, field: Field, place: str) -> Any:
        schema, copy = self._schema, self._copy
        only = schema.only(field.type)
        if field.name in ("source_metadata", "payload"):
            if schema.kind(only) != "record":
                return copy.bare(field.type)
            self.records[field.name] = place
            build = self._metadata_wire if field.name == "source_metadata" else self._payload_wire
            return copy.beside_null(field.type, build(only))
        self.top[field.name] = place
        if field.name == "source_timestamp" and only.logical in _MICROS:
            self.unit = 1
        return copy.bare(field.type)

    def _metadata_wire(self, record: Typed) -> Any:
        fields = self._schema.fields(record)
        self.metadata = {f.name: f"f{i}" for i, f in enumerate(fields)}
        return self._copy.record([self._copy.bare(f.type) for f in fields])

    def _payload_wire(self, record: Typed) -> Any:
        planner = Planner(self._schema, self._copy)
        wires = []
        for index, field in enumerate(self._schema.fields(record)):
            plan = planner.plan(field.type)
            wires.append(self._copy.bare(field.type) if plan is None else plan.wire)
            if plan is not None:
                self.plans.append((field.name, f"f{index}", plan))
        return self._copy.record(wires)


class AvroEvents:
    """Decodes the events of one file's schema."""

    def __init__(self, body: bytes, limits: DecodeLimits) -> None:
        schema = Schema(body)
        if schema.kind(schema.top) != "record":
            raise _unfit("it is not a record")
        layout = _Layout(schema)
        if size(layout.private) > MAX_FIELDS:
            raise _unfit(f"it has more than {MAX_FIELDS} fields and branches")
        private = json.dumps(layout.private).encode()
        self._inner = AvroDecoder(private, layout.private["name"], limits)
        self._top, self._records, self._metadata = layout.top, layout.records, layout.metadata
        self._unit = layout.unit
        self.names = column_names(name for name, _, _ in layout.plans)
        self._inside = {c.name: c.type for c in self._inner.columns}
        self._payload = tuple(self._columns(layout))
        self.columns = tuple(each.column for each in self._payload)
        self.metadata = frozenset(self._metadata)
        self.expansion = self._inner.expansion

    def decode(self, payloads: pa.BinaryArray, gathered: Gathered) -> Iterator[Events]:
        """Take events apart; what cannot be read has failed."""
        decoded = self._inner.decode(payloads)
        # the names of the private copy mean nothing to anybody
        failed = tuple(replace(f, message=_LABEL.sub("", f.message)) for f in decoded.failed)
        positions = gathered.take(replace(decoded, failed=failed), np.arange(len(payloads)))
        if len(positions):
            yield self._without_too_deep(self._events(decoded.ok, positions), gathered)

    def _columns(self, layout: _Layout) -> Iterator[_Payload]:
        struct = self._inside.get(self._records.get("payload", ""), pa.struct([]))
        for name, place, plan in layout.plans:
            type_ = plan.type or struct.field(place).type
            comment = "; ".join(filter(None, (f"column {printable(name)}", plan.note)))
            column = Column(self.names[name], type_, comment, origin=Origin(name))
            yield _Payload(place, plan.read, column)

    def _events(self, batch: pa.RecordBatch, positions: Any) -> Events:
        top = {name: batch.column(p) for name, p in self._top.items() if p in self._inside}
        told, metadata = _parts(batch, self._records.get("source_metadata"))
        filled, payload = _parts(batch, self._records.get("payload"))
        keys = top.pop("sort_keys", None)
        columns, lost, offsets = [], {}, {}
        for each in self._payload:
            reading = each.read(payload[each.place])
            columns.append(reading.array)
            if reading.lost:
                lost[each.column.name] = reading.lost
            if reading.offsets:
                offsets[each.column.name] = reading.offsets
        return Events(
            positions=positions,
            top=top,
            sort_keys=None if keys is None else sort_keys_json(keys),
            metadata={n: metadata[p] for n, p in self._metadata.items() if p in metadata},
            payload=tuple(columns),
            told=told,
            filled=filled,
            unit=self._unit,
            lost=lost,
            offsets=offsets,
        )

    def _without_too_deep(self, events: Events, gathered: Gathered) -> Events:
        deep = {row for rows in events.lost.values() for row, v in rows.items() if v is TOO_DEEP}
        kept = np.ones(len(events), np.bool_)
        for row in deep:
            kept[row] = False
            reason = "an array has more dimensions than PostgreSQL allows"
            gathered.fail(int(events.positions[row]), ErrorCode.NESTING_TOO_DEEP, reason)
        return events.only(kept) if deep else events


def _unfit(evidence: str) -> DecodeError:
    return DecodeError(
        "the schema is not that of change events",
        where="schema of change events",
        evidence=evidence,
        next_step="look at the header of the file",
    )


def _parts(batch: pa.RecordBatch, place: str | None) -> tuple[Mask, dict[str, pa.Array]]:
    """Which rows have a record, and its fields."""
    if place is None or place not in batch.schema.names:
        return np.zeros(batch.num_rows, np.bool_), {}
    array = batch.column(place)
    # no struct is a record of which nothing is ever set
    names = [f.name for f in array.type] if pa.types.is_struct(array.type) else []
    return ~nulls(array), dict(zip(names, array.flatten(), strict=True)) if names else {}


def sort_keys_json(array: pa.Array) -> pa.Array:
    """Lists of texts and numbers as JSON."""
    mixed = pa.types.is_list(array.type) and pa.types.is_struct(array.type.value_type)
    if not mixed or {f.name for f in array.type.value_type} != {"string", "long"}:
        return json_texts(array)
    # few different texts, many numbers
    texts = array.values.field("string").dictionary_encode()
    quoted = [json.dumps(text, ensure_ascii=False) for text in texts.dictionary.to_pylist()]
    strings = pa.array(quoted, pa.string()).take(texts.indices)
    numbers = array.values.field("long").cast(pa.string())
    items = pc.coalesce(strings, numbers, "null")
    type_, buffers = pa.list_(pa.string()), array.buffers()[:2]
    lists = pa.Array.from_buffers(
        type_, len(array), buffers, array.null_count, array.offset, [items]
    )
    return pc.binary_join_element_wise("[", pc.binary_join(lists, ","), "]", "")
