"""The health of tables, and the tables to look at first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from distributary.delta.log import load
from distributary.delta.tables import (
    reaching_table,
)
from distributary.errors import (
    DistributaryError,
    ErrorCode,
    LakeUnavailableError,
    OutsideLakeError,
)
from distributary.model import layout
from distributary.model.manifest import app_id
from distributary.model.table import Role
from distributary.observe.ledger.ledger_rows import TableKey, TableRow, TableSummary
from distributary.publish.formats.readable import ReadableTable
from distributary.publish.formats.table_format_entry import ask_table, open_readable
from distributary.publish.parking import Loss, loss_at_a_glance
from distributary.store.base import at, stay_inside

SHOWN = 15
_STALE_FACTOR = 10.0
_STALE_AT_LEAST = 600.0
_ENOUGH_BATCHES = 3


class Health(StrEnum):
    """The health of a table, the worst first."""

    MISSING = "missing"
    """The table does not exist, although batches were settled for it."""
    BEHIND = "behind"
    """The table's log ends before a settled batch, or with an empty commit."""
    PARKED = "parked"
    REFUSING = "refusing"
    """The table has more open dead letters than rows."""
    DOUBTFUL = "doubtful"
    """The kind of a column was decided on values of several kinds."""
    STALE = "stale"
    """The table got no rows for much longer than usual."""
    ABSENT = "absent"
    """The table does not exist, because no record has come for it yet."""
    HEALTHY = "healthy"


