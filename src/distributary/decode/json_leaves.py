"""Single JSON values on their way into a column: as the column stores them, or refused."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa

from distributary.decode import json_moments as moments
from distributary.decode.json_shape import Kind, Value
from distributary.decode.json_text import render
from distributary.errors import ErrorCode

Add = Callable[[Any], None]
_INT64_LEAST, _INT64_MOST = -(2**63), 2**63 - 1
_STORAGE = {Kind.INSTANT: pa.int64(), Kind.DATE: pa.int32()}


class UnfitValueError(Exception):
    """A value has no place in its column; `code` says why."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def mismatch(label: str, wanted: str) -> UnfitValueError:
    """A value that is not what its column was made for."""
    return UnfitValueError(ErrorCode.PAYLOAD_MISMATCH, f"{label or '/'} is not {wanted}")


def kind_of(content: Any) -> str:
    """What JSON calls a parsed value."""
    kinds = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return kinds.get(type(content), "number")


def storage_of(value: Value) -> pa.DataType:
    """The type of what an adder adds."""
    return _STORAGE.get(value.kind, value.type)


def adder_of(value: Value, values: list[Any], label: str) -> Add:
    """A function that appends one value; null stays null."""
    append = values.append
    simple = _SIMPLE.get(value.kind)
    if simple is not None:
        return _of_type(*simple, append, label)
    convert = _CONVERSIONS.get(value.kind) or _decimal(value.type.precision)

    def add(content: Any) -> None:
        append(None if content is None else convert(content, label))

    return add


def _of_type(type_: type, wanted: str, append: Add, label: str) -> Add:
    def add(content: Any) -> None:
        if content is not None and type(content) is not type_:
            raise mismatch(label, wanted)
        append(content)

    return add


def _whole(content: Any, label: str) -> int:
    if type(content) is int:
        return content
    if type(content) in (float, Decimal) and content == int(content):
        return int(content)
    raise mismatch(label, "an integer")


def _integer(content: Any, label: str) -> int:
    number = content if type(content) is int else _whole(content, label)
    if _INT64_LEAST <= number <= _INT64_MOST:
        return number
    reason = f"{label} is an integer of more than 64 bits"
    raise UnfitValueError(ErrorCode.VALUE_OUT_OF_RANGE, reason)


def _decimal(digits: int) -> Callable[[Any, str], Decimal]:
    def convert(content: Any, label: str) -> Decimal:
        number = _whole(content, label)
        if abs(number) < 10**digits:
            return Decimal(number)
        reason = f"{label} is an integer of more than {digits} digits"
        raise UnfitValueError(ErrorCode.VALUE_OUT_OF_RANGE, reason)

    return convert


def _digits(content: Any, label: str) -> str:
    return str(_whole(content, label))


def _number(content: Any, label: str) -> float:
    if type(content) is float:
        return content
    if type(content) not in (int, Decimal):
        raise mismatch(label, "a number")
    try:
        return float(content)
    except OverflowError:
        reason = f"{label} is beyond what a double can hold"
        raise UnfitValueError(ErrorCode.VALUE_OUT_OF_RANGE, reason) from None


def _instant(content: Any, label: str) -> int:
    moment = moments.microseconds(content) if type(content) is str else None
    if moment is None:
        raise mismatch(label, "a date-time with an offset from UTC, of the years 1 to 9999")
    return moment


def _date(content: Any, label: str) -> int:
    day = moments.days(content) if type(content) is str else None
    if day is None:
        raise mismatch(label, "a date of the years 1 to 9999")
    return day


def _text(content: Any, label: str) -> str:
    return render(content)


def _nothing(content: Any, label: str) -> None:
    raise mismatch(label, "null")


_SIMPLE: dict[Kind, tuple[type, str]] = {
    Kind.BOOLEAN: (bool, "a boolean"),
    Kind.STRING: (str, "a string"),
}
_CONVERSIONS: dict[Kind, Callable[[Any, str], Any]] = {
    Kind.INTEGER: _integer,
    Kind.DIGITS: _digits,
    Kind.NUMBER: _number,
    Kind.INSTANT: _instant,
    Kind.DATE: _date,
    Kind.TEXT: _text,
    Kind.VOID: _nothing,
}
