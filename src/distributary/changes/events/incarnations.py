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
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.contest import Contest
from distributary.changes.events.copies import bounds_of
from distributary.changes.events.log_events import Definition, Flags, Ints, combined
from distributary.changes.events.repeats import STATEMENT_US, Findings, GoingBack, look_up
from distributary.changes.merge_order import TIME_COLUMN, MergeOrder, RebuildNeededError
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
"""The largest number of incarnations of a table, counted in all partitions."""
CLOCK_US = 2_000_000
"""Microseconds by which times of one clock, rounded to seconds, may seem to go back."""
_NEIGHBOURS = 1
"""The largest number of files of a binary log between two statements that waited for one lock."""
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
            f"the source of table {order.table} goes back in its log too often",
            where=order.path,
            evidence=f"more than {MOST_STARTS} servers seem to have taken over",
            next_step="check the source: events of several servers may share a topic",
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
    incarnations: Incarnations,
) -> list[Start] | None:
    """Find the incarnations that the events of a batch begin, beyond the known ones.

    Returns None where the times of known rows are needed and were not given. Raises
    SourceWentBackError.
    """
    if order.arrival == "unknown" or (order.arrival == "partitions" and _in_order(contest)):
        return []
    table = _Places.of(contest, known_times)
    if order.arrival == "files":
        return _starts_in_files(contest, table, order, times_known=known_times is not None)
    starts: list[Start] = []
    for number, definition in enumerate(definitions):
        pair = _going_back(contest, table, number)
        if not len(pair.event):
            continue
        if known_times is None:
            return None
        for some in _in_turn(contest, pair):
            begun = list(_judged(contest, table, some, definition, order, incarnations))
            starts += begun
            if begun:
                # later events are examined again, as events of the new server
                break
    return _first_of_each(starts)


def _in_turn(contest: Contest, pair: _Pair) -> Iterator[_Pair]:
    """Yield pairs in the order of their offsets; the first few often show a new server."""
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
            memory.time,
            np.full(sizes[3], UNKNOWN),
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


def _going_back(contest: Contest, table: _Places, number: int) -> _Pair:
    """Find the events of a topic under one key that go back."""
    index = contest.keys[number]
    own = contest.valid & ~contest.twins & (contest.owner == number)
    # rows that were read beside the stream do not show the order of the stream
    own = np.flatnonzero(own & ~table.aside[: len(own)])
    groups = index.groups[own]
    pairs = [
        _behind_known(contest, table, number, own, groups),
        _behind_events(contest, table, own, groups),
        _behind_truncates(contest, table, own),
    ]
    pair = _Pair(*(np.concatenate(parts) for parts in zip(*pairs, strict=True)))
    return pair.only(table.behind(pair))


def _behind_known(contest: Contest, table: _Places, number: int, own: Ints, groups: Ints) -> _Pair:
    """Pair events with the row or the tombstone from before the batch."""
    rows = np.flatnonzero(contest.known.groups[number] >= 0)
    gone = np.flatnonzero(contest.memory.owner == number)
    there = np.concatenate([table.events + rows, table.events + table.known + gone])
    of_there = np.concatenate([contest.known.groups[number][rows], contest.memory.groups[gone]])
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


def _behind_events(contest: Contest, table: _Places, own: Ints, groups: Ints) -> _Pair:
    """Pair events with the latest change of the same row that arrived before them."""
    rows = contest.events.rows
    topics = pc.dictionary_encode(combined(rows.column("_topic")).fill_null("")).indices
    lines = topics.to_numpy().astype(np.int64)[own]
    partitions = integers(rows, "_partition")[own]
    # offsets of different partitions cannot be compared
    lines = lines * (int(partitions.max(initial=0)) + 2) + np.maximum(partitions, -1)
    order = np.lexsort([integers(rows, "_offset")[own], lines, groups])
    rank = table.rank[own[order]]
    if not len(order):
        return _Pair(own, own)
    same = np.zeros(len(order), np.bool_)
    ordered = [column[order] for column in (lines, groups)]
    same[1:] = (ordered[0][1:] == ordered[0][:-1]) & (ordered[1][1:] == ordered[1][:-1])
    if not (same[1:] & (rank[1:] < rank[:-1])).any():
        # in the source's order: the changes of a row one after the other
        return _Pair(own[:0], own[:0])
    height = np.cumsum(~same) * (int(rank.max()) + 1) + rank
    setter = _highest_until(height)
    before = np.append(0, setter[:-1])
    behind = same & (height[before] > height)
    return _Pair(own[order[behind]], own[order[before[behind]]])


