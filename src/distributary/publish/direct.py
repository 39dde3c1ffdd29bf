"""Commits staged files as they are, without reading them again: a few system calls per table."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from distributary.delta.columns import Field, MergedFields, columns_of, fields_of, merge_fields
from distributary.delta.log import (
    BeyondUsError,
    LocalLog,
    StoreLog,
    TableLog,
    check_partitioning,
    check_staged,
)
from distributary.delta.tables import OvertakenError, as_publish_error, until_not_overtaken
from distributary.errors import DistributaryError
from distributary.model.manifest import Mark, TableEntry
from distributary.model.table import Column
from distributary.publish.base import CommittedMark, Outcome, Published
from distributary.store.base import local_folder
from distributary.store.disk import sync_file_system


class DirectPublisher:
    """Adds staged files to Delta tables, one commit per table and batch."""

    def __init__(
        self, storage_options: Mapping[str, str] | None = None, *, own_log: bool = True
    ) -> None:
        """With `own_log=False` local tables go through `deltalake` too, as on an object store."""
        self._options = dict(storage_options or {})
        self._own_log = own_log
        self._tables: dict[str, _Table] = {}
        self._prepared: list[_Table] = []
        self._devices: dict[int, str] = {}
        """A folder on each device that prepared commits are on."""
        self._lock = threading.Lock()

    def columns(self, path: str) -> tuple[Column, ...] | None:
        """The table's columns now, or None where there is no table."""
        with self._open(path, doing="read the columns of a table") as table:
            table.log.refresh()
            fields = table.log.fields()
            return None if fields is None else columns_of(fields)

    def partition_columns(self, path: str) -> tuple[str, ...]:
        """The columns that the table is partitioned by; none where there is no table."""
        with self._open(path, doing="read the partitioning of a table") as table:
            table.log.refresh()
            return table.log.partition_columns()

    def committed(self, path: str, mark: Mark) -> CommittedMark | None:
        """The newest mark of `mark.app_id`, and the source of the commit of `mark.batch`."""
        with self._open(path, doing="read the marks of a table") as table:
            table.log.refresh(mark.app_id)
            newest = table.log.mark(mark.app_id)
            if newest is None:
                return None
            told = table.log.source_of(mark) if newest >= mark.batch else None
            return CommittedMark(newest, told)

    def publish(self, entry: TableEntry, mark: Mark) -> Published:
        """Add the files of an entry, with its columns, in one marked commit."""
        with self._open(entry.table.path, doing="commit to a table") as table:
            return until_not_overtaken(lambda: table.publish(entry, mark))

    def prepare(self, entries: Sequence[TableEntry], mark: Mark) -> frozenset[str]:
        """Write the commits of tables in local folders; see `PreparesCommits`."""
        ready: set[str] = set()
        for entry in entries:
            path = entry.table.path
            with suppress(DistributaryError), self._open(path, doing="commit to a table") as table:
                device = table.prepare(entry, mark)
                if device is not None:
                    self._devices.setdefault(device, table.folder)
                    ready.add(entry.table.name)
                    self._prepared.append(table)
        self._sync()
        return frozenset(ready)

    def finish(self, *, threads: int) -> None:
        """Make the names of prepared commits durable, and write the checkpoints that are due."""
        tables, self._prepared = self._prepared, []
        self._sync()
        self._devices.clear()
        # few of many: to hand all of them to threads costs more than to ask them
        due = [table for table in tables if table.finish()]
        if due:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(_Table.checkpoint, due))

    def _sync(self) -> None:
        for folder in self._devices.values():
            sync_file_system(Path(folder))

    @contextmanager
    def _open(self, path: str, *, doing: str) -> Iterator[_Table]:
        with self._lock:
            table = self._tables.get(path)
            if table is None:
                table = self._tables[path] = _Table(path, self._options, own_log=self._own_log)
        with table.lock:
            try:
                yield table
            except DistributaryError:
                raise
            except Exception as error:
                table.log.forget()
                raise as_publish_error(error, doing=doing, path=path) from error


class _Table:
    """One table: its log is followed from batch to batch instead of being loaded each time."""

    def __init__(self, path: str, options: Mapping[str, str], *, own_log: bool) -> None:
        self.lock = threading.Lock()
        self._path, self._options = path, options
        folder = local_folder(path) if own_log else None
        self.folder = folder or ""
        self.log: TableLog = LocalLog(folder) if folder else StoreLog(path, options)
        self._fits: tuple[tuple[Column, ...], Sequence[Field]] | None = None

    def publish(self, entry: TableEntry, mark: Mark) -> Published:
        """One try, on the newest version there is. Raises OvertakenError."""
        self.log.refresh(mark.app_id)
        if self._has(mark):
            return Published(entry.table.name, Outcome.SKIPPED, self.log.version())
        if self.log.version() >= 0:
            check_partitioning(entry, self.log.partition_columns())
        check_staged(entry, self.log.size_of)
        merged = self._merge(entry)
        try:
            version = self.log.commit(entry, mark, merged)
        except OvertakenError:
            raise
        except BeyondUsError:
            self.log = StoreLog(self._path, self._options)
            return self.publish(entry, mark)
        except Exception:
            if not self._has_landed(mark):
                raise
            version = self.log.version()
        return Published(entry.table.name, Outcome.PUBLISHED, version)

    def prepare(self, entry: TableEntry, mark: Mark) -> int | None:
        """Write the commit that `publish` would; the device it is on, or None if it is not."""
        if not isinstance(self.log, LocalLog):
            return None
        self.log.refresh(mark.app_id)
        if self._has(mark):
            return None
        return self.log.prepare(entry, mark, self._merge(entry))

    def finish(self) -> bool:
        """After a commit that was prepared, made or not; whether a checkpoint is due."""
        if not isinstance(self.log, LocalLog):
            return False
        self.log.discard()
        return self.log.checkpoint_is_due()

    def checkpoint(self) -> None:
        """Write the checkpoint that is due."""
        if isinstance(self.log, LocalLog):
            self.log.checkpoint()

    def _has(self, mark: Mark) -> bool:
        newest = self.log.mark(mark.app_id)
        return newest is not None and newest >= mark.batch

    def _has_landed(self, mark: Mark) -> bool:
        """After an answer that did not come: the log decides, seen afresh."""
        try:
            self.log.forget()
            self.log.refresh(mark.app_id)
        except Exception:
            # still not known: the first error is the one to tell, and the next try looks again
            return False
        return self._has(mark)

    def _merge(self, entry: TableEntry) -> MergedFields:
        have = self.log.fields()
        if have is not None and self._fits == (entry.table.columns, have):
            # the same objects next time: to compare equal ones took a fifth of a commit
            self._fits = (entry.table.columns, have)
            return MergedFields(list(have), changed=False, widened=False)
        merged = merge_fields(have or (), fields_of(entry.table.columns))
        self._fits = (entry.table.columns, merged.fields)
        return merged
