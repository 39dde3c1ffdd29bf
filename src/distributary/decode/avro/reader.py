"""The careful reader: one payload at a time, each value checked, never more than the bytes allow.

It is the judge of what a payload is: the engine's answer counts only where nothing about it is
doubtful. (`fastavro` would read as much, but it follows a block of 2 to the power of 40 items that
take no bytes, takes a negative length for "everything", and does not say at which byte it failed.)
"""

from __future__ import annotations

import json
import math
import struct
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from functools import cached_property
from typing import Any, cast
from uuid import UUID

import pyarrow as pa

from distributary.decode.avro.schema import Branch, Kind, Value, flat_record, plan_record, plan_type
from distributary.decode.base import JSON_GROWTH, TEXT, Expansion, RefusedError, width
from distributary.errors import DecodeError, ErrorCode, InvalidSchemaError
from distributary.model.names import printable
from distributary.model.table import Column, Origin
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
    match value.kind:
        case Kind.NULL:
            return lambda cursor: None
        case Kind.BOOLEAN:
            return _boolean
        case Kind.INT:
            return _int
        case Kind.LONG:
            return Cursor.long
        case Kind.FLOAT:
            return lambda cursor: _FLOAT.unpack(cursor.take(4))[0]
        case Kind.DOUBLE:
            return lambda cursor: _DOUBLE.unpack(cursor.take(8))[0]
        case Kind.STRING:
            return Cursor.text
        case Kind.ENUM:
            symbols, count = value.symbols, len(value.symbols)
            return lambda cursor: symbols[cursor.index(count, "symbol")]
        case Kind.DATE:
            return _date
        case Kind.INSTANT:
            return _instant(value.micros)
        case Kind.DECIMAL:
            return _decimal(value)
        case Kind.DIGITS:
            exact = _decimal(value)
            return lambda cursor: format(exact(cursor), "f")
    raw = _raw(value)
    match value.kind:
        case Kind.UUID:
            return lambda cursor: str(UUID(bytes=raw(cursor)))
        case Kind.DURATION:
            return lambda cursor: dict(
                zip(("months", "days", "millis"), _DURATION.unpack(raw(cursor)), strict=True)
            )
    return raw


def as_json(kind: Kind) -> Callable[[Any], Any] | None:
    """How a value of this kind becomes JSON; None when it is that already."""
    match kind:
        case Kind.BYTES | Kind.FIXED:
            return lambda data: b64encode(data).decode("ascii")
        case Kind.DECIMAL:
            return lambda number: format(number, "f")
        case Kind.DATE:
            return date.isoformat
        case Kind.INSTANT:
            return _iso
        case Kind.FLOAT:
            return lambda number: real(number, single=True)
        case Kind.DOUBLE:
            return real
    return None


def real(number: float, *, single: bool = False) -> float | str:
    """A number as JSON has it; what JSON has no number for is a text."""
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    if not single:
        return number
    # the fewest digits that give the same 32 bits: 0.1, not 0.10000000149011612
    candidates = (float(f"{number:.{digits}g}") for digits in (6, 7, 8, 9))
    return next((c for c in candidates if _same_single(c, number)), number)


def _same_single(candidate: float, number: float) -> bool:
    try:
        return bool(_FLOAT.unpack(_FLOAT.pack(candidate))[0] == number)
    except OverflowError:
        return False


def _iso(micros: int) -> str:
    return (_EPOCH + timedelta(microseconds=micros)).isoformat().replace("+00:00", "Z")


def _raw(value: Value) -> Read:
    size = value.size
    return Cursor.counted if size is None else lambda cursor: cursor.take(size)


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


def _decimal(value: Value) -> Read:
    raw = _raw(value)

    def read(cursor: Cursor) -> Decimal:
        start = cursor.position
        number = decimal_in(raw(cursor), value)
        if number is None:
            reason = f"a decimal has more than {value.precision} digits"
            raise StoppedAtError(ErrorCode.VALUE_OUT_OF_RANGE, start, reason)
        return number

    return read


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
    columns: tuple[Column, ...] = ()

    @property
    def bytes_at_the_top(self) -> bool:
        """Whether a payload is nothing but bytes, of any logical type."""
        return isinstance(self.schema.top, Primitive) and self.schema.top.name == "bytes"


def plan_payload(body: bytes, message: str, *, recursion_depth: int) -> Payload:
    """Plan the payloads of a compiled schema.

    Raises:
        DecodeError: When the schema cannot be used, or has no such message.
    """
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
        blocks=listed or _has_blocks(row),
        columns=_columns(row),
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


def _columns(row: Value) -> tuple[Column, ...]:
    return tuple(
        Column(
            m.name,
            m.value.type,
            comment="; ".join(filter(None, (f"field {m.label}", m.note))),
            aliases=m.aliases,
            origin=Origin(m.label if "." in m.label else m.name),
        )
        for m in row.shown
    )


def _has_blocks(value: Value) -> bool:
    if value.kind in (Kind.LIST, Kind.MAP):
        return True
    below = [m.value for m in value.members] + [b.value for b in value.branches]
    return any(map(_has_blocks, below))


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
