"""Events that were delivered before: their log has one with the same id and the same content.

Most batches bring nothing twice, and most files of a log are about other times: the bounds that the
table keeps of each file tell which ones to open, and of those only two columns are read.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.merge.events import read_file
from distributary.merge.keys import KeyIndex
from distributary.merge.log_bounds import Bounds, bounds_of
from distributary.merge.sequence import Flags, Ints
from distributary.merge.usable import folder_of, merging

_ID = pa.schema([pa.field("_uuid", pa.string()), pa.field("_hash", pa.int64())])


def redelivered(log_path: str, events: pa.Table) -> pa.BooleanArray:
    """Which events are in the log already, or further up among the events themselves.

    Events have `_uuid`, `_hash` and `_source_ts`; one without an id is never a re-delivery, and
    one with the id of another and other content neither. Raises PublishError.
    """
    with merging(log_path, doing="look for events in a log"):
        ids = events.select(_ID.names)
        sizes = pc.binary_length(ids.column("_uuid")).fill_null(0)
        named: Flags = pc.greater(sizes, 0).to_numpy(zero_copy_only=False)
        index = KeyIndex(ids, tuple(_ID.names))
        again = _seen_before(index.groups) & named
        for path in _overlapping(folder_of(log_path), events.filter(pa.array(named & ~again))):
            there = index.find(read_file(path, _ID))
            again |= np.isin(index.groups, there[there >= 0]) & named
        return pa.array(again)


def _seen_before(groups: Ints) -> Flags:
    again = np.ones(len(groups), np.bool_)
    again[np.unique(groups, return_index=True)[1]] = False
    return again


def _overlapping(folder: str, events: pa.Table) -> list[str]:
    """The files of a log that may have one of these events."""
    bounds = bounds_of(folder) if events.num_rows else None
    if bounds is None:
        return []
    time = events.column("_source_ts")
    timed = np.sort(time.cast(pa.int64()).drop_null().to_numpy())
    inside = np.searchsorted(timed, bounds.high, "right") > np.searchsorted(timed, bounds.low)
    may = inside | bounds.no_time | (time.null_count > 0)
    ids = events.column("_uuid").combine_chunks()
    found = [int(number) for number in np.flatnonzero(may)]
    return [f"{folder}/{bounds.paths[n]}" for n in found if _may_have_id(bounds, n, ids)]


def _may_have_id(bounds: Bounds, number: int, ids: pa.Array) -> bool:
    low, high = bounds.low_id[number], bounds.high_id[number]
    if low is None or high is None:
        return True
    between = pc.and_(pc.greater_equal(ids, low), pc.less_equal(ids, high))
    return bool(pc.any(between).as_py())
