"""Iceberg tables as an entry of the table of formats; pyiceberg is an optional package."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distributary.delta.tables import only_below
from distributary.errors import ConfigError, PublishError
from distributary.publish.base import Held
from distributary.publish.formats.readable import ReadableFiles
from distributary.publish.formats.table_format_entry import TableFormatEntry
from distributary.publish.formats.written import KnownFile, compared_sizes, rows_held
from distributary.store.base import Store, at, local_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from distributary.config.pipeline_config import PipelineConfig
    from distributary.publish.iceberg_publisher import IcebergPublisher
    from distributary.publish.iceberg_table import IcebergTable


class IcebergFormat(TableFormatEntry):
    """Apache Iceberg, in a lake on a file system."""

    def publisher(self, config: PipelineConfig, spark: SparkSession | None) -> IcebergPublisher:
        """Return the publisher. Raises ConfigError if a package is not installed."""
        try:
            from distributary.publish.iceberg_publisher import IcebergPublisher
        except ModuleNotFoundError as error:
            raise ConfigError(
                "iceberg tables need a package that is not installed",
                where="tables.format",
                evidence=str(error),
                next_step="pip install 'distributary[iceberg]'",
            ) from error
        return IcebergPublisher(config.lake)

    def is_at(self, path: str) -> bool:
        """Return whether a folder has Iceberg's metadata."""
        folder = local_folder(path)
        if folder is None:
            return False
        with suppress(FileNotFoundError, NotADirectoryError):
            names = os.listdir(f"{folder}/metadata")
            return any(name.endswith(".metadata.json") for name in names)
        return False

    def open(self, path: str, version: int | None = None) -> ReadableFiles | None:
        """Open the newest version of a table for its rows; None if there is none."""
        table = _opened(path)
        if table is None:
            return None
        live = table.dataset()
        only_below(table.folder, live.files)
        return ReadableFiles(path, table.version, table.schema(), live)

    def written(self, path: str) -> WrittenIceberg | None:
        """Open a table for its commits and files; None if there is none."""
        table = _opened(path)
        return None if table is None else WrittenIceberg(table)

    def held(self, store: Store, app_id: str) -> Held | None:
        """Return the newest version and mark; None if there is no table."""
        try:
            table = _opened(store.address)
        except PublishError:
            return Held(True, tells_marks=False)
        return None if table is None else Held(True, table.version, table.mark(app_id))

    def drop(self, config: PipelineConfig, paths: Sequence[str]) -> list[str]:
        """Take tables out of the catalog of Iceberg tables and return their names."""
        return self.publisher(config, None).drop(paths)


ENTRY = IcebergFormat()


def _opened(path: str) -> IcebergTable | None:
    folder = local_folder(path)
    if folder is None:
        return None
    from distributary.publish.iceberg_table import open_iceberg

    return open_iceberg(folder)


@dataclass(frozen=True, slots=True)
class WrittenIceberg:
    """An Iceberg table, whose snapshots may have expired."""

    table: IcebergTable

    def version(self) -> int:
        """Return the newest version."""
        return self.table.version

    def mark(self, app_id: str) -> int | None:
        """Return the newest batch of an application; None if it has committed none."""
        return self.table.mark(app_id)

    def rows(self) -> tuple[int | None, str]:
        """Return the number of rows; or None, and why it is not known."""
        files = self.table.files()
        if files is None:
            return None, "it has delete files"
        return sum(file.record_count for file in files.values()), ""

    def files(self) -> tuple[int, list[str], list[str]]:
        """Return the number of files, those that are gone, and those of another size."""
        files = self.table.files() or {}
        sizes = {path: file.file_size_in_bytes for path, file in files.items()}
        return len(files), *compared_sizes(sizes, at(self.table.folder).size)

    def contents(self) -> list[KnownFile]:
        """Return the live files; snapshots that have not expired tell their checksums."""
        sums = self.table.checksums()
        return [
            KnownFile(
                path,
                file.file_size_in_bytes,
                sums.get(path),
                rows_held(file.record_count, (None,) * 2),
            )
            for path, file in (self.table.files() or {}).items()
        ]

    def broken_vectors(self) -> Iterator[tuple[str, str]]:
        """Yield nothing: vectors of Iceberg are for Iceberg's own tools."""
        return iter(())

    def log_damage(self) -> None:
        """Return None: no file of its log repeats another: each snapshot names its own."""
        return None

    def past(self) -> None:
        """Return None: the log does not tell what a commit did to rows."""
        return None

    def commits(self) -> list[tuple[str, int, int]]:
        """Return application, batch and rows of the commits of pipelines."""
        return self.table.commits()
