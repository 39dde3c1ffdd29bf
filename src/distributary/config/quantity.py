"""Durations, sizes and shares as people write them: `10s`, `500ms`, `16MiB`, `1%`."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated

from annotated_types import Gt
from pydantic import PlainSerializer, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

_MILLISECONDS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_BYTES = {
    "": 1,
    "b": 1,
    "kb": 1_000,
    "mb": 1_000_000,
    "gb": 1_000_000_000,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
}
# nine digits of days are the most that a timedelta holds
_DURATION = re.compile(r"([0-9]{1,9})\s*(ms|s|m|h|d)")
_SIZE = re.compile(r"([0-9]{1,15})\s*([kmg]?i?b|)", re.IGNORECASE)

_SHARE = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,9})?)\s*(%?)")

_DURATION_HINT = "must be a number and a unit, such as 500ms, 10s, 1m, 2h or 7d"
_SIZE_HINT = "must be a number of bytes, or a number and a unit such as 64KiB, 16MiB or 1GB"
_SHARE_HINT = "must be a share such as 1% or 0.01: more than nothing, and 100% at most"


def parse_duration(value: object) -> timedelta:
    """`10s` to a timedelta; a timedelta of whole milliseconds passes."""
    if isinstance(value, timedelta) and value >= timedelta(0) and not value.microseconds % 1000:
        return value
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise PydanticCustomError("duration", _DURATION_HINT)
    milliseconds = int(match[1]) * _MILLISECONDS[match[2]]
    # whole seconds and the rest apart: one float of milliseconds would lose digits
    return timedelta(seconds=milliseconds // 1000, milliseconds=milliseconds % 1000)


def format_duration(value: timedelta) -> str:
    """The shortest text that `parse_duration` reads back as the same duration."""
    milliseconds = value // timedelta(milliseconds=1)
    if not milliseconds:
        return "0s"
    unit = next(u for u in reversed(_MILLISECONDS) if not milliseconds % _MILLISECONDS[u])
    return f"{milliseconds // _MILLISECONDS[unit]}{unit}"


def parse_size(value: object) -> int:
    """`16MiB` or a plain number to bytes."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or match[2].lower() not in _BYTES:
        raise PydanticCustomError("size", _SIZE_HINT)
    return int(match[1]) * _BYTES[match[2].lower()]


def format_size(value: int) -> str:
    """In the largest binary unit that divides it, else in bytes."""
    for unit in ("GiB", "MiB", "KiB"):
        if value and not value % _BYTES[unit.lower()]:
            return f"{value // _BYTES[unit.lower()]}{unit}"
    return str(value)


def parse_share(value: object) -> float:
    """`1%` or `0.01` to a fraction of one."""
    text = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    match = _SHARE.fullmatch(text.strip()) if isinstance(text, str) else None
    share = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if not 0 < share <= 1:
        raise PydanticCustomError("share", _SHARE_HINT)
    return share


Duration = Annotated[
    timedelta,
    PlainValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema({"type": "string", "pattern": rf"^\s*{_DURATION.pattern}\s*$"}),
]
PositiveDuration = Annotated[Duration, Gt(timedelta(0))]

Size = Annotated[
    int,
    PlainValidator(parse_size),
    PlainSerializer(format_size, return_type=str),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 0},
                {"type": "string", "pattern": r"^\s*[0-9]{1,15}\s*([kmgKMG]?[iI]?[bB])?\s*$"},
            ]
        }
    ),
]
PositiveSize = Annotated[Size, Gt(0)]

Share = Annotated[
    float,
    PlainValidator(parse_share),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
                {"type": "string", "pattern": rf"^\s*{_SHARE.pattern}\s*$"},
            ]
        }
    ),
]
