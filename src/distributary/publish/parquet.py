"""Publishes plain Parquet folders, exactly once, with nothing but files and names.

A staged file becomes visible by a hard link: all of it or nothing, and the staged one stays until
the commit has landed, so that a table which cannot be written can still be parked. What is going
to be linked is written down first. So a process may be killed between any two steps: the next one
finds the links of the same batch and goes on, or takes back those of a batch that was staged
again. Readers see the files of a batch one after the other, each of them whole.
"""

from __future__ import annotations

import json
import logging
import os
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from distributary.durable import sync
from distributary.errors import DistributaryError, PublishError
from distributary.model.manifest import TableEntry
from distributary.model.table import STAGED, STAGING, Column
from distributary.publish.base import CommittedMark, Mark, Outcome, Published
from distributary.publish.columns import ColumnConflictError, fields_of, merge_fields
from distributary.publish.commit_file import create_commit
from distributary.publish.failures import as_publish_error
from distributary.publish.log import check_partitioning, check_staged
from distributary.publish.parquet_table import HOME, Intent, Log, ParquetTable, TableRecord, app_key
from distributary.publish.provenance import SOURCE, facts
from distributary.publish.races import until_not_overtaken
from distributary.route.partition_names import label_columns
from distributary.stores.known import local_folder

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
