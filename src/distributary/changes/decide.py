"""Decides a batch: the events that win, the rows they replace, and new tombstones. Pure.

An event loses to a newer event, row or tombstone with the same key, by the key definition of the
newer one. It replaces older rows with its own key. Both rules are independent of the order of
arrival, so a table depends only on the set of events that it has seen.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.contest import NO_MEMBER, Contest, highest_by
from distributary.changes.events.log_events import (
    OLD_KEY,
    ChangeEvents,
    Definition,
    EarlierKeys,
    Flags,
    Ints,
    key_texts,
    read_old_keys,
)
from distributary.changes.merge_order import MergeCounts
from distributary.changes.tombstones import MOVED, Tombstones, definition_text
from distributary.decode.base import truths
from distributary.delta.parquet import conform
from distributary.model.change import SEQ

# Changes of a row's key. A source reports such a change as two halves at one position: a delete of
# the old row and an insert of the new one. The insert omits large values that did not change; they
# are those of the old row, and are looked up under the old key, just before the delete. If the
# halves come in different batches, the old row may be deleted before the insert arrives: then its
# values are kept with the tombstone of the delete.

_POSITION = ("phase", "ts", "a", "b", "c")


def _none() -> Ints:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Moves:
    """The values to look up under the former keys of rows."""

    asking: Ints = field(default_factory=_none)
    """The events that changed the key of their row and omit values."""
    looks: Ints = field(default_factory=_none)
    """For each event: the number of a row after the events, with the old key just before the
    change."""
    owner: Ints = field(default_factory=_none)
    """For each event: the number of the old key's definition."""
    kept: Ints = field(default_factory=_none)
    """For each event: the number of the kept old row, or -1."""
    rows: pa.Table | None = None
    """The old rows that were kept with tombstones."""
    away: Ints = field(default_factory=_none)
    """The deletes that begin a change of key whose insert has not arrived."""

    def placed(self, owner: Ints) -> tuple[Moves, Ints]:
        """Return the lookups, and key definitions that leave out the looked-up positions."""
        own = owner.copy()
        own[self.looks] = -1
        return replace(self, owner=owner[self.looks]), own

    def behind(self, values: pa.Table) -> pa.Table:
        """Return a column of the known rows, followed by that of the kept rows."""
        if self.rows is None:
            return values
        more = conform(self.rows, values.schema, rows=self.rows.num_rows, lenient=True)
        return pa.concat_tables([values, more])


def with_looks(events: ChangeEvents, tombstones: Tombstones) -> tuple[ChangeEvents, Moves]:
    """Return the events followed by the positions to look up, and the lookups."""
    away = _away(events)
    if not len(events.asking):
        return events, Moves(away=away)
    own = pa.schema([events.rows.schema.field(name) for name in events.own_names])
    size, asking, parts = events.rows.num_rows, [], [events.rows]
    texts: list[str] = []
    for old in read_old_keys(events.rows.column(OLD_KEY.name), events.asking, own):
        seq = just_before(events.seq.take(pa.array(old.events)))
        asking.append(old.events)
        parts.append(_rows(old, seq, events.rows.schema))
        texts += memory_keys(old.rows, old.definition, seq)
    numbers = np.concatenate([_none(), *asking])
    kept, rows = _kept(tombstones, texts)
    looks = size + np.arange(len(numbers))
    return ChangeEvents(pa.concat_tables(parts)), Moves(
        numbers, looks, kept=kept, rows=rows, away=away
    )


def just_before(seq: pa.StructArray) -> pa.StructArray:
    """Return the places just before some positions, and so before both halves of a change."""
    whole = pa.concat_arrays([seq, pa.array([], SEQ)])
    fields = {each.name: whole.field(each.name) for each in SEQ}
    fields["half"] = pa.repeat(pa.scalar(0, SEQ.field("half").type), len(seq))
    fields["tie"] = pa.repeat(pa.scalar(""), len(seq))
    return pa.StructArray.from_arrays([*fields.values()], fields=[*SEQ])