class _Judgement(NamedTuple):
    """What events that go back show, one array element for each pair."""

    pair: _Pair
    new: Flags
    """Whether the event begins a new incarnation."""
    unclear: Flags
    """Whether only an operator can say that."""
    transactions: npt.NDArray[np.object_]
    """The transaction ids of both events, as words; empty if they have none."""


def _judged(
    contest: Contest,
    table: _Places,
    pair: _Pair,
    definition: Definition,
    order: MergeOrder,
    incarnations: Incarnations,
) -> Iterator[Start]:
    """Decide for events that go back whether they begin a new incarnation."""
    mine, other = table.time[pair.event], table.time[pair.before]
    # the stream may be behind a row that was read; in one log, no earlier event has a later time
    late = table.aside[pair.before] & ~((mine != UNKNOWN) & (mine - other > CLOCK_US))
    pair, mine, other = pair.only(~late), mine[~late], other[~late]
    timed = (mine != UNKNOWN) & (other != UNKNOWN)
    since = np.where(timed, mine - other, 0)
    if order.log:
        found = _look_up(contest, table, pair, definition, order.log, incarnations)
        judgement = _by_log(table, pair, found, since, timed)
    else:
        judgement = _by_times(table, pair, since, timed)
    pair, new, unclear, transactions = judgement
    if unclear.any():
        new = new | (
            unclear & _answer(contest, table, pair.only(unclear), transactions[unclear], order)
        )
    rows = contest.events.rows
    topics = combined(rows.column("_topic"))
    partitions, offsets = integers(rows, "_partition"), integers(rows, "_offset")
    for event, before in zip(pair.event[new].tolist(), pair.before[new].tolist(), strict=True):
        number = int(table.positions[before, 0]) + 1
        yield Start(number, topics[event].as_py(), int(partitions[event]), int(offsets[event]))


def _by_log(table: _Places, pair: _Pair, found: Findings, since: Ints, timed: Flags) -> _Judgement:
    """Judge events by what the log table has of them, then by their times."""
    # rows that were read again, but not in a whole snapshot, always lose
    settled = found.again | (~table.lower(pair) & ~found.snapshot)
    overtaken = found.overtaken & table.lower(pair) & ~table.aside[pair.before]
    settled |= overtaken & (since <= STATEMENT_US)
    unclear = ~found.later & (found.unsure | (timed & (since < -STATEMENT_US)))
    rest = ~settled
    return _Judgement(pair.only(rest), ~unclear[rest], unclear[rest], found.transactions[rest])


def _by_times(table: _Places, pair: _Pair, since: Ints, timed: Flags) -> _Judgement:
    """Judge events by their times: without a log table it is unknown which were seen before."""
    lower = table.lower(pair)
    new = timed & (since > STATEMENT_US)
    unclear = ~new & (~timed | (since > 0))
    nothing = np.full(int(lower.sum()), "", object)
    return _Judgement(pair.only(lower), new[lower], unclear[lower], nothing)


def _highest_until(heights: Ints) -> Ints:
    """Return, for each number, the index of the highest number up to it."""
    top = np.maximum.accumulate(heights)
    is_higher = np.append(True, heights[1:] > top[:-1])[: len(heights)]
    highest: Ints = np.maximum.accumulate(np.where(is_higher, np.arange(len(heights)), 0))
    return highest


def needs_times(events: pa.Table, order: MergeOrder) -> bool:
    """Return whether the times of known rows are certainly needed to compare files with them.

    They are needed if an event is older than the newest event of earlier batches: it may be of a
    server that has been replaced since.
    """
    if order.arrival != "files" or not order.log:
        return False
    if order.batch < 0:
        return True
    log = snapshot_of(order.log)
    times = integers(events, "_source_ts")
    times = times[times != UNKNOWN]
    if log is None or not len(times):
        return False
    bounds = bounds_of(log)
    earlier = bounds.batch < order.batch
    return bool((bounds.high[earlier] > int(times.min()) + CLOCK_US).any())


