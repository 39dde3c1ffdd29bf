"""Iceberg tables through pyiceberg: their catalog, their rows, and the marks of their commits.

The catalog names the file in a table's folder `metadata` that is its current metadata. Metadata
files are synced to disk before the catalog names them.
"""

from __future__ import annotations

import io
import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import StaticTable
from pyiceberg.table.metadata import TableMetadata

from distributary.config.lake import LakeConfig
from distributary.delta.commit import APP, BATCH, SOURCE
from distributary.delta.damage import TAG
from distributary.delta.log import in_table
from distributary.delta.tables import committing
from distributary.errors import LakeUnavailableError
from distributary.model import layout
from distributary.model.manifest import Mark, parsed
from distributary.model.table import commented_schema
from distributary.publish.iceberg_types import columns_in
from distributary.store.base import refuse_links
from distributary.store.disk import sync

if TYPE_CHECKING:
    from pyiceberg.io import OutputStream
    from requests import Session

NAME = "distributary"
"""The name of the catalog; other readers need it for an SQL catalog, which keeps several catalogs
apart by name."""
MARK = f"{BATCH}."
"""The prefix of the properties that hold each application's newest batch."""
_ANSWER_SECONDS = 60.0


def open_catalog(lake: LakeConfig) -> Catalog:
    """Open the catalog that the pipeline file names, or the lake's own catalog."""
    settings = lake.iceberg_catalog
    properties = {"warehouse": settings.warehouse or lake.address}
    if settings.type == "rest":
        properties["py-catalog-impl"] = f"{__name__}.{PatientRestCatalog.__name__}"
    else:
        properties["type"] = "sql"
    if settings.uri is not None:
        properties["uri"] = settings.uri.get_secret_value()
    elif settings.type != "rest":
        home = layout.iceberg_catalog(lake.address)
        refuse_links(home)
        os.makedirs(os.path.dirname(home), exist_ok=True)
        # Other processes may be writing to the catalog: wait for them.
        properties["uri"] = f"sqlite:///{quote(home)}?timeout=60"
    if settings.token is not None:
        properties["token"] = settings.token.get_secret_value()
    return load_catalog(NAME, **properties, **{"py-io-impl": f"{__name__}.{SyncedFiles.__name__}"})


class PatientRestCatalog(RestCatalog):
    """A REST catalog with a timeout: pyiceberg itself would wait forever for an answer."""

    def _create_session(self) -> Session:
        session = super()._create_session()
        # Every request of the session goes through this method.
        session.request = partial(session.request, timeout=_ANSWER_SECONDS)  # type: ignore[method-assign]
        return session


class SyncedFiles(PyArrowFileIO):
    """File access that syncs metadata files to disk, so that a crash loses none of them."""

    def new_output(self, location: str) -> PyArrowFile:
        """Return a new file, which is synced when it is closed."""
        scheme, netloc, path = self.parse_location(location, self.properties)
        kind = _SyncedFile if scheme == "file" else PyArrowFile
        return kind(fs=self.fs_by_scheme(scheme, netloc), location=location, path=path)


class _SyncedFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> OutputStream:
        path = self.location.removeprefix("file://")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return _SyncedStream(path, "wb" if overwrite else "xb")


class _SyncedStream(io.BufferedWriter):
    def __init__(self, path: str, mode: str) -> None:
        super().__init__(io.FileIO(path, mode))
        self._folder = os.path.dirname(path)

    def close(self) -> None:
        if not self.closed:
            self.flush()
            os.fsync(self.fileno())
            super().close()
            sync(self._folder)


