"""Versions of rows that begin only when one of some chosen columns changes.

A version stands for all records of a row until the next change. The records in between are not in
the history, so a record that comes late is put in its place from the log, which has all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from distributary.changes.events.log_events import (
    CHANGE_SCHEMA,
    OLD_KEY,
    Definition,
    Flags,
    KeyIndex,
    definitions_of,
    ranks,
    with_old_keys,
)
from distributary.delta.log import DataFile, Snapshot, snapshot_of
from distributary.delta.skipping import KeyRanges
from distributary.model.change import SEQ
from distributary.model.table import Column

UNTIL = Column("_last_seq", SEQ, "the place of the last record of this version")
PROPERTY = "distributary.history-columns"
"""The table property with the chosen columns, as JSON."""


def stands_for_several(schema: pa.Schema) -> bool:
    """Return whether each version of a history may stand for several records."""
    return UNTIL.name in schema.names and schema.field(UNTIL.name).type == SEQ


@dataclass(frozen=True, slots=True)
class Runs:
    """Versions with a change at their beginning, in the order of the rows they were made of."""

    rows: pa.Table
    open: Flags
    origin: np.ndarray
    """The position of each version's first row."""
    grown: int
    """The versions that stand for several rows."""


def runs(rows: pa.Table, open_: Flags, chosen: Sequence[str], truncates: pa.StructArray) -> Runs:
    """Join versions of a row that follow each other and differ in no chosen column.

    A joined version has the values with which it began, and ends when its last row ends. Rows that
    were deleted are joined likewise. A truncate, given by its place, ends all versions.
    """
    names = [name for name in chosen if name in rows.column_names]
    order, begins = _in_runs(rows, names, truncates)
    starts = np.flatnonzero(begins)
    first, last = order[starts], order[np.append(starts, len(order))[1:] - 1]
    by_place = np.argsort(first)
    first, last = first[by_place], last[by_place]
    ends = rows.select(["_valid_to", "_current", UNTIL.name]).take(last)
    kept = rows.take(first)
    columns = [(ends if n in ends.column_names else kept).column(n) for n in rows.column_names]
    return Runs(
        pa.table(columns, schema=rows.schema), open_[last], first, int((first != last).sum())
    )


def _in_runs(
    rows: pa.Table, chosen: Sequence[str], truncates: pa.StructArray
) -> tuple[np.ndarray, Flags]:
    """Return the rows in the order of their keys and places, and flags where a version begins."""
    keys, owner = definitions_of(rows.column("_key"), rows.column_names)
    group = np.zeros(rows.num_rows, np.int64)
    for number, key in enumerate(keys):
        own = owner == number
        group[own] = KeyIndex(rows, key).groups[own]
    deleted: Flags = rows.column("_deleted").to_numpy()
    state = KeyIndex(rows, tuple(chosen)).groups
    state = np.where(deleted, -1, state)
    rank, emptied = ranks([rows.column("_seq"), truncates])
    before = np.searchsorted(np.sort(emptied), rank)
    order = np.lexsort((rank, group, owner))
    begins = np.ones(len(order), np.bool_)
    if len(order):
        begins[1:] = False
        for values in (group, owner, state, before):
            begins[1:] |= np.diff(values[order]) != 0
    return order, begins


def logged_rows(log: str, payload: pa.Schema, *, of: pa.Table | None, key: Definition) -> pa.Table:
    """Read the records of some rows from a log, or all of them."""
    schema = pa.schema([*CHANGE_SCHEMA, *payload])
    snapshot = snapshot_of(log)
    index = None if of is None else KeyIndex(of, key)
    ranges = None if of is None else KeyRanges(of, key)
    found: list[pa.Table] = []
    for file in snapshot.files.values() if snapshot else ():
        if snapshot is None or (ranges is not None and not ranges.may_be_in(file)):
            continue
        rows = with_old_keys(snapshot.read(file, schema), partial(_envelopes, snapshot, file))
        found.append(rows if index is None else rows.filter(pa.array(index.find(rows) >= 0)))
    return pa.concat_tables([pa.schema([*schema, OLD_KEY]).empty_table(), *found])


def _envelopes(snapshot: Snapshot, file: DataFile) -> pa.ChunkedArray:
    return snapshot.read(file, pa.schema([pa.field("_envelope", pa.string())])).column(0)
