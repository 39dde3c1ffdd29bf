"""Entries in a catalog of a Spark session: its own, a Hive metastore, or a named one.

Spark reads the columns of a Delta table from the table's log at each query, so there is no copy
that could be outdated. A plain Parquet folder becomes a view: a catalog would keep its own copy of
columns and partitions, while a view reads the folder each time.

`CREATE TABLE` reads the table's log with Spark jobs, and `SHOW TABLE EXTENDED` sends a request to
the metastore for each table: too slow for a thousand tables. In a classic session with the
session's own catalog, the JVM interface of the catalog is used instead: it lists all tables at
once, and adds entries as copies of an existing one with another name and location. Only the first
entry is created with SQL. Sessions of Spark Connect and named catalogs only have SQL.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from distributary.catalog.base import (
    ABSENT,
    FOREIGN,
    MADE,
    NOT_EMPTY,
    CatalogEntry,
    Found,
    uri_of,
    was_made,
)
from distributary.config.catalog import HiveCatalogConfig, SparkCatalogConfig
from distributary.errors import CatalogError, CatalogUnavailableError, clean
from distributary.model.names import literal_sql, quote_sql
from distributary.model.table_format import TABLE_FORMATS
from distributary.publish.spark_publisher import no_glob

_FOREIGN = (PySparkException, Py4JError)
_LOCATION = re.compile(r"^Location: (.*)$", re.MULTILINE)
_VIEW = re.compile(r"^View Text: (.*)$", re.MULTILINE)
_PROPERTY = re.compile(r"\(([^(),]+),([^(),]*)\)")
_ABSENT = ("SCHEMA_NOT_FOUND", "NoSuchDatabase", "NoSuchNamespace")
_UNREACHABLE = re.compile(
    r"TTransportException|MetaException|ConnectException|SocketException|SocketTimeout"
    r"|UnknownHost|UNAVAILABLE|DEADLINE_EXCEEDED"
)
_NAME, _STORAGE, _SCHEMA, _PARTITIONS = 0, 2, 3, 5
"""The positions of these fields in Spark's `CatalogTable`."""


class SessionCatalog:
    """The entries of a session's catalog, by SQL or by the quicker JVM interface."""

    parallel = 1

    def __init__(self, spark: SparkSession, config: SparkCatalogConfig | HiveCatalogConfig) -> None:
        self._spark = spark
        self._config = config
        self._place = ".".join(map(quote_sql, config.names))
        quick = len(config.names) == 1 and _is_classic(spark)
        self._inner = _JvmCatalog(spark, config.schema_) if quick else None

    def prepare(self) -> None:
        """Create the schema, if it does not exist."""
        with _asking(self._place, "make the schema"):
            if self._config.needs_hive and not self._is_hive():
                raise CatalogError(
                    "this Spark session has no Hive metastore",
                    where="spark.sql.catalogImplementation",
                    evidence="the session existed before, or was started with other settings",
                    next_step="restart the process; under spark-submit, add "
                    "--conf spark.sql.catalogImplementation=hive",
                )
            properties = ", ".join(f"'{name}'='{value}'" for name, value in MADE.items())
            self._spark.sql(
                f"CREATE SCHEMA IF NOT EXISTS {self._place} WITH DBPROPERTIES ({properties})"
            )

    def entries(self) -> dict[str, Found]:
        """List all tables and views at once."""
        with _asking(self._place, "list the tables"):
            if self._inner is not None:
                return self._inner.entries()
            try:
                rows = self._spark.sql(f"SHOW TABLE EXTENDED IN {self._place} LIKE '*'").collect()
            except _FOREIGN as error:
                if any(word in str(error) for word in _ABSENT):
                    return {}
                raise
        return {
            row["tableName"].lower(): Found(_place_in(row["information"]))
            for row in rows
            if not row["isTemporary"]
        }

    def create(self, entry: CatalogEntry) -> None:
        """Add an entry."""
        with _asking(entry.name, "register a table"):
            if TABLE_FORMATS[entry.format].registered_as_view:
                name = self._full_name(entry.name)
                self._spark.sql(
                    f"CREATE VIEW {name} WITH SCHEMA EVOLUTION AS {_select(entry.location)}"
                )
            elif self._inner is None or not self._inner.add(entry):
                place = literal_sql(entry.location)
                self._spark.sql(
                    f"CREATE TABLE {self._full_name(entry.name)} USING delta LOCATION {place}"
                )
                if self._inner is not None:
                    self._inner.learn(entry.name)

    def update(self, entry: CatalogEntry) -> None:
        """Do nothing: the entry holds no copy."""

    def drop(self, name: str) -> None:
        """Remove an entry; a table outside of the warehouse keeps its files."""
        full = self._full_name(name)
        with _asking(name, "unregister a table"):
            try:
                self._spark.sql(f"DROP TABLE IF EXISTS {full}")
            except PySparkException as error:
                if "EXPECT_TABLE_NOT_VIEW" not in str(error) and "is a view" not in str(error):
                    raise
                self._spark.sql(f"DROP VIEW IF EXISTS {full}")

    def drop_schema(self) -> str:
        """Drop the schema if it is ours and empty, and its folder is empty, too."""
        with _asking(self._place, "drop the schema"):
            try:
                rows = self._spark.sql(f"DESCRIBE SCHEMA EXTENDED {self._place}").collect()
            except _FOREIGN as error:
                if any(word in str(error) for word in _ABSENT):
                    return ABSENT
                raise
            about = {str(row[0]).lower(): str(row[1]) for row in rows}
            properties = dict(_PROPERTY.findall(about.get("properties", "")))
            if not was_made(properties):
                return FOREIGN
            if self.entries():
                return NOT_EMPTY
            # the metastore deletes this folder with everything in it
            folder = about.get("location", "")
            if folder and not self._is_empty(folder):
                return f"files may be in its folder {folder}"
            self._spark.sql(f"DROP SCHEMA {self._place} RESTRICT")
        return ""

    def close(self) -> None:
        """Do nothing: the session belongs to the caller."""

    def _is_empty(self, folder: str) -> bool:
        """Return whether a folder has no files, as Spark sees it; only a classic session can."""
        if not _is_classic(self._spark):
            return False
        jvm: Any = self._spark._jvm  # noqa: SLF001 - PySpark has no public way to a file system
        session: Any = self._spark._jsparkSession  # noqa: SLF001 - likewise
        path = jvm.org.apache.hadoop.fs.Path(folder)
        files = path.getFileSystem(session.sessionState().newHadoopConf())
        return not files.exists(path) or len(files.listStatus(path)) == 0

    def _full_name(self, table: str) -> str:
        return f"{self._place}.{quote_sql(table)}"

    def _is_hive(self) -> bool:
        return self._spark.conf.get("spark.sql.catalogImplementation") == "hive"


