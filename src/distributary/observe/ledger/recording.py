"""The ledger's rows of a settled batch, and the sums that replace old rows. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

import pyarrow as pa

from distributary.errors import AccountingError
from distributary.model.change import OP_COLUMNS
from distributary.model.manifest import Counts, Manifest, SchemaUse, SourceRange, TableEntry
from distributary.model.record import TIMESTAMP
from distributary.model.table import counts_records
from distributary.observe.ledger.ledger_rows import (
    ACCEPTED,
    BATCH_KEY,
    NO_TABLE,
    PARKED,
    RESUMED,
    BatchKey,
    BatchRow,
    LaneKey,
    LastCommit,
    TableRow,
)
from distributary.publish.base import Published

RANGE = pa.struct(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("records", pa.int64()),
    ]
)

RULE = pa.struct(
    [
        ("rule", pa.string()),
        ("action", pa.string()),
        ("checked", pa.int64()),
        ("violated", pa.int64()),
        ("unfit", pa.string()),
        ("example", pa.string()),
    ]
)
"""The result of a rule: counts, the reason if it was not applied, and the first record."""


def _schema(*columns: tuple[str, pa.DataType, str]) -> pa.Schema:
    """Build a schema of columns with names, types and comments."""
    return pa.schema([pa.field(n, type_, metadata={"comment": c}) for n, type_, c in columns])


BATCHES = _schema(
    ("pipeline", pa.string(), "name of the pipeline"),
    ("life", pa.string(), "life of its checkpoint"),
    ("lane", pa.string(), "stream, or replay of dead letters"),
    ("batch", pa.int64(), "number of the batch in its lane"),
    ("started_at", TIMESTAMP, "when the batch began"),
    ("finished_at", TIMESTAMP, "when it was finished"),
    ("read", pa.int64(), "records, by the source's own count"),
    ("written", pa.int64(), "records that reached their table"),
    ("dead_lettered", pa.int64(), "records in the dead letters"),
    ("parked", pa.int64(), "records waiting for a parked table"),
    ("skipped", pa.int64(), "records passed over by policy"),
    ("rows", pa.int64(), "rows written to all tables"),
    ("files", pa.int64(), "files committed"),
    ("tables", pa.int64(), "tables touched"),
    ("bytes", pa.int64(), "bytes of the files committed"),
    ("lag_records", pa.int64(), "records left at the source"),
    ("lag_seconds", pa.float64(), "from producing the newest record to the end of the batch"),
    ("plan_seconds", pa.float64(), "time in step plan"),
    ("stage_seconds", pa.float64(), "time in step stage"),
    ("manifest_seconds", pa.float64(), "time in step manifest"),
    ("publish_seconds", pa.float64(), "time in step publish"),
    ("stages", pa.int32(), "how often it had to be staged"),
    ("source_hash", pa.string(), "fingerprint of the ranges"),
    ("ranges", pa.list_(RANGE), "offsets it covers"),
    ("dead_letters", pa.map_(pa.string(), pa.int64()), "dead-lettered records by error code"),
    ("batches", pa.int64(), "1; more in a sum of old batches"),
    ("requests", pa.int64(), "what the driver asked of buckets; null without one"),
    ("event_seconds", pa.float64(), "age of that record by its own time, where that is far off"),
    ("filtered", pa.int64(), "records kept out by the conditions of `shape`"),
)

TABLES = _schema(
    ("pipeline", pa.string(), "name of the pipeline"),
    ("life", pa.string(), "life of its checkpoint"),
    ("lane", pa.string(), "stream or replay"),
    ("batch", pa.int64(), "number of the batch in its lane"),
    ("at", TIMESTAMP, "when it was finished"),
    ("table", pa.string(), "name of the table"),
    ("role", pa.string(), "bronze, each, unified, ..."),
    ("type", pa.string(), "type of the records"),
    ("path", pa.string(), "the table's folder"),
    ("records", pa.int64(), "source records in this batch"),
    ("counted", pa.bool_(), "its records are in the equation"),
    ("rows", pa.int64(), "rows in this batch"),
    ("bytes", pa.int64(), "bytes in this batch"),
    ("files", pa.list_(pa.string()), "files in this batch"),
    ("first_offset", pa.int64(), "lowest offset in this batch"),
    ("last_offset", pa.int64(), "highest offset in this batch"),
    ("columns", pa.int32(), "number of columns after it"),
    ("schema_ids", pa.list_(pa.int64()), "schemas in it"),
    ("version", pa.int64(), "table version it became"),
    (
        "outcome",
        pa.string(),
        "published, skipped, parked, (parked before) resumed; or accepted: the "
        "table was taken as it is, and rows says by how much it differed",
    ),
    ("error", pa.string(), "why it was parked"),
    ("batches", pa.int64(), "1; more in a sum of old batches"),
    ("since", TIMESTAMP, "as at; earlier in a sum"),
    *(
        (column, pa.int64(), f"events of kind {op} in this batch")
        for op, column in OP_COLUMNS.items()
    ),
    ("last_event", TIMESTAMP, "newest change, by the source"),
    ("expectations", pa.list_(RULE), "rules for its rows; null if there are none"),
    ("filtered", pa.int64(), "source records that conditions of `shape` keep out of it"),
)

SCHEMAS = _schema(
    ("pipeline", pa.string(), "name of the pipeline"),
    ("batch", pa.int64(), "batch in which it appeared"),
    ("at", TIMESTAMP, "when"),
    ("type", pa.string(), "type of the records"),
    ("table", pa.string(), "table that changed"),
    ("schema_id", pa.int64(), "schema that brought it"),
    ("schema", pa.string(), "its subject and version"),
    ("kind", pa.string(), "what changed"),
    ("column", pa.string(), "which column"),
    ("before", pa.string(), "type or name before"),
    ("after", pa.string(), "type or name after"),
    ("action", pa.string(), "what was done"),
    ("text", pa.string(), "the same in one line"),
)


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """The start of a batch, and the seconds of its steps."""

    started_at: datetime
    plan: float = 0.0
    stage: float = 0.0
    manifest: float = 0.0
    publish: float = 0.0
    finished_at: datetime | None = None
    """The time at which it was settled; None for now."""


def outcomes(
    manifest: Manifest, published: Iterable[Published]
) -> list[tuple[TableEntry, Published]]:
    """Pair each entry with its result; raise AccountingError if one is missing."""
    by_name = {result.table: result for result in published}
    missing = [e.table.name for e in manifest.tables if e.table.name not in by_name]
    if missing:
        raise AccountingError(
            "a batch is to be finished, but some of its tables have no outcome",
            where=f"{manifest.pipeline}, batch {manifest.batch}",
            evidence=f"{len(missing)} tables, the first is {missing[0]!r}",
            next_step="this is a defect in the publisher: please report it",
        )
    return [(entry, by_name[entry.table.name]) for entry in manifest.tables]


def batch_key(app_id: str, batch: int) -> BatchKey:
    """Parse the batch of a transaction mark, as `Manifest.app_id` wrote it."""
    pipeline, life, lane = app_id.removeprefix("distributary/").rsplit("/", 2)
    return (pipeline, life, lane, batch)


def check_balance(manifest: Manifest, counts: Counts) -> None:
    """Raise AccountingError for a batch that does not add up, so that it is not recorded."""
    if not counts.balanced:
        raise AccountingError(
            "a batch does not add up",
            where=f"{manifest.pipeline}, batch {manifest.batch}",
            evidence=counts.equation(),
            next_step="the ledger has no entry of this batch; run again, and report the error if "
            "it stays",
        )


def batch_row(
    manifest: Manifest,
    results: Sequence[tuple[TableEntry, Published]],
    *,
    times: BatchTimes,
    finished_at: datetime,
) -> dict[str, Any]:
    """Build the row of `batches`, without its counts, its lag and its stages."""
    committed = [entry for entry, result in results if result.outcome != PARKED]
    return {
        "pipeline": manifest.pipeline,
        "life": manifest.life,
        "lane": manifest.lane,
        "batch": manifest.batch,
        "started_at": times.started_at,
        "finished_at": finished_at,
        "rows": sum(entry.rows for entry in committed),
        "files": sum(len(entry.files) for entry in committed),
        "tables": len(committed),
        "bytes": sum(file.size for entry in committed for file in entry.files),
        "plan_seconds": times.plan,
        "stage_seconds": times.stage,
        "manifest_seconds": times.manifest,
        "publish_seconds": times.publish,
        "source_hash": manifest.source_hash,
        "ranges": [asdict(each) for each in manifest.ranges],
        "dead_letters": list(manifest.dead_letters.items()),
        "batches": 1,
    }


def table_rows(
    key: BatchKey,
    results: Sequence[tuple[TableEntry, Published]],
    *,
    at: datetime,
    counted: str = "",
    outcome: str | None = None,
) -> pa.Table:
    """Build the rows of `tables`, column by column: a batch may have thousands.

    `counted` is the role of the tables whose records are in the equation; `outcome` replaces the
    outcomes of the results.
    """
    entries = [entry for entry, _ in results]
    batch = dict(zip(BATCH_KEY, key, strict=True))
    fixed = {**batch, "at": at, "since": at, "batches": 1}
    columns: dict[str, list[Any]] = {
        "table": [e.table.name for e in entries],
        "role": [str(e.table.role) for e in entries],
        "type": [e.table.type for e in entries],
        "path": [e.table.path for e in entries],
        "records": [e.records for e in entries],
        "counted": [counts_records(e.table.role, counted) for e in entries],
        "rows": [e.rows for e in entries],
        "bytes": [sum(f.size for f in e.files) for e in entries],
        "files": [[f.path for f in e.files] for e in entries],
        "first_offset": [
            min((f.first_offset for f in e.files if f.first_offset >= 0), default=None)
            for e in entries
        ],
        "last_offset": [
            max((f.last_offset for f in e.files if f.last_offset >= 0), default=None)
            for e in entries
        ],
        "columns": [len(e.table.columns) for e in entries],
        "schema_ids": [sorted({i for f in e.files for i in f.schema_ids}) for e in entries],
        "version": [result.version for _, result in results],
        "outcome": [outcome or str(result.outcome) for _, result in results],
        "error": [result.error for _, result in results],
        **{
            column: [e.events.counts.get(op, 0) if e.events else None for e in entries]
            for op, column in OP_COLUMNS.items()
        },
        "last_event": [e.events.newest if e.events else None for e in entries],
        "expectations": [
            [{f.name: getattr(count, f.name) for f in RULE} for count in e.rules] or None
            for e in entries
        ],
        "filtered": [e.filtered for e in entries],
    }
    return pa.table(
        [
            pa.repeat(pa.scalar(fixed[f.name], f.type), len(results))
            if f.name in fixed
            else pa.array(columns[f.name], f.type)
            for f in TABLES
        ],
        schema=TABLES,
    )


@dataclass(frozen=True, slots=True)
class Accepted:
    """The acceptance of a table in its current state, for one lane that has written to it."""

    commit: LastCommit
    batch: int
    """The newest batch of the lane for this table in the ledger."""
    rows: int
    """The number of rows beyond those written to the table; negative if rows are missing."""
    version: int | None
    """The table's current version; None if there is no table."""


