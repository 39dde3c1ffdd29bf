"""Detection of servers that take over: events with lower positions of a new server.

After the promotion of a replica, the restore of a dump or `RESET MASTER`, positions begin below
those of the previous server. By positions alone, every later change of a known row would lose for
ever. So each event has the number of its server's incarnation, which precedes its position in
`_seq`.

An event goes back if it arrives after a change of the same row and has a lower position. Repeated
events and late files go back as well. The event, the change before it and the log table decide
which of these it is. If they do not, the events are refused with SOURCE_WENT_BACK.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.contest import Contest
from distributary.changes.events import Definition, Flags, Ints, combined
from distributary.changes.merge_order import TIME_COLUMN, MergeOrder, RebuildNeededError
from distributary.changes.repeats import STATEMENT_US, Findings, GoingBack, look_up
from distributary.decode.base import truths
from distributary.delta.log import snapshot_of
from distributary.errors import SourceWentBackError
from distributary.model.change import READ_TIE, SEQ
from distributary.model.incarnation import (
    INCARNATIONS,
    UNKNOWN,
    Incarnations,
    Start,
    as_integers,
    below,
    integers,
    positions,
)

MOST_STARTS = 1_000
"""The most incarnations of a table, counted in all partitions."""
CLOCK_US = 2_000_000
"""Microseconds by which times of one clock, rounded to seconds, may seem to go back."""
_NEIGHBOURS = 1
"""The most files of a binary log between two statements that waited for one lock."""
_SHOWN = 2
_FIRST_PAIRS = 1_000
"""The number of events that are searched in the log first."""
_LOG_PLACES = pa.schema(
    [
        pa.field(TIME_COLUMN.name, TIME_COLUMN.type),
        pa.field("_seq", SEQ),
        pa.field("_batch", pa.int64()),
    ]
)


def incarnations_of(folder: str) -> Incarnations:
    """Read the incarnations that the table in a folder has met."""
    snapshot = snapshot_of(folder)
    return Incarnations.from_text(snapshot.property(INCARNATIONS) if snapshot else None)


def with_starts(known: Incarnations, starts: Sequence[Start], order: MergeOrder) -> Incarnations:
    """Return incarnations and further ones. Raises SourceWentBackError."""
    if len(known.starts) + len(starts) > MOST_STARTS:
        raise SourceWentBackError(
            f"the source of table {order.table} goes back in its log again and again",
            where=order.path,
            evidence=f"more than {MOST_STARTS} servers seem to have taken over",
            next_step="look at the source: events of several servers may share a topic",
        )
    return replace(known, starts=(*known.starts, *starts))


class _Pair(NamedTuple):
    """Events that go back, each with the latest change of the same row before it."""

    event: Ints
    before: Ints
    """The number of an event; behind the events, of a known row, a tombstone or a truncate."""

    def only(self, mask: Flags) -> _Pair:
        """Return the pairs selected by `mask`."""
        return _Pair(self.event[mask], self.before[mask])


def find_starts(
    contest: Contest,
    definitions: Sequence[Definition],
    order: MergeOrder,
    known_times: pa.ChunkedArray | None,
) -> list[Start] | None:
    """Find the incarnations that the events of a batch begin.

    Returns None where the times of known rows are needed and were not given. Raises
    SourceWentBackError.
    """
    if order.arrival == "unknown" or (order.arrival == "partitions" and _in_order(contest)):
        return []
    table = _Places.of(contest, known_times)
    starts: list[Start] = []
    for number, definition in enumerate(definitions):
        pair = _going_back(contest, table, number, in_files=order.arrival == "files")
        if not len(pair.event):
            continue
        if known_times is None:
            return None
        for some in _in_turn(contest, pair, order):
            begun = list(_judged(contest, table, some, definition, order))
            starts += begun
            if begun:
                # later events are examined again, as events of the new server
                break
    return _first_of_each(starts)


def _in_turn(contest: Contest, pair: _Pair, order: MergeOrder) -> Iterator[_Pair]:
    """Yield pairs in the order of their offsets; the first few often show a new server."""
    if order.arrival == "files":
        yield pair
        return
    by = np.argsort(integers(contest.events.rows, "_offset")[pair.event], kind="stable")
    first, size = 0, _FIRST_PAIRS
    while first < len(by):
        chosen = by[first : first + size]
        yield _Pair(pair.event[chosen], pair.before[chosen])
        first, size = first + size, size * 8


def _in_order(contest: Contest) -> bool:
    """Return whether all events are later than what is known, and in the order of their offsets.

    This holds for nearly all batches, and the check costs a fraction of building pairs.
    """
    rows, rank = contest.events.rows, contest.rank
    before = contest.known_rank, contest.memory_rank, contest.truncated_rank
    known = max(each.max(initial=-1) for each in before)
    if not len(rank) or int(rank.min()) <= known:
        return False
    if len(pc.unique(rows.column("_topic"))) != 1:
        return False
    partition = integers(rows, "_partition")
    by = np.lexsort((integers(rows, "_offset"), partition))
    higher: Flags = np.diff(rank[by]) >= 0
    another: Flags = np.diff(partition[by]) != 0
    return bool((higher | another).all())


def _first_of_each(starts: Sequence[Start]) -> list[Start]:
    """Return one beginning for each partition: the earliest."""
    first: dict[tuple[str | None, int], Start] = {}
    for start in sorted(starts, key=lambda each: (each.at, each.number)):
        first.setdefault((start.topic, start.partition), start)
    return list(first.values())


@dataclass(frozen=True, slots=True)
class _Places:
    """The compared data, by number: events, known rows, tombstones, earlier truncates."""

    rank: Ints
    change: Flags
    """Whether each is a change, and not a row that was read."""
    aside: Flags
    """Whether each was read from the source beside its stream."""
    positions: Ints
    """Incarnation, a, b and c, one array row each."""
    time: Ints
    """The source's time in microseconds, or UNKNOWN."""
    events: int
    known: int

    @classmethod
    def of(cls, contest: Contest, known_times: pa.ChunkedArray | None) -> _Places:
        memory = contest.memory
        seqs = [contest.events.seq, contest.known.seq, memory.seq, memory.truncated]
        sizes = [len(seq) for seq in seqs]
        seq = pa.concat_arrays([*(pa.concat_arrays([s, pa.array([], SEQ)]) for s in seqs)])
        phase = _numbers(seq, "phase")
        columns = [phase >> 1, *(_numbers(seq, name) for name in "abc")]
        rows = contest.events.rows
        times = [
            integers(rows, "_source_ts"),
            np.full(sizes[1], UNKNOWN) if known_times is None else as_integers(known_times),
            np.full(sizes[2] + sizes[3], UNKNOWN),
        ]
        ranks = contest.rank, contest.known_rank, contest.memory_rank, contest.truncated_rank
        return cls(
            rank=np.concatenate(ranks),
            change=(phase & 1) == 1,
            aside=truths(pc.equal(seq.field("tie"), READ_TIE)),
            positions=np.stack(columns, axis=1) if len(phase) else np.zeros((0, 4), np.int64),
            time=np.concatenate(times),
            events=sizes[0],
            known=sizes[1],
        )

    def lower(self, pair: _Pair) -> Flags:
        """Mark the pairs whose event has a lower position than the change before it."""
        mine, other = self.positions[pair.event], self.positions[pair.before]
        lower: Flags = np.zeros(len(mine), np.bool_)
        same = np.ones(len(mine), np.bool_)
        for column in range(4):
            lower |= same & (mine[:, column] < other[:, column])
            same &= mine[:, column] == other[:, column]
        return lower & self._placed(pair)

    def behind(self, pair: _Pair) -> Flags:
        """Mark the pairs whose event has a lower position, or was read after the row had changed.

        The rows of a snapshot lose to the changes that follow it. Behind changes, a snapshot is
        another one, and has all of them.
        """
        read = ~self.change[pair.event] & self.change[pair.before]
        return self.lower(pair) | (read & self._placed(pair))

    def _placed(self, pair: _Pair) -> Flags:
        """Mark the pairs in which both have a position."""
        places = self.positions[pair.event, 1:], self.positions[pair.before, 1:]
        placed: Flags = (places[0] != 0).any(axis=1) & (places[1] != 0).any(axis=1)
        return placed


