"""A small lake whose batches are made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction

from distributary.delta.tables import conflict_attempts
from distributary.model.deadletter import DEAD_LETTER_SCHEMA, dead_letter_id
from distributary.model.manifest import (
    Counts,
    Manifest,
    SchemaUse,
    SourceRange,
    StagedFile,
    TableEntry,
)
from distributary.model.table import Column, Role, TablePlan
from distributary.observe.ledger.ledger import Ledger
from distributary.observe.ledger.recording import BatchTimes
from distributary.publish.base import Outcome, Published

NOON = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
COLUMNS = (
    Column("move", pa.string()),
    Column("_topic", pa.string()),
    Column("_partition", pa.int32()),
    Column("_offset", pa.int64()),
)


@dataclass
class Lake:
    """Makes manifests, publishes rows, and settles batches."""

    path: str
    files: int = field(default=0)
    _writers: dict[str, Ledger] = field(default_factory=dict, init=False)
    """What a run holds: the tables of a ledger are opened once, and not for each batch."""

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.path)

    def plan(self, name: str, *, role: Role = Role.EACH, type: str | None = None) -> TablePlan:
        kind = name if type is None else type
        return TablePlan(name, role, kind, f"{self.path}/{name}", COLUMNS, exists=True)

    def entry(
        self,
        name: str,
        *,
        records: int = 10,
        role: Role = Role.EACH,
        type: str | None = None,
        offsets: tuple[int, int] = (0, 9),
        schema_ids: tuple[int, ...] = (1,),
    ) -> TableEntry:
        self.files += 1
        file = StagedFile(
            f"part-{self.files}.parquet",
            size=100,
            rows=records,
            first_offset=offsets[0],
            last_offset=offsets[1],
            schema_ids=schema_ids,
        )
        return TableEntry(self.plan(name, role=role, type=type), (file,), records)

    def manifest(
        self,
        batch: int = 0,
        *,
        entries: Sequence[TableEntry] | None = None,
        pipeline: str = "games",
        life: str = "life1",
        lane: str = "stream",
        counts: Counts | None = None,
        ranges: Sequence[SourceRange] | None = None,
        dead_letters: Mapping[str, int] | None = None,
        schemas: Sequence[SchemaUse] = (),
    ) -> Manifest:
        tables = (self.entry("chess"),) if entries is None else tuple(entries)
        written = sum(e.records for e in tables if e.table.role is Role.EACH)
        dead = sum((dead_letters or {}).values())
        spread = (SourceRange("wrapper", 0, batch * 10, batch * 10 + 10, 10),)
        return Manifest(
            pipeline=pipeline,
            life=life,
            batch=batch,
            epoch=1,
            ranges=spread if ranges is None else tuple(ranges),
            tables=tables,
            counts=counts or Counts(written + dead, written, dead),
            dead_letters=dead_letters or {},
            schemas=tuple(schemas),
            created_at=NOON.isoformat(),
            lane=lane,
        )

    def results(self, manifest: Manifest, parked: Sequence[str] = ()) -> list[Published]:
        return [
            Published(e.table.name, Outcome.PARKED, error="disk is full")
            if e.table.name in parked
            else Published(e.table.name, Outcome.PUBLISHED, version=manifest.batch)
            for e in manifest.tables
        ]

    def settle(
        self,
        manifest: Manifest,
        *,
        parked: Sequence[str] = (),
        ledger: Ledger | None = None,
        at: datetime | None = None,
        seconds: float = 5.0,
        lag_records: int | None = 0,
        steps: Mapping[str, float] | None = None,
    ) -> Manifest:
        finished = at or NOON + timedelta(seconds=10 * manifest.batch)
        (ledger or self._writers.setdefault(self.path, self.ledger)).record(
            manifest,
            self.results(manifest, parked),
            times=BatchTimes(
                finished - timedelta(seconds=seconds), **(steps or {}), finished_at=finished
            ),
            counts=manifest.with_parked(
                sum(e.records for e in manifest.primary() if e.table.name in parked)
            ),
            lag_records=lag_records,
            lag_seconds=1.5,
        )
        return manifest

    def stand(self, *names: str, versions: int = 1) -> None:
        """Tables of which nothing is there but commits: enough for a look from afar."""
        for name in names:
            log = Path(self.path, name, "_delta_log")
            log.mkdir(parents=True)
            for version in range(versions):
                (log / f"{version:020d}.json").write_text("{}")

    def resume(self, manifest: Manifest, table: str, *, still_parked: bool = False) -> None:
        """Says that a parked table of a settled batch was published after all."""
        (entry,) = (e for e in manifest.tables if e.table.name == table)
        (result,) = (
            r for r in self.results(manifest, [table] if still_parked else []) if r.table == table
        )
        self.ledger.record_resumed(manifest.app_id, entry, result, batch=manifest.batch)

    def publish(self, name: str, offsets: Sequence[int], *, topic: str = "wrapper") -> str:
        """Adds a file with one row per offset to a table, as a publisher would; its name."""
        self.files += 1
        file = f"part-{self.files}.parquet"
        rows = coordinates(offsets, topic=topic)
        table = DeltaTable.create(f"{self.path}/{name}", rows.schema, mode="ignore")
        pq.write_table(rows, f"{self.path}/{name}/{file}")
        size = Path(f"{self.path}/{name}/{file}").stat().st_size
        action = AddAction(file, size, {}, 0, True, f'{{"numRecords": {len(rows)}}}')
        table.create_write_transaction([action], "append", table.schema())
        return file

    def dead_letters(self, letters: Sequence[Mapping[str, object]], *, name: str = "dead") -> str:
        """Appends dead letters, each given by what differs from the usual; the folder."""
        path = f"{self.path}/{name}"
        rows = [letter(**values) for values in letters]
        table = pa.Table.from_pylist(rows, schema=DEAD_LETTER_SCHEMA)
        # an append conflicts with marks that are set meanwhile: publishers try again, too
        for attempt in conflict_attempts():
            with attempt:
                write_deltalake(path, table, mode="append")
        return path


def coordinates(offsets: Sequence[int], *, topic: str = "wrapper") -> pa.Table:
    return pa.table(
        {
            "move": pa.array([f"move {offset}" for offset in offsets]),
            "_topic": pa.array([topic] * len(offsets)),
            "_partition": pa.array([0] * len(offsets), pa.int32()),
            "_offset": pa.array(offsets, pa.int64()),
        }
    )


def letter(offset: int = 0, **values: object) -> dict[str, object]:
    pipeline = str(values.get("pipeline", "games"))
    return {
        "id": dead_letter_id(pipeline, "life", "wrapper", 0, offset),
        "pipeline": pipeline,
        "topic": "wrapper",
        "partition": 0,
        "offset": offset,
        "timestamp": NOON,
        "key": b"k",
        "value": b"\x00\x01\xff",
        "headers": [{"key": "h", "value": b"v"}],
        "type": "chess",
        "schema_id": 7,
        "stage": "decode",
        "error_code": "PAYLOAD_MISMATCH",
        "error_message": "field 3: truncated",
        "error_position": 3,
        "batch": 0,
        "first_seen": NOON,
        "last_seen": NOON,
        "attempts": 1,
        "status": "open",
        "note": None,
        **values,
    }


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


@pytest.fixture
def noon() -> datetime:
    return NOON
