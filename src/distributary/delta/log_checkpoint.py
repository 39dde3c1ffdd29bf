"""Checkpoints of a Delta log: their writing, and the removal of log files they replace.

A checkpoint lists every file of a table. It is built from the checkpoint before it and the commits
since, as Arrow columns: the files of an old table are never held as Python objects.
"""

from __future__ import annotations

import json
import logging
import re
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError

from distributary.delta.damage import FOOTER_SEAL, seal_footer
from distributary.delta.log import SIDECARS, TRUSTED_SECONDS, Snapshot, file_key
from distributary.delta.log_reading import (
    HINT,
    LOG,
    Action,
    LogNames,
    actions_in,
    checkpoint_file,
    columns_in,
    commit_name,
    fetch_commits,
    log_names,
    with_sidecars,
)
from distributary.delta.removal.holds import Hold, hold_of
from distributary.delta.tables import load_table
from distributary.delta.vectors import Vector
from distributary.errors import CheckpointError, clean
from distributary.model.table import is_below
from distributary.store.base import Store

_log = logging.getLogger(__name__)

CHECKPOINT_EVERY = 50
"""Commits between checkpoints of a young table, unless `delta.checkpointInterval` is set."""
OFTEN = 20
"""The same for tables in buckets, where reading a commit is a request, and for tables whose commits
remove files."""
_LEAST_SHARE = 20
"""A checkpoint lists every file, so an old table writes one when its log has grown by 1/20."""
CLEAN_EVERY = 20
"""Checkpoints after which commits older than the table's log retention are removed."""
_FILE_RETENTION = timedelta(days=7)
LOG_RETENTION = timedelta(days=30)
"""Delta's default retentions, used if the table sets none."""
_LEAST_SECONDS = 2 * TRUSTED_SECONDS
"""The shortest log retention: a pipeline continues from a commit that it has seen within the
trusted time."""

# Durations in the properties of Delta tables, such as `interval 1 days`.

_PART = re.compile(r"([0-9]{1,9}) (week|day|hour|minute|second|millisecond|microsecond)s?")


def parse_interval(text: str | None) -> timedelta | None:
    """Parse the duration in a table property; None if it is not set or cannot be parsed."""
    words = " ".join((text or "").lower().removeprefix("interval").split())
    total, rest = timedelta(0), words
    while rest:
        match = _PART.match(rest)
        if match is None:
            return None
        total += timedelta(**{f"{match[2]}s": int(match[1])})
        rest = rest[match.end() :].lstrip()
    return total if words else None


def retention_of(snapshot: Snapshot, usual: timedelta = _FILE_RETENTION) -> timedelta:
    """Return how long removed files are kept; the table's property overrides `usual`."""
    retention = parse_interval(snapshot.property("delta.deletedFileRetentionDuration"))
    return usual if retention is None else retention


# The times at which checkpoints are due. Tables take turns, so that the tables of a lake do not all
# write theirs with the same batch.


def interval_of(snapshot: Snapshot, *, often: bool = False) -> int:
    """Return the number of commits between two checkpoints of a table."""
    text = snapshot.property("delta.checkpointInterval") or ""
    if text.isdecimal() and int(text):
        return int(text)
    often = often or not snapshot.store.asks_for_free
    return checkpoint_interval(snapshot.version, OFTEN if often else CHECKPOINT_EVERY)


def checkpoint_interval(version: int, every: int) -> int:
    """Return the commits between checkpoints at a version: `every`, and more for old tables."""
    while version >= every * 2 * _LEAST_SHARE:
        every *= 2
    return every


def is_due(snapshot: Snapshot, *, often: bool = False) -> bool:
    """Return whether a checkpoint of this table is due."""
    every = interval_of(snapshot, often=often)
    return _turn(snapshot) % every == 0 and snapshot.version >= every // 5


def _turn(snapshot: Snapshot) -> int:
    return snapshot.version + zlib.crc32(snapshot.folder.encode())


def look_after(snapshot: Snapshot, *, often: bool = False, vacuum: bool = False) -> None:
    """Write a checkpoint and clean up the log; log a warning where that fails.

    With `vacuum`, data files are deleted that were removed longer ago than the table's retention.
    """
    try:
        write_checkpoint(snapshot, vacuum=vacuum)
        every = interval_of(snapshot, often=often)
        if _turn(snapshot) % (every * CLEAN_EVERY) == 0:
            hold = _hold_of(snapshot.folder) if expired(snapshot) else None
            names = expired(snapshot, keep_from=hold.oldest(), since=hold.since) if hold else []
            for name in names:
                snapshot.store.remove(name)
    except Exception as error:
        # The commit has landed, and a checkpoint only makes reading faster.
        _log.warning("no checkpoint for %s: %s", snapshot.folder, type(error).__name__)


