"""Between which times and ids the events of each file of a log are, as the table's own log tells.

A process keeps what it has read, and reads on from there: a log is asked about with every batch,
and grows with every batch.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from distributary.merge.sequence import Flags, Ints
from distributary.publish.commit_file import Identity, commit_path, identity_of

MOST_TABLES = 1024
_SLACK_US = 1000
"""Some writers cut the bounds of times to milliseconds."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Bounds:
    """One entry for each file of a log."""

    paths: tuple[str, ...]
    low: Ints
    """Microseconds since 1970."""
    high: Ints
    no_time: Flags
    """Files with events without a time, or without bounds."""
    low_id: tuple[str | None, ...]
    high_id: tuple[str | None, ...]
    version: int
    identity: Identity | None


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    low: int | None
    high: int | None
    nulls: int | None
    low_id: str | None
    high_id: str | None


_known: OrderedDict[str, Bounds] = OrderedDict()
_lock = threading.Lock()


def bounds_of(folder: str) -> Bounds | None:
    """The bounds at a log's newest version, or None where there is no log."""
    with _lock:
        known = _known.get(folder)
    found = None if known is None else _read_on(folder, known)
    if found is None:
        try:
            found = _read(folder)
        except TableNotFoundError:
            return None
    with _lock:
        _known[folder] = found
        _known.move_to_end(folder)
        while len(_known) > MOST_TABLES:
            _known.popitem(last=False)
    return found


def _read_on(folder: str, known: Bounds) -> Bounds | None:
    """What is known, and what was appended since; None when more happened than that."""
    identity = identity_of(commit_path(folder, known.version))
    if identity is None or identity != known.identity:
        return None
    version, files = known.version, []
    while (following := identity_of(commit_path(folder, version + 1))) is not None:
        with open(commit_path(folder, version + 1), encoding="utf-8") as file:
            actions = [json.loads(line) for line in file if line.strip()]
        if any("remove" in action for action in actions):
            return None
        files += [_file(action["add"]) for action in actions if "add" in action]
        version, identity = version + 1, following
    if version == known.version:
        return known
    new = _bounds(files, version, identity)
    return Bounds(
        paths=known.paths + new.paths,
        low=np.concatenate([known.low, new.low]),
        high=np.concatenate([known.high, new.high]),
        no_time=np.concatenate([known.no_time, new.no_time]),
        low_id=known.low_id + new.low_id,
        high_id=known.high_id + new.high_id,
        version=version,
        identity=identity,
    )


def _read(folder: str) -> Bounds:
    table = DeltaTable(folder)
    actions = pa.table(table.get_add_actions(flatten=True))

    def column(name: str) -> list[Any]:
        if name not in actions.column_names:
            return [None] * actions.num_rows
        values = actions.column(name)
        values = pc.cast(values, pa.int64()) if name.endswith("._source_ts") else values
        found: list[Any] = values.to_pylist()
        return found

    names = ("min._source_ts", "max._source_ts", "null_count._source_ts", "min._uuid", "max._uuid")
    files = [_File(*told) for told in zip(column("path"), *map(column, names), strict=True)]
    version = table.version()
    return _bounds(files, version, identity_of(commit_path(folder, version)))


def _file(add: dict[str, Any]) -> _File:
    stats: dict[str, Any] = json.loads(add.get("stats") or "{}")
    low, high = stats.get("minValues", {}), stats.get("maxValues", {})
    return _File(
        path=unquote(add["path"]),
        low=_microseconds(low.get("_source_ts")),
        high=_microseconds(high.get("_source_ts")),
        nulls=stats.get("nullCount", {}).get("_source_ts"),
        low_id=low.get("_uuid"),
        high_id=high.get("_uuid"),
    )


def _microseconds(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _bounds(files: Sequence[_File], version: int, identity: Identity | None) -> Bounds:
    unbounded = [f.low is None or f.high is None or f.nulls != 0 for f in files]
    return Bounds(
        paths=tuple(f.path for f in files),
        low=np.array([f.low or 0 for f in files], np.int64),
        high=np.array([(f.high or 0) + _SLACK_US for f in files], np.int64),
        no_time=np.array(unbounded, np.bool_),
        low_id=tuple(f.low_id for f in files),
        high_id=tuple(f.high_id for f in files),
        version=version,
        identity=identity,
    )
