"""Events as versions of rows, and what a history says of itself beside its rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from distributary.errors import PublishError
from distributary.evolve.place import fold
from distributary.merge.definitions import definitions_of
from distributary.merge.events import Events
from distributary.merge.history_chain import Truncate, twins
from distributary.merge.keys import Definition, KeyIndex
from distributary.merge.old_keys import OLD_KEY
from distributary.merge.order import SEQ_COLUMN, TIME_COLUMN, MergeOrder
from distributary.merge.sequence import Place, highest, lowest, place_of, ranks
from distributary.merge.snapshot import Snapshot
from distributary.model.change import CHANGE_COLUMNS, SEQ
from distributary.model.record import TIMESTAMP
from distributary.model.table import Column

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
"""What follows the source table's columns."""
HISTORY_NAMES = tuple(column.name for column in HISTORY_COLUMNS)
_KEYS, _TRUNCATES = "distributary.keys", "distributary.truncates"
_MOVED = "distributary.moved"


@dataclass(frozen=True, slots=True)
class Past:
    """What cannot be told from the versions of a single row; kept as properties of the table."""

    keys: tuple[tuple[Definition, Place | None], ...] = ()
    """The keys that were ever in force, with the last place of each but the newest."""
    truncates: tuple[Truncate, ...] = ()
    moved: Place | None = None
    """Where a version last took values over from another key."""

    def properties(self) -> dict[str, str]:
        """The past as a table keeps it."""
        keys = [[key, place] for key, place in self.keys]
        truncates = [[each.place, each.time_us] for each in self.truncates]
        return {
            _KEYS: json.dumps(keys, ensure_ascii=False),
            _TRUNCATES: json.dumps(truncates),
            **({} if self.moved is None else {_MOVED: json.dumps(self.moved)}),
        }

    def with_moves(self, new: pa.Table) -> Past:
        """The same after versions that may have taken values over."""
        last = highest(new.filter(new.column(OLD_KEY.name).is_valid()).column("_seq"))
        known = [place for place in (self.moved, last) if place is not None]
        return replace(self, moved=max(known, default=None))

    def is_touched(self, new: pa.Table, truncates: Sequence[Truncate]) -> bool:
        """Whether events may concern versions of rows that are not theirs."""
        if set(truncates) - set(self.truncates):
            return True
        first = lowest(new.column("_seq"))
        if self.moved is not None and first is not None and first <= self.moved:
            # it may change what was taken over
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
    """The inverse of `Past.properties`."""
    if snapshot is None:
        return Past()
    keys = json.loads(snapshot.property(_KEYS) or "[]")
    truncates = json.loads(snapshot.property(_TRUNCATES) or "[]")
    moved = json.loads(snapshot.property(_MOVED) or "null")
    return Past(
        tuple((tuple(key), None if place is None else tuple(place)) for key, place in keys),
        tuple(Truncate(tuple(place), time_us) for place, time_us in truncates),
        None if moved is None else tuple(moved),
    )


def past_after(before: Past, rows: pa.Table, truncates: Sequence[Truncate]) -> Past:
    """The past after a batch, from all versions that there are."""
    known = tuple(sorted({*before.truncates, *truncates}, key=lambda each: each.place))
    keys, owner = definitions_of(rows.column("_key"), rows.column_names)
    lasts = {
        key: highest(rows.filter(pa.array(owner == n)).column("_seq")) for n, key in _all(keys)
    }
    newest = max(keys, key=lambda key: lasts[key] or ()) if keys else None
    spans = tuple((key, None if key == newest else lasts[key]) for key in keys)
    return Past(spans, known, before.moved)


def payload_columns(order: MergeOrder) -> tuple[Column, ...]:
    """The source table's columns. Raises PublishError if one has a name that a history needs."""
    taken = {fold(name) for name in HISTORY_NAMES}
    clash = [column.name for column in order.columns if fold(column.name) in taken]
    if clash:
        raise PublishError(
            f"no history can be kept of table {order.table}",
            where=order.path,
            evidence=f"the source table has a column {clash[0]!r}, which a history has as well",
            next_step="rename the column at the source, or set cdc.history to false",
            reason="columns",
        )
    return order.columns


def truncates_in(events: Events) -> list[Truncate]:
    """When the source table was emptied."""
    rows = events.rows.filter(pa.array(events.truncates))
    times = rows.column("_source_ts").cast(pa.int64()).to_pylist()
    found = [place_of(value) for value in rows.column("_seq").to_pylist()]
    return [Truncate(place, time) for place, time in zip(found, times, strict=True)]


def versions_of(events: Events, schema: pa.Schema) -> pa.Table:
    """The versions that events with a key make, in the columns of a history; no bounds yet."""
    keys, owner = events.keys
    wanted = np.flatnonzero((owner >= 0) & ~_twins(events))
    rows = events.rows.take(wanted)
    made: dict[str, pa.Array | pa.ChunkedArray] = {
        "_deleted": pa.array(events.deletes[wanted]),
        "_key": pa.array([list(keys[number]) for number in owner[wanted]], pa.list_(pa.string())),
    }
    for name in ("_valid_from", "_valid_to", "_current"):
        made[name] = pa.nulls(len(wanted), schema.field(name).type)
    columns = [made[n] if n in made else rows.column(n) for n in schema.names]
    return pa.table(columns, schema=schema)


def _twins(events: Events) -> np.ndarray:
    keys, owner = events.keys
    found = np.zeros(len(owner), np.bool_)
    rank = ranks([events.seq, pa.array([], SEQ)])[0]
    for number, key in _all(keys):
        own = np.flatnonzero(owner == number)
        groups = KeyIndex(events.rows, key).groups[own]
        found[own] = twins(rank[own], groups, events.preference(own))
    return found


def _all(keys: Sequence[Definition]) -> list[tuple[int, Definition]]:
    return list(enumerate(keys))
