"""The decision which event, row or tombstone of each key counts. Pure.

The events of a batch, the known rows and the tombstones with their keys are compared as numbers: in
each group of equal keys the highest number wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from distributary.changes.events.log_events import ChangeEvents, Flags, Ints, KeyIndex, ranks

NO_MEMBER = -1


@dataclass(frozen=True, slots=True)
class Known:
    """The rows of a table that have the key of an event in the batch."""

    seq: pa.StructArray
    groups: Sequence[Ints]
    """The group of each row, or -1, by key definition."""
    owner: Ints
    """The number of the key definition that applied at each row's position."""
    live: Flags
    """Whether each row is not soft-deleted."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The tombstones with the keys of events in the batch."""

    seq: pa.StructArray
    owner: Ints
    groups: Ints
    """The group of each tombstone by its own key definition."""
    time: Ints
    """The source's time of each removal in microseconds, or UNKNOWN."""
    truncated: pa.StructArray
    """The positions of truncates: the whole table was emptied there."""


@dataclass(frozen=True, slots=True)
class Side:
    """The members of the groups of one key definition: events, then rows, then tombstones.

    `numbers` count the events, then the rows; a tombstone has NO_MEMBER.
    """

    numbers: Ints
    group: Ints
    power: Ints
    rank: Ints

    def top(self, count: int) -> Flags:
        """Return which members are the strongest of their group."""
        strongest: Flags = self.power == highest_by(self.group, self.power, count)[self.group]
        return strongest


class Contest:
    """Events, rows and tombstones with their ranks and powers: the higher power wins."""

    def __init__(
        self,
        events: ChangeEvents,
        *,
        keys: Sequence[KeyIndex],
        owner: Ints,
        known: Known,
        memory: Memory,
    ) -> None:
        self.events, self.keys, self.owner = events, keys, owner
        self.known, self.memory = known, memory
        self.rank, self.known_rank, self.memory_rank, self.truncated_rank = ranks(
            [events.seq, known.seq, memory.seq, memory.truncated]
        )
        self.emptied_before = int(self.truncated_rank.max(initial=NO_MEMBER))
        emptied_now = self.rank[events.truncates].max(initial=NO_MEMBER)
        self.emptied = max(self.emptied_before, int(emptied_now))
        """The rank of the last truncate; everything with a lower rank is deleted."""
        # at equal positions, a row beats an event, and a tombstone beats all but its own delete,
        # which may be delivered again after a crash
        self.power = 4 * self.rank + 2 * events.deletes
        self.known_power = 4 * self.known_rank + 3
        self.memory_power = 4 * self.memory_rank + 1
        self.valid = owner >= 0
        self._sides: dict[tuple[int, bool], Side] = {}

    @cached_property
    def twins(self) -> Flags:
        """Return the events that another event about the same row at the same position replaces."""
        twins = np.zeros(len(self.owner), np.bool_)
        for number, index in enumerate(self.keys):
            own = np.flatnonzero(self.owner == number)
            place = index.groups[own] * (self.rank.max(initial=0) + 1) + self.rank[own]
            _, inverse, counts = np.unique(place, return_inverse=True, return_counts=True)
            shared = counts[inverse] > 1
            if shared.any():
                own, place = own[shared], place[shared]
                order = np.lexsort((self.events.preference(own), place))
                twins[own[order][:-1][np.diff(place[order]) == 0]] = True
        return twins

    def side(self, number: int, *, own: bool) -> Side:
        """Return the members of a definition's groups.

        With `own`, only the members under that definition.
        """
        found = self._sides.get((number, own))
        if found is None:
            found = self._sides[number, own] = self._side(number, own=own)
        return found

    def _side(self, number: int, *, own: bool) -> Side:
        index, size = self.keys[number], len(self.owner)
        heard = self.valid & ~self.twins
        met = self.known.groups[number] >= 0
        if own:
            heard &= self.owner == number
            met &= self.known.owner == number
        event, row = np.flatnonzero(heard), np.flatnonzero(met)
        mine = np.flatnonzero(self.memory.owner == number)
        groups = [index.groups[event], self.known.groups[number][row], self.memory.groups[mine]]
        powers = [self.power[event], self.known_power[row], self.memory_power[mine]]
        rank = [self.rank[event], self.known_rank[row], self.memory_rank[mine]]
        return Side(
            numbers=np.concatenate([event, size + row, np.full(len(mine), NO_MEMBER)]),
            group=np.concatenate(groups),
            power=np.concatenate(powers),
            rank=np.concatenate(rank),
        )


def highest_by(groups: Ints, powers: Ints, count: int) -> Ints:
    """Return the highest power of each group; NO_MEMBER for an empty group."""
    highest = np.full(count, NO_MEMBER, np.int64)
    np.maximum.at(highest, groups, powers)
    return highest
