"""Plain folders of Parquet files as an entry of the table of formats."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distributary.delta.commit import APP, BATCH
from distributary.delta.damage import TAG
from distributary.delta.tables import only_below, reaching_table
from distributary.model.table import commented_schema
from distributary.publish.base import Held, Publisher
from distributary.publish.formats.readable import ReadableFiles
from distributary.publish.formats.table_format_entry import TableFormatEntry
from distributary.publish.formats.written import KnownFile, compared_sizes, rows_held
from distributary.publish.parquet_publisher import (
    HOME,
    RECORD,
    ParquetPublisher,
    ParquetTable,
    TableRecord,
    app_key,
    open_parquet,
)
from distributary.store.base import Store, at, local_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from distributary.config.pipeline_config import PipelineConfig


class ParquetFormat(TableFormatEntry):
    """Plain folders of Parquet files, whose readers need no log."""

    def publisher(self, config: PipelineConfig, spark: SparkSession | None) -> Publisher:
        """Return the publisher of a pipeline's tables."""
        return ParquetPublisher()

    def is_at(self, path: str) -> bool:
        """Return whether a folder has the description of a plain Parquet table."""
        return at(path).look(RECORD) is not None

    def open(self, path: str, version: int | None = None) -> ReadableFiles | None:
        """Open the newest version of a table for its rows; None if there is none."""
        opened = open_parquet(path)
        if opened is None:
            return None
        table, record = opened
        rows = table.dataset(record)
        if local_folder(path):
            only_below(table.folder, rows.files)
        return ReadableFiles(path, table.log().version, commented_schema(record.columns), rows)

    def written(self, path: str) -> WrittenParquet | None:
        """Open a table for its commits and files; None if there is none."""
        opened = open_parquet(path)
        return None if opened is None else WrittenParquet(*opened)

    def held(self, store: Store, app_id: str) -> Held | None:
        """Return the newest version and mark; None if there is no table."""
        opened = open_parquet(store.address)
        if opened is None:
            return None
        log = opened[0].log()
        return Held(True, log.version, log.newest(app_id))

    def has_commit(self, store: Store, app_id: str, batch: int, version: int) -> bool | None:
        """Return whether the log has a commit, by the name of its file; None without one."""
        name = f"{version:012d}-{app_key(app_id)}-{batch:012d}.json"
        return True if store.look(f"{HOME}/log/{name}") is not None else None

    def files_of(self, path: str, app_id: str, batch: int) -> tuple[str, ...] | None:
        """Return the files of a batch by their final names, which differ from the staged ones."""
        opened = open_parquet(path)
        if opened is None:
            return None
        table = opened[0]
        commit = table.log().of(app_id, batch)
        if commit is None:
            return ()
        return tuple(file["path"] for file in table.commit(commit).get("files", ()))


ENTRY = ParquetFormat()


@dataclass(frozen=True, slots=True)
class WrittenParquet:
    """A folder of Parquet files: only its own publisher makes commits there."""

    table: ParquetTable
    record: TableRecord

    def version(self) -> int:
        """Return the newest version."""
        return self.table.log().version

    def mark(self, app_id: str) -> int | None:
        """Return the newest batch of an application; None if it has committed none."""
        return self.table.log().newest(app_id)

    def rows(self) -> tuple[int | None, str]:
        """Return the number of rows; or None, and why it is not known."""
        with reaching_table(self.table.folder):
            return int(self.table.dataset(self.record).count_rows()), ""

    def files(self) -> tuple[int, list[str], list[str]]:
        """Return the number of files, those that are gone, and those of another size."""
        named = [file for commit in self._log() for file in commit.get("files", ())]
        sizes = {file["path"]: file["size"] for file in named}
        return len(named), *compared_sizes(sizes, self.table.store.sizes())

    def contents(self) -> list[KnownFile]:
        """Return the files that readers see; commits that have expired no longer name theirs."""
        commits = {f["path"]: (f, c.get(BATCH)) for c in self._log() for f in c.get("files", ())}
        size_of = self.table.store.sizes()
        found = []
        for path in self.table.dataset(self.record).files:
            file, batch = commits.get(path, ({}, None))
            size = file.get("size") or size_of(path) or 0
            held = rows_held(file.get("rows"), (batch, batch))
            found.append(KnownFile(path, size, file.get(TAG), held))
        return found

    def broken_vectors(self) -> Iterator[tuple[str, str]]:
        """Yield nothing: such a table has no deletion vectors."""
        return iter(())

    def log_damage(self) -> None:
        """Return None: its log repeats nothing."""
        return None

    def past(self) -> None:
        """Return None: the log does not tell what a commit did to rows."""
        return None

    def commits(self) -> list[tuple[str, int, int]]:
        """Return application, batch and rows of the commits of pipelines."""
        return [(c[APP], int(c[BATCH]), int(c["rows"])) for c in self._log() if APP in c]

    def _log(self) -> list[dict[str, Any]]:
        return [self.table.commit(commit) for commit in self.table.log().commits]
