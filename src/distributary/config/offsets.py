"""Where a Kafka topic is first read from."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Literal

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from distributary.config.moment import MOMENT_SCHEMA, parse_moment
from distributary.config.near import nearest

PartitionOffsets = Mapping[str, Mapping[int, int]]
"""Topic, partition, offset; -2 is the earliest, -1 the latest."""
Offsets = Literal["earliest", "latest"] | datetime | PartitionOffsets

_WORDS = {"earliest": -2, "latest": -1}
_HINT = (
    "must be earliest, latest, a time such as 2026-01-31T12:00:00Z, or topic: {partition: offset}"
)


def parse_offsets(value: object) -> Offsets:
    """A word, an ISO time (UTC where it names no zone), or offsets by topic and partition."""
    match value:
        case "earliest":
            return "earliest"
        case "latest":
            return "latest"
        case str():
            return _time(value)
        case datetime():
            return parse_moment(value)
        case Mapping() if value:
            return {str(topic): _partitions(offsets) for topic, offsets in value.items()}
    raise PydanticCustomError("offsets", _HINT)


def format_offsets(value: Offsets) -> str | dict[str, dict[str, int]]:
    """The form that `parse_offsets` reads back."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, str):
        return value
    return {t: {str(p): offset for p, offset in parts.items()} for t, parts in value.items()}


def _time(text: str) -> datetime:
    try:
        return parse_moment(text)
    except PydanticCustomError:
        close = nearest(text.strip(), _WORDS)
        suggestion = {"suggestion": close} if close else None
        raise PydanticCustomError("offsets", _HINT, suggestion) from None


def _partitions(offsets: object) -> dict[int, int]:
    if not isinstance(offsets, Mapping) or not offsets:
        raise PydanticCustomError("offsets", _HINT)
    return {_number(p, at_least=0): _offset(offset) for p, offset in offsets.items()}


def _offset(value: object) -> int:
    return _WORDS[value] if isinstance(value, str) and value in _WORDS else _number(value, -2)


def _number(value: object, at_least: int) -> int:
    text = str(value).strip()
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18 and int(text) >= at_least):
        raise PydanticCustomError("offsets", _HINT)
    return int(text)


StartingOffsets = Annotated[
    Offsets,
    PlainValidator(parse_offsets),
    PlainSerializer(format_offsets, return_type=str | dict[str, dict[str, int]]),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["earliest", "latest"]},
                MOMENT_SCHEMA,
                {
                    "type": "object",
                    "minProperties": 1,
                    "additionalProperties": {
                        "type": "object",
                        "minProperties": 1,
                        "additionalProperties": {"type": ["integer", "string"]},
                    },
                },
            ]
        }
    ),
]
