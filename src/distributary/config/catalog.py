"""The settings of catalogs: Spark's own catalog, a Hive metastore, Unity Catalog, Glue, Iceberg."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, SecretStr

from distributary.config.alerts import SecretText
from distributary.config.base import (
    Conflict,
    HttpUrl,
    PositiveDuration,
    Section,
    Text,
    Texts,
    matching,
)
from distributary.model.table_format import TABLE_FORMATS

if TYPE_CHECKING:
    from distributary.config.pipeline_config import PipelineConfig

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


class _CatalogConfig(Section):
    """The settings that all catalogs share."""

    keeps_columns: ClassVar[bool] = False
    """Whether entries of the catalog hold a copy of columns and comments."""
    by_session: ClassVar[bool] = False
    """Whether tables are reached by name in the Spark session, and need one to be registered."""
    is_lasting: ClassVar[bool] = True
    """Whether entries always outlive the Spark session that made them."""
    needs_hive: ClassVar[bool] = False
    """Whether the Spark session must be connected to a Hive metastore."""

    schema_: Annotated[NamePart, Field(alias="schema", examples=["games"])]
    """Schema (database) of the tables; it is created when missing."""
    scheme: Annotated[Text, matching(r"[a-z][a-z0-9]*", "scheme", "must be such as s3a")] | None = (
        Field(default=None, examples=["s3a"])
    )
    """Scheme of table locations, instead of the scheme in `lake.path`: Hadoop readers use s3a for
    s3."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the parts of a table's full name before the table."""
        return (self.schema_,)

    @property
    def keeps_views(self) -> bool:
        """Return whether the catalog can hold views, such as those of Parquet tables."""
        return self.by_session

    @property
    def spark_conf(self) -> dict[str, str]:
        """Return the settings that a Spark session must be started with."""
        return {}

    @property
    def metastores(self) -> str:
        """Return the addresses of metastores as the file has them; empty for other catalogs."""
        return ""

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """Return hosts and ports of the metastores, one of which must answer."""
        return ()

    def conflicts_with(self, config: PipelineConfig) -> Iterator[Conflict]:
        """Yield settings of other sections that do not fit this type of catalog."""
        yield from ()


def _plain_schema(name: str) -> Iterator[Conflict]:
    """Yield a conflict when the schema has other characters than letters, digits and `_`."""
    if not re.fullmatch(r"\w+", name, re.ASCII):
        yield ("schema",), "must be letters, digits and _ here"


class SparkCatalogConfig(_CatalogConfig):
    """A catalog of the Spark session."""

    by_session: ClassVar[bool] = True
    is_lasting: ClassVar[bool] = False

    type: Literal["spark"]
    """Kind of catalog."""
    name: NamePart | None = Field(default=None, examples=["main"])
    """Name of a catalog that `spark.sql.catalog.NAME` configures in the session. When left out, the
    session's default catalog is used; its entries are lost with the session unless it is a
    metastore."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a schema name that Spark's own catalog does not accept."""
        if self.name in (None, "spark_catalog"):
            yield from _plain_schema(self.schema_)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the parts of a table's full name before the table."""
        return (self.schema_,) if self.name is None else (self.name, self.schema_)

    @property
    def keeps_views(self) -> bool:
        """Return false for a catalog with a name, which has tables only."""
        return self.name is None


class HiveCatalogConfig(_CatalogConfig):
    """A Hive metastore, reached by the Spark session."""

    by_session: ClassVar[bool] = True
    needs_hive: ClassVar[bool] = True

    type: Literal["hive"]
    """Kind of catalog."""
    uri: Annotated[Text, matching(_THRIFT.pattern, "uri", "must be such as thrift://host:9083")] | (
        None
    ) = Field(default=None, examples=["thrift://metastore:9083"])
    """Address of the metastore; taken from Spark's own settings when left out."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a schema name that a metastore does not accept."""
        yield from _plain_schema(self.schema_)

    def conflicts_with(self, config: PipelineConfig) -> Iterator[Conflict]:
        """Yield settings of a Spark session without this metastore."""
        if config.spark.remote is not None:
            yield (
                ("lake", "catalog"),
                "must be of type spark with spark.remote: the server has the metastore",
            )
        if config.spark.conf.get(_IMPLEMENTATION, SecretStr("")).get_secret_value() not in (
            "",
            "hive",
        ):
            yield ("spark", "conf", _IMPLEMENTATION), "must be hive with lake.catalog of type hive"

    @property
    def spark_conf(self) -> dict[str, str]:
        """Return the settings that a Spark session must be started with."""
        conf = {_IMPLEMENTATION: "hive"}
        return conf if self.uri is None else conf | {"spark.hadoop.hive.metastore.uris": self.uri}

    @property
    def metastores(self) -> str:
        """Return the addresses of metastores as the file has them."""
        return self.uri or ""

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """Return hosts and ports of the metastore."""
        servers = [uri.strip().removeprefix("thrift://") for uri in (self.uri or "").split(",")]
        parts = [server.rpartition(":") for server in servers if server]
        return tuple(
            (host.strip("[]"), int(port))
            if host and port.isdigit()
            else (f"{host}{port}", _METASTORE_PORT)
            for host, _, port in parts
        )


