"""The ledger: three Delta tables in the lake that record each settled batch exactly once."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.model import layout
from distributary.model.change import OP_COLUMNS
from distributary.model.manifest import Counts, Manifest, SourceRange, TableEntry
from distributary.observe.ledger.ledger_rows import (
    ACCEPTED,
    BATCH_KEY,
    BY_LANE,
    NUMBERING_SQL,
    PARKED,
    RESUMED,
    BatchKey,
    BatchRow,
    FoundBatch,
    LaneKey,
    LastCommit,
    NewestBatch,
    SchemaRow,
    TableRow,
    TableRule,
    TableSummary,
    batches_of,
    both,
    covering,
    may_hold,
    ranges_with,
    rules_sql,
    same,
    schema_ids_sql,
    schemas_of,
    summaries,
    table_rules,
    tables_of,
    text,
)
from distributary.observe.ledger.ledger_table import LedgerTable
from distributary.observe.ledger.recording import (
    BATCHES,
    ROLLED_TABLES_SQL,
    SCHEMAS,
    TABLES,
    Accepted,
    BatchTimes,
    accepted_row,
    batch_key,
    batch_row,
    check_balance,
    outcomes,
    roll_batches,
    roll_tables,
    schema_rows,
    table_rows,
    total,
    waiting,
)
from distributary.observe.ledger.sums import (
    BLOCK,
    LANES_VIEW,
    PARKED_VIEW,
    RANGES_VIEW,
    RULES_VIEW,
    SCHEMA_IDS_VIEW,
    TOTALS_VIEW,
    Views,
)
from distributary.publish.base import Published


@dataclass(frozen=True, slots=True)
class Expired:
    """The number of detail rows that an expiry has replaced by sums."""

    batches: int
    tables: int


class Ledger:
    """Writes and reads the ledger of a lake. A lake without one reads as empty."""

    def __init__(self, lake: str) -> None:
        self.lake = lake

        def store(
            name: str, schema: pa.Schema, description: str, *indexed: str, views: Views
        ) -> LedgerTable:
            return LedgerTable(
                layout.ledger_table(lake, name),
                schema=schema,
                indexed=("pipeline", "batch", *indexed),
                description=description,
                views=views,
            )

        self._batches = store(
            "batches",
            BATCHES,
            "one row per finished batch",
            views={"totals": TOTALS_VIEW, "ranges": RANGES_VIEW},
        )
        self._tables = store(
            "tables",
            TABLES,
            "one row per batch and table",
            "outcome",
            views={
                "lanes": LANES_VIEW,
                "rules": RULES_VIEW,
                "schema_ids": SCHEMA_IDS_VIEW,
                "parked": PARKED_VIEW,
            },
        )
        self._schemas = store(
            "schemas", SCHEMAS, "one row per change that a schema brought", views={}
        )

    def hold(self, *, tables: int | None = None) -> Ledger:
        """Make further reads use the current version, for one consistent answer.

        With `tables` the rows of tables are those of that version.
        """
        # in the order of writing, so that no batch lacks its tables
        self._batches.hold()
        self._tables.hold(version=tables)
        return self

    def record(
        self,
        manifest: Manifest,
        published: Sequence[Published],
        *,
        times: BatchTimes,
        counts: Counts,
        lag_records: int | None = None,
        lag_seconds: float | None = None,
        event_seconds: float | None = None,
        stages: int = 1,
        requests: int | None = None,
    ) -> None:
        """Record a settled batch. After a crash in here, call it again with the same batch."""
        check_balance(manifest, counts)
        results = outcomes(manifest, published)
        at = times.finished_at or datetime.now(UTC)
        app_id, number = manifest.app_id, manifest.batch
        # the batch's own row is written last, so it proves that all others exist
        if manifest.schemas:
            self._schemas.append_once(schema_rows(manifest, at=at), app_id=app_id, version=number)
        if results:
            rows = table_rows(
                batch_key(app_id, number), results, at=at, counted=manifest.primary_role
            )
            self._tables.append_once(rows, app_id=app_id, version=number)
        lag = {
            "lag_records": lag_records,
            "lag_seconds": lag_seconds,
            "event_seconds": event_seconds,
        }
        row = batch_row(manifest, results, times=times, finished_at=at)
        row |= asdict(counts) | lag | {"stages": stages, "requests": requests}
        batch = pa.Table.from_pylist([row], schema=BATCHES)
        self._batches.append_once(batch, app_id=app_id, version=number)

    def record_resumed(
        self, app_id: str, entry: TableEntry, result: Published, *, batch: int
    ) -> None:
        """Record that tables have got batches for which they were parked.

        Call it in the order of batches. Results that are still `parked`, or recorded before, are
        ignored.
        """
        if result.outcome == PARKED:
            return
        key, at = batch_key(app_id, batch), datetime.now(UTC)
        rows = table_rows(key, [(entry, result)], at=at, outcome=RESUMED)
        mark = f"{app_id}/resumed/{entry.table.name}"
        self._tables.append_once(rows, app_id=mark, version=batch)

    def settled(self, pipeline: str, life: str, lane: str, batch: int) -> str | None:
        """Return the fingerprint of a settled batch's source ranges; None if it is not settled."""
        where = _of((pipeline, life, lane, batch))
        hashes = self._batches.read(["source_hash"], where)["source_hash"]
        return str(hashes[0].as_py()) if len(hashes) else None

    def newest_settled(self, app_id: str) -> int:
        """Return the newest settled batch of a lane, or -1.

        It is read from the mark of the last commit, without reading rows.
        """
        mark = self._batches.mark(app_id)
        if mark is not None:
            return mark
        pipeline, life, lane, _ = batch_key(app_id, 0)
        totals = self._batches.sums()["totals"]
        found = totals.filter(_of_lane(pipeline, life, lane))["batch"].to_pylist()
        return int(found[0]) if found else -1

    def settled_ranges(
        self, pipeline: str, life: str, lane: str, batch: int
    ) -> tuple[SourceRange, ...] | None:
        """Return the ranges of a settled batch, or None if it is not settled."""
        where = _of((pipeline, life, lane, batch))
        found = self._batches.read(["ranges"], where)["ranges"].to_pylist()
        return tuple(SourceRange(**one) for one in found[0] or ()) if found else None

    def pipelines(self) -> tuple[str, ...]:
        """Return the names of all pipelines that have settled a batch."""
        return tuple(sorted(set(self._batches.sums()["totals"]["pipeline"].to_pylist())))

    def batches(
        self, pipeline: str | None = None, *, lane: str | None = None, last: int | None = None
    ) -> tuple[BatchRow, ...]:
        """Return settled batches, the newest last."""
        where = same(pipeline=pipeline, lane=lane)
        rows = self._batches.read(where=where) if last is None else self._newest(last, where)
        rows = rows.sort_by([("finished_at", "ascending"), ("batch", "ascending")])
        return batches_of(rows if last is None else rows.slice(max(len(rows) - last, 0)))

    def tables(
        self, pipeline: str | None = None, *, schema_ids: bool = True
    ) -> tuple[TableSummary, ...]:
        """Return every table with its sums over all batches, by name."""
        views = self._tables.sums()
        sums = LANES_VIEW.merge([views["lanes"]], keys=("pipeline", "table"))
        ids = views["schema_ids"] if schema_ids else None
        return summaries(sums, ids, tables_of(views["parked"]), pipeline=pipeline)

    def places(self) -> list[tuple[str, str]]:
        """Return name and folder of every table, without sums."""
        rows = self._tables.sums()["lanes"].select(["table", "path"]).to_pylist()
        return sorted({row["table"]: row["path"] for row in rows}.items())

    def dead_letters(self) -> dict[str, str]:
        """Return the folder of each pipeline's dead letters."""
        lanes = self._tables.sums()["lanes"].filter(pc.field("role") == "dead_letters")
        rows = lanes.sort_by([("pipeline", "ascending"), ("path", "ascending")]).to_pylist()
        return {row["pipeline"]: row["path"] for row in rows}

    def last_commits(self, pipeline: str | None = None) -> tuple[LastCommit, ...]:
        """Return the last commit of each lane of each life to each table."""
        lanes = self._tables.sums()["lanes"]
        if pipeline is not None:
            lanes = lanes.filter(pc.field("pipeline") == pipeline)
        named = {"batch": "commit_batch", "version": "commit_version", "since": "first_seen"}
        names = [each.name for each in fields(LastCommit)]
        rows = pa.table({name: lanes[named.get(name, name)] for name in names})
        return tuple(LastCommit(**row) for row in rows.to_pylist())

    def newest_batches(self) -> tuple[NewestBatch, ...]:
        """Return the newest settled batch of each lane of each life, the oldest first."""
        names = [each.name for each in fields(NewestBatch)]
        rows = self._batches.sums()["totals"].select(names).sort_by("finished_at")
        return tuple(NewestBatch(**row) for row in rows.to_pylist())

    def numbered(self, lane: LaneKey, first: int, last: int) -> pa.Table:
        """Return the batches of a lane whose numbers lie between two, in order.

        Columns: batch, finished_at, read, rows, tables, batches. Files without such numbers are not
        read.
        """
        columns = ["batch", "finished_at", "read", "rows", "tables", "batches"]
        where = both(_of_lane(*lane), _between(first, last))
        return self._batches.read(columns, where).sort_by("batch")

    def versions(self, lane: LaneKey, first: int, last: int) -> pa.Table:
        """Return the commits of the batches of a lane between two: batch, table, version."""
        live = pc.field("version").is_valid() & (text("outcome") != ACCEPTED)
        where = both(both(_of_lane(*lane), _between(first, last)), live)
        return self._tables.read(["batch", "table", "version"], where).sort_by("batch")

    def table_batches(self, commit: LastCommit) -> pa.Table:
        """Return a lane's batches of a table: batch, rows, version, outcome, batches."""
        key = {"pipeline": commit.pipeline, "life": commit.life, "lane": commit.lane}
        columns = ["batch", "rows", "version", "outcome", "batches"]
        return self._tables.read(columns, same(**key, table=commit.table)).sort_by("batch")

    def accept(self, taken: Sequence[Accepted]) -> None:
        """Record that tables are accepted in their current state."""
        moment = datetime.now(UTC)
        for one in taken:
            app = f"{one.commit.app_id}/{ACCEPTED}/{one.commit.table}"
            # a table may be accepted several times between two batches
            number = int(moment.timestamp() * 1_000_000)
            self._tables.append_once(accepted_row(one, at=moment), app_id=app, version=number)

    def batch(self, pipeline: str, number: int) -> tuple[BatchRow, ...]:
        """Return the settled batches with a number, of all lanes and lives, the newest last."""
        rows = self._batches.read(where=same(pipeline=pipeline, batch=number))
        return batches_of(rows.sort_by([("finished_at", "ascending")]))

    def timeline(self, columns: Sequence[str]) -> pa.Table:
        """Return some columns of all batches of the streams, without sums of old batches."""
        rows = self._batches.read(columns, both(same(lane="stream"), pc.field("batches") == 1))
        return rows.sort_by([("finished_at", "ascending")])

    def commits(self, table: str, *, pipeline: str, since: int) -> pa.Table:
        """Return the commits of batches from number `since` on to one table, the newest last."""
        columns = ["lane", "batch", "at", "records", "rows", "bytes", "outcome", "version", "error"]
        columns += OP_COLUMNS.values()
        where = both(same(pipeline=pipeline, table=table), pc.field("batch") >= since)
        return self._tables.read(columns, where).sort_by([("at", "ascending")])

    def batch_tables(self, batch: BatchRow) -> tuple[TableRow, ...]:
        """Return the row of each table of one batch."""
        where = both(_of(batch.key), text("outcome") != ACCEPTED)
        return tables_of(self._tables.read(where=where))

    def parked(self, pipeline: str | None = None) -> tuple[TableRow, ...]:
        """Return the parked batches: one row per batch and table, oldest first."""
        rows = self._tables.sums()["parked"]
        if pipeline is not None:
            rows = rows.filter(pc.field("pipeline") == pipeline)
        return tables_of(rows.sort_by([("table", "ascending"), ("at", "ascending")]))

    def schema_history(
        self, type_or_table: str | None = None, *, pipeline: str | None = None
    ) -> tuple[SchemaRow, ...]:
        """Return the schema changes, oldest first."""
        where = same(pipeline=pipeline)
        if type_or_table is not None:
            named = (text("type") == type_or_table) | (text("table") == type_or_table)
            where = both(where, named)
        return schemas_of(self._schemas.read(where=where).sort_by([("at", "ascending")]))

    def totals(self, pipeline: str) -> Counts:
        """Return the current equation over all batches of this pipeline."""
        lanes = self._batches.sums()["totals"].filter(pc.field("pipeline") == pipeline)
        names = [each.name for each in fields(Counts)]
        sums = [
            (
                (row["pipeline"], row["life"], row["lane"]),
                Counts(*(row[name] or 0 for name in names)),
            )
            for row in lanes.to_pylist()
        ]
        still: dict[BatchKey | LaneKey, int] = {}
        if any(counts.parked for _, counts in sums):
            still = self._still_parked(pipeline)
        return total(sums, still)

    def _still_parked(self, pipeline: str) -> dict[BatchKey | LaneKey, int]:
        """Return the number of records of each lane that are still parked."""
        still: dict[BatchKey | LaneKey, int] = defaultdict(int)
        due = waiting(self.parked(pipeline))
        if not due:
            return still
        where = both(same(pipeline=pipeline), pc.field("parked") > 0)
        for row in self._batches.read([*BATCH_KEY, "parked"], where).to_pylist():
            *lane, number = (row[name] for name in BATCH_KEY)
            key = (lane[0], lane[1], lane[2])
            still[key] += min(row["parked"], due.get((*key, number), 0))
        return still

    def find_batch(self, topic: str, partition: int, offset: int) -> tuple[FoundBatch, ...]:
        """Find the batches that read this record, each with the tables that may hold it."""
        ranges = self._batches.sums()["ranges"]
        blocks = ranges_with(ranges, topic=topic, partition=partition, offset=offset)
        found: list[BatchRow] = []
        for row in blocks.select(["pipeline", "life", "lane", "block"]).to_pylist():
            first, lane = row.pop("block") * BLOCK, same(**row)
            number = pc.field("batch")
            within = both(lane, both(number >= first, number < first + BLOCK))
            rows = self._batches.read(where=within)
            found += batches_of(covering(rows, topic=topic, partition=partition, offset=offset))
        batches = sorted({b.key: b for b in found}.values(), key=lambda b: b.finished_at)
        return tuple(FoundBatch(b, self._tables_at(b, offset)) for b in batches)

    def replayed_tables(self, pipeline: str, offset: int) -> tuple[TableRow, ...]:
        """Return rows of replayed batches that may contain a dead letter with this offset."""
        lanes = self._tables.sums()["lanes"].filter(
            (pc.field("pipeline") == pipeline) & (pc.field("lane") == "replay")
        )
        if not len(lanes):
            return ()
        where = both(same(pipeline=pipeline, lane="replay"), may_hold(offset))
        return tables_of(self._tables.read(where=where))

    def shared_tables(self, pipeline: str, offset: int) -> tuple[TableRow, ...]:
        """Return rows of jobs that share a pipeline's types and may have written a record."""
        jobs = rf"^{re.escape(pipeline)}-(shard-[0-9]+|unified)$"
        theirs = pc.match_substring_regex(pc.field("pipeline"), jobs)
        if not len(self._tables.sums()["lanes"].filter(theirs)):
            return ()
        where = both(both(same(lane="stream"), may_hold(offset)), theirs)
        return tables_of(self._tables.read(where=where))

    def schema_use(self) -> pa.Table:
        """Return the schemas of each table's records, as `schema_use.uses_of` reads them."""
        rows = self._tables.sums()["schema_ids"].filter(~pc.field("parked"))
        return pa.table(
            {
                **{name: rows[name] for name in ("pipeline", "table", "id")},
                # known unless a batch mixed schemas; a sum of old batches has no first batch
                "rows": _only(pc.equal(rows["mixed"], 1), rows["rows"]),
                "first_batch": _only(pc.equal(rows["batches"], 1), rows["first_batch"]),
                **{name: rows[name] for name in ("last_batch", "first_seen", "last_seen")},
            }
        )

    def rules(self, pipeline: str | None = None) -> tuple[TableRule, ...]:
        """Return the results of every rule in every table, over all batches."""
        rows = table_rules(self._tables.sums()["rules"])
        return tuple(row for row in rows if pipeline in (None, row.pipeline))

    def read_ranges(self, pipeline: str | None = None, *, life: str | None = None) -> pa.Table:
        """Return the read range of each partition: topic, partition, first, end, records."""
        rows = RANGES_VIEW.merge([self._ranges(pipeline, life)], keys=("topic", "partition"))
        return rows.select(["topic", "partition", "start", "end", "records"]).rename_columns(
            ["topic", "partition", "first", "end", "records"]
        )

    def numbering(self) -> list[dict[str, Any]]:
        """Count the batches of each lane: pipeline, life, lane, newest number, batches."""
        found = self._batches.query(NUMBERING_SQL)
        return [] if found is None else found.to_pylist()

    def batch_numbers(self, pipeline: str, life: str, lane: str) -> npt.NDArray[np.int64]:
        """Return the numbers of a lane's batches in order; for a sum, all that it may cover."""
        rows = self._batches.read(
            ["batch", "batches"], same(pipeline=pipeline, life=life, lane=lane)
        )
        single = rows.filter(pc.field("batches") == 1)["batch"].to_numpy()
        sums = rows.filter(pc.field("batches") > 1)["batch"].to_pylist()
        return np.union1d(single, np.arange(max(sums, default=-1) + 1))

    def ranges(self, pipeline: str, life: str, *, last: int | None = None) -> pa.Table:
        """Read the source ranges of the batches of a life, or of its newest batches."""
        where = same(lane="stream", pipeline=pipeline, life=life)
        if last is not None:
            return self._newest(last, where).select(["ranges"])
        return self._batches.read(["ranges"], where)

    def covered(self) -> pa.Table:
        """Return the read ranges of each life of each pipeline."""
        keys = ("pipeline", "life", "topic", "partition")
        return RANGES_VIEW.merge([self._ranges()], keys=keys).select([*keys, "start", "end"])

    def _ranges(self, pipeline: str | None = None, life: str | None = None) -> pa.Table:
        where = both(same(lane="stream"), same(pipeline=pipeline, life=life))
        return self._batches.sums()["ranges"].filter(where)

    def expire(self, before: datetime) -> Expired:
        """Replace rows from before a moment by sums; totals do not change.

        After a crash all sums are correct: run it again.
        """
        moment = before.astimezone(UTC)
        if not self.pipelines():
            return Expired(0, 0)
        summed = {"batches": 0, "tables": 0}

        def tables() -> pa.Table | None:
            old = f"outcome <> 'parked' AND at < '{moment.isoformat()}'"
            sums = self._tables.query(ROLLED_TABLES_SQL.replace("{where}", old))
            ids = self._tables.query(schema_ids_sql(BY_LANE, old))
            rules = self._tables.query(rules_sql(BY_LANE, old))
            if sums is None or ids is None or rules is None or not len(sums):
                return None
            summed["tables"] = pc.sum(sums["summed"]).as_py()
            waits = [row for row in self.parked() if row.at < moment]
            return roll_tables(sums, ids, rules, keep=waits)

        def batches() -> pa.Table | None:
            old = pc.field("finished_at") < pc.scalar(moment)
            rows = batches_of(self._batches.read(where=old))
            summed["batches"] = len(rows)
            return roll_batches(rows, keep=set(waiting(self.parked()))) if rows else None

        self._tables.replace_before("at", moment, tables)
        self._batches.replace_before("finished_at", moment, batches)
        return Expired(**summed)

    def tidy(self) -> None:
        """Compact the ledger's small files and bring its sums up to date."""
        for store in (self._batches, self._tables, self._schemas):
            store.tidy()

    def forget(self, pipeline: str) -> None:
        """Remove all rows about a pipeline, for `clean`."""
        for store in (self._batches, self._tables, self._schemas):
            store.forget(pipeline)

    def _newest(self, count: int, where: pc.Expression | None) -> pa.Table:
        """Read at least the newest batches; files with lower numbers are skipped."""
        lanes = self._batches.sums()["totals"]
        lanes = lanes if where is None else lanes.filter(where)
        found = [BATCHES.empty_table()]
        oldest: datetime | None = None
        for lane in lanes.sort_by([("finished_at", "descending")]).to_pylist():
            if oldest is not None and lane["finished_at"] < oldest:
                break
            # batches of a lane are numbered one after the other
            recent = pc.field("batch") > lane["batch"] - count
            key = same(**{name: lane[name] for name in ("pipeline", "life", "lane")})
            found.append(self._batches.read(where=both(key, recent)))
            ends = sorted(t for part in found for t in part["finished_at"].to_pylist())
            oldest = ends[-count] if 0 < count <= len(ends) else None
        return pa.concat_tables(found, promote_options="permissive")

    def _tables_at(self, batch: BatchRow, offset: int) -> tuple[TableRow, ...]:
        where = _of(batch.key)
        if batch.batches > 1:
            # in a sum, each table has the last batch that wrote to it
            lane = same(pipeline=batch.pipeline, life=batch.life, lane=batch.lane)
            where = both(lane, pc.field("batch") <= batch.batch)
        return tables_of(self._tables.read(where=both(where, may_hold(offset))))


def _of_lane(pipeline: str, life: str, lane: str) -> pc.Expression | None:
    """Return the condition for rows of one lane."""
    return same(pipeline=pipeline, life=life, lane=lane)


def _between(first: int, last: int) -> pc.Expression:
    """Return the condition for rows of the batches from `first` to `last`."""
    return (pc.field("batch") >= first) & (pc.field("batch") <= last)


def _only(mask: pa.ChunkedArray, values: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.if_else(mask, values, pa.scalar(None, values.type))


def _of(key: BatchKey) -> pc.Expression | None:
    """Return the condition for rows of one batch."""
    pipeline, life, lane, batch = key
    return same(pipeline=pipeline, life=life, lane=lane, batch=batch)
