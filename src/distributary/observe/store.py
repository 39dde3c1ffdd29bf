"""One Delta table of the ledger: rows go in exactly once, and it stays small by itself."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import (
    CommitProperties,
    DeltaTable,
    QueryBuilder,
    Schema,
    Transaction,
    write_deltalake,
)
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction

from distributary.delta.tables import (
    Storage,
    StorageOptions,
    conflict_attempts,
    open_table,
    reaching,
    read_rows,
)
from distributary.model.ledger import BATCHES, RULE, TABLES
from distributary.model.manifest import SourceRange
from distributary.model.record import TIMESTAMP
from distributary.observe.rows import ACCEPTED, BatchKey, BatchRow, TableRow

_log = logging.getLogger(__name__)

UPKEEP_EVERY = 50
"""Commits between two compactions."""
TARGET_FILE_SIZE = 4 << 20
"""Small enough that compacting again and again rewrites little, large enough to read fast."""

_STORED = "stored"
_WHOLE = "arrow_cast(NULL, 'Int64')"
_NULLS = {
    pa.int64(): _WHOLE,
    TIMESTAMP: """arrow_cast(NULL, 'Timestamp(Microsecond, Some("UTC"))')""",
    pa.list_(RULE): "CASE WHEN false THEN make_array(named_struct("
    f"'rule', '', 'action', '', 'checked', {_WHOLE}, 'violated', {_WHOLE}, "
    "'unfit', '', 'example', '')) END",
}
"""Null, in the engine's words, of the types of columns that were added to the ledger later."""

PROPERTIES = {
    # opening a table costs as much as there are commits after its newest checkpoint, and a
    # commit as much as there are files in its log (2,000 of them: 20 ms). Readers of the ledger
    # hold a version for seconds, and nobody asks for its past: neither has to be kept for long
    "delta.checkpointInterval": "20",
    "delta.logRetentionDuration": "interval 10 minutes",
    "delta.deletedFileRetentionDuration": "interval 1 hour",
}


