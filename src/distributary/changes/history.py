"""The history of rows: every version with the times between which it was valid.

The table `<table>_history` has each event about a row once. A delete is valid for the time in which
the row does not exist. Open versions are in other files than closed ones, so that a batch of new
events reads and writes only the files of open versions. A late or repeated event needs all versions
of its row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.apply import MOST_SMALL_FILES, clustering, small_files, written
from distributary.changes.chosen_versions import PROPERTY as CHOSEN
from distributary.changes.chosen_versions import UNTIL, logged_rows, runs, stands_for_several
from distributary.changes.contest import highest_by
from distributary.changes.decide import LastValues, followed, gathered, just_before
from distributary.changes.events.incarnations import incarnations_of
from distributary.changes.events.log_events import (
    OLD_KEY,
    ORDER,
    POSITION,
    PROPERTY,
    ChangeEvents,
    Definition,
    Flags,
    Ints,
    KeyIndex,
    Place,
    by_position,
    by_time,
    combined,
    definitions_of,
    highest,
    is_merged_by_time,
    lacks_mark,
    left_out_in,
    lowest,
    place_of,
    places,
    ranks,
    read_in_turn,
    read_old_keys,
    without_times,
)
from distributary.changes.merge_order import (
    SEQ_COLUMN,
    TIME_COLUMN,
    MergedColumns,
    MergeOrder,
    MergeResult,
    merged_columns,
)
from distributary.decode.base import truths
from distributary.delta.commit import Change, rewrite_files
from distributary.delta.log import DataFile, Snapshot, snapshot_of
from distributary.delta.skipping import KeyRanges
from distributary.delta.tables import committing, until_not_overtaken
from distributary.errors import PublishError
from distributary.evolve.types import fold
from distributary.model.change import CHANGE_COLUMNS
from distributary.model.incarnation import INCARNATIONS, Incarnations, without_servers
from distributary.model.manifest import Mark, StagedFile
from distributary.model.record import TIMESTAMP
from distributary.model.table import Column

# Versions of rows in their order: what each is followed by, and between which times it held.
# Pure.
#
# A version ends with the next event about its row, or when the table is emptied. Times of a
# source need not follow its order (a backfilled row has the time of the backfill): a version that
# began after its end begins with it, so that no two versions of a row ever overlap.

_NONE = -1
_LATEST = 2**62


@dataclass(frozen=True, slots=True)
class Truncate:
    """A position at which all rows were deleted."""

    place: Place
    time_us: int | None


@dataclass(frozen=True, slots=True)
class Chain:
    """The end and the interval of each version."""

    valid_from: pa.Array
    valid_to: pa.Array
    open: Flags
    """Whether no later version has ended it."""


class Versions:
    """Versions of rows, as a table with `_seq`, `_source_ts`, `_deleted` and the key's columns."""

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
        before = [just_before(combined(seq.take(each.events))) for each in self._moves]
        self.rank, self._ends, *self._looks = ranks([seq, ends, *before])

    def chain(self) -> Chain:
        """Return the end of each version, and the times between which it was valid."""
        following = self._following()
        times = self.rows.column("_source_ts").cast(pa.int64()).to_pylist()
        ends, stops = self._emptied()
        begins: list[int | None] = [None] * len(times)
        valid_to: list[int | None] = [None] * len(times)
        # from the last to the first, because a version ends when the next one begins
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
        """Return the rows with omitted columns filled in, where the values are known."""
        rows = self.rows
        for name, missing in left_out.items():
            at = rows.schema.get_field_index(name)
            column = rows.column(at)
            values = gathered(self._sources(missing), column, column.slice(0, 0))
            rows = rows.set_column(at, rows.schema.field(at), values)
        return rows

    def _sources(self, missing: Flags) -> Ints:
        """Return the origin of a column's value for each version: its own, or an earlier one."""
        sources = np.arange(len(missing))
        moved = np.zeros(len(missing), np.bool_)
        for move in self._moves:
            moved[move.events] = True
        latest = [self._last_values(missing & ~moved, index) for index in self._keys]
        for number, index in enumerate(self._keys):
            own = np.flatnonzero(missing & ~moved & (self._owner == number))
            found = latest[number].before(index.groups[own], self.rank[own])
            sources[own] = self._unless_emptied(found, own)
        for move, rank in zip(self._moves, self._looks, strict=True):
            asking = missing[move.events]
            own = move.events[asking]
            found = latest[move.number].before(move.groups[asking], rank[asking])
            sources[own] = self._unless_emptied(found, own)
        return followed(sources)

    def _following(self) -> Ints:
        """Return the next version of the same row, by the key of that next version; -1 for none."""
        best = np.full(len(self.rank), _LATEST, np.int64)
        found = np.full(len(self.rank), _NONE, np.int64)
        for number, index in enumerate(self._keys):
            order = np.lexsort((self.rank, index.groups))
            own = self._owner[order] == number
            at = np.arange(len(order))
            later = np.minimum.accumulate(np.where(own, at, len(order))[::-1])[::-1]
            # one place further on, so that no version finds itself
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
        """Return the rank and the time of the next truncate after each version."""
        order = np.argsort(self._ends)
        at = np.searchsorted(self._ends[order], self.rank, side="right")
        ends = np.append(self._ends[order], _LATEST)[at]
        times = [*(self._truncates[number].time_us for number in order), None]
        return ends, [times[number] for number in at]

    def _last_values(self, silent: Flags, index: KeyIndex) -> LastValues:
        tells = ~silent | self._deleted
        members = np.where(self._deleted, _NONE, np.arange(len(silent)))
        return LastValues(members[tells], index.groups[tells], self.rank[tells])

    def _unless_emptied(self, sources: Ints, asking: Ints) -> Ints:
        emptied = self._ends[None, :]
        since, until = self.rank[sources][:, None], self.rank[asking][:, None]
        between = (emptied > since) & (emptied <= until)
        kept: Ints = np.where(between.any(axis=1), _NONE, sources)
        return kept


