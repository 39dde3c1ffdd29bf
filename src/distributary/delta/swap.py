"""One commit that takes files out of a table and puts others in, with all else that changes.

Columns, properties, files and the mark change together or not at all, and the commit is on disk
before anybody hears of it. `deltalake` would need several commits for that.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from distributary.delta.columns import Field, schema_string
from distributary.delta.commit import (
    PLAIN_PROTOCOL,
    commit_lines,
    commit_path,
    create_commit,
    facts,
)
from distributary.delta.parquet import write_file
from distributary.delta.snapshot import LiveFile, Snapshot
from distributary.errors import StagedFileError
from distributary.model.manifest import Mark, StagedFile
from distributary.store.disk import sync

_log = logging.getLogger(__name__)

CHECKPOINT_EVERY = 20
"""Commits; a process that has not seen the table loads all since the last checkpoint."""
CLEAN_EVERY = 5
"""Checkpoints: then files and commits older than the table's retention are removed."""
RETENTION = {"delta.deletedFileRetentionDuration": "interval 1 days"}
"""Every batch writes files anew, and it is the log of changes that remembers: a week would be
hundreds of times the table. Whoever wants to keep more sets the property."""
_NTZ = "timestampNtz"


@dataclass(frozen=True, slots=True)
class Changeset:
    """What a commit does to a table."""

    operation: str
    name: str
    comment: str = ""
    fields: list[Field] | None = None
    """The columns, if they change."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Properties that are set."""
    removed: Sequence[LiveFile] = ()
    added: Sequence[StagedFile] = ()
    mark: Mark | None = None
    metrics: Mapping[str, int] = field(default_factory=dict)


def write_rows(rows: pa.Table, folder: str, *, prefix: str = "merged") -> StagedFile:
    """A file that no commit names yet, on disk for good."""
    os.makedirs(folder, exist_ok=True)
    staged = write_file(rows, folder, f"{prefix}-{uuid.uuid4().hex}.parquet")
    handle = os.open(f"{folder}/{staged.path}", os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    return staged


def commit(folder: str, before: Snapshot | None, change: Changeset) -> int:
    """Commit on top of a version of a table (None: make it); returns the new version.

    Raises OvertakenError, with nothing changed, if anybody committed anything since, and
    StagedFileError if a file is no longer what was written: a VACUUM may have come by.
    """
    _check_written(folder, change)
    if before is None:
        os.makedirs(f"{folder}/_delta_log", exist_ok=True)
        sync(folder)
    version = 0 if before is None else before.version + 1
    actions = _actions(before, change, now=time.time_ns() // 1_000_000)
    create_commit(commit_path(folder, version), commit_lines(actions))
    _checkpoint_if_due(folder, version)
    return version


def _check_written(folder: str, change: Changeset) -> None:
    for file in change.added:
        path = Path(folder, file.path)
        found = path.stat().st_size if path.is_file() else None
        if found == file.size:
            continue
        for each in change.added:
            Path(folder, each.path).unlink(missing_ok=True)
        raise StagedFileError(
            f"a file that was written for table {change.name} is not what was written",
            where=str(path),
            evidence=f"written {file.size:,} bytes; found: "
            f"{'no such file' if found is None else f'{found:,} bytes'}",
            next_step="find out who removes young files from this folder (a VACUUM with a short "
            "retention?); the merge is done again by itself",
            table=change.name,
        )


def _actions(before: Snapshot | None, change: Changeset, *, now: int) -> list[dict[str, Any]]:
    actions: list[dict[str, Any]] = [{"commitInfo": _info(change, now)}]
    metadata = _metadata(before, change, now)
    protocol = _protocol(before, metadata)
    actions += [{"protocol": protocol}] if protocol else []
    actions += [{"metaData": metadata}] if metadata else []
    if change.mark:
        mark = {"appId": change.mark.app_id, "version": change.mark.batch, "lastUpdated": now}
        actions += [{"txn": mark}]
    actions += [{"remove": _remove(file, now)} for file in change.removed]
    actions += [{"add": _add(file, now)} for file in change.added]
    return actions


def _metadata(before: Snapshot | None, change: Changeset, now: int) -> dict[str, Any] | None:
    if before is None:
        comment = {"description": change.comment} if change.comment else {}
        return {
            "id": str(uuid.uuid4()),
            "name": change.name,
            **comment,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": schema_string(change.fields or []),
            "partitionColumns": [],
            "configuration": {**RETENTION, **change.properties},
            "createdTime": now,
        }
    have = before.metadata
    configuration = {**have["configuration"], **change.properties}
    schema = have["schemaString"] if change.fields is None else schema_string(change.fields)
    after = {**have, "configuration": configuration, "schemaString": schema}
    return None if after == have else after


def _protocol(before: Snapshot | None, metadata: dict[str, Any] | None) -> dict[str, Any] | None:
    """The protocol, if it is new or a new column needs a feature."""
    if metadata is None or f'"{_NTZ_TYPE}"' not in metadata["schemaString"]:
        return PLAIN_PROTOCOL if before is None else None
    have = [] if before is None else before.protocol.get("writerFeatures", [])
    if _NTZ in have:
        return None
    # what the oldest protocol asks of writers has to be named once features are
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": [_NTZ],
        "writerFeatures": ["appendOnly", "invariants", _NTZ],
    }


_NTZ_TYPE = "timestamp_ntz"


def _remove(file: LiveFile, now: int) -> dict[str, Any]:
    return {
        "path": quote(file.path, safe="/="),
        "deletionTimestamp": now,
        "dataChange": True,
        "extendedFileMetadata": True,
        "partitionValues": {},
        "size": file.size,
    }


def _add(file: StagedFile, now: int) -> dict[str, Any]:
    return {
        "path": quote(file.path, safe="/="),
        "partitionValues": {},
        "size": file.size,
        "modificationTime": now,
        "dataChange": True,
        "stats": file.stats,
    }


def _info(change: Changeset, now: int) -> dict[str, Any]:
    return {
        "timestamp": now,
        "operation": change.operation,
        "operationParameters": {},
        "operationMetrics": {name: str(value) for name, value in change.metrics.items()},
        "isBlindAppend": False,
        "engineInfo": "Distributary",
        **(facts(change.mark) if change.mark else {}),
    }


def _checkpoint_if_due(folder: str, version: int) -> None:
    """Readers replay a log from its newest checkpoint; tables take turns to write theirs."""
    turn = version + zlib.crc32(folder.encode())
    if turn % CHECKPOINT_EVERY or version < CHECKPOINT_EVERY // 5:
        return
    try:
        table = DeltaTable(folder)
        table.create_checkpoint()
        if turn % (CHECKPOINT_EVERY * CLEAN_EVERY) == 0:
            table.vacuum(dry_run=False)
            table.cleanup_metadata()
    except (DeltaError, OSError) as error:
        # the commit has landed, and a checkpoint only makes reading faster
        _log.warning("no checkpoint for %s: %s", folder, type(error).__name__)
