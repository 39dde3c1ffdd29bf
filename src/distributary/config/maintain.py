"""What is done to tables so that they stay small and quick to read."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from distributary.config.base import Section
from distributary.config.quantity import PositiveDuration, PositiveSize
from distributary.config.text import Text

LEAST_RETENTION = timedelta(days=1)
"""Readers hold a version of a table for a while: hours, if they are large."""

_COMMITS = re.compile(r"\s*([0-9]{1,9})\s*(?:commits?)?\s*")


def _commits(value: object) -> object:
    if not isinstance(value, str):
        return value
    match = _COMMITS.fullmatch(value)
    if match is None:
        raise PydanticCustomError("commits", "must be a number of commits, such as 50 commits")
    return int(match[1])


def _long_enough(value: timedelta) -> timedelta:
    if value < LEAST_RETENTION:
        raise PydanticCustomError("retention", "must be at least 1d: readers take their time")
    return value


Commits = Annotated[int, BeforeValidator(_commits, json_schema_input_type=int | str), Field(ge=1)]


class Optimize(Section):
    """When small files are put together."""

    min_files: int = Field(default=8, ge=2)
    """Small files of one table, or of one partition of it, that are worth writing again."""
    target_size: PositiveSize = Field(default=128 * 1024 * 1024, examples=["128MiB"])
    """How large files should become."""


class Checkpoint(Section):
    """When a table's log is summed up."""

    every: Commits = Field(default=50, examples=["50 commits"])
    """Commits after which a checkpoint is written, unless the table's own
    `delta.checkpointInterval` says otherwise."""


class Vacuum(Section):
    """When files are deleted that are no longer part of a table."""

    retention: Annotated[PositiveDuration, AfterValidator(_long_enough)] = Field(
        default=timedelta(days=7), examples=["7d"]
    )
    """How long they are kept for readers of older versions, 1d at least; the table's own
    `delta.deletedFileRetentionDuration` goes first."""


class Expire(Section):
    """How long is remembered what nobody waits for."""

    dead_letters: PositiveDuration = Field(default=timedelta(days=30), examples=["30d"])
    """Dead letters that were replayed or discarded."""
    open_dead_letters: PositiveDuration | None = Field(default=None, examples=["365d"])
    """Dead letters that nobody has done anything about: lost after this. Kept when left out."""
    ledger: PositiveDuration = Field(default=timedelta(days=90), examples=["90d"])
    """Details of batches; sums of what was done stay for ever."""


class Maintain(Section):
    """What `distributary maintain` does by itself."""

    every: PositiveDuration | None = Field(default=None, examples=["1h"])
    """How often it is done while the pipeline is up; only by hand when left out."""
    steps: tuple[Literal["optimize", "checkpoint", "vacuum", "expire"], ...] = (
        "optimize",
        "checkpoint",
        "vacuum",
        "expire",
    )
    """What is done."""
    skip: tuple[Text, ...] = Field(default=(), examples=[["bronze_*"]])
    """Tables that are left alone; `*` stands for anything."""
    optimize: Optimize = Field(default_factory=Optimize)
    """Small files become large ones."""
    checkpoint: Checkpoint = Field(default_factory=Checkpoint)
    """Logs are summed up, and their expired commits removed."""
    vacuum: Vacuum = Field(default_factory=Vacuum)
    """Files that are no longer part of a table are deleted."""
    expire: Expire = Field(default_factory=Expire)
    """Old dead letters and details of old batches go."""