@dataclass(frozen=True, slots=True)
class _Move:
    """The versions that take values from another key, and that key."""

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


def twins(rank: Ints, groups: Ints, preference: Ints) -> Flags:
    """Return the versions that another version of the same row at the same place replaces."""
    order = np.lexsort((preference, rank, groups))
    same = (np.diff(groups[order]) == 0) & (np.diff(rank[order]) == 0)
    flags = np.zeros(len(rank), np.bool_)
    flags[order[:-1][same]] = True
    return flags


def same_times(one: pa.ChunkedArray, other: pa.Array) -> Flags:
    """Mark the rows with equal times in two columns; null equals null."""
    first, second = (each.cast(pa.int64()).fill_null(_LATEST) for each in (one, other))
    return truths(pc.equal(first, second))


# Events as versions of rows, and the table properties of a history.

_CHANGE = {column.name: column for column in CHANGE_COLUMNS}
HISTORY_COLUMNS = (
    Column("_valid_from", TIMESTAMP, "when the row became like this"),
    Column("_valid_to", TIMESTAMP, "when it became something else; null: it has not"),
    Column("_current", pa.bool_(), "whether the row is like this now"),
    Column("_deleted", pa.bool_(), "whether the row was not there in this interval"),
    _CHANGE["_op"],
    SEQ_COLUMN,
    TIME_COLUMN,
    _CHANGE["_key"],
    _CHANGE["_unchanged"],
    Column(OLD_KEY.name, OLD_KEY.type, "the key under which the values are that it left out"),
)
"""The columns of a history after those of the source table."""
HISTORY_NAMES = tuple(column.name for column in HISTORY_COLUMNS)
_TRUNCATES, _MOVED = "distributary.truncates", "distributary.moved"