def open_iceberg(path: str) -> IcebergTable | None:
    """Open a table for reading, from the lake alone; None if there is no table.

    The lake's own catalog names the table's metadata. With a catalog elsewhere, the newest metadata
    file is used. An overtaken writer may have left that file; the next commit corrects this.
    """
    folder = f"{path}/metadata"
    locations: list[str] = []
    home = layout.iceberg_catalog(os.path.dirname(path))
    refuse_links(home)
    if os.path.isfile(home):
        with closing(sqlite3.connect(home, timeout=60)) as catalog, suppress(sqlite3.Error):
            rows = catalog.execute("select metadata_location from iceberg_tables").fetchall()
            locations = [place for (place,) in rows if os.path.dirname(place or "") == folder]
    if not locations:
        with suppress(FileNotFoundError, NotADirectoryError):
            names = [name for name in os.listdir(folder) if name.endswith(".metadata.json")]
            locations = sorted(f"{folder}/{name}" for name in names)
    if not locations:
        return None
    with committing(path, doing="read a table"):
        return IcebergTable(path, StaticTable.from_metadata(locations[-1]))


@dataclass(frozen=True, slots=True)
class IcebergTable:
    """One table, by its newest metadata."""

    folder: str
    table: StaticTable

    @property
    def version(self) -> int:
        """Return a number that grows with each commit."""
        return version_of(self.table.metadata)

    def mark(self, app_id: str) -> int | None:
        """Return the newest batch of an application; None if it has committed none."""
        return newest_batch(self.table.metadata, app_id)

    def commits(self) -> list[tuple[str, int, int]]:
        """Return application, batch and row count of the kept commits of pipelines."""
        kept = summaries(self.table.metadata)
        return [(f[APP], int(f[BATCH]), int(f.get("added-records", 0))) for f in kept]

    def files(self) -> dict[str, DataFile] | None:
        """Return the live files by their paths in the folder.

        None if the table has delete files.
        """
        with committing(self.folder, doing="read a table"):
            tasks = list(self.table.scan().plan_files())
        if any(task.delete_files for task in tasks):
            return None
        below = f"{self.folder}/"
        files = {}
        for task in tasks:
            path = task.file.file_path.removeprefix("file://").removeprefix(below)
            files[in_table(self.folder, path)] = task.file
        return files

    def checksums(self) -> dict[str, str]:
        """Return the checksums of files by their paths, from the kept snapshots."""
        tags = [parsed(facts[TAG]) for facts in summaries(self.table.metadata) if TAG in facts]
        return {path: crc for sums in tags for path, crc in sums.items()}

    def schema(self) -> pa.Schema:
        """Return the columns, with their comments as metadata."""
        return commented_schema(columns_in(self.table.metadata))

    def dataset(self) -> ds.Dataset:
        """Return the rows as a dataset; a column that a file lacks is null.

        Raises LakeUnavailableError for a table with deleted rows.
        """
        files = self.files()
        if files is None:
            raise LakeUnavailableError(
                "an Iceberg table with deleted rows cannot be read by Distributary",
                where=self.folder,
                evidence="the table has delete files",
                next_step="read the table with an Iceberg engine, or let it rewrite the files",
            )
        within = pafs.SubTreeFileSystem(self.folder, pafs.LocalFileSystem())
        return ds.dataset(list(files), schema=self.schema(), format="parquet", filesystem=within)


def version_of(metadata: TableMetadata) -> int:
    """Return a number that grows with each commit; 0 for Iceberg's format version 1."""
    return int(getattr(metadata, "last_sequence_number", 0))


def newest_batch(metadata: TableMetadata, app_id: str) -> int | None:
    """Return the newest batch that an application has committed to a table.

    None if there is none.
    """
    batches = [str(metadata.properties.get(f"{MARK}{app_id}", ""))]
    batches += [facts[BATCH] for facts in summaries(metadata) if facts[APP] == app_id]
    return max((int(batch) for batch in batches if batch.isdecimal()), default=None)


def summaries(metadata: TableMetadata) -> list[Mapping[str, str]]:
    """Return the summaries of the kept snapshots that pipelines committed."""
    kept = [s.summary.additional_properties for s in metadata.snapshots if s.summary]
    return [facts for facts in kept if APP in facts and BATCH in facts]


def source_of_mark(metadata: TableMetadata, mark: Mark) -> str | None:
    """Return the source range that the commit of a mark names; None without such a commit."""
    wanted = (mark.app_id, str(mark.batch))
    matches = (facts for facts in summaries(metadata) if (facts[APP], facts[BATCH]) == wanted)
    return next((facts.get(SOURCE) for facts in matches), None)
