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
import logging
import os
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from distributary.delta.columns import (
    ColumnConflictError,
    Field,
    columns_of,
    fields_of,
    merge_fields,
)
from distributary.delta.commit import SOURCE, check_partitioning, check_staged, facts
from distributary.delta.tables import OvertakenError, as_publish_error, until_not_overtaken
from distributary.errors import DistributaryError, PublishError
from distributary.model.manifest import Mark, TableEntry
from distributary.model.names import label_columns
from distributary.model.table import STAGED, STAGING, Column, is_below
from distributary.publish.base import CommittedMark, Outcome, Published
from distributary.store import disk
from distributary.store.base import local_folder, stay_inside
from distributary.store.disk import sync

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
        disk.replace(Path(path), data)


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


# Publishes plain Parquet folders, exactly once, with nothing but files and names.
#
# A staged file becomes visible by a hard link: all of it or nothing, and the staged one stays
# until the commit has landed, so that a table which cannot be written can still be parked. What
# is going to be linked is written down first. So a process may be killed between any two steps:
# the next one finds the links of the same batch and goes on, or takes back those of a batch that
# was staged again. Readers see the files of a batch one after the other, each of them whole.

_log = logging.getLogger(__name__)

KEPT_COMMITS = 1_000
"""How far back a table tells which source a batch came from; each is a small file."""
EXPIRY_SECONDS = 7 * 24 * 3600
"""Staged files that no commit ever took, left by a process that was killed while staging."""
_TIDY_EVERY = 50


class ParquetPublisher:
    """Adds staged files to folders of Parquet files, one commit per table and batch."""

    def columns(self, path: str) -> tuple[Column, ...] | None:
        """The table's columns now, or None where there is no table."""
        with _reaching(path, doing="read the columns of a table") as table:
            record = table.record()
            return None if record is None else record.columns

    def partition_columns(self, path: str) -> tuple[str, ...]:
        """The columns that the table is partitioned by; none where there is no table."""
        with _reaching(path, doing="read the partitioning of a table") as table:
            record = table.record()
            return () if record is None else record.partition_by

    def committed(self, path: str, mark: Mark) -> CommittedMark | None:
        """The newest mark of `mark.app_id`, and the source of the commit of `mark.batch`."""
        with _reaching(path, doing="read the marks of a table") as table:
            log = table.log()
            newest = log.newest(mark.app_id)
            if newest is None:
                return None
            version = log.version_of(mark.app_id, mark.batch)
            told = table.commit(version, log).get(SOURCE) if version is not None else None
            return CommittedMark(newest, told)

    def publish(self, entry: TableEntry, mark: Mark) -> Published:
        """Make the files of an entry visible, with its columns, and log the commit."""
        with _reaching(entry.table.path, doing="commit to a table") as table:
            return until_not_overtaken(lambda: _attempt(table, entry, mark))


@contextmanager
def _reaching(path: str, *, doing: str) -> Iterator[ParquetTable]:
    folder = local_folder(path)
    try:
        if folder is None:
            raise PublishError(
                f"cannot {doing}",
                where=path,
                evidence="plain Parquet tables are kept with links and locks of a file system",
                next_step="use tables.format: delta on an object store",
                reason="store",
            )
        yield ParquetTable(folder)
    except DistributaryError:
        raise
    except Exception as error:
        raise as_publish_error(error, doing=doing, path=path) from error


def _attempt(table: ParquetTable, entry: TableEntry, mark: Mark) -> Published:
    if os.path.lexists(f"{table.folder}/_delta_log"):
        raise PublishError(
            f"the folder of table {entry.table.name} holds a Delta table",
            where=table.folder,
            evidence="_delta_log",
            next_step="give the tables another prefix, or use tables.format: delta",
            reason="format",
        )
    with table.locked():
        log = table.log()
        newest = log.newest(mark.app_id)
        if newest is not None and newest >= mark.batch:
            _clear(table, entry, mark, log)
            return Published(entry.table.name, Outcome.SKIPPED, log.version)
        finals = {file.path: final_path(file.path, mark) for file in entry.files}
        _take_back_others(table, log, set(finals.values()))
        check_staged(entry, table.size_of)
        _describe(table, entry)
        version = _commit(table, entry, mark, finals, log.version + 1)
        log = table.log()
        _clear(table, entry, mark, log)
        if version % _TIDY_EVERY == 0:
            _tidy(table, log)
        return Published(entry.table.name, Outcome.PUBLISHED, version)


def final_path(staged: str, mark: Mark) -> str:
    """The name that readers see: always the same for one file, application and batch."""
    folder, _, name = staged.removeprefix(f"{STAGING}/").removesuffix(STAGED).rpartition("/")
    own = f"{name.removesuffix('.parquet')}-{app_key(mark.app_id)[:8]}.parquet"
    return f"{folder}/{own}" if folder else own