@dataclass(frozen=True, slots=True)
class Past:
    """Facts that the versions of a single row do not show, kept as properties of the table."""

    keys: tuple[tuple[Definition, Place | None], ...] = ()
    """All keys that ever applied, with the last place of each except the newest."""
    truncates: tuple[Truncate, ...] = ()
    moved: Place | None = None
    """The last place at which a version took values from another key."""

    def properties(self) -> dict[str, str]:
        """Return the table properties."""
        keys = [[key, place] for key, place in self.keys]
        truncates = [[each.place, each.time_us] for each in self.truncates]
        return {
            PROPERTY: json.dumps(keys, ensure_ascii=False),
            _TRUNCATES: json.dumps(truncates),
            **({} if self.moved is None else {_MOVED: json.dumps(self.moved)}),
        }

    def with_moves(self, new: pa.Table) -> Past:
        """Return the past after further versions, which may have taken values from other keys."""
        last = highest(new.filter(new.column(OLD_KEY.name).is_valid()).column("_seq"))
        known = [place for place in (self.moved, last) if place is not None]
        return replace(self, moved=max(known, default=None))

    def is_touched(self, new: pa.Table, truncates: Sequence[Truncate]) -> bool:
        """Return whether events may concern versions of other rows."""
        if set(truncates) - set(self.truncates):
            return True
        first = lowest(new.column("_seq"))
        if self.moved is not None and first is not None and first <= self.moved:
            # a late event may change the values that were taken
            return True
        keys, _ = definitions_of(new.column("_key"), new.column_names)
        newest = [key for key, place in self.keys if place is None]
        if not self.keys or not keys:
            return False
        if list(keys) != newest:
            return True
        earlier = [place for _, place in self.keys if place is not None]
        return bool(earlier) and first is not None and first <= max(earlier)


def past_of(snapshot: Snapshot | None) -> Past:
    """Read the past from table properties; the inverse of `Past.properties`."""
    if snapshot is None:
        return Past()
    keys = json.loads(snapshot.property(PROPERTY) or "[]")
    truncates = json.loads(snapshot.property(_TRUNCATES) or "[]")
    moved = json.loads(snapshot.property(_MOVED) or "null")
    return Past(
        tuple((tuple(key), None if place is None else tuple(place)) for key, place in keys),
        tuple(Truncate(tuple(place), time_us) for place, time_us in truncates),
        None if moved is None else tuple(moved),
    )


def past_after(before: Past, rows: pa.Table, truncates: Sequence[Truncate]) -> Past:
    """Return the past after a batch, computed from all existing versions."""
    known = tuple(sorted({*before.truncates, *truncates}, key=lambda each: each.place))
    keys, owner = definitions_of(rows.column("_key"), rows.column_names)
    lasts = {
        key: highest(rows.filter(pa.array(owner == n)).column("_seq")) for n, key in enumerate(keys)
    }
    newest = max(keys, key=lambda key: lasts[key] or ()) if keys else None
    spans = tuple((key, None if key == newest else lasts[key]) for key in keys)
    return Past(spans, known, before.moved)


def _own_names(order: MergeOrder) -> tuple[str, ...]:
    """Return the names of the columns that do not come from the source."""
    return (*HISTORY_NAMES, UNTIL.name) if order.chosen else HISTORY_NAMES


def _refuse_other_columns(order: MergeOrder, before: Snapshot | None) -> None:
    """Raise PublishError if the versions of a history began with changes of other columns."""
    if before is None:
        return
    known = json.loads(before.property(CHOSEN) or "[]")
    if known != list(order.chosen):
        was, wanted = ([", ".join(names) or "every column"] for names in (known, order.chosen))
        raise PublishError(
            f"the versions in {order.table} began with changes of other columns",
            where=order.path,
            evidence=f"history_columns were {was[0]}, and are {wanted[0]}",
            next_step="put history_columns of keys back, or begin again with other tables: "
            "`distributary reset FILE --with-tables`",
            reason="columns",
        )


