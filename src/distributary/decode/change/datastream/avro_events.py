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
from distributary.decode.avro.schema import MAX_FIELDS, decimal
from distributary.decode.base import DecodeLimits, Gathered, Mask, nulls
from distributary.decode.change import change_values
from distributary.decode.change.base import column_names
from distributary.decode.change.change_values import MAX_DIMENSIONS, TOO_DEEP, Read, arrays
from distributary.decode.change.datastream.event_parts import DatastreamEvents
from distributary.errors import DecodeError, ErrorCode, InvalidSchemaError
from distributary.evolve.unified import json_texts
from distributary.model.names import printable
from distributary.model.record import TIMESTAMP
from distributary.model.table import Column, Origin
from distributary.registry.compile.avro_compiler import logical_words
from distributary.registry.compile.avro_schema import (
    Array,
    AvroRecord,
    Enum,
    Fixed,
    Map,
    Name,
    Named,
    Primitive,
    Schema,
    Type,
    Union,
    parse_avro,
    short_name,
)

# The private copy is the same on the wire, but has names of our own, because a source's names need
# not be Avro's, and none of the logical types that refuse a value.

_LEGAL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _is_null(type_: Type) -> bool:
    return isinstance(type_, Primitive) and type_.name == "null"


def _only(given: Type) -> Type:
    """Return a type without the null beside it."""
    branches = given.branches if isinstance(given, Union) else ()
    real = [each for each in branches if not _is_null(each)]
    return real[0] if len(real) == 1 else given


def _kind(given: Type) -> str:
    """Return the name of a primitive type; None for any other type."""
    return given.name if isinstance(given, Primitive) else ""


def _meaning(given: Type) -> str:
    return given.meaning if isinstance(given, Primitive) else ""


