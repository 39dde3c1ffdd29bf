"""A plain Parquet table: files that any reader reads, and beside them what their publisher knows.

<table>/0-columns.parquet         all columns and no row. It is the first file by name, and that is
                                  the one from which pandas and Spark take the columns
<table>/part-*.parquet            the rows; of a partitioned table in folders such as
                                  by_date=2026-11-15
<table>/_distributary/            passed over by readers of folders
    table.json                    columns, comments, partition columns
    log/                          one file per commit: version, application and batch
    intent.json                   the commit that is being made; in a bucket intent-<application>
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

from distributary.delta.columns import (
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
from distributary.publish.base import CommittedMark, Outcome, Published, TableShape
from distributary.store.base import at, is_remote, local_folder, stay_inside
from distributary.store.disk import sync

HOME = "_distributary"
COLUMNS_FILE = "0-columns.parquet"
_RECORD = f"{HOME}/table.json"
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


class Commit(NamedTuple):
    """A commit, by the name of its file; in a bucket two applications may have the same version."""

    version: int
    app: str
    batch: int

    @property
    def file(self) -> str:
        """Its file in the table's folder."""
        return f"{HOME}/log/{self.version:012d}-{self.app}-{self.batch:012d}.json"


@dataclass(frozen=True, slots=True)
class Log:
    """The commits of a table, by the names of their files."""

    commits: tuple[Commit, ...] = ()

    @property
    def version(self) -> int:
        """The newest version, or -1."""
        return max((commit.version for commit in self.commits), default=-1)

    def newest(self, app_id: str) -> int | None:
        """The newest batch that the application has committed."""
        app = app_key(app_id)
        return max((commit.batch for commit in self.commits if commit.app == app), default=None)

    def of(self, app_id: str, batch: int) -> Commit | None:
        """The commit that carries this batch, if the log still tells."""
        wanted = (app_key(app_id), batch)
        return next((c for c in self.commits if (c.app, c.batch) == wanted), None)


def app_key(app_id: str) -> str:
    """An application in the names of files."""
    return hashlib.sha256(app_id.encode()).hexdigest()[:16]


class ParquetTable:
    """The folder of one table, on a file system or in a bucket."""

    def __init__(self, folder: str) -> None:
        self.store = at(folder)
        self.folder = self.store.address
        self.in_bucket = is_remote(self.folder)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One publisher at a time; the lock goes with its process. Raises OvertakenError.

        A bucket has no such lock. There each application has an intent of its own, of which the
        claim of its checkpoint lets one process at a time make use, and columns are swapped.
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
        """What is kept of the table, or None where there is no table."""
        data = self._read(_RECORD)
        if data is None:
            return None
        return TableRecord(**{**data, "partition_by": tuple(data["partition_by"])})

    def describe(self, record: TableRecord, *, instead_of: str | None = None) -> None:
        """Keep the columns: first where readers look, so that they never lack one that is told.

        In a bucket in the place of this very version. Raises OvertakenError.
        """
        self.show(record)
        data = json.dumps(asdict(record)).encode()
        if not self.in_bucket:
            self.store.write(_RECORD, data)
        elif instead_of is None:
            _taken(self.store.create(_RECORD, data), _RECORD)
        else:
            _taken(self.store.swap(_RECORD, data, unchanged=instead_of), _RECORD)

    def show(self, record: TableRecord) -> None:
        """Write the file from which readers take the columns."""
        sink = pa.BufferOutputStream()
        pq.write_table(record.schema().empty_table(), sink, store_schema=False)
        self.store.write(COLUMNS_FILE, sink.getvalue().to_pybytes())

    def shows(self, record: TableRecord) -> bool:
        """Whether the file from which readers take the columns is there; in a bucket, is right."""
        if not self.in_bucket:
            return os.path.exists(f"{self.folder}/{COLUMNS_FILE}")
        try:
            found = pq.read_schema(pa.BufferReader(self.store.read(COLUMNS_FILE)))
        except (FileNotFoundError, pa.ArrowInvalid):
            return False
        # of two applications that add columns, the slower one may have put an older file there
        return set(record.schema().names) <= set(found.names)

    def intent(self, app_id: str) -> Intent | None:
        """The commit that somebody began and did not end; in a bucket, this application."""
        data = self._read(self._intent(app_id))
        if data is None:
            return None
        intent = Intent(**data)
        return replace(intent, files=[file for file in intent.files if is_below(file)])

    def intend(self, intent: Intent) -> None:
        """Say what is going to be done, in place of what was said before."""
        self.store.write(self._intent(intent.app_id), json.dumps(asdict(intent)).encode())

    def forget_intent(self, app_id: str) -> None:
        """It is done, or undone. In a bucket the next one takes its place: a request less."""
        if not self.in_bucket:
            self.remove([self._intent(app_id)])

    def log(self) -> Log:
        """All commits that are still kept."""
        if self.in_bucket:
            names = [file.name.rpartition("/")[2] for file in self.store.files(f"{HOME}/log")]
        else:
            try:
                names = os.listdir(f"{self.folder}/{HOME}/log")
            except FileNotFoundError:
                return Log()
        found = [_COMMIT.fullmatch(name) for name in names]
        return Log(tuple(Commit(int(m[1]), m[2], int(m[3])) for m in found if m is not None))

    def commit(self, commit: Commit) -> dict[str, Any]:
        """What a commit says."""
        return self._read(commit.file) or {}

    def remove(self, files: Sequence[str]) -> None:
        """Remove files in the folder, if they are there."""
        with suppress(NotADirectoryError):
            self.store.remove_files(files)

    def dataset(self, record: TableRecord) -> ds.Dataset:
        """The rows, by files with paths in the folder; a column that a file lacks is null."""
        within = lake_files(self.folder)
        return ds.dataset("", schema=record.schema(), format="parquet", filesystem=within)

    def _intent(self, app_id: str) -> str:
        return f"{HOME}/intent-{app_key(app_id)}.json" if self.in_bucket else f"{HOME}/intent.json"

    def _read(self, name: str) -> Any:
        try:
            return json.loads(self.store.read(name))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError as error:
            raise PublishError(
                "a table's own record of itself cannot be read",
                where=f"{self.folder}/{name}",
                evidence=type(error).__name__,
                next_step="put the file back from a copy; the table's rows are not affected",
            ) from error


