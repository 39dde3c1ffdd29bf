"""The settings of limits, the Spark session, runs, triggers and restarts."""

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
    DURATION_PATTERN,
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
    """Limits on records, so that one record cannot harm the others."""

    max_payload_bytes: PositiveSize = 16 * 1024 * 1024
    """Largest payload in bytes. Records with a larger one are dead-lettered as
    PAYLOAD_TOO_LARGE."""
    max_decoded_bytes: PositiveSize = 128 * 1024 * 1024
    """The largest number of bytes of columns that one payload may become, estimated before it is
    decoded: a list of empty items can grow to hundreds of times its size. Larger payloads are
    dead-lettered as PAYLOAD_EXPANDS."""
    max_depth: int = Field(default=100, ge=1, le=1000)
    """The deepest nesting of messages in one payload."""
    recursion_depth: int = Field(default=3, ge=1, le=20)
    """How many levels of a message that contains itself become columns. Deeper levels are kept as
    JSON text."""
    max_type_name: int = Field(default=200, ge=1, le=1000)
    """The longest name of a type, in characters. Records with a longer one are dead-lettered as
    TYPE_NAME_TOO_LONG."""


class Spark(Section):
    """The Spark session."""

    master: Text = Field(default="local[*]", examples=["local[*]", "spark://host:7077"])
    """Spark master to connect to."""
    remote: SecretStr | None = Field(default=None, examples=["sc://host:15002"])
    """Address of a Spark Connect server, used instead of a session of the pipeline's own. It may
    hold a token."""
    driver_memory: JvmMemory | None = Field(default=None, examples=["4g"])
    """Memory of the driver; a quarter of the machine's memory, between 1 and 4 GB, when left
    out."""
    conf: Mapping[str, SecretStr] = Field(
        default_factory=dict, examples=[{"spark.sql.shuffle.partitions": "8"}]
    )
    """Further Spark settings, each with the prefix `spark.`."""
    environment: Literal["auto", "archive", "workers"] = "auto"
    """Where executors get their Python packages. archive: the run packs those of its own
    environment once, and sends them; workers: they are installed there; auto: archive for
    `spark://` and `yarn`, unless `PYSPARK_PYTHON` names the Python of the workers."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield settings that do not belong to Spark, or that have a key of their own."""
        if self.remote is not None:
            if not self.remote.get_secret_value().startswith("sc://"):
                yield ("remote",), "must start with sc://"
            if self.driver_memory is not None:
                yield ("driver_memory",), "has no effect with spark.remote: the server sets it"
        for name in self.conf:
            if not name.startswith("spark."):
                yield ("conf", name), "must start with spark."
            elif name in _OWNED:
                yield ("conf", name), f"cannot be set here: use spark.{_OWNED[name]}"

    @property
    def options(self) -> dict[str, str]:
        """Return the further settings in clear; they may hold secrets."""
        return {name: value.get_secret_value() for name, value in self.conf.items()}


class Run(Section):
    """Retries, leases and parallelism of a run."""

    lease: PositiveDuration = timedelta(seconds=15)
    """How long a process that does not respond keeps its claim on the checkpoint."""
    publish_attempts: int = Field(default=3, ge=1)
    """Number of attempts to commit to a table before its batches are parked."""
    batch_attempts: int = Field(default=3, ge=1)
    """Number of attempts at one batch before the run stops."""
    keep_manifests: int = Field(default=100, ge=1)
    """Number of manifests of past batches to keep."""
    exchange: Literal["auto", "disk", "spark"] = "auto"
    """How records get from the tasks that sort them to the tasks that write them. disk: files on a
    disk that all workers see; spark: Spark's shuffle; auto: disk if the workers share one, else
    spark."""
    publish_threads: int = Field(
        default_factory=lambda: min(8, 2 * (os.cpu_count() or 1)), ge=1, le=256
    )
    """Number of tables to commit to at the same time. When left out: two per core and at most 8,
    and 32 in a bucket."""


