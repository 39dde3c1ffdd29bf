"""Facts from the log table about events that go back: repeated, later, or unknown.

Positions belong to one server's log. A transaction has the same id in the logs of all servers, so
ids decide if events carry them; otherwise, an equal row in the log table decides. Events whose
binary logs have different names are of different servers. Events of two partitions arrive in any
order: one that was overtaken by another partition is in the order of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.events.copies import bounds_of, files_at
from distributary.changes.events.log_events import Definition, Flags, Ints, KeyIndex
from distributary.decode.change.envelope import (
    Transaction,
    is_snapshot,
    log_name,
    transaction_id,
    transaction_of,
    without_source_time,
)
from distributary.delta.log import DataFile, Snapshot, snapshot_of
from distributary.model.change import SEQ
from distributary.model.incarnation import (
    UNKNOWN,
    Incarnations,
    integers,
    numbered_positions,
    positions,
    whole_places,
)

STATEMENT_US = 60_000_000
"""Microseconds by which a statement may be older than one that was committed before it. MySQL's
events have the time of their statement, which may wait 50 seconds for a lock."""
Arrival = tuple[int, int, int, str]
"""The origin of an event: batch, partition, offset and topic."""
Line = tuple[str, int]
"""A topic and a partition: its events arrive in the order in which they were sent."""
Position = tuple[int, ...]
"""The parts a, b and c of a place."""
_ARRIVAL = ("_batch", "_partition", "_offset")
_PLACES = pa.schema(
    [
        pa.field("_seq", SEQ),
        pa.field("_hash", pa.int64()),
        pa.field("_source_ts", pa.timestamp("us", "UTC")),
        pa.field("_batch", pa.int64()),
        pa.field("_topic", pa.string()),
        pa.field("_partition", pa.int32()),
        pa.field("_offset", pa.int64()),
    ]
)
_LINES = pa.schema([_PLACES.field(name) for name in ("_seq", "_topic", "_partition", "_offset")])
_ENVELOPE = pa.schema([pa.field("_envelope", pa.string())])


class GoingBack(NamedTuple):
    """Events that go back, each with the change of the same row before it."""

    events: pa.Table
    """The events, with the columns of the key and of the change."""
    places: Ints
    """The incarnations and positions of the events: the number, a, b and c, one array row each."""
    positions: Ints
    """The positions of the changes before: a, b and c, one array row each."""
    times: Ints
    """The times of the changes before in microseconds, or UNKNOWN."""


class Findings(NamedTuple):
    """Facts about each event with a lower position than the change before it."""

    again: Flags
    """Whether it was sent before."""
    later: Flags
    """Whether its transaction is later than that of the change before it."""
    unsure: Flags
    """Whether its transaction has a lower number than that of the change before it, and no later
    time, although the log table never had it. It is older, or the numbers have begun again."""
    overtaken: Flags
    """Whether the change before it came from another partition, and its own does not go back."""
    snapshot: Flags
    """Whether it is a row of a whole snapshot."""
    transactions: npt.NDArray[np.object_]
    """The ids of the transactions of both, as words for operators; empty where there is none."""

    @classmethod
    def empty(cls, size: int) -> Self:
        """Return findings about so many events, none of which says anything."""
        again, later, unsure, overtaken, snapshot = (np.zeros(size, np.bool_) for _ in range(5))
        nothing = np.full(size, "", object)
        return cls(again, later, unsure, overtaken, snapshot, nothing)


@dataclass(frozen=True, slots=True)
class _Logged:
    """An event in the log table about the same row."""

    arrival: Arrival
    """The origin of the event; events are in the order of arrival."""
    position: Position
    time: int
    """The source's time in microseconds, or UNKNOWN."""
    hash: int
    """The hash of content, transaction and time, without the position, which differs by server."""
    envelope: str

    @property
    def transaction(self) -> Transaction | None:
        return transaction_of(_parsed(self.envelope))

    @property
    def line(self) -> Line:
        return self.arrival[3], self.arrival[1]

    @property
    def log_name(self) -> str:
        return log_name(_parsed(self.envelope))

    @property
    def is_snapshot(self) -> bool:
        return is_snapshot(_parsed(self.envelope))

    def is_copy_of(self, other: _Logged) -> bool:
        """Return whether two events at one position are one change, sent in two shapes."""
        if self.time != other.time and UNKNOWN not in (self.time, other.time):
            # two servers may have the same row at the same position, but not at the same time
            return False
        if self.is_of_another_log(other):
            return False
        mine, its = self.transaction, other.transaction
        return mine is None or its is None or mine == its

    def is_of_another_log(self, other: _Logged) -> bool:
        """Return whether two events were read from binary logs with different names."""
        names = {self.log_name, other.log_name}
        return len(names) == 2 and "" not in names


