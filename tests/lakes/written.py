"""A lake made by hand, for commands that only read."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, Transaction, write_deltalake

from distributary.model.deadletter import DEAD_LETTER_SCHEMA, dead_letter_id
from distributary.model.manifest import (
    Counts,
    Manifest,
    SchemaUse,
    SourceRange,
    StagedFile,
    TableEntry,
)
from distributary.model.table import ChangeKind, Column, ColumnChange, Role, TablePlan
from distributary.observe.cards import Registration, pin, register
from distributary.observe.ledger.ledger import Ledger
from distributary.observe.ledger.recording import BatchTimes
from distributary.publish.base import Outcome, Published

NOON = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
HOSTILE = "evil\x1b[31m[bold]\u202egame"
"""A type name that would colour a terminal, be markup, and turn the direction of writing."""


MARKED = CommitProperties(app_transactions=[Transaction("distributary/games/life1/stream", 0)])

FRAME = b"\x00\x00\x00\x00\x07\x00"
"""The registry's header of schema 7."""


def letter(
    offset: int, *, code: str = "UNKNOWN_SCHEMA_ID", type: str = "chess"
) -> dict[str, object]:
    return {
        "id": dead_letter_id("games", "life", "wrapper", 0, offset),
        "pipeline": "games",
        "topic": "wrapper",
        "partition": 0,
        "offset": offset,
        "timestamp": NOON,
        "key": b"k\x1b",
        "value": FRAME + bytes(range(34)),
        "headers": [{"key": "trace", "value": b"\x00\xff"}],
        "type": type,
        "schema_id": 7,
        "stage": "unwrap",
        "error_code": code,
        "error_message": "the registry knows no schema\x1b[0m with id 7",
        "error_position": 3,
        "batch": 0,
        "first_seen": NOON,
        "last_seen": NOON + timedelta(minutes=5),
        "attempts": 1,
        "status": "open",
        "note": None,
    }


def make_lake(
    path: Path,
    *,
    types: Sequence[str] = ("chess", HOSTILE),
    parked: Sequence[str] = (),
    letters: Sequence[dict[str, object]] | None = None,
    file: Path | None = None,
) -> Path:
    """One settled batch: ten records in each table, and three dead letters."""
    path.mkdir(parents=True, exist_ok=True)
    found = [letter(n) for n in (20, 21)] + [letter(22, code="NULL_VALUE")]
    dead = found if letters is None else list(letters)
    entries = [_entry(path, f"silver_{n}", kind, n) for n, kind in enumerate(types)]
    for entry in entries:
        rows = pa.table({"move": ["e4"] * 10, "_offset": pa.array(range(10), pa.int64())})
        rows = rows.append_column("_topic", pa.array(["wrapper"] * 10))
        rows = rows.append_column("_partition", pa.array([0] * 10, pa.int32()))
        write_deltalake(entry.table.path, rows, commit_properties=MARKED)
    if dead:
        rows = pa.Table.from_pylist(dead, schema=DEAD_LETTER_SCHEMA)
        write_deltalake(str(path / "dead_letters"), rows, commit_properties=MARKED)
        entries.append(_entry(path, "dead_letters", "", 90, records=len(dead)))
    _settle(path, entries, dead=len(dead), parked=parked)
    checkpoint = path / "_checkpoints" / "games"
    card = Registration("games", str(file or path / "games.yaml"), str(checkpoint))
    register(str(path), card)
    if Path(card.file).is_file():
        pin_file(path, Path(card.file))
    return path


def pin_file(lake: Path, file: Path, *, name: str = "games") -> None:
    """As if this user had run the pipeline by this file, as it is now."""
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    pin(str(lake), name, file=file, sha256=sha256, checkpoint=f"{lake}/_checkpoints/{name}")


def _entry(lake: Path, name: str, kind: str, n: int, *, records: int = 10) -> TableEntry:
    role = Role.EACH if kind else Role.DEAD_LETTERS
    columns = (Column("move", pa.string()), Column("_offset", pa.int64()))
    plan = TablePlan(name, role, kind, str(lake / name), columns, exists=True)
    file = StagedFile(
        "part-0.parquet", 100, records, first_offset=0, last_offset=9, schema_ids=(n,)
    )
    return TableEntry(plan, (file,), records)


def _settle(lake: Path, entries: Sequence[TableEntry], *, dead: int, parked: Sequence[str]) -> None:
    types = [e for e in entries if e.table.type]
    written = sum(e.records for e in types)
    changes = (
        ColumnChange(ChangeKind.TABLE_CREATED, after="move string", action="create"),
        ColumnChange(ChangeKind.COLUMN_ADDED, "rating", after="int", action="add"),
    )
    manifest = Manifest(
        pipeline="games",
        life="life1",
        batch=0,
        epoch=1,
        ranges=(SourceRange("wrapper", 0, 0, 30, written + dead),),
        tables=tuple(entries),
        counts=Counts(written + dead, written, dead),
        dead_letters={"UNKNOWN_SCHEMA_ID": dead} if dead else {},
        schemas=tuple(
            SchemaUse(e.table.type, e.table.name, 7, "chess-value v3", changes) for e in types
        ),
        created_at=NOON.isoformat(),
    )
    waiting = sum(e.records for e in types if e.table.name in parked)
    published = [
        Published(e.table.name, Outcome.PARKED, error="disk\x1b is full")
        if e.table.name in parked
        else Published(e.table.name, Outcome.PUBLISHED, version=0)
        for e in entries
    ]
    Ledger(str(lake)).record(
        manifest,
        published,
        times=BatchTimes(NOON - timedelta(seconds=2), finished_at=NOON),
        counts=manifest.with_parked(waiting),
        lag_records=5,
        lag_seconds=2.5,
    )
