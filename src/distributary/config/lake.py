"""Where tables and progress are stored."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import BeforeValidator, Field, PlainSerializer, SecretStr
from pydantic_core import PydanticCustomError

from distributary.config.base import (
    DURATION_PATTERN,
    Conflict,
    FieldNames,
    Listed,
    PositiveDuration,
    PositiveSize,
    Section,
    TableName,
    TablePrefix,
    TableTemplate,
    Text,
    Texts,
    either,
    format_duration,
    placeholders,
    required,
    split,
)
from distributary.config.catalog import Catalog, IcebergCatalog, SparkCatalog
from distributary.model import layout
from distributary.store.base import absolute, local_path


class Lake(Section):
    """The folder of tables. Relative paths start at the working directory."""

    path: Text = Field(examples=["./lake", "s3://bucket/lake"])
    """Folder or address under which every table has its own folder."""
    checkpoint: Annotated[
        Text, Field(default_factory=lambda given: layout.join(given["path"], "_checkpoints"))
    ]
    """Folder of the pipeline's progress; `_checkpoints` under `path` when left out."""
    database: TableName | None = Field(default=None, examples=["default"])
    """Short for `catalog: {type: spark, schema: ...}`."""
    catalog: Catalog | None = None
    """Catalog in which tables are registered by name; none when left out."""
    iceberg: IcebergCatalog | None = None
    """Catalog of the tables where `tables.format` is iceberg; one in the lake when left out."""
    storage_options: Mapping[str, SecretStr] = Field(
        default_factory=dict, examples=[{"aws_region": "eu-central-1"}]
    )
    """Credentials and settings of the object store, passed on to the writers."""

    def conflicts(self) -> Iterator[Conflict]:
        """One catalog, said once."""
        if self.database is not None and self.catalog is not None:
            yield ("database",), "cannot stand beside catalog, which has schema for it"

    @property
    def registered_in(self) -> Catalog | None:
        """The catalog, however it was written; None where tables are in none."""
        if self.database is None:
            return self.catalog
        return SparkCatalog.model_validate({"type": "spark", "schema": self.database})

    @property
    def iceberg_catalog(self) -> IcebergCatalog:
        """The catalog of Iceberg tables, if there are any."""
        return self.iceberg or IcebergCatalog()

    @property
    def is_local(self) -> bool:
        """Whether tables are on a file system of this machine."""
        return local_path(self.path) is not None

    @property
    def local_path(self) -> Path | None:
        """The lake as an absolute path; None for an object store."""
        return local_path(self.path)

    @property
    def address(self) -> str:
        """The lake as an absolute path or, for an object store, as it was given."""
        return absolute(self.path)

    @property
    def options(self) -> dict[str, str]:
        """The storage options in clear; holds secrets."""
        return {name: value.get_secret_value() for name, value in self.storage_options.items()}

    def checkpoint_of(self, pipeline: str) -> str:
        """The folder of one pipeline's progress."""
        return layout.join(self.checkpoint, pipeline)

    def parking_of(self, pipeline: str) -> str:
        """Where batches of a pipeline wait whose tables cannot be written."""
        if self.is_local:
            return layout.parked(self.address, pipeline)
        # a store that does not take a table's files may not take copies of them either
        return f"{absolute(self.checkpoint_of(pipeline))}/parked"


# Which tables are kept.

