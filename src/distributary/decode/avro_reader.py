"""The careful reader: one payload at a time, each value checked, never more than the bytes allow.

It is the judge of what a payload is: the engine's answer counts only where nothing about it is
doubtful. (`fastavro` would read as much, but it follows a block of 2 to the power of 40 items that
take no bytes, takes a negative length for "everything", and does not say at which byte it failed.)
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, cast

import pyarrow as pa

from distributary.decode.avro_payload import Payload
from distributary.decode.avro_plan import flat_record
from distributary.decode.avro_shape import Branch, Kind, Value
from distributary.decode.avro_values import Read, as_json, read_leaf
from distributary.decode.avro_wire import Cursor, StoppedAtError
from distributary.errors import ErrorCode
from distributary.registry.avro_model import Record, Schema


class Reader:
    """Reads payloads of one plan."""

    def __init__(self, payload: Payload, *, most_levels: int) -> None:
        self._payload = payload
        self._most_levels = most_levels
        compiler = Compiler(payload.schema)
        row = compiler.read(payload.row)
        self._read = compiler.listed(row, payload.row.weightless) if payload.listed else row

    def rows(self, data: bytes) -> list[Any]:
        """The rows of one payload, of which nothing may be left over.

        Raises:
            StoppedAtError: At the first byte that makes no sense.
        """
        cursor = Cursor(data, self._most_levels)
        if self._payload.branch is not None:
            self._take_branch(cursor)
        try:
            content = self._read(cursor)
        except RecursionError:
            reason = "the payload nests deeper than the interpreter can follow"
            raise StoppedAtError(ErrorCode.NESTING_TOO_DEEP, cursor.position, reason) from None
        cursor.finish()
        return content if self._payload.listed else [content]

    def batch(self, rows: Iterable[Any]) -> pa.RecordBatch:
        """Rows as columns."""
        return pa.RecordBatch.from_struct_array(pa.array(list(rows), self._payload.row.type))

    def _take_branch(self, cursor: Cursor) -> None:
        branches = self._payload.branches
        number = cursor.index(len(branches), "branch")
        if number == self._payload.branch:
            return
        if not branches[number]:
            raise StoppedAtError(ErrorCode.NULL_VALUE, 0, "the value is null")
        reason = f"it is a {branches[number]}, not a {self._payload.row.name}"
        raise StoppedAtError(ErrorCode.PAYLOAD_MISMATCH, 0, reason)


class Compiler:
    """Turns plans into functions."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._texts: dict[str, Read] = {}

    def read(self, value: Value, *, json_value: bool = False) -> Read:
        """A function that reads a value, for the lake or as a part of a JSON text."""
        match value.kind:
            case Kind.STRUCT:
                return self._struct(value, json_value=json_value)
            case Kind.EMPTY:
                inner = self._struct(value, json_value=True)
                return inner if json_value else lambda cursor: json.dumps(inner(cursor))
            case Kind.TEXT:
                return self._text(value.name, json_value=json_value)
            case Kind.UNION:
                return self._union(value, json_value=json_value)
            case Kind.LIST | Kind.MAP if value.item is not None:
                item = self.read(value.item, json_value=json_value)
                if value.kind is Kind.LIST:
                    return self.listed(item, value.item.weightless)
                return _mapped(item, json_value=json_value)
        leaf = read_leaf(value)
        convert = as_json(value.kind) if json_value else None
        return leaf if convert is None else lambda cursor: convert(leaf(cursor))

    def listed(self, item: Read, weightless: bool) -> Read:
        """A function that reads an array."""

        def read(cursor: Cursor) -> list[Any]:
            cursor.down()
            found: list[Any] = []
            while count := cursor.block():
                for _ in range(count):
                    before = cursor.position
                    found.append(item(cursor))
                    if weightless and cursor.position == before:
                        cursor.nothing(1)
            cursor.up()
            return found

        return read

    def _struct(self, value: Value, *, json_value: bool) -> Read:
        members = [
            (m.name if m.column else "", m.label, self.read(m.value, json_value=json_value))
            for m in value.members
        ]

        def read(cursor: Cursor) -> dict[str, Any]:
            cursor.down()
            found = {}
            for name, label, read_member in members:
                try:
                    content = read_member(cursor)
                except StoppedAtError as error:
                    raise error.inside(label) from None
                if name and not (json_value and content is None):
                    found[name] = content
            cursor.up()
            return found

        return read

    def _text(self, name: str, *, json_value: bool) -> Read:
        def content(cursor: Cursor) -> Any:
            read = self._texts.get(name)
            if read is None:
                plan = flat_record(self._schema, cast(Record, self._schema.named[name]))
                read = self._texts[name] = self.read(plan, json_value=True)
            return read(cursor)

        if json_value:
            return content
        return lambda cursor: json.dumps(content(cursor), ensure_ascii=False, separators=(",", ":"))

    def _union(self, value: Value, *, json_value: bool) -> Read:
        count = len(value.branches)
        reads = [self._branch(b, value, json_value=json_value) for b in value.branches]

        def read(cursor: Cursor) -> Any:
            return reads[cursor.index(count, "branch")](cursor)

        return read

    def _branch(self, branch: Branch, union: Value, *, json_value: bool) -> Read:
        read = self.read(branch.value, json_value=json_value)
        if branch.value.void:
            return read
        if not union.plain:
            member = branch.member
            return lambda cursor: {member: read(cursor)}
        if union.type == pa.float64() and branch.value.kind is Kind.INT:
            return lambda cursor: float(read(cursor))
        return read


def _mapped(item: Read, *, json_value: bool) -> Read:
    def read(cursor: Cursor) -> Any:
        cursor.down()
        found: dict[str, Any] = {}
        while count := cursor.block():
            for _ in range(count):
                key = cursor.text()
                # of a key that comes again, the last value counts
                found[key] = item(cursor)
        cursor.up()
        return found if json_value else list(found.items())

    return read
