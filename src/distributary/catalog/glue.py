"""Entries in AWS Glue's data catalog, in the form that Athena, EMR and Trino read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from distributary.catalog.base import (
    ABSENT,
    FINGERPRINT,
    FOREIGN,
    MADE,
    NOT_EMPTY,
    CatalogEntry,
    Found,
    text_type,
    was_made,
)
from distributary.config.catalog import GlueCatalogConfig
from distributary.errors import (
    CatalogError,
    CatalogUnavailableError,
    ErrorCode,
    SetupError,
    clean,
)
from distributary.store.base import hidden

if TYPE_CHECKING:
    from botocore.client import BaseClient

_ABSENT, _EXISTS = "EntityNotFoundException", "AlreadyExistsException"
_BUSY = frozenset(
    {
        "ConcurrentModificationException",
        "InternalServiceException",
        "OperationTimeoutException",
        "ResourceNotReadyException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
_LONGEST_COMMENT, _LONGEST_DESCRIPTION, _LONGEST_TYPE = 255, 2048, 131_072
"""Glue's limits in characters."""
_PLAIN_FORMAT = {
    # The formats that Spark writes for any data source table; readers of Delta ignore them.
    "InputFormat": "org.apache.hadoop.mapred.SequenceFileInputFormat",
    "OutputFormat": "org.apache.hadoop.hive.ql.io.HiveSequenceFileOutputFormat",
}
_SERDE = "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"


