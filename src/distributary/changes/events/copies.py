"""Copies of events: the events of a batch that its log already has, found by files' bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.events.log_events import Flags, Ints, KeyIndex
from distributary.decode.change.envelope import without_source_time
from distributary.delta.log import DataFile, Snapshot, snapshot_of
from distributary.delta.skipping import SLACK_US, microseconds
from distributary.delta.tables import committing
from distributary.model.cache import Cache

# The bounds of times and ids in each file of a log table, from its Delta log. A process caches
# them, because every batch needs them and adds files.

MOST_TABLES = 1024


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of all files of a log table: one array element for each file."""

    files: tuple[DataFile, ...]
    low: Ints
    """The earliest time in each file, in microseconds since 1970."""
    high: Ints
    no_time: Flags
    """Whether a file has no bounds, or events without a time."""
    batch: Ints
    """The lowest batch in each file; -1 if unknown."""
    ids: tuple[tuple[str | None, str | None], ...]
    """The lowest and the highest id in each file."""


_known: Cache[Bounds] = Cache(MOST_TABLES)


def bounds_of(log: Snapshot) -> Bounds:
    """Return the bounds of all files of a log table."""
    known = _known.find(log.folder)
    if known is None or any(log.files.get(file.path) is not file for file in known.files):
        # the log is new to this process, or commits have done more than add files
        known = _bounds(())
    have = {file.path for file in known.files}
    new = _bounds([file for path, file in log.files.items() if path not in have])
    found = Bounds(
        files=known.files + new.files,
        low=np.concatenate([known.low, new.low]),
        high=np.concatenate([known.high, new.high]),
        no_time=np.concatenate([known.no_time, new.no_time]),
        batch=np.concatenate([known.batch, new.batch]),
        ids=known.ids + new.ids,
    )
    _known.keep(log.folder, found)
    return found


def _bounds(files: Sequence[DataFile]) -> Bounds:
    times = [[microseconds(end) for end in file.bounds("_source_ts")] for file in files]
    nulls = [(file.statistics().get("nullCount") or {}).get("_source_ts") for file in files]
    batches = [file.bounds("_batch")[0] for file in files]
    unbounded = [None in ends or count != 0 for ends, count in zip(times, nulls, strict=True)]
    return Bounds(
        files=tuple(files),
        low=np.array([low or 0 for low, _ in times], np.int64),
        high=np.array([(high or 0) + SLACK_US for _, high in times], np.int64),
        no_time=np.array(unbounded, np.bool_),
        batch=np.array([-1 if batch is None else batch for batch in batches], np.int64),
        ids=tuple(file.bounds("_uuid") for file in files),
    )


def files_at(log: Snapshot, times: Ints) -> list[DataFile]:
    """Return the files of a log that may have events of these times, in microseconds."""
    bounds, times = bounds_of(log), np.sort(times)
    inside = np.searchsorted(times, bounds.high, "right") > np.searchsorted(times, bounds.low)
    return [bounds.files[n] for n in np.flatnonzero(inside | bounds.no_time).tolist()]


# Search for events that were delivered before: the log has an event with the same id and content.
# The bounds of the log's files show which files to open, usually none; of these, two columns are
# read. An event that is sent again with another time is searched by its id alone.

_ID = pa.schema([pa.field("_uuid", pa.string()), pa.field("_hash", pa.int64())])


def redelivered(log_path: str, events: pa.Table) -> pa.BooleanArray:
    """Mark the events that are in the log already, or that repeat an earlier event of the batch.

    Events have `_uuid`, `_hash`, `_source_ts` and `_envelope`. An event is a copy only if it has an
    id, and id and content are the same. Raises PublishError.
    """
    with committing(log_path, doing="look for events in a log"):
        ids = events.select(_ID.names)
        sizes = pc.binary_length(ids.column("_uuid")).fill_null(0)
        named: Flags = pc.greater(sizes, 0).to_numpy(zero_copy_only=False)
        index = KeyIndex(ids, tuple(_ID.names))
        again = _seen_before(index.groups) & named
        new = named & ~again
        some = events if new.all() else events.filter(pa.array(new))
        log = snapshot_of(log_path) if some.num_rows else None
        if log is not None:
            for file in _overlapping(bounds_of(log), some):
                there = index.find(log.read(file, _ID))
                again |= np.isin(index.groups, there[there >= 0]) & named
        return pa.array(again)


def _seen_before(groups: Ints) -> Flags:
    again = np.ones(len(groups), np.bool_)
    again[np.unique(groups, return_index=True)[1]] = False
    return again


def _overlapping(bounds: Bounds, events: pa.Table) -> list[DataFile]:
    """Return the files of a log that may have one of these events."""
    time = events.column("_source_ts")
    lasting: Flags = time.is_valid().to_numpy() & ~without_source_time(events.column("_envelope"))
    timed = np.sort(time.filter(pa.array(lasting)).cast(pa.int64()).to_numpy())
    inside = np.searchsorted(timed, bounds.high, "right") > np.searchsorted(timed, bounds.low)
    may = inside | bounds.no_time | (not lasting.all())
    ids = events.column("_uuid").combine_chunks()
    lowest, highest = pc.min_max(ids).as_py().values()

    def may_have(low: str | None, high: str | None) -> bool:
        """Return whether an id may be within the bounds of a file."""
        if low is None or high is None:
            return True
        if high < lowest or low > highest:
            # excludes most files if ids grow with the source's log
            return False
        between = pc.and_(pc.greater_equal(ids, low), pc.less_equal(ids, high))
        return bool(pc.any(between).as_py())

    return [bounds.files[n] for n in np.flatnonzero(may).tolist() if may_have(*bounds.ids[n])]
