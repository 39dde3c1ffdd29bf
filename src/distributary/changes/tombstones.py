"""What was removed from a table, remembered for a while: a late older event must not bring it back.

A Delta table of its own beside the merged one. It is written before the merged table: a memory of
a row that is still there does no harm, a row without a memory could come back.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.events import (
    Definition,
    Events,
    Flags,
    Ints,
    KeyIndex,
    combined,
    fractional,
    key_texts,
    ranks,
    shortened,
    whole,
)
from distributary.changes.shape import SEQ_COLUMN
from distributary.decode.change.debezium.values import without_source_time
from distributary.delta.columns import Field, fields_of
from distributary.delta.commit import Change, rewrite_files, write_rows
from distributary.delta.log import DataFile, Snapshot, snapshot_of
from distributary.delta.skipping import SLACK_US, microseconds
from distributary.delta.tables import committing, until_not_overtaken
from distributary.model.cache import Cache
from distributary.model.change import SEQ
from distributary.model.manifest import Mark
from distributary.model.record import TIMESTAMP
from distributary.model.table import Column

# The events of a batch, the rows they meet and what is remembered, as numbers to compare. Pure.

NOBODY = -1


@dataclass(frozen=True, slots=True)
class Known:
    """The rows of a table that agree with an event of the batch on some key."""

    seq: pa.StructArray
    groups: Sequence[Ints]
    """For each key definition the group of each row, or -1."""
    owner: Ints
    """The number of the definition that was in force at each row's place."""
    live: Flags
    """Not deleted (softly)."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What is remembered of rows that are gone, as far as the batch speaks of them."""

    seq: pa.StructArray
    owner: Ints
    groups: Ints
    """By the definition of the memory itself."""
    truncated: pa.StructArray
    """Places at which the whole table was emptied."""


@dataclass(frozen=True, slots=True)
class Side:
    """All that is in the groups of one definition, whoever it is: events, then rows, then memory.

    `who` are the numbers of events, then those of rows counted on from there, NOBODY for memory.
    """

    who: Ints
    group: Ints
    power: Ints
    rank: Ints

    def top(self, count: int) -> Flags:
        """Which of them are the strongest of their group."""
        strongest: Flags = self.power == highest_by(self.group, self.power, count)[self.group]
        return strongest


class Contest:
    """Events, rows and memories with their ranks and powers: the higher power wins."""

    def __init__(
        self,
        events: Events,
        *,
        keys: Sequence[KeyIndex],
        owner: Ints,
        known: Known,
        memory: Memory,
    ) -> None:
        self.events, self.keys, self.owner = events, keys, owner
        self.known, self.memory = known, memory
        self.rank, self.known_rank, self.memory_rank, emptied = ranks(
            [events.seq, known.seq, memory.seq, memory.truncated]
        )
        self.emptied_before = int(emptied.max(initial=NOBODY))
        emptied_now = self.rank[events.truncates].max(initial=NOBODY)
        self.emptied = max(self.emptied_before, int(emptied_now))
        """The rank of the last truncate; what is below it is gone."""
        # at one place a row stands above an event, which must be newer to replace it; a memory
        # stands above all but the delete that left it, which may come again after a crash
        self.power = 4 * self.rank + 2 * events.deletes
        self.known_power = 4 * self.known_rank + 3
        self.memory_power = 4 * self.memory_rank + 1
        self.valid = owner >= 0
        self._sides: dict[tuple[int, bool], Side] = {}

    @cached_property
    def twins(self) -> Flags:
        """Events at the place of another one about the same row, which counts instead."""
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
        """What is in the groups of a definition; with `own`, only what was made under it."""
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
            who=np.concatenate([event, size + row, np.full(len(mine), NOBODY)]),
            group=np.concatenate(groups),
            power=np.concatenate(powers),
            rank=np.concatenate(rank),
        )


def highest_by(groups: Ints, powers: Ints, count: int) -> Ints:
    """The highest power of each group; NOBODY for a group without any."""
    highest = np.full(count, NOBODY, np.int64)
    np.maximum.at(highest, groups, powers)
    return highest


