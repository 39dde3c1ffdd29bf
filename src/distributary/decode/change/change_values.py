"""Converts values of Datastream's own types, whole arrays at a time.

What the lake cannot hold, such as PostgreSQL's infinity, is null in the column and given back
beside it, so that it can be kept with the event.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.avro.fast_decoder import decimals_from_bytes
from distributary.decode.avro.reader import DAYS, MICROS, decimal_in
from distributary.decode.avro.schema import decimal
from distributary.decode.base import Mask, Positions, RefusedError, nulls, owners, where
from distributary.decode.json.json_text import parse
from distributary.evolve.types import compact, with_values
from distributary.evolve.unified import json_texts
from distributary.model.record import TIMESTAMP
from distributary.registry.compile.avro_schema import MAX_DIGITS

DAY = 86_400_000_000
"""Microseconds."""
INFINITIES = {9_223_372_036_825_200_000: "infinity", -9_223_372_036_832_400_000: "-infinity"}
"""The numbers that Datastream writes for PostgreSQL's times `infinity` and `-infinity`."""
_HOUR = 3_600_000_000


@dataclass(frozen=True, slots=True)
class ValueReading:
    """A column, and the values that it cannot hold."""

    array: pa.Array
    lost: dict[int, Any] = field(default_factory=dict)
    """The original value, fit for JSON, by row."""
    offsets: dict[int, int] = field(default_factory=dict)
    """The offset of a time's clock from UTC in milliseconds, by row; positive in the east."""


Read = Callable[[pa.Array], ValueReading]


def same(array: pa.Array) -> ValueReading:
    """Return values that the lake holds unchanged."""
    return ValueReading(array)


def one_by_one(
    array: pa.Array,
    read: Callable[[Any], Any],
    type_: pa.DataType,
    rescue: Callable[[Any], Any] = lambda value: value,
) -> ValueReading:
    """Read values one by one; a value that cannot be read is kept as a rescued value."""
    found: list[Any] = []
    lost: dict[int, Any] = {}
    for row, value in enumerate(array.to_pylist()):
        try:
            found.append(None if value is None else read(value))
        except (ValueError, TypeError, OverflowError):
            found.append(None)
        if found[row] is None and value is not None:
            lost[row] = rescue(value)
    return ValueReading(pa.array(found, type_), lost)


def dates(array: pa.Array) -> ValueReading:
    """Convert days since 1970 to dates."""
    return _kept(array, pa.date32(), np.int32, DAYS)


def instants(factor: int) -> Read:
    """Convert numbers of units since 1970 to timestamps."""
    ends = MICROS[0] // factor, MICROS[1] // factor
    return lambda array: _kept(array, TIMESTAMP, np.int64, ends, factor)


def datetimes(array: pa.StructArray) -> ValueReading:
    """Convert records of a day and of microseconds after midnight to timestamps."""
    days, times = (_longs(child) for child in array.flatten())
    fine = _between(days, *DAYS) & _between(times, 0, DAY)
    moments = np.where(fine, days, 0) * DAY + np.where(fine, times, 0)
    fine &= _between(moments, *MICROS)
    return _fine(array, moments, TIMESTAMP, fine)


def zoned_instants(array: pa.StructArray) -> ValueReading:
    """Convert records of a time in microseconds and of a zone's offset in milliseconds."""
    moment, offset = array.flatten()
    reading, east = instants(1)(moment), _longs(offset)
    return replace(reading, offsets={row: int(east[row]) for row in where(east != 0)})


