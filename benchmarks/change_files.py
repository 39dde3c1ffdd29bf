"""Change files as Datastream writes them: first rows, then inserts, updates and deletes."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa

_EPOCH_MS = 1_700_000_000_000
_ROWS_PER_FILE = 250_000
ROW = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("city", pa.string()),
        pa.field("amount", pa.float64()),
        pa.field("quantity", pa.int32()),
        pa.field("note", pa.string()),
    ]
)
_TYPES = {"int64": "long", "string": "string", "double": "double", "int32": "int"}
_METADATA = [
    ("table", "string"),
    ("database", "string"),
    ("primary_keys", {"type": "array", "items": "string"}),
    ("log_file", "string"),
    ("log_position", "long"),
    ("change_type", "string"),
    ("is_deleted", "boolean"),
]


@dataclass(frozen=True, slots=True)
class Size:
    """How large the tables are, and how much of them a batch changes."""

    tables: tuple[str, ...]
    rows: int
    changes: int
    """Of ten changes of a table, one inserts, one deletes, and eight update."""

    def rows_after(self, batches: int) -> int:
        """As many come as go."""
        del batches
        return self.rows


def size_of(tables: int) -> Size:
    """One large table, or many small ones."""
    if tables == 1:
        return Size(("large",), 5_000_000, 100_000)
    return Size(tuple(f"small_{number}" for number in range(tables)), 10_000, 1_000)


def write_backfill(folder: Path, size: Size) -> None:
    """The rows that are there before the first change."""
    for table in size.tables:
        for number, batch in enumerate(backfill_rows(size, table)):
            events = (
                _event(table, row, place=place, batch=-1, change="INSERT", backfill=True)
                for place, row in enumerate(batch.to_pylist())
            )
            _write(folder, table, minute=0, number=number, events=events)


def write_changes(folder: Path, size: Size, *, batch: int, form: str = "avro") -> None:
    """One file for each table, of Avro or of JSON lines."""
    write = _write if form == "avro" else _write_json
    for table in size.tables:
        write(folder, table, minute=batch + 1, number=0, events=_changes(size, table, batch))


def backfill_rows(size: Size, table: str) -> Iterator[pa.RecordBatch]:
    """The same rows as a table."""
    del table
    for first in range(0, size.rows, _ROWS_PER_FILE):
        ids = range(first, min(size.rows, first + _ROWS_PER_FILE))
        yield pa.RecordBatch.from_pylist([_row(number, "first") for number in ids], ROW)


def _changes(size: Size, table: str, batch: int) -> Iterator[dict[str, Any]]:
    share = size.changes // 10
    fresh = size.rows + batch * share
    stride = max(1, size.rows // (size.changes * 2))
    place = 0
    for number in range(share):
        place += 1
        row = _row(fresh + number, f"new {batch}")
        yield _event(table, row, place=place, batch=batch, change="INSERT")
        # what the batch before has added, or the first rows, go again
        gone = number if batch == 0 else fresh - share + number
        place += 1
        row = _row(gone, "gone")
        yield _event(table, row, place=place, batch=batch, change="DELETE", deleted=True)
        for update in range(8):
            place += 1
            one = share + (number * 8 + update) * stride + batch
            row = _row(one, f"update {batch}")
            yield _event(table, row, place=place, batch=batch, change="UPDATE-INSERT")


def _row(number: int, note: str) -> dict[str, Any]:
    return {
        "id": number,
        "name": f"name of {number}",
        "city": f"city {number % 1000}",
        "amount": number * 0.25,
        "quantity": number % 100,
        "note": note,
    }


def _event(
    table: str,
    row: dict[str, Any],
    *,
    place: int,
    batch: int,
    change: str,
    deleted: bool = False,
    backfill: bool = False,
) -> dict[str, Any]:
    moment = _EPOCH_MS + (batch + 1) * 60_000 + place // 100
    return {
        "uuid": str(
            uuid.UUID(int=(hash((table, batch)) & (2**63 - 1)) << 64 | row["id"] << 20 | place)
        ),
        "read_timestamp": moment,
        "source_timestamp": moment,
        "object": f"shop_{table}",
        "read_method": "mysql-backfill-fulldump" if backfill else "mysql-cdc-binlog",
        "stream_name": "projects/1/locations/here/streams/bench",
        "schema_key": "bench",
        "source_metadata": {
            "table": table,
            "database": "shop",
            "primary_keys": ["id"],
            "log_file": "" if backfill else "mysql-bin.000001",
            "log_position": 0 if backfill else (batch + 1) * 10_000_000 + place,
            "change_type": change,
            "is_deleted": deleted,
        },
        "payload": row,
    }


def _write(
    folder: Path, table: str, *, minute: int, number: int, events: Iterator[dict[str, Any]]
) -> None:
    path = _folder(folder, table, minute)
    with (path / f"bench_{number}.avro").open("wb") as file:
        fastavro.writer(file, _schema(table), events, sync_interval=4_000_000)


def _write_json(
    folder: Path, table: str, *, minute: int, number: int, events: Iterator[dict[str, Any]]
) -> None:
    path = _folder(folder, table, minute)
    with (path / f"bench_{number}.jsonl").open("w") as file:
        for event in events:
            moment = datetime.fromtimestamp(event["source_timestamp"] / 1000, UTC).isoformat()
            told = {**event, "read_timestamp": moment, "source_timestamp": moment}
            file.write(json.dumps(told) + "\n")


def _folder(folder: Path, table: str, minute: int) -> Path:
    path = folder / f"shop_{table}" / "2023" / "11" / "14" / "22" / f"{minute:02d}"
    path.mkdir(parents=True, exist_ok=True)
    return path


def _schema(table: str) -> Any:
    moment = {"type": "long", "logicalType": "timestamp-millis"}
    metadata = [{"name": name, "type": type_} for name, type_ in _METADATA]
    payload = [{"name": f.name, "type": ["null", _TYPES[str(f.type)]]} for f in ROW]
    fields = [
        {"name": "uuid", "type": "string"},
        {"name": "read_timestamp", "type": moment},
        {"name": "source_timestamp", "type": moment},
        *({"name": n, "type": "string"} for n in ("object", "read_method", "stream_name")),
        {"name": "schema_key", "type": "string"},
        {
            "name": "source_metadata",
            "type": {"type": "record", "name": "source_metadata", "fields": metadata},
        },
        {"name": "payload", "type": {"type": "record", "name": "payload", "fields": payload}},
    ]
    text = json.dumps({"type": "record", "name": f"shop_{table}", "fields": fields})
    return fastavro.parse_schema(json.loads(text))