def _taken(version: str | None, name: str) -> None:
    if version is None:
        raise OvertakenError(f"{name} is another one by now")


def format_of(path: str) -> str | None:
    """`delta`, `parquet`, `iceberg`, or None where there is no table."""
    store, folder = at(path), local_folder(path)
    if store.exists("_delta_log"):
        return "delta"
    if store.look(_RECORD) is not None:
        return "parquet"
    if folder is None:
        return None
    with suppress(FileNotFoundError, NotADirectoryError):
        if any(name.endswith(".metadata.json") for name in os.listdir(f"{folder}/metadata")):
            return "iceberg"
    return None


def holds_delta(entry: TableEntry) -> PublishError:
    """The error for a table of another format in a folder that is a Delta table already."""
    return PublishError(
        f"the folder of table {entry.table.name} holds a Delta table",
        where=entry.table.path,
        evidence="_delta_log",
        next_step="give the tables another prefix, or use tables.format: delta",
        reason="format",
    )


def open_parquet(path: str) -> tuple[ParquetTable, TableRecord] | None:
    """A plain Parquet table to read from, or None where there is none."""
    if not is_remote(path) and format_of(path) != "parquet":
        return None
    table = ParquetTable(path)
    record = table.record()
    return None if record is None else (table, record)


# Publishes plain Parquet folders, exactly once, with nothing but files and names.
#
# A staged file becomes visible by a hard link, or in a bucket by a copy that the store makes: all
# of it or nothing, and the staged one stays until the commit has landed, so that a table which
# cannot be written can still be parked. What is going to be named is written down first. So a
# process may be killed between any two steps: the next one finds the names of the same batch and
# goes on, or takes back those of a batch that was staged again. Readers see the files of a batch
# one after the other, each of them whole.

_log = logging.getLogger(__name__)

KEPT_COMMITS = 1_000
"""How far back a table tells which source a batch came from; each is a small file."""
EXPIRY_SECONDS = 7 * 24 * 3600
"""Staged files that no commit ever took, left by a process that was killed while staging."""
_TIDY_EVERY = 50
_COPIES = 8
"""Files of a table that a bucket copies at the same time."""


class ParquetPublisher:
    """Adds staged files to folders of Parquet files, one commit per table and batch."""

    def shape(self, path: str) -> TableShape | None:
        """The table's columns now, and its partitioning; None where there is no table."""
        with _reaching(path, doing="read the columns of a table") as table:
            record = table.record()
            return None if record is None else TableShape(record.columns, record.partition_by)

    def committed(self, path: str, mark: Mark) -> CommittedMark | None:
        """The newest mark of `mark.app_id`, and the source of the commit of `mark.batch`."""
        with _reaching(path, doing="read the marks of a table") as table:
            log = table.log()
            newest = log.newest(mark.app_id)
            if newest is None:
                return None
            commit = log.of(mark.app_id, mark.batch)
            told = table.commit(commit).get(SOURCE) if commit is not None else None
            return CommittedMark(newest, told)

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
        # before anything is made there, be it a lock
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
        # without a lock another process may have committed and cleared them in this moment
        if table.in_bucket and table.log().of(mark.app_id, mark.batch) is not None:
            raise OvertakenError("another process has committed the batch") from None
        raise


def final_path(staged: str, mark: Mark) -> str:
    """The name that readers see: always the same for one file, application and batch."""
    folder, _, name = staged.removeprefix(f"{STAGING}/").removesuffix(STAGED).rpartition("/")
    own = f"{name.removesuffix('.parquet')}-{app_key(mark.app_id)[:8]}.parquet"
    return f"{folder}/{own}" if folder else own


