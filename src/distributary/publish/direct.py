"""The publisher that commits staged files to Delta tables as they are, without reading them.

A commit costs a few system calls per table on a disk, and one request in a bucket.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, CommitProperties, Transaction

from distributary.delta.column_merge import (
    ColumnConflictError,
    Field,
    MergedFields,
    columns_of,
    fields_in,
    fields_of,
    merge_fields,
    schema_string,
)
from distributary.delta.commit import (
    Draft,
    append,
    check_partitioning,
    check_staged,
    commit,
    facts,
    source_in,
)
from distributary.delta.log import Log, Snapshot, commits_back
from distributary.delta.log_checkpoint import is_due, look_after
from distributary.delta.tables import (
    OvertakenError,
    as_publish_error,
    load_table,
    until_not_overtaken,
    update_table,
)
from distributary.errors import DistributaryError, PublishError
from distributary.model.manifest import Mark, TableEntry
from distributary.model.table import Column
from distributary.publish.base import CommittedMark, Outcome, Published, TableColumns
from distributary.store.base import at, is_remote
from distributary.store.disk import sync_file_system


class DirectPublisher:
    """A publisher that adds staged files to Delta tables, with one commit per table and batch."""

    def __init__(self) -> None:
        self._tables: dict[str, _Table] = {}
        self._prepared: list[_Table] = []
        self._devices: dict[int, str] = {}
        """One folder for each device that holds prepared commits."""
        self._lock = threading.Lock()

    def current_columns(self, path: str) -> TableColumns | None:
        """Return the table's current columns and partitioning; None if there is no table."""
        with self._open(path, doing="read the columns of a table") as table:
            seen = table.log.newest()
            if seen is None:
                return None
            return TableColumns(columns_of(seen.fields), seen.partition_columns)

    def committed(self, path: str, mark: Mark) -> CommittedMark | None:
        """Return the newest mark of `mark.app_id`, and the source of the commit of `mark.batch`."""
        with self._open(path, doing="read the marks of a table") as table:
            seen = table.log.newest()
            newest = None if seen is None else seen.marks.get(mark.app_id)
            if seen is None or newest is None:
                return None
            return CommittedMark(newest, _source_of(seen, mark) if newest >= mark.batch else None)

    def publish(self, entry: TableEntry, mark: Mark) -> Published:
        """Add the files of an entry, with its columns, in one marked commit."""
        with self._open(entry.table.path, doing="commit to a table") as table:
            try:
                return table.publish(table.log.likely(), entry, mark)
            except (OvertakenError, PublishError, ColumnConflictError):
                # The known state of the table may be outdated.
                return until_not_overtaken(lambda: table.publish(table.log.newest(), entry, mark))

    def prepare(self, entries: Sequence[TableEntry], mark: Mark) -> frozenset[str]:
        """Write the commits of local tables; return the tables for which `publish` is now quick.

        Syncing a thousand commits one by one takes longer than everything else about them. Prepared
        commits are synced together before they get their names, and the names are synced together
        afterwards. Failures are ignored here: `publish` meets them again. Not thread-safe.
        """
        ready: set[str] = set()
        for entry in entries:
            path = entry.table.path
            if is_remote(path):
                continue
            with suppress(DistributaryError), self._open(path, doing="commit to a table") as table:
                device = table.prepare(entry, mark)
                if device is not None:
                    self._devices.setdefault(device, table.log.store.address)
                    ready.add(entry.table.name)
                    self._prepared.append(table)
        self._sync()
        return frozenset(ready)

    def finish(self, *, threads: int) -> None:
        """Make the names of prepared commits durable, and write the checkpoints that are due."""
        tables, self._prepared = self._prepared, []
        self._sync()
        self._devices.clear()
        # Few tables are due; handing all of them to threads costs more than checking them here.
        due = [seen for table in tables if (seen := table.finish()) is not None]
        if due:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(look_after, due))

    def _begin(self, path: str) -> None:
        """Prepare a table before its log is read for the first time."""

    def _sync(self) -> None:
        for folder in self._devices.values():
            sync_file_system(Path(folder))

    @contextmanager
    def _open(self, path: str, *, doing: str) -> Iterator[_Table]:
        with self._lock:
            table = self._tables.get(path)
            if table is None:
                self._begin(path)
                table = self._tables[path] = _Table(path)
        with table.lock:
            try:
                yield table
            except DistributaryError:
                raise
            except Exception as error:
                table.log.forget()
                raise as_publish_error(error, doing=doing, path=path) from error


def _source_of(seen: Snapshot, mark: Mark) -> str | None:
    """Return the source of the batch's commit, searched from the newest commit backwards."""
    for commit_ in commits_back(seen):
        batch = commit_.marks.get(mark.app_id)
        if batch is not None and batch <= mark.batch:
            return source_in(commit_.info, mark)
    return None


