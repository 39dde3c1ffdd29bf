"""Writing of a Delta table's log: one commit applies a whole change, or nothing.

Columns, properties, files and the mark of a batch are in one file, which is created under the next
version number if that number is free. A writer that finds it taken reads the table again and
decides again. A lost answer is no failure: the content of the file shows which writer created it.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from distributary.delta.column_merge import Field, MergedFields, schema_string
from distributary.delta.damage import TAG, seal_commit
from distributary.delta.log import (
    PLAIN_PROTOCOL,
    DataFile,
    Snapshot,
    keep_following,
    load,
    replayed,
)
from distributary.delta.log_checkpoint import (
    OFTEN,
    is_due,
    look_after,
    write_first_checkpoint,
)
from distributary.delta.log_reading import LOG, Action, commit_name, is_lost
from distributary.delta.parquet import UPLOADS, write_file
from distributary.delta.tables import OvertakenError
from distributary.delta.vectors import FEATURE, Vector
from distributary.delta.vectors import PROPERTY as ENABLED
from distributary.errors import DistributaryError, PublishError, StagedFileError
from distributary.model.manifest import Mark, StagedFile, TableEntry, compact
from distributary.model.table import is_below
from distributary.store.base import Store, at
from distributary.store.disk import NO_NAMING, Disk, give_name, sync, sync_file_system, unnamed

# The keys by which a commit names the batch it came from.

APP = "distributary.app"
BATCH = "distributary.batch"
SOURCE = "distributary.source"
PIPELINE = "distributary.pipeline"
USER_METADATA = "userMetadata"
"""The key under which Delta's Spark writer stores a user's text about a commit."""


_NEW_LOG = ".log-"
"""The beginning of the names of folders in which new logs are written."""


def facts(mark: Mark) -> dict[str, str]:
    """Return the keys that a commit carries beside its transaction mark."""
    return {
        APP: mark.app_id,
        BATCH: str(mark.batch),
        SOURCE: mark.source_hash,
        PIPELINE: pipeline_of(mark.app_id),
    }


def facts_in(info: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keys of `facts` in a commit's description, as any of our publishers wrote it."""
    if APP in info:
        return info
    try:
        metadata = json.loads(info.get(USER_METADATA) or "{}")
    except (TypeError, ValueError):
        return {}
    return metadata if isinstance(metadata, dict) else {}


def source_in(info: Mapping[str, Any], mark: Mark) -> str | None:
    """Return the source fingerprint in a commit's description.

    None for a commit of another batch.
    """
    keys = facts_in(info)
    if keys.get(APP) != mark.app_id or keys.get(BATCH) != str(mark.batch):
        return None
    source = keys.get(SOURCE)
    return source if isinstance(source, str) else None


def pipeline_of(app_id: str) -> str:
    """Return the pipeline's name in the application id of a mark."""
    return app_id.removeprefix("distributary/").rsplit("/", 2)[0]


def lane_of(app_id: str) -> str:
    """Return the lane in the application id of a mark."""
    return app_id.rsplit("/", 1)[-1]


# Conditions that must hold before files are committed.


def check_partitioning(entry: TableEntry, actual: Sequence[str]) -> None:
    """Raise PublishError if files were staged for other partition columns than the table has."""
    if tuple(actual) != entry.table.partition_by:
        raise PublishError(
            f"table {entry.table.name} has other partition columns than the batch was staged for",
            where=entry.table.path,
            evidence=f"table: {', '.join(actual) or 'not at all'}; "
            f"batch: {', '.join(entry.table.partition_by) or 'not at all'}",
            next_step="another program made or replaced the table: put the old table back and "
            "resume it, or restart the pipeline, which then follows the table",
            reason="partitions",
        )


def check_staged(entry: TableEntry, size_of: Callable[[str], int | None]) -> None:
    """Raise StagedFileError if a file is missing or changed, for instance after a VACUUM."""
    _check_files(entry.table.name, entry.table.path, entry.files, size_of)


def _check_files(
    table: str, folder: str, files: Sequence[StagedFile], size_of: Callable[[str], int | None]
) -> None:
    for file in files:
        inside = is_below(file.path)
        size = size_of(file.path) if inside else None
        if size == file.size:
            continue
        if not inside:
            actual = "the path leads out of the table's folder"
        else:
            actual = "no such file" if size is None else f"{size:,} bytes"
        raise StagedFileError(
            f"a staged file of table {table} is missing or changed",
            where=f"{folder}/{file.path}",
            evidence=f"staged {file.size:,} bytes; found: {actual}",
            next_step="find out which program removes young files from this folder (a VACUUM with "
            "a short retention?); the lost rows are written again from the source or the log",
            table=table,
        )


# The actions of a commit.