def _going_back(contest: Contest, table: _Places, number: int, *, in_files: bool) -> _Pair:
    """Find the events under one key that go back."""
    index = contest.keys[number]
    own = contest.valid & ~contest.twins & (contest.owner == number)
    # rows that were read beside the stream do not show the order of the stream
    own = np.flatnonzero(own & ~table.aside[: len(own)])
    groups = index.groups[own]
    pairs = [
        _behind_known(contest, table, number, own, groups, in_files=in_files),
        _behind_events(contest, table, own, groups, in_files=in_files),
    ]
    if not in_files:
        pairs.append(_behind_truncates(contest, table, own))
    pair = _Pair(*(np.concatenate(parts) for parts in zip(*pairs, strict=True)))
    return pair.only(table.lower(pair) if in_files else table.behind(pair))


def _behind_known(
    contest: Contest, table: _Places, number: int, own: Ints, groups: Ints, *, in_files: bool
) -> _Pair:
    """Pair events with the row or the tombstone from before the batch."""
    rows = np.flatnonzero(contest.known.groups[number] >= 0)
    gone = np.flatnonzero(contest.memory.owner == number)
    there = np.concatenate([table.events + rows, table.events + table.known + gone])
    of_there = np.concatenate([contest.known.groups[number][rows], contest.memory.groups[gone]])
    if in_files:
        changes = table.change[there]
        there, of_there = there[changes], of_there[changes]
    if not len(there) or not len(own):
        return _Pair(own[:0], own[:0])
    best = np.full(contest.keys[number].count, -1, np.int64)
    order = np.argsort(table.rank[there], kind="stable")
    best[of_there[order]] = there[order]
    before = best[groups]
    met = before >= 0
    later = np.zeros(len(own), np.bool_)
    later[met] = table.rank[own[met]] < table.rank[before[met]]
    # an interrupted merge of this batch may have put its events into the table
    width = int(table.rank.max(initial=0)) + 1
    again = np.isin(groups * width + table.rank[before], groups * width + table.rank[own])
    chosen = later & ~again
    return _Pair(own[chosen], before[chosen])


