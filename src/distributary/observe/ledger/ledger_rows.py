"""The ledger's rows as dataclasses, their sums by table and rule, and search conditions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from distributary.model.change import OP_COLUMNS
from distributary.model.manifest import FINGERPRINT_BITS, Counts, SourceRange, app_id

PARKED = "parked"
RESUMED = "resumed"
"""The outcome in the row of a parked table that was published later."""

ACCEPTED = "accepted"
"""The outcome in the row of an accepted table, which belongs to no batch."""

BATCH_KEY = ("pipeline", "life", "lane", "batch")
BatchKey = tuple[str, str, str, int]
"""Pipeline, life, lane, number."""
LaneKey = tuple[str, str, str]
"""Pipeline, life, lane."""
TableKey = tuple[str, str]
"""Pipeline, table."""


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
    """The number of batches; more than one in a sum of old batches up to this one."""
    requests: int | None = None
    """The driver's requests to buckets; None without a bucket, and in rows of earlier versions."""
    event_seconds: float | None = None
    """The age of its newest record by the record's time, if that is clearly wrong."""
    filtered: int = 0

    @property
    def key(self) -> BatchKey:
        """Return the key of the batch."""
        return (self.pipeline, self.life, self.lane, self.batch)

    @property
    def counts(self) -> Counts:
        """Return the equation as it was when the batch was settled."""
        placed = self.written, self.dead_lettered, self.parked
        return Counts(self.read, *placed, self.skipped, self.filtered)

    @property
    def seconds(self) -> float:
        """Return the duration of the batch."""
        return max((self.finished_at - self.started_at).total_seconds(), 0.0)

    @property
    def steps(self) -> dict[str, float]:
        """Return the seconds by step."""
        return {
            "plan": self.plan_seconds,
            "stage": self.stage_seconds,
            "manifest": self.manifest_seconds,
            "publish": self.publish_seconds,
        }


@dataclass(frozen=True, slots=True)
class TableRow:
    """The result of one batch for one table."""

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
    """Whether records count as written, or as parked, in this table."""
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
    """For a log and its merged tables: the events by kind."""
    updates: int | None = None
    deletes: int | None = None
    reads: int | None = None
    truncates: int | None = None
    last_event: datetime | None = None
    """The source's time of the newest change in the batch."""
    expectations: tuple[Mapping[str, Any], ...] | None = None
    """The results of rules, in the form of the ledger; None without rules."""
    filtered: int = 0
    """The source records that conditions of `shape` kept out of the table."""

    @property
    def key(self) -> BatchKey:
        """Return the key of its batch."""
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
    """The sums of a table over all batches; parked batches are not in its rows."""

    pipeline: str
    table: str
    role: str
    type: str
    path: str
    records: int
    rows: int | None
    """The number of rows; None for a merged table that is missing or has no statistics."""
    bytes: int
    columns: int
    batches: int
    version: int | None
    first_seen: datetime
    last_commit: datetime | None
    """The time of the last commit; None if all of its batches are parked."""
    schema_ids: tuple[int, ...] = ()
    parked_batches: int = 0
    parked_records: int = 0
    error: str = ""
    """The reason for parking."""
    changes: Mapping[str, int] = field(default_factory=dict)
    """For a log and its merged tables: the events by kind, without parked batches."""
    last_event: datetime | None = None
    """The source's time of the newest change in the table."""
    last_event_at: datetime | None = None
    """The time at which that change was committed."""

    @property
    def key(self) -> TableKey:
        """Return the key of the table: several pipelines may write to a table of the same name."""
        return (self.pipeline, self.table)

    def freshness(self, now: datetime) -> float | None:
        """Return the seconds since the last commit."""
        return None if self.last_commit is None else (now - self.last_commit).total_seconds()


@dataclass(frozen=True, slots=True)
class NewestBatch:
    """The newest settled batch of a lane in one life of its pipeline."""

    pipeline: str
    life: str
    lane: str
    batch: int
    finished_at: datetime

    @property
    def key(self) -> LaneKey:
        """Return the key of the lane."""
        return (self.pipeline, self.life, self.lane)


