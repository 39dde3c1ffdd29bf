"""The settings of the lake, its tables, their maintenance and their grants."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, get_args

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
from distributary.config.catalog import CatalogConfig, IcebergConfig, SparkCatalogConfig
from distributary.model import layout
from distributary.model.table_format import TABLE_FORMATS, formats_with
from distributary.store.base import absolute, local_path
from distributary.store.environment import with_environment


class LakeConfig(Section):
    """The folder or bucket of the tables. Relative paths start at the working directory."""

    path: Text = Field(examples=["./lake", "s3://bucket/lake"])
    """Folder or address that holds the folders of all tables."""
    checkpoint: Annotated[
        Text, Field(default_factory=lambda given: layout.join(given["path"], "_checkpoints"))
    ]
    """Folder of the pipeline's progress; `_checkpoints` under `path` when left out."""
    database: TableName | None = Field(default=None, examples=["default"])
    """Short form of `catalog: {type: spark, schema: ...}`."""
    catalog: CatalogConfig | None = None
    """Catalog in which tables are registered by name. Tables are not registered when left out."""
    iceberg: IcebergConfig | None = None
    """Mirrors of Delta tables as Iceberg tables over the same files, and their catalog. There are
    no mirrors when left out, unless `tables.format` is iceberg."""
    storage_options: Mapping[str, SecretStr] = Field(
        default_factory=dict, examples=[{"aws_region": "eu-central-1"}]
    )
    """Credentials and settings of the object store; they are passed to the writers."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a second catalog."""
        if self.database is not None and self.catalog is not None:
            yield ("database",), "cannot be combined with catalog: set catalog.schema"

    @property
    def registered_in(self) -> CatalogConfig | None:
        """Return the catalog, whether it was set by `catalog` or `database`; None without one."""
        if self.database is None:
            return self.catalog
        return SparkCatalogConfig.model_validate({"type": "spark", "schema": self.database})

    @property
    def iceberg_catalog(self) -> IcebergConfig:
        """Return the catalog of Iceberg tables, with its defaults where nothing is set."""
        return self.iceberg or IcebergConfig()

    @property
    def is_local(self) -> bool:
        """Return true when the lake is on a file system of this machine."""
        return local_path(self.path) is not None

    @property
    def local_path(self) -> Path | None:
        """Return the absolute path of the lake; None for an object store."""
        return local_path(self.path)

    @property
    def address(self) -> str:
        """Return the absolute path of the lake or, for an object store, its address as given."""
        return absolute(self.path)

    @property
    def options(self) -> dict[str, str]:
        """Return the storage options in clear; they hold secrets."""
        return {name: value.get_secret_value() for name, value in self.storage_options.items()}

    @property
    def options_of_tasks(self) -> dict[str, str]:
        """Return the storage options with the credentials of this process's environment."""
        return with_environment(self.options, self.address, self.checkpoint)

    def checkpoint_of(self, pipeline: str) -> str:
        """Return the folder of one pipeline's progress."""
        return layout.join(self.checkpoint, pipeline)

    def parking_of(self, pipeline: str) -> str:
        """Return the folder for batches of a pipeline whose tables cannot be written."""
        return layout.parking(self.address, pipeline, absolute(self.checkpoint_of(pipeline)))


# The tables of a pipeline.

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
"""The facts about a record that can be stored besides its own fields."""
_NOT_FOR_PARTITIONS = ("_key", "_headers", "_offset", "_timestamp", "_raw", "_cloudevent")


class UnifiedConfig(Section):
    """One table for all types."""

    name: TableName = Field(examples=["unified_gold"])
    """Name of the table."""
    mode: Literal["shared", "wide"] = "shared"
    """shared: fields that at least two types have in common are columns, and all other fields are
    JSON text in `_rest`; wide: every field is a column."""
    max_columns: int = Field(default=500, ge=1)
    """The largest number of columns. Further fields are JSON text in `_rest`."""


