"""Which events win, which rows they replace, and what must be remembered. Pure.

An event is overtaken by a newer event, row or memory that agrees with it on the key of that newer
one; it replaces the older rows that agree with it on its own key. Both hold whatever the order in
which events arrive, so a table depends only on the set of events that it has seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from distributary.merge.contest import NOBODY, Contest, Known, Memory, highest_by
from distributary.merge.events import Events
from distributary.merge.keys import KeyIndex
from distributary.merge.left_out import sources_of
from distributary.merge.moves import Moves
from distributary.merge.order import MergeCounts
from distributary.merge.sequence import Flags, Ints


@dataclass(frozen=True, slots=True)
class Decision:
    """What the batch does to the table."""

    gone: Flags
    """Known rows that leave the table."""
    marked: Flags
    """Known rows that stay, deleted from now on."""
    winners: Ints
    """Events that become rows."""
    deleted: Flags
    """Which of these are deleted rows."""
    sources: dict[str, Ints]
    """For columns that events left out, where each winner's value is: an event by its number, a
    known row by its number after all events, what was kept after these, or NOBODY."""
    moved: dict[str, Ints]
    """The same for rows that live on under a key of which nothing is known yet."""
    remember: Sequence[tuple[int, Ints]]
    """By definition: events, and known rows by numbers after these, that are no rows any more."""
    emptied: int | None
    """The event that empties the table, if it is news."""
    counts: MergeCounts


def decide(
    events: Events,
    *,
    keys: Sequence[KeyIndex],
    owner: Ints,
    known: Known,
    memory: Memory,
    moves: Moves,
    soft: bool,
) -> Decision:
    """Settle a batch. `owner` has for each event the number of its key's definition, or -1."""
    contest = Contest(events, keys=keys, owner=owner, known=known, memory=memory)
    beaten, overtaken, gone = _fight(contest)
    top = contest.valid & ~contest.twins & ~beaten
    alive = top & ~overtaken
    old = contest.known_rank < contest.emptied
    marked = old & ~gone & known.live if soft else np.zeros_like(gone)
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
        counts=_counts(contest, moves, top=top, gone=gone, marked=marked, live=winners[~deleted]),
    )


def _fight(contest: Contest) -> tuple[Flags, Flags, Flags]:
    """Events beaten by events, events overtaken by rows or memory, and rows that are gone."""
    beaten, overtaken = np.zeros((2, len(contest.owner)), np.bool_)
    gone = np.zeros(len(contest.known.live), np.bool_)
    for number, index in enumerate(contest.keys):
        side = contest.side(number, own=True)
        new = (side.who >= 0) & (side.who < len(contest.owner))
        by_events = highest_by(side.group[new], side.power[new], index.count)
        by_others = highest_by(side.group[~new], side.power[~new], index.count)
        beaten |= by_events[index.groups] > contest.power
        overtaken |= by_others[index.groups] > contest.power
        met = contest.known.groups[number] >= 0
        groups = contest.known.groups[number][met]
        gone[met] |= by_events[groups] > contest.known_power[met]
    return beaten, overtaken, gone


def _remember(contest: Contest, rows: Flags, gone: Flags, *, soft: bool) -> list[tuple[int, Ints]]:
    """The last that is known under each key, where that is not a row that lives on."""
    stays = np.concatenate([rows, ~gone])
    remember = []
    for number, index in enumerate(contest.keys):
        side = contest.side(number, own=True)
        lost = side.top(index.count) & (side.who != NOBODY)
        lost[lost] = ~stays[side.who[lost]]
        if not soft:
            # a truncate is remembered for all that is older
            lost &= side.rank >= contest.emptied
        if lost.any():
            remember.append((number, np.sort(side.who[lost])))
    return remember


def _emptied(contest: Contest) -> int | None:
    if contest.emptied == contest.emptied_before:
        return None
    at_it = contest.events.truncates & (contest.rank == contest.emptied)
    return int(np.flatnonzero(at_it)[0])


def _counts(
    contest: Contest, moves: Moves, *, top: Flags, gone: Flags, marked: Flags, live: Ints
) -> MergeCounts:
    replaced = _meets_live(contest, gone)
    updated = int(replaced[live].sum())
    removes = top & contest.events.deletes & replaced
    removed = int((gone & contest.known.live).sum()) - updated + int(marked.sum())
    effective = len(live) + int(removes.sum())
    looks = len(moves.looks)
    return MergeCounts(
        events=len(top) - looks,
        inserted=len(live) - updated,
        updated=updated,
        deleted=removed,
        superseded=int((contest.valid & ~top).sum()),
        ignored=int(top.sum()) - effective,
        keyless=int((~contest.valid & ~contest.events.truncates).sum()) - looks,
        truncates=int(contest.events.truncates.sum()),
    )


def _meets_live(contest: Contest, gone: Flags) -> Flags:
    """Events whose key a live row had that is gone now."""
    meets = np.zeros(len(contest.owner), np.bool_)
    for number, index in enumerate(contest.keys):
        groups = contest.known.groups[number]
        had = np.zeros(index.count, np.bool_)
        had[groups[gone & contest.known.live & (groups >= 0)]] = True
        own = contest.owner == number
        meets[own] = had[index.groups[own]]
    return meets
