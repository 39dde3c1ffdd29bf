"""Avro payloads to Arrow columns, by the table in docs/howto/avro.md.

A payload is a row, or with an array at the top as many rows as it has items, if and only if the
careful reader accepts all of it and the lake can hold its values. A lake has no time of day, and a
local timestamp needs a table feature that not every reader has: these stay numbers.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.avro.engine import Engine, engine_supports, has_engine, lake_array
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
from distributary.decode.avro.schema import Kind, Value, flat_record, flat_type, levels
from distributary.decode.base import (
    DecodeLimits,
    Gathered,
    Positions,
    Quick,
    RowByRowDecoder,
    owners,
    printable_lines,
    where,
)
from distributary.errors import DecodeError
from distributary.model.table import Column, Origin
from distributary.registry.compile.avro_schema import Record, Schema, zigzag


def columns_of(payload: Payload) -> tuple[Column, ...]:
    """Return the columns of a payload.

    Avro defaults are no part of them: a default is what a reader may assume of a record whose
    writer did not have the field, and not what was written.
    """
    return tuple(
        Column(
            m.name,
            m.value.type,
            comment="; ".join(filter(None, (f"field {m.label}", m.note))),
            aliases=m.aliases,
            origin=Origin(m.label if "." in m.label else m.name),
        )
        for m in payload.row.shown
    )


MAX_LEVELS = 100
"""Of records, arrays and maps below the top; beyond it a payload is refused whatever the limit."""

_ENDLESS = b"\xff" * 9
"""In every way to write the lowest long, which the engine takes for a block of no items."""


class AvroDecoder(RowByRowDecoder):
    """Decodes the payloads of one schema, or of one branch of a union of records."""

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

    def _fitting_engine(self) -> Engine | None:
        """The engine, unless the schema holds what it cannot read or must not be let loose on."""
        if not has_engine():
            return None
        payload = self._payload
        deep = levels(payload.row) + payload.listed > self._most_levels
        endless = payload.listed and payload.row.weightless
        if deep or endless or not engine_supports(payload.row):
            return None
        return Engine(payload.row, listed=payload.listed, branch=payload.branch is not None)

    def _admit(
        self, array: pa.BinaryArray, positions: Positions, gathered: Gathered
    ) -> tuple[pa.BinaryArray, Positions]:
        if self._limits.raw_bytes and self._payload.bytes_at_the_top:
            # with their length, as Avro has bytes anywhere but at the top of a message
            counted = [zigzag(len(each)) + each for each in array.to_pylist()]
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


# An Avro payload for human eyes, as far as it can be read.

MAX_CHARACTERS = 200_000
"""A longer text is cut; a person reads the beginning."""


class _FullError(Exception):
    """There is more than a person reads."""


def best_effort_text(body: bytes | None, message: str, payload: bytes) -> str:
    """The payload value by value, up to the byte that is wrong."""
    try:
        schema = None if body is None else open_schema(body, message)
    except DecodeError:
        schema = None
    if schema is None:
        return f"# {len(payload)} bytes of Avro, which say nothing without their schema\n"
    dump = _Dump(schema, payload)
    try:
        dump.all()
    except _FullError:
        dump.lines.append("# and more")
    except RecursionError:
        dump.lines.append(f"# nests too deep from byte {dump.cursor.position}")
    except StoppedAtError as stopped:
        dump.lines.append(f"# cannot be read from byte {stopped.position} on: {stopped.reason}")
    return printable_lines("".join(f"{line}\n" for line in dump.lines))


class _Dump:
    """One line per value, with the name of its field."""

    def __init__(self, schema: Schema, payload: bytes) -> None:
        self._schema = schema
        self.cursor = Cursor(payload, MAX_LEVELS)
        self.lines: list[str] = []
        self._characters = 0
        self._records: dict[str, Value] = {}

    def all(self) -> None:
        """Write everything."""
        self._value("", flat_type(self._schema, self._schema.top))
        self.cursor.finish()

    def _value(self, name: str, value: Value) -> None:
        match value.kind:
            case Kind.TEXT:
                self._value(name, self._record(value.name))
            case Kind.STRUCT | Kind.EMPTY:
                self._open(name, "{")
                for member in value.members:
                    self._value(f"{member.name}: ", member.value)
                self._close("}")
            case Kind.UNION:
                branch = value.branches[self.cursor.index(len(value.branches), "branch")]
                tag = "" if value.plain or branch.value.void else f"({branch.member}) "
                self._value(name + tag, branch.value)
            case Kind.LIST | Kind.MAP if value.item is not None:
                self._items(name, value.item, keyed=value.kind is Kind.MAP)
            case kind:
                content = read_leaf(value)(self.cursor)
                convert = AS_JSON.get(kind)
                self._line(name + _json(content if convert is None else convert(content)))

    def _record(self, name: str) -> Value:
        if name not in self._records:
            record = cast(Record, self._schema.named[name])
            self._records[name] = flat_record(self._schema, record)
        return self._records[name]

    def _items(self, name: str, item: Value, *, keyed: bool) -> None:
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
        room = MAX_CHARACTERS - self._characters
        self.lines.append(line[:room])
        self._characters += len(line) + 1
        if self._characters > MAX_CHARACTERS:
            raise _FullError


def _json(content: object) -> str:
    return json.dumps(content, ensure_ascii=False)