class Store:
    """A table that only Distributary writes. Thread-safe."""

    def __init__(
        self,
        path: str,
        *,
        schema: pa.Schema,
        indexed: Sequence[str],
        description: str,
        storage_options: StorageOptions | None = None,
    ) -> None:
        """`indexed` are texts and numbers by which files can be skipped when reading."""
        self.path = path
        self.schema = schema
        self._indexed = tuple(indexed)
        self._description = description
        self._options = storage_options
        self._lock = threading.Lock()
        self._table: DeltaTable | None = None
        self._storage: Storage | None = None

    def append_once(self, rows: pa.Table, *, app_id: str, version: int) -> bool:
        """Appends the rows in one commit marked (app_id, version), unless that mark is there.

        A commit whose answer was lost, a second call after a crash, and a second process with
        the same mark all end with the rows in the table once. False: they were there before.
        """
        with self._writing():
            for attempt in conflict_attempts():
                with attempt:
                    table = self._newest()
                    mark = table.transaction_version(app_id)
                    if mark is not None and mark >= version:
                        return False
                    marks = CommitProperties(app_transactions=[Transaction(app_id, version)])
                    table.create_write_transaction(
                        [self._file_of(rows)], "append", table.schema(), commit_properties=marks
                    )
            if (table.version() + 1) % UPKEEP_EVERY == 0:
                self._upkeep()
            return True

    def replace_before(
        self, column: str, moment: datetime, rows: Callable[[], pa.Table | None]
    ) -> None:
        """Replaces every row whose `column` is before the moment, in one commit.

        `rows` reads the table and says what to put there (None: leave it). It is asked again when
        somebody else has added such rows meanwhile, so that none is lost.
        """
        with self._writing():
            for attempt in conflict_attempts():
                with attempt:
                    # the handle first: what is added after it, read or not, is a conflict
                    table = self._newest()
                    replacement = rows()
                    if replacement is None:
                        return
                    write_deltalake(
                        table,
                        replacement,
                        mode="overwrite",
                        # a name from our own schema and a time: nothing from outside
                        predicate=f"{column} < '{moment.isoformat()}'",
                    )

    def forget(self, column: str, value: str) -> None:
        """Deletes the rows that hold this value."""
        if open_table(self.path, self._options) is None:
            return
        with self._writing():
            for attempt in conflict_attempts():
                with attempt:
                    merge = self._newest().merge(
                        pa.table({column: [value]}),
                        f"t.{column} = s.{column}",
                        source_alias="s",
                        target_alias="t",
                    )
                    merge.when_matched_delete().execute()

    def read(
        self, columns: Sequence[str] | None = None, where: pc.Expression | None = None
    ) -> pa.Table:
        """Rows at the newest version; none where the table was never written."""
        table = open_table(self.path, self._options)
        if table is None:
            return self.schema.empty_table().select(list(columns or self.schema.names))
        return read_rows(table, columns=columns, where=where)

    def query(self, sql: str) -> pa.Table | None:
        """A fixed query over the table `ledger`, by the engine inside deltalake.

        For sums over millions of rows. Never put a value from outside into `sql`.
        """
        table = open_table(self.path, self._options)
        if table is None:
            return None
        missing = self._missing(table)
        with reaching(self.path):
            query = QueryBuilder().register(_STORED if missing else "ledger", table)
            return pa.table(query.execute(_padded(missing) + sql).read_all())

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._lock, reaching(self.path):
            try:
                yield
            except BaseException:
                # what this handle believes about the table may be wrong now
                self._table = None
                raise

    def _newest(self) -> DeltaTable:
        if self._table is None:
            self._table = open_table(self.path, self._options) or self._create()
            missing = self._missing(self._table)
            if missing:
                # a lake from before these columns: its rows have nothing to say about them
                self._table.alter.add_columns(Schema.from_arrow(pa.schema(missing)).fields)
        else:
            self._table.update_incremental()
        return self._table

    def _missing(self, table: DeltaTable) -> list[pa.Field]:
        """Columns that the table does not have yet."""
        known = {field.name for field in table.schema().fields}
        return [field for field in self.schema if field.name not in known]

    def _create(self) -> DeltaTable:
        return DeltaTable.create(
            self.path,
            self.schema,
            # of two processes that create it at once, the second takes the first's
            mode="ignore",
            description=self._description,
            configuration={
                **PROPERTIES,
                "delta.dataSkippingStatsColumns": ",".join(self._indexed),
            },
            storage_options=self._options,
        )

    def _file_of(self, rows: pa.Table) -> AddAction:
        # writing the file here and only committing it is twice as fast as the general writer,
        # whose cost grows with the number of files in the table
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, compression="zstd")
        data = sink.getvalue().to_pybytes()
        name = f"part-{uuid4().hex}.parquet"
        self._storage = self._storage or Storage(self.path, self._options)
        self._storage.put(name, data)
        now = time.time_ns() // 1_000_000
        # deltalake 1.6 takes an escaped character from above U+1FFFF for another one
        bounds = json.dumps(self._statistics(rows), ensure_ascii=False)
        return AddAction(name, len(data), {}, now, True, bounds)

    def _statistics(self, rows: pa.Table) -> dict[str, Any]:
        ends = {name: pc.min_max(rows[name]).as_py() for name in self._indexed}
        return {
            "numRecords": len(rows),
            "minValues": {name: end["min"] for name, end in ends.items()},
            "maxValues": {name: end["max"] for name, end in ends.items()},
            "nullCount": {name: rows[name].null_count for name in self._indexed},
        }

    def _upkeep(self) -> None:
        table = self._newest()
        try:
            table.optimize.compact(target_size=TARGET_FILE_SIZE)
            table.create_checkpoint()
            table.vacuum(dry_run=False, full=True)
            table.cleanup_metadata()
        except (DeltaError, OSError) as error:
            # another process tidies up at the same moment: the next turn makes good for it
            _log.info("ledger not compacted this time: %s", error)


def _padded(missing: Sequence[pa.Field]) -> str:
    """The table `ledger` with nulls for what the stored one has no columns for."""
    if not missing:
        return ""
    nulls = (f"{_NULLS[field.type]} AS {field.name}" for field in missing)
    return f"WITH ledger AS (SELECT *, {', '.join(nulls)} FROM {_STORED}) "  # noqa: S608


# Old rows of the ledger become one row of sums each: detail expires, totals never do. Pure.
#
# A batch of which something is still parked keeps its rows as they are, however old they get.

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
