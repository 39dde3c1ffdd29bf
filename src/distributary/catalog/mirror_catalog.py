"""The catalogs of mirrors: a database, or a server with Iceberg's REST protocol.

Both are reached by pyiceberg, which is imported only for them. A commit to a database replaces the
address of the metadata if it is still the one before; a commit to a server is conditional on the
last snapshot.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import orjson

from distributary.config.lake import LakeConfig
from distributary.delta.tables import OvertakenError
from distributary.errors import (
    CatalogError,
    CatalogUnavailableError,
    ConfigError,
    DistributaryError,
    ErrorCode,
    clean,
)
from distributary.iceberg.iceberg_columns import Json
from distributary.iceberg.metadata import BrokenMirrorError, check_metadata, logged
from distributary.iceberg.pointer import (
    EARLIER_FOLDER,
    FOLDER,
    Current,
    MirrorCommit,
    Pointer,
    VersionHint,
)
from distributary.retries import attempts_on
from distributary.store.base import Store, same_place

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


class MirrorCatalog:
    """The catalog that `lake.iceberg` names; it is opened when it is first needed."""

    def __init__(self, lake: LakeConfig) -> None:
        self._lake = lake
        self._settings = lake.iceberg_catalog
        self._lock = threading.Lock()
        self._opened: Catalog | None = None

    @property
    def type(self) -> str:
        """Return the kind of catalog: none, sql or rest."""
        return self._settings.type or "none"

    def check(self) -> None:
        """Raise ConfigError if the catalog needs a package that is not installed."""
        if self.type != "none":
            try:
                import pyiceberg.catalog.sql  # noqa: F401
            except ModuleNotFoundError as error:
                raise ConfigError(
                    "catalogs of Iceberg need a package that is not installed",
                    code=ErrorCode.EXTRA_MISSING,
                    where="lake.iceberg.type",
                    evidence=str(error),
                    next_step="pip install 'distributary[iceberg]'",
                ) from error

    def pointer(self, name: str, store: Store) -> Pointer:
        """Return the pointer of a table's mirror. Raises CatalogError and ConfigError."""
        if self.type == "none":
            return VersionHint(store)
        kind = ServerPointer if self.type == "rest" else DatabasePointer
        with _asking(self.type):
            return kind(self._catalog(), (self._settings.namespace, name), store)

    def close(self) -> None:
        """Close the connections."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _catalog(self) -> Catalog:
        with self._lock:
            if self._opened is None:
                self.check()
                from sqlalchemy.exc import DBAPIError

                # of two processes that create a database at the same time, one gets an error
                again = attempts_on(DBAPIError, most=4, pause=0.05, longest=1.0, jitter=0.1)
                self._opened = again(self._open)
            return self._opened

    def _open(self) -> Catalog:
        from distributary.catalog.iceberg_catalog import open_catalog

        catalog = open_catalog(self._lake)
        catalog.create_namespace_if_not_exists(self._settings.namespace)
        return catalog


@contextmanager
def _asking(where: str) -> Iterator[None]:
    """Convert exceptions of a catalog to CatalogError."""
    try:
        yield
    except (DistributaryError, OvertakenError, BrokenMirrorError):
        raise
    except OSError as error:
        raise CatalogUnavailableError(
            "the catalog of Iceberg tables does not answer",
            where=where,
            evidence=clean(f"{type(error).__name__}: {error}"),
            next_step="start it, or correct lake.iceberg; the request is tried again automatically",
        ) from error
    except Exception as error:
        raise CatalogError(
            "the catalog of Iceberg tables refuses a mirror",
            where=where,
            evidence=clean(f"{type(error).__name__}: {error}"),
            next_step="fix the reported problem; the request is tried again automatically",
        ) from error


class _CatalogPointer(Pointer):
    def __init__(self, catalog: Catalog, name: tuple[str, str], store: Store) -> None:
        self._catalog, self._name, self._store = catalog, name, store

    @property
    def _where(self) -> str:
        return ".".join(self._name)

    def _refuse_other(self, location: str) -> CatalogError:
        return CatalogError(
            f"the name {self._where} belongs to another table in the catalog",
            code=ErrorCode.CATALOG_CONFLICT,
            where=self._store.address,
            evidence=f"that table is in {location[:300]}",
            next_step="give lake.iceberg another namespace, or the tables another prefix",
        )

    def forget(self) -> None:
        """Drop the entry, if it is that of this table; the files stay."""
        from pyiceberg.exceptions import NoSuchTableError

        # An entry whose metadata cannot be read is dropped as well.
        with suppress(BrokenMirrorError):
            if self.load() is None:
                return
        with _asking(self._where), suppress(NoSuchTableError):
            self._catalog.drop_table(self._name)


class DatabasePointer(_CatalogPointer):
    """A row of a database, as pyiceberg's SQL catalog keeps it."""

    def load(self) -> Current | None:
        """Return the metadata that the row names; None without a row."""
        from pyiceberg.catalog.sql import IcebergTables
        from sqlalchemy import select

        with _asking(self._where):
            query = select(IcebergTables.metadata_location).where(*self._keys())
            with self._sql.begin() as connection:
                row = connection.execute(query).first()
        if row is None:
            return None
        location = str(row[0])
        name = location.removeprefix(f"{self._store.address}/")
        if name.rpartition("/")[0] not in (FOLDER, EARLIER_FOLDER):
            raise self._refuse_other(location)
        try:
            document = orjson.loads(self._store.read(name))
        except (FileNotFoundError, orjson.JSONDecodeError) as error:
            raise BrokenMirrorError(f"{location}: {type(error).__name__}") from error
        return Current(check_metadata(document), location, location)

    def commit(self, before: Current | None, commit: MirrorCommit) -> Sequence[str]:
        """Write the document, then put its address into the row."""
        from pyiceberg.catalog.sql import IcebergTables
        from sqlalchemy import insert, update
        from sqlalchemy.exc import IntegrityError

        after, gone = commit.after, list[str]()
        if before is not None:
            after, gone = logged(after, before.metadata, before.location)
        name = f"{FOLDER}/{after['last-sequence-number']:05d}-{uuid.uuid4()}.metadata.json"
        self._store.write(name, orjson.dumps(after))
        location = f"{self._store.address}/{name}"
        values: Json = {"metadata_location": location}
        with _asking(self._where), self._sql.begin() as connection:
            if before is None:
                keys = ("catalog_name", "table_namespace", "table_name")
                values |= dict(zip(keys, (self._catalog.name, *self._name), strict=True))
                values["iceberg_type"] = "TABLE"
                try:
                    connection.execute(insert(IcebergTables).values(**values))
                except IntegrityError as error:
                    self._store.remove(name)
                    raise OvertakenError(f"{self._where} is taken") from error
            else:
                same = IcebergTables.metadata_location == before.token
                values["previous_metadata_location"] = before.token
                change = update(IcebergTables).where(*self._keys(), same).values(**values)
                if connection.execute(change).rowcount != 1:
                    self._store.remove(name)
                    raise OvertakenError(f"{self._where} has changed")
        return gone

    @property
    def _sql(self) -> Any:
        return self._catalog.engine  # type: ignore[attr-defined]

    def _keys(self) -> list[Any]:
        from pyiceberg.catalog.sql import IcebergTables

        return [
            IcebergTables.catalog_name == self._catalog.name,
            IcebergTables.table_namespace == self._name[0],
            IcebergTables.table_name == self._name[1],
        ]