def accepted_row(taken: Accepted, *, at: datetime) -> pa.Table:
    """Build the row of `tables` for an accepted table, which counts as no batch and no record."""
    names = ("pipeline", "life", "lane", "table", "role", "type", "path")
    row = {name: getattr(taken.commit, name) for name in names} | {
        "batch": taken.batch,
        "at": at,
        "since": at,
        "rows": taken.rows,
        "outcome": ACCEPTED,
        "version": NO_TABLE if taken.version is None else taken.version,
        "counted": False,
        "error": "",
        **dict.fromkeys(("records", "bytes", "columns", "batches"), 0),
        "files": [],
        "schema_ids": [],
    }
    return pa.Table.from_pylist([row], schema=TABLES)


def schema_rows(manifest: Manifest, *, at: datetime) -> pa.Table:
    """Build the rows of `schemas`: one per change, and one for a schema without changes."""
    rows = [row for use in manifest.schemas for row in _history(manifest, use, at)]
    return pa.Table.from_pylist(rows, schema=SCHEMAS)


def _history(manifest: Manifest, use: SchemaUse, at: datetime) -> list[dict[str, Any]]:
    fixed = {
        "pipeline": manifest.pipeline,
        "batch": manifest.batch,
        "at": at,
        "type": use.type,
        "table": use.table,
        "schema_id": use.schema_id,
        "schema": use.label,
    }
    columns_shown = ("column", "before", "after", "action")
    if not use.changes:
        return [dict.fromkeys(columns_shown, "") | fixed | {"kind": "seen", "text": "no change"}]
    return [
        {name: getattr(change, name) for name in columns_shown}
        | {**fixed, "kind": str(change.kind), "text": change.describe()}
        for change in use.changes
    ]