@dataclass(frozen=True, slots=True)
class LastCommit:
    """The state of a table for a lane, by the settled batches in the ledger."""

    pipeline: str
    life: str
    lane: str
    table: str
    role: str
    type: str
    path: str
    batch: int | None
    """The newest batch with a commit; None if there is none."""
    version: int | None
    """The table's version by that commit."""
    accepted: int | None
    """The newest batch when the table was last accepted; None if never."""
    accepted_version: int | None
    """The table's version then."""
    since: datetime
    """The time at which its first batch was settled."""
    records: int
    written: int
    """The written rows, without parked batches."""
    rows: int
    """The written rows, corrected by the differences of accepted states."""
    filtered: int = 0
    """Records that conditions of `shape` kept out of it."""

    @property
    def app_id(self) -> str:
        """Return the application id of the lane's commits."""
        return app_id(self.pipeline, self.life, self.lane)

    @property
    def required(self) -> int | None:
        """Return the batch that the table must hold; None if it need not hold any."""
        old = self.batch is None or (self.accepted is not None and self.batch <= self.accepted)
        return None if old else self.batch


@dataclass(frozen=True, slots=True)
class FoundBatch:
    """A batch that read a given record, and the tables that may hold it."""

    batch: BatchRow
    tables: tuple[TableRow, ...]


def batches_of(rows: pa.Table) -> tuple[BatchRow, ...]:
    """Build the rows of the ledger's `batches`."""
    return tuple(
        BatchRow(
            **row
            | {"ranges": tuple(SourceRange(**one) for one in row["ranges"] or ())}
            | {"dead_letters": dict(row["dead_letters"] or ())}
            # Rows of before there was a count have none.
            | {"filtered": row.get("filtered") or 0}
        )
        for row in rows.to_pylist()
    )


def tables_of(rows: pa.Table) -> tuple[TableRow, ...]:
    """Build the rows of the ledger's `tables`."""
    return tuple(
        TableRow(
            **row
            | {name: tuple(row[name] or ()) for name in ("files", "schema_ids")}
            | {"expectations": tuple(row.get("expectations") or ()) or None}
            | {"error": row["error"] or "", "filtered": row.get("filtered") or 0}
        )
        for row in rows.to_pylist()
    )


def schemas_of(rows: pa.Table) -> tuple[SchemaRow, ...]:
    """Build the rows of the ledger's `schemas`."""
    return tuple(SchemaRow(**row) for row in rows.to_pylist())


# Sums by table over millions of rows, computed by the engine.

NUMBERING_SQL = """
SELECT pipeline, life, lane, max(batch) AS newest, sum(batches) AS batches
FROM ledger GROUP BY pipeline, life, lane ORDER BY pipeline, life, lane
"""

BY_LANE = 'pipeline, life, lane, "table"'


def schema_ids_sql(by: str, where: str = "true") -> str:
    """Build the query for schemas of records; `by` is the above, and no text is from outside."""
    ids = f"SELECT {by}, unnest(schema_ids) AS id FROM ledger WHERE {where}"  # noqa: S608
    return f"SELECT DISTINCT {by}, id FROM ({ids})"  # noqa: S608


def rules_sql(by: str, where: str = "true") -> str:
    """Return the query for the results of rules: the last row counts, with summed counters.

    As with rows, parked batches count from the row with the outcome `resumed`.
    """
    return f"""
        SELECT {by}, r['rule'] AS rule, first_value(r['action'] ORDER BY at DESC) AS action,
            sum(r['checked']) AS checked, sum(r['violated']) AS violated,
            first_value(r['unfit'] ORDER BY at DESC) AS unfit,
            first_value(r['example'] ORDER BY at DESC) FILTER (WHERE r['violated'] > 0) AS example,
            max(at) FILTER (WHERE r['violated'] > 0) AS last_violated, max(at) AS last_checked
        FROM (SELECT {by}, at, unnest(expectations) AS r
              FROM ledger WHERE outcome <> 'parked' AND {where})
        GROUP BY {by}, r['rule']
        """  # noqa: S608


NO_TABLE = -1
"""The version in the row of an accepted table that does not exist."""