# Triggers: process the available records once, without pauses, at an interval, or as late as a
# freshness allows.

_HINT = (
    "must be available_now, continuous, `every` with a duration, such as every 10s, or "
    "{freshness: 30s}"
)


class TriggerKind(StrEnum):
    """The kinds of triggers."""

    AVAILABLE_NOW = "available_now"
    CONTINUOUS = "continuous"
    EVERY = "every"
    FRESHNESS = "freshness"


@dataclass(frozen=True, slots=True)
class Trigger:
    """A trigger; `str()` returns such as `continuous`, `every 10s` or `freshness 30s`."""

    kind: TriggerKind
    interval: timedelta | None = None
    """Time between the starts of two batches; set for `every` only."""
    freshness: timedelta | None = None
    """Time from the arrival of a record until it can be read; set for `freshness` only."""

    @classmethod
    def parse(cls, value: object) -> Trigger:
        """Parse the text of a trigger; return a trigger unchanged."""
        if isinstance(value, Trigger):
            return value
        if isinstance(value, Mapping) and list(value) == [TriggerKind.FRESHNESS]:
            value = f"{TriggerKind.FRESHNESS} {value[TriggerKind.FRESHNESS]}"
        words = value.split(maxsplit=1) if isinstance(value, str) else []
        if words in (["available_now"], ["continuous"]):
            return cls(TriggerKind(words[0]))
        timed = (TriggerKind.EVERY, TriggerKind.FRESHNESS)
        if len(words) == 2 and words[0] in timed:
            time = parse_duration(words[1])
            if time > timedelta(0) and words[0] == TriggerKind.EVERY:
                return cls(TriggerKind.EVERY, interval=time)
            if time > timedelta(0):
                return cls(TriggerKind.FRESHNESS, freshness=time)
        close = nearest(words[0], [*TriggerKind]) if words else ""
        if close in timed and len(words) == 2:
            close = f"{close} {words[1]}"
        raise PydanticCustomError("trigger", _HINT, {"suggestion": close} if close else None)

    def __str__(self) -> str:
        time = self.interval or self.freshness
        return f"{self.kind} {format_duration(time)}" if time else str(self.kind)


AVAILABLE_NOW = Trigger(TriggerKind.AVAILABLE_NOW)

TriggerSetting = Annotated[
    Trigger,
    PlainValidator(Trigger.parse),
    PlainSerializer(str, return_type=str),
    either(
        {"enum": ["available_now", "continuous"]},
        {"type": "string", "pattern": r"^\s*(every|freshness)\s+[0-9]{1,9}\s*(ms|s|m|h|d)\s*$"},
        {
            "type": "object",
            "properties": {"freshness": {"type": "string", "pattern": DURATION_PATTERN}},
            "required": ["freshness"],
            "additionalProperties": False,
        },
    ),
]


# Restarts by `up` after the process of a pipeline failed.

UNLIMITED: Literal["unlimited"] = "unlimited"
_COUNT = re.compile(r"[0-9]{1,9}")


def _limit(value: object) -> Literal["unlimited"] | int:
    # variables of the environment are always text
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
    """When `up` restarts a pipeline after a failure."""

    max: Limit = Field(default=UNLIMITED, examples=["unlimited", 20])
    """Number of consecutive restarts before the pipeline counts as failed for good; 0 for none."""
    max_crashes: Limit = Field(default=10, examples=[10, "unlimited"])
    """Number of consecutive restarts after crashes and defects, failures that are not known to be
    temporary."""
    initial: PositiveDuration = timedelta(seconds=1)
    """Pause before the first restart. It doubles with each consecutive restart, with some
    jitter."""
    longest: PositiveDuration = timedelta(minutes=5)
    """The longest pause between two restarts."""
    reset_after: PositiveDuration = timedelta(minutes=10)
    """A process that ran for this long counts as healthy: a later failure is counted as the first
    one."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a longest pause that is shorter than the first one."""
        if self.longest < self.initial:
            yield ("longest",), "must not be shorter than initial"
