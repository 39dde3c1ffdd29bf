"""The careful reader of Avro: reads one payload at a time and checks each value.

It decides what a payload contains: the engine's result counts only where nothing about it is
doubtful. (`fastavro` reads the same format, but it follows a block of 2 to the power of 40 items
that take no bytes, takes a negative length for "everything", and does not report the byte at which
it failed.)
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

from distributary.decode.avro.schema import (
    AvroKind,
    AvroValue,
    Branch,
    flat_record,
    plan_record,
    plan_type,
)
from distributary.decode.base import JSON_GROWTH, TEXT, Expansion, RefusedError, json_number, width
from distributary.errors import DecodeError, ErrorCode, InvalidSchemaError
from distributary.model.names import printable
from distributary.registry.compile.avro_compiler import branch_records, payload_name
from distributary.registry.compile.avro_schema import (
    Array,
    AvroRecord,
    Primitive,
    Schema,
    parse_avro,
)

# Avro's binary encoding, read byte by byte. Errors carry the byte at which reading stopped.

ITEMS_FROM_NOTHING = 1_000
"""The largest number of list items without bytes in one payload: a length of a few bytes could
announce any number."""

_MASK = 0xFFFF_FFFF_FFFF_FFFF


class StoppedAtError(RefusedError):
    """A payload that cannot be read further than `position`."""

    label = ""

    def __init__(self, code: ErrorCode, position: int, reason: str) -> None:
        super().__init__(code, reason, position)

    def inside(self, label: str) -> StoppedAtError:
        """Add the field's name to the error, unless an inner field is named, and return it."""
        if label and not self.label:
            self.label, self.reason = label, f"field {label}: {self.reason}"
        return self


class Cursor:
    """A position in a payload, its nesting level, and the count of items that took no bytes."""

    __slots__ = ("_most_levels", "data", "from_nothing", "level", "position")

    def __init__(self, data: bytes, most_levels: int) -> None:
        self.data = data
        self.position = 0
        self.level = 0
        self.from_nothing = 0
        self._most_levels = most_levels

    def long(self) -> int:
        """Read an int, a long, a length or an index."""
        data, start = self.data, self.position
        end = start
        try:
            byte = data[end]
            if byte < 0x80:
                self.position = end + 1
                return (byte >> 1) ^ -(byte & 1)
            value, shift = byte & 0x7F, 7
            while True:
                end += 1
                byte = data[end]
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
        self.position = end + 1
        value &= _MASK
        return (value >> 1) ^ -(value & 1)

    def take(self, count: int) -> bytes:
        """Read `count` bytes."""
        start = self.position
        end = start + count
        if end > len(self.data):
            left = len(self.data) - start
            reason = f"a value needs {count} bytes, {left} are left"
            raise StoppedAtError(ErrorCode.PAYLOAD_TRUNCATED, start, reason)
        self.position = end
        return self.data[start:end]

    def counted(self) -> bytes:
        """Read bytes that follow their length."""
        start = self.position
        count = self.long()
        if count < 0:
            reason = "a value has a length below zero"
            raise StoppedAtError(ErrorCode.INVALID_LENGTH, start, reason)
        return self.take(count)

    def text(self) -> str:
        """Read a string."""
        data = self.counted()
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            position = self.position - len(data) + error.start
            reason = "the text is not UTF-8"
            raise StoppedAtError(ErrorCode.INVALID_UTF8, position, reason) from None

    def index(self, below: int, what: str) -> int:
        """Read the number of a branch or of a symbol, which must be less than `below`."""
        start = self.position
        number = self.long()
        if not 0 <= number < below:
            reason = f"the {what} number is out of range: the schema has {below}"
            raise StoppedAtError(ErrorCode.INVALID_INDEX, start, reason)
        return number

    def block(self) -> int:
        """Read the number of items in the next block; zero marks the end."""
        start = self.position
        count = self.long()
        if count >= 0:
            return count
        # the size of the block in bytes, which only readers need that skip the block
        self.long()
        if -count > _MASK >> 1:
            reason = "a block has more items than a long can count"
            raise StoppedAtError(ErrorCode.INVALID_LENGTH, start, reason)
        return -count

    def nothing(self, items: int) -> None:
        """Count items that take no bytes, and raise when there are too many."""
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
        """Leave a record, an array or a map."""
        self.level -= 1

    def finish(self) -> None:
        """Raise if bytes are left."""
        left = len(self.data) - self.position
        if left:
            reason = f"{left} bytes are left after the end of the data"
            raise StoppedAtError(ErrorCode.TRAILING_BYTES, self.position, reason)


