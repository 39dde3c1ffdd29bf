"""Where tables are known by name: Spark's own catalog, a Hive metastore, Unity Catalog, Glue."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, SecretStr

from distributary.config.alerts import SecretText
from distributary.config.base import (
    Conflict,
    HttpUrl,
    PositiveDuration,
    Section,
    Text,
    matching,
)

if TYPE_CHECKING:
    from distributary.config.pipeline import PipelineConfig

_IMPLEMENTATION = "spark.sql.catalogImplementation"
_THRIFT = re.compile(r"thrift://[A-Za-z0-9_.\[\]:-]+(,\s*thrift://[A-Za-z0-9_.\[\]:-]+)*")
_METASTORE_PORT = 9083

NamePart = Annotated[
    Text,
    matching(
        r"[A-Za-z0-9_][A-Za-z0-9_@-]{0,254}",
        "catalog_name",
        "must be letters, digits, _, @ and - (255 at most)",
    ),
]


class _Catalog(Section):
    """What all catalogs have."""

    keeps_columns: ClassVar[bool] = False
    """Whether entries hold a copy of columns and comments."""

    schema_: Annotated[NamePart, Field(alias="schema", examples=["games"])]
    """Schema (database) that the tables are in; it is made where it is missing."""
    scheme: Annotated[Text, matching(r"[a-z][a-z0-9]*", "scheme", "must be such as s3a")] | None = (
        Field(default=None, examples=["s3a"])
    )
    """Scheme of locations in place of the one in `lake.path`: readers on Hadoop say s3a for s3."""

    @property
    def names(self) -> tuple[str, ...]:
        """The parts of a table's full name before its own."""
        return (self.schema_,)

    @property
    def spark_conf(self) -> dict[str, str]:
        """What a Spark session must be started with."""
        return {}


def _plain_schema(name: str) -> Iterator[Conflict]:
    if not re.fullmatch(r"\w+", name, re.ASCII):
        yield ("schema",), "must be letters, digits and _ here"


class SparkCatalog(_Catalog):
    """A catalog that the Spark session knows."""

    type: Literal["spark"]
    """Kind of catalog."""
    name: NamePart | None = Field(default=None, examples=["main"])
    """Catalog as `spark.sql.catalog.NAME` in the session's settings makes it known; the session's
    own when left out, which forgets everything with the session unless it is a metastore."""

    def conflicts(self) -> Iterator[Conflict]:
        """Spark's own catalog takes fewer names than others."""
        if self.name in (None, "spark_catalog"):
            yield from _plain_schema(self.schema_)

    @property
    def names(self) -> tuple[str, ...]:
        """The parts of a table's full name before its own."""
        return (self.schema_,) if self.name is None else (self.name, self.schema_)


class HiveCatalog(_Catalog):
    """A Hive metastore, which the Spark session speaks to."""

    type: Literal["hive"]
    """Kind of catalog."""
    uri: Annotated[Text, matching(_THRIFT.pattern, "uri", "must be such as thrift://host:9083")] | (
        None
    ) = Field(default=None, examples=["thrift://metastore:9083"])
    """Address of the metastore; where Spark's own settings say when left out."""

    def conflicts(self) -> Iterator[Conflict]:
        """A metastore takes fewer names than others."""
        yield from _plain_schema(self.schema_)

    @property
    def spark_conf(self) -> dict[str, str]:
        """What a Spark session must be started with."""
        conf = {_IMPLEMENTATION: "hive"}
        return conf if self.uri is None else conf | {"spark.hadoop.hive.metastore.uris": self.uri}

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """Hosts and ports of the metastore."""
        found = [each.strip().removeprefix("thrift://") for each in (self.uri or "").split(",")]
        parts = [each.rpartition(":") for each in found if each]
        return tuple(
            (host.strip("[]"), int(port))
            if host and port.isdigit()
            else (f"{host}{port}", _METASTORE_PORT)
            for host, _, port in parts
        )


class UnityCatalog(_Catalog):
    """Unity Catalog, by its REST API."""

    keeps_columns: ClassVar[bool] = True

    type: Literal["unity"]
    """Kind of catalog."""
    name: NamePart = Field(examples=["main"])
    """Catalog; it must be there."""
    url: HttpUrl = Field(examples=["https://workspace.cloud.databricks.com"])
    """Address of the server, without `/api/2.1/unity-catalog`."""
    token: SecretText | None = Field(default=None, examples=["${env:UC_TOKEN}"])
    """Bearer token; none when left out."""
    ca_location: Text | None = None
    """PEM file of the authorities to trust; the system's own when left out."""
    timeout: PositiveDuration = timedelta(seconds=30)
    """How long one request may take."""

    @property
    def names(self) -> tuple[str, ...]:
        """The parts of a table's full name before its own."""
        return (self.name, self.schema_)


