"""What `up` does when the process of a pipeline has failed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from distributary.config.base import Conflict, Section
from distributary.config.quantity import PositiveDuration

UNLIMITED: Literal["unlimited"] = "unlimited"
_COUNT = re.compile(r"[0-9]{1,9}")


def _limit(value: object) -> Literal["unlimited"] | int:
    # a variable is always text
    text = str(value).strip() if isinstance(value, str | int) else ""
    if text == UNLIMITED:
        return UNLIMITED
    if isinstance(value, bool) or not _COUNT.fullmatch(text):
        raise PydanticCustomError("limit", "must be unlimited, or a number from 0 on")
    return int(text)


Limit = Annotated[
    Literal["unlimited"] | int,
    PlainValidator(_limit),
    WithJsonSchema({"anyOf": [{"const": UNLIMITED}, {"type": "integer", "minimum": 0}]}),
]


class Restart(Section):
    """When a pipeline under `up` is started again after a failure."""

    max: Limit = Field(default=UNLIMITED, examples=["unlimited", 20])
    """Restarts in a row before the pipeline counts as failed for good; 0 for none."""
    max_crashes: Limit = Field(default=10, examples=[10, "unlimited"])
    """The same where the failure does not say that it may pass: a crash, a defect."""
    initial: PositiveDuration = timedelta(seconds=1)
    """Pause before the first restart; it doubles with each one in a row, and varies."""
    longest: PositiveDuration = timedelta(minutes=5)
    """Longest pause."""
    reset_after: PositiveDuration = timedelta(minutes=10)
    """A process that ran so long was well: a failure after that is the first one again."""

    def conflicts(self) -> Iterator[Conflict]:
        """Pauses that would get shorter."""
        if self.longest < self.initial:
            yield ("longest",), "must not be shorter than initial"
