"""The engine's half of a source's entry, which reads records; its settings are the other half.

`config/sources/source_types.py` lists the sources. Here is what each has to implement, or may: the
answers of `SourceEntry` are those of a source that has nothing more to offer than its records.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from distributary.config.pipeline_config import PipelineConfig
from distributary.config.sources.base import SourceConfig
from distributary.config.sources.source_types import entry_module_of
from distributary.errors import ConfigError
from distributary.model.check import Check
from distributary.model.record import Partition
from distributary.registry.base import SchemaRegistry

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from distributary.source.base import Position, Source
    from distributary.source.source_sample import Sample

Settings = TypeVar("Settings", bound=SourceConfig)


class SourceEnds(Protocol):
    """The current ends of a source, asked by the thread that measures the lag."""

    def ask(self) -> dict[str, int]:
        """Return the offset after the newest record, by `topic/partition`.

        Raises SourceUnavailableError.
        """
        ...

    def reached(self, position: Position) -> dict[str, int]:
        """Return the offset after the last record before a position, by `topic/partition`."""
        ...


@dataclass(frozen=True, slots=True)
class Browsing:
    """The messages that a person wants to look at."""

    partition: Partition | None = None
    """Topic and partition; None: the first of the source."""
    start: int | datetime | None = None
    """The offset or the time of the first one; None: the newest ones."""
    most: int = 20


@dataclass(frozen=True, slots=True)
class Messages:
    """A few messages of one partition as they are at the source."""

    bounds: Mapping[Partition, tuple[int, int]]
    """The oldest offset and the end of each partition that the pipeline reads."""
    partition: Partition | None
    """The one that was read; None if the source has none yet."""
    start: int
    """The offset from which it was read."""
    rows: pa.Table
    """The messages as raw records, in order."""


class SourceEntry(ABC, Generic[Settings]):
    """The implementation of one source, as the program uses it."""

    @abstractmethod
    def open(self, settings: Settings, config: PipelineConfig) -> Source:
        """Return the source that a pipeline reads."""

    @abstractmethod
    def sample(self, settings: Settings) -> Sample:
        """Read a few records, the oldest and the newest, for `init`."""

    @abstractmethod
    def checks(
        self, settings: Settings, config: PipelineConfig
    ) -> Iterator[tuple[str, Callable[[], Check]]]:
        """Yield the checks of `doctor`, by name."""

    def require(self, settings: Settings) -> None:
        """Raise SourceUnavailableError if the source needs a server and it does not answer."""

    def ends(self, settings: Settings, config: PipelineConfig) -> SourceEnds | None:
        """Return the ends of the source; None if they are not known by offsets."""
        return None

    def bounds(
        self, settings: Settings
    ) -> tuple[Mapping[Partition, int], Mapping[Partition, int]] | None:
        """Ask the server for the oldest and newest offset of each partition; None without one."""
        return None

    def browse(self, settings: Settings, wanted: Browsing) -> Messages:
        """Read single messages by offset or time, without any progress of a pipeline."""
        raise ConfigError(
            f"a source of type {settings.type} has no messages to look at one by one",
            where="source.type",
            next_step="`distributary query` and `trace` show its records as the lake has them",
        )

    def schemas(self, settings: Settings, config: PipelineConfig) -> SchemaRegistry | None:
        """Return the schemas that the source brings along; None if it brings none."""
        return None

    def stream(self, spark: SparkSession, settings: Settings) -> DataFrame:
        """Return raw records as a stream of Spark's, with headers as JSON."""
        raise ConfigError(
            f"a declarative pipeline cannot read a source of type {settings.type}",
            where="source.type",
        )


def entry_of(settings: SourceConfig) -> SourceEntry[Any]:
    """Return the implementation of the source with these settings."""
    entry: SourceEntry[Any] = import_module(entry_module_of(type(settings))).ENTRY
    return entry