def payload_columns(order: MergeOrder) -> tuple[Column, ...]:
    """Return the source table's columns. Raises PublishError for a name that a history needs."""
    taken = {fold(name) for name in _own_names(order)}
    clash = [column.name for column in order.columns if fold(column.name) in taken]
    if clash:
        raise PublishError(
            f"a history cannot be kept of table {order.table}",
            where=order.path,
            evidence=f"the source table has a column {clash[0]!r}, which a history has as well",
            next_step="rename the column at the source, or set cdc.history to false",
            reason="columns",
        )
    return order.columns


def truncates_in(events: ChangeEvents) -> list[Truncate]:
    """Return the truncates of the source table among the events."""
    rows = events.rows.filter(pa.array(events.truncates))
    times = rows.column("_source_ts").cast(pa.int64()).to_pylist()
    found = [place_of(value) for value in rows.column("_seq").to_pylist()]
    return [Truncate(place, time) for place, time in zip(found, times, strict=True)]


def versions_of(events: ChangeEvents, schema: pa.Schema) -> pa.Table:
    """Build the versions of events with a key, in the columns of a history, without bounds."""
    keys, owner = events.keys
    wanted = np.flatnonzero((owner >= 0) & ~_twins(events.rows, events.keys, events.preference))
    rows = events.rows.take(wanted)
    made: dict[str, pa.Array | pa.ChunkedArray] = {
        "_deleted": pa.array(events.deletes[wanted]),
        "_key": pa.array([list(keys[number]) for number in owner[wanted]], pa.list_(pa.string())),
    }
    for name in ("_valid_from", "_valid_to", "_current"):
        made[name] = pa.nulls(len(wanted), schema.field(name).type)
    if stands_for_several(schema):
        made[UNTIL.name] = rows.column("_seq")
    columns = [made[n] if n in made else rows.column(n) for n in schema.names]
    return pa.table(columns, schema=schema)


def _twins(
    rows: pa.Table,
    keys: tuple[Sequence[Definition], Ints],
    preference: Callable[[Ints], Ints],
) -> Flags:
    """Mark the rows that another row about the same source row at the same place replaces."""
    definitions, owner = keys
    found = np.zeros(rows.num_rows, np.bool_)
    rank = ranks([rows.column("_seq")])[0]
    for number, key in enumerate(definitions):
        own = np.flatnonzero(owner == number)
        groups = KeyIndex(rows, key).groups[own]
        found[own] = twins(rank[own], groups, preference(own))
    return found


# The files of a history: closed versions are in other files than open ones.

_CLOSED = "closed"
"""The beginning of the names of files with closed versions only."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Versions in the table, and their files."""

    rows: pa.Table
    places: Sequence[tuple[DataFile, Ints]]


def is_closed(file: DataFile) -> bool:
    """Return whether a file can change only by late events."""
    return file.path.startswith(f"{_CLOSED}-")


def find_versions(
    before: Snapshot | None,
    schema: pa.Schema,
    *,
    of: pa.Table | None,
    key: Definition,
    closed: bool,
    positional: bool,
) -> Stored:
    """Find the versions of some rows, or all versions; `closed` includes closed files.

    If the new events are `positional`, times before positions are ignored.
    """
    index = None if of is None else KeyIndex(of, key)
    wanted = None if of is None else KeyRanges(of, key)
    found: list[pa.Table] = []
    places: list[tuple[DataFile, Ints]] = []
    for file in before.files.values() if before else ():
        if before is None or (is_closed(file) and not closed):
            continue
        if wanted is not None and not wanted.may_be_in(file):
            continue
        at = None
        if index is not None:
            names = pa.schema([schema.field(name) for name in key])
            at = np.flatnonzero(index.find(before.read(file, names)) >= 0)
            if not len(at):
                continue
        rows = without_times(before.read(file, schema)) if positional else before.read(file, schema)
        at = np.arange(rows.num_rows) if at is None else at
        found.append(rows.take(at))
        places.append((file, at))
    return Stored(pa.concat_tables([schema.empty_table(), *found]), places)


