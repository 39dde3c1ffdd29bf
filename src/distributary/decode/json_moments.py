"""Dates and times of day in RFC 3339, as `format: date` and `format: date-time` mean them.

A time without an offset from UTC is not one: nobody could say which moment it is. Digits below a
microsecond are cut off, and a leap second is the first second of the next minute.
"""

from __future__ import annotations

import re
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc

from distributary.model.record import TIMESTAMP

_INSTANT = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:[Zz]|([+-])(\d\d):(\d\d))", re.ASCII
)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
# what Arrow understands in the same way
_USUAL_INSTANT = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)$"
_USUAL_DATE = r"^\d{4}-\d\d-\d\d$"
_EPOCH = date(1970, 1, 1).toordinal()
_DAY = 86_400_000_000
_FIRST_DAY, _LAST_DAY = date.min.toordinal() - _EPOCH, date.max.toordinal() - _EPOCH


def microseconds(text: str) -> int | None:
    """Microseconds since 1970; None for what is not a moment of the years 1 to 9999."""
    found = _INSTANT.fullmatch(text)
    day = days(found[1]) if found else None
    if found is None or day is None:
        return None
    hours, minutes, seconds = int(found[2]), int(found[3]), int(found[4])
    if hours > 23 or minutes > 59 or seconds > 60:
        return None
    east = 0
    if found[6]:
        if int(found[7]) > 23 or int(found[8]) > 59:
            return None
        east = (int(found[7]) * 60 + int(found[8])) * (1 if found[6] == "+" else -1)
    fraction = int((found[5] or "0")[:6].ljust(6, "0"))
    whole = ((hours * 60 + minutes - east) * 60 + seconds) * 1_000_000
    moment = day * _DAY + whole + fraction
    return moment if _FIRST_DAY * _DAY <= moment < (_LAST_DAY + 1) * _DAY else None


def days(text: str) -> int | None:
    """Days since 1970; None for what is not a day of the years 1 to 9999."""
    if not _DATE.fullmatch(text):
        return None
    try:
        return date.fromisoformat(text).toordinal() - _EPOCH
    except ValueError:
        return None


def instants(texts: pa.StringArray) -> pa.Array:
    """The same for a whole array; null where a text is no moment."""
    try:
        if pc.all(pc.match_substring_regex(texts, _USUAL_INSTANT), min_count=0).as_py():
            array = texts.cast(TIMESTAMP)
            if _within(array.cast(pa.int64()), _FIRST_DAY * _DAY, (_LAST_DAY + 1) * _DAY - 1):
                return array
    except pa.ArrowInvalid:
        pass
    moments = [None if text is None else microseconds(text) for text in texts.to_pylist()]
    return pa.array(moments, pa.int64()).cast(TIMESTAMP)


def dates(texts: pa.StringArray) -> pa.Array:
    """The same for a whole array; null where a text is no day."""
    try:
        if pc.all(pc.match_substring_regex(texts, _USUAL_DATE), min_count=0).as_py():
            array = texts.cast(pa.date32())
            if _within(array.cast(pa.int32()), _FIRST_DAY, _LAST_DAY):
                return array
    except pa.ArrowInvalid:
        pass
    found = [None if text is None else days(text) for text in texts.to_pylist()]
    return pa.array(found, pa.int32()).cast(pa.date32())


def _within(array: pa.Array, low: int, high: int) -> bool:
    ends = pc.min_max(array).as_py()
    return ends["min"] is None or (ends["min"] >= low and ends["max"] <= high)