# Accounting in source records. Pure. A record may be in several tables (bronze, its type's, the
# unified one). The equation counts it in one of them: as parked while that table waits for it, and
# as written when the table has it.


def still_parked(rows: Iterable[TableRow]) -> tuple[TableRow, ...]:
    """Return the parked rows that were not resumed."""
    rows = tuple(rows)
    resumed = {(row.key, row.table) for row in rows if row.outcome == RESUMED}
    return tuple(
        row for row in rows if row.outcome == PARKED and (row.key, row.table) not in resumed
    )


def waiting(parked: Iterable[TableRow]) -> dict[BatchKey, int]:
    """Return the number of records of each batch that are still parked.

    It is 0 if only other tables wait for them.
    """
    records: dict[BatchKey, int] = defaultdict(int)
    for row in parked:
        records[row.key] += row.records if row.counted else 0
    return dict(records)


def total(
    sums: Iterable[tuple[BatchKey | LaneKey, Counts]],
    still_waiting: Mapping[BatchKey | LaneKey, int],
) -> Counts:
    """Compute the current equation from the counts of batches or of whole lanes.

    A resumed table moves its records from parked to written. A replay reads no new records: what
    it could decode moves from the dead letters to where it went.
    """
    result = Counts()
    for key, counts in sums:
        resumed = counts.parked - min(counts.parked, still_waiting.get(key, 0))
        now = counts + Counts(written=resumed, parked=-resumed)
        if key[2] == "replay":
            now = replace(now, read=0, dead_lettered=now.dead_lettered - now.read)
        result = result + now
    return result