class UnityCatalogConfig(_CatalogConfig):
    """Unity Catalog, reached by its REST API."""

    keeps_columns: ClassVar[bool] = True

    type: Literal["unity"]
    """Kind of catalog."""
    name: NamePart = Field(examples=["main"])
    """Name of the catalog, which must exist."""
    url: HttpUrl = Field(examples=["https://workspace.cloud.databricks.com"])
    """Address of the server, without `/api/2.1/unity-catalog`."""
    token: SecretText | None = Field(default=None, examples=["${env:UC_TOKEN}"])
    """Bearer token. No token is sent when left out."""
    ca_location: Text | None = None
    """PEM file of the certificate authorities to trust. The system's authorities are trusted when
    left out."""
    timeout: PositiveDuration = timedelta(seconds=30)
    """Timeout of one request."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the parts of a table's full name before the table."""
        return (self.name, self.schema_)


class GlueCatalogConfig(_CatalogConfig):
    """The AWS Glue data catalog."""

    keeps_columns: ClassVar[bool] = True

    type: Literal["glue"]
    """Kind of catalog."""
    region: Text | None = Field(default=None, examples=["eu-central-1"])
    """AWS region; `aws_region` of `lake.storage_options` or of the environment when left out."""
    catalog_id: Annotated[Text, matching(r"\d{12}", "catalog_id", "must be 12 digits")] | None = (
        Field(default=None, examples=["123456789012"])
    )
    """AWS account of the catalog; the account of the credentials when left out."""
    endpoint: HttpUrl | None = Field(default=None, examples=["http://127.0.0.1:5000"])
    """Address of the service, instead of AWS's own address."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a schema that is not in lower case: Glue and other engines use lower case."""
        if self.schema_ != self.schema_.lower():
            yield ("schema",), "must be lower case for glue"

    def conflicts_with(self, config: PipelineConfig) -> Iterator[Conflict]:
        """Yield a lake that is not in S3."""
        if not config.lake.path.startswith(("s3://", "s3a://")):
            yield ("lake", "catalog"), "can be of type glue only where the lake is in S3"


CatalogConfig = Annotated[
    SparkCatalogConfig | HiveCatalogConfig | UnityCatalogConfig | GlueCatalogConfig,
    Field(discriminator="type"),
]


class IcebergConfig(Section):
    """Iceberg: the catalog of the tables, and which Delta tables are mirrored."""

    type: Literal["none", "sql", "rest"] | None = None
    """Kind of catalog. none: readers open a mirror by its path; sql: a database; rest: a server
    with Iceberg's REST protocol. When left out, sql where `tables.format` is iceberg and the lake
    is on a file system, and none elsewhere."""
    tables: Texts = Field(default=("*",), examples=[["silver_*"]])
    """Delta tables that are mirrored, with the wildcards `*` and `?`."""
    every: PositiveDuration = Field(default=timedelta(minutes=1), examples=["5m"])
    """How often mirrors are brought up to date. All commits of a table since the last time become
    one snapshot."""
    keep: PositiveDuration = Field(default=timedelta(hours=1), examples=["1d"])
    """How long older snapshots of a mirror are kept."""
    uri: SecretText | None = Field(default=None, examples=["https://catalog.example.com"])
    """Address of the server, or URL of the database in the form of SQLAlchemy. For sql, a SQLite
    file below `_distributary` in the lake when left out."""
    warehouse: Text | None = Field(default=None, examples=["main"])
    """Name of the warehouse on the server; the path of the lake when left out."""
    namespace: NamePart = "default"
    """Namespace of the tables; it is created when missing."""
    token: SecretText | None = Field(default=None, examples=["${env:ICEBERG_TOKEN}"])
    """Bearer token for rest. No token is sent when left out."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a server without an address, and settings without a server or a database."""
        if self.type == "rest" and self.uri is None:
            yield (), "needs uri for type rest, such as uri: https://catalog.example.com"
        if self.type != "rest" and self.token is not None:
            yield ("token",), "has no effect without type rest: put the password into uri"
        if self.type == "none":
            for name in ("uri", "warehouse", "namespace"):
                if name in self.model_fields_set:
                    yield (name,), "has no effect for type none"
        if self.type is None and self.uri is not None:
            yield ("type",), "is needed with uri: sql or rest"

    def mirrors(self, table: str) -> bool:
        """Return whether a Delta table is mirrored."""
        return any(fnmatchcase(table, pattern) for pattern in self.tables)


def format_conflicts(config: PipelineConfig) -> Iterator[Conflict]:
    """Yield settings that the format of the tables does not support."""
    name = config.tables.format
    format_ = TABLE_FORMATS[name]
    iceberg = config.lake.iceberg
    if iceberg is None:
        return
    if not format_.mirrored:
        yield ("lake", "iceberg"), f"has no effect for {name} tables"
    if format_.always_mirrored and "tables" in iceberg.model_fields_set:
        yield ("lake", "iceberg", "tables"), f"must be left out for {name} tables: all are mirrored"
    if iceberg.type == "sql" and iceberg.uri is None and not config.lake.is_local:
        yield ("lake", "iceberg", "uri"), "is needed for type sql where the lake is in a bucket"


def catalog_conflicts(config: PipelineConfig) -> Iterator[Conflict]:
    """Yield settings of other sections that do not fit the catalog."""
    catalog = config.lake.registered_in
    if catalog is None:
        return
    yield from catalog.conflicts_with(config)
    # registered as a table, a plain folder would keep the columns of its first batch
    if TABLE_FORMATS[config.tables.format].registered_as_view and not catalog.keeps_views:
        yield (
            ("tables", "format"),
            "must be delta: this catalog cannot hold the views of Parquet tables",
        )
    databricks = config.deploy.databricks if config.deploy is not None else None
    if databricks is not None and databricks.catalog is not None and len(catalog.names) > 1:
        if databricks.catalog != catalog.names[0]:
            yield (
                ("deploy", "databricks", "catalog"),
                "must be the same as lake.catalog.name, or be left out",
            )
