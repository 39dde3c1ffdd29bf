"""The ledger's rows as frozen facts, for everybody who reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa

from distributary.model.manifest import Counts, SourceRange, app_id

PARKED = "parked"
RESUMED = "resumed"
"""The outcome of a table that was parked, in the row that says it was published after all."""

ACCEPTED = "accepted"
"""The outcome of a row that is no batch's: the table counts as it was then, marks and rows."""

BatchKey = tuple[str, str, str, int]
"""Pipeline, life, lane, number."""


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One settled batch."""

    pipeline: str
    life: str
    lane: str
    batch: int
    started_at: datetime
    finished_at: datetime
    read: int
    written: int
    dead_lettered: int
    parked: int
    skipped: int
    rows: int
    files: int
    tables: int
    bytes: int
    lag_records: int | None
    lag_seconds: float | None
    plan_seconds: float
    stage_seconds: float
    manifest_seconds: float
    publish_seconds: float
    stages: int
    source_hash: str
    ranges: tuple[SourceRange, ...] = ()
    dead_letters: Mapping[str, int] = field(default_factory=dict)
    batches: int = 1
    """More than one: the sum of old batches up to this number."""

    @property
    def key(self) -> BatchKey:
        """What names the batch."""
        return (self.pipeline, self.life, self.lane, self.batch)

    @property
    def counts(self) -> Counts:
        """The equation as it was when the batch was settled."""
        return Counts(self.read, self.written, self.dead_lettered, self.parked, self.skipped)

    @property
    def seconds(self) -> float:
        """How long the batch took."""
        return max((self.finished_at - self.started_at).total_seconds(), 0.0)

    @property
    def steps(self) -> dict[str, float]:
        """Seconds by step."""
        return {
            "plan": self.plan_seconds,
            "stage": self.stage_seconds,
            "manifest": self.manifest_seconds,
            "publish": self.publish_seconds,
        }


@dataclass(frozen=True, slots=True)
class TableRow:
    """What one batch did to one table."""

    pipeline: str
    life: str
    lane: str
    batch: int
    at: datetime
    table: str
    role: str
    type: str
    path: str
    records: int
    counted: bool
    """A record may be in several tables; in these it counts as written, or as parked."""
    rows: int
    bytes: int
    files: tuple[str, ...]
    first_offset: int | None
    last_offset: int | None
    columns: int
    schema_ids: tuple[int, ...]
    version: int | None
    outcome: str
    error: str
    batches: int
    since: datetime
    inserts: int | None = None
    """Of a log, and of tables made of it: its events by kind."""
    updates: int | None = None
    deletes: int | None = None
    reads: int | None = None
    truncates: int | None = None
    last_event: datetime | None = None
    """When the source made the newest change of the batch."""
    expectations: tuple[Mapping[str, Any], ...] | None = None
    """What rules have found among its rows, as the ledger has it; None where there are none."""

    @property
    def key(self) -> BatchKey:
        """What names its batch."""
        return (self.pipeline, self.life, self.lane, self.batch)


@dataclass(frozen=True, slots=True)
class SchemaRow:
    """One line of the schema history."""

    pipeline: str
    batch: int
    at: datetime
    type: str
    table: str
    schema_id: int
    schema: str
    kind: str
    column: str
    before: str
    after: str
    action: str
    text: str


@dataclass(frozen=True, slots=True)
class TableSummary:
    """A table, over all its batches. What is parked is not in its rows."""

    pipeline: str
    table: str
    role: str
    type: str
    path: str
    records: int
    rows: int | None
    """None: a table that is made of a log and is not there, or does not tell."""
    bytes: int
    columns: int
    batches: int
    version: int | None
    first_seen: datetime
    last_commit: datetime | None
    """None: everything it ever got is parked."""
    schema_ids: tuple[int, ...] = ()
    parked_batches: int = 0
    parked_records: int = 0
    error: str = ""
    """Why it is parked."""
    changes: Mapping[str, int] = field(default_factory=dict)
    """Of a log, and of tables made of it: its events by kind. What is parked is not in it."""
    last_event: datetime | None = None
    """When the source made the newest change that is in the table."""
    last_event_at: datetime | None = None
    """When that change was committed."""

    def freshness(self, now: datetime) -> float | None:
        """Seconds since its last commit."""
        return None if self.last_commit is None else (now - self.last_commit).total_seconds()


@dataclass(frozen=True, slots=True)
class LastCommit:
    """What a lane of a pipeline has written to a table, as far as the ledger has settled it."""

    pipeline: str
    life: str
    lane: str
    table: str
    role: str
    type: str
    path: str
    batch: int | None
    """The newest batch with a commit of its own; None: it never had one."""
    version: int | None
    """The table's version by that commit."""
    accepted: int | None
    """The newest batch when the table was last taken as it is; None: never."""
    accepted_version: int | None
    """The table's version then."""
    since: datetime
    """When its first batch was settled."""
    records: int
    written: int
    """Rows; what is parked is not among them."""
    rows: int
    """The same, corrected by what the table differed by when it was taken as it is."""

    @property
    def app_id(self) -> str:
        """How the lane signs its commits."""
        return app_id(self.pipeline, self.life, self.lane)

    @property
    def required(self) -> int | None:
        """The batch that the table must hold; None where it need not hold any."""
        old = self.batch is None or (self.accepted is not None and self.batch <= self.accepted)
        return None if old else self.batch


@dataclass(frozen=True, slots=True)
class FoundBatch:
    """A batch that read a given record, and the tables that may hold it."""

    batch: BatchRow
    tables: tuple[TableRow, ...]


def batches_of(rows: pa.Table) -> tuple[BatchRow, ...]:
    """The rows of the ledger's `batches`."""
    return tuple(_batch(row) for row in rows.to_pylist())


def tables_of(rows: pa.Table) -> tuple[TableRow, ...]:
    """The rows of the ledger's `tables`."""
    return tuple(_table(row) for row in rows.to_pylist())


def schemas_of(rows: pa.Table) -> tuple[SchemaRow, ...]:
    """The rows of the ledger's `schemas`."""
    return tuple(SchemaRow(**row) for row in rows.to_pylist())


def _batch(row: dict[str, Any]) -> BatchRow:
    ranges = tuple(SourceRange(**item) for item in row["ranges"] or ())
    return BatchRow(**{**row, "ranges": ranges, "dead_letters": dict(row["dead_letters"] or ())})


def _table(row: dict[str, Any]) -> TableRow:
    files, ids = tuple(row["files"] or ()), tuple(row["schema_ids"] or ())
    rules = tuple(row["expectations"]) if row.get("expectations") else None
    told = {"files": files, "schema_ids": ids, "expectations": rules}
    return TableRow(**{**row, **told, "error": row["error"] or ""})