def _hold_of(folder: str) -> Hold | None:
    """Return what must stay of a table for cuts; None if that cannot be found out."""
    try:
        return hold_of(folder)
    except CheckpointError as error:
        _log.warning("nothing of %s is deleted: %s", folder, error)
        return None


# The content of a checkpoint.

_MAP = pa.map_(pa.string(), pa.string())
_NAMES = pa.list_(pa.string())
_VECTOR = pa.struct(
    [
        ("storageType", pa.string()),
        ("pathOrInlineDv", pa.string()),
        ("offset", pa.int32()),
        ("sizeInBytes", pa.int32()),
        ("cardinality", pa.int64()),
    ]
)
_TYPES = {
    "protocol": pa.struct(
        [
            ("minReaderVersion", pa.int32()),
            ("minWriterVersion", pa.int32()),
            ("readerFeatures", _NAMES),
            ("writerFeatures", _NAMES),
        ]
    ),
    "metaData": pa.struct(
        [
            ("id", pa.string()),
            ("name", pa.string()),
            ("description", pa.string()),
            ("format", pa.struct([("provider", pa.string()), ("options", _MAP)])),
            ("schemaString", pa.string()),
            ("partitionColumns", _NAMES),
            ("configuration", _MAP),
            ("createdTime", pa.int64()),
        ]
    ),
    "txn": pa.struct(
        [("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())]
    ),
    "add": pa.struct(
        [
            ("path", pa.string()),
            ("partitionValues", _MAP),
            ("size", pa.int64()),
            ("modificationTime", pa.int64()),
            ("dataChange", pa.bool_()),
            ("stats", pa.string()),
            ("tags", _MAP),
            ("deletionVector", _VECTOR),
        ]
    ),
    "remove": pa.struct(
        [
            ("path", pa.string()),
            ("deletionTimestamp", pa.int64()),
            ("dataChange", pa.bool_()),
            ("extendedFileMetadata", pa.bool_()),
            ("partitionValues", _MAP),
            ("size", pa.int64()),
            ("tags", _MAP),
            ("deletionVector", _VECTOR),
        ]
    ),
}
_KEYS = {"add": "path", "remove": "path", "txn": "appId"}
"""The field that identifies what an action is about, by kind; other kinds occur once. For files,
the deletion vector is part of the identity."""


def write_checkpoint(snapshot: Snapshot, *, vacuum: bool = False) -> None:
    """Write the checkpoint of a version, and name it in `_last_checkpoint`."""
    store, version = snapshot.store, snapshot.version
    if snapshot.beyond_us():
        # The table has features that this code does not support.
        load_table(store.address).create_checkpoint()
        return
    names = log_names(store, since=snapshot.checkpoint)
    start = max((v for v in names.checkpoints if v < version), default=-1)
    rows = {kind: pa.array([], type_) for kind, type_ in _TYPES.items()}
    commits: list[list[Action]] = []
    parts = names.checkpoints.get(start, ())
    if SIDECARS in (snapshot.protocol.get("readerFeatures") or ()):
        # For other tables this would read the checkpoint twice.
        parts = with_sidecars(store, parts)
    for part in parts:
        if part.name.endswith(".json"):
            commits.append(actions_in(store.read(part.name)))
            continue
        for kind, actions in _read(store, part.name, part.size).items():
            rows[kind] = pa.concat_arrays([rows[kind], actions])
    kept = snapshot.tail[start - version :]
    others = fetch_commits(store, range(start + 1, version - len(kept) + 1))
    commits += [actions_in(data) for data in (*(data for data, _ in others), *kept)]
    rows = _after(rows, commits)
    before = time.time() - retention_of(snapshot).total_seconds()
    old = _removed_before(rows["remove"], before)
    hold = _hold_of(store.address) if vacuum and pc.any(old).as_py() else None
    if hold is not None and hold.since < before:
        old = _removed_before(rows["remove"], hold.since)
    gone, rows["remove"] = rows["remove"].filter(old), rows["remove"].filter(pc.invert(old))
    if hold is not None and len(gone):
        needed = {*_named(rows["add"]), *_named(rows["remove"]), *hold.paths(store)}
        # A writer of commits must not be able to have files outside of the table deleted.
        store.remove_files([p for p in {*_named(gone)} - needed if is_below(p)])
    _write(store, version, rows)


def write_first_checkpoint(store: Store, version: int, actions: Sequence[Action]) -> None:
    """Write the checkpoint of a log that begins with these actions, so that it is durable."""
    rows = {kind: pa.array([], type_) for kind, type_ in _TYPES.items()}
    _write(store, version, _after(rows, [actions]), durable=True)


def _removed_before(removals: pa.StructArray, moment: float) -> pa.Array:
    """Return a mask of the removals before a moment; one without a time is old."""
    times = pc.struct_field(removals, "deletionTimestamp")
    return pc.fill_null(pc.less(times, pa.scalar(int(moment * 1000))), True)


def _named(files: pa.StructArray) -> Iterator[str]:
    """Yield the paths of the files that actions name, and of the files of their vectors."""
    yield from map(unquote, pc.struct_field(files, "path").to_pylist())
    for descriptor in pc.struct_field(files, "deletionVector").drop_null().to_pylist():
        vector = Vector.parse(descriptor)
        if vector is not None and vector.path is not None:
            yield vector.path


def _read(store: Store, name: str, size: int) -> dict[str, pa.StructArray]:
    """Read the actions in a file of a checkpoint, by kind."""
    with checkpoint_file(store, name, size) as file:
        wanted = {kind: [field.name for field in type_] for kind, type_ in _TYPES.items()}
        table = file.read(columns=columns_in(file.schema_arrow, wanted))
    # Spark writes more fields of a vector than the protocol has, and older writers fewer of the
    # rest.
    return {
        kind: _without_nulls(table.column(kind)).cast(_TYPES[kind]) for kind in table.column_names
    }


def _without_nulls(column: pa.ChunkedArray) -> pa.StructArray:
    return pa.concat_arrays([*column.drop_null().chunks, pa.array([], column.type)])


def _after(
    rows: Mapping[str, pa.StructArray], commits: Sequence[Sequence[Action]]
) -> dict[str, pa.StructArray]:
    """Apply commits to the actions of a checkpoint."""
    latest: dict[str, dict[str, dict[str, Any]]] = {kind: {} for kind in _TYPES}
    for actions in commits:
        # A file that one commit both adds and removes is part of the table.
        for action in sorted(actions, key=lambda action: "add" in action):
            for kind, body in action.items():
                if kind in latest:
                    key = _key(kind, body)
                    latest[kind][key] = body
                    other = {"add": "remove", "remove": "add"}.get(kind, "")
                    latest.get(other, {}).pop(key, None)
    files = {*latest["add"], *latest["remove"]}
    after: dict[str, pa.StructArray] = {}
    for kind, old in rows.items():
        gone = files if kind in ("add", "remove") else set(latest[kind])
        kept = old.filter(_other_than(old, kind, gone)) if gone and len(old) else old
        new = [_spelled(kind, body) for body in latest[kind].values()]
        after[kind] = pa.concat_arrays([kept, pa.array(new, _TYPES[kind])])
    return after


def _other_than(rows: pa.StructArray, kind: str, keys: set[str]) -> pa.Array:
    if kind not in _KEYS:
        return pa.repeat(pa.scalar(False), len(rows))
    have = pc.struct_field(rows, _KEYS[kind])
    if kind != "txn" and pc.struct_field(rows, "deletionVector").null_count < len(rows):
        have = pa.array([_key(kind, body) for body in rows.to_pylist()], pa.string())
    elif pc.any(pc.match_substring(have, "%")).as_py():
        # Writers differ in the characters that they escape.
        have = pa.array([unquote(path) for path in have.to_pylist()], pa.string())
    return pc.invert(pc.is_in(have, value_set=pa.array(sorted(keys), pa.string())))


def _key(kind: str, body: Mapping[str, Any]) -> str:
    if kind not in _KEYS:
        return ""
    name = unquote(body[_KEYS[kind]])
    return name if kind == "txn" else file_key(name, Vector.parse(body.get("deletionVector")))


def _spelled(kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
    # Adds the fields that readers need and a writer may have left out.
    if kind == "metaData":
        options = {"options": body["format"].get("options") or {}}
        lists = {"partitionColumns": body.get("partitionColumns") or []}
        maps = {"configuration": body.get("configuration") or {}}
        return {**body, "format": {**body["format"], **options}, **lists, **maps}
    # A checkpoint repeats changes, so readers of changes must not see them again.
    if kind == "add":
        values = body.get("partitionValues") or {}
        return {**body, "partitionValues": values, "dataChange": False}
    return {**body, "dataChange": False} if kind == "remove" else dict(body)


def _write(
    store: Store, version: int, rows: Mapping[str, pa.StructArray], *, durable: bool = False
) -> None:
    # An action is a row that is null in the columns of all other kinds.
    parts = [pa.table({kind: actions}) for kind, actions in rows.items()]
    table = pa.concat_tables(parts, promote_options="default")
    sink = pa.BufferOutputStream()
    options = {"store_schema": False, "use_dictionary": False, "write_page_checksum": True}
    with pq.ParquetWriter(sink, table.schema, **options) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(FOOTER_SEAL)
    data = seal_footer(sink.getvalue().to_pybytes())
    # The store writes a file whole or not at all, so no reader sees half a checkpoint.
    store.write(f"{LOG}/{version:020d}.checkpoint.parquet", data, durable=durable)
    hint = {
        "version": version,
        "size": table.num_rows,
        "sizeInBytes": len(data),
        "numOfAddFiles": len(rows["add"]),
    }
    store.write(HINT, json.dumps(hint).encode(), durable=durable)


# Care for the log of one table: a checkpoint after many commits, and removal of old commits.
# Readers begin at the newest checkpoint. Removed files lie before a checkpoint that is older than
# all versions to keep, so that each of those can still be read.


@dataclass(frozen=True, slots=True)
class LogCare:
    """The outcome of the care for a log, or the plan of it."""

    checkpoint: int | None = None
    """The version of the new checkpoint."""
    removed: int = 0
    """The number of removed commits and checkpoints."""
    failed: str = ""


def care_for_log(
    snapshot: Snapshot,
    *,
    every: int,
    keep_from: int | None = None,
    since: float = float("inf"),
    dry_run: bool = False,
) -> LogCare:
    """Write a checkpoint if one is due, then remove expired log files.

    `keep_from` is the oldest version that a reader of this table still needs, and `since` the time
    since which all versions must stay readable.
    """
    text = snapshot.property("delta.checkpointInterval") or ""
    interval = int(text) if text.isdecimal() and int(text) else every
    due = snapshot.version - snapshot.checkpoint >= interval
    if due and not dry_run:
        try:
            write_checkpoint(snapshot)
        except (DeltaError, OSError, pa.ArrowException) as error:
            # The library does not know a feature of the table; the table can be read without a
            # checkpoint.
            return LogCare(failed=clean(str(error)) or type(error).__name__)
    names = expired(snapshot, keep_from=keep_from, since=since)
    if not dry_run:
        for name in names:
            snapshot.store.remove(name)
    return LogCare(snapshot.version if due else None, len(names))


def expired(
    snapshot: Snapshot, *, keep_from: int | None = None, since: float = float("inf")
) -> list[str]:
    """Return the files of a log that no reader needs any more, the oldest first."""
    if snapshot.property("delta.enableExpiredLogCleanup") == "false":
        return []
    names = log_names(snapshot.store)
    oldest = _oldest_kept(names, time.time() - _retention(snapshot).total_seconds())
    oldest = oldest if keep_from is None else min(oldest, keep_from)
    if since != float("inf"):
        # the table was at the version before the first commit since then
        oldest = min(oldest, _oldest_kept(names, since) - 1)
    floor = max((v for v in names.checkpoints if v <= oldest), default=-1)
    commits = [commit_name(version) for version in names.commits if version < floor]
    points = sorted(names.checkpoints.items())
    return commits + [part.name for version, parts in points if version < floor for part in parts]


def _retention(snapshot: Snapshot) -> timedelta:
    retention = parse_interval(snapshot.property("delta.logRetentionDuration"))
    return max(LOG_RETENTION if retention is None else retention, timedelta(seconds=_LEAST_SECONDS))


def _oldest_kept(names: LogNames, since: float) -> int:
    """Return the first version younger than the retention, or the newest version."""
    young = (version for version, info in names.commits.items() if info.modified >= since)
    return next(young, max([*names.commits, names.checkpoint], default=-1))
