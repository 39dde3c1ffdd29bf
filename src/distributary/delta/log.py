"""One table's transaction log, as far as committing files needs it: one shape, two ways."""

from __future__ import annotations

import json
import logging
import os
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Protocol

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

from distributary.delta.columns import Field, MergedFields, fields_in, schema_string
from distributary.delta.commit import (
    PLAIN_PROTOCOL,
    Identity,
    commit_path,
    commit_text,
    create_commit,
    facts,
    identity_of,
    is_trusted,
    metadata_of,
    name_commit,
    new_metadata,
    read_commit,
    source_in,
)
from distributary.delta.tables import OvertakenError
from distributary.errors import PublishError, StagedFileError
from distributary.model.manifest import Mark, TableEntry
from distributary.store.disk import NO_NAMING, sync, unnamed


class TableLog(Protocol):
    """What the log says as of the last `refresh`. Not thread-safe: its owner holds a lock."""

    def refresh(self, app_id: str | None = None) -> None:
        """Catch up with the newest version; after this `mark` knows `app_id`."""
        ...

    def forget(self) -> None:
        """Trust nothing seen so far: the next `refresh` starts anew."""
        ...

    def version(self) -> int:
        """The newest version, or -1 where there is no table."""
        ...

    def mark(self, app_id: str) -> int | None:
        """The newest batch that the application has committed."""
        ...

    def fields(self) -> Sequence[Field] | None:
        """The columns, or None where there is no table."""
        ...

    def partition_columns(self) -> tuple[str, ...]:
        """The columns that the table is partitioned by."""
        ...

    def source_of(self, mark: Mark) -> str | None:
        """The source fingerprint of the commit that carries this batch, if the log still tells."""
        ...

    def size_of(self, file: str) -> int | None:
        """The size of a file in the table's folder, or None if there is no such file."""
        ...

    def commit(self, entry: TableEntry, mark: Mark, merged: MergedFields) -> int:
        """Add the entry's files to the very version that `refresh` saw; return the new version.

        Raises OvertakenError if anybody committed anything in between. After any other exception
        it is unknown whether the commit has landed.
        """
        ...


def check_partitioning(entry: TableEntry, actual: Sequence[str]) -> None:
    """Files are cut by the table's partition columns: for other ones they would be read wrong."""
    if tuple(actual) != entry.table.partition_by:
        raise PublishError(
            f"table {entry.table.name} is partitioned in another way than the batch was staged for",
            where=entry.table.path,
            evidence=f"table: {', '.join(actual) or 'not at all'}; "
            f"batch: {', '.join(entry.table.partition_by) or 'not at all'}",
            next_step="somebody made or replaced the table meanwhile: put the old one back and "
            "resume it, or restart the pipeline, which then follows the table",
            reason="partitions",
        )


def check_staged(entry: TableEntry, size_of: Callable[[str], int | None]) -> None:
    """Each file must be there as it was staged: a VACUUM may have come by."""
    for file in entry.files:
        parts = PurePosixPath(file.path)
        inside = not parts.is_absolute() and ".." not in parts.parts
        size = size_of(file.path) if inside else None
        if size == file.size:
            continue
        if not inside:
            found = "its name points out of the table's folder"
        else:
            found = "no such file" if size is None else f"{size:,} bytes"
        raise StagedFileError(
            f"a staged file of table {entry.table.name} is not what was staged",
            where=f"{entry.table.path}/{file.path}",
            evidence=f"staged {file.size:,} bytes; found: {found}",
            next_step="find out who removes young files from this folder (a VACUUM with a short "
            "retention?); the records are still at the source: stage the batch again",
            table=entry.table.name,
        )


# The log of a table in a folder of this machine, followed and written commit by commit.
#
# A library that loads a table pays for all of its files at each commit, a thousand tables a
# batch. An append needs to know four things only: the newest version, the columns, the protocol
# and the marks. So the table is loaded once, each further commit is read as it comes, and a new
# one is written under the next number; if that number is taken, the commit was overtaken. Columns
# and files change in one commit. Tables that ask more of their writers than ours do are left to
# `store_log`.

_log = logging.getLogger(__name__)

CHECKPOINT_EVERY = 50
"""Commits, in a young table; its own `delta.checkpointInterval` goes first."""
_LEAST_SHARE = 20
"""A checkpoint names every file: an old table writes one when its log has grown by 1/20."""
CLEAN_EVERY = 20
"""Checkpoints: then commits older than the table's retention are removed."""


