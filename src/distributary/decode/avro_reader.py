"""The careful reader: one payload at a time, each value checked, never more than the bytes allow.

It is the judge of what a payload is: the engine's answer counts only where nothing about it is
doubtful. (`fastavro` would read as much, but it follows a block of 2 to the power of 40 items that
take no bytes, takes a negative length for "everything", and does not say at which byte it failed.)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from typing import Any, cast

import pyarrow as pa

from distributary.decode.avro_payload import Payload
from distributary.decode.avro_plan import flat_record
from distributary.decode.avro_shape import Branch, Kind, Value
from distributary.decode.avro_values import Read, as_json, read_leaf
from distributary.decode.avro_wire import ITEMS_FROM_NOTHING, Cursor, StoppedAtError
from distributary.decode.expansion import JSON_GROWTH, TEXT, Expansion, width
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


def expansion_of(payload: Payload, *, most_levels: int) -> Expansion:
    """How large payloads of a plan become."""
    row = width(payload.row.type)
    sizes = [(_item_width(each), _least_item(each)) for each in _lists(payload.row)]
    if payload.listed:
        sizes.append((row, _least(payload.row)))
    plain = JSON_GROWTH if _has_text(payload.row) else 1
    factor = max([plain, *(-(-size // max(1, least)) for size, least in sizes)])
    from_nothing = max([size for size, least in sizes if not least], default=0)
    counting = _Counting(payload, most_levels)
    return Expansion(row + ITEMS_FROM_NOTHING * from_nothing, factor, counting.size)


class _TooLargeError(Exception):
    """A payload has more items than it may have."""


class _Count(Cursor):
    """A place in a payload, and how large what lies before it becomes."""

    __slots__ = ("_limit", "size")

    def __init__(self, data: bytes, most_levels: int, size: int, limit: int) -> None:
        super().__init__(data, most_levels)
        self.size = size
        self._limit = limit

    def item(self, size: int) -> None:
        """Pass an item."""
        self.size += size
        if self.size > self._limit:
            raise _TooLargeError


class _Counting:
    """Counts the items in payloads of one plan."""

    def __init__(self, payload: Payload, most_levels: int) -> None:
        self._payload = payload
        self._most_levels = most_levels

    def size(self, data: bytes, limit: int) -> int:
        """The bytes of columns that a payload becomes, as far as it can be read."""
        least = width(self._payload.row.type) + len(data)
        cursor = _Count(data, self._most_levels, least, limit)
        # no decoder reads on where this one stops
        with suppress(StoppedAtError, _TooLargeError):
            if self._payload.branch is not None:
                cursor.long()
            self._pass(cursor)
        return cursor.size

    @cached_property
    def _pass(self) -> Read:
        row = self._payload.row
        compiler = Compiler(self._payload.schema)
        inner = self._passing(row, compiler)
        return _passing_items(inner, width(row.type)) if self._payload.listed else inner

    def _passing(self, value: Value, compiler: Compiler) -> Read:
        """A function that passes over a value, and counts the items in it."""
        if next(_lists(value), None) is None:
            return compiler.read(value)
        match value.kind:
            case Kind.LIST | Kind.MAP if value.item is not None:
                item = self._passing(value.item, compiler)
                return _passing_items(item, _item_width(value), mapped=value.kind is Kind.MAP)
            case Kind.UNION:
                branches = [self._passing(b.value, compiler) for b in value.branches]
                count = len(branches)
                return lambda cursor: branches[cursor.index(count, "branch")](cursor)
        members = [self._passing(m.value, compiler) for m in value.members]

        def passing(cursor: Cursor) -> None:
            for member in members:
                member(cursor)

        return passing


def _passing_items(item: Read, size: int, *, mapped: bool = False) -> Read:
    def passing(cursor: Any) -> None:
        while count := cursor.block():
            for _ in range(count):
                before = cursor.position
                if mapped:
                    cursor.counted()
                cursor.item(size)
                item(cursor)
                if cursor.position == before:
                    cursor.nothing(1)

    return passing


def _lists(value: Value) -> Iterator[Value]:
    """All lists and maps in a value."""
    if value.kind in (Kind.LIST, Kind.MAP):
        yield value
    for each in _below(value):
        yield from _lists(each)


def _below(value: Value) -> list[Value]:
    below = [m.value for m in value.members] + [b.value for b in value.branches]
    return below + ([value.item] if value.item is not None else [])


def _has_text(value: Value) -> bool:
    return value.kind in (Kind.TEXT, Kind.EMPTY) or any(map(_has_text, _below(value)))


def _item_width(value: Value) -> int:
    own = width(value.item.type) if value.item is not None else 0
    return own + TEXT * (value.kind is Kind.MAP)


def _least_item(value: Value) -> int:
    own = _least(value.item) if value.item is not None else 0
    return own + (value.kind is Kind.MAP)


def _least(value: Value) -> int:
    """The fewest bytes that a value takes in a payload."""
    if value.size is not None:
        return value.size
    match value.kind:
        case Kind.STRUCT | Kind.EMPTY:
            return sum(_least(m.value) for m in value.members)
        case Kind.UNION:
            return 1 + min((_least(b.value) for b in value.branches), default=0)
        case Kind.NULL | Kind.TEXT:
            return 0
        case Kind.FLOAT | Kind.DOUBLE:
            return 4 if value.kind is Kind.FLOAT else 8
    return 1