def times(factor: int) -> Read:
    """Format times of day in units of so many microseconds, as `HH:MM:SS.ffffff`."""

    def read(array: pa.Array) -> ValueReading:
        ticks = _longs(array)
        # 24:00 is allowed as the end of a day
        fine = _between(ticks, 0, DAY // factor)
        return _without(_clock(array, np.where(fine, ticks, 0) * factor), fine, array)

    return read


def spans(array: pa.Array) -> ValueReading:
    """Convert microseconds between two times of day to `[-]HH:MM:SS.ffffff`."""
    ticks = _longs(array)
    # the lowest number has no counterpart above zero
    fine = ticks > np.iinfo(np.int64).min
    return _without(_clock(array, np.where(fine, ticks, 0)), fine, array)


def zoned_times(array: pa.StructArray) -> ValueReading:
    """Format records of microseconds after midnight and of an offset in milliseconds."""
    time, offset = array.flatten()
    ticks, minutes = _longs(time), _longs(offset) // 60_000
    fine = _between(ticks, 0, DAY) & _between(minutes, -1439, 1439)
    clock = _clock(time, np.where(fine, ticks, 0))
    east = np.where(fine, minutes, 0)
    sign = pc.if_else(pa.array(east < 0), "-", "+")
    hours, minutes = (_two_digits(each) for each in divmod(np.abs(east), 60))
    zone = _joined(sign, hours, ":", minutes)
    return _without(_joined(clock, pc.if_else(offset.is_valid(), zone, "")), fine, array)


def intervals(array: pa.StructArray) -> ValueReading:
    """Format records of months, hours and microseconds as durations: `P14MT3H0.5S`."""
    months, hours, micros = (child.to_pylist() for child in array.flatten())
    parts = zip(array.is_valid().to_pylist(), months, hours, micros, strict=True)
    texts = [_duration(m or 0, h or 0, u or 0) if valid else None for valid, m, h, u in parts]
    return ValueReading(pa.array(texts, pa.string()))


def member(index: int) -> Read:
    """Return the field of records that has the value."""
    return lambda array: ValueReading(array.flatten()[index])


def calendar_dates(array: pa.StructArray) -> ValueReading:
    """Convert records of a year, a month and a day."""
    return one_by_one(
        array, lambda day: date(*day.values()), pa.date32(), lambda day: list(day.values())
    )


def decimals(precision: int, scale: int) -> Read:
    """Convert big-endian numbers to decimals, or to text if they have too many digits."""
    plan = decimal(precision, scale, None)

    def digits(data: bytes) -> str | None:
        number = decimal_in(data, plan)
        return None if number is None else format(number, "f")

    if plan.type == pa.string():
        return lambda array: one_by_one(array, digits, pa.string(), lambda d: _number(d, scale))

    def read(array: pa.Array) -> ValueReading:
        found, doubtful = decimals_from_bytes(array, plan.type)
        if doubtful is None:
            return ValueReading(found)
        reading = _without(found, ~doubtful, array)
        exact = {row: _number(array[row].as_py(), scale) for row in reading.lost}
        return ValueReading(reading.array, exact)

    return read


def _number(data: bytes, scale: int) -> str:
    """Return a number of any length as text; the bytes alone would be unreadable."""
    number = decimal_in(data, decimal(MAX_DIGITS, scale, None))
    return f"0x{data.hex()}" if number is None else format(number, "f")


def _duration(months: int, hours: int, micros: int) -> str:
    seconds, fraction = divmod(abs(micros), 1_000_000)
    sign = "-" if micros < 0 else ""
    after = f".{fraction:06}".rstrip("0") if fraction else ""
    clock = (f"{hours}H" if hours else "") + (f"{sign}{seconds}{after}S" if micros else "")
    text = (f"{months}M" if months else "") + (f"T{clock}" if clock else "")
    return f"P{text}" if text else "PT0S"


def _longs(array: pa.Array) -> Positions:
    """Return the numbers of an array; 0 for null."""
    whole = array if array.type == pa.int64() else array.cast(pa.int64())
    filled: Positions = (whole.fill_null(0) if whole.null_count else whole).to_numpy()
    return filled


def _between(values: Positions, low: int, high: int) -> Mask:
    return (values >= low) & (values <= high)


def _kept(
    array: pa.Array,
    type_: pa.DataType,
    width: type[np.integer[Any]],
    ends: tuple[int, int],
    factor: int = 1,
) -> ValueReading:
    """Convert numbers to a type; numbers outside of its range are null, and kept apart."""
    values = _longs(array)
    fine = _between(values, *ends)
    if not fine.all():
        values = np.where(fine, values, 0)
    return _fine(array, (values * factor).astype(width, copy=False), type_, fine)


def _fine(
    raw: pa.Array, values: npt.NDArray[np.integer[Any]], type_: pa.DataType, fine: Mask
) -> ValueReading:
    mask = nulls(raw) if raw.null_count else None
    return _without(pa.array(values, mask=mask).view(type_), fine, raw)


def _without(array: pa.Array, fine: Mask, raw: pa.Array) -> ValueReading:
    """Return an array with null for invalid values, and the raw values of these."""
    if fine.all():
        return ValueReading(array)
    bad = ~fine & ~nulls(raw)
    lost = {row: _plain_value(raw[row].as_py()) for row in where(bad)}
    return ValueReading(pc.if_else(pa.array(bad), pa.scalar(None, array.type), array), lost)


def _plain_value(value: Any) -> Any:
    if isinstance(value, dict):
        return [_plain_value(each) for each in value.values()]
    return INFINITIES.get(value, value) if isinstance(value, int) else value


def _clock(like: pa.Array, micros: Positions) -> pa.Array:
    """Format microseconds as hours, minutes and seconds; null for null."""
    whole = np.abs(micros)
    below = pa.array(whole % _HOUR).cast(pa.time64("us")).cast(pa.string())
    text = _joined(
        pc.if_else(pa.array(micros < 0), "-", ""),
        _two_digits(whole // _HOUR),
        pc.utf8_slice_codeunits(below, 2),
    )
    return pc.if_else(like.is_valid(), text, pa.scalar(None, pa.string()))


def _two_digits(values: Positions) -> pa.Array:
    return pc.utf8_lpad(pa.array(values).cast(pa.string()), 2, "0")


def _joined(*parts: Any) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")


# Datastream writes arrays of PostgreSQL as records in records. A level is `{nestedArray,
# elementValue}`: either the items of one more dimension or one element.

MAX_DIMENSIONS = 6
"""As many as PostgreSQL has."""
TOO_DEEP = object()
"""Stands for an array of more dimensions, which cannot be read."""

MAX_DEPTH = 100


def arrays(read: Read, *, is_json: bool) -> Read:
    """Reads arrays whose elements are read so; elements may be JSON themselves."""

    def elements(array: pa.Array) -> pa.Array:
        reading = read(array)
        texts = _as_json(reading.array) if is_json else json_texts(reading.array)
        if not reading.lost:
            return texts
        lost = {row: json.dumps(value) for row, value in reading.lost.items()}
        found = [lost.get(row, text) for row, text in enumerate(texts.to_pylist())]
        return pa.array(found, pa.string())

    def levels(array: pa.StructArray, left: int) -> tuple[pa.Array, list[int]]:
        """Return the texts, and a mask of the arrays with too many dimensions."""
        lists, element = array.field(0), array.field(1)
        if not left:
            return elements(element), where(~nulls(lists))
        lists = compact(lists)
        inner, below = pa.array([], pa.string()), list[int]()
        # most levels are empty
        if len(lists.values):
            inner, below = levels(lists.values, left - 1)
        items = pc.fill_null(inner, "null")
        joined = pc.binary_join(with_values(lists, pa.list_(pa.string()), items), ",")
        texts = _joined("[", joined, "]")
        return pc.coalesce(texts, elements(element)), owners(lists.offsets.to_numpy(), below)

    def read_all(array: pa.StructArray) -> ValueReading:
        texts, deep = levels(array, MAX_DIMENSIONS)
        texts = pc.fill_null(texts, "null")
        texts = pc.if_else(array.is_valid(), texts, pa.scalar(None, pa.string()))
        return ValueReading(texts, dict.fromkeys(deep, TOO_DEEP))

    return read_all


def _as_json(texts: pa.Array) -> pa.Array:
    """Return JSON texts unchanged, and all others as JSON strings."""

    def checked(text: str) -> str:
        try:
            parse(text.encode(), max_depth=MAX_DEPTH)
        except RefusedError:
            return json.dumps(text, ensure_ascii=False)
        return text

    return pa.array([None if t is None else checked(t) for t in texts.to_pylist()], pa.string())
