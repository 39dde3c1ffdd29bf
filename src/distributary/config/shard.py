"""Which part of a pipeline a job is, where several jobs share its types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from distributary.config.base import Conflict, Section
from distributary.config.source import DeltaSource
from distributary.config.text import PipelineName, placeholders

if TYPE_CHECKING:
    from distributary.config.pipeline import PipelineConfig

MOST_SHARDS = 256
Number = Annotated[int, Field(ge=0, lt=MOST_SHARDS)]
Part = Number | Literal["bronze", "unified"]


class Shard(Section):
    """Written by `install --shards`: a job that does a part of a pipeline's work."""

    of: PipelineName = Field(examples=["games"])
    """The pipeline whose types are spread."""
    part: Part = Field(examples=["bronze", 0])
    """bronze: lands every record, for the others to read; a number: keeps the tables of its share
    of the types; unified: keeps the one table of all types."""
    shards: int | None = Field(default=None, ge=1, le=MOST_SHARDS)
    """Over how many jobs the types are spread; stands in the file of the bronze job, which divides
    the stream anew when it starts with another number."""

    def conflicts(self) -> Iterator[Conflict]:
        """The number belongs to the job that acts on it."""
        if (self.part == "bronze") != (self.shards is not None):
            yield ("shards",), "belongs to part: bronze, and to no other"

    @property
    def lands(self) -> bool:
        """Whether this job writes what the others read."""
        return self.part == "bronze"


def job_name(of: str, part: Part) -> str:
    """The name of the pipeline that does this part; the bronze job goes on where `of` was."""
    if part == "bronze":
        return of
    return f"{of}-{part}" if part == "unified" else f"{of}-shard-{part}"


def unspreadable(config: PipelineConfig) -> Iterator[Conflict]:
    """Why the types of a pipeline cannot be spread over jobs."""
    tables = config.tables
    if config.cdc is not None:
        yield ("cdc",), "cannot be spread: rows of several sources may share a table"
    if tables.bronze is None:
        yield ("tables", "bronze"), "is needed, such as bronze_events: shards read it"
    if tables.format != "delta":
        yield ("tables", "format"), "must be delta: shards read bronze commit by commit"
    wanted = "type" if config.envelope is not None else "topic"
    if tables.each is None:
        yield ("tables", "each"), "is needed: there is nothing to spread"
    elif wanted not in placeholders(tables.each):
        yield ("tables", "each"), f"needs {{{wanted}}}, so that no table has two writers"
    if tables.unified and config.expectations:
        yield ("expectations",), "cannot hold back rows from a unified table of another job"
    if not config.lake.is_local:
        yield ("lake", "path"), "must be on a file system that all jobs see"


def shard_conflicts(config: PipelineConfig, shard: Shard) -> Iterator[Conflict]:
    """What does not fit the part that a job has."""
    name, tables = job_name(shard.of, shard.part), config.tables
    if config.name != name:
        yield ("name",), f"must be {name}, by which the other jobs know this part"
    if shard.lands:
        if tables.bronze is None or tables.each or tables.unified:
            yield ("tables",), "must be bronze alone: other jobs keep the rest"
        return
    if tables.bronze is not None:
        yield ("tables", "bronze"), "is written by the job with part: bronze alone"
    if not isinstance(config.source, DeltaSource):
        yield ("source",), "must be the bronze table, of type delta"
    if shard.part == "unified":
        if tables.each or not tables.unified:
            yield ("tables",), "must be unified alone: other jobs keep the rest"
    elif tables.unified or not tables.each:
        yield ("tables",), "must be each alone: other jobs keep the rest"