def _starts_in_files(
    contest: Contest, table: _Places, order: MergeOrder, *, times_known: bool
) -> list[Start] | None:
    """Find the incarnations that files begin, which arrive in any order.

    In one log, a change at a lower position is older, except for the duration of a statement. If it
    is newer, another server has made it.
    """
    pairs = []
    for number in range(len(contest.keys)):
        members = _Members.of(contest, table, number)
        if not times_known and members.has_event_below_row(table):
            return None
        if not len(members.newer_below(table, CLOCK_US).event):
            continue
        pairs.append(members.newer_below(table, STATEMENT_US))
        far = members.newer_below(table, CLOCK_US, apart=True)
        pairs.append(far.only(_arrived_behind(contest, table, far)))
    if not pairs:
        return []
    pair = _Pair(*(np.concatenate(parts) for parts in zip(*pairs, strict=True)))
    return [_start_in_files(table, pair, order)] if len(pair.event) else []


def _arrived_behind(contest: Contest, table: _Places, pair: _Pair) -> Flags:
    """Mark the pairs whose event arrived after the change with a higher position.

    In the other order, the second one may be a statement that waited for a lock while the log went
    on by several files.
    """
    rows = contest.events.rows
    batch, partition, offset = (
        integers(rows, name) for name in ("_batch", "_partition", "_offset")
    )
    # files of one batch are in the order of their paths
    path = pc.rank(combined(rows.column("_topic")).fill_null(""), tiebreaker="dense").to_numpy()
    arrival = np.full(len(table.time), -1)
    arrival[np.lexsort([offset, partition, path, batch])] = np.arange(rows.num_rows)
    later: Flags = arrival[pair.event] > arrival[pair.before]
    return later


class _Members(NamedTuple):
    """The changes of rows under one key, in the order of row, incarnation and position."""

    number: Ints
    """The number of each change in `_Places`."""
    line: Ints
    """The row and the incarnation of each change, as one number."""

    @classmethod
    def of(cls, contest: Contest, table: _Places, number: int) -> _Members:
        """Return the events, the known rows and the tombstones under a key."""
        index, first_row = contest.keys[number], table.events
        own = np.flatnonzero(contest.valid & ~contest.twins & (contest.owner == number))
        rows = np.flatnonzero(contest.known.groups[number] >= 0)
        gone = np.flatnonzero(contest.memory.owner == number)
        members = np.concatenate([own, first_row + rows, first_row + table.known + gone])
        known_groups = contest.known.groups[number][rows]
        groups = np.concatenate([index.groups[own], known_groups, contest.memory.groups[gone]])
        # rows that were read beside the stream do not show the order of the stream
        counts = table.change[members] & ~table.aside[members]
        counts &= (table.positions[members, 1:] != 0).any(axis=1)
        members, groups = members[counts], groups[counts]
        servers = table.positions[members, 0]
        by = np.lexsort([table.rank[members], servers, groups])
        changed = (np.diff(groups[by]) != 0) | (np.diff(servers[by]) != 0)
        lines = np.cumsum(np.append(True, changed)[: len(by)])
        return cls(members[by], lines)

    def has_event_below_row(self, table: _Places) -> bool:
        """Return whether an event has a lower position than the known row, whose time is needed."""
        own = self.number < table.events
        known = ~own & (self.number < table.events + table.known)
        before: Ints = np.cumsum(own) - own
        first = np.searchsorted(self.line, self.line)
        return bool((known & (before > before[first])).any()) if len(own) else False

    def newer_below(self, table: _Places, slack: int, *, apart: bool = False) -> _Pair:
        """Pair each change with the newest one at a lower position, if newer by more than `slack`.

        With `apart`, only positions that are in files of the binary log that are not neighbours, or
        not in the same file of a log without numbers, are compared.
        """
        timed = table.time[self.number] != UNKNOWN
        number, line = self.number[timed], self.line[timed]
        if not len(number):
            return _Pair(number, number)
        time, file = table.time[number], table.positions[number, 1]
        _, age = np.unique(time, return_inverse=True)
        newest = _highest_until(line * (len(number) + 1) + age)
        below = np.arange(len(number))
        if apart:
            files = np.unique(file)
            width = len(files) + 1
            places = line * width + np.searchsorted(files, file)
            below = np.searchsorted(
                places, line * width + np.searchsorted(files, file - _NEIGHBOURS)
            )
        other = newest[np.maximum(below - 1, 0)]
        newer = (below > 0) & (line[other] == line) & (time[other] - time > slack)
        newer &= (number < table.events) | (number[other] < table.events)
        return _Pair(number[other[newer]], number[newer])


