"""Lakes for the dashboard, written through the real ledger and the real tables, without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from distributary.model.deadletter import DEAD_LETTER_SCHEMA, dead_letter_id
from distributary.model.manifest import (
    Counts,
    Manifest,
    SchemaUse,
    SourceRange,
    StagedFile,
    TableEntry,
)
from distributary.model.rules.expectation import Action, RuleCount
from distributary.model.table import ChangeKind, Column, ColumnChange, Role, TablePlan
from distributary.observe.cards import Registration, register
from distributary.observe.ledger.ledger import Ledger
from distributary.observe.ledger.recording import BatchTimes
from distributary.publish.base import Outcome, Published

NOW = datetime.now(UTC).replace(microsecond=0)
HOSTILE = "<img src=x onerror=document.title='owned'>"
"""A name that would be an element, if anybody took it for one."""
COLUMNS = (
    Column("move", pa.string(), "field move"),
    Column("_topic", pa.string()),
    Column("_partition", pa.int32()),
    Column("_offset", pa.int64()),
)


RULES = {
    "silver_chess": (
        RuleCount("move is known", Action.WARN, checked=10, violated=2, first=("wrapper", 0, 3)),
    )
}


def letter(offset: int, *, code: str = "UNKNOWN_SCHEMA_ID", **values: object) -> dict[str, object]:
    return {
        "id": dead_letter_id("games", "life", "wrapper", 0, offset),
        "pipeline": "games",
        "topic": "wrapper",
        "partition": 0,
        "offset": offset,
        "timestamp": NOW - timedelta(hours=1),
        "key": b"<b>key</b>",
        "value": b"\x00\x00\x00\x00\x07\x00" + b"<script>document.title='owned'</script>",
        "headers": [{"key": "trace", "value": b"\x00\xff"}],
        "type": "chess",
        "schema_id": 7,
        "stage": "unwrap",
        "error_code": code,
        "error_message": f"no schema with id 7 {HOSTILE}",
        "error_position": 3,
        "batch": 0,
        "first_seen": NOW - timedelta(minutes=50),
        "last_seen": NOW - timedelta(minutes=20),
        "attempts": 1,
        "status": "open",
        "note": None,
        **values,
    }


@dataclass
class WebLake:
    """Batches settled by hand; offsets grow by themselves."""

    path: Path
    pipeline: str = "games"
    offset: int = field(default=0)

    def __post_init__(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        self.ledger = Ledger(str(self.path))
        card = Registration(
            self.pipeline,
            str(self.path / f"{self.pipeline}.yaml"),
            str(self.path / "_checkpoints" / self.pipeline),
        )
        register(str(self.path), card)

    def rows(self, table: str, count: int, *, first: int = 0) -> None:
        """Appends rows to a real table, as a publisher would."""
        rows = pa.table(
            {
                "move": pa.array([f"{HOSTILE} {n}" for n in range(count)]),
                "_topic": pa.array(["wrapper"] * count),
                "_partition": pa.array([0] * count, pa.int32()),
                "_offset": pa.array(range(first, first + count), pa.int64()),
            }
        )
        write_deltalake(str(self.path / table), rows, mode="append")

    def letters(self, letters: Sequence[Mapping[str, object]]) -> None:
        rows = pa.Table.from_pylist(list(letters), schema=DEAD_LETTER_SCHEMA)
        write_deltalake(str(self.path / "dead_letters"), rows, mode="append")

    def settle(
        self,
        batch: int,
        types: Mapping[str, str],
        *,
        dead: Mapping[str, int] | None = None,
        parked: Sequence[str] = (),
        changes: Mapping[str, Sequence[ColumnChange]] | None = None,
        at: datetime | None = None,
        lag: int | None = 0,
        records: int = 10,
    ) -> None:
        """One batch: so many records into each table, named with its type."""
        dead = dead or {}
        entries = [self._entry(name, kind, records) for name, kind in types.items()]
        lost = sum(dead.values())
        if lost:
            entries.append(self._entry("dead_letters", "", lost))
        written = records * len(types)
        first, self.offset = self.offset, self.offset + written + lost
        manifest = Manifest(
            pipeline=self.pipeline,
            life="life1",
            batch=batch,
            epoch=1,
            ranges=(SourceRange("wrapper", 0, first, self.offset, written + lost),),
            tables=tuple(entries),
            counts=Counts(written + lost, written, lost),
            dead_letters=dead,
            schemas=tuple(
                SchemaUse(types[name], name, batch + 1, f"{types[name]}-value v{batch + 1}", lines)
                for name, lines in (changes or {}).items()
            ),
            created_at=NOW.isoformat(),
        )
        finished = at or NOW - timedelta(minutes=30) + timedelta(seconds=20 * batch)
        self.ledger.record(
            manifest,
            [_result(entry, parked) for entry in entries],
            times=BatchTimes(
                finished - timedelta(seconds=2), stage=1.4, publish=0.3, finished_at=finished
            ),
            counts=manifest.with_parked(records * len(parked)),
            lag_records=lag,
            lag_seconds=1.5 + batch % 3,
        )

    def _entry(self, name: str, kind: str, records: int) -> TableEntry:
        role = Role.EACH if kind else Role.DEAD_LETTERS
        plan = TablePlan(name, role, kind, str(self.path / name), COLUMNS, exists=True)
        file = StagedFile(
            f"part-{name[:20]}-{self.offset}.parquet".replace("/", "-"),
            100,
            records,
            first_offset=self.offset,
            last_offset=self.offset + 9,
            schema_ids=(1,),
        )
        return TableEntry(plan, (file,), records, rules=RULES.get(name, ()))


def _result(entry: TableEntry, parked: Sequence[str]) -> Published:
    name = entry.table.name
    if name in parked:
        return Published(name, Outcome.PARKED, error="disk is full <b>now</b>")
    return Published(name, Outcome.PUBLISHED, version=0)


def busy_lake(path: Path) -> WebLake:
    """Twenty batches, a hostile type, a parked table, three dead letters, a schema history."""
    lake = WebLake(path)
    types = {"silver_chess": "chess", "silver_go": "go", HOSTILE: HOSTILE}
    created = ColumnChange(
        ChangeKind.TABLE_CREATED, after="move string, _offset bigint", action="create"
    )
    for batch in range(20):
        # the table that is parked later was fine at first
        waits = ["silver_go"] if batch >= 18 else []
        changes: dict[str, Sequence[ColumnChange]] = {}
        if batch == 0:
            changes = dict.fromkeys(types, (created,))
        if batch == 3:
            changes["silver_chess"] = (
                ColumnChange(ChangeKind.COLUMN_ADDED, "rating", after="int", action="add"),
                ColumnChange(ChangeKind.COLUMN_WIDENED, "score", "int", "bigint", "widen"),
            )
        dead = {"UNKNOWN_SCHEMA_ID": 2, "NULL_VALUE": 1} if batch == 0 else {}
        lake.settle(
            batch, types, dead=dead, parked=waits, changes=changes, lag=max(500 - 40 * batch, 0)
        )
    for name in ("silver_chess", "silver_go"):
        lake.rows(name, 12)
    lake.rows(HOSTILE, 3)
    lake.letters([letter(20), letter(21), letter(22, code="NULL_VALUE", value=None, type=None)])
    return lake


def wide_lake(path: Path, *, tables: int = 1000, batches: int = 12) -> WebLake:
    """A thousand tables that the ledger knows, one of which can really be read."""
    lake = WebLake(path)
    types = {f"silver_type_{n:04}": f"type_{n:04}" for n in range(tables)}
    for batch in range(batches):
        lake.settle(batch, types, lag=100 * batch)
    lake.rows("silver_type_0500", 5)
    for name in types:
        log = path / name / "_delta_log"
        if not log.exists():
            log.mkdir(parents=True)
            (log / f"{0:020d}.json").write_text("{}")
    return lake
