"""The log of a Delta table, written: one commit that changes all that changes, or nothing.

Columns, properties, files and the mark of a batch are in one file, which is created under the next
number unless that is taken. Whoever is overtaken looks at the table again and decides again. An
answer that was lost is no failure: the file that is there says whose it is.
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
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from distributary.delta.checkpoint import OFTEN, is_due, look_after
from distributary.delta.columns import Field, MergedFields, schema_string
from distributary.delta.damage import TAG
from distributary.delta.log import (
    LOG,
    PLAIN_PROTOCOL,
    Action,
    DataFile,
    Snapshot,
    commit_name,
    is_lost,
    keep_following,
    load,
    replayed,
)
from distributary.delta.parquet import UPLOADS, write_file
from distributary.delta.tables import OvertakenError
from distributary.delta.vectors import FEATURE, Vector
from distributary.delta.vectors import PROPERTY as ENABLED
from distributary.errors import PublishError, StagedFileError
from distributary.model.manifest import Mark, StagedFile, TableEntry, compact
from distributary.model.table import is_below
from distributary.store.base import Store, at
from distributary.store.disk import NO_NAMING, Disk, give_name, sync, unnamed

# What every commit says about the batch it came from, and how to find it again.

APP = "distributary.app"
BATCH = "distributary.batch"
SOURCE = "distributary.source"
PIPELINE = "distributary.pipeline"
USER_METADATA = "userMetadata"
"""Where Delta's Spark writer puts what a user wants to say of a commit: one string."""


def facts(mark: Mark) -> dict[str, str]:
    """The keys that a commit carries beside its transaction mark."""
    return {
        APP: mark.app_id,
        BATCH: str(mark.batch),
        SOURCE: mark.source_hash,
        PIPELINE: pipeline_of(mark.app_id),
    }


