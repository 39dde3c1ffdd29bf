"""When the source made a change: the ways in which Datastream writes it.

Milliseconds since 1970, or ISO 8601 with `T` or a blank, with or without seconds, fraction and
offset; without an offset it is UTC.
"""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds

from distributary.decode import json_moments
from distributary.decode.avro_values import MICROS
from distributary.decode.datastream_values import Ints, Mask

_CLOCK = r"(\d\d:\d\d)(:\d\d(?:\.\d+)?)?"
_ZONE = r"(?:[Zz]|UTC|([+-]\d\d):?(\d\d)?)?"
_MOMENT = re.compile(rf"\s*(\d{{4}}-\d\d-\d\d)[Tt ]{_CLOCK}\s*{_ZONE}\s*", re.ASCII)
_NUMBER = re.compile(r"-?\d{1,16}", re.ASCII)
# what Arrow reads in the same way, once the Z is gone
_USUAL = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,6})?Z?$"


def moment(text: str, *, unit: int = 1_000) -> int | None:
    """Microseconds since 1970; None for what is no moment of the years 1 to 9999.

    Args:
        text: A moment, or a number of units.
        unit: Microseconds of one.
    """
    found = _MOMENT.fullmatch(text)
    if found is not None:
        day, minutes, seconds, hours_east, minutes_east = found.groups()
        zone = f"{hours_east}:{minutes_east or '00'}" if hours_east else "Z"
        return json_moments.microseconds(f"{day}T{minutes}{seconds or ':00'}{zone}")
    if _NUMBER.fullmatch(text):
        micros = int(text) * unit
        return micros if MICROS[0] <= micros <= MICROS[1] else None
    return None


def moments(array: pa.Array | None, count: int, *, unit: int = 1_000) -> tuple[Ints, Mask]:
    """Microseconds since 1970 for a whole array, and where there are none."""
    if array is None:
        return np.zeros(count, np.int64), np.ones(count, np.bool_)
    if kinds.is_integer(array.type):
        numbers: Ints = array.cast(pa.int64()).fill_null(MICROS[0] - 1).to_numpy()
        bad = (numbers < MICROS[0] // unit) | (numbers > MICROS[1] // unit)
        return np.where(bad, 0, numbers) * unit, bad
    if not kinds.is_string(array.type):
        return np.zeros(count, np.int64), np.ones(count, np.bool_)
    usual = _usual(array)
    if usual is not None:
        return usual, np.zeros(count, np.bool_)
    coded = array.dictionary_encode()
    found = [moment(text, unit=unit) for text in coded.dictionary.to_pylist()]
    micros = pa.array(found, pa.int64()).take(coded.indices)
    nulls: Mask = micros.is_null().to_numpy(zero_copy_only=False)
    return micros.fill_null(0).to_numpy(), nulls


def _usual(array: pa.StringArray) -> Ints | None:
    """The moments, if all are there and written as Datastream writes them."""
    if array.null_count:
        return None
    if not pc.all(pc.match_substring_regex(array, _USUAL), min_count=0).as_py():
        return None
    try:
        found = pc.utf8_rtrim(array, "Z").cast(pa.timestamp("us")).cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid:
        return None
    inside = len(found) == 0 or (found.min() >= MICROS[0] and found.max() <= MICROS[1])
    return found if inside else None