def write_versions(
    before: Snapshot | None,
    stored: Stored,
    rows: pa.Table,
    *,
    open_: Flags,
    folder: str,
    key: Definition,
) -> tuple[list[DataFile], list[StagedFile]]:
    """Replace stored versions; return the files to remove from and to add to the table."""
    touched = list(stored.places)
    names = {file.path for file, _ in touched}
    files = before.files.values() if before else ()
    rest = [file for file in files if file.path not in names]
    for closed in (False, True):
        small = small_files([file for file in rest if is_closed(file) is closed], rows)
        if len(small) >= MOST_SMALL_FILES:
            touched += [(f, np.zeros(0, np.int64)) for f in rest if f.path in small]

    def kept(*, closed: bool) -> Iterator[pa.Table]:
        for file, at in touched:
            if before is not None and is_closed(file) is closed:
                keep = np.ones((left := before.read(file, rows.schema)).num_rows, np.bool_)
                keep[at] = False
                yield left.filter(pa.array(keep))
        yield rows.filter(pa.array(open_ ^ closed))

    added = written(kept(closed=False), folder=folder, key=key)
    added += written(kept(closed=True), folder=folder, prefix=_CLOSED, key=key)
    return [file for file, _ in touched], added


def merge_history(order: MergeOrder) -> MergeResult:
    """Merge the events of an order into its history, once. Raises PublishError.

    Columns are only added, never removed: a history keeps old values whatever happens to the table.
    """
    with committing(order.path, doing="add to the history of a table"):
        return until_not_overtaken(lambda: _attempt(order))


@dataclass(frozen=True, slots=True)
class _Settled:
    """Versions with their bounds; existing versions come first."""

    stored: Stored
    rows: pa.Table
    open: Flags
    added: int
    """The new versions."""
    changed: int
    """Existing versions with changed bounds."""


def _attempt(order: MergeOrder) -> MergeResult:
    before, columns = _open(order)
    if before is not None and before.has(order.app_id, order.batch):
        return MergeResult(order.table, before.version, skipped=True)
    _refuse_other_columns(order, before)
    payload = pa.schema([field for field in columns.schema if field.name not in _own_names(order)])
    version = -1
    incarnations = incarnations_of(order.current) if order.current else Incarnations()
    for events, last in read_in_turn(order.files, payload):
        version = _apply(order, before, columns, events, incarnations, order.mark if last else None)
        if not last:
            before, columns = _open(order)
    return MergeResult(order.table, version)


def _open(order: MergeOrder) -> tuple[Snapshot | None, MergedColumns]:
    before = snapshot_of(order.path)
    if before is not None:
        before.refuse_unusable(order.table)
    columns = merged_columns(
        None if before is None else before.fields,
        payload_columns(order),
        system=(*HISTORY_COLUMNS, UNTIL) if order.chosen else HISTORY_COLUMNS,
        evolution="none" if order.evolution == "none" else "mergeSchema",
    )
    return before, columns


def _apply(
    order: MergeOrder,
    before: Snapshot | None,
    columns: MergedColumns,
    arrived: ChangeEvents,
    incarnations: Incarnations,
    mark: Mark | None,
) -> int:
    events = ChangeEvents(incarnations.applied(arrived.rows))
    new, truncates = versions_of(events, columns.schema), truncates_in(events)
    past = past_of(before)
    known = Incarnations.from_text(before.property(INCARNATIONS) if before else None)
    # files may show a server only after earlier batches have brought changes of it
    found_late = incarnations if incarnations.by_time != known.by_time else None
    unmarked = lacks_mark(before, combined(new.column("_seq")))
    by_times = unmarked and before is not None and is_merged_by_time(before)
    everything = found_late is not None or by_times or past.is_touched(new, truncates)
    ends = sorted({*past.truncates, *truncates}, key=lambda each: each.place)
    settled = _settle(
        before,
        columns,
        new,
        ends,
        everything=everything,
        several=len(past.keys) > 1,
        found_late=found_late,
        logged=_logged(order, columns, incarnations) if order.chosen else None,
        moved=past.moved is not None,
    )
    after = past
    if everything or not past.keys:
        after = past_after(past, settled.rows, truncates)
    after = after.with_moves(new if found_late is None else settled.rows)
    properties = after.properties() if after != past else {}
    if unmarked:
        properties[ORDER] = POSITION
    if found_late is not None:
        properties[INCARNATIONS] = incarnations.to_text()
    if order.chosen:
        settled = _joined(settled, order.chosen, ends)
        if before is None:
            properties[CHOSEN] = json.dumps(order.chosen)
    newest = next((key for key, place in after.keys if place is None), ())
    key = clustering(newest, columns.schema)
    counted = events.rows.num_rows
    return _commit(order, before, columns, settled, properties, counted, key, mark)


