"""Columns that an event leaves out have the value of the row before it. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from distributary.merge.contest import NOBODY, Contest
from distributary.merge.moves import Moves
from distributary.merge.sequence import Flags, Ints


class Told:
    """Who told something under a key, and what was the last of it before a place."""

    def __init__(self, who: Ints, group: Ints, power: Ints) -> None:
        """What is told by whom: numbers of keys, and powers, of which the higher is the later."""
        self._scale = int(power.max(initial=0)) + 2
        place = group * self._scale + power
        order = np.argsort(place)
        self._who, self._place = who[order], place[order]

    def before(self, groups: Ints, powers: Ints) -> Ints:
        """For keys and powers the last one who told something earlier; NOBODY if none did."""
        if not len(self._who):
            return np.full(len(groups), NOBODY)
        # later than the last of all is just behind it, not among those of the next key
        powers = np.minimum(powers, self._scale - 1)
        at = np.searchsorted(self._place, groups * self._scale + powers) - 1
        known = (at >= 0) & (groups >= 0) & (self._place[at] // self._scale == groups)
        return np.where(known, self._who[at], NOBODY)


def followed(sources: Ints) -> Ints:
    """Where each value comes from in the end: one that is taken over may have been so before."""
    while True:
        further = np.where(sources == NOBODY, NOBODY, sources[sources])
        if (further == sources).all():
            return sources
        sources = further


def sources_of(contest: Contest, moves: Moves, name: str, asking: Ints, *, soft: bool) -> Ints:
    """Where the value of a column is for some events: their own, or the last one told before.

    A row that was removed takes its values with it: what comes after it begins with null. One that
    got another key takes them along.
    """
    left_out = contest.events.left_out[name]
    numbers = range(len(contest.keys))
    told = [_told(contest, number, left_out, moves, soft=soft) for number in numbers]
    size, known = len(contest.owner), len(contest.known.live)
    sources = np.arange(size + known + (0 if moves.rows is None else moves.rows.num_rows))
    moving = left_out[moves.asking]
    events, looks = moves.asking[moving], moves.looks[moving]
    sources[events] = _before(contest, told, moves.owner[moving], looks)
    kept = moves.kept[moving]
    sources[events[kept >= 0]] = size + known + kept[kept >= 0]
    taken = np.zeros(size, np.bool_)
    taken[events] = True
    plain = asking[left_out[asking] & ~taken[asking]]
    sources[plain] = _before(contest, told, contest.owner[plain], plain)
    return followed(sources)[asking]


def _before(contest: Contest, told: list[Told], owner: Ints, asking: Ints) -> Ints:
    """The last one told under the keys of events, before their places."""
    found = np.full(len(asking), NOBODY)
    for number, index in enumerate(contest.keys):
        own = owner == number
        events = asking[own]
        found[own] = told[number].before(index.groups[events], contest.power[events])
    return found


def _told(contest: Contest, number: int, left_out: Flags, moves: Moves, *, soft: bool) -> Told:
    side = contest.side(number, own=False)
    is_event = (side.who >= 0) & (side.who < len(contest.owner))
    # who got a value from under another key passes it on
    silent = left_out.copy()
    silent[moves.asking] = False
    tells = np.ones(len(side.who), np.bool_)
    tells[is_event] = ~silent[side.who[is_event]]
    value = side.who.copy()
    if not soft:
        removed = np.zeros(len(side.who), np.bool_)
        removed[is_event] = contest.events.deletes[side.who[is_event]]
        tells |= removed
        value[removed | (side.rank < contest.emptied)] = NOBODY
    return Told(value[tells], side.group[tells], side.power[tells])


def gathered(sources: Ints, events: pa.ChunkedArray, rows: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values at the sources: from events, from known rows, or null."""
    both = pa.chunked_array([*events.chunks, *rows.chunks], events.type)
    return both.take(pa.array(sources, mask=sources == NOBODY))