def _take_back_others(table: ParquetTable, mark: Mark, log: Log, mine: set[str]) -> None:
    """What a killed process has named of a batch that is not committed; its staged files stay."""
    intent = table.intent(mark.app_id)
    if intent is None or log.of(intent.app_id, intent.batch) is not None:
        return
    newest = log.newest(intent.app_id)
    if newest is not None and newest >= intent.batch:
        # its commit is so old that the log has forgotten it
        return
    _unlink(table, [path for path in intent.files if path not in mine])


def _unlink(table: ParquetTable, files: Iterable[str]) -> None:
    files = list(files)
    table.remove(files)
    folders = {os.path.dirname(f"{table.folder}/{file}") for file in files}
    for folder in () if table.in_bucket else folders:
        # before the intent that names them may go: else a power failure could bring them back
        if os.path.isdir(folder):
            sync(folder)


def _describe(table: ParquetTable, entry: TableEntry) -> None:
    known = table.record()
    wanted = _wanted(entry, known)
    if wanted is not None and table.in_bucket:
        # what is replaced must be what was read, and nothing newer
        found = table.store.look(_RECORD)
        wanted = _wanted(entry, table.record() if found is not None else None)
        if wanted is not None:
            table.describe(wanted, instead_of=None if found is None else found.version)
    elif wanted is not None:
        table.describe(wanted)
    elif known is not None and not table.shows(known):
        table.show(known)


def _wanted(entry: TableEntry, known: TableRecord | None) -> TableRecord | None:
    """What is to be kept of the table from now on; None where it is kept already."""
    merged = merge_fields(known.fields if known else (), fields_of(entry.table.columns))
    partition_by = entry.table.partition_by
    if known is not None:
        check_partitioning(entry, known.partition_by)
    labels = set(label_columns(partition_by).values())
    clash = next((f for f in merged.fields if f["name"] in labels), None)
    if clash is not None:
        raise ColumnConflictError(clash["name"], "a folder of that name", clash["type"])
    if known is None:
        return TableRecord(entry.table.name, entry.table.comment, partition_by, merged.fields)
    return replace(known, fields=merged.fields) if merged.changed else None


def _commit(
    table: ParquetTable, entry: TableEntry, mark: Mark, finals: dict[str, str], version: int
) -> int:
    try:
        table.intend(Intent(mark.app_id, mark.batch, list(finals.values())))
        if table.in_bucket:
            _copy(table, finals)
        else:
            _link(table, finals)
        commit = Commit(version, app_key(mark.app_id), mark.batch)
        create_commit(table, commit, _text(entry, mark, finals))
    except OvertakenError:
        # of the same batch, for it has the same name: what it has made visible stays
        raise
    except Exception:
        # it may have landed all the same: the log decides
        landed = table.log().of(mark.app_id, mark.batch)
        if landed is not None:
            return landed.version
        if not table.in_bucket:
            with suppress(OSError):
                _unlink(table, finals.values())
                table.forget_intent(mark.app_id)
        # in a bucket whoever comes next goes on or takes it back: a process that lost its claim
        # without knowing must not remove what another one is about to commit
        raise
    return version


def create_commit(table: ParquetTable, commit: Commit, text: str) -> None:
    """Put a commit in its place, durably, unless the place is taken (OvertakenError)."""
    _taken(table.store.create(commit.file, text.encode("utf-8", "replace")), commit.file)


def _copy(table: ParquetTable, finals: dict[str, str]) -> None:
    def named(pair: tuple[str, str]) -> None:
        try:
            table.store.copy(pair[0], to=table.store, named=pair[1])
        except FileNotFoundError:
            # it was there a moment ago: the next attempt sees who took it
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
                # the same file, brought back from parking
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


def _committed_of(table: ParquetTable, entry: TableEntry, mark: Mark, log: Log) -> list[str]:
    """The staged files of an entry that the commit of its batch has, where the log still tells."""
    commit = log.of(mark.app_id, mark.batch)
    told = table.commit(commit).get("files", ()) if commit is not None else ()
    committed = {file["path"] for file in told}
    return [file.path for file in entry.files if final_path(file.path, mark) in committed]


def _clear(table: ParquetTable, mark: Mark, staged: Sequence[str]) -> None:
    """Remove what a commit that has landed no longer needs."""
    try:
        table.remove(staged)
        if table.in_bucket:
            return
        intent = table.intent(mark.app_id)
        if intent is not None and (intent.app_id, intent.batch) == (mark.app_id, mark.batch):
            table.forget_intent(mark.app_id)
    except OSError:
        # no reader sees it, and it is looked for again
        _log.warning("a staged file is left in %s", table.folder)


def _tidy(table: ParquetTable, log: Log) -> None:
    """Old commits, and files that a killed process has left and nobody will ever look for."""
    commits = sorted(log.commits)
    newest = {commit.app: commit for commit in commits}
    old = [c.file for c in commits[:-KEPT_COMMITS] if c not in newest.values()]
    with suppress(OSError):
        table.remove(old)
        if table.in_bucket:
            left = table.store.files(STAGING, recursive=True)
            since = time.time() - EXPIRY_SECONDS
            table.remove([file.name for file in left if file.modified < since])
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