class ServerPointer(_CatalogPointer):
    """A table on a server with Iceberg's REST protocol, which writes the documents itself."""

    def load(self) -> Current | None:
        """Return the server's metadata of the table; None if it has no such table."""
        from pyiceberg.exceptions import NoSuchTableError

        with _asking(self._where):
            try:
                table = self._catalog.load_table(self._name)
            except NoSuchTableError:
                return None
            document = orjson.loads(table.metadata.model_dump_json())
        if not same_place(table.location(), self._store.address):
            raise self._refuse_other(table.location())
        return Current(check_metadata(document), table.metadata_location, table)

    def commit(self, before: Current | None, commit: MirrorCommit) -> Sequence[str]:
        """Send the updates, on the condition that the last snapshot is still the last."""
        from pydantic import TypeAdapter
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
        from pyiceberg.io import load_file_io
        from pyiceberg.table import StagedTable
        from pyiceberg.table.metadata import TableMetadataV2
        from pyiceberg.table.update import TableRequirement, TableUpdate

        table = None if before is None else before.token
        if table is None:
            metadata = TableMetadataV2.model_validate_json(orjson.dumps(commit.after))
            table = StagedTable(self._name, metadata, "", load_file_io(), self._catalog)
        updates = TypeAdapter(tuple[TableUpdate, ...]).validate_json(orjson.dumps(commit.updates))
        needs = TypeAdapter(tuple[TableRequirement, ...])
        conditions = needs.validate_json(orjson.dumps(commit.requirements))
        with _asking(self._where):
            try:
                self._catalog.commit_table(table, conditions, updates)
            except (CommitFailedException, TableAlreadyExistsError) as error:
                raise OvertakenError(str(error)) from error
            except Exception:
                # The answer may have been lost, and not the commit.
                if not self._landed(commit):
                    raise
        return ()

    def _landed(self, commit: MirrorCommit) -> bool:
        with suppress(Exception):
            current = self.load()
            newest = commit.after["current-snapshot-id"]
            return current is not None and current.metadata["current-snapshot-id"] == newest
        return False
