"""Single values of Avro as the lake holds them, and as JSON shows them."""

from __future__ import annotations

import math
import struct
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any
from uuid import UUID

from distributary.decode.avro_shape import Kind, Value
from distributary.decode.avro_wire import Cursor, StoppedAtError
from distributary.errors import ErrorCode

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