Metadata = Literal[
    "key",
    "headers",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "schema_id",
    "batch",
    "raw",
    "cloudevent",
]
"""What can be known about a record besides its own fields."""
_NOT_FOR_PARTITIONS = ("_key", "_headers", "_offset", "_timestamp", "_raw", "_cloudevent")


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
    and {table}, or one fixed name; none when left out. Without an envelope, {field:PATH},
    {header:NAME} and {key} are the type as a field of a JSON message, a header or the key says it:
    short for `envelope: {format: json, type: PATH}` and `{type}`."""
    unified: (
        Annotated[Unified, BeforeValidator(_named, json_schema_input_type=Unified | str)] | None
    ) = Field(default=None, examples=["unified_gold"])
    """Table of all types: its name, or a mapping with name, mode and max_columns; none when left
    out."""
    dead_letters: TableName = "dead_letters"
    """Table of records that could not be ingested, whole, with the reason."""
    prefix: TablePrefix = ""
    """Text before the names of the tables per type."""
    format: Literal["delta", "parquet", "iceberg"] = "delta"
    """Kind of table: delta is Delta Lake; parquet is a plain folder of Parquet files; iceberg is
    Apache Iceberg, for dozens of tables on a file system. The dead letters are a Delta table
    either way."""
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
    ] = ("topic", "partition", "offset", "timestamp", "schema_id", "batch")
    """What is stored about each record besides its fields; `raw` is its bytes, `cloudevent` the
    context attributes of a CloudEvent: id, source, time, subject and the others."""
    names: Literal["strict", "encode"] = "strict"
    """What to do with a type whose name is unsafe as a table name: dead-letter its records, or
    encode the name."""

    def conflicts(self) -> Iterator[Conflict]:
        """Something to write, under names that differ."""
        if not (self.bronze or self.each or self.unified):
            yield (), "needs at least one of bronze, each and unified"
        if self.format != "delta" and self.publisher == "spark":
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


# What to do when a writer's schema changes.


class Evolution(Section):
    """What happens to a table when the schema of its records changes."""

    same_kind: ClassVar[bool] = False
    """Whether a type becomes wider only within its kind: int to bigint, and not to double."""

    new_field: Literal["add", "ignore", "dead_letter", "fail"] = "add"
    """A field that the table has no column for."""
    wider_type: Literal["widen", "side_column", "dead_letter", "fail"] = "widen"
    """int to bigint, float to double, more decimal digits."""
    type_change: Literal["side_column", "dead_letter", "fail"] = "side_column"
    """Any other change of type: the values go to a column of their own, `name__type`."""
    renamed: Literal["new_column", "keep_name"] = "new_column"
    """The same protobuf field number (or an Avro alias) under another name."""
    new_type: Literal["create", "dead_letter", "fail"] = "create"
    """A type of record that has no table yet."""
    max_new_tables_per_batch: int = Field(default=2000, ge=0)
    """More new types than this in one batch: the rest are dead-lettered as TOO_MANY_TYPES."""


class IcebergEvolution(Evolution):
    """The same for a format that makes fewer types wider: all other changes are `type_change`."""

    same_kind: ClassVar[bool] = True


# What is done to tables so that they stay small and quick to read.

LEAST_RETENTION = timedelta(days=1)
"""Readers hold a version of a table for a while: hours, if they are large."""

_COMMITS = re.compile(r"\s*([0-9]{1,9})\s*(?:commits?)?\s*")


def _commits(value: object) -> object:
    if not isinstance(value, str):
        return value
    if match := _COMMITS.fullmatch(value):
        return int(match[1])
    raise PydanticCustomError("commits", "must be a number of commits, such as 50 commits")


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

    retention: Annotated[
        PositiveDuration,
        required(
            LEAST_RETENTION.__le__, "retention", "must be at least 1d: readers take their time"
        ),
    ] = Field(default=timedelta(days=7), examples=["7d"])
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


Step = Literal["optimize", "checkpoint", "vacuum", "expire"]


def _parse_interval(value: object) -> object:
    return None if value == "off" or value is False else value


def _format_interval(value: timedelta | None) -> str:
    return "off" if value is None else format_duration(value)


UpkeepInterval = Annotated[
    PositiveDuration | None,
    BeforeValidator(_parse_interval),
    PlainSerializer(_format_interval, return_type=str),
    either(
        {"type": "string", "pattern": DURATION_PATTERN},
        {"const": "off"},
        {"type": "null"},
    ),
]


class Maintain(Section):
    """What `distributary maintain` does, and what a run that goes on does by itself."""

    every: UpkeepInterval = Field(default=timedelta(minutes=30), examples=["1h"])
    """How often it is done beside a run that goes on; `off`: only by hand."""
    steps: tuple[Step, ...] = ("optimize", "checkpoint", "vacuum", "expire")
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


# Who may read which tables.

Privilege = Literal["ALL PRIVILEGES", "APPLY TAG", "MODIFY", "SELECT"]


class Grant(Section):
    """What some principals may do with some tables."""

    principals: Texts = Field(min_length=1, examples=[["analysts", "ana@example.com"]])
    """Users, groups or service principals."""
    tables: Texts = Field(default=(), examples=[["silver_*"]])
    """Names of tables, with `*` and `?`."""
    types: Texts = Field(default=(), examples=[["chess"]])
    """Types of records, with `*` and `?`; `schema.table` for change data. Beside `tables`, a table
    must fit both."""
    privileges: Annotated[tuple[Privilege, ...], Listed] = ("SELECT",)
    """What is granted."""

    def conflicts(self) -> Iterator[Conflict]:
        """Something must be named."""
        if not self.tables and not self.types:
            yield (), "needs tables or types"
        if not self.privileges:
            yield ("privileges",), "must not be empty"