def facts_in(info: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys of `facts` in a commit's own description, whichever publisher wrote it."""
    if APP in info:
        return info
    try:
        told = json.loads(info.get(USER_METADATA) or "{}")
    except (TypeError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def source_in(info: Mapping[str, Any], mark: Mark) -> str | None:
    """The source fingerprint in a commit's description, if it is the commit of that batch."""
    told = facts_in(info)
    if told.get(APP) != mark.app_id or told.get(BATCH) != str(mark.batch):
        return None
    source = told.get(SOURCE)
    return source if isinstance(source, str) else None


def pipeline_of(app_id: str) -> str:
    """The pipeline's name in the application id of its marks."""
    return app_id.removeprefix("distributary/").rsplit("/", 2)[0]


def lane_of(app_id: str) -> str:
    """The lane in the application id of its marks."""
    return app_id.rsplit("/", 1)[-1]


# What must be so before files are committed.


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
            found = "its name points out of the table's folder"
        else:
            found = "no such file" if size is None else f"{size:,} bytes"
        raise StagedFileError(
            f"a staged file of table {table} is not what was staged",
            where=f"{folder}/{file.path}",
            evidence=f"staged {file.size:,} bytes; found: {found}",
            next_step="find out who removes young files from this folder (a VACUUM with a short "
            "retention?); what is lost is made again from the source or the log",
            table=table,
        )


# What a commit does, as its lines say it.

RETENTION = {"delta.deletedFileRetentionDuration": "interval 1 days"}
"""Of tables whose files every batch writes again, and of which a log of changes remembers all: a
week would be hundreds of times the table. Whoever wants to keep more sets the property."""
_NTZ, _NTZ_TYPE = "timestampNtz", '"timestamp_ntz"'


@dataclass(frozen=True, slots=True)
class Change:
    """What a commit does to a table."""

    operation: str
    name: str = ""
    """Of a table that is made."""
    comment: str = ""
    partition_by: Sequence[str] = ()
    fields: Sequence[Field] | None = None
    """The columns, if they change."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Properties that are set."""
    removed: Sequence[DataFile] = ()
    added: Sequence[StagedFile] = ()
    modified_ms: Mapping[str, int] = field(default_factory=dict)
    """When files that are added count as written, unless now: they are sorted by it."""
    vectors: Sequence[tuple[DataFile, Vector]] = ()
    """Files that stay, each with the vector of all rows that are gone from it by now."""
    same_rows: bool = False
    """Rows only move from file to file."""
    appends: bool = False
    """Nothing was read of the table to make it."""
    mark: Mark | None = None
    metrics: Mapping[str, int] = field(default_factory=dict)


def append(entry: TableEntry, mark: Mark, merged: MergedFields) -> Change:
    """The commit that adds an entry's files under its mark."""
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
    if change.mark:
        mark = {"appId": change.mark.app_id, "version": change.mark.batch, "lastUpdated": now}
        actions.append({"txn": mark})
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
            # a log holds addresses, not file names
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
    """Put a commit that does nothing in the place of an empty one at the end of a table's log.

    What it said is lost; with other commits behind it the log could not be read any more.
    """
    snapshot = load(store, files=False)
    name = None if snapshot is None else commit_name(snapshot.version)
    if name is not None and is_lost(store.read(name)):
        info = {"timestamp": int(time.time() * 1000), "operation": "ACCEPT"}
        store.write(name, f"{compact({'commitInfo': info})}\n".encode())


_TIGHT = '"tightBounds":true}'


def _wide(file: DataFile) -> str:
    """The statistics of a file of which rows are gone: its bounds may be those of such rows.

    They are changed as a text: numbers that others wrote may be more exact than ours would be.
    """
    text, told = file.stats or "", file.told()
    if told.get("tightBounds") is False:
        return text
    if "tightBounds" not in told:
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
        # tells this commit from any other, also one of another process for the same batch
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
    """The protocol, if it is new, or a new column or a vector needs a feature."""
    asked = {FEATURE} if vectors else set()
    if metadata is not None and _NTZ_TYPE in metadata["schemaString"]:
        asked.add(_NTZ)
    protocol = {} if before is None else before.protocol
    known = {*(protocol.get("readerFeatures") or ())}
    if asked <= known:
        return PLAIN_PROTOCOL if before is None else None
    # what the oldest protocol asks of writers has to be named once features are
    writing = {"appendOnly", "invariants", *(protocol.get("writerFeatures") or ())}
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": sorted(known | asked),
        "writerFeatures": sorted(writing | known | asked),
    }


def _text(actions: Sequence[Action]) -> bytes:
    # deltalake 1.6 takes an escaped character from above U+1FFFF for another one
    lines = "".join(f"{compact(action, escaped=False)}\n" for action in actions)
    return lines.encode("utf-8", "replace")


# How it gets into its place.


def write_rows(
    rows: pa.Table, folder: str, *, prefix: str = "merged", key: Sequence[str] = ()
) -> StagedFile:
    """A file that no commit names yet; `commit` waits until it is there for good."""
    return write_file(rows, at(folder).address, f"{prefix}-{uuid.uuid4().hex}.parquet", key=key)


def commit(store: Store, before: Snapshot | None, change: Change) -> Snapshot:
    """Commit on top of a version of a table (None: make it); what the table is then.

    Raises OvertakenError, with nothing changed, if anybody committed anything since, and
    StagedFileError if a file is no longer what was written.
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
    """Commit files that were written just now by `write_rows`, and follow the table from there."""
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
    after = commit(store, before, change)
    keep_following(after)
    if is_due(after, often=True):
        look_after(after, often=True, vacuum=True)
    return after


def _created(store: Store, version: int, data: bytes, create: Callable[[], str | None]) -> str:
    name = commit_name(version)
    try:
        identity = create()
    except OSError as error:
        # it may have landed all the same: the log decides
        found = None if error.errno in NO_NAMING else _fetched(store, name)
        if found is None or found[0] != data:
            raise
        identity = found[1]
    if identity is None:
        if store.look(name) is None:
            # no commit of anybody's, so looking at the table again would not help
            raise IsADirectoryError(errno.EISDIR, "no file is in the place of a commit", name)
        raise OvertakenError(f"{name} is taken")
    return identity


def _fetched(store: Store, name: str) -> tuple[bytes, str] | None:
    try:
        return store.fetch(name)
    except OSError:
        return None


class Draft:
    """A commit in a folder of this machine that is written and has no name yet.

    Whoever makes many syncs what is in them before they get their names, and the names after.
    """

    def __init__(self, before: Snapshot, actions: Sequence[Action], data: bytes, handle: int):
        self.before = before
        self._actions, self._data, self._handle = actions, data, handle

    @classmethod
    def of(cls, before: Snapshot, change: Change) -> Draft | None:
        """Write the commit that `commit` would; None where there is nothing to gain."""
        if not isinstance(before.store, Disk):
            return None
        actions = _actions(before, change)
        data = _text(actions)
        handle = unnamed(f"{before.folder}/{LOG}", data)
        return None if handle is None else cls(before, actions, data, handle)

    @property
    def device(self) -> int:
        """What to sync."""
        return os.fstat(self._handle).st_dev

    def commit(self) -> Snapshot | None:
        """The same as `commit`; None where no name can be given to such a file."""
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
        """Nothing is left of one that got no name."""
        os.close(self._handle)