def summaries(
    sums: pa.Table,
    schema_ids: pa.Table | None,
    parked: Iterable[TableRow],
    *,
    pipeline: str | None = None,
) -> tuple[TableSummary, ...]:
    """Join the sums with the parked batches, by the name of the table."""
    ids: dict[tuple[str, str], set[int]] = defaultdict(set)
    for row in () if schema_ids is None else schema_ids.to_pylist():
        ids[row["pipeline"], row["table"]].add(row["id"])
    waiting: dict[tuple[str, str], list[TableRow]] = defaultdict(list)
    for waits in parked:
        waiting[waits.pipeline, waits.table].append(waits)
    result = []
    plain = {each.name for each in fields(TableSummary)} | {*OP_COLUMNS.values()}
    for row in sums.select([name for name in sums.column_names if name in plain]).to_pylist():
        key = (row["pipeline"], row["table"])
        counts = {op: row.pop(column) for op, column in OP_COLUMNS.items()}
        if pipeline not in (None, key[0]):
            continue
        rows = waiting[key]
        summary = TableSummary(
            **row,
            schema_ids=tuple(sorted(ids[key])),
            parked_batches=len(rows),
            parked_records=sum(r.records for r in rows),
            # the first batch has the reason; later ones only wait behind it
            error=min(rows, key=lambda r: r.batch).error if rows else "",
            changes={op: count for op, count in counts.items() if count is not None},
        )
        result.append(replace(summary, version=None) if summary.version == NO_TABLE else summary)
    return tuple(sorted(result, key=lambda table: (table.table, table.pipeline)))


# Results of rules over all batches, computed by the engine. Pure.

_MOST_TABLES = 5


@dataclass(frozen=True, slots=True)
class TableRule:
    """The results of one rule in one table."""

    pipeline: str
    table: str
    rule: str
    action: str
    checked: int
    """The number of rows for which the rule was evaluated."""
    violated: int
    """The number of rows that broke the rule."""
    unfit: str
    """The reason why the rule was not applied in the last batch; empty if it was."""
    example: str
    """A record that broke the rule, in the form of `trace`; empty if none did."""
    last_violated: datetime | None
    last_checked: datetime


@dataclass(frozen=True, slots=True)
class RuleStatus:
    """The results of one rule in all tables of a pipeline."""

    rule: str
    action: str
    checked: int
    violated: int
    tables: int
    """The number of tables to which the rule is applied."""
    violating: tuple[TableRule, ...]
    """The tables with the most rows that broke the rule, the worst first."""
    violating_tables: int
    """The number of all such tables."""
    unfit: tuple[TableRule, ...]
    """Some of the tables to which the rule cannot be applied."""
    unfit_tables: int
    last_violated: datetime | None


def table_rules(found: pa.Table) -> tuple[TableRule, ...]:
    """Build the results from the answer of `rules_sql`, by rule and table."""
    rows = (
        TableRule(**{**row, "unfit": row["unfit"] or "", "example": row["example"] or ""})
        for row in found.to_pylist()
    )
    return tuple(sorted(rows, key=lambda row: (row.pipeline, row.rule, row.table)))


def rule_statuses(rules: Iterable[TableRule]) -> tuple[RuleStatus, ...]:
    """Return the status of each rule of a pipeline, the most broken first."""
    by_rule: dict[str, list[TableRule]] = defaultdict(list)
    for row in rules:
        by_rule[row.rule].append(row)
    found = [_status(name, rows) for name, rows in by_rule.items()]
    return tuple(sorted(found, key=lambda one: (-one.violated, one.rule)))


def _status(rule: str, rows: list[TableRule]) -> RuleStatus:
    broken = sorted((r for r in rows if r.violated), key=lambda r: (-r.violated, r.table))
    unfit = [r for r in rows if r.unfit]
    moments = [r.last_violated for r in broken if r.last_violated is not None]
    return RuleStatus(
        rule=rule,
        action=max(rows, key=lambda r: r.last_checked).action,
        checked=sum(r.checked for r in rows),
        violated=sum(r.violated for r in rows),
        tables=len(rows) - len(unfit),
        violating=tuple(broken[:_MOST_TABLES]),
        violating_tables=len(broken),
        unfit=tuple(unfit[:_MOST_TABLES]),
        unfit_tables=len(unfit),
        last_violated=max(moments, default=None),
    )


# The schemas that records of a table or topic were written with.


@dataclass(frozen=True, slots=True)
class SchemaInUse:
    """A schema in use, with rows and batches."""

    id: int
    subject: str | None
    """The subject; None if unknown."""
    subject_version: int | None
    rows: int | None
    """The number of rows; None if the ledger has only the sum of several schemas."""
    first_batch: int | None
    """The first batch; None if it is part of a sum of old batches."""
    last_batch: int | None
    """The last batch; None if all of its records are dead letters."""
    first_seen: datetime | None
    last_seen: datetime | None