class _Row:
    """The events in the log table about one row."""

    def __init__(self) -> None:
        self._by_arrival: dict[Arrival, _Logged] = {}
        self._by_position: dict[Position, list[_Logged]] = {}
        self._first: dict[int, Arrival] = {}
        """The first arrival of each content, by its hash."""

    def add(self, event: _Logged) -> None:
        self._by_arrival[event.arrival] = event
        self._by_position.setdefault(event.position, []).append(event)
        self._first[event.hash] = min(event.arrival, self._first.get(event.hash, event.arrival))

    def at(self, arrival: Arrival) -> _Logged | None:
        """Return the event with an origin."""
        return self._by_arrival.get(arrival)

    def has_before(self, event: _Logged) -> bool:
        """Return whether an event arrived before, at this position or at another."""
        if self._first[event.hash] < event.arrival:
            return True
        there = self._by_position[event.position]
        return any(other.arrival < event.arrival and event.is_copy_of(other) for other in there)

    def last_at(self, position: Position, before: _Logged) -> _Logged | None:
        """Return the last event at a position that arrived before another event."""
        there = self._by_position.get(position, ())
        earlier = (other for other in there if other.arrival < before.arrival)
        return max(earlier, key=lambda other: other.arrival, default=None)


def look_up(
    going: GoingBack, definition: Definition, log_path: str, incarnations: Incarnations
) -> Findings:
    """Find the facts about events that go back; the log table has these events, too."""
    size = going.events.num_rows
    findings = Findings.empty(size)
    log = snapshot_of(log_path)
    if log is None or not size:
        return findings
    index = KeyIndex(going.events.select([*definition]), definition)
    times = np.concatenate([integers(going.events, "_source_ts"), going.times])
    rows = _rows_of(log, index, definition, times, going.events.schema)
    crossing = np.zeros(size, np.bool_)
    for number, arrival in enumerate(_arrivals(going.events)):
        row = rows.get(int(index.groups[number]))
        event = row.at(arrival) if row is not None else None
        if row is None or event is None:
            continue
        findings.snapshot[number] = event.is_snapshot
        findings.again[number] = row.has_before(event)
        before = row.last_at(tuple(going.positions[number].tolist()), event)
        if before is not None and not findings.again[number]:
            unsure, later = _by_transactions(event, before)
            findings.unsure[number] = unsure
            findings.later[number] = later or (not unsure and event.is_of_another_log(before))
            findings.transactions[number] = _transactions(event, before)
            crossing[number] = not later and event.line != before.line
    findings.overtaken[crossing] = ~_goes_back(log, going, np.flatnonzero(crossing), incarnations)
    return findings


def _by_transactions(event: _Logged, before: _Logged) -> tuple[bool, bool]:
    """Return whether the numbers of transactions contradict the arrival, and whether they agree.

    A lower number contradicts it: ids have begun again, as after `RESET MASTER`, or the event was
    never sent before. A later time shows that they began again. Times say so as well if a replica
    lacked the last transactions of its primary, and gave their ids to others at about the same
    time.
    """
    one, other = event.transaction, before.transaction
    if one is None or other is None or one.domain != other.domain:
        return False, False
    timed = UNKNOWN not in (event.time, before.time)
    slack = 0 if one.server == other.server else STATEMENT_US
    older = not timed or event.time <= before.time - slack
    return one.number < other.number and older, one.number > other.number


def _transactions(event: _Logged, before: _Logged) -> str:
    """Name the transactions of an event and of the change before it."""
    mine, other = (transaction_id(_parsed(each.envelope)) for each in (event, before))
    if not mine and not other:
        return ""
    return f" (by transaction {mine or 'unknown'}, after {other or 'unknown'})"


