"""A plain Parquet table: files that any reader reads, and beside them what their publisher knows.

<table>/0-columns.parquet         all columns and no row. It is the first file by name, and that is
                                  the one from which pandas and Spark take the columns
<table>/part-*.parquet            the rows; of a partitioned table in folders such as
                                  by_date=2026-11-15
<table>/_distributary/            passed over by readers of folders
    table.json                    columns, comments, partition columns
    log/                          one file per commit: version, application and batch
    intent.json                   the commit that is being made
    staging/                      files that wait for their commit
    lock
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from distributary import durable
from distributary.errors import PublishError
from distributary.model.table import STAGING, Column, is_below
from distributary.publish.base import Mark
from distributary.publish.columns import Field, columns_of
from distributary.publish.races import OvertakenError
from distributary.stores.known import local_folder, stay_inside

HOME = "_distributary"
COLUMNS_FILE = "0-columns.parquet"
TABLE_FORMAT = 1
_COMMIT = re.compile(r"(\d{12})-([0-9a-f]{16})-(\d{12})\.json")


@dataclass(frozen=True, slots=True)
class TableRecord:
    """What is kept of a table besides its rows."""

    name: str
    comment: str
    partition_by: tuple[str, ...]
    fields: list[Field]
    format: int = TABLE_FORMAT

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns, those that readers get from folder names not among them."""
        return columns_of(self.fields)

    def schema(self) -> pa.Schema:
        """The columns for Arrow."""
        return pa.schema([pa.field(c.name, c.type) for c in self.columns])


@dataclass(frozen=True, slots=True)
class Intent:
    """A commit that is being made: what a second try must finish or take back."""

    app_id: str
    batch: int
    files: list[str]


@dataclass(frozen=True, slots=True)
class Log:
    """The commits of a table, by the names of their files."""

    names: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Version to application and batch."""

    @property
    def version(self) -> int:
        """The newest version, or -1."""
        return max(self.names, default=-1)

    def newest(self, app_id: str) -> int | None:
        """The newest batch that the application has committed."""
        app = app_key(app_id)
        return max((batch for a, batch in self.names.values() if a == app), default=None)

    def version_of(self, app_id: str, batch: int) -> int | None:
        """The version that carries this batch, if the log still tells."""
        wanted = (app_key(app_id), batch)
        return next((v for v, found in self.names.items() if found == wanted), None)


def app_key(app_id: str) -> str:
    """An application in the names of files."""
    return hashlib.sha256(app_id.encode()).hexdigest()[:16]


class ParquetTable:
    """The folder of one table on this machine's file system."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._home = f"{folder}/{HOME}"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One publisher at a time; the lock goes with its process. Raises OvertakenError."""
        stay_inside(self.folder, f"{self._home}/log", f"{self.folder}/{STAGING}")
        os.makedirs(f"{self._home}/log", exist_ok=True)
        with open(f"{self._home}/lock", "a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise OvertakenError("another process is committing to the table") from error
            yield

    def record(self) -> TableRecord | None:
        """What is kept of the table, or None where there is no table."""
        data = self._read("table.json")
        if data is None:
            return None
        return TableRecord(**{**data, "partition_by": tuple(data["partition_by"])})

    def describe(self, record: TableRecord) -> None:
        """Keep the columns: first where readers look, so that they never lack one that is told."""
        sink = pa.BufferOutputStream()
        pq.write_table(record.schema().empty_table(), sink, store_schema=False)
        self._put(f"{self.folder}/{COLUMNS_FILE}", sink.getvalue().to_pybytes())
        self._put(f"{self._home}/table.json", json.dumps(asdict(record)).encode())

    def is_described(self) -> bool:
        """Whether the file from which readers take the columns is there."""
        return os.path.exists(f"{self.folder}/{COLUMNS_FILE}")

    def intent(self) -> Intent | None:
        """The commit that somebody began and did not end."""
        data = self._read("intent.json")
        if data is None:
            return None
        intent = Intent(**data)
        return replace(intent, files=[file for file in intent.files if is_below(file)])

    def intend(self, intent: Intent) -> None:
        """Say what is going to be done, in place of what was said before."""
        self._put(f"{self._home}/intent.json", json.dumps(asdict(intent)).encode())

    def forget_intent(self) -> None:
        """It is done, or undone."""
        self.remove(f"{HOME}/intent.json")

    def log(self) -> Log:
        """All commits that are still kept."""
        try:
            found = [_COMMIT.fullmatch(name) for name in os.listdir(f"{self._home}/log")]
        except FileNotFoundError:
            return Log()
        return Log({int(m[1]): (m[2], int(m[3])) for m in found if m is not None})

    def commit_path(self, version: int, mark: Mark) -> str:
        """Where the commit of a version is, or will be."""
        return f"{self._home}/log/{version:012d}-{app_key(mark.app_id)}-{mark.batch:012d}.json"

    def commit(self, version: int, log: Log) -> dict[str, Any]:
        """What a commit says."""
        app, batch = log.names[version]
        return self._read(f"log/{version:012d}-{app}-{batch:012d}.json") or {}

    def forget_commits(self, log: Log, versions: Sequence[int]) -> None:
        """Remove old commits from the log."""
        for version in versions:
            app, batch = log.names[version]
            self.remove(f"{HOME}/log/{version:012d}-{app}-{batch:012d}.json")

    def size_of(self, file: str) -> int | None:
        """The size of a file in the folder, or None if there is no such file."""
        try:
            return os.stat(f"{self.folder}/{file}").st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def remove(self, file: str) -> None:
        """Remove a file in the folder, if it is there."""
        try:
            os.unlink(f"{self.folder}/{file}")
        except (FileNotFoundError, NotADirectoryError):
            return

    def dataset(self, record: TableRecord) -> ds.Dataset:
        """The rows, by files with paths in the folder; a column that a file lacks is null."""
        within = pafs.SubTreeFileSystem(self.folder, pafs.LocalFileSystem())
        return ds.dataset("", schema=record.schema(), format="parquet", filesystem=within)

    def _read(self, name: str) -> Any:
        path = f"{self._home}/{name}"
        try:
            with open(path, encoding="utf-8") as file:
                return json.load(file)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError as error:
            raise PublishError(
                "a table's own record of itself cannot be read",
                where=path,
                evidence=type(error).__name__,
                next_step="put the file back from a copy; the table's rows are not affected",
            ) from error

    def _put(self, path: str, data: bytes) -> None:
        """Write a file that has all of its content as soon as it has its name, durably."""
        durable.replace(Path(path), data)


def format_of(path: str) -> str | None:
    """`delta`, `parquet`, or None where there is no table, or not on this machine."""
    folder = local_folder(path)
    if folder is None:
        return None
    if os.path.isdir(f"{folder}/_delta_log"):
        return "delta"
    return "parquet" if os.path.isfile(f"{folder}/{HOME}/table.json") else None


def open_parquet(path: str) -> tuple[ParquetTable, TableRecord] | None:
    """A plain Parquet table to read from, or None where there is none."""
    folder = local_folder(path)
    if folder is None or format_of(path) != "parquet":
        return None
    table = ParquetTable(folder)
    record = table.record()
    return None if record is None else (table, record)