def _named(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


if TYPE_CHECKING:
    TableFormatName = str
else:
    TableFormatName = Literal[tuple(TABLE_FORMATS)]


class Tables(Section):
    """The tables that records are written to; at least one of bronze, each and unified."""

    bronze: TableName | None = Field(default=None, examples=["bronze_events"])
    """Table of the raw payloads with their coordinates; no such table when left out."""
    each: TableTemplate | None = Field(default=None, examples=["silver_{type}"])
    """Name of the tables per type. It is a fixed name or a template with {type}, {topic} or
    {record}, and for change data {database}, {schema} and {table}. Without an envelope,
    {field:PATH}, {header:NAME} and {key} take the type from a field of a JSON message, from a
    header or from the key: `{field:PATH}` is short for `{type}` with `envelope: {format: json,
    type: PATH}`. No such tables when left out."""
    unified: (
        Annotated[
            UnifiedConfig, BeforeValidator(_named, json_schema_input_type=UnifiedConfig | str)
        ]
        | None
    ) = Field(default=None, examples=["unified_gold"])
    """Table of all types: its name, or a mapping with name, mode and max_columns. No such table
    when left out."""
    dead_letters: TableName = "dead_letters"
    """Table of the records that could not be ingested, whole, each with the reason."""
    prefix: TablePrefix = ""
    """Prefix of the names of the tables per type."""
    format: TableFormatName = "delta"
    """Format of the tables. delta: Delta Lake; parquet: plain folders of Parquet files; iceberg:
    Delta Lake, with an Iceberg mirror of every table and a catalog of mirrors, as `lake.iceberg`
    describes them. The dead letters are always a Delta table."""
    publisher: Literal["direct", "spark"] = "direct"
    """The writer that commits to Delta tables. direct: the driver itself, which is fast with many
    tables; spark: Delta's own writer, for tables with features that direct does not support."""
    partition_by: FieldNames = Field(default=(), examples=[["_date"]])
    """Columns by which new tables are partitioned: text, whole numbers, booleans and days. `_date`
    is the day (UTC) of the record's time. A table per type is partitioned by those of the columns
    that it has; unified by `_date` only; bronze by `_date` and `_type`, the type of the record. The
    partitioning of an existing table does not change."""
    metadata: Annotated[
        tuple[Metadata, ...],
        BeforeValidator(split, json_schema_input_type=tuple[Metadata, ...] | str),
    ] = ("topic", "partition", "offset", "timestamp", "schema_id", "batch")
    """Facts that are stored about each record besides its fields. `raw` is the record's bytes;
    `cloudevent` is the context attributes of a CloudEvent, such as id, source, time and subject."""
    names: Literal["strict", "encode"] = "strict"
    """What to do with a type whose name is unsafe as a table name. strict: dead-letter its records;
    encode: encode the name."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield missing tables, names used twice, and columns that cannot be partitions."""
        if not (self.bronze or self.each or self.unified):
            yield (), "needs at least one of bronze, each and unified"
        if self.publisher == "spark" and not TABLE_FORMATS[self.format].spark_writes:
            fitting = formats_with(lambda format_: format_.spark_writes)
            yield ("publisher",), f"can be spark for {fitting} tables only"
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
        """Yield a sentence for each column that no table can be partitioned by."""
        stored = {f"_{name}" for name in self.metadata}
        for name in self.partition_by:
            if "." in name:
                yield f"{name} is a field inside a column: tables are partitioned by whole columns"
            elif name in _NOT_FOR_PARTITIONS:
                other = "; use _date for its day" if name == "_timestamp" else ""
                yield f"{name} cannot be used: its values differ in every record{other}"
            elif name in {f"_{known}" for known in get_args(Metadata)} - stored:
                yield f"{name} is not stored: add {name[1:]} to metadata"
            elif name == "_type" and not self.bronze:
                yield "_type needs bronze: no other table is partitioned by it"
            elif name == "_type" and self.publisher == "spark":
                yield "_type needs publisher direct: Spark would plan a read for each type"
            elif name.startswith("_") and name not in {"_date", "_type", *stored}:
                # fields of records never become columns with such a name
                yield f"{name} is not a column that a table can have"
            elif name not in {"_date", "_type"} and not self.each:
                yield f"{name} needs each: it does not partition bronze and unified"

    def fixed_names(self) -> dict[str, str]:
        """Return the names, without prefix, of the tables known before any record, by setting."""
        each = self.each if self.each and not placeholders(self.each) else None
        named = {
            "dead_letters": self.dead_letters,
            "bronze": self.bronze,
            "each": each,
            "unified": self.unified.name if self.unified else None,
        }
        return {setting: table for setting, table in named.items() if table}


# Schema evolution.


class Evolution(Section):
    """What to do with a table when the schema of its records changes."""

    same_kind: ClassVar[bool] = False
    """Whether a type is widened within its kind only: int to bigint, and not to double."""

    new_field: Literal["add", "ignore", "dead_letter", "fail"] = "add"
    """What to do with a field that has no column in the table."""
    wider_type: Literal["widen", "side_column", "dead_letter", "fail"] = "widen"
    """What to do with a wider type: int to bigint, float to double, more decimal digits."""
    type_change: Literal["side_column", "dead_letter", "fail"] = "side_column"
    """What to do with any other change of type. side_column: the values are written to a separate
    column, `name__type`."""
    renamed: Literal["new_column", "keep_name"] = "new_column"
    """What to do when a protobuf field number or an Avro alias appears under a new name.
    new_column: add a column; keep_name: keep writing to the old column."""
    new_type: Literal["create", "dead_letter", "fail"] = "create"
    """What to do with a type of record that has no table yet."""
    max_new_tables_per_batch: int = Field(default=2000, ge=0)
    """The largest number of new types in one batch. Records of further types are dead-lettered as
    TOO_MANY_TYPES."""


class NarrowEvolution(Evolution):
    """Evolution for a format that widens fewer types; other changes are a `type_change`."""

    same_kind: ClassVar[bool] = True


# Maintenance of the tables.

LEAST_RETENTION = timedelta(days=1)
"""The shortest retention, because large readers hold a version of a table for hours."""

_COMMITS = re.compile(r"\s*([0-9]{1,9})\s*(?:commits?)?\s*")


def _commits(value: object) -> object:
    if not isinstance(value, str):
        return value
    if match := _COMMITS.fullmatch(value):
        return int(match[1])
    raise PydanticCustomError("commits", "must be a number of commits, such as 50 commits")


Commits = Annotated[int, BeforeValidator(_commits, json_schema_input_type=int | str), Field(ge=1)]


class Optimize(Section):
    """When small files are compacted."""

    min_files: int = Field(default=8, ge=2)
    """The number of small files in one table, or in one partition, from which they are
    compacted."""
    target_size: PositiveSize = Field(default=128 * 1024 * 1024, examples=["128MiB"])
    """Target size of the compacted files."""


class CheckpointConfig(Section):
    """When a checkpoint of a table's log is written."""

    every: Commits = Field(default=50, examples=["50 commits"])
    """Number of commits after which a checkpoint is written. The table property
    `delta.checkpointInterval` takes precedence."""


class Vacuum(Section):
    """When files are deleted that no longer belong to a table."""

    retention: Annotated[
        PositiveDuration,
        required(
            LEAST_RETENTION.__le__,
            "retention",
            "must be at least 1d: long queries still read the files",
        ),
    ] = Field(default=timedelta(days=7), examples=["7d"])
    """How long such files are kept for readers of older versions, at least 1d. The table property
    `delta.deletedFileRetentionDuration` takes precedence."""


class CutsConfig(Section):
    """How long cuts stay readable, beyond the retention of files and logs."""

    age: PositiveDuration | None = Field(default=None, examples=["14d"])
    """Cuts of this age stay readable: neither files nor log entries that they need are deleted. The
    retention of files alone decides when left out."""
    last: int | None = Field(default=None, ge=1, examples=[1000])
    """The number of newest cuts of the pipeline that stay readable, whatever their age."""


class Expire(Section):
    """How long old dead letters and details of old batches are kept."""

    dead_letters: PositiveDuration = Field(default=timedelta(days=30), examples=["30d"])
    """Retention of dead letters that were replayed or discarded."""
    open_dead_letters: PositiveDuration | None = Field(default=None, examples=["365d"])
    """Retention of open dead letters; after this time they are lost. They are kept for ever when
    left out."""
    ledger: PositiveDuration = Field(default=timedelta(days=90), examples=["90d"])
    """Retention of the details of batches. Their sums are kept for ever."""


class Retention(Section):
    """How long rows stay in some tables."""

    tables: Texts = Field(min_length=1, examples=[["silver_*"]])
    """Names of tables, with the wildcards `*` and `?`. The first entry that matches a table
    decides."""
    column: Text | None = Field(default=None, examples=["played_at"])
    """Column with a time or a day, by which a row's age is counted; a row without a value stays.
    Without it, the age counts from the row's arrival: `_arrived_at` in bronze, `_timestamp`, the
    record's time in the source, in other tables."""
    age: PositiveDuration = Field(examples=["90d"])
    """Rows that are older are removed. An age of a day or more ends at the beginning of a day
    (UTC), so that a file is written again once a day at most."""


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
    """Maintenance of the tables, by `distributary maintain` and by continuous runs."""

    every: UpkeepInterval = Field(default=timedelta(minutes=30), examples=["1h"])
    """How often maintenance runs beside a continuous run. `off`: only by hand."""
    steps: tuple[Step, ...] = ("optimize", "checkpoint", "vacuum", "expire")
    """The steps of maintenance."""
    skip: tuple[Text, ...] = Field(default=(), examples=[["bronze_*"]])
    """Tables to skip, with the wildcard `*`."""
    optimize: Optimize = Field(default_factory=Optimize)
    """Compaction of small files."""
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    """Checkpoints of the tables' logs, and the removal of expired commits."""
    vacuum: Vacuum = Field(default_factory=Vacuum)
    """Deletion of files that no longer belong to a table."""
    cuts: CutsConfig = Field(default_factory=CutsConfig)
    """Cuts that stay readable."""
    expire: Expire = Field(default_factory=Expire)
    """Removal of old dead letters and of details of old batches."""
    retention: tuple[Retention, ...] = Field(
        default=(), examples=[[{"tables": ["silver_*"], "column": "played_at", "age": "90d"}]]
    )
    """How long rows stay, by tables; the step `expire` removes older ones. They stay for ever in
    tables that no entry matches."""


# Grants on tables.

Privilege = Literal["ALL PRIVILEGES", "APPLY TAG", "MODIFY", "SELECT", "USE CATALOG", "USE SCHEMA"]


class Grant(Section):
    """Privileges of some principals on some tables."""

    principals: Texts = Field(min_length=1, examples=[["analysts", "ana@example.com"]])
    """Users, groups or service principals."""
    tables: Texts = Field(default=(), examples=[["silver_*"]])
    """Names of tables, with the wildcards `*` and `?`."""
    types: Texts = Field(default=(), examples=[["chess"]])
    """Types of records, with the wildcards `*` and `?`; for change data `schema.table`. If `tables`
    is set as well, a table must match both."""
    privileges: Annotated[tuple[Privilege, ...], Listed] = ("SELECT",)
    """The privileges to grant."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a grant without tables, types or privileges."""
        if not self.tables and not self.types:
            yield (), "needs tables or types"
        if not self.privileges:
            yield ("privileges",), "must not be empty"
