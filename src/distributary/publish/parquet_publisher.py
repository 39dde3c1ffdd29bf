"""Plain Parquet tables: files for any reader, and beside them the publisher's own log.

<table>/0-columns.parquet         all columns and no row. It is the first file by name, from
                                  which pandas and Spark take the columns
<table>/part-*.parquet            the rows; of a partitioned table in folders such as
                                  by_date=2026-11-15
<table>/_distributary/            skipped by readers of folders
    table.json                    columns, comments, partition columns
    log/                          one file per commit: version, application and batch
    intent.json                   the commit under way; in a bucket intent-<application>
    staging/                      files that wait for their commit
    lock                          on a file system only
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
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from distributary.delta.column_merge import (
    ColumnConflictError,
    Field,
    columns_of,
    fields_of,
    merge_fields,
)
from distributary.delta.commit import SOURCE, check_partitioning, check_staged, facts
from distributary.delta.damage import TAG
from distributary.delta.tables import (
    OvertakenError,
    committing,
    lake_files,
    until_not_overtaken,
)
from distributary.errors import PublishError, StagedFileError
from distributary.model.manifest import Mark, TableEntry
from distributary.model.names import label_columns
from distributary.model.table import STAGED, STAGING, Column, is_below
from distributary.publish.base import CommittedMark, Outcome, Published, TableColumns
from distributary.store.base import at, is_remote, stay_inside
from distributary.store.disk import sync

HOME = "_distributary"
COLUMNS_FILE = "0-columns.parquet"
RECORD = f"{HOME}/table.json"
TABLE_FORMAT = 1
_COMMIT = re.compile(r"(\d{12})-([0-9a-f]{16})-(\d{12})\.json")


@dataclass(frozen=True, slots=True)
class TableRecord:
    """The stored description of a table: its columns, comment and partitioning."""

    name: str
    comment: str
    partition_by: tuple[str, ...]
    fields: list[Field]
    format: int = TABLE_FORMAT

    @property
    def columns(self) -> tuple[Column, ...]:
        """Return the columns, without the partition columns that readers get from folder names."""
        return columns_of(self.fields)

    def schema(self) -> pa.Schema:
        """Return the columns as an Arrow schema."""
        return pa.schema([pa.field(c.name, c.type) for c in self.columns])


@dataclass(frozen=True, slots=True)
class Intent:
    """A commit under way, which a second attempt must finish or undo."""

    app_id: str
    batch: int
    files: list[str]


class ParquetCommit(NamedTuple):
    """A commit, by the name of its file; in a bucket two applications may share a version."""

    version: int
    app: str
    batch: int

    @property
    def file(self) -> str:
        """Return the path of the commit's file in the table's folder."""
        return f"{HOME}/log/{self.version:012d}-{self.app}-{self.batch:012d}.json"


@dataclass(frozen=True, slots=True)
class ParquetLog:
    """The commits of a table, by the names of their files."""

    commits: tuple[ParquetCommit, ...] = ()

    @property
    def version(self) -> int:
        """Return the newest version, or -1."""
        return max((commit.version for commit in self.commits), default=-1)

    def newest(self, app_id: str) -> int | None:
        """Return the newest batch that the application has committed; None if there is none."""
        app = app_key(app_id)
        return max((commit.batch for commit in self.commits if commit.app == app), default=None)

    def of(self, app_id: str, batch: int) -> ParquetCommit | None:
        """Return the commit of this batch, if it is still in the log."""
        wanted = (app_key(app_id), batch)
        return next((c for c in self.commits if (c.app, c.batch) == wanted), None)


def app_key(app_id: str) -> str:
    """Return the short form of an application id that is used in file names."""
    return hashlib.sha256(app_id.encode()).hexdigest()[:16]


class ParquetTable:
    """The folder of one table, on a disk or in a bucket."""

    def __init__(self, folder: str) -> None:
        self.store = at(folder)
        self.folder = self.store.address
        self.in_bucket = is_remote(self.folder)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the table for one publisher; the lock ends with its process. Raises OvertakenError.

        A bucket has no locks. There each application has its own intent file, which only the owner
        of its checkpoint's claim uses, and columns are changed by compare-and-swap.
        """
        if self.in_bucket:
            yield
            return
        stay_inside(self.folder, f"{self.folder}/{HOME}/log", f"{self.folder}/{STAGING}")
        os.makedirs(f"{self.folder}/{HOME}/log", exist_ok=True)
        with open(f"{self.folder}/{HOME}/lock", "a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise OvertakenError("another process is committing to the table") from error
            yield

    def record(self) -> TableRecord | None:
        """Read the table's description; None if there is no table."""
        data = self._read(RECORD)
        if data is None:
            return None
        return TableRecord(**{**data, "partition_by": tuple(data["partition_by"])})

    def describe(self, record: TableRecord, *, instead_of: str | None = None) -> None:
        """Write the columns file for readers, then the table's description.

        In a bucket, replace exactly the version `instead_of`. Raises OvertakenError.
        """
        self.show(record)
        data = json.dumps(asdict(record)).encode()
        if not self.in_bucket:
            self.store.write(RECORD, data)
        elif instead_of is None:
            _refuse_overtaken(self.store.create(RECORD, data), RECORD)
        else:
            _refuse_overtaken(self.store.swap(RECORD, data, unchanged=instead_of), RECORD)

    def show(self, record: TableRecord) -> None:
        """Write the file from which readers take the columns."""
        sink = pa.BufferOutputStream()
        pq.write_table(record.schema().empty_table(), sink, store_schema=False)
        self.store.write(COLUMNS_FILE, sink.getvalue().to_pybytes())

    def shows(self, record: TableRecord) -> bool:
        """Return whether the columns file exists and, in a bucket, has all columns."""
        if not self.in_bucket:
            return os.path.exists(f"{self.folder}/{COLUMNS_FILE}")
        try:
            shown = pq.read_schema(pa.BufferReader(self.store.read(COLUMNS_FILE)))
        except (FileNotFoundError, pa.ArrowInvalid):
            return False
        # Of two applications that add columns, the slower one may have written an older file last.
        return set(record.schema().names) <= set(shown.names)

    def intent(self, app_id: str) -> Intent | None:
        """Read the commit that was begun and not finished; in a bucket, by this application."""
        data = self._read(self._intent(app_id))
        if data is None:
            return None
        intent = Intent(**data)
        return replace(intent, files=[file for file in intent.files if is_below(file)])

    def intend(self, intent: Intent) -> None:
        """Write the intent of a commit, in place of any earlier one."""
        self.store.write(self._intent(intent.app_id), json.dumps(asdict(intent)).encode())

    def forget_intent(self, app_id: str) -> None:
        """Remove the intent; in a bucket, the next intent replaces it, which saves a request."""
        if not self.in_bucket:
            self.remove([self._intent(app_id)])

    def log(self) -> ParquetLog:
        """Return all commits that are still kept."""
        if self.in_bucket:
            names = [file.name.rpartition("/")[2] for file in self.store.files(f"{HOME}/log")]
        else:
            try:
                names = os.listdir(f"{self.folder}/{HOME}/log")
            except FileNotFoundError:
                return ParquetLog()
        matches = [_COMMIT.fullmatch(name) for name in names]
        return ParquetLog(
            tuple(ParquetCommit(int(m[1]), m[2], int(m[3])) for m in matches if m is not None)
        )

    def commit(self, commit: ParquetCommit) -> dict[str, Any]:
        """Read the content of a commit; empty if it is gone."""
        return self._read(commit.file) or {}

    def remove(self, files: Sequence[str]) -> None:
        """Remove files in the folder, if they exist."""
        with suppress(NotADirectoryError):
            self.store.remove_files(files)

    def dataset(self, record: TableRecord) -> ds.Dataset:
        """Return the rows as a dataset; a column that a file lacks is null."""
        within = lake_files(self.folder)
        schema = record.schema()
        return self.store.listed_by(
            lambda: ds.dataset("", schema=schema, format="parquet", filesystem=within)
        )

    def _intent(self, app_id: str) -> str:
        return f"{HOME}/intent-{app_key(app_id)}.json" if self.in_bucket else f"{HOME}/intent.json"

    def _read(self, name: str) -> Any:
        try:
            return json.loads(self.store.read(name))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError as error:
            raise PublishError(
                "the description or log of a plain Parquet table cannot be read",
                where=f"{self.folder}/{name}",
                evidence=type(error).__name__,
                next_step="restore the file from a backup; the table's rows are not affected",
            ) from error


def _refuse_overtaken(version: str | None, name: str) -> None:
    if version is None:
        raise OvertakenError(f"another process has changed {name}")


def holds_delta(entry: TableEntry) -> PublishError:
    """Return the error for a folder that already holds a Delta table."""
    return PublishError(
        f"the folder of table {entry.table.name} holds a Delta table",
        where=entry.table.path,
        evidence="_delta_log",
        next_step="give the tables another prefix, or use tables.format: delta",
        reason="format",
    )


def open_parquet(path: str) -> tuple[ParquetTable, TableRecord] | None:
    """Open a plain Parquet table for reading; None if there is none."""
    if not is_remote(path) and at(path).exists("_delta_log"):
        return None
    table = ParquetTable(path)
    record = table.record()
    return None if record is None else (table, record)


# Publishing to plain Parquet folders, exactly once, with nothing but files and names.
# A staged file becomes visible by a hard link, or in a bucket by a copy within the store: as a
# whole or not at all. The staged file stays until the commit has landed, so that a table which
# cannot be written can still be parked. The visible names are written to an intent first. A process
# may therefore be killed between any two steps: the next process finds the intent of the same batch
# and continues, or removes the files of a batch that was staged again. Readers see the files of a
# batch appear one after the other, each of them whole.

_log = logging.getLogger(__name__)

KEPT_COMMITS = 1_000
"""The number of commits that a table keeps, to know their sources; each is a small file."""
EXPIRY_SECONDS = 7 * 24 * 3600
"""The age at which staged files without a commit are deleted; killed processes leave them."""
_TIDY_EVERY = 50
_COPIES = 8
"""The number of files of a table that a bucket copies at the same time."""


class ParquetPublisher:
    """A publisher that adds files to Parquet folders, with one commit per table and batch."""

    def current_columns(self, path: str) -> TableColumns | None:
        """Return the table's current columns and partitioning; None if there is no table."""
        with _reaching(path, doing="read the columns of a table") as table:
            record = table.record()
            return None if record is None else TableColumns(record.columns, record.partition_by)

    def committed(self, path: str, mark: Mark) -> CommittedMark | None:
        """Return the newest mark of `mark.app_id`, and the source of the commit of `mark.batch`."""
        with _reaching(path, doing="read the marks of a table") as table:
            log = table.log()
            newest = log.newest(mark.app_id)
            if newest is None:
                return None
            commit = log.of(mark.app_id, mark.batch)
            source = table.commit(commit).get(SOURCE) if commit is not None else None
            return CommittedMark(newest, source)

    def publish(self, entry: TableEntry, mark: Mark) -> Published:
        """Make the files of an entry visible, with its columns, and log the commit."""
        with _reaching(entry.table.path, doing="commit to a table") as table:
            return until_not_overtaken(lambda: _attempt(table, entry, mark))


@contextmanager
def _reaching(path: str, *, doing: str) -> Iterator[ParquetTable]:
    with committing(path, doing=doing):
        yield ParquetTable(path)


def _attempt(table: ParquetTable, entry: TableEntry, mark: Mark) -> Published:
    if not table.in_bucket:
        # This check comes first, because taking the lock creates a file.
        _refuse_delta(table, entry)
    with table.locked():
        log = table.log()
        if table.in_bucket and log.version < 0:
            _refuse_delta(table, entry)
        newest = log.newest(mark.app_id)
        if newest is not None and newest >= mark.batch:
            _clear(table, mark, _committed_of(table, entry, mark, log))
            return Published(entry.table.name, Outcome.SKIPPED, log.version)
        finals = {file.path: final_path(file.path, mark) for file in entry.files}
        _take_back_others(table, mark, log, set(finals.values()))
        _check_staged(table, entry, mark)
        _describe(table, entry)
        version = _commit(table, entry, mark, finals, log.version + 1)
        _clear(table, mark, [file.path for file in entry.files])
        if version % _TIDY_EVERY == 0:
            _tidy(table, table.log())
        return Published(entry.table.name, Outcome.PUBLISHED, version)


def _refuse_delta(table: ParquetTable, entry: TableEntry) -> None:
    if table.in_bucket:
        held = table.store.exists("_delta_log") or table.store.look("_delta_log") is not None
    else:
        held = os.path.lexists(f"{table.folder}/_delta_log")
    if held:
        raise holds_delta(entry)


def _check_staged(table: ParquetTable, entry: TableEntry, mark: Mark) -> None:
    try:
        check_staged(entry, table.store.sizes(STAGING) if entry.files else table.store.size)
    except StagedFileError:
        # There is no lock: another process may have committed and removed the files just now.
        if table.in_bucket and table.log().of(mark.app_id, mark.batch) is not None:
            raise OvertakenError("another process has committed the batch") from None
        raise


def final_path(staged: str, mark: Mark) -> str:
    """Return the visible name of a staged file; it depends only on file, application and batch."""
    folder, _, name = staged.removeprefix(f"{STAGING}/").removesuffix(STAGED).rpartition("/")
    unique = f"{name.removesuffix('.parquet')}-{app_key(mark.app_id)[:8]}.parquet"
    return f"{folder}/{unique}" if folder else unique


def _take_back_others(table: ParquetTable, mark: Mark, log: ParquetLog, mine: set[str]) -> None:
    """Remove the visible files of a batch that a killed process did not commit.

    Its staged files stay. The files `mine` of the current batch stay too.
    """
    intent = table.intent(mark.app_id)
    if intent is None or log.of(intent.app_id, intent.batch) is not None:
        return
    newest = log.newest(intent.app_id)
    if newest is not None and newest >= intent.batch:
        # The commit landed, but is so old that the log no longer has it.
        return
    _unlink(table, [path for path in intent.files if path not in mine])


def _unlink(table: ParquetTable, files: Iterable[str]) -> None:
    files = list(files)
    table.remove(files)
    folders = {os.path.dirname(f"{table.folder}/{file}") for file in files}
    for folder in () if table.in_bucket else folders:
        # Synced before the intent is removed: otherwise a power failure could bring the files back.
        if os.path.isdir(folder):
            sync(folder)


def _describe(table: ParquetTable, entry: TableEntry) -> None:
    record = table.record()
    wanted = _wanted(entry, record)
    if wanted is not None and table.in_bucket:
        # The swap must replace exactly the version that was read.
        stored = table.store.look(RECORD)
        wanted = _wanted(entry, table.record() if stored is not None else None)
        if wanted is not None:
            table.describe(wanted, instead_of=None if stored is None else stored.version)
    elif wanted is not None:
        table.describe(wanted)
    elif record is not None and not table.shows(record):
        table.show(record)


def _wanted(entry: TableEntry, record: TableRecord | None) -> TableRecord | None:
    """Return the table's new description; None if it does not change."""
    merged = merge_fields(record.fields if record else (), fields_of(entry.table.columns))
    partition_by = entry.table.partition_by
    if record is not None:
        check_partitioning(entry, record.partition_by)
    labels = set(label_columns(partition_by).values())
    clash = next((f for f in merged.fields if f["name"] in labels), None)
    if clash is not None:
        raise ColumnConflictError(clash["name"], "a folder of that name", clash["type"])
    if record is None:
        return TableRecord(entry.table.name, entry.table.comment, partition_by, merged.fields)
    return replace(record, fields=merged.fields) if merged.changed else None


def _commit(
    table: ParquetTable, entry: TableEntry, mark: Mark, finals: dict[str, str], version: int
) -> int:
    try:
        table.intend(Intent(mark.app_id, mark.batch, list(finals.values())))
        if table.in_bucket:
            _copy(table, finals)
        else:
            _link(table, finals)
        commit = ParquetCommit(version, app_key(mark.app_id), mark.batch)
        create_commit(table, commit, _text(entry, mark, finals))
    except OvertakenError:
        # Another process has committed the same batch, so the visible files stay.
        raise
    except Exception:
        # The commit may have landed although an error was raised: read the log.
        landed = table.log().of(mark.app_id, mark.batch)
        if landed is not None:
            return landed.version
        if not table.in_bucket:
            with suppress(OSError):
                _unlink(table, finals.values())
                table.forget_intent(mark.app_id)
        # In a bucket the next process continues or undoes the commit: a process that lost its claim
        # without noticing must not remove files that another process is about to commit.
        raise
    return version


def create_commit(table: ParquetTable, commit: ParquetCommit, text: str) -> None:
    """Create a commit's file durably, unless it exists (OvertakenError)."""
    _refuse_overtaken(table.store.create(commit.file, text.encode("utf-8", "replace")), commit.file)


def _copy(table: ParquetTable, finals: dict[str, str]) -> None:
    def named(pair: tuple[str, str]) -> None:
        try:
            table.store.copy(pair[0], to=table.store, named=pair[1])
        except FileNotFoundError:
            # The staged file existed a moment ago: the next attempt reads the log again.
            raise OvertakenError("a staged file is gone") from None

    if len(finals) <= 1:
        for pair in finals.items():
            named(pair)
        return
    with ThreadPoolExecutor(min(_COPIES, len(finals))) as pool:
        for _ in pool.map(named, finals.items()):
            pass


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
                # The same file, restored from parking: replace it.
                draft = f"{table.folder}/{HOME}/.{uuid.uuid4().hex}.draft"
                os.link(source, draft)
                os.replace(draft, target)
    for folder in folders:
        sync(folder)


def _text(entry: TableEntry, mark: Mark, finals: dict[str, str]) -> str:
    files = [
        {"path": finals[f.path], "size": f.size, "rows": f.rows, TAG: f.checksum}
        for f in entry.files
    ]
    return json.dumps({**facts(mark), "at": time.time(), "rows": entry.rows, "files": files})


def _committed_of(table: ParquetTable, entry: TableEntry, mark: Mark, log: ParquetLog) -> list[str]:
    """Return the staged files of an entry that the kept commit of its batch contains."""
    commit = log.of(mark.app_id, mark.batch)
    files = table.commit(commit).get("files", ()) if commit is not None else ()
    committed = {file["path"] for file in files}
    return [file.path for file in entry.files if final_path(file.path, mark) in committed]


def _clear(table: ParquetTable, mark: Mark, staged: Sequence[str]) -> None:
    """Remove the staged files and the intent of a commit that has landed."""
    try:
        table.remove(staged)
        if table.in_bucket:
            return
        intent = table.intent(mark.app_id)
        if intent is not None and (intent.app_id, intent.batch) == (mark.app_id, mark.batch):
            table.forget_intent(mark.app_id)
    except OSError:
        # Readers do not see leftover files, and the next cleanup removes them.
        _log.warning("a staged file is left in %s", table.folder)


def _tidy(table: ParquetTable, log: ParquetLog) -> None:
    """Remove old commits, and the leftover files of killed processes."""
    commits = sorted(log.commits)
    newest = {commit.app: commit for commit in commits}
    old = [c.file for c in commits[:-KEPT_COMMITS] if c not in newest.values()]
    with suppress(OSError):
        table.remove(old)
        if table.in_bucket:
            leftovers = table.store.files(STAGING, recursive=True)
            since = time.time() - EXPIRY_SECONDS
            table.remove([file.name for file in leftovers if file.modified < since])
            return
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