def uses_of(
    found: pa.Table | None, tables: Iterable[tuple[str, str]], history: Iterable[SchemaRow]
) -> tuple[SchemaInUse, ...]:
    """The schemas of some tables, each named by its pipeline and its name; by id.

    `found` is what `Ledger.schema_use` says; `history` knows the subjects of ids.
    """
    wanted = set(tables)
    homes = {(r.pipeline, r.schema_id): r.schema for r in history}
    by_id: dict[int, SchemaInUse] = {}
    for row in () if found is None else found.to_pylist():
        pipeline, table = row.pop("pipeline"), row.pop("table")
        if (pipeline, table) not in wanted:
            continue
        # `chess-value v3`, as `WriterSchema.label` writes it
        subject, mark, version = homes.get((pipeline, row["id"]), "").rpartition(" v")
        named = (subject, int(version)) if mark and version.isdigit() else (None, None)
        use = SchemaInUse(subject=named[0], subject_version=named[1], **row)
        by_id[use.id] = _joined(by_id[use.id], use) if use.id in by_id else use
    return tuple(by_id[each] for each in sorted(by_id))


def with_rows(uses: Iterable[SchemaInUse], counts: Counter[int] | None) -> tuple[SchemaInUse, ...]:
    """Add counted rows, and schemas that only the count knows."""
    if counts is None:
        return tuple(uses)
    known = {use.id: replace(use, rows=counts[use.id]) for use in uses}
    for each in counts.keys() - known.keys():
        known[each] = SchemaInUse(each, None, None, counts[each], None, None, None, None)
    return tuple(known[each] for each in sorted(known))


def _joined(one: SchemaInUse, other: SchemaInUse) -> SchemaInUse:
    return SchemaInUse(
        one.id,
        one.subject or other.subject,
        one.subject_version or other.subject_version,
        None if one.rows is None or other.rows is None else one.rows + other.rows,
        _least(one.first_batch, other.first_batch),
        max(one.last_batch or 0, other.last_batch or 0),
        _least(one.first_seen, other.first_seen),
        max(filter(None, (one.last_seen, other.last_seen)), default=None),
    )


def _least(one: Any, other: Any) -> Any:
    return None if one is None or other is None else min(one, other)


# Conditions on ledger rows as expressions: values from outside are never part of a text.


def text(column: str) -> pc.Expression:
    """Return an expression for a column of texts.

    Merges and updates by deltalake write a newer kind of text into their files, which pyarrow
    compares with nothing: without the cast a filter fails on the first such file.
    """
    return pc.field(column).cast(pa.string())


def same(**values: str | int | None) -> pc.Expression | None:
    """Build the test that every column holds its value; None matches any value."""
    tests = [
        (text(name) == str(value)) if isinstance(value, str) else (pc.field(name) == value)
        for name, value in values.items()
        if value is not None
    ]
    return reduce(and_, tests) if tests else None


def both(*tests: pc.Expression | None) -> pc.Expression | None:
    """Combine tests; leave out those that are None."""
    present = [test for test in tests if test is not None]
    return reduce(and_, present) if present else None


def may_hold(offset: int) -> pc.Expression:
    """Return the condition for rows of `tables` whose offsets include this one or are unknown."""
    first, last = pc.field("first_offset"), pc.field("last_offset")
    return first.is_null() | ((first <= offset) & (last >= offset))


def flat_ranges(batches: pa.Table) -> pa.Table:
    """Return the source ranges of rows of `batches`, each with the number of its `row`."""
    ranges = batches["ranges"].combine_chunks()
    flat = pa.Table.from_struct_array(pc.list_flatten(ranges))
    return flat.append_column("row", pc.list_parent_indices(ranges))


def covering(batches: pa.Table, *, topic: str, partition: int, offset: int) -> pa.Table:
    """Return the rows of `batches` that read a record."""
    flat = flat_ranges(batches)
    hits = ranges_with(flat, topic=topic, partition=partition, offset=offset)
    return batches.take(pc.unique(hits["row"]))


def ranges_with(ranges: pa.Table, *, topic: str, partition: int, offset: int) -> pa.Table:
    """Return the ranges (`topic`, `partition`, `start`, `end`) that contain a record."""
    hits = ranges.filter(
        (pc.field("topic") == topic)
        & (pc.field("partition") == partition)
        & (pc.field("start") <= offset)
        & (pc.field("end") > offset)
    )
    if not len(hits):
        # a range of a files source: its topic is a folder, and a record's partition its file
        first = pc.shift_right(pc.field("start"), pc.scalar(FINGERPRINT_BITS))
        end = pc.shift_right(pc.field("end"), pc.scalar(FINGERPRINT_BITS))
        folder = pc.match_substring(pc.field("topic"), "/")
        hits = ranges.filter(folder & (first <= partition) & (end > partition))
    return hits