def _behind_truncates(contest: Contest, table: _Places, own: Ints) -> _Pair:
    """Pair events with the last truncate that came before them in the same partition."""
    rows = contest.events.rows
    now = np.flatnonzero(contest.events.truncates)
    before = table.events + table.known + len(contest.memory.seq)
    earlier = before + np.arange(len(contest.truncated_rank))
    if not len(own) or not len(now) + len(earlier):
        return _Pair(own[:0], own[:0])
    partition, offset = integers(rows, "_partition"), integers(rows, "_offset")
    places = [(int(partition[n]), int(offset[n])) for n in now.tolist()]
    places += map(_arrival, contest.memory.truncated.field("tie").to_pylist())
    pairs = [_Pair(own[:0], own[:0])]
    truncates = np.concatenate([now, earlier])
    for number in np.argsort(-table.rank[truncates], kind="stable").tolist():
        behind = (partition[own] == places[number][0]) & (offset[own] > places[number][1])
        behind &= table.rank[own] < table.rank[truncates[number]]
        pairs.append(_Pair(own[behind], np.full(int(behind.sum()), truncates[number])))
        own = own[~behind]
    return _Pair(*(np.concatenate(parts) for parts in zip(*pairs, strict=True)))


def _arrival(tie: str | None) -> tuple[int, int]:
    """Read partition and offset from the last word of a place; -1 where it has none."""
    offset, _, partition = (tie or "").partition(".")
    known = offset.isdecimal() and (partition or "0").isdecimal()
    return (int(partition or 0), int(offset)) if known else (-1, -1)


def _behind_events(
    contest: Contest, table: _Places, own: Ints, groups: Ints, *, in_files: bool
) -> _Pair:
    """Pair events with the latest change of the same row that arrived before them."""
    rows = contest.events.rows
    topics = pc.dictionary_encode(combined(rows.column("_topic")).fill_null("")).indices
    lines = topics.to_numpy().astype(np.int64)[own]
    partitions = integers(rows, "_partition")[own]
    arrival = [integers(rows, "_offset")[own], partitions, integers(rows, "_batch")[own]]
    if not in_files:
        # offsets of different partitions cannot be compared
        lines = lines * (int(partitions.max(initial=0)) + 2) + np.maximum(partitions, -1)
        arrival = arrival[:1]
    order = np.lexsort([*arrival, lines, groups])
    rank = table.rank[own[order]]
    if not len(order):
        return _Pair(own, own)
    same = np.zeros(len(order), np.bool_)
    ordered = [column[order] for column in (lines, groups)]
    same[1:] = (ordered[0][1:] == ordered[0][:-1]) & (ordered[1][1:] == ordered[1][:-1])
    if not (same[1:] & (rank[1:] < rank[:-1])).any():
        # in the source's order: the changes of a row one after the other
        return _Pair(own[:0], own[:0])
    stretch = np.cumsum(~same) * (int(rank.max()) + 2)
    counts = table.change[own[order]] if in_files else np.ones(len(order), np.bool_)
    height = stretch + np.where(counts, rank, -1)
    top = np.maximum.accumulate(height)
    at = np.arange(len(order))
    setter = np.maximum.accumulate(np.where(np.append(True, height[1:] > top[:-1]), at, 0))
    before = np.append(0, setter[:-1])
    behind = same & (top[before] > stretch + rank) & counts[before]
    return _Pair(own[order[behind]], own[order[before[behind]]])


