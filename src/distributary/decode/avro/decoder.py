"""Avro payloads to Arrow columns, by the table in docs/howto/avro.md.

A payload is one row, or with an array at the top one row for each item. It is accepted if the
careful reader accepts all of it and the lake can hold its values. Times of day and local timestamps
stay numbers: a lake has no time of day, and local timestamps need a table feature that not every
reader supports.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.avro.fast_decoder import (
    AvroEngine,
    engine_supports,
    has_engine,
    lake_array,
)
from distributary.decode.avro.reader import (
    AS_JSON,
    Cursor,
    Payload,
    Reader,
    StoppedAtError,
    expansion_of,
    open_schema,
    plan_payload,
    read_leaf,
)
from distributary.decode.avro.schema import AvroKind, AvroValue, flat_record, flat_type, levels
from distributary.decode.base import (
    DecodeLimits,
    Gathered,
    Positions,
    Quick,
    RowByRowDecoder,
    owners,
    where,
)
from distributary.decode.payload_view import VIEW_CHARACTERS, printable_lines
from distributary.errors import DecodeError
from distributary.model.table import Column, Origin
from distributary.registry.compile.avro_schema import AvroRecord, Schema, zigzag


def columns_of(payload: Payload) -> tuple[Column, ...]:
    """Return the columns of a payload.

    They ignore Avro defaults: a default is what a reader assumes of a record whose writer did not
    have the field, and not a value that was written.
    """
    return tuple(
        Column(
            member.name,
            member.value.type,
            comment="; ".join(filter(None, (f"field {member.label}", member.note))),
            aliases=member.aliases,
            origin=Origin(member.label if "." in member.label else member.name),
        )
        for member in payload.row.shown
    )


MAX_LEVELS = 100
"""The deepest nesting of records, arrays and maps below the top, whatever the limits say."""

_ENDLESS = b"\xff" * 9
"""Bytes in every encoding of the lowest long, which the engine takes for a block of no items."""


class AvroDecoder(RowByRowDecoder):
    """A decoder of the payloads of one schema, or of one branch of a union of records."""

    def __init__(self, body: bytes, message: str, limits: DecodeLimits) -> None:
        payload = plan_payload(body, message, recursion_depth=limits.recursion_depth)
        self._payload, self._row_type = payload, payload.row.type
        self._most_levels = 1 + min(limits.max_depth, MAX_LEVELS)
        super().__init__(
            columns_of(payload),
            pa.schema(list(payload.row.type)),
            expansion_of(payload, most_levels=self._most_levels),
            limits,
        )
        self._engine = self._fitting_engine()

    def _fitting_engine(self) -> AvroEngine | None:
        """Return the engine, or None where it cannot read the schema or would never end."""
        if not has_engine():
            return None
        payload = self._payload
        deep = levels(payload.row) + payload.listed > self._most_levels
        endless = payload.listed and payload.row.weightless
        if deep or endless or not engine_supports(payload.row):
            return None
        return AvroEngine(payload.row, listed=payload.listed, branch=payload.branch is not None)

    def _admit(
        self, array: pa.BinaryArray, positions: Positions, gathered: Gathered
    ) -> tuple[pa.BinaryArray, Positions]:
        if self._limits.raw_bytes and self._payload.bytes_at_the_top:
            # at the top of a message bytes may come without the length that Avro writes before
            # bytes
            counted = [zigzag(len(payload)) + payload for payload in array.to_pylist()]
            array = pa.array(counted, pa.binary())
        return array, positions

    def _quickly(self, array: pa.BinaryArray) -> Quick | None:
        decoded = self._engine.decode(array)
        if decoded is None:
            return None
        payload, (arrays, ended) = self._payload, decoded
        doubtful = where(~ended)
        if payload.branch is not None:
            doubtful += where(arrays[0].to_numpy() != payload.branch)
        if payload.blocks:
            doubtful += where(pc.find_substring(array, pattern=_ENDLESS).to_numpy() >= 0)
        values, counts, below = arrays[-1], None, list[int]()
        if payload.listed:
            offsets = values.offsets.to_numpy()
            counts = np.diff(offsets)
            rows = lake_array(values.values, payload.row, below)
            below = owners(offsets, below)
        else:
            rows = lake_array(values, payload.row, below)
        return Quick(pa.RecordBatch.from_struct_array(rows), doubtful + below, counts=counts)

    def _read(self, data: bytes) -> list[Any]:
        return self._reader.rows(data)

    @cached_property
    def _reader(self) -> Reader:
        return Reader(self._payload, most_levels=self._most_levels)


# A view of an Avro payload for people, as far as it can be read.


class _FullError(Exception):
    """The view has reached its most characters."""


def best_effort_text(body: bytes | None, message: str, payload: bytes) -> str:
    """Return the values of a payload line by line, up to the first byte that cannot be read."""
    try:
        schema = None if body is None else open_schema(body, message)
    except DecodeError:
        schema = None
    if schema is None:
        return f"# {len(payload)} bytes of Avro, which cannot be read without their schema\n"
    dump = _Dump(schema, payload)
    try:
        dump.all()
    except _FullError:
        dump.lines.append("# the rest is cut off")
    except RecursionError:
        dump.lines.append(f"# nests too deep from byte {dump.cursor.position}")
    except StoppedAtError as stopped:
        dump.lines.append(f"# cannot be read from byte {stopped.position} on: {stopped.reason}")
    return printable_lines("".join(f"{line}\n" for line in dump.lines))


class _Dump:
    """The lines of a view: one for each value, with the name of its field."""

    def __init__(self, schema: Schema, payload: bytes) -> None:
        self._schema = schema
        self.cursor = Cursor(payload, MAX_LEVELS)
        self.lines: list[str] = []
        self._characters = 0
        self._records: dict[str, AvroValue] = {}

    def all(self) -> None:
        """Write a line for each value of the payload."""
        self._value("", flat_type(self._schema, self._schema.top))
        self.cursor.finish()

    def _value(self, name: str, value: AvroValue) -> None:
        match value.kind:
            case AvroKind.TEXT:
                self._value(name, self._record(value.name))
            case AvroKind.STRUCT | AvroKind.EMPTY:
                self._open(name, "{")
                for member in value.members:
                    self._value(f"{member.name}: ", member.value)
                self._close("}")
            case AvroKind.UNION:
                branch = value.branches[self.cursor.index(len(value.branches), "branch")]
                tag = "" if value.plain or branch.value.void else f"({branch.member}) "
                self._value(name + tag, branch.value)
            case AvroKind.LIST | AvroKind.MAP if value.item is not None:
                self._items(name, value.item, keyed=value.kind is AvroKind.MAP)
            case kind:
                content = read_leaf(value)(self.cursor)
                convert = AS_JSON.get(kind)
                self._line(name + _json(content if convert is None else convert(content)))

    def _record(self, name: str) -> AvroValue:
        if name not in self._records:
            record = cast(AvroRecord, self._schema.named[name])
            self._records[name] = flat_record(self._schema, record)
        return self._records[name]

    def _items(self, name: str, item: AvroValue, *, keyed: bool) -> None:
        self._open(name, "{" if keyed else "[")
        while count := self.cursor.block():
            for _ in range(count):
                before = self.cursor.position
                self._value(f"{_json(self.cursor.text())}: " if keyed else "", item)
                if self.cursor.position == before:
                    self.cursor.nothing(1)
        self._close("}" if keyed else "]")

    def _open(self, name: str, bracket: str) -> None:
        self._line(name + bracket)
        self.cursor.down()

    def _close(self, bracket: str) -> None:
        self.cursor.up()
        self._line(bracket)

    def _line(self, text: str) -> None:
        line = "  " * self.cursor.level + text
        room = VIEW_CHARACTERS - self._characters
        self.lines.append(line[:room])
        self._characters += len(line) + 1
        if self._characters > VIEW_CHARACTERS:
            raise _FullError


def _json(content: object) -> str:
    return json.dumps(content, ensure_ascii=False)