@dataclass(slots=True)
class _Seen:
    version: int
    metadata: dict[str, Any]
    plain: bool
    identity: Identity | None
    """Of the newest commit's file: a table that was deleted and made again has another one."""
    marks: dict[str, int | None]
    fields: list[Field] = field(init=False)

    def __post_init__(self) -> None:
        self.fields = fields_in(self.metadata["schemaString"])


@dataclass(frozen=True, slots=True)
class _Draft:
    """A commit that is written and has no name yet."""

    entry: TableEntry
    mark: Mark
    version: int
    handle: int


class BeyondUsError(Exception):
    """Nothing was written: this table needs a writer that knows more of the protocol."""


class LocalLog:
    """The log of one table; see `TableLog`."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._seen: _Seen | None = None
        self._draft: _Draft | None = None

    def refresh(self, app_id: str | None = None) -> None:
        """Catch up with the newest version: two looks at the folder, if nothing is new."""
        seen = self._seen
        if seen is None or not self._is_trusted(seen):
            seen = self._load([app_id, *(seen.marks if seen else ())])
        elif app_id is not None and app_id not in seen.marks:
            seen = self._load([app_id, *seen.marks])
        self._seen = seen
        while seen is not None and self._follow(seen):
            pass

    def forget(self) -> None:
        """Load anew next time."""
        self._seen = None

    def version(self) -> int:
        """The newest version, or -1."""
        return self._seen.version if self._seen else -1

    def mark(self, app_id: str) -> int | None:
        """The newest batch of the application."""
        return self._seen.marks.get(app_id) if self._seen else None

    def fields(self) -> Sequence[Field] | None:
        """The columns, or None."""
        return self._seen.fields if self._seen else None

    def partition_columns(self) -> tuple[str, ...]:
        """The columns that the table is partitioned by."""
        return tuple(self._seen.metadata.get("partitionColumns") or ()) if self._seen else ()

    def source_of(self, mark: Mark) -> str | None:
        """Walk back from the newest commit to the one that carries the batch."""
        for version in range(self.version(), -1, -1):
            commit = read_commit(commit_path(self._folder, version))
            if commit is None:
                return None
            batch = commit.marks.get(mark.app_id)
            if batch is not None and batch <= mark.batch:
                return source_in(commit.info, mark)
        return None

    def size_of(self, file: str) -> int | None:
        """The size of a file in the table's folder."""
        try:
            return os.stat(f"{self._folder}/{file}").st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def prepare(self, entry: TableEntry, mark: Mark, merged: MergedFields) -> int | None:
        """Write the next commit, so that `commit` has to give it its name only.

        The name is in its place before a sync: who prepares makes the file durable before, and
        the name after. Returns the device to sync, or None where there is nothing to gain.
        """
        seen = self._seen
        if seen is None or not seen.plain or merged.changed:
            return None
        text = commit_text(entry, mark, metadata=None, new=False).encode("utf-8", "replace")
        self.discard()
        handle = unnamed(f"{self._folder}/_delta_log", text)
        if handle is None:
            return None
        self._draft = _Draft(entry, mark, seen.version + 1, handle)
        return os.fstat(handle).st_dev

    def discard(self) -> None:
        """Forget what was prepared."""
        if self._draft is not None:
            os.close(self._draft.handle)
            self._draft = None

    def commit(self, entry: TableEntry, mark: Mark, merged: MergedFields) -> int:
        """Write the next commit, columns and files in one. Raises BeyondUsError."""
        seen, version = self._seen, self.version() + 1
        if seen is not None and not seen.plain:
            raise BeyondUsError("the table asks for more than an append")
        metadata: dict[str, Any] | None = None
        if seen is None:
            metadata = new_metadata(entry, merged)
        elif merged.changed:
            metadata = {**seen.metadata, "schemaString": schema_string(merged.fields)}
        if metadata is None and (identity := self._named(entry, mark, version)) is not None:
            return self._committed(version, identity, mark)
        if metadata is not None and _needs_feature(metadata["schemaString"]):
            raise BeyondUsError("a column asks for a table feature")
        if seen is None:
            os.makedirs(f"{self._folder}/_delta_log", exist_ok=True)
            sync(self._folder)
        text = commit_text(entry, mark, metadata=metadata, new=seen is None)
        identity = create_commit(commit_path(self._folder, version), text)
        if seen is None:
            seen = self._seen = _Seen(version, metadata or {}, True, identity, {})
        elif metadata is not None:
            seen.metadata, seen.fields = metadata, merged.fields
        self._committed(version, identity, mark)
        if self.checkpoint_is_due():
            self.checkpoint()
        return version

    def _named(self, entry: TableEntry, mark: Mark, version: int) -> Identity | None:
        """The commit that was prepared for just this, in its place; else None."""
        draft, self._draft = self._draft, None
        if draft is None:
            return None
        try:
            if draft.entry is not entry or (draft.mark, draft.version) != (mark, version):
                return None
            return name_commit(commit_path(self._folder, version), draft.handle)
        except OSError as error:
            if error.errno in NO_NAMING:
                return None
            raise
        finally:
            os.close(draft.handle)

    def _committed(self, version: int, identity: Identity, mark: Mark) -> int:
        if self._seen is not None:
            self._seen.version, self._seen.identity = version, identity
            self._seen.marks[mark.app_id] = mark.batch
        return version

    def _is_trusted(self, seen: _Seen) -> bool:
        return is_trusted(self._folder, seen.version, seen.identity)

    def _load(self, app_ids: Iterable[str | None]) -> _Seen | None:
        if not os.path.isdir(f"{self._folder}/_delta_log"):
            return None
        try:
            table = DeltaTable(self._folder)
        except TableNotFoundError:
            return None
        protocol, version, metadata = table.protocol(), table.version(), metadata_of(table)
        return _Seen(
            version,
            metadata,
            _is_plain(protocol.min_reader_version, protocol.min_writer_version, metadata),
            identity_of(commit_path(self._folder, version)),
            {app: table.transaction_version(app) for app in app_ids if app is not None},
        )

    def _follow(self, seen: _Seen) -> bool:
        path = commit_path(self._folder, seen.version + 1)
        identity = identity_of(path)
        commit = read_commit(path) if identity else None
        if commit is None:
            return False
        if commit.metadata is not None:
            seen.metadata = commit.metadata
            seen.fields = fields_in(commit.metadata["schemaString"])
        if commit.metadata is not None or commit.protocol is not None:
            protocol = commit.protocol or (PLAIN_PROTOCOL if seen.plain else {})
            reader = protocol.get("minReaderVersion", 3)
            writer = protocol.get("minWriterVersion", 7)
            seen.plain = _is_plain(reader, writer, seen.metadata)
        seen.marks.update(commit.marks)
        seen.version, seen.identity = seen.version + 1, identity
        return True

    def checkpoint_is_due(self) -> bool:
        """Readers replay a log from its newest checkpoint; tables take turns to write theirs."""
        turn, every = self._turn()
        return turn % every == 0 and self.version() >= every // 5

    def checkpoint(self) -> None:
        """Write one; where that fails, nothing is lost but the time of readers."""
        turn, every = self._turn()
        try:
            table = DeltaTable(self._folder)
            table.create_checkpoint()
            if turn % (every * CLEAN_EVERY) == 0:
                table.cleanup_metadata()
        except (DeltaError, OSError) as error:
            # the commit has landed, and a checkpoint only makes reading faster
            _log.warning("no checkpoint for %s: %s", self._folder, type(error).__name__)

    def _turn(self) -> tuple[int, int]:
        """The number of the newest commit in the table's own count, and each how many it is due."""
        known = self._seen.metadata.get("configuration") if self._seen else None
        text = str((known or {}).get("delta.checkpointInterval"))
        every = int(text) if text.isdecimal() and int(text) else checkpoint_interval(self.version())
        return self.version() + zlib.crc32(self._folder.encode()), every


def checkpoint_interval(version: int) -> int:
    """Commits between two checkpoints of a table that has so many: 50, then 100 from 2,000 on."""
    every = CHECKPOINT_EVERY
    while version >= every * 2 * _LEAST_SHARE:
        every *= 2
    return every


def _is_plain(reader: int, writer: int, metadata: dict[str, Any]) -> bool:
    return reader <= 1 and writer <= 2 and '"delta.invariants"' not in metadata["schemaString"]


def _needs_feature(schema: str) -> bool:
    return '"timestamp_ntz"' in schema


# The log of a table anywhere else, or of one with special features: through `deltalake`.
#
# `deltalake` knows how to claim a commit on each kind of store, and what each table feature asks
# of a writer. The price is a reload of the table's state at every commit.

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
