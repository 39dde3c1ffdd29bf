"""The log of a table in a folder of this machine, followed and written commit by commit.

A library that loads a table pays for all of its files at each commit, a thousand tables a batch.
An append needs to know four things only: the newest version, the columns, the protocol and the
marks. So the table is loaded once, each further commit is read as it comes, and a new one is
written under the next number; if that number is taken, the commit was overtaken. Columns and files
change in one commit. Tables that ask more of their writers than ours do are left to `store_log`.
"""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from distributary.durable import NO_NAMING, sync, unnamed
from distributary.model.manifest import TableEntry
from distributary.publish.base import Mark
from distributary.publish.columns import Field, MergedFields, fields_in, schema_string
from distributary.publish.commit_file import (
    PLAIN_PROTOCOL,
    Identity,
    commit_path,
    commit_text,
    create_commit,
    identity_of,
    is_trusted,
    metadata_of,
    name_commit,
    new_metadata,
    read_commit,
)
from distributary.publish.provenance import source_in

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
