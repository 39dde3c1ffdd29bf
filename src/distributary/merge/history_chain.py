"""Versions of rows in their order: what each is followed by, and between which times it held. Pure.

A version ends with the next event about its row, or when the table is emptied. Times of a source
need not follow its order (a backfilled row has the time of the backfill): a version that began
after its end begins with it, so that no two versions of a row ever overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.merge.keys import KeyIndex
from distributary.merge.left_out import Told, followed, gathered
from distributary.merge.moves import just_before
from distributary.merge.old_keys import OLD_KEY, read_old_keys
from distributary.merge.sequence import Flags, Ints, Place, places, ranks

_NONE = -1
_LATEST = 2**62


@dataclass(frozen=True, slots=True)
class Truncate:
    """A moment at which all rows went."""

    place: Place
    time_us: int | None


@dataclass(frozen=True, slots=True)
class Chain:
    """What follows from the order of versions, for each of them."""

    valid_from: pa.Array
    valid_to: pa.Array
    open: Flags
    """Nothing has come after it."""


class Versions:
    """Versions of rows: a table with `_seq`, `_source_ts`, `_deleted` and the key's columns."""

    def __init__(
        self,
        rows: pa.Table,
        *,
        keys: Sequence[KeyIndex],
        owner: Ints,
        truncates: Sequence[Truncate],
    ) -> None:
        self.rows, self._keys, self._owner, self._truncates = rows, keys, owner, truncates
        ends = places([each.place for each in truncates])
        self._deleted: Flags = rows.column("_deleted").to_numpy()
        moved = np.flatnonzero(rows.column(OLD_KEY.name).is_valid().to_numpy() & ~self._deleted)
        self._moves = _moves(rows, moved, keys) if len(moved) else []
        seq = rows.column("_seq")
        before = [just_before(_one(seq.take(each.events))) for each in self._moves]
        self.rank, self._ends, *self._looks = ranks([seq, ends, *before])

    def chain(self) -> Chain:
        """The end of each version, and the times between which it held."""
        following = self._following()
        times = self.rows.column("_source_ts").cast(pa.int64()).to_pylist()
        ends, stops = self._emptied()
        begins: list[int | None] = [None] * len(times)
        valid_to: list[int | None] = [None] * len(times)
        # from the last to the first: an end is the beginning of what follows
        for number in np.argsort(self.rank)[::-1].tolist():
            after = following[number]
            follows = after != _NONE and self.rank[after] < ends[number]
            end = begins[after] if follows else stops[number]
            begin = times[number]
            valid_to[number] = end
            begins[number] = begin if begin is None or end is None else min(begin, end)
        type_ = self.rows.schema.field("_source_ts").type
        return Chain(
            valid_from=pa.array(begins, pa.int64()).cast(type_),
            valid_to=pa.array(valid_to, pa.int64()).cast(type_),
            open=(following == _NONE) & (ends == _LATEST),
        )

    def filled(self, left_out: dict[str, Flags]) -> pa.Table:
        """The rows with a value, if one is known, for each column that a version left out."""
        rows = self.rows
        for name, missing in left_out.items():
            at = rows.schema.get_field_index(name)
            column = rows.column(at)
            values = gathered(self._sources(missing), column, column.slice(0, 0))
            rows = rows.set_column(at, rows.schema.field(at), values)
        return rows

    def _sources(self, missing: Flags) -> Ints:
        """Whose value each version has of a column: its own, or the last one told before it."""
        sources = np.arange(len(missing))
        moved = np.zeros(len(missing), np.bool_)
        for move in self._moves:
            moved[move.events] = True
        told = [self._told(missing & ~moved, index) for index in self._keys]
        for number, index in enumerate(self._keys):
            own = np.flatnonzero(missing & ~moved & (self._owner == number))
            found = told[number].before(index.groups[own], self.rank[own])
            sources[own] = self._unless_emptied(found, own)
        for move, rank in zip(self._moves, self._looks, strict=True):
            asking = missing[move.events]
            own = move.events[asking]
            found = told[move.number].before(move.groups[asking], rank[asking])
            sources[own] = self._unless_emptied(found, own)
        return followed(sources)

    def _following(self) -> Ints:
        """For each version the next that agrees with it on that next one's key, or -1."""
        best = np.full(len(self.rank), _LATEST, np.int64)
        found = np.full(len(self.rank), _NONE, np.int64)
        for number, index in enumerate(self._keys):
            order = np.lexsort((self.rank, index.groups))
            own = self._owner[order] == number
            at = np.arange(len(order))
            later = np.minimum.accumulate(np.where(own, at, len(order))[::-1])[::-1]
            # not itself: the next one that begins one place further on
            following = np.append(later[1:], len(order))
            inside = following < len(order)
            following = np.where(inside, following, 0)
            groups = index.groups[order]
            inside &= groups[following] == groups
            rank = np.where(inside, self.rank[order][following], _LATEST)
            nearer = rank < best[order]
            best[order] = np.where(nearer, rank, best[order])
            found[order] = np.where(nearer, order[following], found[order])
        return found

    def _emptied(self) -> tuple[Ints, list[int | None]]:
        """For each version the rank of the next truncate, and its time."""
        order = np.argsort(self._ends)
        at = np.searchsorted(self._ends[order], self.rank, side="right")
        ends = np.append(self._ends[order], _LATEST)[at]
        times = [*(self._truncates[number].time_us for number in order), None]
        return ends, [times[number] for number in at]

    def _told(self, silent: Flags, index: KeyIndex) -> Told:
        tells = ~silent | self._deleted
        who = np.where(self._deleted, _NONE, np.arange(len(silent)))
        return Told(who[tells], index.groups[tells], self.rank[tells])

    def _unless_emptied(self, sources: Ints, asking: Ints) -> Ints:
        emptied = self._ends[None, :]
        since, until = self.rank[sources][:, None], self.rank[asking][:, None]
        between = (emptied > since) & (emptied <= until)
        kept: Ints = np.where(between.any(axis=1), _NONE, sources)
        return kept


@dataclass(frozen=True, slots=True)
class _Move:
    """Versions that take values over, and from which key."""

    events: Ints
    number: int
    groups: Ints


def _moves(rows: pa.Table, moved: Ints, keys: Sequence[KeyIndex]) -> list[_Move]:
    numbers = {index.definition: number for number, index in enumerate(keys)}
    found = read_old_keys(rows.column(OLD_KEY.name), moved, rows.schema)
    return [
        _Move(old.events, numbers[old.definition], keys[numbers[old.definition]].find(old.rows))
        for old in found
        if old.definition in numbers
    ]


def _one(column: pa.ChunkedArray) -> pa.StructArray:
    return pa.concat_arrays([*column.chunks, pa.array([], column.type)])


def twins(rank: Ints, groups: Ints, preference: Ints) -> Flags:
    """Versions at the place of another one of the same row that is preferred."""
    order = np.lexsort((preference, rank, groups))
    same = (np.diff(groups[order]) == 0) & (np.diff(rank[order]) == 0)
    flags = np.zeros(len(rank), np.bool_)
    flags[order[:-1][same]] = True
    return flags


def same_times(one: pa.ChunkedArray, other: pa.Array) -> Flags:
    """Where two columns of times are equal; null equals null."""
    first, second = (each.cast(pa.int64()).fill_null(_LATEST) for each in (one, other))
    flags: Flags = pc.equal(first, second).to_numpy(zero_copy_only=False)
    return flags
