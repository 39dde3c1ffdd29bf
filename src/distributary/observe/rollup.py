"""Old rows of the ledger become one row of sums each: detail expires, totals never do. Pure.

A batch of which something is still parked keeps its rows as they are, however old they get.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any

import pyarrow as pa

from distributary.model.ledger import BATCHES, TABLES
from distributary.model.manifest import SourceRange
from distributary.observe.rows import ACCEPTED, BatchKey, BatchRow, TableRow

# the engine sums: a year of old rows need not fit into memory
TABLES_SQL = """
SELECT pipeline, life, lane, "table", outcome = 'accepted' AS accepted,
       coalesce(max(batch) FILTER (WHERE version IS NOT NULL), max(batch)) AS batch,
       max(at) AS at, min(since) AS since, max(role) AS role,
       max(type) AS type, max(path) AS path, sum(records) AS records, bool_or(counted) AS counted,
       sum(rows) AS rows, sum(bytes) AS bytes,
       min(first_offset) AS first_offset, max(last_offset) AS last_offset,
       max(columns) AS columns,
       first_value(version ORDER BY at DESC, batch DESC) FILTER (WHERE version IS NOT NULL)
           AS version, sum(batches) AS batches,
       sum(inserts) AS inserts, sum(updates) AS updates, sum(deletes) AS deletes,
       sum(reads) AS reads, sum(truncates) AS truncates, max(last_event) AS last_event,
       count(*) AS summed
FROM ledger WHERE outcome <> 'parked' AND at < '{moment}'
GROUP BY pipeline, life, lane, "table", outcome = 'accepted'
"""

SCHEMA_IDS_SQL = """
SELECT DISTINCT pipeline, life, lane, "table", id
FROM (SELECT pipeline, life, lane, "table", unnest(schema_ids) AS id
      FROM ledger WHERE outcome <> 'parked' AND at < '{moment}')
"""

# what was said last about a rule holds, but for its counts
RULES_SQL = """
SELECT pipeline, life, lane, "table", r['rule'] AS rule,
       first_value(r['action'] ORDER BY at DESC) AS action,
       sum(r['checked']) AS checked, sum(r['violated']) AS violated,
       first_value(r['unfit'] ORDER BY at DESC) AS unfit,
       first_value(r['example'] ORDER BY at DESC) FILTER (WHERE r['violated'] > 0) AS example
FROM (SELECT pipeline, life, lane, "table", at, unnest(expectations) AS r
      FROM ledger WHERE outcome <> 'parked' AND at < '{moment}')
GROUP BY pipeline, life, lane, "table", r['rule']
"""

_TABLE = ("pipeline", "life", "lane", "table")


def for_rows_before(moment: datetime, sql: str) -> str:
    """One of the queries above, for rows from before a moment."""
    return sql.replace("{moment}", moment.isoformat())


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


def roll_tables(
    sums: pa.Table, schema_ids: pa.Table, rules: pa.Table, *, keep: Iterable[TableRow]
) -> pa.Table:
    """The sums as rows of the ledger, and the rows in `keep`, which still wait."""
    ids: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for row in schema_ids.to_pylist():
        ids[tuple(row[name] for name in _TABLE)].append(row["id"])
    counts: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rules.to_pylist():
        counts[tuple(row.pop(name) for name in _TABLE)].append(row)
    fixed = {"files": [], "error": ""}
    rolled = []
    for row in sums.drop_columns(["summed"]).to_pylist():
        key = tuple(row[name] for name in _TABLE)
        # what was taken as it is has neither schemas nor rules, and stays told apart
        taken = row.pop("accepted")
        about = {
            "outcome": ACCEPTED if taken else "published",
            "schema_ids": [] if taken else sorted(ids[key]),
            "expectations": None if taken else counts.get(key),
        }
        rolled.append({**row, **fixed, **about})
    kept = [{name: getattr(row, name) for name in TABLES.names} for row in keep]
    return pa.Table.from_pylist([*kept, *rolled], schema=TABLES)


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