ROW, TRUNCATE, MOVED = "row", "truncate", "moved"
TOMBSTONE_COLUMNS = (
    Column(
        "kind",
        pa.string(),
        "row: one row is gone; truncate: all that was before is; moved: one got another key",
    ),
    Column("definition", pa.string(), "names of the key's columns, as a JSON list"),
    Column("key", pa.string(), "the key's values, as a JSON object without what is null"),
    SEQ_COLUMN,
    Column("removed_at", TIMESTAMP, "when it was removed here: it is forgotten after a while"),
    Column("row", pa.binary(), "of a row that got another key, what it had: a stream of Arrow"),
)
SCHEMA = pa.schema([pa.field(column.name, column.type) for column in TOMBSTONE_COLUMNS])
MOST_FILES = 2
"""Small ones: then they become one, without what is older than the horizon or known better."""
SMALL_FILE = 2**20
"""Bytes."""


@dataclass(frozen=True, slots=True)
class Tombstones:
    """What is remembered of a table's rows, as of one version."""

    folder: str
    rows: pa.Table
    since_us: int
    """What was removed before this moment is forgotten."""

    def memory(self, events: Events, keys: Sequence[KeyIndex]) -> Memory:
        """What concerns the rows that events speak of."""
        parts = [_met(self.rows, events, index) for index in keys] if self.rows.num_rows else []
        owners = [np.full(len(groups), number) for number, (_, groups) in enumerate(parts)]
        none = np.zeros(0, np.int64)
        found = pc.equal(self.rows.column("kind"), TRUNCATE)
        return Memory(
            seq=whole([seq for seq, _ in parts]),
            owner=np.concatenate([none, *owners]),
            groups=np.concatenate([none, *(groups for _, groups in parts)]),
            truncated=combined(self.rows.column("_seq").filter(found)),
        )


def open_tombstones(folder: str, *, now_us: int, horizon: int) -> Tombstones:
    """All that is still remembered at a moment."""
    snapshot = snapshot_of(folder)
    rows = SCHEMA.empty_table() if snapshot is None else snapshot.rows(SCHEMA)
    since = now_us - horizon * 1_000_000
    return Tombstones(folder, _since(rows, since), since)


def made(rows: pa.Table, definition: Definition | None, *, now_us: int) -> pa.Table:
    """Tombstones of rows under a key, or of the whole table at the places of the rows."""
    size = rows.num_rows
    named = definition is not None
    return pa.table(
        [
            pa.repeat(pa.scalar(ROW if named else TRUNCATE), size),
            pa.repeat(pa.scalar(definition_text(definition or ())), size),
            key_texts(rows, definition) if definition else pa.repeat(pa.scalar(""), size),
            rows.column("_seq"),
            pa.repeat(pa.scalar(now_us, pa.int64()).cast(TIMESTAMP), size),
            pa.nulls(size, pa.binary()),
        ],
        schema=SCHEMA,
    )


def kept_as(keys: Sequence[str], seq: pa.StructArray, rows: pa.Table, *, now_us: int) -> pa.Table:
    """Rows, to be kept whole under texts that name them."""
    size = rows.num_rows
    return pa.table(
        [
            pa.repeat(pa.scalar(MOVED), size),
            pa.repeat(pa.scalar(""), size),
            pa.array(keys, pa.string()),
            seq,
            pa.repeat(pa.scalar(now_us, pa.int64()).cast(TIMESTAMP), size),
            pa.array([_stream(rows.slice(at, 1)) for at in range(size)], pa.binary()),
        ],
        schema=SCHEMA,
    )