def _judged(
    contest: Contest,
    table: _Places,
    pair: _Pair,
    definition: Definition,
    order: MergeOrder,
) -> Iterator[Start]:
    """Decide for events that go back whether they begin a new incarnation."""
    mine, other = table.time[pair.event], table.time[pair.before]
    # the stream may be behind a row that was read; in one log, no earlier event has a later time
    late = table.aside[pair.before] & ~((mine != UNKNOWN) & (mine - other > CLOCK_US))
    pair, mine, other = pair.only(~late), mine[~late], other[~late]
    if order.arrival == "files" and order.log:
        other = _with_times_of_removals(table, pair, other, order.log)
    timed = (mine != UNKNOWN) & (other != UNKNOWN)
    since = np.where(timed, mine - other, 0)
    if order.arrival == "files":
        yield from _judged_files(table, pair, since, timed, order)
        return
    if order.log:
        found = _look_up(contest, table, pair, definition, order.log)
        # rows that were read again, but not in a whole snapshot, always lose
        settled = found.again | (~table.lower(pair) & ~found.snapshot)
        pair, since, timed = pair.only(~settled), since[~settled], timed[~settled]
        later = found.later[~settled]
        new, unclear = later | ~timed | (since >= -STATEMENT_US), timed & (since < -STATEMENT_US)
    else:
        # without a log table it is unknown which events were seen before
        lower = table.lower(pair)
        pair, since, timed = pair.only(lower), since[lower], timed[lower]
        new, unclear = timed & (since > STATEMENT_US), ~timed | (since > 0)
    unclear &= ~new
    if unclear.any():
        new |= unclear & _answer(contest, table, pair, unclear, order)
    rows = contest.events.rows
    topics = combined(rows.column("_topic"))
    partitions, offsets = integers(rows, "_partition"), integers(rows, "_offset")
    for event, before in zip(pair.event[new].tolist(), pair.before[new].tolist(), strict=True):
        number = int(table.positions[before, 0]) + 1
        yield Start(number, topics[event].as_py(), int(partitions[event]), int(offsets[event]))


def _with_times_of_removals(table: _Places, pair: _Pair, times: Ints, log_path: str) -> Ints:
    """Return times with those of removed rows, which tombstones do not have, from the log."""
    unknown = (times == UNKNOWN) & (pair.before >= table.events + table.known)
    if not unknown.any():
        return times
    removals = table.positions[pair.before[unknown]]
    rows = _log_places(log_path)
    places, known = positions(rows), integers(rows, TIME_COLUMN.name)
    near = (known != UNKNOWN) & np.isin(places[:, 0], removals[:, 1])
    near &= np.isin(places[:, 1], removals[:, 2])
    at: dict[tuple[int, ...], list[int]] = {}
    for place, time in zip(places[near].tolist(), known[near].tolist(), strict=True):
        at.setdefault(tuple(place), []).append(time)
    found = times.copy()
    for number, (server, *place) in zip(
        np.flatnonzero(unknown).tolist(), removals.tolist(), strict=True
    ):
        # a server that took over may have another change at the same position
        choose = max if server else min
        found[number] = choose(at.get(tuple(place), [UNKNOWN]))
    return found


