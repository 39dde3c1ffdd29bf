"""Which tables are kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, Field

from distributary.config.base import Conflict, Section
from distributary.config.text import (
    FieldNames,
    TableName,
    TablePrefix,
    TableTemplate,
    placeholders,
    split,
)

Metadata = Literal[
    "key", "headers", "topic", "partition", "offset", "timestamp", "schema_id", "batch", "raw"
]
"""What can be known about a record besides its own fields."""
_NOT_FOR_PARTITIONS = ("_key", "_headers", "_offset", "_timestamp", "_raw")


class Unified(Section):
    """One table for all types."""

    name: TableName = Field(examples=["unified_gold"])
    """Name of the table."""
    mode: Literal["shared", "wide"] = "shared"
    """shared: fields that at least two types have in common are columns, all others are JSON text
    in `_rest`; wide: every field is a column."""
    max_columns: int = Field(default=500, ge=1)
    """Most columns: fields beyond are JSON text in `_rest`."""


def _named(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


class Tables(Section):
    """The tables that records end up in; at least one of bronze, each and unified."""

    bronze: TableName | None = Field(default=None, examples=["bronze_events"])
    """Table of raw payloads with their coordinates; none when left out."""
    each: TableTemplate | None = Field(default=None, examples=["silver_{type}"])
    """Name of the tables per type: {type}, {topic}, {record}, for change data {database}, {schema}
    and {table}, or one fixed name; none when left out."""
    unified: (
        Annotated[Unified, BeforeValidator(_named, json_schema_input_type=Unified | str)] | None
    ) = Field(default=None, examples=["unified_gold"])
    """Table of all types: its name, or a mapping with name, mode and max_columns; none when left
    out."""
    dead_letters: TableName = "dead_letters"
    """Table of records that could not be ingested, whole, with the reason."""
    prefix: TablePrefix = ""
    """Text before the names of the tables per type."""
    format: Literal["delta", "parquet"] = "delta"
    """Kind of table: delta is Delta Lake; parquet is a plain folder of Parquet files, on a file
    system. The dead letters are a Delta table either way."""
    publisher: Literal["direct", "spark"] = "direct"
    """Who commits to Delta tables: direct is the driver itself, fast with many tables; spark is
    Delta's own writer, for tables with features that direct does not support."""
    partition_by: FieldNames = Field(default=(), examples=[["_date"]])
    """Columns by which new tables are partitioned: text, whole numbers, true or false, and days;
    `_date` is the day (UTC) of the record's time. A table per type takes those of them that it
    has, maybe none; bronze and unified take `_date` only. A table stays partitioned as it was
    made."""
    metadata: Annotated[
        tuple[Metadata, ...],
        BeforeValidator(split, json_schema_input_type=tuple[Metadata, ...] | str),
    ] = (
        "topic",
        "partition",
        "offset",
        "timestamp",
        "schema_id",
        "batch",
    )
    """What is stored about each record besides its fields; `raw` is its bytes."""
    names: Literal["strict", "encode"] = "strict"
    """What to do with a type whose name is unsafe as a table name: dead-letter its records, or
    encode the name."""

    def conflicts(self) -> Iterator[Conflict]:
        """Something to write, under names that differ."""
        if not (self.bronze or self.each or self.unified):
            yield (), "needs at least one of bronze, each and unified"
        if self.format == "parquet" and self.publisher == "spark":
            yield ("publisher",), "can be spark for delta tables only"
        for name in ("partition_by", "metadata"):
            values = getattr(self, name)
            if len(set(values)) != len(values):
                yield (name,), "names a column twice"
        for text in self._unusable_partitions():
            yield ("partition_by",), text
        taken: dict[str, str] = {}
        for setting, table in self.fixed_names().items():
            other = taken.setdefault(table.casefold(), setting)
            if other != setting:
                yield (setting,), f"has the same name as {other}"

    def _unusable_partitions(self) -> Iterator[str]:
        """What is wrong with columns that no table can be partitioned by."""
        stored = {f"_{name}" for name in self.metadata}
        for name in self.partition_by:
            if "." in name:
                yield f"{name} is a field inside a column: tables are partitioned by whole columns"
            elif name in _NOT_FOR_PARTITIONS:
                other = "; use _date for its day" if name == "_timestamp" else ""
                yield f"{name} cannot be used: its values differ in every record{other}"
            elif name in {f"_{known}" for known in get_args(Metadata)} - stored:
                yield f"{name} is not stored: add {name[1:]} to metadata"
            elif name.startswith("_") and name not in {"_date", *stored}:
                # no field of a record becomes a column of such a name
                yield f"{name} is not a column that a table can have"
            elif name != "_date" and not self.each:
                yield f"{name} needs each: bronze and unified are partitioned by _date only"

    def fixed_names(self) -> dict[str, str]:
        """Setting and table name, without prefix, of the tables known before any record."""
        each = self.each if self.each and not placeholders(self.each) else None
        named = {
            "dead_letters": self.dead_letters,
            "bronze": self.bronze,
            "each": each,
            "unified": self.unified.name if self.unified else None,
        }
        return {setting: table for setting, table in named.items() if table}
