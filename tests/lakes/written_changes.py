"""A lake of change data made by hand: a log, the table that is made of it, and their pipeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from distributary.changes.apply import merge_table
from distributary.changes.merge_order import MergeOrder
from distributary.model import layout
from distributary.model.change import CHANGE_COLUMNS, ChangeFacts
from distributary.model.manifest import Counts, Manifest, SourceRange, StagedFile, TableEntry
from distributary.model.table import Column, Role, TablePlan
from distributary.observe.cards import Registration, register
from distributary.observe.ledger.ledger import Ledger
from distributary.observe.ledger.recording import BatchTimes
from distributary.publish.base import Outcome, Published
from tests.changes.logs import COLUMNS, NOW, Event, rows_of
from tests.lakes.written import pin_file

NAME = "shop"
TYPE = '["shop","","orders"]'
MERGED, LOG = "shop_orders", "shop_orders_log"
BEGUN = datetime.fromtimestamp(NOW / 1e6, UTC)


@dataclass
class ChangeLake:
    """Each `batch` is appended to the log, merged unless it is parked, and settled."""

    root: Path
    batches: list[list[Event]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lake.mkdir(parents=True, exist_ok=True)
        self.file.write_text(
            f"""
name: {NAME}
source: {{type: files, path: {self.root}/datastream, format: avro}}
cdc: {{format: datastream}}
tables: {{each: '{{database}}_{{table}}'}}
lake: {{path: {self.lake}}}
"""
        )
        register(str(self.lake), Registration(NAME, str(self.file), str(self.checkpoint)))
        pin_file(self.lake, self.file, name=NAME)

    @property
    def lake(self) -> Path:
        return self.root / "lake"

    @property
    def file(self) -> Path:
        return self.root / "shop.yaml"

    @property
    def checkpoint(self) -> Path:
        return self.lake / "_checkpoints" / NAME

    def batch(
        self, events: Sequence[Event], *, parked: bool = False, file: str | None = None
    ) -> Manifest:
        """With a `file`, the events were in it: it has the number of the batch."""
        number = len(self.batches)
        placed = [replace(event, offset=at) for at, event in enumerate(events)]
        self.batches.append(placed)
        rows = rows_of(placed, COLUMNS, batch=number)
        if file is not None:
            at = rows.schema.get_field_index("_topic")
            rows = rows.set_column(at, "_topic", pa.array([file] * len(placed)))
            numbers = pa.array([number] * len(placed), pa.int32())
            rows = rows.set_column(at + 1, "_partition", numbers)
        order = self.order(batch=number)
        marked = CommitProperties(app_transactions=[Transaction(order.app_id, number)])
        write_deltalake(self.lake / LOG, rows, mode="append", commit_properties=marked)
        newest = DeltaTable(self.lake / LOG).file_uris()[0]
        version = None
        if not parked:
            version = merge_table(self.order(files=(newest,), batch=number)).version
        manifest = self._manifest(number, placed, files=file is not None)
        results = [
            Published(e.table.name, Outcome.PARKED, error="disk is full")
            if parked and e.table.role is Role.MERGED
            else Published(
                e.table.name,
                Outcome.PUBLISHED,
                version=version if e.table.role is Role.MERGED else number,
            )
            for e in manifest.tables
        ]
        at = BEGUN + timedelta(seconds=60 * (number + 1))
        times = BatchTimes(at - timedelta(seconds=1), finished_at=at)
        self.ledger.record(manifest, results, times=times, counts=manifest.counts)
        return manifest

    @property
    def ledger(self) -> Ledger:
        return Ledger(str(self.lake))

    def order(self, *, files: Sequence[str] = (), batch: int = 0) -> MergeOrder:
        return MergeOrder(
            table=MERGED,
            path=str(self.lake / MERGED),
            tombstones=layout.tombstones(str(self.lake), MERGED),
            files=tuple(files),
            columns=COLUMNS,
            app_id=f"distributary/{NAME}/life1/stream",
            batch=batch,
            now_us=NOW,
        )

    def rows(self, table: str = MERGED) -> list[dict[str, Any]]:
        found = DeltaTable(self.lake / table).to_pyarrow_table().to_pylist()
        return sorted(found, key=lambda row: (row["id"] is None, row["id"]))

    def spoil(self, **values: Any) -> None:
        """Somebody writes to the merged table: the first row has other values now."""
        rows = self.rows()
        schema = pa.schema(DeltaTable(self.lake / MERGED).schema().to_arrow())
        spoilt = pa.Table.from_pylist([{**rows[0], **values}, *rows[1:]], schema=schema)
        write_deltalake(self.lake / MERGED, spoilt, mode="overwrite")

    def _manifest(self, number: int, events: Sequence[Event], *, files: bool) -> Manifest:
        count = len(events)
        covered = SourceRange("orders", 0, number * 100, number * 100 + 100, count)
        if files:
            ends = (number << 32 | 77, number + 1 << 32 | 77)
            covered = SourceRange(f"{self.root}/datastream", 0, *ends, count)
        moments = [e.place[1] * 1000 for e in events if e.time is None]
        facts = ChangeFacts(Counter(e.op for e in events), max(moments, default=None))
        log = (*CHANGE_COLUMNS, *COLUMNS)
        file = StagedFile("part.parquet", 100, count, first_offset=0, last_offset=count - 1)
        entries = (
            TableEntry(self._plan(LOG, Role.LOG, log), (file,), count, events=facts),
            TableEntry(self._plan(MERGED, Role.MERGED, COLUMNS), (), count, events=facts),
        )
        return Manifest(
            pipeline=NAME,
            life="life1",
            batch=number,
            epoch=1,
            ranges=(covered,),
            tables=entries,
            counts=Counts(count, count),
            dead_letters={},
            schemas=(),
            created_at=BEGUN.isoformat(),
            primary_role=str(Role.LOG),
        )

    def _plan(self, name: str, role: Role, columns: tuple[Column, ...]) -> TablePlan:
        return TablePlan(name, role, TYPE, str(self.lake / name), columns, exists=True)