def _settle(
    before: Snapshot | None,
    columns: MergedColumns,
    new: pa.Table,
    ends: Sequence[Truncate],
    *,
    everything: bool,
    several: bool,
    found_late: Incarnations | None,
    logged: Logged | None,
    moved: bool,
) -> _Settled:
    """Read as few versions as needed: the open ones of the rows, all of the rows, or all.

    Where servers were found late, the places of all versions are numbered by them first. Where
    versions stand for several records, `logged` reads these instead; `moved` says that some of them
    took values from other keys.
    """
    keys, _ = definitions_of(new.column("_key"), new.column_names)
    key = keys[0] if keys else ()
    moves = np.flatnonzero(new.column(OLD_KEY.name).is_valid().to_numpy())
    old = read_old_keys(new.column(OLD_KEY.name), moves, new.schema)
    everything |= any(each.definition != key for each in old)
    about = pa.concat_tables([new.select(key), *(each.rows.select(key) for each in old)])
    positional = bool(by_position(combined(new.column("_seq"))).any())
    find = partial(find_versions, before, columns.schema, key=key)
    # a version that stands for several records has the values of the first one only
    lacking = logged is not None and bool(left_out_in(new.column("_unchanged"), new.column_names))
    if not everything and not old and not lacking:
        stored = find(of=about, closed=False, positional=False)
        # in versions ordered by time, of an earlier release, any version may be the last
        timed = positional and by_time(combined(stored.rows.column("_seq"))).any()
        settled = None if timed else _bounded(stored, new, ends, whole=False, everything=False)
        if settled is not None:
            return settled
    everything |= several or (logged is not None and (moved or bool(old)))
    of = None if everything else about
    stored = find(of=of, closed=True, positional=positional)
    if logged is not None:
        events = logged(of, key)
        events = without_times(events) if positional else events
        events = pa.concat_tables([events, new.filter(pa.array(~_known(events, new)))])
        none = Stored(columns.schema.empty_table(), ())
        settled = _bounded(none, events, ends, whole=True, everything=everything)
        if settled is None:
            raise AssertionError("all records were read")
        return replace(settled, stored=stored)
    if found_late is not None:
        stored = replace(stored, rows=found_late.applied(without_servers(stored.rows)))
    settled = _bounded(stored, new, ends, whole=True, everything=everything)
    if settled is None:
        raise AssertionError("all versions were read")
    return settled


def _bounded(
    stored: Stored, new: pa.Table, ends: Sequence[Truncate], *, whole: bool, everything: bool
) -> _Settled | None:
    """Compute the bounds of existing and new versions; None if more versions must be read."""
    if not whole and _is_late(stored.rows, new, ends):
        return None
    fresh = new.filter(pa.array(~_known(stored.rows, new))) if whole else new
    rows = pa.concat_tables([stored.rows, fresh])
    keys, owner = definitions_of(rows.column("_key"), rows.column_names)
    indexes = [KeyIndex(rows, key) for key in keys]
    versions = Versions(rows, keys=indexes, owner=owner, truncates=ends)
    chain = versions.chain()
    old = stored.rows.num_rows
    same_start = same_times(rows.column("_valid_from"), chain.valid_from)[:old]
    if not whole and not same_start.all():
        return None
    left_out = left_out_in(rows.column("_unchanged"), rows.column_names)
    moved: Flags = stored.rows.column(OLD_KEY.name).is_valid().to_numpy()
    for flags in left_out.values():
        # omitted values of a version were filled in when all versions before it were known
        flags[:old] &= whole & (everything | ~moved)
    same_end = same_times(rows.column("_valid_to"), chain.valid_to)[:old]
    return _Settled(
        stored,
        _with_bounds(versions.filled(left_out), chain),
        open=chain.open,
        added=fresh.num_rows,
        changed=int((~(same_start & same_end)).sum()),
    )