RETENTION = {"delta.deletedFileRetentionDuration": "interval 1 days"}
"""The file retention of tables whose files every batch rewrites: their log of changes keeps every
event, and a week of replaced files would be hundreds of times the table's size. To keep files for
longer, users set the property on the table."""
_NTZ, _NTZ_TYPE = "timestampNtz", '"timestamp_ntz"'


@dataclass(frozen=True, slots=True)
class Change:
    """The change that a commit makes to a table."""

    operation: str
    name: str = ""
    """The name of a new table."""
    comment: str = ""
    partition_by: Sequence[str] = ()
    fields: Sequence[Field] | None = None
    """The new columns; None if columns do not change."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """The table properties that are set."""
    removed: Sequence[DataFile] = ()
    added: Sequence[StagedFile] = ()
    modified_ms: Mapping[str, int] = field(default_factory=dict)
    """The modification times of added files, by path; without an entry, the time of the commit.
    Files are sorted by this time."""
    vectors: Sequence[tuple[DataFile, Vector]] = ()
    """Files that stay in the table, each with the vector of all its deleted rows."""
    same_rows: bool = False
    """True if rows only move from file to file."""
    appends: bool = False
    """True if the change does not depend on anything read from the table."""
    mark: Mark | None = None
    marks: Mapping[str, int] = field(default_factory=dict)
    """Marks of other applications than that of the batch."""
    metrics: Mapping[str, int] = field(default_factory=dict)


def append(entry: TableEntry, mark: Mark, merged: MergedFields) -> Change:
    """Return the change that adds an entry's files under its mark."""
    return Change(
        operation="WRITE",
        name=entry.table.name,
        comment=entry.table.comment,
        partition_by=entry.table.partition_by,
        fields=merged.fields if merged.changed else None,
        added=entry.files,
        appends=True,
        mark=mark,
        metrics={
            "numFiles": len(entry.files),
            "numOutputRows": entry.rows,
            "numOutputBytes": sum(file.size for file in entry.files),
        },
    )


def _actions(before: Snapshot | None, change: Change) -> list[Action]:
    now = time.time_ns() // 1_000_000
    actions: list[Action] = [{"commitInfo": _info(change, now)}]
    metadata = _metadata(before, change, now)
    protocol = _protocol(before, metadata, vectors=bool(change.vectors))
    actions += [{"protocol": protocol}] if protocol else []
    actions += [{"metaData": metadata}] if metadata else []
    own = {change.mark.app_id: change.mark.batch} if change.mark else {}
    for app_id, number in {**own, **change.marks}.items():
        actions.append({"txn": {"appId": app_id, "version": number, "lastUpdated": now}})
    for gone in (*change.removed, *(file for file, _ in change.vectors)):
        remove = {
            "path": gone.spelled,
            "deletionTimestamp": now,
            "dataChange": not change.same_rows,
            "extendedFileMetadata": True,
            "partitionValues": dict(gone.values),
            "size": gone.size,
            **({} if gone.vector is None else {"deletionVector": gone.vector.spelled()}),
        }
        actions.append({"remove": remove})
    for file, vector in change.vectors:
        again = {
            "path": file.spelled,
            "partitionValues": dict(file.values),
            "size": file.size,
            "modificationTime": file.modified_ms,
            "dataChange": not change.same_rows,
            "stats": _wide(file),
            "deletionVector": vector.spelled(),
            **({"tags": dict(file.tags)} if file.tags else {}),
        }
        actions.append({"add": again})
    for new in change.added:
        add = {
            # A log holds URL-encoded paths.
            "path": quote(new.path, safe="/="),
            "partitionValues": dict(new.partition_values),
            "size": new.size,
            "modificationTime": change.modified_ms.get(new.path, now),
            "dataChange": not change.same_rows,
            "stats": new.stats,
            **({} if new.checksum is None else {"tags": {TAG: new.checksum}}),
        }
        actions.append({"add": add})
    return actions


def mend_lost_commit(store: Store) -> None:
    """Replace an empty commit at the end of a table's log by a commit without effect.

    The content of the empty commit is lost; with further commits after it, the log could not be
    read.
    """
    snapshot = load(store, files=False)
    name = None if snapshot is None else commit_name(snapshot.version)
    if name is not None and is_lost(store.read(name)):
        info = {"timestamp": int(time.time() * 1000), "operation": "ACCEPT"}
        store.write(name, _text([{"commitInfo": info}]))


_TIGHT = '"tightBounds":true}'


