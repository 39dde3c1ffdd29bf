"""Change files for tests: events, and the files that Datastream would write of them."""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa

from distributary.config.sources.files import FilesSourceConfig as Config
from distributary.model.deadletter import FAULT_HEADER
from distributary.source.base import Position
from distributary.source.files.source import FilesSource

MINUTE = "2024/05/09/06/56"
TIMESTAMP = {"type": "long", "logicalType": "timestamp-millis"}
NAMES = ["database", "schema", "table"]
METADATA: dict[str, Any] = {
    "type": "record",
    "name": "source_metadata",
    "fields": [
        *({"name": name, "type": ["null", "string"]} for name in NAMES),
        {"name": "primary_keys", "type": {"type": "array", "items": "string"}},
        {"name": "log_position", "type": ["null", "long"]},
        {"name": "is_deleted", "type": ["null", "boolean"]},
    ],
}


def schema(*more: str, table: str = "orders") -> dict[str, Any]:
    """The schema of a file: an envelope, and a payload with an id and some columns of text."""
    payload = [{"name": "id", "type": ["null", "long"]}]
    payload += [{"name": name, "type": ["null", "string"]} for name in more]
    return {
        "type": "record",
        "name": f"shop_{table}",
        "fields": [
            {"name": "uuid", "type": "string"},
            {"name": "read_timestamp", "type": TIMESTAMP},
            {"name": "source_timestamp", "type": ["null", TIMESTAMP]},
            {"name": "object", "type": "string"},
            {"name": "sort_keys", "type": {"type": "array", "items": ["string", "long"]}},
            {"name": "source_metadata", "type": METADATA},
            {"name": "payload", "type": {"type": "record", "name": "payload", "fields": payload}},
        ],
    }


def event(number: int, *, table: str = "orders", **more: Any) -> dict[str, Any]:
    """The change of one row."""
    return {
        "uuid": f"ee7534b0-71d8-4164-8ad8-1eaf{number:08d}",
        "read_timestamp": 1_715_237_814_000,
        "source_timestamp": 1_715_237_813_000 + number,
        "object": f"shop_{table}",
        "sort_keys": [1_715_237_813_000 + number, "mysql-bin.000131", number],
        "source_metadata": {
            "database": "shop",
            "schema": None,
            "table": table,
            "primary_keys": ["id"],
            "log_position": number,
            "is_deleted": False,
        },
        "payload": {"id": number, **more},
    }


def events(count: int, *, start: int = 0, table: str = "orders") -> list[dict[str, Any]]:
    return [event(start + number, table=table) for number in range(count)]


def avro(
    rows: Sequence[dict[str, Any]],
    *,
    written: dict[str, Any] | None = None,
    codec: str = "null",
    block: int = 16_000,
) -> bytes:
    """An Avro file; a block ends as soon as it has so many bytes."""
    out = io.BytesIO()
    fastavro.writer(out, written or schema(), rows, codec=codec, sync_interval=block)
    return out.getvalue()


def lines(rows: Iterable[dict[str, Any]], *, zipped: bool = False) -> bytes:
    data = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    return gzip.compress(data) if zipped else data


def put(root: Path, path: str, data: bytes, *, age: float = 60.0) -> Path:
    """Write a file that is old enough to be read, or is still young."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    if age:
        modified = file.stat().st_mtime - age
        os.utime(file, (modified, modified))
    return file


def named(
    number: int = 0, *, table: str = "orders", minute: str = MINUTE, end: str = "avro"
) -> str:
    """The path that Datastream would give a file."""
    return f"shop_{table}/{minute}/5f1d_mysql-cdc-binlog_-17_{number}_0.{end}"


def source(root: Path, checkpoint: Path, **settings: Any) -> FilesSource:
    config = Config.model_validate(
        {"type": "files", "path": str(root), "settle": "300ms", **settings}
    )
    return FilesSource(config, folder=checkpoint / "files", schemas=checkpoint / "schemas")


def found(one: FilesSource, start: int = 0) -> list[str]:
    """The paths of all files that a source finds now, behind a position."""
    end = one.newest()["files"]
    return [file.path for file in one._file_list.files(start, end)]


def records(one: FilesSource, start: Position | None = None) -> pa.Table:
    """All raw records of a batch, in the order of files."""
    batches = list(one.peek(start or one.first()))
    return pa.Table.from_batches(batches).combine_chunks() if batches else pa.table({"value": []})


def faults(table: pa.Table) -> list[tuple[str, bytes | None]]:
    """Code and value of each record that stands for a fault."""
    return [
        (row["headers"][0]["value"].decode(), row["value"])
        for row in table.to_pylist()
        if row["headers"] and row["headers"][0]["key"] == FAULT_HEADER
    ]


def good(table: pa.Table) -> list[bytes]:
    """Values of the other records."""
    return [row["value"] for row in table.to_pylist() if not row["headers"]]


def uuids(table: pa.Table, written: dict[str, Any] | None = None) -> list[str]:
    """Events by their ids, out of Avro or JSON."""
    parsed = fastavro.parse_schema(written or schema())
    return [
        fastavro.schemaless_reader(io.BytesIO(value[17:]), parsed, None)["uuid"]
        if value[:1] == b"\1"
        else json.loads(value)["uuid"]
        for value in good(table)
    ]