def memory_keys(keys: pa.Table, definition: Definition, before: pa.StructArray) -> list[str]:
    """Build the keys under which rows are saved that changed their primary key."""
    name = definition_text(definition)
    at = [[place[part] for part in _POSITION] for place in before.to_pylist()]
    texts = key_texts(keys, definition).to_pylist()
    return [json.dumps([name, *each]) for each in zip(texts, at, strict=True)]


def leaving(events: ChangeEvents) -> Ints:
    """Return the deletes that begin a change of key, for sources that omit values."""
    half: Ints = events.seq.field("half").fill_null(1).to_numpy(zero_copy_only=False)
    says_little = truths(pc.greater(pc.list_value_length(events.rows.column("_unchanged")), 0))
    return np.flatnonzero(events.deletes & (half == 0) & says_little & (events.keys[1] >= 0))


def _away(events: ChangeEvents) -> Ints:
    """Return the events whose other half is not among the events."""
    first = leaving(events)
    if not len(first):
        return first
    position = _positions(events.seq)
    others = np.flatnonzero(~events.deletes & ~events.truncates)
    return first[~np.isin(position[first], position[others])]


def _positions(seq: pa.StructArray) -> Ints:
    """Return a number for each position, equal for both halves of a change."""
    parts = [seq.field(name).cast(pa.int64()).to_numpy(zero_copy_only=False) for name in _POSITION]
    numbers: Ints = np.unique(np.stack(parts, axis=1), axis=0, return_inverse=True)[1]
    return numbers.reshape(-1)


def _rows(old: EarlierKeys, seq: pa.StructArray, schema: pa.Schema) -> pa.Table:
    size = len(seq)
    names = pa.array([list(old.definition)] * size, pa.list_(pa.string()))
    columns_known = {"_key": names, "_seq": seq} | {n: old.rows.column(n) for n in old.definition}
    columns = [
        columns_known[each.name] if each.name in columns_known else pa.nulls(size, each.type)
        for each in schema
    ]
    return pa.table(columns, schema=schema)


def _kept(tombstones: Tombstones, texts: Sequence[str]) -> tuple[Ints, pa.Table | None]:
    """Return, for each text, the number of the row that was kept under it; and all kept rows."""
    mine = tombstones.rows.filter(pc.equal(tombstones.rows.column("kind"), MOVED))
    found = pc.index_in(pa.array(texts, pa.string()), value_set=mine.column("key").combine_chunks())
    at = np.unique(found.drop_null().to_numpy())
    if not len(at):
        return np.full(len(texts), -1), None
    rows = [pa.ipc.open_stream(row).read_all() for row in mine.column("row").take(at).to_pylist()]
    numbers = np.searchsorted(at, found.fill_null(0).to_numpy())
    kept: Ints = np.where(found.is_valid().to_numpy(zero_copy_only=False), numbers, -1)
    return kept, _together(rows)


def _together(rows: Sequence[pa.Table]) -> pa.Table:
    """Join kept rows, whose columns may have had other types; the newest types win."""
    fields = {column.name: column for each in rows for column in each.schema}
    schema = pa.schema([*fields.values()])
    return pa.concat_tables([conform(each, schema, rows=1, lenient=True) for each in rows])


# Omitted columns: a column that an event omits has the value of the row before it. Pure.