class PrivateCopy:
    """Writes types again, with names of its own."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._records = 0
        self._written: dict[str, str] = {}

    def record(self, types: list[Any]) -> dict[str, Any]:
        """Return a record of some types; its fields are f0, f1 and so on."""
        fields = [{"name": f"f{index}", "type": each} for index, each in enumerate(types)]
        return {"type": "record", "name": self._name(), "fields": fields}

    def beside_null(self, given: Type, inner: Any) -> Any:
        """Return the copied type, with null again if the type had it."""
        if not isinstance(given, Union):
            return inner
        return ["null" if _is_null(each) else inner for each in given.branches]

    def bare(self, given: Type) -> Any:
        """Return a type without the logical types at its top."""
        only = _only(given)
        inner = _kind(only) or self.whole(only)
        return self.beside_null(given, inner) if only is not given else inner

    def whole(self, given: Type) -> Any:
        """Return an unchanged copy of a type, with everything in it."""
        match given:
            case Primitive(name, logical):
                return {"type": name, **logical_words(logical)}
            case Array(items):
                return {"type": "array", "items": self.whole(items)}
            case Map(values):
                return {"type": "map", "values": self.whole(values)}
            case Union(branches):
                return [self.whole(each) for each in branches]
            case Name(full):
                known = self._written.get(full)
                return known or self._definition(full, self._schema.named[full])

    def _definition(self, full: str, named: Named) -> dict[str, Any]:
        name = self._written[full] = self._name()
        match named:
            case AvroRecord(fields=fields):
                written = [
                    {"name": f.name if _LEGAL.fullmatch(f.name) else f"field{i}", "type": wire}
                    for i, f in enumerate(fields)
                    for wire in [self.whole(f.type)]
                ]
                return {"type": "record", "name": name, "fields": written}
            case Enum(symbols=symbols):
                return {"type": "enum", "name": name, "symbols": list(symbols)}
            case Fixed(size=size, logical=logical):
                return {"type": "fixed", "name": name, "size": size, **logical_words(logical)}

    def _name(self) -> str:
        self._records += 1
        return f"R{self._records}"


def size(given: Any) -> int:
    """Return the number of record fields and union branches in a type."""
    if isinstance(given, list):
        return len(given) + sum(map(size, given))
    if not isinstance(given, dict):
        return 0
    fields = given.get("fields", ())
    inner = [field["type"] for field in fields] + [given.get("items"), given.get("values")]
    return len(fields) + sum(map(size, inner))


# docs/change-data.md has the lake's type for each of Datastream's unified types.

_INTEGERS = ("int", "long")


@dataclass(frozen=True, slots=True)
class TypePlan:
    """How a value of the source is read."""

    wire: Any
    """The type of the column in the private copy."""
    read: Read = change_values.same
    type: pa.DataType | None = None
    """In the lake; None for whatever the decoder inside makes of it."""
    note: str = ""


_Made = tuple[Read, pa.DataType, str]
_LOGICAL: Mapping[tuple[str, str], _Made] = {
    ("int", "date"): (change_values.dates, pa.date32(), ""),
    ("long", "time-interval-micros"): (
        change_values.spans,
        pa.string(),
        "hours, minutes and seconds",
    ),
    **{
        (kind, f"time-{unit}"): (change_values.times(factor), pa.string(), "time of day")
        for kind in _INTEGERS
        for unit, factor in (("micros", 1), ("millis", 1_000))
    },
    **{
        ("long", f"{local}timestamp-{unit}"): (change_values.instants(factor), TIMESTAMP, note)
        for local, note in (("", ""), ("local-", "wall clock, said to be UTC"))
        for unit, factor in (("micros", 1), ("millis", 1_000))
    },
    ("string", "json"): (change_values.same, pa.string(), "JSON text"),
    ("string", "number"): (change_values.same, pa.string(), "number as text"),
    ("string", "varchar"): (change_values.same, pa.string(), ""),
}
_RECORDS: Mapping[str, tuple[tuple[str, ...], _Made]] = {
    "datetime": (
        ("date", "time"),
        (change_values.datetimes, TIMESTAMP, "wall clock, said to be UTC"),
    ),
    "timestamptz": (("timestamp", "offset"), (change_values.zoned_instants, TIMESTAMP, "")),
    "timetz": (
        ("time", "offset"),
        (change_values.zoned_times, pa.string(), "time of day with offset"),
    ),
    "interval": (
        ("months", "hours", "micros"),
        (change_values.intervals, pa.string(), "ISO 8601 duration"),
    ),
    "calendardate": (("year", "month", "day"), (change_values.calendar_dates, pa.date32(), "")),
    "varchar": (("value",), (change_values.member(0), pa.string(), "")),
    "year": (("year",), (change_values.member(0), pa.int32(), "")),
}
_ARRAY = ("nestedArray", "elementValue")


class TypePlanner(PrivateCopy):
    """Plans the values of one schema."""

    def plan(self, given: Type) -> TypePlan | None:
        """Return the reader for values of a type; None for a type that is always null."""
        only = _only(given)
        if all(map(_is_null, only.branches if isinstance(only, Union) else [only])):
            return None
        record = self._schema.resolve(only)
        plan = self._record(record) if isinstance(record, AvroRecord) else _leaf(only)
        if plan is None:
            return TypePlan(self.whole(given))
        return replace(plan, wire=self.beside_null(given, plan.wire))

    def _record(self, record: AvroRecord) -> TypePlan | None:
        name = short_name(record.name).replace("_", "").lower()
        names = tuple(field.name for field in record.fields)
        if name.startswith("multidimensionalarray") and names == _ARRAY:
            return self._array(record.fields[1].type)
        kinds = [_kind(field.type) for field in record.fields]
        wanted, made = _RECORDS.get(name, ((), None))
        fits = names == wanted and all(kind in _INTEGERS for kind in kinds)
        if name == "varchar":
            # the field of the length may follow that of the value
            fits = names[:1] == wanted and kinds[0] == "string"
            fits = fits and all(kind in (*_INTEGERS, "string") for kind in kinds)
        elif name == "year":
            fits = fits and kinds == ["int"]
        return TypePlan(self.record(kinds), *made) if made is not None and fits else None

    def _array(self, element: Type) -> TypePlan | None:
        plan = self.plan(element)
        if plan is None:
            return None
        # the type of an array does not say how many dimensions it has: a level for each that
        # PostgreSQL allows, and one for seeing that there are more
        wire: Any = self.record([["null", "long"], plan.wire])
        for _ in range(MAX_DIMENSIONS):
            wire = self.record([["null", {"type": "array", "items": wire}], plan.wire])
        is_json = _meaning(_only(element)) == "json"
        return TypePlan(wire, arrays(plan.read, is_json=is_json), pa.string(), "JSON array")


def _leaf(given: Type) -> TypePlan | None:
    logical = given.logical if isinstance(given, Primitive) else None
    if logical is not None and logical.name == "decimal":
        value = decimal(logical.precision, logical.scale, None)
        read = change_values.decimals(logical.precision, logical.scale)
        return TypePlan("bytes", read, value.type, value.unit)
    made = _LOGICAL.get((_kind(given), _meaning(given)))
    return TypePlan(_kind(given), *made) if made else None


_LABEL = re.compile(r"^field R\d+\.\w+: ")
_MICROS = ("timestamp-micros", "local-timestamp-micros")


@dataclass(frozen=True, slots=True)
class _Payload:
    """A column of the source's table."""

    place: str
    """The field of the column in the private copy."""
    read: Read
    column: Column


