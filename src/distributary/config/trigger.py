"""When batches run: once over what is there, without a pause, or at an interval."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Annotated

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from distributary.config.near import nearest
from distributary.config.quantity import format_duration, parse_duration

_HINT = "must be available_now, continuous or `every` with a duration, such as every 10s"


class TriggerKind(StrEnum):
    """The three ways to run."""

    AVAILABLE_NOW = "available_now"
    CONTINUOUS = "continuous"
    EVERY = "every"


@dataclass(frozen=True, slots=True)
class Trigger:
    """`available_now`, `continuous` or `every 10s`; `str()` gives the text back."""

    kind: TriggerKind
    interval: timedelta | None = None
    """How far apart batches start; set for `every` only."""

    @classmethod
    def parse(cls, value: object) -> Trigger:
        """The trigger that a text names; a trigger passes."""
        if isinstance(value, Trigger):
            return value
        words = value.split(maxsplit=1) if isinstance(value, str) else []
        if words in (["available_now"], ["continuous"]):
            return cls(TriggerKind(words[0]))
        if len(words) == 2 and words[0] == TriggerKind.EVERY:
            interval = parse_duration(words[1])
            if interval > timedelta(0):
                return cls(TriggerKind.EVERY, interval)
        close = nearest(words[0], [*TriggerKind]) if words else ""
        raise PydanticCustomError("trigger", _HINT, {"suggestion": close} if close else None)

    def __str__(self) -> str:
        return f"every {format_duration(self.interval)}" if self.interval else str(self.kind)


AVAILABLE_NOW = Trigger(TriggerKind.AVAILABLE_NOW)

TriggerSetting = Annotated[
    Trigger,
    PlainValidator(Trigger.parse),
    PlainSerializer(str, return_type=str),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["available_now", "continuous"]},
                {"type": "string", "pattern": r"^\s*every\s+[0-9]{1,9}\s*(ms|s|m|h|d)\s*$"},
            ]
        }
    ),
]