def _stream(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    # a slice would be written with all that it is a slice of
    own = rows.take([0])
    with pa.ipc.new_stream(sink, own.schema) as writer:
        writer.write_table(own)
    return bytes(sink.getvalue().to_pybytes())


def definition_text(definition: Definition) -> str:
    """How a key is named in the table of tombstones."""
    return json.dumps(definition, ensure_ascii=False)


def remember(known: Tombstones, new: pa.Table, *, table: str, mark: Mark | None = None) -> None:
    """Add tombstones, once for a batch; without a mark, those that are not there."""
    if new.num_rows:
        until_not_overtaken(lambda: _add(known, new, table=table, mark=mark))


def replace_all(folder: str, rows: pa.Table, *, table: str) -> None:
    """Forget everything, and remember this instead."""
    before = snapshot_of(folder)
    if before is None and not rows.num_rows:
        return
    staged = (write_rows(rows, folder),) if rows.num_rows else ()
    change = Change(
        "REBUILD",
        f"{table} tombstones",
        fields=_fields(before),
        removed=() if before is None else list(before.files.values()),
        added=staged,
    )
    rewrite_files(folder, before, change)


def _add(known: Tombstones, new: pa.Table, *, table: str, mark: Mark | None) -> None:
    before = snapshot_of(known.folder)
    if before is not None and (mark is None or before.has(mark.app_id, mark.batch)):
        # what a batch had remembered may be past the horizon by now, or gone with a rebuild
        new, mark = _unknown(new, _since(before.rows(SCHEMA), known.since_us)), None
        if not new.num_rows:
            return
    removed = [] if before is None else _to_compact(before)
    if before is not None and removed:
        old = [before.read(file, SCHEMA) for file in removed]
        new = latest(_since(pa.concat_tables([*old, new]), known.since_us))
    change = Change(
        "MERGE",
        f"{table} tombstones",
        comment=f"rows that were removed from table {table}",
        fields=_fields(before),
        removed=removed,
        added=(write_rows(new, known.folder),),
        mark=mark,
        metrics={"numOutputRows": new.num_rows},
    )
    rewrite_files(known.folder, before, change)


def _unknown(new: pa.Table, rows: pa.Table) -> pa.Table:
    """The tombstones that are not among others."""
    index = KeyIndex(rows, ("definition", "key", "kind", "_seq"))
    return new.filter(pa.array(index.find(new) < 0))


def _fields(before: Snapshot | None) -> list[Field] | None:
    """The columns, for a table that has none yet, or fewer."""
    known = before is not None and len(before.fields) == len(TOMBSTONE_COLUMNS)
    return None if known else fields_of(TOMBSTONE_COLUMNS)


def _to_compact(before: Snapshot) -> list[DataFile]:
    small = [file for file in before.files.values() if file.size <= SMALL_FILE]
    if len(small) < MOST_FILES:
        return []
    # now and then the large ones too: most of what they hold may be forgotten
    large = [file for file in before.files.values() if file.size > SMALL_FILE]
    return [*small, *(large if len(large) >= MOST_FILES else ())]


def _since(rows: pa.Table, since_us: int) -> pa.Table:
    since = pa.scalar(since_us, pa.int64()).cast(TIMESTAMP)
    return rows.filter(pc.greater_equal(rows.column("removed_at"), since))


def latest(rows: pa.Table) -> pa.Table:
    """The last tombstone of each key."""
    rank = ranks([rows.column("_seq")])[0]
    index = KeyIndex(rows, ("definition", "key", "kind"))
    order = np.lexsort((rank, index.groups))
    groups = index.groups[order]
    last: Flags = np.append(groups[1:] != groups[:-1], True) if len(order) else order > 0
    return rows.take(np.sort(order[last]))


def _met(rows: pa.Table, events: Events, index: KeyIndex) -> tuple[pa.Array, np.ndarray]:
    """Tombstones under a key that agree with an event, and the group of each."""
    text = definition_text(index.definition)
    of_rows = pc.equal(rows.column("kind"), ROW)
    mine = rows.filter(pc.and_(of_rows, pc.equal(rows.column("definition"), text)))
    if mine.num_rows == 0:
        return pa.array([], SEQ), np.zeros(0, np.int64)
    texts = key_texts(events.rows, index.definition)
    # older versions kept zeros
    kept = shortened(mine.column("key"), fractional(events.rows.schema, index.definition))
    found = pc.index_in(kept, value_set=texts)
    met = pc.is_valid(found)
    numbers = found.filter(met).to_numpy()
    return combined(mine.column("_seq").filter(met)), index.groups[numbers]


# Between which times and ids the events of each file of a log are, as the table's own log tells.
#
# A process keeps what it has worked out: a log is asked about with every batch, and grows with it.

MOST_TABLES = 1024


@dataclass(frozen=True, slots=True)
class Bounds:
    """One entry for each file of a log."""

    files: tuple[DataFile, ...]
    low: Ints
    """Microseconds since 1970."""
    high: Ints
    no_time: Flags
    """Files with events without a time, or without bounds."""
    ids: tuple[tuple[str | None, str | None], ...]
    """The lowest and the highest."""


_known: Cache[Bounds] = Cache(MOST_TABLES)


def bounds_of(log: Snapshot) -> Bounds:
    """The bounds of all files of a log."""
    known = _known.find(log.folder)
    if known is None or any(log.files.get(file.path) is not file for file in known.files):
        # not seen before, or more happened than that files were added
        known = _bounds(())
    have = {file.path for file in known.files}
    new = _bounds([file for path, file in log.files.items() if path not in have])
    found = Bounds(
        files=known.files + new.files,
        low=np.concatenate([known.low, new.low]),
        high=np.concatenate([known.high, new.high]),
        no_time=np.concatenate([known.no_time, new.no_time]),
        ids=known.ids + new.ids,
    )
    _known.keep(log.folder, found)
    return found


def _bounds(files: Sequence[DataFile]) -> Bounds:
    times = [[microseconds(end) for end in file.bounds("_source_ts")] for file in files]
    nulls = [(file.told().get("nullCount") or {}).get("_source_ts") for file in files]
    unbounded = [None in ends or count != 0 for ends, count in zip(times, nulls, strict=True)]
    return Bounds(
        files=tuple(files),
        low=np.array([low or 0 for low, _ in times], np.int64),
        high=np.array([(high or 0) + SLACK_US for _, high in times], np.int64),
        no_time=np.array(unbounded, np.bool_),
        ids=tuple(file.bounds("_uuid") for file in files),
    )


def files_at(log: Snapshot, times: Ints) -> list[DataFile]:
    """Return the files of a log that may have events of these times, in microseconds."""
    bounds, times = bounds_of(log), np.sort(times)
    inside = np.searchsorted(times, bounds.high, "right") > np.searchsorted(times, bounds.low)
    return [bounds.files[n] for n in np.flatnonzero(inside | bounds.no_time).tolist()]


# Events that were delivered before: their log has one with the same id and the same content.
#
# Most batches bring nothing twice, and most files of a log are about other times: the bounds that
# the table keeps of each file tell which ones to open, and of those only two columns are read. An
# event whose time is another one when it is sent again is looked for by its id alone.

_ID = pa.schema([pa.field("_uuid", pa.string()), pa.field("_hash", pa.int64())])


def redelivered(log_path: str, events: pa.Table) -> pa.BooleanArray:
    """Which events are in the log already, or further up among the events themselves.

    Events have `_uuid`, `_hash`, `_source_ts` and `_envelope`; one without an id is never a
    re-delivery, and one with the id of another and other content neither. Raises PublishError.
    """
    with committing(log_path, doing="look for events in a log"):
        ids = events.select(_ID.names)
        sizes = pc.binary_length(ids.column("_uuid")).fill_null(0)
        named: Flags = pc.greater(sizes, 0).to_numpy(zero_copy_only=False)
        index = KeyIndex(ids, tuple(_ID.names))
        again = _seen_before(index.groups) & named
        new = named & ~again
        some = events if new.all() else events.filter(pa.array(new))
        log = snapshot_of(log_path) if some.num_rows else None
        if log is not None:
            for file in _overlapping(bounds_of(log), some):
                there = index.find(log.read(file, _ID))
                again |= np.isin(index.groups, there[there >= 0]) & named
        return pa.array(again)


def _seen_before(groups: Ints) -> Flags:
    again = np.ones(len(groups), np.bool_)
    again[np.unique(groups, return_index=True)[1]] = False
    return again


def _overlapping(bounds: Bounds, events: pa.Table) -> list[DataFile]:
    """The files of a log that may have one of these events."""
    time = events.column("_source_ts")
    lasting: Flags = time.is_valid().to_numpy() & ~without_source_time(events.column("_envelope"))
    timed = np.sort(time.filter(pa.array(lasting)).cast(pa.int64()).to_numpy())
    inside = np.searchsorted(timed, bounds.high, "right") > np.searchsorted(timed, bounds.low)
    may = inside | bounds.no_time | (not lasting.all())
    ids = events.column("_uuid").combine_chunks()
    lowest, highest = pc.min_max(ids).as_py().values()

    def may_have(low: str | None, high: str | None) -> bool:
        """Whether one of the ids is within the bounds of a file, or these do not tell."""
        if low is None or high is None:
            return True
        if high < lowest or low > highest:
            # most files, where ids go up with the source's log
            return False
        between = pc.and_(pc.greater_equal(ids, low), pc.less_equal(ids, high))
        return bool(pc.any(between).as_py())

    return [bounds.files[n] for n in np.flatnonzero(may).tolist() if may_have(*bounds.ids[n])]