@dataclass(frozen=True, slots=True)
class TableHealth:
    """A table with its health."""

    table: TableSummary
    health: Health
    freshness_seconds: float | None
    """Seconds between its last commit and the pipeline's last batch."""
    overdue: float = 0.0
    """The time since its last rows, as a multiple of its usual pause."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """The tables to look at first, and the number of others."""

    shown: tuple[TableHealth, ...]
    total: int
    missing: int
    behind: int
    parked: int
    refusing: int
    doubtful: int
    stale: int
    absent: int
    healthy: int
    healthy_not_shown: int
    """Return the number of healthy tables that are not shown."""


def assess(
    table: TableSummary,
    *,
    as_of: datetime,
    loss: Loss | None = None,
    letters: int = 0,
    doubtful: bool = False,
) -> TableHealth:
    """Return the health of a table, measured by its own history: a rare type is not stale.

    `letters` are the open dead letters of its type; `doubtful` says that the kind of a column is.
    `as_of` is the pipeline's last batch: while it is stopped, its tables do not all become stale.
    """
    freshness = table.freshness(as_of)
    if loss is not None or table.parked_batches:
        return TableHealth(table, Health(loss or Health.PARKED), freshness)
    if table.role == Role.EACH and letters > (table.rows or 0):
        return TableHealth(table, Health.REFUSING, freshness)
    if table.version is None:
        return TableHealth(table, Health.ABSENT, freshness)
    if table.role == Role.DEAD_LETTERS:
        # a table that refuses records is not also reported as stale
        return TableHealth(table, Health.HEALTHY, freshness)
    if doubtful:
        return TableHealth(table, Health.DOUBTFUL, freshness)
    if freshness is None or table.last_commit is None or table.batches < _ENOUGH_BATCHES:
        return TableHealth(table, Health.HEALTHY, freshness)
    lived = (table.last_commit - table.first_seen).total_seconds()
    usual = max(lived / (table.batches - 1), 1.0)
    overdue = freshness / usual
    stale = overdue > _STALE_FACTOR and freshness > _STALE_AT_LEAST
    return TableHealth(table, Health.STALE if stale else Health.HEALTHY, freshness, overdue)


def rank(
    tables: Iterable[TableSummary],
    *,
    as_of: datetime,
    shown: int = SHOWN,
    losses: Mapping[TableKey, Loss] = MappingProxyType({}),
    letters: Mapping[str, int] = MappingProxyType({}),
    doubtful: Collection[str] = (),
) -> Ranking:
    """Sort the tables, the worst first.

    `letters` are open dead letters by type, `doubtful` the types with a column of a doubtful kind.
    """
    assessed = sorted(
        (
            assess(
                table,
                as_of=as_of,
                loss=losses.get(table.key),
                letters=letters.get(table.type, 0) if table.type else 0,
                doubtful=table.role == Role.EACH and table.type in doubtful,
            )
            for table in tables
        ),
        key=_badness,
    )
    return Ranking(
        shown=tuple(assessed[:shown]),
        total=len(assessed),
        **{str(health): sum(t.health is health for t in assessed) for health in Health},
        healthy_not_shown=sum(t.health is Health.HEALTHY for t in assessed[shown:]),
    )


def losses_of(lake: str, tables: Iterable[TableSummary]) -> dict[TableKey, Loss]:
    """Return missing and outdated tables of a local lake, by file names only.

    A table of several pipelines may lack batches of one of them only.
    """
    seen = ((t.key, loss_at_a_glance(layout.place(lake, t.path), t.version)) for t in tables)
    return {key: loss for key, loss in seen if loss is not None}


def _badness(item: TableHealth) -> tuple[int, float, float, str]:
    freshness = item.freshness_seconds if item.freshness_seconds is not None else float("inf")
    weights = {Health.PARKED: float(item.table.parked_records), Health.HEALTHY: 0.0}
    weight = weights.get(item.health, item.overdue)
    return (list(Health).index(item.health), -weight, -freshness, item.table.table)


# Rows and bytes of merged tables and aggregates. The ledger sums the rows that batches append, but
# merges also replace and delete rows, so these numbers come from the files in the table's log.

DERIVED = frozenset({str(Role.MERGED), str(Role.HISTORY), str(Role.AGGREGATE)})
_THREADS = 8


def written_rows(tables: Iterable[TableSummary]) -> int:
    """Return the number of written rows, without dead letters and derived tables."""
    apart = DERIVED | {str(Role.DEAD_LETTERS)}
    return sum(table.rows or 0 for table in tables if table.role not in apart)


def with_measures(lake: str, tables: Sequence[TableSummary]) -> tuple[TableSummary, ...]:
    """Return the summaries with the current rows and bytes of merged tables and histories."""

    def one(table: TableSummary) -> TableSummary:
        if table.role not in DERIVED:
            return table
        try:
            path = layout.place(lake, table.path)
            stay_inside(lake, path, f"{path}/_delta_log")
            with reaching_table(path):
                found = load(at(path))
        except (LakeUnavailableError, OutsideLakeError):
            # an unreadable table must not hide all others
            return replace(table, rows=None)
        if found is None:
            return replace(table, rows=None, columns=0)
        return replace(table, rows=found.count, bytes=found.size, columns=len(found.fields))

    with ThreadPoolExecutor(_THREADS) as pool:
        return tuple(pool.map(one, tables))


def filled_rows(lake: str, table: TableSummary, column: str) -> tuple[int, int] | None:
    """Return how many rows have a value in a column, and how many in its side columns.

    None where the statistics of the table do not say it.
    """
    try:
        path = layout.place(lake, table.path)
        stay_inside(lake, path, f"{path}/_delta_log")
        with reaching_table(path):
            found = load(at(path))
    except (LakeUnavailableError, OutsideLakeError):
        return None
    own = beside = 0
    for file in () if found is None else found.files.values():
        nulls, rows = file.statistics().get("nullCount") or {}, file.written
        empty = _nulls(nulls.get(column))
        if rows is None or empty is None:
            return None
        own += rows - empty
        counts = (n for name, n in nulls.items() if name.startswith(f"{column}__"))
        beside += sum(rows - n for n in counts if isinstance(n, int))
    return None if found is None else (own, beside)


def _nulls(count: object) -> int | None:
    """Return the number of nulls of a column: of a struct, of its field with the fewest."""
    if isinstance(count, dict):
        known = [n for n in map(_nulls, count.values()) if n is not None]
        return min(known, default=None)
    return count if isinstance(count, int) else None


def open_listed(
    table: str,
    path: str,
    *,
    version: int | None = None,
    next_step: str = "it was removed, or all of its batches are parked",
) -> ReadableTable:
    """Open a table that the ledger names. Raises DistributaryError where there is none."""
    found = open_readable(path, version)
    if found is None:
        raise DistributaryError(
            f"table {table} is in the ledger, but not in the lake",
            code=ErrorCode.NOT_FOUND,
            where=path,
            next_step=next_step,
        )
    return found


def head(fragment: ds.Fragment, schema: pa.Schema, columns: list[str], rows: int) -> pa.Table:
    """Read the first rows of a file."""
    # without read-ahead, so that only the first rows of each column are read
    options = ds.ParquetFragmentScanOptions(use_buffered_stream=True, pre_buffer=False)
    scanner = fragment.scanner(
        schema=schema,
        columns=columns,
        batch_size=rows,
        batch_readahead=0,
        fragment_readahead=0,
        fragment_scan_options=options,
    )
    return scanner.head(rows)


def files_of(path: str, row: TableRow) -> tuple[str, ...]:
    """Return the files that a batch added to a table, as far as its log shows.

    The ledger names files as they were staged, and for a Delta table they stay what they are.
    """
    app = app_id(row.pipeline, row.life, row.lane)
    files = ask_table(path, lambda entry: entry.files_of(path, app, row.batch))
    return row.files if files is None else files


def count_rows(table: ReadableTable, role: str, topic: str | None = None) -> Counter[int] | None:
    """Count rows by schema id in the table itself; None if its rows have no schema id."""
    name = "schema_id" if role == Role.BRONZE else "_schema_id"
    files = table.files
    needed = {name} if topic is None else {name, "_topic"}
    if files is None or not needed <= set(table.schema.names):
        return None
    where = None if topic is None else pc.field("_topic") == topic
    counts: Counter[int] = Counter()
    with reaching_table(table.path):
        for batch in files.scanner(columns=[name], filter=where).to_batches():
            for pair in pc.value_counts(batch.column(0)).to_pylist():
                if pair["values"] is not None:
                    counts[pair["values"]] += pair["counts"]
    return counts