def _wide(file: DataFile) -> str:
    """Return a file's statistics, marked as not tight: bounds may come from deleted rows.

    The text is edited and not serialized again, because numbers of other writers may have more
    digits than ours.
    """
    text, statistics = file.stats or "", file.statistics()
    if statistics.get("tightBounds") is False:
        return text
    if "tightBounds" not in statistics:
        return '{"tightBounds":false,' + text.lstrip()[1:]
    if text.endswith(_TIGHT):
        return f'{text.removesuffix(_TIGHT)}"tightBounds":false}}'
    return compact({"numRecords": file.written, "tightBounds": False})


def _info(change: Change, now: int) -> dict[str, Any]:
    parameters: dict[str, str] = {}
    if change.appends:
        parameters = {"mode": "Append", "partitionBy": compact(list(change.partition_by))}
    return {
        "timestamp": now,
        "operation": change.operation,
        "operationParameters": parameters,
        "operationMetrics": {name: str(value) for name, value in change.metrics.items()},
        "isBlindAppend": change.appends,
        "engineInfo": "Distributary",
        # Distinguishes this commit from all others, also from another process's commit for the same
        # batch.
        "txnId": secrets.token_hex(16),
        **(facts(change.mark) if change.mark else {}),
    }


def _metadata(before: Snapshot | None, change: Change, now: int) -> dict[str, Any] | None:
    if before is None:
        comment = {"description": change.comment} if change.comment else {}
        return {
            "id": str(uuid.uuid4()),
            "name": change.name,
            **comment,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": schema_string(change.fields or []),
            "partitionColumns": list(change.partition_by),
            "configuration": {**({} if change.appends else RETENTION), **change.properties},
            "createdTime": now,
        }
    properties = {**change.properties, **({ENABLED: "true"} if change.vectors else {})}
    if change.fields is None and not properties:
        return None
    have = dict(before.metadata)
    configuration = {**before.properties, **properties}
    schema = have["schemaString"] if change.fields is None else schema_string(change.fields)
    after = {**have, "configuration": configuration, "schemaString": schema}
    return None if after == have else after


def _protocol(
    before: Snapshot | None, metadata: dict[str, Any] | None, *, vectors: bool
) -> dict[str, Any] | None:
    """Return the protocol that a new table, column type or vector needs; None if unchanged."""
    needed = {FEATURE} if vectors else set()
    if metadata is not None and _NTZ_TYPE in metadata["schemaString"]:
        needed.add(_NTZ)
    protocol = {} if before is None else before.protocol
    enabled = {*(protocol.get("readerFeatures") or ())}
    if needed <= enabled:
        return PLAIN_PROTOCOL if before is None else None
    # A protocol that lists features must also list the implicit features of the oldest one.
    writing = {"appendOnly", "invariants", *(protocol.get("writerFeatures") or ())}
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": sorted(enabled | needed),
        "writerFeatures": sorted(writing | enabled | needed),
    }


def _text(actions: Sequence[Action]) -> bytes:
    """Return the text of a commit, with its checksum; the first action is its description."""
    # deltalake 1.6 misreads escaped characters above U+1FFFF.
    lines = "".join(f"{compact(action, escaped=False)}\n" for action in actions)
    return seal_commit(lines.encode("utf-8", "replace"))


# The creation of the commit's file.

_MANY = 30
"""The number of tables from which two syncs of the file system are quicker than three a table."""


def write_rows(
    rows: pa.Table, folder: str, *, prefix: str = "merged", key: Sequence[str] = ()
) -> StagedFile:
    """Write a data file that no commit names yet; `commit` waits until the file is durable."""
    return write_file(rows, at(folder).address, f"{prefix}-{uuid.uuid4().hex}.parquet", key=key)


def commit(store: Store, before: Snapshot | None, change: Change) -> Snapshot:
    """Commit on top of version `before` (None: create the table), and return the new snapshot.

    Raises OvertakenError, with nothing changed, if another commit has come since, and
    StagedFileError if a file is no longer as it was written.
    """
    actions = _actions(before, change)
    data = _text(actions)
    version = 0 if before is None else before.version + 1
    if before is None and isinstance(store, Disk):
        os.makedirs(f"{store.address}/{LOG}", exist_ok=True)
        sync(store.address)
    identity = _created(store, version, data, lambda: store.create(commit_name(version), data))
    after = replayed(before or Snapshot(store), [actions], version, identity)
    if store.asks_for_free:
        return after
    return replace(after, tail=(*(before.tail if before else ()), data)[-OFTEN:])


def rewrite_files(address: str, before: Snapshot | None, change: Change) -> Snapshot:
    """Commit files that `write_rows` has just written, and follow the table from there."""
    store = at(address)
    UPLOADS.finish()
    if store.asks_for_free:
        try:
            _check_files(change.name, store.address, change.added, store.size)
        except StagedFileError:
            for file in change.added:
                store.remove(file.path)
            raise
        for file in change.added:
            sync(f"{store.address}/{file.path}")
    return _followed(commit(store, before, change))


