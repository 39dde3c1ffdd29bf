"""How much a run may take, and what it runs on."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PlainSerializer, PlainValidator, SecretStr
from pydantic_core import PydanticCustomError

from distributary.config.base import (
    Conflict,
    PositiveDuration,
    PositiveSize,
    Section,
    Text,
    either,
    format_duration,
    matching,
    nearest,
    parse_duration,
)

_OWNED = {"spark.master": "master", "spark.driver.memory": "driver_memory"}

JvmMemory = Annotated[
    Text,
    AfterValidator(str.lower),
    matching("[0-9]{1,9}[kmgt]", "memory", "must be a number and k, m, g or t, such as 4g"),
]


class Limits(Section):
    """What is refused, so that one record cannot hurt the others."""

    max_payload_bytes: PositiveSize = 16 * 1024 * 1024
    """Largest payload; larger ones are dead-lettered as PAYLOAD_TOO_LARGE."""
    max_decoded_bytes: PositiveSize = 128 * 1024 * 1024
    """Most bytes of columns that one payload may become, by an estimate before it is decoded: a
    list of empty items can become hundreds of times its size. What is above is dead-lettered as
    PAYLOAD_EXPANDS."""
    max_depth: int = Field(default=100, ge=1, le=1000)
    """Deepest nesting of messages in one payload."""
    recursion_depth: int = Field(default=3, ge=1, le=20)
    """How often a message may contain itself as columns; what lies deeper is kept as JSON text."""
    max_type_name: int = Field(default=200, ge=1, le=1000)
    """Longest name of a type, in characters; records with a longer one are dead-lettered as
    TYPE_NAME_TOO_LONG."""


class Spark(Section):
    """The Spark session."""

    master: Text = Field(default="local[*]", examples=["local[*]", "spark://host:7077"])
    """Where Spark runs."""
    remote: SecretStr | None = Field(default=None, examples=["sc://host:15002"])
    """Address of a Spark Connect server that is used in place of a session of its own; may hold a
    token, so it is never shown."""
    driver_memory: JvmMemory | None = Field(default=None, examples=["4g"])
    """Memory of the driver; a quarter of the machine's, between 1 and 4 GB, when left out."""
    conf: Mapping[str, SecretStr] = Field(
        default_factory=dict, examples=[{"spark.sql.shuffle.partitions": "8"}]
    )
    """Further Spark settings, each starting with `spark.`."""

    def conflicts(self) -> Iterator[Conflict]:
        """Only Spark's settings, and none that has a key of its own."""
        if self.remote is not None:
            if not self.remote.get_secret_value().startswith("sc://"):
                yield ("remote",), "must start with sc://"
            if self.driver_memory is not None:
                yield ("driver_memory",), "is the server's matter where spark.remote is set"
        for name in self.conf:
            if not name.startswith("spark."):
                yield ("conf", name), "must start with spark."
            elif name in _OWNED:
                yield ("conf", name), f"cannot be set here: use spark.{_OWNED[name]}"

    @property
    def options(self) -> dict[str, str]:
        """The further settings in clear; may hold secrets."""
        return {name: value.get_secret_value() for name, value in self.conf.items()}


class Run(Section):
    """How a run behaves when something fails."""

    lease: PositiveDuration = timedelta(seconds=15)
    """How long a silent owner keeps its claim on a checkpoint."""
    publish_attempts: int = Field(default=3, ge=1)
    """Attempts to commit to a table before it is parked."""
    batch_attempts: int = Field(default=3, ge=1)
    """Attempts at one batch before the run stops."""
    keep_manifests: int = Field(default=100, ge=1)
    """Manifests of past batches that are kept."""
    exchange: Literal["auto", "disk", "spark"] = "auto"
    """How records get from the tasks that sort them to those that land them: files on a `disk` that
    all workers see, or `spark`'s own shuffle; `auto` looks whether there is such a disk."""
    publish_threads: int = Field(
        default_factory=lambda: min(8, 2 * (os.cpu_count() or 1)), ge=1, le=256
    )
    """Tables committed at the same time; else two per core and at most 8, and 32 in a bucket."""


# When batches run: once over what is there, without a pause, or at an interval.

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
        if close == TriggerKind.EVERY and len(words) == 2:
            close = f"{close} {words[1]}"
        raise PydanticCustomError("trigger", _HINT, {"suggestion": close} if close else None)

    def __str__(self) -> str:
        return f"every {format_duration(self.interval)}" if self.interval else str(self.kind)


AVAILABLE_NOW = Trigger(TriggerKind.AVAILABLE_NOW)

TriggerSetting = Annotated[
    Trigger,
    PlainValidator(Trigger.parse),
    PlainSerializer(str, return_type=str),
    either(
        {"enum": ["available_now", "continuous"]},
        {"type": "string", "pattern": r"^\s*every\s+[0-9]{1,9}\s*(ms|s|m|h|d)\s*$"},
    ),
]


# What `up` does when the process of a pipeline has failed.

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
    either({"const": UNLIMITED}, {"type": "integer", "minimum": 0}),
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
