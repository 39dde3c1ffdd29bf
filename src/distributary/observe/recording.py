"""From a decided and published batch to the rows that the ledger keeps of it. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import pyarrow as pa

from distributary.errors import AccountingError
from distributary.model.change import ChangeFacts
from distributary.model.ledger import BATCHES, OP_COLUMNS, SCHEMAS, TABLES
from distributary.model.manifest import Counts, Manifest, SchemaUse, TableEntry
from distributary.observe.rows import ACCEPTED, PARKED, RESUMED, BatchKey, LastCommit, TableRow
from distributary.observe.summary import NO_TABLE

SCHEMA_SEEN = "seen"
"""Kind of change of a schema that changed nothing."""


class TableOutcome(Protocol):
    """What the ledger wants to know of a publisher's result for one table."""

    @property
    def table(self) -> str:
        """The table's name."""
        ...

    @property
    def outcome(self) -> str:
        """`published`, `skipped` or `parked`."""
        ...

    @property
    def version(self) -> int | None:
        """The table's version with this batch."""
        ...

    @property
    def error(self) -> str:
        """Why it was parked."""
        ...


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """When a batch began, and the seconds its steps took."""

    started_at: datetime
    plan: float = 0.0
    stage: float = 0.0
    manifest: float = 0.0
    publish: float = 0.0
    finished_at: datetime | None = None
    """When it was settled; None means now."""


def outcomes(
    manifest: Manifest, published: Iterable[TableOutcome]
) -> list[tuple[TableEntry, TableOutcome]]:
    """Each entry with its result; a table without one would be a batch that does not add up."""
    by_name = {result.table: result for result in published}
    missing = [e.table.name for e in manifest.tables if e.table.name not in by_name]
    if missing:
        raise AccountingError(
            "a batch is to be settled, but some of its tables have no outcome",
            where=f"{manifest.pipeline}, batch {manifest.batch}",
            evidence=f"{len(missing)} tables, the first is {missing[0]!r}",
            next_step="this is a defect in the publisher: please report it",
        )
    return [(entry, by_name[entry.table.name]) for entry in manifest.tables]


def batch_key(app_id: str, batch: int) -> BatchKey:
    """The batch that a transaction mark names: the inverse of `Manifest.app_id`."""
    pipeline, life, lane = app_id.removeprefix("distributary/").rsplit("/", 2)
    return (pipeline, life, lane, batch)


def check_balance(manifest: Manifest, counts: Counts) -> None:
    """A batch that does not add up never enters the ledger."""
    if not counts.balanced:
        raise AccountingError(
            "a batch does not add up",
            where=f"{manifest.pipeline}, batch {manifest.batch}",
            evidence=counts.equation(),
            next_step="nothing of this batch was settled; run again, and report it if it stays",
        )


def batch_row(
    manifest: Manifest,
    results: Sequence[tuple[TableEntry, TableOutcome]],
    *,
    times: BatchTimes,
    finished_at: datetime,
    counts: Counts,
    lag_records: int | None,
    lag_seconds: float | None,
    stages: int,
) -> pa.Table:
    """The row of `batches`."""
    committed = [entry for entry, result in results if result.outcome != PARKED]
    row = {
        "pipeline": manifest.pipeline,
        "life": manifest.life,
        "lane": manifest.lane,
        "batch": manifest.batch,
        "started_at": times.started_at,
        "finished_at": finished_at,
        "read": counts.read,
        "written": counts.written,
        "dead_lettered": counts.dead_lettered,
        "parked": counts.parked,
        "skipped": counts.skipped,
        "rows": sum(entry.rows for entry in committed),
        "files": sum(len(entry.files) for entry in committed),
        "tables": len(committed),
        "bytes": sum(file.size for entry in committed for file in entry.files),
        "lag_records": lag_records,
        "lag_seconds": lag_seconds,
        "plan_seconds": times.plan,
        "stage_seconds": times.stage,
        "manifest_seconds": times.manifest,
        "publish_seconds": times.publish,
        "stages": stages,
        "source_hash": manifest.source_hash,
        "ranges": [
            {name: getattr(r, name) for name in ("topic", "partition", "start", "end", "records")}
            for r in manifest.ranges
        ],
        "dead_letters": list(manifest.dead_letters.items()),
        "batches": 1,
    }
    return pa.Table.from_pylist([row], schema=BATCHES)