class GlueTables:
    """The entries of one database of Glue."""

    parallel = 4

    def __init__(self, config: GlueCatalogConfig, options: Mapping[str, str]) -> None:
        """Connect with the credentials of the lake's store, or else of the environment."""
        self._config = config
        self._options = {name.lower(): value for name, value in options.items()}
        self._account = {} if config.catalog_id is None else {"CatalogId": config.catalog_id}
        self._here = {"DatabaseName": config.schema_, **self._account}
        self._glue: Any = self._client()

    def prepare(self) -> None:
        """Create the database, if it does not exist."""
        with self._asking(self._config.schema_, absent=True) as request:
            self._glue.get_database(Name=self._config.schema_, **self._account)
        if request.absent:
            with self._asking(self._config.schema_, exists=True):
                wanted = {"Name": self._config.schema_, "Parameters": MADE}
                self._glue.create_database(DatabaseInput=wanted, **self._account)

    def entries(self) -> dict[str, Found]:
        """List all tables of the database, a hundred at a time."""
        entries: dict[str, Found] = {}
        with self._asking(self._config.schema_, absent=True):
            for page in self._glue.get_paginator("get_tables").paginate(**self._here):
                for table in page["TableList"]:
                    about = table.get("Parameters") or {}
                    place = (table.get("StorageDescriptor") or {}).get("Location")
                    entries[table["Name"].lower()] = Found(place or None, about.get(FINGERPRINT))
        return entries

    def create(self, entry: CatalogEntry) -> None:
        """Add an external table."""
        with self._asking(entry.name):
            self._glue.create_table(TableInput=_described(entry), **self._here)

    def update(self, entry: CatalogEntry) -> None:
        """Replace the entry; Glue keeps the version before."""
        with self._asking(entry.name):
            self._glue.update_table(TableInput=_described(entry), **self._here)

    def drop(self, name: str) -> None:
        """Delete an entry."""
        with self._asking(name, absent=True):
            self._glue.delete_table(Name=name.lower(), **self._here)

    def drop_schema(self) -> str:
        """Delete the database if it is ours and empty.

        Glue deletes what is in a database without a question. So what is in it is listed first; a
        table that another program adds between the two requests loses its entry.
        """
        with self._asking(self._config.schema_, absent=True) as request:
            found = self._glue.get_database(Name=self._config.schema_, **self._account)
        if request.absent:
            return ABSENT
        if not was_made(found["Database"].get("Parameters")):
            return FOREIGN
        with self._asking(self._config.schema_, absent=True):
            functions = self._glue.get_user_defined_functions(Pattern="*", **self._here)
            if self.entries() or functions["UserDefinedFunctions"]:
                return NOT_EMPTY
            self._glue.delete_database(Name=self._config.schema_, **self._account)
        return ""

    def close(self) -> None:
        """Close all connections."""
        self._glue.close()

    def _client(self) -> BaseClient:
        try:
            import boto3
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError
        except ImportError as error:
            raise SetupError(
                "AWS Glue needs a package that is not installed",
                code=ErrorCode.EXTRA_MISSING,
                where="lake.catalog.type",
                evidence=str(error),
                next_step="pip install 'distributary[glue]'",
            ) from error
        credentials = {
            "aws_access_key_id": self._options.get("aws_access_key_id"),
            "aws_secret_access_key": self._options.get("aws_secret_access_key"),
            "aws_session_token": self._options.get("aws_session_token"),
            "region_name": self._config.region or self._options.get("aws_region"),
        }
        try:
            return boto3.session.Session(**credentials).client(
                "glue",
                endpoint_url=self._config.endpoint,
                config=Config(
                    connect_timeout=10,
                    read_timeout=30,
                    retries={"mode": "standard", "max_attempts": 3},
                    max_pool_connections=self.parallel,
                ),
            )
        except (BotoCoreError, ValueError) as error:
            raise self._refused(error, "glue") from None

    @contextmanager
    def _asking(
        self, where: str, *, absent: bool = False, exists: bool = False
    ) -> Iterator[_Request]:
        from botocore.exceptions import BotoCoreError, ClientError

        request = _Request()
        try:
            yield request
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            request.absent = code == _ABSENT
            if not (absent and request.absent) and not (exists and code == _EXISTS):
                raise self._refused(error, where, busy=code in _BUSY) from None
        except BotoCoreError as error:
            missing = "Credential" in type(error).__name__ or "NoRegion" in type(error).__name__
            raise self._refused(error, where, busy=not missing) from None

    def _refused(self, error: Exception, where: str, *, busy: bool = False) -> CatalogError:
        kind = CatalogUnavailableError if busy else CatalogError
        return kind(
            "Glue did not answer" if busy else "Glue refused a request",
            where=".".join((*self._config.names, where)),
            evidence=hidden(clean(f"{type(error).__name__}: {error}"), self._options),
            next_step="the request is tried again; check credentials, region and the rights "
            "glue:GetTables, CreateTable, UpdateTable, GetDatabase and CreateDatabase",
        )


class _Request:
    """The outcome of a request."""

    absent = False


def _described(entry: CatalogEntry) -> dict[str, Any]:
    return {
        "Name": entry.name.lower(),
        "Description": entry.comment[:_LONGEST_DESCRIPTION],
        "TableType": "EXTERNAL_TABLE",
        "Parameters": {
            "EXTERNAL": "TRUE",
            # Athena, Spark and Trino recognize a Delta table by these parameters.
            "table_type": "DELTA",
            "classification": "delta",
            "spark.sql.sources.provider": "delta",
            FINGERPRINT: entry.fingerprint,
        },
        # A Delta table has its partitions in its log; Glue would need one request for each.
        "PartitionKeys": [],
        "StorageDescriptor": {
            "Columns": [
                {
                    "Name": field["name"],
                    "Type": text_type(field["type"])[:_LONGEST_TYPE],
                    "Comment": str(field["metadata"].get("comment") or "")[:_LONGEST_COMMENT],
                }
                for field in entry.fields
            ],
            "Location": entry.location,
            **_PLAIN_FORMAT,
            "SerdeInfo": {
                "SerializationLibrary": _SERDE,
                # Spark looks for the path of a data source table here.
                "Parameters": {"serialization.format": "1", "path": entry.location},
            },
        },
    }