def _followed(after: Snapshot) -> Snapshot:
    keep_following(after)
    if is_due(after, often=True):
        look_after(after, often=True, vacuum=True)
    return after


def begin_log(store: Store, change: Change, version: int) -> None:
    """Give a table in a folder a log that begins at a version, with a checkpoint, all at once.

    Nothing happens if the table has a log.
    """
    for left in store.folders():
        # a killed process has left it
        if left.startswith(_NEW_LOG):
            store.remove_folder(left)
    draft = store.below(f"{_NEW_LOG}{uuid.uuid4().hex}")
    actions = _actions(None, change)
    try:
        draft.write(commit_name(version), _text(actions))
        write_first_checkpoint(draft, version, actions)
        os.rename(f"{draft.address}/{LOG}", f"{store.address}/{LOG}")
        sync(store.address)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
    finally:
        draft.remove_folder()


def rewrite_together(changes: Sequence[tuple[Snapshot, Change]]) -> list[Snapshot | None]:
    """Commit to several tables as `rewrite_files` does; None for a table that stays as it is.

    On a disk, the files and the commits of many tables are synced together.
    """
    many = len(changes) >= _MANY
    drafts = [_draft_of(before, change) if many else None for before, change in changes]
    try:
        _sync(drafts)
        # the names of drafts are durable after the second sync only
        named = [None if draft is None else _named(draft) for draft in drafts]
        _sync(drafts)
    finally:
        for draft in drafts:
            if draft is not None:
                draft.close()
    done: list[Snapshot | None] = []
    for (before, change), after in zip(changes, named, strict=True):
        try:
            here = before.folder
            done.append(_followed(after) if after else rewrite_files(here, before, change))
        except (OvertakenError, DistributaryError, OSError):
            # the caller finds out what happened when it tries the table again
            done.append(None)
    return done


def _draft_of(before: Snapshot, change: Change) -> Draft | None:
    if not isinstance(before.store, Disk):
        return None
    try:
        _check_files(change.name, before.folder, change.added, before.store.size)
        return Draft.of(before, change)
    except (StagedFileError, OSError):
        return None


def _named(draft: Draft) -> Snapshot | None:
    try:
        return draft.commit()
    except (OvertakenError, OSError):
        return None


def _sync(drafts: Sequence[Draft | None]) -> None:
    devices = {draft.device: draft.before.folder for draft in drafts if draft is not None}
    for folder in devices.values():
        sync_file_system(Path(folder))


def _created(store: Store, version: int, data: bytes, create: Callable[[], str | None]) -> str:
    name = commit_name(version)
    try:
        identity = create()
    except OSError as error:
        # The commit may have been created although the answer was lost: compare the file's content.
        existing = None if error.errno in NO_NAMING else _fetched(store, name)
        if existing is None or existing[0] != data:
            raise
        identity = existing[1]
    if identity is None:
        if store.look(name) is None:
            # The name is taken, but not by a commit: reading the table again would not help.
            raise IsADirectoryError(
                errno.EISDIR, "the path of a commit exists and is not a file", name
            )
        raise OvertakenError(f"{name} is taken")
    return identity


def _fetched(store: Store, name: str) -> tuple[bytes, str] | None:
    try:
        return store.fetch(name)
    except OSError:
        return None


class Draft:
    """A commit that is written to the local disk and has no name yet.

    A caller with many drafts syncs their contents at once before naming them, and the names at once
    after.
    """

    def __init__(self, before: Snapshot, actions: Sequence[Action], data: bytes, handle: int):
        self.before = before
        self._actions, self._data, self._handle = actions, data, handle

    @classmethod
    def of(cls, before: Snapshot, change: Change) -> Draft | None:
        """Write the commit that `commit` would.

        None where unnamed files do not exist or do not help.
        """
        if not isinstance(before.store, Disk):
            return None
        actions = _actions(before, change)
        data = _text(actions)
        handle = unnamed(f"{before.folder}/{LOG}", data)
        return None if handle is None else cls(before, actions, data, handle)

    @property
    def device(self) -> int:
        """Return the number of the device that holds the draft, for syncing."""
        return os.fstat(self._handle).st_dev

    def commit(self) -> Snapshot | None:
        """Name the draft and return the new snapshot.

        None if the file system cannot name an unnamed file.
        """
        version = self.before.version + 1
        path = f"{self.before.folder}/{commit_name(version)}"
        try:
            identity = _created(
                self.before.store, version, self._data, lambda: give_name(self._handle, path)
            )
        except OSError as error:
            if error.errno in NO_NAMING:
                return None
            raise
        return replayed(self.before, [self._actions], version, identity)

    def close(self) -> None:
        """Close the draft; a draft without a name leaves no file behind."""
        os.close(self._handle)