def _is_late(stored: pa.Table, new: pa.Table, ends: Sequence[Truncate]) -> bool:
    """Return whether an event is older than the known versions of its row, or than a truncate."""
    keys, _ = definitions_of(new.column("_key"), new.column_names)
    emptied = places([each.place for each in ends])
    last_known = stored.column(UNTIL.name if stands_for_several(stored.schema) else "_seq")
    rank, old, end = ranks([new.column("_seq"), last_known, emptied])
    if not keys:
        return False
    index = KeyIndex(new, keys[0])
    last = highest_by(index.find(stored), old, index.count)
    return bool((rank <= np.maximum(last[index.groups], end.max(initial=-1))).any())


Logged = Callable[[pa.Table | None, Definition], pa.Table]
"""A function that reads the versions of some rows from their log, one for each record."""


def _logged(order: MergeOrder, columns: MergedColumns, incarnations: Incarnations) -> Logged:
    payload = pa.schema([field for field in columns.schema if field.name not in _own_names(order)])

    def read(of: pa.Table | None, key: Definition) -> pa.Table:
        rows = logged_rows(order.log, payload, of=of, key=key)
        return versions_of(ChangeEvents(incarnations.applied(rows)), columns.schema)

    return read


def _joined(settled: _Settled, chosen: Sequence[str], ends: Sequence[Truncate]) -> _Settled:
    """Return the versions that begin with a change of the chosen columns."""
    emptied = places([each.place for each in ends])
    joined = runs(settled.rows, settled.open, chosen, emptied)
    fresh = joined.origin >= settled.rows.num_rows - settled.added
    return _Settled(
        settled.stored,
        joined.rows,
        open=joined.open,
        added=int(fresh.sum()),
        changed=settled.changed + joined.grown,
    )


def _known(stored: pa.Table, new: pa.Table) -> Flags:
    """Mark the events that are in the table already."""
    rows = pa.concat_tables([stored, new])
    keys = definitions_of(rows.column("_key"), rows.column_names)
    is_old = (np.arange(rows.num_rows) < stored.num_rows).astype(np.int64)
    return _twins(rows, keys, is_old.__getitem__)[stored.num_rows :]


def _with_bounds(rows: pa.Table, chain: Chain) -> pa.Table:
    deleted: Flags = rows.column("_deleted").to_numpy()
    bounds = {
        "_valid_from": chain.valid_from,
        "_valid_to": chain.valid_to,
        "_current": pa.array(chain.open & ~deleted),
    }
    columns = [bounds.get(name, rows.column(name)) for name in rows.column_names]
    return pa.table(columns, schema=rows.schema)


def _commit(
    order: MergeOrder,
    before: Snapshot | None,
    columns: MergedColumns,
    settled: _Settled,
    properties: dict[str, str],
    events: int,
    key: Definition,
    mark: Mark | None,
) -> int:
    changed = settled.added or settled.changed
    if before is None and not changed and not properties:
        return -1
    if before is not None and not (changed or columns.changed or properties):
        return before.version
    removed, added = write_versions(
        before, settled.stored, settled.rows, open_=settled.open, folder=order.path, key=key
    )
    change = Change(
        "MERGE",
        order.table,
        comment=order.comment,
        fields=columns.fields if columns.changed else None,
        properties=properties,
        removed=removed,
        added=added,
        mark=mark,
        metrics={
            "numSourceRows": events,
            "numTargetRowsInserted": settled.added,
            "numTargetRowsUpdated": settled.changed,
        },
    )
    return rewrite_files(order.path, before, change).version
