"""The careful reader: one payload at a time, each value checked, never more than the bytes allow.

It is the judge of what a payload is: the engine's answer counts only where nothing about it is
doubtful. (`fastavro` would read as much, but it follows a block of 2 to the power of 40 items that
take no bytes, takes a negative length for "everything", and does not say at which byte it failed.)
"""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from functools import cache
from typing import Any, cast
from uuid import UUID

import pyarrow as pa

from distributary.decode.avro.schema import Branch, Kind, Value, flat_record, plan_record, plan_type
from distributary.decode.base import JSON_GROWTH, TEXT, Expansion, RefusedError, json_number, width
from distributary.errors import DecodeError, ErrorCode, InvalidSchemaError
from distributary.model.names import printable
from distributary.registry.compile.avro import branch_records, payload_name
from distributary.registry.compile.avro_schema import Array, Primitive, Record, Schema, parse_avro

# Avro's binary encoding, read byte by byte, with the byte at which it stops to make sense.

ITEMS_FROM_NOTHING = 1_000
"""Items of lists in one payload that take no bytes: a length of a few bytes could ask for any."""

_MASK = 0xFFFF_FFFF_FFFF_FFFF


class StoppedAtError(RefusedError):
    """The payload cannot be read any further."""

    label = ""

    def __init__(self, code: ErrorCode, position: int, reason: str) -> None:
        super().__init__(code, reason, position)

    def inside(self, label: str) -> StoppedAtError:
        """The same error, knowing the field it happened in; the innermost field counts."""
        if label and not self.label:
            self.label, self.reason = label, f"field {label}: {self.reason}"
        return self


class Cursor:
    """A place in a payload, and what may still be spent on it."""

    __slots__ = ("_most_levels", "data", "from_nothing", "level", "position")

    def __init__(self, data: bytes, most_levels: int) -> None:
        self.data = data
        self.position = 0
        self.level = 0
        self.from_nothing = 0
        self._most_levels = most_levels

    def long(self) -> int:
        """An int, a long, a length or an index."""
        data, start = self.data, self.position
        at = start
        try:
            byte = data[at]
            if byte < 0x80:
                self.position = at + 1
                return (byte >> 1) ^ -(byte & 1)
            value, shift = byte & 0x7F, 7
            while True:
                at += 1
                byte = data[at]
                value |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
                shift += 7
                if shift > 63:
                    reason = "a number is longer than ten bytes"
                    raise StoppedAtError(ErrorCode.PAYLOAD_MISMATCH, start, reason)
        except IndexError:
            reason = "the payload ends inside a number"
            raise StoppedAtError(ErrorCode.PAYLOAD_TRUNCATED, start, reason) from None
        self.position = at + 1
        value &= _MASK
        return (value >> 1) ^ -(value & 1)

    def take(self, count: int) -> bytes:
        """So many bytes."""
        start = self.position
        end = start + count
        if end > len(self.data):
            left = len(self.data) - start
            reason = f"a value needs {count} bytes, {left} are left"
            raise StoppedAtError(ErrorCode.PAYLOAD_TRUNCATED, start, reason)
        self.position = end
        return self.data[start:end]

    def counted(self) -> bytes:
        """Bytes with their length before them."""
        start = self.position
        count = self.long()
        if count < 0:
            reason = "a value has a length below zero"
            raise StoppedAtError(ErrorCode.INVALID_LENGTH, start, reason)
        return self.take(count)

    def text(self) -> str:
        """A string."""
        data = self.counted()
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            position = self.position - len(data) + error.start
            reason = "the text is not UTF-8"
            raise StoppedAtError(ErrorCode.INVALID_UTF8, position, reason) from None

    def index(self, below: int, what: str) -> int:
        """The number of a branch or of a symbol."""
        start = self.position
        number = self.long()
        if not 0 <= number < below:
            reason = f"there is no {what} with this number, only {below}"
            raise StoppedAtError(ErrorCode.INVALID_INDEX, start, reason)
        return number

    def block(self) -> int:
        """How many items follow, before the next number; zero at the end."""
        start = self.position
        count = self.long()
        if count >= 0:
            return count
        # the size of the block in bytes is for readers that skip it
        self.long()
        if -count > _MASK >> 1:
            reason = "a block has more items than a number can say"
            raise StoppedAtError(ErrorCode.INVALID_LENGTH, start, reason)
        return -count

    def nothing(self, items: int) -> None:
        """Account for items that take no bytes."""
        self.from_nothing += items
        if self.from_nothing > ITEMS_FROM_NOTHING:
            reason = f"more than {ITEMS_FROM_NOTHING} items take no bytes at all"
            raise StoppedAtError(ErrorCode.PAYLOAD_TOO_LARGE, self.position, reason)

    def down(self) -> None:
        """Enter a record, an array or a map."""
        self.level += 1
        if self.level > self._most_levels:
            reason = f"records, arrays and maps nest deeper than {self._most_levels} levels"
            raise StoppedAtError(ErrorCode.NESTING_TOO_DEEP, self.position, reason)

    def up(self) -> None:
        """Leave it again."""
        self.level -= 1

    def finish(self) -> None:
        """Nothing may follow."""
        left = len(self.data) - self.position
        if left:
            reason = f"{left} bytes are left after the end of the data"
            raise StoppedAtError(ErrorCode.TRAILING_BYTES, self.position, reason)