class _Table:
    """One table, whose log is followed from batch to batch instead of loaded each time."""

    def __init__(self, path: str) -> None:
        self.lock = threading.Lock()
        self.log = Log(at(path), files=False)
        self._draft: tuple[TableEntry, Mark, Draft] | None = None
        self._fits: tuple[tuple[Column, ...], Sequence[Field]] | None = None

    def publish(self, seen: Snapshot | None, entry: TableEntry, mark: Mark) -> Published:
        """Attempt to publish on a version of the table. Raises OvertakenError."""
        name = entry.table.name
        if seen is not None and seen.has(mark.app_id, mark.batch):
            return Published(name, Outcome.SKIPPED, seen.version)
        if seen is not None:
            check_partitioning(entry, seen.partition_columns)
        check_staged(entry, self.log.store.size)
        merged = self._merge(entry, seen)
        if seen is not None and seen.no_new_rows():
            self.log.forget()
            return Published(name, Outcome.PUBLISHED, _append_by_library(seen, entry, mark, merged))
        after = self._named(seen, entry, mark)
        if after is None:
            after = commit(self.log.store, seen, append(entry, mark, merged))
            if is_due(after):
                look_after(after)
        self.log.committed(after)
        return Published(name, Outcome.PUBLISHED, after.version)

    def prepare(self, entry: TableEntry, mark: Mark) -> int | None:
        """Write the commit that `publish` would.

        Return its device, or None if nothing was written.
        """
        seen = self.log.newest()
        if seen is None or seen.has(mark.app_id, mark.batch) or seen.no_new_rows():
            return None
        merged = self._merge(entry, seen)
        self._discard()
        draft = None if merged.changed else Draft.of(seen, append(entry, mark, merged))
        if draft is None:
            return None
        self._draft = (entry, mark, draft)
        return draft.device

    def finish(self) -> Snapshot | None:
        """Close a draft that was not used; return the table if a checkpoint is due."""
        self._discard()
        seen = self.log.seen
        return seen if seen is not None and is_due(seen) else None

    def _named(self, seen: Snapshot | None, entry: TableEntry, mark: Mark) -> Snapshot | None:
        """Commit the draft that was prepared for this entry and version; None if there is none."""
        if self._draft is None:
            return None
        (prepared, prepared_mark, draft), self._draft = self._draft, None
        try:
            fits = prepared is entry and prepared_mark == mark
            return draft.commit() if fits and draft.before is seen else None
        finally:
            draft.close()

    def _discard(self) -> None:
        if self._draft is not None:
            self._draft[2].close()
            self._draft = None

    def _merge(self, entry: TableEntry, seen: Snapshot | None) -> MergedFields:
        have = None if seen is None else seen.fields
        if have is not None and self._fits == (entry.table.columns, have):
            # Keeps the same objects for the next time: comparing equal objects took a fifth of a
            # commit.
            self._fits = (entry.table.columns, have)
            return MergedFields(list(have), changed=False, widened=False)
        merged = merge_fields(have or (), fields_of(entry.table.columns))
        self._fits = (entry.table.columns, merged.fields)
        return merged


# Tables with features that this code does not support, such as mapped columns, are committed to by
# `deltalake`, which knows what each feature requires of a writer. The price is a load of the
# table's state at every commit, and two commits where columns change.


def _append_by_library(
    before: Snapshot, entry: TableEntry, mark: Mark, merged: MergedFields
) -> int:
    """Change the columns if needed, then add the files, each in its own commit.

    Returns the new version. Raises OvertakenError if another commit has come since.
    """
    table = _opened(before)
    if table.version() != before.version:
        raise OvertakenError(f"{before.folder} is at version {table.version()} now")
    try:
        if merged.changed:
            _evolve(table, merged)
        version = table.version() + 1
        marked = _once(facts(mark), Transaction(mark.app_id, mark.batch))
        table.create_write_transaction(
            _actions(entry), "append", table.schema(), commit_properties=marked
        )
        return version
    except CommitFailedError as error:
        raise OvertakenError(str(error)) from error
    except Exception:
        # The commit may have landed although an error was raised: read the log.
        if (landed := _landed(before, mark)) is None:
            raise
        return landed


def _opened(before: Snapshot) -> DeltaTable:
    return load_table(before.folder)


def _landed(before: Snapshot, mark: Mark) -> int | None:
    try:
        table = _opened(before)
    except Exception:
        # The outcome is still unknown: the first error is raised, and the next attempt looks again.
        return None
    return table.version() if table.transaction_version(mark.app_id) == mark.batch else None


def _evolve(table: DeltaTable, merged: MergedFields) -> None:
    schema = Schema.from_json(schema_string(merged.fields))
    if merged.widened:
        # Nothing is overwritten, because no row fulfils the condition: only the columns change.
        write_deltalake(
            table,
            pa.schema(schema.to_arrow()).empty_table(),
            mode="overwrite",
            schema_mode="overwrite",
            predicate="false",
            partition_by=list(table.metadata().partition_columns) or None,
            commit_properties=_once(),
        )
    else:
        before = {f["name"]: f for f in fields_in(table.schema().to_json())}
        changed = [f for f in schema.fields if before.get(f.name) != json.loads(f.to_json())]
        table.alter.add_columns(changed, commit_properties=_once())
    update_table(table, table.table_uri)


def _actions(entry: TableEntry) -> list[Any]:
    # The type is `Any` because `deltalake` wants a list of AddAction in one call, and of any action
    # in another.
    now = time.time_ns() // 1_000_000
    return [
        AddAction(f.path, f.size, dict(f.partition_values), now, True, f.stats) for f in entry.files
    ]


def _once(metadata: Mapping[str, str] | None = None, *marks: Transaction) -> CommitProperties:
    # No retries by the library: a second attempt must read the table first.
    return CommitProperties(
        custom_metadata=dict(metadata or {}), max_commit_retries=0, app_transactions=list(marks)
    )