class LastValues:
    """The last event that set a value, by key, before a given position."""

    def __init__(self, numbers: Ints, group: Ints, power: Ints) -> None:
        """Store the numbers of the events, with their keys and powers.

        The higher power is later.
        """
        self._scale = int(power.max(initial=0)) + 2
        place = group * self._scale + power
        order = np.argsort(place)
        self._numbers, self._place = numbers[order], place[order]

    def before(self, groups: Ints, powers: Ints) -> Ints:
        """Return the last event before each power, by key; NO_MEMBER if there is none."""
        if not len(self._numbers):
            return np.full(len(groups), NO_MEMBER)
        # a search beyond the last event of a key must not find an event of the next key
        powers = np.minimum(powers, self._scale - 1)
        at = np.searchsorted(self._place, groups * self._scale + powers) - 1
        known = (at >= 0) & (groups >= 0) & (self._place[at] // self._scale == groups)
        return np.where(known, self._numbers[at], NO_MEMBER)


def followed(sources: Ints) -> Ints:
    """Return the event or row that each value comes from; values may be copied repeatedly."""
    while True:
        further = np.where(sources == NO_MEMBER, NO_MEMBER, sources[sources])
        if (further == sources).all():
            return sources
        sources = further


def sources_of(contest: Contest, moves: Moves, name: str, asking: Ints, *, soft: bool) -> Ints:
    """Return where the value of a column comes from: from each event, or from an earlier one.

    After a delete the values are null. A row that changed its key keeps its values.
    """
    left_out = contest.events.left_out[name]
    numbers = range(len(contest.keys))
    last_values = [_last_values(contest, number, left_out, moves, soft=soft) for number in numbers]
    size, known = len(contest.owner), len(contest.known.live)
    sources = np.arange(size + known + (0 if moves.rows is None else moves.rows.num_rows))
    moving = left_out[moves.asking]
    events, looks = moves.asking[moving], moves.looks[moving]
    sources[events] = _before(contest, last_values, moves.owner[moving], looks)
    kept = moves.kept[moving]
    sources[events[kept >= 0]] = size + known + kept[kept >= 0]
    taken = np.zeros(size, np.bool_)
    taken[events] = True
    plain = asking[left_out[asking] & ~taken[asking]]
    sources[plain] = _before(contest, last_values, contest.owner[plain], plain)
    return followed(sources)[asking]


def _before(contest: Contest, last_values: list[LastValues], owner: Ints, asking: Ints) -> Ints:
    """Return the last events that set a value under the keys of events, before their positions."""
    found = np.full(len(asking), NO_MEMBER)
    for number, index in enumerate(contest.keys):
        own = owner == number
        events = asking[own]
        found[own] = last_values[number].before(index.groups[events], contest.power[events])
    return found


def _last_values(
    contest: Contest, number: int, left_out: Flags, moves: Moves, *, soft: bool
) -> LastValues:
    side = contest.side(number, own=False)
    is_event = (side.numbers >= 0) & (side.numbers < len(contest.owner))
    # a value that was taken from another key is passed on to later events
    silent = left_out.copy()
    silent[moves.asking] = False
    tells = np.ones(len(side.numbers), np.bool_)
    tells[is_event] = ~silent[side.numbers[is_event]]
    value = side.numbers.copy()
    if not soft:
        removed = np.zeros(len(side.numbers), np.bool_)
        removed[is_event] = contest.events.deletes[side.numbers[is_event]]
        tells |= removed
        value[removed | (side.rank < contest.emptied)] = NO_MEMBER
    return LastValues(value[tells], side.group[tells], side.power[tells])


def gathered(sources: Ints, events: pa.ChunkedArray, rows: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the values from events and known rows; null where both lack one."""
    both = pa.chunked_array([*events.chunks, *rows.chunks], events.type)
    return both.take(pa.array(sources, mask=sources == NO_MEMBER))


@dataclass(frozen=True, slots=True)
class Decision:
    """The changes of a table by a batch."""

    gone: Flags
    """The known rows that are deleted from the table."""
    marked: Flags
    """The known rows that stay and are marked as deleted."""
    winners: Ints
    """The events that become rows."""
    deleted: Flags
    """Whether each winner is a soft-deleted row."""
    sources: dict[str, Ints]
    """The place of each winner's value, by omitted column. It is the number of an event; after all
    events, of a known row; after these, of a kept row; or NO_MEMBER."""
    moved: dict[str, Ints]
    """Like `sources`, for rows with a changed key whose insert has not arrived."""
    remember: Sequence[tuple[int, Ints]]
    """The deleted events by key definition; known rows have the numbers after these."""
    emptied: int | None
    """The newest truncate, if the table has not seen it yet."""
    counts: MergeCounts


def decide(contest: Contest, moves: Moves, *, soft: bool) -> Decision:
    """Decide a batch."""
    events = contest.events
    beaten, overtaken, gone = _fight(contest)
    alive = contest.valid & ~contest.twins & ~beaten & ~overtaken
    old = contest.known_rank < contest.emptied
    marked = old & ~gone & contest.known.live if soft else np.zeros_like(gone)
    if not soft:
        alive &= contest.rank >= contest.emptied
        gone |= old
    rows = alive if soft else alive & ~events.deletes
    winners = np.flatnonzero(rows)
    deleted = events.deletes[winners] | (contest.rank[winners] < contest.emptied)

    def sources(asking: Ints) -> dict[str, Ints]:
        names = events.left_out if len(asking) else {}
        return {name: sources_of(contest, moves, name, asking, soft=soft) for name in names}

    return Decision(
        gone=gone,
        marked=marked,
        winners=winners,
        deleted=deleted,
        sources=sources(winners),
        moved=sources(moves.away),
        remember=_remember(contest, rows, gone, soft=soft),
        emptied=_emptied(contest),
        counts=_counts(contest, moves, gone=gone, marked=marked, live=winners[~deleted]),
    )


def _fight(contest: Contest) -> tuple[Flags, Flags, Flags]:
    """Return the events that lose to events or to rows and tombstones, and the deleted rows."""
    beaten, overtaken = np.zeros((2, len(contest.owner)), np.bool_)
    gone = np.zeros(len(contest.known.live), np.bool_)
    for number, index in enumerate(contest.keys):
        side = contest.side(number, own=True)
        new = (side.numbers >= 0) & (side.numbers < len(contest.owner))
        by_events = highest_by(side.group[new], side.power[new], index.count)
        by_others = highest_by(side.group[~new], side.power[~new], index.count)
        beaten |= by_events[index.groups] > contest.power
        overtaken |= by_others[index.groups] > contest.power
        met = contest.known.groups[number] >= 0
        groups = contest.known.groups[number][met]
        gone[met] |= by_events[groups] > contest.known_power[met]
    return beaten, overtaken, gone


def _remember(contest: Contest, rows: Flags, gone: Flags, *, soft: bool) -> list[tuple[int, Ints]]:
    """Return the newest event or row of each key that is deleted."""
    stays = np.concatenate([rows, ~gone])
    remember = []
    for number, index in enumerate(contest.keys):
        side = contest.side(number, own=True)
        lost = side.top(index.count) & (side.numbers != NO_MEMBER)
        lost[lost] = ~stays[side.numbers[lost]]
        if not soft:
            # a truncate is a tombstone for everything older
            lost &= side.rank >= contest.emptied
        if lost.any():
            remember.append((number, np.sort(side.numbers[lost])))
    return remember


def _emptied(contest: Contest) -> int | None:
    if contest.emptied == contest.emptied_before:
        return None
    at_it = contest.events.truncates & (contest.rank == contest.emptied)
    return int(np.flatnonzero(at_it)[0])


def _counts(
    contest: Contest, moves: Moves, *, gone: Flags, marked: Flags, live: Ints
) -> MergeCounts:
    updated = int(_meets_live(contest, gone)[live].sum())
    return MergeCounts(
        events=len(contest.owner) - len(moves.looks),
        inserted=len(live) - updated,
        updated=updated,
        deleted=int((gone & contest.known.live).sum()) - updated + int(marked.sum()),
    )


def _meets_live(contest: Contest, gone: Flags) -> Flags:
    """Return the events whose key belonged to a row that is deleted now."""
    meets = np.zeros(len(contest.owner), np.bool_)
    for number, index in enumerate(contest.keys):
        groups = contest.known.groups[number]
        had = np.zeros(index.count, np.bool_)
        had[groups[gone & contest.known.live & (groups >= 0)]] = True
        own = contest.owner == number
        meets[own] = had[index.groups[own]]
    return meets
