"""Rows that get another key, for Spark: the few of them are settled in one process.

What is known of these rows is fetched from the table by their keys, the events about them are
taken out of the batch, and what became of them is put in instead: nothing is left out any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from distributary.merge.conform import conform
from distributary.merge.definitions import Span
from distributary.merge.events import CHANGE_SCHEMA, Events, read_events
from distributary.merge.keys import Definition, KeyIndex
from distributary.merge.moves import leaving
from distributary.merge.old_keys import OLD_KEY, read_old_keys
from distributary.merge.order import MergeOrder
from distributary.merge.plan import plan
from distributary.merge.sequence import Flags
from distributary.merge.shape import Shape
from distributary.merge.spark_statement import quoted
from distributary.merge.target import MemoryTarget
from distributary.merge.tombstones import MOVED, Tombstones

_POSITION = ("phase", "ts", "a", "b", "c")


@dataclass(frozen=True, slots=True)
class Settled:
    """What stands for the events about some rows."""

    keys: pa.Table
    """Of these rows."""
    events: pa.Table
    """As a log would have them, without arrivals."""
    memories: pa.Table
    """Of rows whose new keys are not known yet."""

    def applied(self, session: SparkSession, frame: DataFrame) -> DataFrame:
        """A batch with these events instead of its own about the same rows."""
        keys = session.createDataFrame(_numbered(self.keys))
        rest = frame.join(keys, _same(frame, keys, self.keys.column_names), "left_anti")
        return rest.unionByName(session.createDataFrame(self.events, frame.schema))


def settle_moves(
    session: SparkSession,
    order: MergeOrder,
    columns: Shape,
    key: Definition,
    tombstones: Tombstones,
    *,
    exists: bool,
) -> Settled | None:
    """Settle the rows that get another key; None if there are none, as nearly always."""
    keys = _concerned(order.files, columns, key)
    if keys is None:
        return None
    events = _events_about(order.files, columns, keys)
    known = columns.schema.empty_table()
    if exists:
        known = conform(
            found := _known(session, order.path, columns, keys), columns.schema, rows=found.num_rows
        )
    made = plan(
        events,
        MemoryTarget(known),
        tombstones,
        shape=columns,
        spans=(Span(key),),
        soft=order.soft,
        now_us=order.now_us,
    )
    moved = made.tombstones.filter(pc.equal(made.tombstones.column("kind"), MOVED))
    told = [_told(made.winners, columns, key)]
    if not order.soft:
        gone = events.rows.filter(pa.array(events.deletes))
        told.append(gone.select(told[0].column_names))
    return Settled(keys, pa.concat_tables(told), moved)


def _concerned(files: Sequence[str], columns: Shape, key: Definition) -> pa.Table | None:
    """The keys of rows that move, old and new, unless an event alone tells all of the row."""
    own = pa.schema([columns.schema.field(name) for name in key])
    found: list[pa.Table] = []
    for file in files:
        events = read_events([file], own)
        found.append(events.rows.take(np.union1d(events.asking, leaving(events))))
    some = Events(pa.concat_tables(found)) if found else None
    if some is None or not some.rows.num_rows:
        return None
    old = read_old_keys(some.rows.column(OLD_KEY.name), some.asking, own)
    told = _told_at(files, some.seq.filter(pa.array(some.deletes)))
    kept = ~(some.deletes & np.isin(_positions(some.seq), told))
    parts = [some.rows.filter(pa.array(kept)).select(key)]
    parts += [each.rows for each in old if each.definition == key]
    keys = pa.concat_tables(parts)
    index = KeyIndex(keys, key)
    return keys.take(np.unique(index.groups, return_index=True)[1]) if keys.num_rows else None


def _told_at(files: Sequence[str], seq: pa.StructArray) -> np.ndarray:
    """Those of some positions at which an event of the batch tells all of its row."""
    wanted, met = _positions(seq), [np.array([], object)]
    for file in files if len(wanted) else ():
        events = read_events([file], pa.schema([]))
        left = pc.list_value_length(events.rows.column("_unchanged")).fill_null(0)
        whole: Flags = pc.equal(left, 0).to_numpy() & ~events.deletes & ~events.truncates
        here = _positions(events.seq.filter(pa.array(whole)))
        met.append(here[np.isin(here, wanted)])
    return np.concatenate(met)


def _positions(seq: pa.StructArray) -> np.ndarray:
    """Positions as texts: they are compared across files."""
    parts = [seq.field(name).cast(pa.string()) for name in _POSITION]
    texts: np.ndarray = pc.binary_join_element_wise(*parts, " ").to_numpy(zero_copy_only=False)
    return texts


def _events_about(files: Sequence[str], columns: Shape, keys: pa.Table) -> Events:
    own = pa.schema([field for field in columns.schema if field.name not in CHANGE_SCHEMA.names])
    index = KeyIndex(keys, tuple(keys.column_names))
    parts = []
    for file in files:
        events = read_events([file], own)
        mine = (index.find(events.rows) >= 0) & (events.keys[1] >= 0)
        parts.append(events.rows.filter(pa.array(mine | events.truncates)))
    return Events(pa.concat_tables(parts))


def _known(session: SparkSession, path: str, columns: Shape, keys: pa.Table) -> pa.Table:
    """The rows of the table under these keys."""
    table = session.read.format("delta").load(path)
    some = session.createDataFrame(_numbered(keys))
    found = table.join(F.broadcast(some), _same(table, some, keys.column_names), "left_semi")
    have = [name for name in columns.names if name in table.columns]
    rows: pa.Table = found.select(*map(quoted, have)).toArrow()
    return rows


def _numbered(keys: pa.Table) -> pa.Table:
    # names from outside may hold what means something to Spark
    return keys.rename_columns([f"k{number}" for number in range(keys.num_columns)])


def _same(one: DataFrame, keys: DataFrame, names: Sequence[str]) -> Expression:
    pairs = [one[quoted(name)].eqNullSafe(keys[f"k{n}"]) for n, name in enumerate(names)]
    whole = pairs[0]
    for pair in pairs[1:]:
        whole &= pair
    return whole


def _told(winners: pa.Table, columns: Shape, key: Definition) -> pa.Table:
    """Rows as events that leave nothing out."""
    size = winners.num_rows
    deleted = winners.column("_deleted") if "_deleted" in columns.names else None
    flags = pa.nulls(size, pa.bool_()) if deleted is None else deleted
    told = {
        "_op": pa.repeat(pa.scalar("update"), size),
        "_deleted": flags,
        "_key": pa.array([list(key)] * size, pa.list_(pa.string())),
    }
    own = [name for name in columns.names if name not in CHANGE_SCHEMA.names]
    schema = pa.schema([*CHANGE_SCHEMA, *(columns.schema.field(name) for name in own)])
    have = set(winners.column_names)
    arrays = [
        told[f.name]
        if f.name in told
        else winners.column(f.name)
        if f.name in have
        else pa.nulls(size, f.type)
        for f in schema
    ]
    return pa.table(arrays, schema=schema)