# Single values of Avro as the lake holds them, and as JSON shows them.

Read = Callable[[Cursor], Any]

DAYS = (-719_162, 2_932_896)
"""0001-01-01 to 9999-12-31: what every reader of a lake understands."""
MICROS = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""The same for instants."""

_FLOAT, _DOUBLE, _DURATION = struct.Struct("<f"), struct.Struct("<d"), struct.Struct("<3I")
_EXACT = Context(prec=10_000)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def read_leaf(value: Value) -> Read:
    """A function that reads values without other values in them."""
    size = value.size
    raw: Read = Cursor.counted if size is None else lambda cursor: cursor.take(size)
    match value.kind:
        case Kind.ENUM:
            symbols, count = value.symbols, len(value.symbols)
            return lambda cursor: symbols[cursor.index(count, "symbol")]
        case Kind.INSTANT:
            return _instant(value.micros)
        case Kind.DECIMAL:
            return _decimal(value, raw)
        case Kind.DIGITS:
            exact = _decimal(value, raw)
            return lambda cursor: format(exact(cursor), "f")
        case Kind.UUID:
            return lambda cursor: str(UUID(bytes=raw(cursor)))
        case Kind.DURATION:
            return lambda cursor: dict(
                zip(("months", "days", "millis"), _DURATION.unpack(raw(cursor)), strict=True)
            )
    return _LEAVES.get(value.kind, raw)


def _base64(data: bytes) -> str:
    return b64encode(data).decode("ascii")


AS_JSON: dict[Kind, Callable[[Any], Any]] = {
    Kind.BYTES: _base64,
    Kind.FIXED: _base64,
    Kind.DECIMAL: "{:f}".format,
    Kind.DATE: date.isoformat,
    Kind.INSTANT: lambda micros: (
        (_EPOCH + timedelta(microseconds=micros)).isoformat().replace("+00:00", "Z")
    ),
    Kind.FLOAT: lambda number: json_number(number, single=True),
    Kind.DOUBLE: json_number,
}
"""How values become JSON; those of other kinds are that already."""


def _boolean(cursor: Cursor) -> bool:
    start = cursor.position
    byte = cursor.take(1)[0]
    if byte > 1:
        reason = "a boolean is neither 0 nor 1"
        raise StoppedAtError(ErrorCode.PAYLOAD_MISMATCH, start, reason)
    return byte == 1


def _int(cursor: Cursor) -> int:
    start = cursor.position
    number = cursor.long()
    if not -(2**31) <= number < 2**31:
        reason = "an int has more than 32 bits"
        raise StoppedAtError(ErrorCode.PAYLOAD_MISMATCH, start, reason)
    return number


def _date(cursor: Cursor) -> date:
    start = cursor.position
    days = _int(cursor)
    if not DAYS[0] <= days <= DAYS[1]:
        reason = "a date is not in the years 1 to 9999"
        raise StoppedAtError(ErrorCode.VALUE_OUT_OF_RANGE, start, reason)
    return date.fromordinal(719_163 + days)


def _instant(factor: int) -> Read:
    def read(cursor: Cursor) -> int:
        start = cursor.position
        micros = cursor.long() * factor
        if not MICROS[0] <= micros <= MICROS[1]:
            reason = "a timestamp is not in the years 1 to 9999"
            raise StoppedAtError(ErrorCode.VALUE_OUT_OF_RANGE, start, reason)
        return micros

    return read


def _decimal(value: Value, raw: Read) -> Read:
    def read(cursor: Cursor) -> Decimal:
        start = cursor.position
        number = decimal_in(raw(cursor), value)
        if number is None:
            reason = f"a decimal has more than {value.precision} digits"
            raise StoppedAtError(ErrorCode.VALUE_OUT_OF_RANGE, start, reason)
        return number

    return read


_LEAVES: dict[Kind, Read] = {
    Kind.NULL: lambda cursor: None,
    Kind.BOOLEAN: _boolean,
    Kind.INT: _int,
    Kind.LONG: Cursor.long,
    Kind.FLOAT: lambda cursor: _FLOAT.unpack(cursor.take(4))[0],
    Kind.DOUBLE: lambda cursor: _DOUBLE.unpack(cursor.take(8))[0],
    Kind.STRING: Cursor.text,
    Kind.DATE: _date,
}


def decimal_in(data: bytes, value: Value) -> Decimal | None:
    """The number that bytes stand for; None when it has more digits than it may have."""
    number = int.from_bytes(data, "big", signed=True)
    limit = 10**value.precision
    return _EXACT.scaleb(Decimal(number), -value.scale) if -limit < number < limit else None


# What a payload of a schema is: a record, a branch of a union, an array of rows, or one value.


@dataclass(frozen=True, slots=True)
class Payload:
    """How the bytes of a payload become rows."""

    schema: Schema
    row: Value
    """A struct; the columns are its members."""
    listed: bool
    """The payload is an array of rows."""
    branches: tuple[str, ...] = ()
    """Of a union at the top: the records by number, empty for null."""
    branch: int | None = None
    """Of a union at the top: the number that stands before the row."""
    blocks: bool = False
    """There are arrays or maps in it."""

    @property
    def bytes_at_the_top(self) -> bool:
        """Whether a payload is nothing but bytes, of any logical type."""
        return isinstance(self.schema.top, Primitive) and self.schema.top.name == "bytes"


def plan_payload(body: bytes, message: str, *, recursion_depth: int) -> Payload:
    """Plan the payloads of a compiled schema."""
    schema = open_schema(body, message)
    listed, type_ = False, schema.top
    branches = branch_records(schema) or ()
    branch = branches.index(message) if message and message in branches else None
    known = branch is not None if branches else message == payload_name(schema)
    if not known:
        raise DecodeError(
            "the schema does not define this message",
            where=f"message {printable(message)!r}",
            evidence=f"it defines {', '.join(filter(None, branches)) or payload_name(schema)}",
            next_step="compare the message name with the schema's text",
        )
    if branch is not None:
        record: Record | None = cast(Record, schema.named[message])
    else:
        if isinstance(type_, Array):
            listed, type_ = True, type_.items
        resolved = schema.resolve(type_)
        record = resolved if isinstance(resolved, Record) else None
    if record is not None:
        row = plan_record(schema, record, recursion_depth=recursion_depth)
    else:
        label = f"{'item' if listed else 'value'} of the schema"
        row = plan_type(schema, type_, recursion_depth=recursion_depth, label=label)
    return Payload(
        schema=schema,
        row=row,
        listed=listed,
        branches=branches,
        branch=branch,
        blocks=listed or bool(row.lists()),
    )


def open_schema(body: bytes, message: str) -> Schema:
    """Parse a compiled schema again."""
    try:
        return parse_avro(body.decode())
    except (InvalidSchemaError, UnicodeDecodeError) as error:
        raise DecodeError(
            "the compiled schema is not usable Avro",
            where=f"message {printable(message)!r}",
            evidence=error.what if isinstance(error, InvalidSchemaError) else "not UTF-8",
            next_step="look at the schema in the registry",
        ) from error


class Reader:
    """Reads payloads of one plan."""

    def __init__(self, payload: Payload, *, most_levels: int) -> None:
        self._payload = payload
        self._most_levels = most_levels
        self._read = Compiler(payload.schema).payload(payload)

    def rows(self, data: bytes) -> list[Any]:
        """The rows of one payload, of which nothing may be left over; StoppedAtError otherwise."""
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

    def _take_branch(self, cursor: Cursor) -> None:
        branches = self._payload.branches
        number = cursor.index(len(branches), "branch")
        if number != self._payload.branch and not branches[number]:
            raise StoppedAtError(ErrorCode.NULL_VALUE, 0, "the value is null")
        if number != self._payload.branch:
            reason = f"it is a {branches[number]}, not a {self._payload.row.name}"
            raise StoppedAtError(ErrorCode.PAYLOAD_MISMATCH, 0, reason)


class Compiler:
    """Turns plans into functions."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._texts: dict[str, Read] = {}

    def payload(self, payload: Payload) -> Read:
        """A function that reads a whole payload, but for the number of its branch."""
        row = payload.row
        rows = Value(Kind.LIST, pa.list_(row.type), item=row)
        return self.read(rows if payload.listed else row)

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
                return self._items(value, item, json_value=json_value)
        leaf = read_leaf(value)
        convert = AS_JSON.get(value.kind) if json_value else None
        return leaf if convert is None else lambda cursor: convert(leaf(cursor))

    def _items(self, value: Value, item: Read, *, json_value: bool) -> Read:
        if value.kind is Kind.MAP:
            return _mapped(item, json_value=json_value)
        weightless = value.item is not None and value.item.weightless

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
    sizes = [(_item_width(each), _least_item(each)) for each in payload.row.lists()]
    if payload.listed:
        sizes.append((row, _least(payload.row)))
    plain = JSON_GROWTH if _has_text(payload.row) else 1
    factor = max([plain, *(-(-size // max(1, least)) for size, least in sizes)])
    from_nothing = max([size for size, least in sizes if not least], default=0)
    # made at the first payload that is too large, if there ever is one
    passing = cache(lambda: _Counting(payload.schema).payload(payload))

    def measure(data: bytes, limit: int) -> int:
        cursor = _Count(data, most_levels, row + len(data), limit)
        # no decoder reads on where this one stops
        with suppress(StoppedAtError, _TooLargeError):
            if payload.branch is not None:
                cursor.long()
            passing()(cursor)
        return cursor.size

    return Expansion(row + ITEMS_FROM_NOTHING * from_nothing, factor, measure)


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


class _Counting(Compiler):
    """Reads payloads without keeping their items, and counts these."""

    def _items(self, value: Value, item: Read, *, json_value: bool) -> Read:
        if json_value:
            # a text, which grows by its characters
            return super()._items(value, item, json_value=True)
        size, mapped = _item_width(value), value.kind is Kind.MAP

        def read(cursor: Any) -> None:
            cursor.down()
            while count := cursor.block():
                for _ in range(count):
                    before = cursor.position
                    if mapped:
                        cursor.counted()
                    cursor.item(size)
                    item(cursor)
                    if cursor.position == before:
                        cursor.nothing(1)
            cursor.up()

        return read


def _has_text(value: Value) -> bool:
    return value.kind in (Kind.TEXT, Kind.EMPTY) or any(map(_has_text, value.below()))


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