class _JvmCatalog:
    """The session's own catalog, by its interface in the JVM."""

    def __init__(self, spark: SparkSession, schema: str) -> None:
        jvm: Any = spark._jvm  # noqa: SLF001 - PySpark has no public way to the interface
        # Each part of these names is a call to the JVM, so they are looked up once.
        self._some, self._uri = jvm.scala.Some, jvm.java.net.URI
        self._identifier = jvm.org.apache.spark.sql.catalyst.TableIdentifier
        # Columns and partitions are in the table's own log.
        self._no_columns: Any = jvm.org.apache.spark.sql.types.StructType()
        session: Any = spark._jsparkSession  # noqa: SLF001 - likewise
        self._catalog: Any = session.sessionState().catalog()
        self._schema = schema
        self._like: Any = None
        """A Delta table as the catalog has it: others differ in name and location only."""
        self._parts: list[Any] = []
        self._storage: list[Any] = []

    def entries(self) -> dict[str, Found]:
        """List all tables and views, with two requests."""
        catalog = self._catalog.externalCatalog()
        if not catalog.databaseExists(self._schema):
            return {}
        tables = catalog.getTablesByName(self._schema, catalog.listTables(self._schema))
        tables_left = tables.iterator()
        entries: dict[str, Found] = {}
        while tables_left.hasNext():
            table = tables_left.next()
            name = str(table.identifier().table())
            place, view = table.storage().locationUri(), table.viewText()
            if view.isDefined():
                entries[name.lower()] = Found(_folder_of(str(view.get())))
            else:
                entries[name.lower()] = Found(str(place.get()) if place.isDefined() else None)
        return entries

    def learn(self, table: str) -> None:
        """Take this Delta table as the template of further entries, if the catalog allows it."""
        with suppress(*_FOREIGN):
            like = self._catalog.getTableMetadata(self._named(table))
            self._parts, self._storage = _parts(like), _parts(like.storage())
            self._parts[_SCHEMA] = self._no_columns
            self._parts[_PARTITIONS] = self._no_columns.toSeq()
            self._like = like

    def add(self, entry: CatalogEntry) -> bool:
        """Add an entry; return False if that is not possible in this way."""
        if self._like is None:
            return False
        parts = list(self._parts)
        try:
            place = self._some(self._uri(uri_of(entry.location)))
            parts[_NAME] = self._named(entry.name)
            parts[_STORAGE] = parts[_STORAGE].copy(place, *self._storage[1:])
            self._catalog.createTable(self._like.copy(*parts), False, False)
        except _FOREIGN:
            return False
        return True

    def _named(self, table: str) -> Any:
        return self._identifier(table, self._some(self._schema))


def _parts(record: Any) -> list[Any]:
    """Return the fields of a Scala case class in the order that its `copy` takes."""
    count = sum(name.startswith("copy$default$") for name in dir(record))
    return [getattr(record, f"copy$default${number}")() for number in range(1, count + 1)]


def _is_classic(spark: SparkSession) -> bool:
    try:
        return spark.sparkContext is not None
    except PySparkException:
        return False


def _place_in(information: str) -> str | None:
    """Return the location in Spark's description of a table, or the folder that a view reads."""
    view = _VIEW.search(information)
    if view is not None:
        return _folder_of(view[1])
    # The last match counts: a comment before it may contain anything.
    places = _LOCATION.findall(information)
    return places[-1] if places else None


def _folder_of(query: str) -> str | None:
    """Return the folder that a registered view reads; None for a view of another program."""
    match = re.fullmatch(r"SELECT \* FROM parquet\.`(.*)`", query)
    return None if match is None else re.sub(r"\\(.)", r"\1", match[1].replace("``", "`"))


def _select(location: str) -> str:
    return f"SELECT * FROM parquet.{quote_sql(no_glob(location))}"  # noqa: S608 - quoted


@contextmanager
def _asking(where: str, doing: str) -> Iterator[None]:
    try:
        yield
    except _FOREIGN as error:
        text = str(error)
        kind = CatalogUnavailableError if _UNREACHABLE.search(text) else CatalogError
        raise kind(
            f"the catalog could not {doing}",
            where=where,
            evidence=clean(text),
            next_step="fix the reported problem; the request is tried again automatically",
        ) from error