# Readers of single Avro values, and their form in JSON texts.

Read = Callable[[Cursor], Any]

DAYS = (-719_162, 2_932_896)
"""The dates 0001-01-01 to 9999-12-31, as days since 1970: the range that every lake reader
understands."""
MICROS = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""The same range for timestamps, as microseconds since 1970."""

_FLOAT, _DOUBLE, _DURATION = struct.Struct("<f"), struct.Struct("<d"), struct.Struct("<3I")
_EXACT = Context(prec=10_000)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def read_leaf(value: AvroValue) -> Read:
    """Return a function that reads values of a type without inner values."""
    size = value.size
    raw: Read = Cursor.counted if size is None else lambda cursor: cursor.take(size)
    match value.kind:
        case AvroKind.ENUM:
            symbols, count = value.symbols, len(value.symbols)
            return lambda cursor: symbols[cursor.index(count, "symbol")]
        case AvroKind.INSTANT:
            return _instant(value.micros)
        case AvroKind.DECIMAL:
            return _decimal(value, raw)
        case AvroKind.DIGITS:
            exact = _decimal(value, raw)
            return lambda cursor: format(exact(cursor), "f")
        case AvroKind.UUID:
            return lambda cursor: str(UUID(bytes=raw(cursor)))
        case AvroKind.DURATION:
            return lambda cursor: dict(
                zip(("months", "days", "millis"), _DURATION.unpack(raw(cursor)), strict=True)
            )
    return _LEAVES.get(value.kind, raw)


def _base64(data: bytes) -> str:
    return b64encode(data).decode("ascii")


AS_JSON: dict[AvroKind, Callable[[Any], Any]] = {
    AvroKind.BYTES: _base64,
    AvroKind.FIXED: _base64,
    AvroKind.DECIMAL: "{:f}".format,
    AvroKind.DATE: date.isoformat,
    AvroKind.INSTANT: lambda micros: (
        (_EPOCH + timedelta(microseconds=micros)).isoformat().replace("+00:00", "Z")
    ),
    AvroKind.FLOAT: lambda number: json_number(number, single=True),
    AvroKind.DOUBLE: json_number,
}
"""Functions that convert values to JSON, by kind; values of other kinds need no conversion."""


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


def _decimal(value: AvroValue, raw: Read) -> Read:
    def read(cursor: Cursor) -> Decimal:
        start = cursor.position
        number = decimal_in(raw(cursor), value)
        if number is None:
            reason = f"a decimal has more than {value.precision} digits"
            raise StoppedAtError(ErrorCode.VALUE_OUT_OF_RANGE, start, reason)
        return number

    return read


_LEAVES: dict[AvroKind, Read] = {
    AvroKind.NULL: lambda cursor: None,
    AvroKind.BOOLEAN: _boolean,
    AvroKind.INT: _int,
    AvroKind.LONG: Cursor.long,
    AvroKind.FLOAT: lambda cursor: _FLOAT.unpack(cursor.take(4))[0],
    AvroKind.DOUBLE: lambda cursor: _DOUBLE.unpack(cursor.take(8))[0],
    AvroKind.STRING: Cursor.text,
    AvroKind.DATE: _date,
}


def decimal_in(data: bytes, value: AvroValue) -> Decimal | None:
    """Return the decimal stored in bytes, or None if it has more digits than its precision."""
    number = int.from_bytes(data, "big", signed=True)
    limit = 10**value.precision
    return _EXACT.scaleb(Decimal(number), -value.scale) if -limit < number < limit else None


# The plan of a schema's payloads: a record, a branch of a union, an array of rows, or one value.


@dataclass(frozen=True, slots=True)
class Payload:
    """The plan by which the bytes of a payload become rows."""

    schema: Schema
    row: AvroValue
    """A struct whose members are the columns."""
    listed: bool
    """True if the payload is an array of rows."""
    branches: tuple[str, ...] = ()
    """The record names of a union at the top, by number; the name is empty for null."""
    branch: int | None = None
    """The number before the row, for a branch of a union at the top."""
    blocks: bool = False
    """True if the payload contains arrays or maps."""

    @property
    def bytes_at_the_top(self) -> bool:
        """Return True if a payload is a single `bytes` value, of any logical type."""
        return isinstance(self.schema.top, Primitive) and self.schema.top.name == "bytes"


def plan_payload(body: bytes, message: str, *, recursion_depth: int) -> Payload:
    """Plan how payloads of a compiled schema become rows."""
    schema = open_schema(body, message)
    listed, type_ = False, schema.top
    branches = branch_records(schema) or ()
    branch = branches.index(message) if message and message in branches else None
    defined = branch is not None if branches else message == payload_name(schema)
    if not defined:
        raise DecodeError(
            "the schema does not define this message",
            where=f"message {printable(message)!r}",
            evidence=f"it defines {', '.join(filter(None, branches)) or payload_name(schema)}",
            next_step="compare the message name with the schema's text",
        )
    if branch is not None:
        record: AvroRecord | None = cast(AvroRecord, schema.named[message])
    else:
        if isinstance(type_, Array):
            listed, type_ = True, type_.items
        resolved = schema.resolve(type_)
        record = resolved if isinstance(resolved, AvroRecord) else None
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
    """Parse a compiled schema."""
    try:
        # names were checked where the schema came from, and files may have any
        return parse_avro(body.decode(), any_names=True)
    except (InvalidSchemaError, UnicodeDecodeError) as error:
        raise DecodeError(
            "the compiled schema is not usable Avro",
            where=f"message {printable(message)!r}",
            evidence=error.what if isinstance(error, InvalidSchemaError) else "not UTF-8",
            next_step="look at the schema in the registry",
        ) from error


class Reader:
    """A reader of payloads of one plan."""

    def __init__(self, payload: Payload, *, most_levels: int) -> None:
        self._payload = payload
        self._most_levels = most_levels
        self._read = Compiler(payload.schema).payload(payload)

    def rows(self, data: bytes) -> list[Any]:
        """Return the rows of one payload, or raise `StoppedAtError`; all bytes must be used."""
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
            reason = f"the payload is a {branches[number]}, not a {self._payload.row.name}"
            raise StoppedAtError(ErrorCode.PAYLOAD_MISMATCH, 0, reason)


class Compiler:
    """A compiler of plans into functions that read values."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._texts: dict[str, Read] = {}

    def payload(self, payload: Payload) -> Read:
        """Return a function that reads a whole payload after the number of its branch."""
        row = payload.row
        rows = AvroValue(AvroKind.LIST, pa.list_(row.type), item=row)
        return self.read(rows if payload.listed else row)

    def read(self, value: AvroValue, *, json_value: bool = False) -> Read:
        """Return a function that reads a value, for the lake or as part of a JSON text."""
        match value.kind:
            case AvroKind.STRUCT:
                return self._struct(value, json_value=json_value)
            case AvroKind.EMPTY:
                inner = self._struct(value, json_value=True)
                return inner if json_value else lambda cursor: json.dumps(inner(cursor))
            case AvroKind.TEXT:
                return self._text(value.name, json_value=json_value)
            case AvroKind.UNION:
                return self._union(value, json_value=json_value)
            case AvroKind.LIST | AvroKind.MAP if value.item is not None:
                item = self.read(value.item, json_value=json_value)
                return self._items(value, item, json_value=json_value)
        leaf = read_leaf(value)
        convert = AS_JSON.get(value.kind) if json_value else None
        return leaf if convert is None else lambda cursor: convert(leaf(cursor))

    def _items(self, value: AvroValue, item: Read, *, json_value: bool) -> Read:
        if value.kind is AvroKind.MAP:
            return _mapped(item, json_value=json_value)
        weightless = value.item is not None and value.item.weightless

        def read(cursor: Cursor) -> list[Any]:
            cursor.down()
            items: list[Any] = []
            while count := cursor.block():
                for _ in range(count):
                    before = cursor.position
                    items.append(item(cursor))
                    if weightless and cursor.position == before:
                        cursor.nothing(1)
            cursor.up()
            return items

        return read

    def _struct(self, value: AvroValue, *, json_value: bool) -> Read:
        members = [
            (
                member.name if member.column else "",
                member.label,
                self.read(member.value, json_value=json_value),
            )
            for member in value.members
        ]

        def read(cursor: Cursor) -> dict[str, Any]:
            cursor.down()
            contents = {}
            for name, label, read_member in members:
                try:
                    content = read_member(cursor)
                except StoppedAtError as error:
                    raise error.inside(label) from None
                if name and not (json_value and content is None):
                    contents[name] = content
            cursor.up()
            return contents

        return read

    def _text(self, name: str, *, json_value: bool) -> Read:
        def content(cursor: Cursor) -> Any:
            read = self._texts.get(name)
            if read is None:
                plan = flat_record(self._schema, cast(AvroRecord, self._schema.named[name]))
                read = self._texts[name] = self.read(plan, json_value=True)
            return read(cursor)

        if json_value:
            return content
        return lambda cursor: json.dumps(content(cursor), ensure_ascii=False, separators=(",", ":"))

    def _union(self, value: AvroValue, *, json_value: bool) -> Read:
        count = len(value.branches)
        reads = [self._branch(branch, value, json_value=json_value) for branch in value.branches]

        def read(cursor: Cursor) -> Any:
            return reads[cursor.index(count, "branch")](cursor)

        return read

    def _branch(self, branch: Branch, union: AvroValue, *, json_value: bool) -> Read:
        read = self.read(branch.value, json_value=json_value)
        if branch.value.void:
            return read
        if not union.plain:
            member = branch.member
            return lambda cursor: {member: read(cursor)}
        if union.type == pa.float64() and branch.value.kind is AvroKind.INT:
            return lambda cursor: float(read(cursor))
        return read


