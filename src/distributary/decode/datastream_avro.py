"""Datastream events in Avro: decoded by a private copy of their schema, then read by type."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.avro import AvroDecoder
from distributary.decode.avro_plan import MAX_FIELDS
from distributary.decode.base import DecodeLimits
from distributary.decode.changes import column_names
from distributary.decode.datastream_arrays import TOO_DEEP, json_texts
from distributary.decode.datastream_events import Events
from distributary.decode.datastream_schema import Field, PrivateCopy, Schema, Typed, size
from distributary.decode.datastream_types import Plan, Planner
from distributary.decode.datastream_values import Mask, Read
from distributary.decode.expansion import Expansion
from distributary.decode.gather import Gathered
from distributary.errors import DecodeError, ErrorCode
from distributary.model.table import Column, Origin
from distributary.registry.hostile import printable

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
        self._names = column_names(name for name, _, _ in layout.plans)
        self._inside = {c.name: c.type for c in self._inner.columns}
        self._payload = tuple(self._columns(layout))

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the source's table."""
        return tuple(each.column for each in self._payload)

    @property
    def names(self) -> dict[str, str]:
        """What the columns are called, by their names in the source."""
        return self._names

    @property
    def metadata(self) -> frozenset[str]:
        """What the events say about their source."""
        return frozenset(self._metadata)

    @property
    def expansion(self) -> Expansion:
        """How large events become."""
        return self._inner.expansion

    def decode(self, payloads: pa.BinaryArray, gathered: Gathered) -> Iterator[Events]:
        """Take events apart; what cannot be read has failed."""
        decoded = self._inner.decode(payloads)
        for each in decoded.failed:
            # the names of the private copy mean nothing to anybody
            reason = _LABEL.sub("", each.message)
            gathered.fail(each.index, each.code, reason, at_byte=each.position)
        batch, origin = decoded.ok, decoded.origin
        positions = np.arange(len(payloads)) if origin is None else origin.to_numpy()
        if batch.num_rows:
            yield self._without_too_deep(self._events(batch, positions), gathered)

    def _columns(self, layout: _Layout) -> Iterator[_Payload]:
        struct = self._inside.get(self._records.get("payload", ""), pa.struct([]))
        for name, place, plan in layout.plans:
            type_ = plan.type or struct.field(place).type
            comment = "; ".join(filter(None, (f"column {printable(name)}", plan.note)))
            column = Column(self._names[name], type_, comment, origin=Origin(name))
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
        if not deep:
            return events
        kept = np.ones(len(events), np.bool_)
        kept[list(deep)] = False
        for row in deep:
            reason = "an array has more dimensions than PostgreSQL allows"
            gathered.fail(int(events.positions[row]), ErrorCode.NESTING_TOO_DEEP, reason)
        return events.only(kept)


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
    valid: Mask = array.is_valid().to_numpy(zero_copy_only=False)
    if not pa.types.is_struct(array.type):
        # a record of which nothing is ever set
        return valid, {}
    return valid, {f.name: c for f, c in zip(array.type, array.flatten(), strict=True)}


def sort_keys_json(array: pa.Array) -> pa.Array:
    """Lists of texts and numbers as JSON."""
    type_ = array.type
    mixed = pa.types.is_list(type_) and pa.types.is_struct(type_.value_type)
    if not mixed or {f.name for f in type_.value_type} != {"string", "long"}:
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
