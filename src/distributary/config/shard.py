"""The part of a pipeline that one job runs, where several jobs share its types."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from distributary.config.base import Conflict, PipelineName, Section, placeholders
from distributary.config.sources.delta import DeltaSourceConfig
from distributary.model.names import casefold_key
from distributary.model.table_format import TABLE_FORMATS, formats_with

if TYPE_CHECKING:
    from distributary.config.pipeline_config import PipelineConfig


MOST_SHARDS = 256
Number = Annotated[int, Field(ge=0, lt=MOST_SHARDS)]
Part = Number | Literal["bronze", "unified"]


class Shard(Section):
    """The part of a pipeline that this job runs; `install --shards` writes it."""

    of: PipelineName = Field(examples=["games"])
    """Name of the pipeline whose types are shared among jobs."""
    part: Part = Field(examples=["bronze", 0])
    """bronze: the job writes every record to the bronze table, which the other jobs read; a number:
    the job keeps the tables of its share of the types; unified: the job keeps the one table of all
    types."""
    shards: int | None = Field(default=None, ge=1, le=MOST_SHARDS)
    """Number of jobs that share the types. It is set in the file of the bronze job, which divides
    the stream again when the number changes."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a number of shards in the wrong job, or its absence in the bronze job."""
        if (self.part == "bronze") != (self.shards is not None):
            yield ("shards",), "must be set with part: bronze, and only there"

    @property
    def lands(self) -> bool:
        """Return true when this job writes the bronze table that the other jobs read."""
        return self.part == "bronze"


def job_name(of: str, part: Part) -> str:
    """Return the name of the pipeline that runs this part; the bronze job keeps the name `of`."""
    if part == "bronze":
        return of
    return f"{of}-{part}" if part == "unified" else f"{of}-shard-{part}"


def unspreadable(config: PipelineConfig) -> Iterator[Conflict]:
    """Yield the reasons why the types of a pipeline cannot be shared among several jobs."""
    tables = config.tables
    if config.cdc is not None:
        yield ("cdc",), "cannot be divided into shards: rows of several sources may share a table"
    if config.keys:
        yield ("keys",), "cannot be divided into shards: rows are merged by one job"
    if tables.bronze is None:
        yield ("tables", "bronze"), "is required, such as bronze_events: shards read it"
    if not TABLE_FORMATS[tables.format].lists_commits:
        fitting = formats_with(lambda format_: format_.lists_commits)
        yield ("tables", "format"), f"must be {fitting}: shards read bronze commit by commit"
    wanted = "type" if config.envelope is not None else "topic"
    if tables.each is None:
        yield ("tables", "each"), "is required: there are no types to divide"
    elif wanted not in placeholders(tables.each):
        yield ("tables", "each"), f"needs {{{wanted}}}, so that no table has two writers"
    if tables.unified and config.expectations:
        yield ("expectations",), "cannot keep rows out of tables.unified, which another job writes"
    if tables.unified and config.shape:
        yield ("shape",), "cannot shape the rows of tables.unified, which another job writes"


def shard_conflicts(config: PipelineConfig, shard: Shard) -> Iterator[Conflict]:
    """Yield the settings that do not fit the part of this job."""
    name, tables = job_name(shard.of, shard.part), config.tables
    if config.name != name:
        yield ("name",), f"must be {name}: the other jobs find this part by that name"
    if shard.lands:
        if tables.bronze is None or tables.each or tables.unified:
            yield ("tables",), "must have bronze only: other jobs keep the other tables"
        return
    if tables.bronze is not None:
        yield ("tables", "bronze"), "must be left out: only the job with part: bronze writes it"
    if not isinstance(config.source, DeltaSourceConfig):
        yield ("source",), "must be the bronze table, of type delta"
    if shard.part == "unified":
        if tables.each or not tables.unified:
            yield ("tables",), "must have unified only: other jobs keep the other tables"
    elif tables.unified or not tables.each:
        yield ("tables",), "must have each only: other jobs keep the other tables"


# Assignment of types to shards. It must stay the same on every machine and in every version.

_MULTIPLIER = 2862933555777941757
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Move:
    """A type that moves to another shard."""

    type: str
    before: int
    after: int


def shard_of(type_name: str, shards: int) -> int:
    """Return the shard of a type, by jump consistent hashing (Lamping and Veach).

    One more shard takes an equal share from each of the others, and no other type moves. Names that
    differ in case only are in the same shard; to change that would move types.
    """
    folded = casefold_key(type_name).encode("utf-8", "surrogatepass")
    key = int.from_bytes(hashlib.sha256(folded).digest()[:8], "big")
    bucket, jump = -1, 0
    while jump < shards:
        bucket = jump
        key = (key * _MULTIPLIER + 1) & _MASK
        jump = int((bucket + 1) * ((1 << 31) / ((key >> 33) + 1)))
    return bucket


def moves(types: Iterable[str], before: int, after: int) -> tuple[Move, ...]:
    """Return the types that move to another shard when the number of shards changes."""
    pairs = ((name, shard_of(name, before), shard_of(name, after)) for name in sorted(types))
    return tuple(Move(*pair) for pair in pairs if pair[1] != pair[2])
