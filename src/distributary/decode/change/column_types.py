"""Types of columns that writers of change events give in words, and how their values are read.

A word is `bool`, `int64`, `uint64`, `float64`, `decimal(p,s)`, `date`, `timestamp`, `text`, or
`latin1` and `hex` for bytes that are written as text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

import pyarrow as pa

from distributary.decode.json.json_text import render
from distributary.model.record import TIMESTAMP

MOST_DIGITS = 38
_DECIMAL = re.compile(r"decimal\((\d{1,2}),(\d{1,2})\)", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d{1,40}(\.0+)?", re.ASCII)
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_MOMENT = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?\s*(Z|[+-]\d\d:?\d\d)?", re.ASCII
)
_TRUTHS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A type of the lake, and the function that reads one value of it."""

    type: pa.DataType
    read: Callable[[Any], Any]
    """Reads a value of JSON. Raises ValueError for a value that the type cannot hold."""
    note: str = ""

    def array(self, values: Sequence[Any]) -> tuple[pa.Array, dict[int, Any]]:
        """Return values as a column, and the values that it cannot hold, by row."""
        lost: dict[int, Any] = {}
        read: list[Any] = []
        for row, value in enumerate(values):
            try:
                read.append(None if value is None else self.read(value))
            except (ValueError, TypeError, OverflowError, InvalidOperation):
                read.append(None)
                lost[row] = value
        return pa.array(read, self.type), lost


def column_type(word: str) -> ColumnType:
    """Return the type for a word; ValueError for an unknown one."""
    if match := _DECIMAL.fullmatch(word):
        precision, scale = map(int, match.groups())
        if 1 <= precision <= MOST_DIGITS and scale <= precision:
            return ColumnType(pa.decimal128(precision, scale), _decimals(precision, scale))
        return ColumnType(pa.string(), text, f"{word} as text")
    if word not in _TYPES:
        raise ValueError(word)
    return _TYPES[word]


def text(value: Any) -> str:
    """Return a value as text; what is no text, as JSON."""
    written = value if isinstance(value, str) else render(value)
    return written.encode("utf-8", "replace").decode()


def moment_us(value: Any) -> int:
    """Read a date and a time of day as microseconds since 1970; without a zone it is UTC."""
    match = _MOMENT.fullmatch(str(value).strip())
    if match is None:
        raise ValueError(value)
    day, clock, fraction, zone = match.groups()
    zone = "+00:00" if zone in (None, "Z") else zone
    moment = datetime.fromisoformat(f"{day}T{clock}{zone}")
    micros = int((fraction or "0").ljust(6, "0")[:6])
    since = moment - _BEGINNING
    return (since.days * 86_400 + since.seconds) * 1_000_000 + micros


def _bool(value: Any) -> bool:
    return _TRUTHS[str(value).lower()] if str(value).lower() in _TRUTHS else _refuse(value)


def _refuse(value: Any) -> NoReturn:
    raise ValueError(value)


def _integers(low: int, high: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        written = str(int(value)) if isinstance(value, bool) else str(value)
        if not _INTEGER.fullmatch(written):
            raise ValueError(value)
        number = int(written.partition(".")[0])
        return number if low <= number <= high else _refuse(value)

    return read


def _float(value: Any) -> float:
    number = float(value)
    return number if math.isfinite(number) or isinstance(value, str) else _refuse(value)


def _decimals(precision: int, scale: int) -> Callable[[Any], Decimal]:
    def read(value: Any) -> Decimal:
        number = Decimal(str(value))
        if not number.is_finite():
            raise ValueError(value)
        sign, digits, exponent = number.normalize().as_tuple()
        del sign
        after = max(0, -int(exponent))
        before = max(0, len(digits) + int(exponent))
        return number if after <= scale and before <= precision - scale else _refuse(value)

    return read


def _date(value: Any) -> date:
    return date.fromisoformat(value) if _DAY.fullmatch(str(value)) else _refuse(value)


def _latin1(value: Any) -> bytes:
    return value.encode("latin-1") if isinstance(value, str) else _refuse(value)


def _hex(value: Any) -> bytes:
    return bytes.fromhex(value) if isinstance(value, str) else _refuse(value)


_TYPES = {
    "bool": ColumnType(pa.bool_(), _bool),
    "int64": ColumnType(pa.int64(), _integers(-(2**63), 2**63 - 1)),
    "uint64": ColumnType(pa.decimal128(20, 0), _integers(0, 2**64 - 1)),
    "float64": ColumnType(pa.float64(), _float),
    "date": ColumnType(pa.date32(), _date),
    "timestamp": ColumnType(TIMESTAMP, moment_us, "without a zone it is said to be UTC"),
    "text": ColumnType(pa.string(), text),
    "latin1": ColumnType(pa.binary(), _latin1),
    "hex": ColumnType(pa.binary(), _hex),
}
