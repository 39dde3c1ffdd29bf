"""The rows of a log that a merge looks at: what each says, about which row, and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from distributary.evolve.place import fold
from distributary.merge.conform import conform
from distributary.merge.definitions import definitions_of
from distributary.merge.keys import Definition
from distributary.merge.old_keys import OLD_KEY, old_keys_in
from distributary.merge.sequence import Flags, Ints
from distributary.model.change import CHANGE_COLUMNS

_ARRIVAL = pa.schema(
    [
        pa.field("_batch", pa.int64()),
        pa.field("_topic", pa.string()),
        pa.field("_partition", pa.int32()),
        pa.field("_offset", pa.int64()),
    ]
)
"""Where and when an event came in; a pipeline may have been told not to keep it."""
_READ = ("_op", "_deleted", "_key", "_seq", "_source_ts", "_hash", "_unchanged")
CHANGE_SCHEMA = pa.schema(
    [*(pa.field(c.name, c.type) for c in CHANGE_COLUMNS if c.name in _READ), *_ARRIVAL]
)
"""What is read of every event beside the source table's columns."""
_NOT_OWN = frozenset((*CHANGE_SCHEMA.names, OLD_KEY.name))


@dataclass(frozen=True)
class Events:
    """Rows of a log: the columns of CHANGE_SCHEMA, columns of the source table, and old keys."""

    rows: pa.Table

    @cached_property
    def own_names(self) -> list[str]:
        """The source table's columns."""
        return [name for name in self.rows.column_names if name not in _NOT_OWN]

    @cached_property
    def seq(self) -> pa.StructArray:
        """The place of each event."""
        return _one(self.rows.column("_seq"))

    @cached_property
    def truncates(self) -> Flags:
        """Which events empty the table."""
        found: Flags = _flags(pc.equal(self.rows.column("_op"), "truncate"))
        return found

    @cached_property
    def deletes(self) -> Flags:
        """After which events the row is gone."""
        named = _flags(pc.equal(self.rows.column("_op"), "delete"))
        return (named | _flags(self.rows.column("_deleted"))) & ~self.truncates

    @cached_property
    def keys(self) -> tuple[tuple[Definition, ...], Ints]:
        """The definitions of keys among the events, and which each has; -1 for none."""
        known, numbers = definitions_of(self.rows.column("_key"), self.own_names)
        return known, np.where(self.truncates, -1, numbers)

    @cached_property
    def left_out(self) -> dict[str, Flags]:
        """For each column that any event leaves out, which events do."""
        return left_out_in(self.rows.column("_unchanged"), self.own_names)

    @cached_property
    def asking(self) -> Ints:
        """Events that gave their row another key, and leave out what it had under the old one."""
        flags = _flags(pc.is_valid(self.rows.column(OLD_KEY.name)))
        return np.flatnonzero(flags & ~self.deletes & (self.keys[1] >= 0))

    def preference(self, among: Ints) -> Ints:
        """Numbers that tell which of events at one and the same place counts: the highest.

        What an earlier batch brought has been merged already; within a batch the last one counts,
        in the source's own order.
        """
        arrival = self.rows.select([*_ARRIVAL.names, "_hash"]).take(among)
        order = pc.sort_indices(
            arrival,
            sort_keys=[
                ("_batch", "descending"),
                *((name, "ascending") for name in ("_topic", "_partition", "_offset", "_hash")),
            ],
        )
        numbers = np.empty(len(among), np.int64)
        numbers[order.to_numpy()] = np.arange(len(among))
        return numbers


def left_out_in(unchanged: pa.ChunkedArray, columns: Sequence[str]) -> dict[str, Flags]:
    """For each of the columns that any row names as left out, which rows do."""
    lists = _one(unchanged)
    named = lists.flatten()
    if len(named) == 0:
        return {}
    parents = pc.list_parent_indices(lists).to_numpy()
    found: dict[str, Flags] = {}
    for name, column in left_out_names(unchanged, columns).items():
        flags = found.setdefault(column, np.zeros(len(lists), np.bool_))
        flags[parents[_flags(pc.equal(named, name))]] = True
    return found


def left_out_names(unchanged: pa.ChunkedArray, columns: Sequence[str]) -> dict[str, str]:
    """Each name that any row gives as left out, and the column that it means."""
    by_fold = {fold(column): column for column in reversed(columns)}
    exact = set(columns)
    names = pc.unique(_one(unchanged).flatten()).drop_null().to_pylist()
    meant = {name: name if name in exact else by_fold.get(fold(name)) for name in names}
    return {name: column for name, column in meant.items() if column is not None}


def read_events(files: Sequence[str], columns: pa.Schema) -> Events:
    """The events in Parquet files, with the given columns of the source table."""
    schema = pa.schema([*CHANGE_SCHEMA, *columns])
    parts = [_with_old_keys(file, read_file(file, schema)) for file in files]
    return Events(pa.concat_tables(parts or [pa.schema([*schema, OLD_KEY]).empty_table()]))


def _with_old_keys(path: str, rows: pa.Table) -> pa.Table:
    """What came with an event is long, and few leave values out: the others are not asked."""
    removes = pc.or_(pc.equal(rows.column("_op"), "delete"), rows.column("_deleted"))
    some = pc.greater(pc.list_value_length(rows.column("_unchanged")), 0)
    asked = np.flatnonzero(_flags(some) & ~_flags(removes))
    old: pa.Array = pa.nulls(rows.num_rows, OLD_KEY.type)
    if len(asked):
        envelopes = read_file(path, pa.schema([pa.field("_envelope", pa.string())]))
        old = old_keys_in(_one(envelopes.column(0)), asked)
    return rows.append_column(OLD_KEY, old)


def read_file(path: str, schema: pa.Schema, *, lenient: bool = False) -> pa.Table:
    """A Parquet file with exactly the columns of a schema: what it lacks is null."""
    with pq.ParquetFile(path) as file:
        have = set(file.schema_arrow.names)
        names = [name for name in schema.names if name in have]
        rows, size = file.read(columns=names), file.metadata.num_rows
    # a name with a dot in it also picks fields of other columns
    return conform(rows.select(names), schema, rows=size, lenient=lenient)


def _one(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays([*column.chunks, pa.array([], column.type)])


def _flags(values: pa.ChunkedArray | pa.Array) -> Flags:
    flags: Flags = pc.fill_null(values, False).to_numpy(zero_copy_only=False)
    return flags
