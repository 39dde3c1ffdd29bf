"""The log of a table anywhere else, or of one with special features: through `deltalake`.

`deltalake` knows how to claim a commit on each kind of store, and what each table feature asks of a
writer. The price is a reload of the table's state at every commit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import (
    AddAction,
    CommitProperties,
    Transaction,
    create_table_with_add_actions,
)

from distributary.model.manifest import TableEntry
from distributary.publish.base import Mark
from distributary.publish.columns import (
    Field,
    MergedFields,
    fields_in,
    schema_string,
)
from distributary.publish.commit_file import commit_path
from distributary.publish.provenance import facts, source_in
from distributary.publish.races import OvertakenError

_HISTORY_STEPS = (20, 500, None)
_CHECKPOINT_EVERY = 20
"""Commits; each of them reads all since the last checkpoint; the library itself chooses 100."""


class StoreLog:
    """The log of one table; see `TableLog`."""

    def __init__(self, path: str, storage_options: Mapping[str, str]) -> None:
        self._path = path
        self._options = dict(storage_options)
        self._table: DeltaTable | None = None
        self._files: pafs.FileSystem | None = None
        self._seen: tuple[int, int] | None = None

    def refresh(self, app_id: str | None = None) -> None:
        """Catch up with the newest version."""
        if self._table is not None and self._newest_commit() == self._seen:
            self._table.update_incremental()
        else:
            # not seen before, or deleted and perhaps made again behind us
            self._table = self._load()
        self._seen = self._newest_commit()

    def forget(self) -> None:
        """Load anew next time."""
        self._table = None

    def version(self) -> int:
        """The newest version, or -1."""
        return self._table.version() if self._table else -1

    def mark(self, app_id: str) -> int | None:
        """The newest batch of the application."""
        return self._table.transaction_version(app_id) if self._table else None

    def fields(self) -> Sequence[Field] | None:
        """The columns, or None."""
        return fields_in(self._table.schema().to_json()) if self._table else None

    def partition_columns(self) -> tuple[str, ...]:
        """The columns that the table is partitioned by."""
        return tuple(self._table.metadata().partition_columns) if self._table else ()

    def source_of(self, mark: Mark) -> str | None:
        """Look for the batch in the history, newest first, a little at a time."""
        if self._table is None:
            return None
        for limit in _HISTORY_STEPS:
            for info in self._table.history(limit):
                source = source_in(info, mark)
                if source is not None:
                    return source
        return None

    def size_of(self, file: str) -> int | None:
        """The size of a file in the table's folder."""
        found = self._stat(file)
        return None if found is None else found[0]

    def commit(self, entry: TableEntry, mark: Mark, merged: MergedFields) -> int:
        """Change the columns if need be, then add the files: each in a commit of its own."""
        try:
            if self._table is None:
                self._create(entry, mark, merged)
                return 0
            if merged.changed:
                self._evolve(self._table, merged)
            version = self._table.version() + 1
            self._table.create_write_transaction(
                _actions(entry), "append", self._table.schema(), commit_properties=_marked(mark)
            )
            return version
        except CommitFailedError as error:
            raise OvertakenError(str(error)) from error

    def _load(self) -> DeltaTable | None:
        try:
            return DeltaTable(self._path, storage_options=self._options)
        except TableNotFoundError:
            return None

    def _newest_commit(self) -> tuple[int, int] | None:
        """Size and time of the newest commit that is known: a table made again has another one."""
        if self._table is None:
            return None
        return self._stat(commit_path("", self._table.version())[1:])

    def _stat(self, file: str) -> tuple[int, int] | None:
        if self._files is None:
            self._files = pafs.PyFileSystem(DeltaStorageHandler(self._path, self._options))
        found = self._files.get_file_info(file)
        if found.type != pafs.FileType.File:
            return None
        return int(found.size), int(found.mtime_ns or 0)

    def _create(self, entry: TableEntry, mark: Mark, merged: MergedFields) -> None:
        try:
            create_table_with_add_actions(
                self._path,
                Schema.from_json(schema_string(merged.fields)),
                _actions(entry),
                mode="error",
                partition_by=list(entry.table.partition_by),
                name=entry.table.name,
                description=entry.table.comment or None,
                configuration={"delta.checkpointInterval": str(_CHECKPOINT_EVERY)},
                storage_options=self._options,
                commit_properties=_marked(mark),
            )
        except DeltaError as error:
            # whoever is first makes the table, the others append
            self.refresh()
            if self._table is not None:
                raise OvertakenError(str(error)) from error
            raise

    def _evolve(self, table: DeltaTable, merged: MergedFields) -> None:
        schema = Schema.from_json(schema_string(merged.fields))
        if merged.widened:
            # nothing is overwritten, as no row fulfils the condition: only the columns change
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
        table.update_incremental()


def _actions(entry: TableEntry) -> list[Any]:
    # a list of AddAction: one call takes that, another one a list that may also hold removals
    now = time.time_ns() // 1_000_000
    return [
        AddAction(f.path, f.size, dict(f.partition_values), now, True, f.stats) for f in entry.files
    ]


def _marked(mark: Mark) -> CommitProperties:
    return _once(facts(mark), Transaction(mark.app_id, mark.batch))


def _once(told: Mapping[str, str] | None = None, *marks: Transaction) -> CommitProperties:
    # never again by itself: a second try must look at the table first, and of two who make a table
    # at the same time, a second try of the library would commit both
    return CommitProperties(
        custom_metadata=dict(told or {}), max_commit_retries=0, app_transactions=list(marks)
    )