# Replacement of old rows by sums: details expire, totals do not. Pure. Batches with parked tables
# keep their rows, whatever their age.

# the engine sums, so that a year of old rows need not fit into memory
ROLLED_TABLES_SQL = """
SELECT pipeline, life, lane, "table", outcome = 'accepted' AS accepted,
       coalesce(max(batch) FILTER (WHERE version IS NOT NULL), max(batch)) AS batch,
       max(at) AS at, min(since) AS since, max(role) AS role,
       max(type) AS type, max(path) AS path, sum(records) AS records, bool_or(counted) AS counted,
       sum(rows) AS rows, sum(bytes) AS bytes, sum(filtered) AS filtered,
       min(first_offset) AS first_offset, max(last_offset) AS last_offset,
       max(columns) AS columns,
       first_value(version ORDER BY at DESC, batch DESC) FILTER (WHERE version IS NOT NULL)
           AS version, sum(batches) AS batches,
       sum(inserts) AS inserts, sum(updates) AS updates, sum(deletes) AS deletes,
       sum(reads) AS reads, sum(truncates) AS truncates, max(last_event) AS last_event,
       count(*) AS summed
FROM ledger WHERE outcome <> 'parked' AND {where}
GROUP BY pipeline, life, lane, "table", outcome = 'accepted'
"""

_TABLE = ("pipeline", "life", "lane", "table")


def roll_batches(batches: Iterable[BatchRow], *, keep: Collection[BatchKey]) -> pa.Table:
    """Sum rows of `batches` by pipeline, life and lane; leave the batches in `keep`."""
    kept: list[BatchRow] = []
    lanes: dict[tuple[str, str, str], list[BatchRow]] = defaultdict(list)
    for batch in batches:
        if batch.key in keep:
            kept.append(batch)
        else:
            lanes[(batch.pipeline, batch.life, batch.lane)].append(batch)
    rows = [*kept, *map(_sum_of, lanes.values())]
    return pa.Table.from_pylist(
        [asdict(row) | {"dead_letters": list(row.dead_letters.items())} for row in rows],
        schema=BATCHES,
    )


def roll_tables(
    sums: pa.Table, schema_ids: pa.Table, rules: pa.Table, *, keep: Iterable[TableRow]
) -> pa.Table:
    """Sum rows of `tables`; leave the rows of batches in `keep`, which have parked tables."""
    ids: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for row in schema_ids.to_pylist():
        ids[tuple(row[name] for name in _TABLE)].append(row["id"])
    counts: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rules.drop_columns(["last_violated", "last_checked"]).to_pylist():
        counts[tuple(row.pop(name) for name in _TABLE)].append(row)
    rolled = []
    for row in sums.drop_columns(["summed"]).to_pylist():
        key = tuple(row[name] for name in _TABLE)
        # rows of accepted tables have neither schemas nor rules, and stay separate
        taken = row.pop("accepted")
        about = {
            "files": [],
            "error": "",
            "outcome": ACCEPTED if taken else "published",
            "schema_ids": [] if taken else sorted(ids[key]),
            "expectations": None if taken else counts.get(key),
        }
        rolled.append(row | about)
    return pa.Table.from_pylist([*map(asdict, keep), *rolled], schema=TABLES)


def _sum_of(batches: list[BatchRow]) -> BatchRow:
    last = max(batches, key=lambda batch: batch.batch)
    dead: dict[str, int] = defaultdict(int)
    for batch in batches:
        for code, count in batch.dead_letters.items():
            dead[code] += count
    sums = {
        name: sum(getattr(batch, name) for batch in batches)
        for name in (
            *("read", "dead_lettered", "skipped", "filtered", "rows", "files", "bytes"),
            "batches",
            *("plan_seconds", "stage_seconds", "manifest_seconds", "publish_seconds", "stages"),
        )
    }
    return replace(
        last,
        **sums,
        # these batches have no parked tables, otherwise they were kept
        written=sum(batch.written + batch.parked for batch in batches),
        parked=0,
        tables=max(batch.tables for batch in batches),
        started_at=min(batch.started_at for batch in batches),
        finished_at=max(batch.finished_at for batch in batches),
        ranges=_joined(r for batch in batches for r in batch.ranges),
        dead_letters=dict(dead),
        requests=sum(batch.requests or 0 for batch in batches) or None,
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
