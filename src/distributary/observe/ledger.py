"""The ledger: three Delta tables in the lake that say what was done, exactly once each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from distributary.model.ledger import BATCHES, SCHEMAS, TABLES
from distributary.model.manifest import Counts, Manifest
from distributary.observe import layout
from distributary.observe.accounts import BatchCounts, still_parked, total, waiting
from distributary.observe.delta import StorageOptions
from distributary.observe.matching import both, covering, may_hold, same, same_batch, text
from distributary.observe.recording import (
    BatchTimes,
    TableOutcome,
    batch_row,
    check_balance,
    outcomes,
    schema_rows,
    table_rows,
)
from distributary.observe.rollup import roll_batches, roll_tables
from distributary.observe.rows import (
    PARKED,
    RESUMED,
    BatchRow,
    FoundBatch,
    SchemaRow,
    TableRow,
    TableSummary,
    batches_of,
    schemas_of,
    tables_of,
)
from distributary.observe.store import Store
from distributary.observe.summary import SCHEMA_IDS_SQL, SUMMARY_SQL, summaries

_COUNTS = ("read", "written", "dead_lettered", "parked", "skipped")
_KEY = ("pipeline", "life", "lane", "batch")


@dataclass(frozen=True, slots=True)
class Expired:
    """How many rows of detail an expiry has turned into sums."""

    batches: int
    tables: int


class Ledger:
    """Writes and reads the ledger of a lake. A lake without one reads as empty."""

    def __init__(self, lake: str, *, storage_options: StorageOptions | None = None) -> None:
        self.lake = lake
        self._batches = Store(
            layout.ledger_table(lake, "batches"),
            schema=BATCHES,
            indexed=("pipeline", "batch"),
            description="one row per settled batch",
            storage_options=storage_options,
        )
        self._tables = Store(
            layout.ledger_table(lake, "tables"),
            schema=TABLES,
            indexed=("pipeline", "batch", "outcome"),
            description="one row per batch and table",
            storage_options=storage_options,
        )
        self._schemas = Store(
            layout.ledger_table(lake, "schemas"),
            schema=SCHEMAS,
            indexed=("pipeline", "batch"),
            description="one row per change that a schema brought",
            storage_options=storage_options,
        )

    def record(
        self,
        manifest: Manifest,
        published: Sequence[TableOutcome],
        *,
        times: BatchTimes,
        counts: Counts,
        lag_records: int | None = None,
        lag_seconds: float | None = None,
        stages: int = 1,
    ) -> None:
        """Settles a batch. After a crash anywhere in here, call it again with the same batch."""
        check_balance(manifest, counts)
        results = outcomes(manifest, published)
        at = times.finished_at or datetime.now(UTC)
        app_id, number = manifest.app_id, manifest.batch
        # the batch's own row comes last: where it is, all others are
        if manifest.schemas:
            self._schemas.append_once(schema_rows(manifest, at=at), app_id=app_id, version=number)
        if results:
            self._tables.append_once(
                table_rows(manifest, results, at=at), app_id=app_id, version=number
            )
        row = batch_row(
            manifest,
            results,
            times=times,
            finished_at=at,
            counts=counts,
            lag_records=lag_records,
            lag_seconds=lag_seconds,
            stages=stages,
        )
        self._batches.append_once(row, app_id=app_id, version=number)

    def record_resumed(self, manifest: Manifest, published: Sequence[TableOutcome]) -> None:
        """Says of parked tables of a settled batch that they were published after all.

        Call it once per batch, in order of batches. Tables that are (still) parked are passed
        over, and so is what was said before.
        """
        by_name = {entry.table.name: entry for entry in manifest.tables}
        at = datetime.now(UTC)
        for result in published:
            if result.outcome == PARKED:
                continue
            row = table_rows(manifest, [(by_name[result.table], result)], at=at, outcome=RESUMED)
            app_id = f"{manifest.app_id}/resumed/{result.table}"
            self._tables.append_once(row, app_id=app_id, version=manifest.batch)

    def settled(self, pipeline: str, life: str, lane: str, batch: int) -> str | None:
        """The fingerprint of a settled batch's source ranges, or None if it is not settled."""
        where = same(pipeline=pipeline, life=life, lane=lane, batch=batch)
        hashes = self._batches.read(["source_hash"], where)["source_hash"]
        return str(hashes[0].as_py()) if len(hashes) else None

    def pipelines(self) -> tuple[str, ...]:
        """Names of all pipelines that ever settled a batch."""
        return tuple(sorted(pc.unique(self._batches.read(["pipeline"])["pipeline"]).to_pylist()))

    def batches(
        self, pipeline: str | None = None, *, lane: str | None = None, last: int | None = None
    ) -> tuple[BatchRow, ...]:
        """Settled batches, the newest last."""
        rows = self._batches.read(where=same(pipeline=pipeline, lane=lane))
        rows = rows.sort_by([("finished_at", "ascending"), ("batch", "ascending")])
        return batches_of(rows if last is None else rows.slice(max(len(rows) - last, 0)))

    def tables(
        self, pipeline: str | None = None, *, schema_ids: bool = True
    ) -> tuple[TableSummary, ...]:
        """Every table with its sums over all batches, by name.

        `schema_ids=False` saves half of the time where nobody looks at them.
        """
        sums = self._tables.query(SUMMARY_SQL)
        if sums is None:
            return ()
        ids = self._tables.query(SCHEMA_IDS_SQL) if schema_ids else None
        parked = self.parked(pipeline) if pc.sum(sums["parked"]).as_py() else ()
        return summaries(sums, ids, parked, pipeline=pipeline)

    def batch_tables(self, batch: BatchRow) -> tuple[TableRow, ...]:
        """What one batch did to each of its tables."""
        return tables_of(self._tables.read(where=same_batch(batch.key)))

    def parked(self, pipeline: str | None = None) -> tuple[TableRow, ...]:
        """What waits for parked tables: one row per batch and table, oldest first."""
        where = both(text("outcome").isin([PARKED, RESUMED]), same(pipeline=pipeline))
        rows = self._tables.read(where=where).sort_by([("table", "ascending"), ("at", "ascending")])
        return still_parked(tables_of(rows))

    def schema_history(
        self, type_or_table: str | None = None, *, pipeline: str | None = None
    ) -> tuple[SchemaRow, ...]:
        """What schemas changed, oldest first."""
        where = same(pipeline=pipeline)
        if type_or_table is not None:
            named = (text("type") == type_or_table) | (text("table") == type_or_table)
            where = both(where, named)
        return schemas_of(self._schemas.read(where=where).sort_by([("at", "ascending")]))

    def totals(self, pipeline: str) -> Counts:
        """The equation over everything this pipeline ever did, as it stands now."""
        rows = self._batches.read([*_KEY, *_COUNTS], same(pipeline=pipeline)).to_pylist()
        batches = [
            BatchCounts(
                (row["pipeline"], row["life"], row["lane"], row["batch"]),
                Counts(*(row[name] for name in _COUNTS)),
            )
            for row in rows
        ]
        any_parked = any(batch.counts.parked for batch in batches)
        return total(batches, waiting(self.parked(pipeline)) if any_parked else {})

    def find_batch(self, topic: str, partition: int, offset: int) -> tuple[FoundBatch, ...]:
        """The batches that read this record, each with the tables that may hold it."""
        found = covering(self._batches.read(), topic=topic, partition=partition, offset=offset)
        batches = batches_of(found)
        return tuple(FoundBatch(b, self._tables_at(b, offset)) for b in batches)

    def replayed_tables(self, pipeline: str, offset: int) -> tuple[TableRow, ...]:
        """Rows of replayed batches in which a dead letter with this offset may have ended."""
        where = both(same(pipeline=pipeline, lane="replay"), may_hold(offset))
        return tables_of(self._tables.read(where=where))

    def read_ranges(self) -> pa.Table:
        """How far each partition was read: topic, partition, first, end, records."""
        rows = self._batches.read(["ranges"], same(lane="stream"))
        ranges = rows["ranges"].combine_chunks()
        flat = pa.Table.from_struct_array(pc.list_flatten(ranges))
        sums = [("start", "min"), ("end", "max"), ("records", "sum")]
        return (
            flat.group_by(["topic", "partition"])
            .aggregate(sums)
            .select(["topic", "partition", "start_min", "end_max", "records_sum"])
            .rename_columns(["topic", "partition", "first", "end", "records"])
        )

    def expire(self, before: datetime) -> Expired:
        """Turns rows from before this moment into sums. Totals stay what they were.

        Not to be run twice at once. A crash in the middle leaves all sums right: run it again.
        """
        moment = before.astimezone(UTC)
        parked = self.parked()
        keep = set(waiting(parked))
        tables = self._expire_tables(moment, [row for row in parked if row.at < moment])
        old = pc.field("finished_at") < pc.scalar(moment)
        batches = batches_of(self._batches.read(where=old))
        if batches:
            rolled = roll_batches(batches, keep=keep)
            self._batches.replace_before("finished_at", moment, rolled)
        return Expired(len(batches), tables)

    def forget(self, pipeline: str) -> None:
        """Removes everything the ledger says about a pipeline, as `clean` does with its tables."""
        for store in (self._batches, self._tables, self._schemas):
            store.forget("pipeline", pipeline)

    def _expire_tables(self, moment: datetime, keep: Sequence[TableRow]) -> int:
        done = (pc.field("at") < pc.scalar(moment)) & (text("outcome") != PARKED)
        rows = self._tables.read([name for name in TABLES.names if name != "files"], done)
        if len(rows):
            self._tables.replace_before("at", moment, roll_tables(rows, keep=keep))
        return len(rows)

    def _tables_at(self, batch: BatchRow, offset: int) -> tuple[TableRow, ...]:
        where = same_batch(batch.key)
        if batch.batches > 1:
            # in a sum, each table stands with the last batch that touched it
            lane = same(pipeline=batch.pipeline, life=batch.life, lane=batch.lane)
            where = both(lane, pc.field("batch") <= batch.batch)
        return tables_of(self._tables.read(where=both(where, may_hold(offset))))