def _start_in_files(table: _Places, pair: _Pair, order: MergeOrder) -> Start:
    """Return the beginning of the incarnation of changes that are newer than those before them."""
    first = pair.event[np.argmin(table.time[pair.event])]
    number = int(table.positions[pair.before, 0].max()) + 1
    at, position = int(table.time[first]), tuple(table.positions[first, 1:].tolist())
    times, places = table.time[pair.before], table.positions[pair.before, 1:]
    latest = int(times[times < at].max())
    rows = _log_places(order.log) if order.log else None
    if rows is not None:
        times, places = integers(rows, TIME_COLUMN.name), positions(rows)
    # earlier events with a higher position than the new server had reached belong to the old server
    old = (times < at) & ~below(places, position) & (places != 0).any(axis=1)
    after, at = _outage(latest, times[old], at)
    earlier = places[times <= after]
    highest = earlier[np.lexsort(earlier.T[::-1])[-1]]
    start = Start(number, None, -1, at, after, tuple(highest.tolist()))
    if rows is not None and order.batch >= 0:
        _refuse_merged(start, rows, order)
    return start


def _outage(latest: int, times: Ints, at: int) -> tuple[int, int]:
    """Return the two successive times that are furthest apart: the end of a server, a new start.

    `times` are those of events that may be of either server, and `latest` is certainly of the first
    one. The next server's events are up to a statement earlier than `at`, where it was detected.
    """
    latest = int(times[times <= at - STATEMENT_US].max(initial=latest))
    between = np.unique(times[(times > latest) & (times < at)])
    moments = np.array([latest, *between, at], np.int64)
    longest = int(np.argmax(np.diff(moments)))
    return int(moments[longest]), int(moments[longest + 1])


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
    contest: Contest,
    table: _Places,
    pair: _Pair,
    transactions: npt.NDArray[np.object_],
    order: MergeOrder,
) -> bool:
    """Return an operator's decision whether unclear events begin an incarnation."""
    if order.undecided == "refuse":
        raise _went_back(
            contest,
            table,
            pair,
            transactions,
            order,
            f"if another server has taken over, `distributary resume {order.table} --source-was "
            f"replaced`; if these events were sent before, `distributary resume {order.table} "
            "--source-was repeated`",
        )
    return order.undecided == "replaced"


def _went_back(
    contest: Contest,
    table: _Places,
    pair: _Pair,
    transactions: npt.NDArray[np.object_],
    order: MergeOrder,
    next_step: str,
) -> SourceWentBackError:
    """Describe events that go back, each with the change before it."""
    rows = contest.events.rows
    shown = []
    chosen = pair.event[:_SHOWN].tolist(), pair.before[:_SHOWN].tolist(), transactions[:_SHOWN]
    for event, before, ids in zip(*chosen, strict=True):
        arrived = rows.slice(event, 1).select(["_topic", "_partition", "_offset"]).to_pylist()[0]
        shown.append(
            f"{arrived['_topic']}/{arrived['_partition']}/{arrived['_offset']} is at position "
            f"{_position(table, event)} and was made at {_time(table.time[event])}, but its row "
            f"was changed before at position {_position(table, before)}, made at "
            f"{_time(table.time[before])} by server {int(table.positions[before, 0]) + 1}{ids}"
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
    contest: Contest,
    table: _Places,
    pair: _Pair,
    definition: Definition,
    log_path: str,
    incarnations: Incarnations,
) -> Findings:
    """Search the log table for facts about events that go back."""
    going = GoingBack(
        contest.events.rows.take(pa.array(pair.event)),
        table.positions[pair.event],
        table.positions[pair.before, 1:],
        table.time[pair.before],
    )
    return look_up(going, definition, log_path, incarnations)


def _numbers(seq: pa.StructArray, name: str) -> Ints:
    values: Ints = seq.field(name).cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return values