def table_rows(
    key: BatchKey,
    results: Sequence[tuple[TableEntry, TableOutcome]],
    *,
    at: datetime,
    counted: str = "",
    outcome: str | None = None,
) -> pa.Table:
    """The rows of `tables`, column by column: there may be thousands a batch.

    `counted` is the role of the tables whose records are in the equation; `outcome` stands for
    what the results say.
    """
    entries = [entry for entry, _ in results]
    batch = dict(zip(("pipeline", "life", "lane", "batch"), key, strict=True))
    fixed = {**batch, "at": at, "since": at, "batches": 1}
    columns: dict[str, list[Any]] = {
        "table": [e.table.name for e in entries],
        "role": [str(e.table.role) for e in entries],
        "type": [e.table.type for e in entries],
        "path": [e.table.path for e in entries],
        "records": [e.records for e in entries],
        "counted": [e.table.role == counted for e in entries],
        "rows": [e.rows for e in entries],
        "bytes": [sum(f.size for f in e.files) for e in entries],
        "files": [[f.path for f in e.files] for e in entries],
        "first_offset": [_first(e) for e in entries],
        "last_offset": [_last(e) for e in entries],
        "columns": [len(e.table.columns) for e in entries],
        "schema_ids": [sorted({i for f in e.files for i in f.schema_ids}) for e in entries],
        "version": [result.version for _, result in results],
        "outcome": [outcome or str(result.outcome) for _, result in results],
        "error": [result.error for _, result in results],
        **_events(entries),
        "expectations": [_rules(e) for e in entries],
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
    """A table that is taken as it is, for one lane that has written to it."""

    commit: LastCommit
    batch: int
    """The newest batch that the ledger has of the lane for this table."""
    rows: int
    """Rows that the table has more (or, negative, fewer) than were written to it."""
    version: int | None
    """The table's version now; None: there is no table."""


def accepted_row(taken: Accepted, *, at: datetime) -> pa.Table:
    """The row of `tables` that says so; it stands for no batch and no record."""
    known = taken.commit
    row = {
        **{name: getattr(known, name) for name in ("pipeline", "life", "lane", "table", "role")},
        "type": known.type,
        "path": known.path,
        "batch": taken.batch,
        "at": at,
        "since": at,
        "records": 0,
        "counted": False,
        "rows": taken.rows,
        "bytes": 0,
        "files": [],
        "columns": 0,
        "schema_ids": [],
        "error": "",
        "batches": 0,
        "outcome": ACCEPTED,
        "version": NO_TABLE if taken.version is None else taken.version,
    }
    return pa.Table.from_pylist([row], schema=TABLES)


def schema_rows(manifest: Manifest, *, at: datetime) -> pa.Table:
    """The rows of `schemas`: one per change, one for a schema that changed nothing."""
    rows = [row for use in manifest.schemas for row in _history(manifest, use, at)]
    return pa.Table.from_pylist(rows, schema=SCHEMAS)


def _events(entries: Sequence[TableEntry]) -> dict[str, list[int | None]]:
    facts = [entry.events for entry in entries]
    columns: dict[str, list[int | None]] = {
        column: [_count(told, op) for told in facts] for op, column in OP_COLUMNS.items()
    }
    return columns | {"last_event": [told.newest if told else None for told in facts]}


def _rules(entry: TableEntry) -> list[dict[str, Any]] | None:
    told = ("rule", "action", "checked", "violated", "unfit", "example")
    return [{name: getattr(count, name) for name in told} for count in entry.rules] or None


def _count(facts: ChangeFacts | None, op: str) -> int | None:
    return None if facts is None else facts.counts.get(op, 0)


def _first(entry: TableEntry) -> int | None:
    return min((f.first_offset for f in entry.files if f.first_offset >= 0), default=None)


def _last(entry: TableEntry) -> int | None:
    return max((f.last_offset for f in entry.files if f.last_offset >= 0), default=None)


def _history(manifest: Manifest, use: SchemaUse, at: datetime) -> list[dict[str, Any]]:
    fixed: Mapping[str, Any] = {
        "pipeline": manifest.pipeline,
        "batch": manifest.batch,
        "at": at,
        "type": use.type,
        "table": use.table,
        "schema_id": use.schema_id,
        "schema": use.label,
    }
    blank = {"kind": SCHEMA_SEEN, "column": "", "before": "", "after": "", "action": ""}
    changes = [
        {
            **fixed,
            "kind": str(change.kind),
            "column": change.column,
            "before": change.before,
            "after": change.after,
            "action": change.action,
            "text": change.describe(),
        }
        for change in use.changes
    ]
    return changes or [{**fixed, **blank, "text": "no change"}]


# Accounting in source records, such that nothing is lost or doubled in any sum. Pure.
#
# A record may be in several tables (bronze, its own, the wide one). The equation counts it in one
# of them: as parked while that table waits for it, as written as soon as it has it.

REPLAY = "replay"


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """A batch's own equation, as far as sums need it."""

    key: BatchKey
    counts: Counts

    @property
    def lane(self) -> str:
        """`stream` or `replay`."""
        return self.key[2]


def still_parked(rows: Iterable[TableRow]) -> tuple[TableRow, ...]:
    """Of rows with outcome parked or resumed: those parked ones that were not resumed."""
    rows = tuple(rows)
    resumed = {(row.key, row.table) for row in rows if row.outcome == RESUMED}
    return tuple(
        row for row in rows if row.outcome == PARKED and (row.key, row.table) not in resumed
    )


def waiting(parked: Iterable[TableRow]) -> dict[BatchKey, int]:
    """How many records of each batch still wait; 0 where only other tables wait for them."""
    records: dict[BatchKey, int] = defaultdict(int)
    for row in parked:
        records[row.key] += row.records if row.counted else 0
    return dict(records)


def total(batches: Iterable[BatchCounts], still_waiting: Mapping[BatchKey, int]) -> Counts:
    """The equation over many batches as it stands now.

    A resumed table moves its records from parked to written. A replay reads no new records: what
    it could decode moves from the dead letters to where it went.
    """
    result = Counts()
    for batch in batches:
        now = _settled_now(batch.counts, still_waiting.get(batch.key, 0))
        result = result + (_moved(now) if batch.lane == REPLAY else now)
    return result


def _settled_now(counts: Counts, still_waiting: int) -> Counts:
    resumed = counts.parked - min(counts.parked, still_waiting)
    return counts + Counts(written=resumed, parked=-resumed)


def _moved(replay: Counts) -> Counts:
    healed = replay.read - replay.dead_lettered
    return Counts(0, replay.written, -healed, replay.parked, replay.skipped)