def _take_back_others(table: ParquetTable, log: Log, mine: set[str]) -> None:
    """What a killed process has linked of a batch that is not committed; its staged files stay."""
    intent = table.intent()
    if intent is None or log.version_of(intent.app_id, intent.batch) is not None:
        return
    _unlink(table, [path for path in intent.files if path not in mine])


def _unlink(table: ParquetTable, files: Iterable[str]) -> None:
    folders = set()
    for file in files:
        table.remove(file)
        folders.add(os.path.dirname(f"{table.folder}/{file}"))
    for folder in folders:
        # before the intent that names them may go: else a power failure could bring them back
        if os.path.isdir(folder):
            sync(folder)


def _describe(table: ParquetTable, entry: TableEntry) -> None:
    known = table.record()
    merged = merge_fields(known.fields if known else (), fields_of(entry.table.columns))
    partition_by = entry.table.partition_by
    if known is not None:
        check_partitioning(entry, known.partition_by)
    labels = set(label_columns(partition_by).values())
    clash = next((f for f in merged.fields if f["name"] in labels), None)
    if clash is not None:
        raise ColumnConflictError(clash["name"], "a folder of that name", clash["type"])
    if known is None or merged.changed or not table.is_described():
        name, comment = entry.table.name, entry.table.comment
        if known is not None:
            name, comment = known.name, known.comment
        table.describe(TableRecord(name, comment, partition_by, merged.fields))


def create_commit(path: str, text: str) -> None:
    """Put a commit in its place, durably, unless the place is taken (OvertakenError)."""
    if disk.create(Path(path), text.encode("utf-8", "replace")) is None:
        raise OvertakenError(f"{os.path.basename(path)} is taken")


def _commit(
    table: ParquetTable, entry: TableEntry, mark: Mark, finals: dict[str, str], version: int
) -> int:
    try:
        table.intend(Intent(mark.app_id, mark.batch, list(finals.values())))
        _link(table, finals)
        create_commit(table.commit_path(version, mark), _text(entry, mark, finals))
    except Exception:
        # it may have landed all the same: the log decides
        landed = table.log().version_of(mark.app_id, mark.batch)
        if landed is None:
            with suppress(OSError):
                _unlink(table, finals.values())
                table.forget_intent()
            raise
        return landed
    return version


def _link(table: ParquetTable, finals: dict[str, str]) -> None:
    folders: set[str] = {table.folder}
    for staged, final in finals.items():
        source, target = f"{table.folder}/{staged}", f"{table.folder}/{final}"
        folder = os.path.dirname(target)
        os.makedirs(folder, exist_ok=True)
        while folder not in folders:
            folders.add(folder)
            folder = os.path.dirname(folder)
        try:
            os.link(source, target)
        except FileExistsError:
            if not os.path.samefile(source, target):
                # the same file, brought back from parking
                draft = f"{table.folder}/{HOME}/.{uuid.uuid4().hex}.draft"
                os.link(source, draft)
                os.replace(draft, target)
    for folder in folders:
        sync(folder)


def _text(entry: TableEntry, mark: Mark, finals: dict[str, str]) -> str:
    files = [{"path": finals[f.path], "size": f.size, "rows": f.rows} for f in entry.files]
    return json.dumps({**facts(mark), "at": time.time(), "rows": entry.rows, "files": files})


def _clear(table: ParquetTable, entry: TableEntry, mark: Mark, log: Log) -> None:
    """Remove what a commit that has landed no longer needs."""
    version = log.version_of(mark.app_id, mark.batch)
    if version is None:
        return
    try:
        committed = {file["path"] for file in table.commit(version, log).get("files", ())}
        for file in entry.files:
            if final_path(file.path, mark) in committed:
                table.remove(file.path)
        intent = table.intent()
        if intent is not None and (intent.app_id, intent.batch) == (mark.app_id, mark.batch):
            table.forget_intent()
    except OSError:
        # no reader sees it, and it is looked for again
        _log.warning("a staged file is left in the folder of table %s", entry.table.name)


def _tidy(table: ParquetTable, log: Log) -> None:
    """Old commits, and files that a killed process has left and nobody will ever look for."""
    newest = {app: version for version, (app, _) in sorted(log.names.items())}
    old = [v for v in sorted(log.names)[:-KEPT_COMMITS] if v not in newest.values()]
    with suppress(OSError):
        table.forget_commits(log, old)
        for folder, _, names in os.walk(f"{table.folder}/{HOME}", topdown=False):
            staged = folder.startswith(f"{table.folder}/{STAGING}")
            for name in names:
                if (staged or name.startswith(".")) and _is_old(f"{folder}/{name}"):
                    os.unlink(f"{folder}/{name}")
            if staged and _is_old(folder):
                with suppress(OSError):
                    os.rmdir(folder)


def _is_old(path: str) -> bool:
    return time.time() - os.stat(path).st_mtime > EXPIRY_SECONDS