class _Layout(TypePlanner):
    """Where everything is in the private copy of a schema."""

    def __init__(self, schema: Schema, event: AvroRecord) -> None:
        super().__init__(schema)
        self.top: dict[str, str] = {}
        self.records: dict[str, str] = {}
        self.metadata: dict[str, str] = {}
        self.plans: list[tuple[str, str, TypePlan]] = []
        """Name, field in the private copy, and type of the payload's columns."""
        self.unit = 1_000
        fields = enumerate(event.fields)
        self.private = self.record([self._wire(f.name, f.type, f"f{i}") for i, f in fields])

    def _wire(self, name: str, given: Type, place: str) -> Any:
        only = _only(given)
        if name not in ("source_metadata", "payload"):
            self.top[name] = place
            if name == "source_timestamp" and _meaning(only) in _MICROS:
                self.unit = 1
            return self.bare(given)
        record = self._schema.resolve(only)
        if not isinstance(record, AvroRecord):
            return self.bare(given)
        self.records[name] = place
        if name == "payload":
            wires = [self._column(f.name, f.type, f"f{i}") for i, f in enumerate(record.fields)]
        else:
            self.metadata = {f.name: f"f{i}" for i, f in enumerate(record.fields)}
            wires = [self.bare(f.type) for f in record.fields]
        return self.beside_null(given, self.record(wires))

    def _column(self, name: str, given: Type, place: str) -> Any:
        plan = self.plan(given)
        if plan is None:
            return self.bare(given)
        self.plans.append((name, place, plan))
        return plan.wire


class AvroEvents:
    """Decodes the events of one file's schema."""

    def __init__(self, body: bytes, limits: DecodeLimits) -> None:
        try:
            schema = parse_avro(body.decode(), datastream=True)
        except InvalidSchemaError as error:
            raise _unfit(error.what, "the schema is not usable Avro") from error
        event = schema.resolve(schema.top)
        if not isinstance(event, AvroRecord):
            raise _unfit("it is not a record")
        layout = _Layout(schema, event)
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

    def decode(self, payloads: pa.BinaryArray, gathered: Gathered) -> Iterator[DatastreamEvents]:
        """Take events apart; what cannot be read has failed."""
        decoded = self._inner.decode(payloads)
        # users do not know the names of the private copy, so messages leave them out
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

    def _events(self, batch: pa.RecordBatch, positions: Any) -> DatastreamEvents:
        top = {name: batch.column(p) for name, p in self._top.items() if p in self._inside}
        has_source, metadata = _parts(batch, self._records.get("source_metadata"))
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
        return DatastreamEvents(
            positions=positions,
            top=top,
            sort_keys=None if keys is None else sort_keys_json(keys),
            metadata={n: metadata[p] for n, p in self._metadata.items() if p in metadata},
            payload=tuple(columns),
            has_source=has_source,
            filled=filled,
            unit=self._unit,
            lost=lost,
            offsets=offsets,
        )

    def _without_too_deep(self, events: DatastreamEvents, gathered: Gathered) -> DatastreamEvents:
        deep = {row for rows in events.lost.values() for row, v in rows.items() if v is TOO_DEEP}
        kept = np.ones(len(events), np.bool_)
        for row in deep:
            kept[row] = False
            reason = "an array has more dimensions than PostgreSQL allows"
            gathered.fail(int(events.positions[row]), ErrorCode.NESTING_TOO_DEEP, reason)
        return events.only(kept) if deep else events


def _unfit(evidence: str, what: str = "the schema is not that of change events") -> DecodeError:
    return DecodeError(
        what,
        where="schema of change events",
        evidence=evidence,
        next_step="look at the header of the file",
    )


def _parts(batch: pa.RecordBatch, place: str | None) -> tuple[Mask, dict[str, pa.Array]]:
    """Return which rows have a record, and its fields."""
    if place is None or place not in batch.schema.names:
        return np.zeros(batch.num_rows, np.bool_), {}
    array = batch.column(place)
    # without a struct, the record has no field that was ever set
    names = [f.name for f in array.type] if pa.types.is_struct(array.type) else []
    return ~nulls(array), dict(zip(names, array.flatten(), strict=True)) if names else {}


def sort_keys_json(array: pa.Array) -> pa.Array:
    """Format lists of texts and numbers as JSON."""
    mixed = pa.types.is_list(array.type) and pa.types.is_struct(array.type.value_type)
    if not mixed or {f.name for f in array.type.value_type} != {"string", "long"}:
        return json_texts(array)
    # texts repeat often, so each different one is quoted once
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
