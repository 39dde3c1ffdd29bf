"""One line per table out of millions of ledger rows: the engine sums, this module names. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import pyarrow as pa

from distributary.model.ledger import OP_COLUMNS
from distributary.observe.rows import TableRow, TableSummary

# what is parked is not in the table; its rows count from the row that says `resumed`
SUMMARY_SQL = """
SELECT pipeline, "table",
       max(role) AS role, max(type) AS type, max(path) AS path, max(columns) AS columns,
       sum(CASE WHEN outcome = 'parked' THEN 0 ELSE records END) AS records,
       sum(CASE WHEN outcome = 'parked' THEN 0 ELSE rows END) AS rows,
       sum(CASE WHEN outcome = 'parked' THEN 0 ELSE bytes END) AS bytes,
       sum(CASE WHEN outcome = 'parked' THEN 0 ELSE batches END) AS batches,
       sum(CASE WHEN outcome = 'parked' THEN 1 ELSE 0 END) AS parked,
       first_value(version ORDER BY at DESC, batch DESC)
           FILTER (WHERE outcome <> 'parked' AND version IS NOT NULL) AS version,
       max(CASE WHEN outcome IN ('parked', 'accepted') THEN NULL ELSE at END) AS last_commit,
       min(since) AS first_seen,
       sum(inserts) FILTER (WHERE outcome <> 'parked') AS inserts,
       sum(updates) FILTER (WHERE outcome <> 'parked') AS updates,
       sum(deletes) FILTER (WHERE outcome <> 'parked') AS deletes,
       sum(reads) FILTER (WHERE outcome <> 'parked') AS reads,
       sum(truncates) FILTER (WHERE outcome <> 'parked') AS truncates,
       max(last_event) FILTER (WHERE outcome <> 'parked') AS last_event,
       first_value(at ORDER BY last_event DESC NULLS LAST, at)
           FILTER (WHERE outcome <> 'parked' AND last_event IS NOT NULL) AS last_event_at
FROM ledger GROUP BY pipeline, "table"
"""

LAST_COMMITS_SQL = """
SELECT pipeline, life, lane, "table",
       max(role) AS role, max(type) AS type, max(path) AS path,
       max(batch) FILTER (WHERE outcome NOT IN ('parked', 'accepted') AND version IS NOT NULL)
           AS batch,
       first_value(version ORDER BY batch DESC)
           FILTER (WHERE outcome NOT IN ('parked', 'accepted') AND version IS NOT NULL) AS version,
       max(batch) FILTER (WHERE outcome = 'accepted') AS accepted,
       first_value(version ORDER BY at DESC) FILTER (WHERE outcome = 'accepted')
           AS accepted_version,
       min(since) AS since,
       sum(CASE WHEN outcome = 'parked' THEN 0 ELSE records END) AS records,
       sum(CASE WHEN outcome IN ('parked', 'accepted') THEN 0 ELSE rows END) AS written,
       sum(CASE WHEN outcome = 'parked' THEN 0 ELSE rows END) AS rows
FROM ledger GROUP BY pipeline, life, lane, "table"
"""

SCHEMA_IDS_SQL = """
SELECT DISTINCT pipeline, "table", id
FROM (SELECT pipeline, "table", unnest(schema_ids) AS id FROM ledger)
"""

NO_TABLE = -1
"""The version of a table that was taken as it is when it was not there."""

_Key = tuple[str, str]


def summaries(
    sums: pa.Table,
    schema_ids: pa.Table | None,
    parked: Iterable[TableRow],
    *,
    pipeline: str | None = None,
) -> tuple[TableSummary, ...]:
    """Joins the sums with what is still parked; by name of the table."""
    ids = _ids_by_table(schema_ids)
    waiting: dict[_Key, list[TableRow]] = defaultdict(list)
    for row in parked:
        waiting[(row.pipeline, row.table)].append(row)
    result = []
    for row in sums.drop_columns(["parked"]).to_pylist():
        key = (row["pipeline"], row["table"])
        if pipeline is not None and key[0] != pipeline:
            continue
        rows = waiting.get(key, [])
        counts = {op: row.pop(column) for op, column in OP_COLUMNS.items()}
        if row["version"] == NO_TABLE:
            row["version"] = None
        result.append(
            TableSummary(
                **row,
                schema_ids=tuple(ids.get(key, ())),
                parked_batches=len(rows),
                parked_records=sum(r.records for r in rows),
                # why it was parked: batches after the first one only wait behind it
                error=min(rows, key=lambda r: r.batch).error if rows else "",
                changes={op: count for op, count in counts.items() if count is not None},
            )
        )
    return tuple(sorted(result, key=lambda table: (table.table, table.pipeline)))


def _ids_by_table(schema_ids: pa.Table | None) -> Mapping[_Key, list[int]]:
    ids: dict[_Key, list[int]] = defaultdict(list)
    if schema_ids is not None:
        for row in schema_ids.to_pylist():
            ids[(row["pipeline"], row["table"])].append(row["id"])
    return {key: sorted(found) for key, found in ids.items()}
