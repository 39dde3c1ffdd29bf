"""Values of Debezium's and Kafka Connect's types as the lake holds them: whole arrays at a time.

What the lake cannot hold is null in the column and given back beside it.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode import datastream_values as values
from distributary.decode.datastream_values import Mask, Read, Reading

_LONGEST_BITS = 100_000
_LONGEST_NUMBER = 60_000
"""Bytes; PostgreSQL's numbers have at most 131,072 digits before the point."""
_LARGEST_SCALE = 20_000
_EXACT = Context(prec=200_000)


def binary(array: pa.Array) -> Reading:
    """Bytes; JSON has them in base64."""
    if pa.types.is_binary(array.type):
        return Reading(array)
    found: list[bytes | None] = []
    lost: dict[int, Any] = {}
    for row, text in enumerate(array.to_pylist()):
        try:
            found.append(None if text is None else binascii.a2b_base64(text, strict_mode=True))
        except (binascii.Error, ValueError):
            found.append(None)
            lost[row] = text
    return Reading(pa.array(found, pa.binary()), lost)


def after_binary(read: Read) -> Read:
    """Reads bytes that may still be base64."""

    def reading(array: pa.Array) -> Reading:
        first = binary(array)
        second = read(first.array)
        return Reading(second.array, first.lost | second.lost)

    return reading


def cast(type_: pa.DataType) -> Read:
    """Reads values of another width."""

    def read(array: pa.Array) -> Reading:
        try:
            return Reading(array if array.type == type_ else array.cast(type_))
        except pa.ArrowInvalid:
            fits = [_fits(each, type_) for each in array.to_pylist()]
        kept = pc.if_else(pa.array(fits), array, pa.scalar(None, array.type))
        lost = {row: array[row].as_py() for row in np.flatnonzero(~np.array(fits)).tolist()}
        return Reading(kept.cast(type_), lost)

    return read


def _fits(value: Any, type_: pa.DataType) -> bool:
    try:
        pa.scalar(value).cast(type_)
    except pa.ArrowInvalid:
        return False
    return True


def scaled(read: Read, *, by: int = 1, parts: int = 1) -> Read:
    """Reads numbers of units that are so many microseconds, or of which so many are one."""

    def reading(array: pa.Array) -> Reading:
        whole = array.cast(pa.int64())
        if parts > 1:
            # of moments before 1970 as well the one below
            whole = pa.array(_floored(whole, parts), mask=_nulls(array))
        done = read(pc.multiply(whole, by) if by > 1 else whole)
        return Reading(done.array, {row: array[row].as_py() for row in done.lost})

    return reading


def _floored(array: pa.Array, parts: int) -> npt.NDArray[np.int64]:
    floored: npt.NDArray[np.int64] = array.fill_null(0).to_numpy() // parts
    return floored


def _nulls(array: pa.Array) -> Mask:
    nulls: Mask = array.is_null().to_numpy(zero_copy_only=False)
    return nulls


def instants(*, factor: int = 1, parts: int = 1) -> Read:
    """Reads moments in units of so many microseconds, or of which so many are one."""

    def read(array: pa.Array) -> Reading:
        done = scaled(values.instants(factor), parts=parts)(array)
        told = {row: values.INFINITIES.get(v * factor // parts, v) for row, v in done.lost.items()}
        return Reading(done.array, told)

    return read


def moments(read: Callable[[pa.Array], pa.Array], *, suffix: str = "") -> Read:
    """Reads texts; one that is no moment is null, and told."""

    def reading(array: pa.Array) -> Reading:
        found = read(pc.utf8_rtrim(array, suffix) if suffix else array)
        rows = np.flatnonzero(_nulls(found) & ~_nulls(array)).tolist()
        return Reading(found, {row: array[row].as_py() for row in rows})

    return reading


def without_zone(array: pa.Array) -> Reading:
    """Times of day that are said to be UTC, and are of no zone."""
    return Reading(pc.utf8_rtrim(array, "Z"))


def integer(text: str) -> int | None:
    """A whole number that a schema tells as text."""
    try:
        return int(text)
    except ValueError:
        return None


def digits(scale: int) -> Read:
    """Reads big-endian numbers of any length as text."""
    return lambda array: _numbers(array, pa.repeat(pa.scalar(scale), len(array)))


def variable(array: pa.StructArray) -> Reading:
    """Records of a scale and of a number without it."""
    scales, numbers = array.flatten()
    first = binary(numbers)
    second = _numbers(first.array, scales)
    return Reading(second.array, first.lost | second.lost)


def _numbers(array: pa.Array, scales: pa.Array) -> Reading:
    texts: list[str | None] = []
    lost: dict[int, Any] = {}
    for row, (data, scale) in enumerate(zip(array.to_pylist(), scales.to_pylist(), strict=True)):
        text = None
        if data is not None and scale is not None:
            text = _number(data, scale)
            if text is None:
                lost[row] = [scale, data.hex()]
        texts.append(text)
    return Reading(pa.array(texts, pa.string()), lost)


def _number(data: bytes, scale: int) -> str | None:
    if len(data) > _LONGEST_NUMBER or abs(scale) > _LARGEST_SCALE:
        return None
    unscaled = Decimal(int.from_bytes(data, "big", signed=True))
    return format(unscaled.scaleb(-scale, _EXACT), "f")


def bits(length: str) -> Read:
    """Bytes of which the last comes first, as 0 and 1; as many of them as the column has."""
    wanted = integer(length) or 0
    width = wanted if 0 < wanted < _LONGEST_BITS else 1

    def read(array: pa.Array) -> Reading:
        numbers = (None if b is None else int.from_bytes(b, "little") for b in array.to_pylist())
        texts = [None if number is None else f"{number:0{width}b}" for number in numbers]
        return Reading(pa.array(texts, pa.string()))

    return after_binary(read)
