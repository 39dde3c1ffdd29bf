"""Columns that an event leaves out have the value of the row before it. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from distributary.merge.contest import NOBODY, Contest
from distributary.merge.sequence import Flags, Ints


def sources_of(contest: Contest, name: str, winners: Ints, *, soft: bool) -> Ints:
    """Where the value of a column is for each winner: its own, or the last one told before it.

    A row that was removed takes its values with it: what comes after it begins with null.
    """
    sources = winners.copy()
    left_out = contest.events.left_out[name]
    for number in range(len(contest.keys)):
        asking = np.flatnonzero(left_out[winners] & (contest.owner[winners] == number))
        if len(asking):
            sources[asking] = _before(contest, number, left_out, winners[asking], soft=soft)
    return sources


def _before(contest: Contest, number: int, left_out: Flags, asking: Ints, *, soft: bool) -> Ints:
    side = contest.side(number, own=False)
    is_event = (side.who >= 0) & (side.who < len(contest.owner))
    tells = np.ones(len(side.who), np.bool_)
    tells[is_event] = ~left_out[side.who[is_event]]
    value = side.who.copy()
    if not soft:
        removed = np.zeros(len(side.who), np.bool_)
        removed[is_event] = contest.events.deletes[side.who[is_event]]
        tells |= removed
        value[removed | (side.rank < contest.emptied)] = NOBODY
    order = np.lexsort((side.power, side.group))
    positions = np.where(tells[order], np.arange(len(order)), -1)
    last = np.maximum.accumulate(positions)
    # where each asking event stands in that order
    at = np.empty(len(contest.owner), np.int64)
    ordered = order[is_event[order]]
    at[side.who[ordered]] = np.flatnonzero(is_event[order])
    found = last[at[asking]]
    known = (found >= 0) & (side.group[order[found]] == contest.keys[number].groups[asking])
    answer: Ints = np.where(known, value[order[found]], NOBODY)
    return answer


def gathered(sources: Ints, events: pa.ChunkedArray, rows: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values at the sources: from events, from known rows, or null."""
    both = pa.chunked_array([*events.chunks, *rows.chunks], events.type)
    return both.take(pa.array(sources, mask=sources == NOBODY))
