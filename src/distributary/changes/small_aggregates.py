"""New rows of many small aggregate tables, added by one statement for all that have equal rules.

A statement takes milliseconds however few rows it groups, and so does a sync of a file. A batch of
two hundred tables needs one of each, not two hundred. Tables for which this is not enough, and
those for which something fails, are left to `merge_aggregates`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from distributary.changes.aggregate_statements import AggregateStatements
from distributary.changes.aggregate_tables import (
    AggregateOrder,
    AggregateWork,
    change_of,
    open_work,
)
from distributary.changes.apply import written
from distributary.changes.merge_order import MergeResult
from distributary.delta.commit import Change, rewrite_together
from distributary.delta.difference import difference, read_rows
from distributary.delta.log import DataFile, Snapshot
from distributary.delta.parquet import UPLOADS
from distributary.model.cache import Cache

_log = logging.getLogger(__name__)
_MOST_GROUPS = 20_000
_MOST_BYTES = 2**20
"""Groups and bytes of a small aggregate table."""
_MOST_READ = 16 * 2**20
"""Bytes of the files with a table's new rows."""
_MOST_KEPT = 2**16
"""Bytes of the rows of a table that are kept for its next batch."""
_MOST_TABLES = 200
"""Tables that are written together: each has an open file, of which a process may have 1,024."""
_MOST_ROWS = 1_000_000
"""New rows from which tables are written before others are read."""


@dataclass(frozen=True, slots=True)
class _Addition:
    """The new rows for a small aggregate table, and its rows so far."""

    work: AggregateWork
    before: Snapshot
    file: DataFile
    """The only file of the table."""
    rows: pa.Table
    old: pa.Table


def merge_together(orders: Sequence[AggregateOrder]) -> dict[str, MergeResult]:
    """Bring small aggregate tables up to date; return the results by table.

    A table without a result is as it was.
    """
    results: dict[str, MergeResult] = {}
    waiting: list[_Addition] = []
    rows = 0
    for order in orders:
        match _additions_for(order):
            case MergeResult() as result:
                results[order.table] = result
            case _Addition() as addition:
                waiting.append(addition)
                rows += addition.rows.num_rows
        if len(waiting) >= _MOST_TABLES or rows > _MOST_ROWS:
            results |= _committed(waiting)
            waiting, rows = [], 0
    return results | _committed(waiting)


def _additions_for(order: AggregateOrder) -> _Addition | MergeResult | None:
    """Read what one statement needs to know of a table; None if it takes more than that."""
    try:
        work = open_work(order)
        if work is None:
            return MergeResult(order.table, -1)
        before, since = work.before, work.since
        if before is None or since is None or order.whole:
            return None
        if since == work.source.version:
            return MergeResult(order.table, before.version, skipped=True)
        file = _only_file(work, before)
        changes = difference(work.source, since)
        if file is None or changes is None or changes.left:
            return None
        if sum(came.file.size for came in changes.came) > _MOST_READ:
            return None
        inputs = work.aggregates.inputs
        rows = [piece for came in changes.came for piece in read_rows(work.source, came, inputs)]
        old = _written_rows(before, file)
        if old is None:
            old = before.read(file, work.aggregates.schema)
        return _Addition(work, before, file, pa.concat_tables([inputs.empty_table(), *rows]), old)
    except Exception as error:
        # the table is tried again alone, where its error is reported
        _log.debug("table %s is not written together with others: %s", order.table, error)
        return None


_KNOWN: Cache[tuple[str, pa.Table]] = Cache(1_000)
"""The file that this process has written last for a table, and its rows, by folder."""


def _written_rows(before: Snapshot, file: DataFile) -> pa.Table | None:
    """Return the rows of a file if this process has written it; files never change."""
    path, rows = _KNOWN.find(before.folder) or ("", None)
    return rows if path == file.path else None


def _only_file(work: AggregateWork, before: Snapshot) -> DataFile | None:
    """Return the file of a table that is so small that all of it is written again."""
    if before.no_changes() or len(before.fields) != len(work.aggregates.columns):
        return None
    files = list(before.files.values())
    small = [f for f in files if f.size <= _MOST_BYTES and (f.rows or 0) <= _MOST_GROUPS]
    known = [f for f in small if f.rows is not None and f.vector is None]
    return known[0] if len(files) == len(known) == 1 else None


def _committed(additions: Sequence[_Addition]) -> dict[str, MergeResult]:
    equal: dict[str, list[_Addition]] = {}
    for addition in additions:
        equal.setdefault(addition.work.aggregates.text, []).append(addition)
    try:
        changes = [pair for some in equal.values() for pair in _changes(some)]
        # an upload that failed is not known to be that of a certain table
        UPLOADS.finish()
    except OSError as error:
        _log.debug("%s tables are not written together: %s", len(additions), error)
        UPLOADS.forget()
        return {}
    done = rewrite_together([(addition.before, change) for addition, change in changes])
    tables = [addition.work.order.table for addition, _ in changes]
    return {
        table: MergeResult(table, after.version)
        for table, after in zip(tables, done, strict=True)
        if after is not None
    }


def _changes(additions: Sequence[_Addition]) -> Iterator[tuple[_Addition, Change]]:
    """Yield the changes of tables with equal rules, for which files are written."""
    try:
        made = list(_grouped(additions))
    except Exception as error:
        # such as a sum that is too large, in one of the tables
        _log.debug("%s tables are not written together: %s", len(additions), error)
        return
    for addition, (rows, groups) in zip(additions, made, strict=True):
        order, keys = addition.work.order, addition.work.aggregates.keys
        files = written([rows], folder=order.path, key=keys) if groups else []
        if len(files) == 1 and rows.nbytes <= _MOST_KEPT:
            # a copy: slices would keep the rows of all tables
            kept = rows.take(np.arange(len(rows)))
            _KNOWN.keep(addition.before.folder, (files[0].path, kept))
        removed = [addition.file] if groups else []
        yield addition, change_of(addition.work, groups, removed, files)


def _grouped(additions: Sequence[_Addition]) -> Iterator[tuple[pa.Table, int]]:
    """Yield for each table its rows, and the number of groups that changed, by two statements."""
    aggregates = additions[0].work.aggregates.of_several()
    statements = AggregateStatements.of(aggregates)
    number = aggregates.keys[0]
    rows = _numbered([one.rows for one in additions]).rename_columns(aggregates.inputs.names)
    old = _numbered([one.old for one in additions])
    old = old.select([old.num_columns - 1, *range(old.num_columns - 1)])
    old = old.rename_columns(aggregates.schema.names)
    new = statements.appended(rows, statements.states(old))
    stay = np.ones(old.num_rows, np.bool_)
    stay[statements.places(old, new)] = False
    both = pa.concat_tables([old.filter(pa.array(stay)), new])
    tables = both.column(number).to_numpy()
    order = np.argsort(tables, kind="stable")
    both = both.take(pa.array(order)).drop_columns([number])
    ends = np.searchsorted(tables[order], np.arange(len(additions) + 1))
    changed = np.bincount(new.column(number).to_numpy(), minlength=len(additions))
    for (start, end), groups in zip(pairwise(ends), changed, strict=True):
        yield both.slice(start, end - start), int(groups)


def _numbered(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of several tables, with the numbers of the tables as the last column."""
    counts = [table.num_rows for table in tables]
    numbers = np.repeat(np.arange(len(tables), dtype=np.int32), counts)
    return pa.concat_tables(tables).append_column("_number", pa.array(numbers))