def _judged_files(
    table: _Places, pair: _Pair, since: Ints, timed: Flags, order: MergeOrder
) -> Iterator[Start]:
    """Decide for files, which arrive in any order, by the times of the source.

    In one log, a change at a lower position is older, except for the duration of a statement.
    """
    apart = table.positions[pair.before, 1] - table.positions[pair.event, 1] > _NEIGHBOURS
    new = timed & (since > np.where(apart, CLOCK_US, STATEMENT_US))
    if not new.any():
        return
    first = pair.event[new][np.argmin(table.time[pair.event[new]])]
    before = pair.before[new]
    number = int(table.positions[before, 0].max()) + 1
    at, position = int(table.time[first]), tuple(table.positions[first, 1:].tolist())
    times, places = table.time[before], table.positions[before, 1:]
    rows = _log_places(order.log) if order.log else None
    if rows is not None:
        times, places = integers(rows, TIME_COLUMN.name), positions(rows)
    # earlier events with a higher position than the new server had reached belong to the old server
    old = (times < at) & ~below(places, position) & (places != 0).any(axis=1)
    after = int(times[old].max(initial=int(table.time[before].max())))
    earlier = places[times <= after]
    highest = earlier[np.lexsort(earlier.T[::-1])[-1]]
    start = Start(number, None, -1, at, after, tuple(highest.tolist()))
    if rows is not None and order.batch >= 0:
        _refuse_merged(start, rows, order)
    yield start


def _refuse_merged(start: Start, rows: pa.Table, order: MergeOrder) -> None:
    """Raise if earlier batches merged events of a server that is detected only now."""
    if (start.covers(rows) & (integers(rows, "_batch") < order.batch)).any():
        raise RebuildNeededError(
            f"the source of table {order.table} was replaced while earlier batches were written",
            where=order.path,
            next_step=f"`distributary rebuild {order.table}` makes it again from its log",
        )


def _log_places(log_path: str) -> pa.Table:
    """Read the times and places of all events of a log: once for each server that takes over."""
    log = snapshot_of(log_path)
    return _LOG_PLACES.empty_table() if log is None else log.rows(_LOG_PLACES)


def _answer(
    contest: Contest, table: _Places, pair: _Pair, unclear: Flags, order: MergeOrder
) -> bool:
    """Return whether unclear events begin an incarnation, if an operator has said it."""
    if order.undecided == "refuse":
        raise _went_back(
            contest,
            table,
            _Pair(pair.event[unclear], pair.before[unclear]),
            order,
            f"if another server has taken over, `distributary resume {order.table} --source-was "
            f"replaced`; if these events were sent before, `distributary resume {order.table} "
            "--source-was repeated`",
        )
    return order.undecided == "replaced"


def _went_back(
    contest: Contest, table: _Places, pair: _Pair, order: MergeOrder, next_step: str
) -> SourceWentBackError:
    """Describe events that go back, each with the change before it."""
    rows = contest.events.rows
    shown = []
    for event, before in zip(
        pair.event[:_SHOWN].tolist(), pair.before[:_SHOWN].tolist(), strict=True
    ):
        arrived = rows.slice(event, 1).select(["_topic", "_partition", "_offset"]).to_pylist()[0]
        shown.append(
            f"{arrived['_topic']}/{arrived['_partition']}/{arrived['_offset']} is at position "
            f"{_position(table, event)} and was made at {_time(table.time[event])}, but its row "
            f"was changed before at position {_position(table, before)}, made at "
            f"{_time(table.time[before])} by server {int(table.positions[before, 0]) + 1}"
        )
    more = f", and {len(pair.event) - _SHOWN:,} more" if len(pair.event) > _SHOWN else ""
    return SourceWentBackError(
        f"the source of table {order.table} goes back in its log",
        where=order.path,
        evidence="; ".join(shown) + more,
        next_step=next_step,
    )


def _position(table: _Places, number: int) -> str:
    a, b, c = table.positions[number, 1:].tolist()
    return "/".join(map(str, (a, b, c) if c else (a, b) if b else (a,)))


def _time(micros: int) -> str:
    if micros == UNKNOWN:
        return "an unknown time"
    return f"{datetime.fromtimestamp(micros / 1e6, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _look_up(
    contest: Contest, table: _Places, pair: _Pair, definition: Definition, log_path: str
) -> Findings:
    """Search the log table for facts about events that go back."""
    going = GoingBack(
        contest.events.rows.take(pa.array(pair.event)),
        table.positions[pair.before, 1:],
        table.time[pair.before],
    )
    return look_up(going, definition, log_path)


def _numbers(seq: pa.StructArray, name: str) -> Ints:
    values: Ints = seq.field(name).cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return values
