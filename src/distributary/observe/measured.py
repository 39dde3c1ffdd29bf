"""Rows and bytes of tables that are made of a log: a merge rewrites them, so they tell themselves.

The ledger adds up what batches append. What a merged table holds is not a sum of that; the files
that its own log names are.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from distributary.errors import LakeUnavailableError
from distributary.model.table import Role
from distributary.observe import layout
from distributary.observe.delta import StorageOptions, open_table, reaching
from distributary.observe.rows import TableSummary

DERIVED = frozenset({str(Role.MERGED), str(Role.HISTORY)})
_THREADS = 8


@dataclass(frozen=True, slots=True)
class Measured:
    """What a table holds now."""

    rows: int | None
    """None where its writer did not count."""
    bytes: int
    columns: int


def measure(
    lake: str, path: str, *, storage_options: StorageOptions | None = None
) -> Measured | None:
    """A table by the statistics in its log; None where there is no table."""
    table = open_table(layout.place(lake, path), storage_options)
    if table is None:
        return None
    with reaching(table.table_uri):
        files = pa.table(table.get_add_actions())
    counts = files.column("num_records")
    return Measured(
        rows=None if counts.null_count else pc.sum(counts).as_py() or 0,
        bytes=pc.sum(files.column("size_bytes")).as_py() or 0,
        columns=len(table.schema().fields),
    )


def with_measures(
    lake: str, tables: Sequence[TableSummary], *, storage_options: StorageOptions | None = None
) -> tuple[TableSummary, ...]:
    """The summaries, with the rows and bytes that merged tables and histories have by now."""

    def one(table: TableSummary) -> TableSummary:
        if table.role not in DERIVED:
            return table
        try:
            found = measure(lake, table.path, storage_options=storage_options)
        except LakeUnavailableError:
            # one table that cannot be read must not hide all others
            return replace(table, rows=None)
        if found is None:
            return replace(table, rows=None, columns=0)
        return replace(table, rows=found.rows, bytes=found.bytes, columns=found.columns)

    with ThreadPoolExecutor(_THREADS) as pool:
        return tuple(pool.map(one, tables))
