"""Old rows of the ledger become one row of sums each: detail expires, totals never do. Pure.

A batch of which something is still parked keeps its rows as they are, however old they get.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from distributary.model.ledger import BATCHES, TABLES
from distributary.model.manifest import SourceRange
from distributary.observe.rows import BatchKey, BatchRow, TableRow

_LANE = ("pipeline", "life", "lane")
_TABLE = (*_LANE, "table")
_SUMS = ("records", "rows", "bytes", "batches")
_NEWEST = ("batch", "at", "role", "type", "path", "last_offset", "columns", "version")
_OLDEST = ("first_offset", "since")


def roll_batches(batches: Iterable[BatchRow], *, keep: Collection[BatchKey]) -> pa.Table:
    """One row per pipeline, life and lane, and the rows of the batches in `keep`."""
    kept: list[BatchRow] = []
    lanes: dict[tuple[str, str, str], list[BatchRow]] = defaultdict(list)
    for batch in batches:
        if batch.key in keep:
            kept.append(batch)
        else:
            lanes[(batch.pipeline, batch.life, batch.lane)].append(batch)
    rows = [*kept, *(_sum_of(group) for group in lanes.values())]
    return pa.Table.from_pylist([_batch_dict(row) for row in rows], schema=BATCHES)


def roll_tables(done: pa.Table, *, keep: Iterable[TableRow]) -> pa.Table:
    """One row per pipeline, life, lane and table, and the rows in `keep`, which still wait."""
    sums = done.group_by(list(_TABLE), use_threads=False).aggregate(
        [
            *((name, "sum") for name in _SUMS),
            *((name, "max") for name in _NEWEST),
            *((name, "min") for name in _OLDEST),
        ]
    )
    ids = _schema_ids(done)
    rolled = []
    for row in sums.to_pylist():
        values = {name: row[name] for name in _TABLE}
        values |= {name: row[f"{name}_sum"] for name in _SUMS}
        values |= {name: row[f"{name}_max"] for name in _NEWEST}
        values |= {name: row[f"{name}_min"] for name in _OLDEST}
        values |= {"schema_ids": sorted(ids[tuple(row[n] for n in _TABLE)])}
        rolled.append({**values, "files": [], "outcome": "published", "error": ""})
    kept = [{name: getattr(row, name) for name in TABLES.names} for row in keep]
    return pa.Table.from_pylist([*kept, *rolled], schema=TABLES)


def _schema_ids(rows: pa.Table) -> dict[tuple[Any, ...], set[int]]:
    found: dict[tuple[Any, ...], set[int]] = defaultdict(set)
    lists = rows["schema_ids"].combine_chunks()
    flat = rows.select(list(_TABLE)).take(pc.list_parent_indices(lists))
    flat = flat.append_column("id", pc.list_flatten(lists))
    for row in flat.group_by([*_TABLE, "id"]).aggregate([]).to_pylist():
        found[tuple(row[name] for name in _TABLE)].add(row["id"])
    return found


def _sum_of(batches: list[BatchRow]) -> BatchRow:
    last = max(batches, key=lambda batch: batch.batch)
    dead: dict[str, int] = defaultdict(int)
    for batch in batches:
        for code, count in batch.dead_letters.items():
            dead[code] += count
    sums = {
        name: sum(getattr(batch, name) for batch in batches)
        for name in (
            *("read", "dead_lettered", "skipped", "rows", "files", "bytes", "batches"),
            *("plan_seconds", "stage_seconds", "manifest_seconds", "publish_seconds", "stages"),
        )
    }
    return replace(
        last,
        **sums,
        # nothing of these batches is parked any more, or they would have been kept
        written=sum(batch.written + batch.parked for batch in batches),
        parked=0,
        tables=max(batch.tables for batch in batches),
        started_at=min(batch.started_at for batch in batches),
        finished_at=max(batch.finished_at for batch in batches),
        ranges=_joined(r for batch in batches for r in batch.ranges),
        dead_letters=dict(dead),
    )


def _joined(ranges: Iterable[SourceRange]) -> tuple[SourceRange, ...]:
    by_partition: dict[tuple[str, int], SourceRange] = {}
    for r in ranges:
        known = by_partition.get((r.topic, r.partition), r)
        records = r.records if known is r else known.records + r.records
        by_partition[(r.topic, r.partition)] = SourceRange(
            r.topic, r.partition, min(known.start, r.start), max(known.end, r.end), records
        )
    return tuple(by_partition.values())


def _batch_dict(batch: BatchRow) -> dict[str, Any]:
    row = {name: getattr(batch, name) for name in BATCHES.names}
    ranges = [
        {name: getattr(r, name) for name in ("topic", "partition", "start", "end", "records")}
        for r in batch.ranges
    ]
    return {**row, "ranges": ranges, "dead_letters": list(batch.dead_letters.items())}