def _goes_back(log: Snapshot, going: GoingBack, numbers: Ints, incarnations: Incarnations) -> Flags:
    """Mark the events among `numbers` that arrived behind later changes of their own partition."""
    back = np.zeros(len(numbers), np.bool_)
    if not len(numbers):
        return back
    events = going.events.take(pa.array(numbers))
    times, offsets = integers(events, "_source_ts"), integers(events, "_offset")
    lines, own = _lines_of(events), going.places[numbers]
    for file in _files_since(log, int(times.min())):
        rows = incarnations.applied(log.read(file, _LINES, lenient=True))
        # rows that were read do not show the order of the stream
        rows = rows.filter(pc.equal(pc.bit_wise_and(whole_places(rows).field("phase"), 1), 1))
        for line in set(lines):
            mine = np.flatnonzero([each == line for each in lines])
            there = rows.filter(_is_of(line)).sort_by("_offset")
            places = np.concatenate([own[mine], numbered_positions(there)])
            rank = np.unique(places, axis=0, return_inverse=True)[1].reshape(-1)
            highest = np.append(-1, np.maximum.accumulate(rank[len(mine) :]))
            earlier = np.searchsorted(integers(there, "_offset"), offsets[mine])
            back[mine] |= highest[earlier] > rank[: len(mine)]
    return back


def _files_since(log: Snapshot, time: int) -> list[DataFile]:
    """Return the files of a log that may have changes at a higher position than one of this time.

    They are not older than it, except for the duration of a statement.
    """
    bounds = bounds_of(log)
    newer = bounds.no_time | (bounds.high >= max(time, UNKNOWN + STATEMENT_US) - STATEMENT_US)
    return [bounds.files[number] for number in np.flatnonzero(newer).tolist()]


def _lines_of(rows: pa.Table) -> list[Line]:
    """Return the topic and the partition of each event."""
    topics = rows.column("_topic").fill_null("").to_pylist()
    return list(zip(topics, integers(rows, "_partition").tolist(), strict=True))


def _is_of(line: Line) -> pc.Expression:
    return (pc.field("_topic") == line[0]) & (pc.field("_partition") == line[1])


def _rows_of(
    log: Snapshot, index: KeyIndex, definition: Definition, times: Ints, schema: pa.Schema
) -> dict[int, _Row]:
    """Read the events about the rows of an index, by group."""
    have = {field["name"] for field in log.fields}
    rows: dict[int, _Row] = {}
    if not have.issuperset(definition):
        return rows
    key = pa.schema([schema.field(name) for name in definition])
    for file in files_at(log, times):
        table = log.read(file, pa.schema([*key, *_PLACES]), lenient=True)
        groups = index.find(table)
        met = np.flatnonzero(groups >= 0)
        if len(met):
            logged = _logged(log, file, table.take(pa.array(met)), met)
            for group, event in zip(groups[met].tolist(), logged, strict=True):
                rows.setdefault(group, _Row()).add(event)
    return rows


def _logged(log: Snapshot, file: DataFile, rows: pa.Table, places: Ints) -> Iterator[_Logged]:
    """Build the events of some rows of a file, which were read without their envelopes."""
    texts = log.read(file, _ENVELOPE, lenient=True).column(0).take(pa.array(places))
    texts = texts.fill_null("{}")
    lasting = ~without_source_time(texts)
    times = np.where(lasting, integers(rows, "_source_ts"), UNKNOWN).tolist()
    hashes = integers(rows, "_hash").tolist()
    positioned = map(tuple, positions(rows).tolist())
    for values in zip(_arrivals(rows), positioned, times, hashes, texts.to_pylist(), strict=True):
        yield _Logged(*values)


def _parsed(text: str) -> Mapping[str, Any]:
    """Parse an envelope; return an empty mapping if it is not an object."""
    try:
        envelope = json.loads(text)
    except ValueError:
        return {}
    return envelope if isinstance(envelope, dict) else {}


def _arrivals(rows: pa.Table) -> list[Arrival]:
    """Return where each event came in, in the order of arrival."""
    columns = [integers(rows, name).tolist() for name in _ARRIVAL]
    topics = rows.column("_topic").fill_null("").to_pylist()
    return list(zip(*columns, topics, strict=True))