def _mapped(item: Read, *, json_value: bool) -> Read:
    def read(cursor: Cursor) -> Any:
        cursor.down()
        entries: dict[str, Any] = {}
        while count := cursor.block():
            for _ in range(count):
                key = cursor.text()
                # the last value wins where a key is repeated
                entries[key] = item(cursor)
        cursor.up()
        return entries if json_value else list(entries.items())

    return read


def expansion_of(payload: Payload, *, most_levels: int) -> Expansion:
    """Return the estimate of the memory that payloads of a plan need as columns."""
    row = width(payload.row.type)
    sizes = [
        (_item_width(list_value), _least_item(list_value)) for list_value in payload.row.lists()
    ]
    if payload.listed:
        sizes.append((row, _least(payload.row)))
    plain = JSON_GROWTH if _has_text(payload.row) else 1
    factor = max([plain, *(-(-size // max(1, least)) for size, least in sizes)])
    from_nothing = max([size for size, least in sizes if not least], default=0)
    # compiled at the first payload that has to be measured
    compiled = cache(lambda: _Counting(payload.schema).payload(payload))

    def measure(data: bytes, limit: int) -> int:
        cursor = _Count(data, most_levels, row + len(data), limit)
        # where this reader stops, the decoder stops too
        with suppress(StoppedAtError, _TooLargeError):
            if payload.branch is not None:
                cursor.long()
            compiled()(cursor)
        return cursor.size

    return Expansion(row + ITEMS_FROM_NOTHING * from_nothing, factor, measure)


class _TooLargeError(Exception):
    """A payload whose measured size is above the limit."""


class _Count(Cursor):
    """A cursor that also counts the bytes of columns of everything before its position."""

    __slots__ = ("_limit", "size")

    def __init__(self, data: bytes, most_levels: int, size: int, limit: int) -> None:
        super().__init__(data, most_levels)
        self.size = size
        self._limit = limit

    def item(self, size: int) -> None:
        """Count an item, and raise when the size exceeds the limit."""
        self.size += size
        if self.size > self._limit:
            raise _TooLargeError


class _Counting(Compiler):
    """A compiler of functions that count the items of payloads without keeping them."""

    def _items(self, value: AvroValue, item: Read, *, json_value: bool) -> Read:
        if json_value:
            # items inside a JSON text become characters, which the payload's length accounts for
            return super()._items(value, item, json_value=True)
        size, mapped = _item_width(value), value.kind is AvroKind.MAP

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


def _has_text(value: AvroValue) -> bool:
    return value.kind in (AvroKind.TEXT, AvroKind.EMPTY) or any(map(_has_text, value.below()))


def _item_width(value: AvroValue) -> int:
    item_bytes = width(value.item.type) if value.item is not None else 0
    return item_bytes + TEXT * (value.kind is AvroKind.MAP)


def _least_item(value: AvroValue) -> int:
    item_bytes = _least(value.item) if value.item is not None else 0
    return item_bytes + (value.kind is AvroKind.MAP)


def _least(value: AvroValue) -> int:
    """Return the fewest bytes that a value takes in a payload."""
    if value.size is not None:
        return value.size
    match value.kind:
        case AvroKind.STRUCT | AvroKind.EMPTY:
            return sum(_least(member.value) for member in value.members)
        case AvroKind.UNION:
            return 1 + min((_least(branch.value) for branch in value.branches), default=0)
        case AvroKind.NULL | AvroKind.TEXT:
            return 0
        case AvroKind.FLOAT | AvroKind.DOUBLE:
            return 4 if value.kind is AvroKind.FLOAT else 8
    return 1