class GlueCatalog(_Catalog):
    """AWS Glue's data catalog."""

    keeps_columns: ClassVar[bool] = True

    type: Literal["glue"]
    """Kind of catalog."""
    region: Text | None = Field(default=None, examples=["eu-central-1"])
    """AWS region; `aws_region` of `lake.storage_options`, or the environment's, when left out."""
    catalog_id: Annotated[Text, matching(r"\d{12}", "catalog_id", "must be 12 digits")] | None = (
        Field(default=None, examples=["123456789012"])
    )
    """Account whose catalog it is; that of the credentials when left out."""
    endpoint: HttpUrl | None = Field(default=None, examples=["http://127.0.0.1:5000"])
    """Address of the service in place of AWS' own."""

    def conflicts(self) -> Iterator[Conflict]:
        """Glue keeps names in lower case, and other engines look for them so."""
        if self.schema_ != self.schema_.lower():
            yield ("schema",), "must be lower case for glue"


Catalog = Annotated[
    SparkCatalog | HiveCatalog | UnityCatalog | GlueCatalog, Field(discriminator="type")
]


class IcebergCatalog(Section):
    """The catalog that Iceberg tables are in: no table of that format is without one."""

    type: Literal["sql", "rest"] = "sql"
    """Kind of catalog: sql is a database, rest a server that speaks Iceberg's REST protocol."""
    uri: SecretText | None = Field(default=None, examples=["https://catalog.example.com"])
    """Address of the server, or of the database as SQLAlchemy spells it; for sql a SQLite file
    below `_distributary` in the lake when left out."""
    warehouse: Text | None = Field(default=None, examples=["main"])
    """Warehouse by the name that the server has for it; the lake's path when left out."""
    namespace: NamePart = "default"
    """Namespace that the tables are in; it is made where it is missing."""
    token: SecretText | None = Field(default=None, examples=["${env:ICEBERG_TOKEN}"])
    """Bearer token for rest; none when left out."""

    def conflicts(self) -> Iterator[Conflict]:
        """A server has an address."""
        if self.type == "rest" and self.uri is None:
            yield (), "needs uri for type rest, such as uri: https://catalog.example.com"
        if self.type == "sql" and self.token is not None:
            yield ("token",), "means nothing for type sql: a password is part of uri"


def iceberg_conflicts(config: PipelineConfig) -> Iterator[Conflict]:
    """What tables of Iceberg's format do not do."""
    if config.tables.format != "iceberg":
        if config.lake.iceberg is not None:
            yield ("lake", "iceberg"), "means nothing unless tables.format is iceberg"
        return
    here = ("tables", "format")
    if not config.lake.is_local:
        yield here, "can be iceberg only where the lake is on a file system; use delta in a bucket"
    if config.lake.registered_in is not None:
        name = "database" if config.lake.database is not None else "catalog"
        yield ("lake", name), "cannot stand beside iceberg tables: they are in lake.iceberg"
    if config.tables.partition_by:
        yield ("tables", "partition_by"), "must be left out for iceberg tables"
    # the usual interval is for the lake's other tables
    if config.maintain.every is not None and "every" in config.maintain.model_fields_set:
        yield (
            ("maintain", "every"),
            "must be left out for iceberg tables: expire their snapshots with Spark or Trino",
        )


def catalog_conflicts(config: PipelineConfig) -> Iterator[Conflict]:
    """What a catalog needs of the other sections."""
    catalog = config.lake.registered_in
    if catalog is None:
        return
    here = ("lake", "catalog")
    own = config.spark.conf.get(_IMPLEMENTATION, SecretStr("")).get_secret_value()
    if isinstance(catalog, HiveCatalog):
        if config.spark.remote is not None:
            yield here, "must be of type spark with spark.remote: the server has the metastore"
        if own not in ("", "hive"):
            yield ("spark", "conf", _IMPLEMENTATION), "must be hive with lake.catalog of type hive"
    if isinstance(catalog, GlueCatalog) and not config.lake.path.startswith(("s3://", "s3a://")):
        yield here, "can be of type glue only where the lake is in S3"
    # a view has no place in them, and a folder's columns would be those of the first batch
    three = isinstance(catalog, SparkCatalog) and catalog.name is not None
    if config.tables.format == "parquet" and (three or catalog.type in ("unity", "glue")):
        yield ("tables", "format"), "must be delta in a catalog that keeps no views of ours"
    databricks = config.deploy.databricks if config.deploy is not None else None
    if databricks is not None and databricks.catalog is not None and len(catalog.names) > 1:
        if databricks.catalog != catalog.names[0]:
            yield (
                ("deploy", "databricks", "catalog"),
                "must be the same as lake.catalog.name, or be left out",
            )
