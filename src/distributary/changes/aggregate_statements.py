"""The prepared statements of aggregates, and the sums of the rows of a table, group by group."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.events.log_events import combined
from distributary.model.cache import Cache
from distributary.shape.aggregate_columns import Aggregates
from distributary.shape.evaluation import PreparedStatement

_MOST_WAITING = 500_000
"""Rows of partial results that are put together at once."""
_MOST_STATEMENTS = 500


class GroupSums:
    """Adds up the rows of a table, group by group."""

    def __init__(self, aggregates: Aggregates) -> None:
        self._statements = AggregateStatements.of(aggregates)
        self._waiting: list[pa.Table] = []
        self._size = 0

    def add(self, rows: pa.Table) -> None:
        """Add rows with the columns that the aggregates read."""
        if rows.num_rows:
            self.add_partial(self._statements.partial(rows))

    def add_partial(self, part: pa.Table) -> None:
        """Add partial results."""
        self._waiting.append(part)
        self._size += part.num_rows
        if self._size > _MOST_WAITING and len(self._waiting) > 1:
            self._waiting = [self.result()]
            self._size = self._waiting[0].num_rows

    def result(self) -> pa.Table:
        """Return one partial result for each group."""
        if len(self._waiting) == 1:
            return self._waiting[0]
        if not self._waiting:
            return self._statements.parts.empty_table()
        return self._statements.combined(pa.concat_tables(self._waiting))


class AggregateStatements:
    """The prepared statements of aggregates."""

    def __init__(self, aggregates: Aggregates) -> None:
        keys = [pa.field(group.name, group.type) for group, _ in aggregates.groups]
        states = [pa.field(f"_s{n}", state.type) for n, state in enumerate(aggregates.states)]
        self.keys = pa.schema(keys)
        """The columns of the group."""
        self.parts = pa.schema([*keys, *states])
        """The columns of partial results."""
        self.sided = self.parts.append(pa.field("_kind", pa.int8()))
        sides = [pa.field(f"_{side}{f.name[2:]}", f.type) for side in "pm" for f in states]
        self.net_schema = pa.schema([*keys, *sides])
        self._merged_schema = self.parts.append(pa.field("_lost", pa.bool_()))
        self._rows_schema = aggregates.schema
        self._partial = PreparedStatement(aggregates.partial, aggregates.inputs)
        self._combined = PreparedStatement(aggregates.combined, self.parts)
        self._rows = PreparedStatement(aggregates.rows, self.parts)
        self._stored = [*aggregates.keys, *(state.column for state in aggregates.states)]
        once = (True, False)
        self._net = {
            o: PreparedStatement(partial(aggregates.net, once=o), self.sided) for o in once
        }
        self._merged = {
            o: PreparedStatement(partial(aggregates.merged, once=o), self.net_schema, self.parts)
            for o in once
        }
        self._finished = {
            o: PreparedStatement(partial(aggregates.finished, once=o), self.net_schema, self.parts)
            for o in once
        }
        self._finished_schema = aggregates.schema.append(self.parts.field("_s0")).append(
            self._merged_schema.field("_lost")
        )
        self._appended = PreparedStatement(aggregates.appended, aggregates.inputs, self.parts)
        placed = self.keys.append(pa.field("_at", pa.int64()))
        self._places = PreparedStatement(partial(aggregates.among, "o._at"), placed, self.keys)
        self._among = PreparedStatement(partial(aggregates.among, "o.*"), self.parts, self.keys)
        self._compared = PreparedStatement(
            aggregates.compared, aggregates.schema, aggregates.schema
        )

    @classmethod
    def of(cls, aggregates: Aggregates) -> AggregateStatements:
        """Return the statements of aggregates; tables that agree share them."""
        return _KNOWN.get(aggregates.text, lambda: cls(aggregates))

    def partial(self, rows: pa.Table) -> pa.Table:
        """Return partial results of rows of the source table."""
        return self._partial(rows).cast(self.parts)

    def combined(self, parts: pa.Table) -> pa.Table:
        """Return one partial result for each group of several."""
        return self._combined(parts).cast(self.parts)

    def rows(self, parts: pa.Table) -> pa.Table:
        """Return the rows of the aggregate table."""
        return self._rows(parts).cast(self._rows_schema)

    def states(self, rows: pa.Table) -> pa.Table:
        """Return partial results from rows of the aggregate table."""
        columns = [rows.column(name) for name in self._stored]
        return pa.Table.from_arrays(columns, schema=self.parts)

    def net(self, came: pa.Table, left: pa.Table, *, once: bool) -> pa.Table:
        """Return the partial results of added and of removed rows, side by side."""
        if not left.num_rows:
            gone = [
                pa.nulls(came.num_rows, f.type) for f in self.parts if f.name not in self.keys.names
            ]
            return pa.Table.from_arrays([*came.columns, *gone], schema=self.net_schema)
        sides = [
            table.append_column(self.sided.field("_kind"), pa.repeat(pa.scalar(k, pa.int8()), n))
            for table, k in ((came, 1), (left, -1))
            for n in [table.num_rows]
        ]
        return self._net[once](pa.concat_tables(sides)).cast(self.net_schema)

    def merged(self, net: pa.Table, old: pa.Table, *, once: bool) -> pa.Table:
        """Return the new state of the groups in `net`, and whether it lost a bound."""
        return self._merged[once](net, old).cast(self._merged_schema)

    def finished(self, net: pa.Table, old: pa.Table, *, once: bool) -> pa.Table:
        """Return the new rows of the groups in `net`, with `_s0` and `_lost` behind them."""
        return self._finished[once](net, old).cast(self._finished_schema)

    def appended(self, rows: pa.Table, old: pa.Table) -> pa.Table:
        """Return the new rows of the groups of `rows` of the source table, where no row left."""
        done = self._appended(rows, old).cast(self._finished_schema)
        return done.drop_columns(["_s0", "_lost"])

    def places(self, rows: pa.Table, keys: pa.Table) -> npt.NDArray[np.int64]:
        """Return the numbers of the rows whose groups are in `keys`."""
        if len(self.keys) == 1:
            # null is a group, and groups are never floating numbers
            (name,) = self.keys.names
            among = pc.is_in(rows.column(name), value_set=combined(keys.column(name)))
            return np.flatnonzero(among.to_numpy())
        numbers = pa.array(np.arange(rows.num_rows))
        placed = rows.select(self.keys.names).append_column("_at", numbers)
        found = self._places(placed, keys.select(self.keys.names))
        places: npt.NDArray[np.int64] = np.sort(found.column(0).to_numpy())
        return places

    def among(self, parts: pa.Table, keys: pa.Table) -> pa.Table:
        """Return the partial results whose groups are in `keys`."""
        return self._among(parts, keys).cast(self.parts)

    def compared(self, found: pa.Table, expected: pa.Table) -> pa.Table:
        """Return the groups in which two tables differ, with the differences."""
        return self._compared(found, expected)


_KNOWN: Cache[AggregateStatements] = Cache(_MOST_STATEMENTS)
