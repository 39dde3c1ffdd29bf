"""One file of a table's transaction log: what it says, and how it is written all at once."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from deltalake import DeltaTable

from distributary.delta.columns import MergedFields, schema_string
from distributary.delta.tables import OvertakenError
from distributary.model.manifest import Mark, TableEntry, compact
from distributary.store import disk

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


PLAIN_PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}
"""What our own tables ask of their readers and writers: every engine can do this."""

TRUSTED_SECONDS = 3600
"""Somebody may clean a log up behind us, though never so soon: look at an older one anew."""

Identity = tuple[int, int, int]
"""Tells a file from another one that has its name."""


@dataclass(frozen=True, slots=True)
class Commit:
    """What a commit says, except for its files."""

    info: dict[str, Any]
    metadata: dict[str, Any] | None
    protocol: dict[str, Any] | None
    marks: dict[str, int]


def commit_path(folder: str, version: int) -> str:
    """Where the commit of a version is."""
    return f"{folder}/_delta_log/{version:020d}.json"


def identity_of(path: str) -> Identity | None:
    """The identity of the file there, or None."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def is_trusted(folder: str, version: int, identity: Identity | None) -> bool:
    """Whether a log that was seen at a version can be followed from there."""
    found = identity_of(commit_path(folder, version))
    if found is None or found != identity:
        return False
    return time.time() - found[1] / 1e9 < TRUSTED_SECONDS


def read_commit(path: str) -> Commit | None:
    """The commit in a file, or None where there is no file."""
    try:
        with open(path, encoding="utf-8") as file:
            return parse_commit(file.read())
    except FileNotFoundError:
        return None


def parse_commit(text: str) -> Commit:
    """A commit's text, one action a line."""
    info: dict[str, Any] = {}
    metadata = protocol = None
    marks: dict[str, int] = {}
    for line in text.split("\n"):
        # files are most of a log, and of no interest here
        if not line.strip() or line.startswith(('{"add"', '{"remove"', '{"cdc"')):
            continue
        action = json.loads(line)
        info = action.get("commitInfo", info)
        metadata = action.get("metaData", metadata)
        protocol = action.get("protocol", protocol)
        if "txn" in action:
            marks[action["txn"]["appId"]] = action["txn"]["version"]
    return Commit(info, metadata, protocol, marks)


def metadata_of(table: DeltaTable) -> dict[str, Any]:
    """The description of a table that a library has loaded, as a commit would hold it."""
    about = table.metadata()
    metadata: dict[str, Any] = {
        "id": about.id,
        "name": about.name,
        "description": about.description,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": table.schema().to_json(),
        "partitionColumns": list(about.partition_columns),
        "configuration": dict(about.configuration),
        "createdTime": about.created_time,
    }
    return {key: value for key, value in metadata.items() if value is not None}


def new_metadata(entry: TableEntry, merged: MergedFields) -> dict[str, Any]:
    """The description of a table that does not exist yet."""
    comment = {"description": entry.table.comment} if entry.table.comment else {}
    return {
        "id": str(uuid.uuid4()),
        "name": entry.table.name,
        **comment,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema_string(merged.fields),
        "partitionColumns": list(entry.table.partition_by),
        "configuration": {},
        "createdTime": time.time_ns() // 1_000_000,
    }


def commit_text(
    entry: TableEntry, mark: Mark, *, metadata: dict[str, Any] | None, new: bool
) -> str:
    """The commit that adds an entry's files, under its mark; with the columns, if they change."""
    now = time.time_ns() // 1_000_000
    actions: list[dict[str, Any]] = [{"commitInfo": _info(entry, mark, now)}]
    actions += [{"protocol": PLAIN_PROTOCOL}] if new else []
    actions += [{"metaData": metadata}] if metadata is not None else []
    actions += [{"txn": {"appId": mark.app_id, "version": mark.batch, "lastUpdated": now}}]
    for file in entry.files:
        add = {
            # a log holds addresses, not file names
            "path": quote(file.path, safe="/="),
            "partitionValues": dict(file.partition_values),
            "size": file.size,
            "modificationTime": now,
            "dataChange": True,
            "stats": file.stats,
        }
        actions.append({"add": add})
    return commit_lines(actions)


def commit_lines(actions: Iterable[dict[str, Any]]) -> str:
    """Actions as a commit holds them."""
    # deltalake 1.6 takes an escaped character from above U+1FFFF for another one
    return "".join(f"{compact(action, escaped=False)}\n" for action in actions)


def create_commit(path: str, text: str) -> Identity:
    """Put a commit in its place, durably, unless the place is taken (OvertakenError)."""
    found = disk.create(Path(path), text.encode("utf-8", "replace"))
    if found is None:
        raise OvertakenError(f"{os.path.basename(path)} is taken")
    return found.st_ino, found.st_mtime_ns, found.st_size


def name_commit(path: str, handle: int) -> Identity:
    """Put a commit that is written already in its place, unless that is taken (OvertakenError)."""
    found = disk.give_name(handle, path)
    if found is None:
        raise OvertakenError(f"{os.path.basename(path)} is taken")
    return found.st_ino, found.st_mtime_ns, found.st_size


def _info(entry: TableEntry, mark: Mark, now: int) -> dict[str, Any]:
    return {
        "timestamp": now,
        "operation": "WRITE",
        "operationParameters": {
            "mode": "Append",
            "partitionBy": json.dumps(list(entry.table.partition_by)),
        },
        "operationMetrics": {
            "numFiles": str(len(entry.files)),
            "numOutputRows": str(entry.rows),
            "numOutputBytes": str(sum(f.size for f in entry.files)),
        },
        "isBlindAppend": True,
        "engineInfo": "Distributary",
        **facts(mark),
    }
