"""How much a run may take, and what it runs on."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr
from pydantic_core import PydanticCustomError

from distributary.config.base import Conflict, Section
from distributary.config.quantity import PositiveDuration, PositiveSize
from distributary.config.text import Text

_MEMORY = re.compile(r"[0-9]{1,9}[kmgtKMGT]")
_OWNED = {"spark.master": "master", "spark.driver.memory": "driver_memory"}


def _memory(value: str) -> str:
    if not _MEMORY.fullmatch(value):
        raise PydanticCustomError("memory", "must be a number and k, m, g or t, such as 4g")
    return value.lower()


def _threads() -> int:
    return min(8, 2 * (os.cpu_count() or 1))


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
    """Longest name of a type, in characters."""


class Spark(Section):
    """The Spark session."""

    master: Text = Field(default="local[*]", examples=["local[*]", "spark://host:7077"])
    """Where Spark runs."""
    driver_memory: Annotated[Text, AfterValidator(_memory)] | None = Field(
        default=None, examples=["4g"]
    )
    """Memory of the driver; Spark's own default when left out."""
    conf: Mapping[str, SecretStr] = Field(
        default_factory=dict, examples=[{"spark.sql.shuffle.partitions": "8"}]
    )
    """Further Spark settings, each starting with `spark.`."""

    def conflicts(self) -> Iterator[Conflict]:
        """Only Spark's settings, and none that has a key of its own."""
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
    publish_threads: int = Field(default_factory=_threads, ge=1, le=256)
    """Tables committed at the same time; two per core and at most 8 when left out."""
