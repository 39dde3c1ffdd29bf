"""The manifests of Iceberg tables: the lists of a snapshot's files, as Avro.

A manifest lists files, a manifest list the manifests of one snapshot. Both are written by fastavro,
whose schemas are those of format version 2, without the optional fields, which stay empty here.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any

import fastavro

from distributary.delta.log import DataFile
from distributary.iceberg.iceberg_columns import Json, Partitioning

EXISTING, ADDED, DELETED = 0, 1, 2
"""The states of an entry."""
ROWS, DELETES = 0, 1
"""The contents of a manifest: files of rows, or files of positions of deleted rows."""
PATH_ID, POSITION_ID = 2147483546, 2147483545
"""The reserved ids of the columns of a file of deleted positions."""
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_MILLISECOND_DIGITS = 3
_OUTDATED = "the files of this manifest are not described as Iceberg does it"


class BrokenManifestError(Exception):
    """An error for a manifest that cannot be read."""


def _map_of(key: int, value: int, type_: str) -> Json:
    pair = {
        "type": "record",
        "name": f"k{key}_v{value}",
        "fields": [
            {"name": "key", "type": "int", "field-id": key},
            {"name": "value", "type": type_, "field-id": value},
        ],
    }
    return {"type": "array", "logicalType": "map", "items": pair}


def _field(number: int, name: str, type_: Any, *, optional: bool = False) -> Json:
    if not optional:
        return {"name": name, "type": type_, "field-id": number}
    return {"name": name, "type": ["null", type_], "default": None, "field-id": number}


@lru_cache(maxsize=256)
def _entries_schema(parts: Partitioning) -> Any:
    partition = {"type": "record", "name": "r102", "fields": parts.avro()}
    file = {
        "type": "record",
        "name": "r2",
        "fields": [
            _field(134, "content", "int"),
            _field(100, "file_path", "string"),
            _field(101, "file_format", "string"),
            _field(102, "partition", partition),
            _field(103, "record_count", "long"),
            _field(104, "file_size_in_bytes", "long"),
            _field(109, "value_counts", _map_of(119, 120, "long"), optional=True),
            _field(110, "null_value_counts", _map_of(121, 122, "long"), optional=True),
            _field(125, "lower_bounds", _map_of(126, 127, "bytes"), optional=True),
            _field(128, "upper_bounds", _map_of(129, 130, "bytes"), optional=True),
            _field(143, "referenced_data_file", "string", optional=True),
        ],
    }
    schema = {
        "type": "record",
        "name": "manifest_entry",
        "fields": [
            _field(0, "status", "int"),
            _field(1, "snapshot_id", "long", optional=True),
            _field(3, "sequence_number", "long", optional=True),
            _field(4, "file_sequence_number", "long", optional=True),
            _field(2, "data_file", file),
        ],
    }
    return fastavro.parse_schema(schema)


_LIST_SCHEMA: Any = fastavro.parse_schema(
    {
        "type": "record",
        "name": "manifest_file",
        "fields": [
            _field(500, "manifest_path", "string"),
            _field(501, "manifest_length", "long"),
            _field(502, "partition_spec_id", "int"),
            _field(517, "content", "int"),
            _field(515, "sequence_number", "long"),
            _field(516, "min_sequence_number", "long"),
            _field(503, "added_snapshot_id", "long"),
            _field(504, "added_files_count", "int"),
            _field(505, "existing_files_count", "int"),
            _field(506, "deleted_files_count", "int"),
            _field(512, "added_rows_count", "long"),
            _field(513, "existing_rows_count", "long"),
            _field(514, "deleted_rows_count", "long"),
        ],
    }
)


def write_manifest(
    entries: Sequence[Json],
    schema: Json,
    spec: Json,
    parts: Partitioning,
    *,
    content: int = ROWS,
) -> bytes:
    """Return the bytes of a manifest with these entries."""
    about = {
        "schema": json.dumps(schema, separators=(",", ":")),
        "schema-id": str(schema["schema-id"]),
        "partition-spec": json.dumps(spec["fields"], separators=(",", ":")),
        "partition-spec-id": str(spec["spec-id"]),
        "format-version": "2",
        "content": "data" if content == ROWS else "deletes",
    }
    sink = io.BytesIO()
    fastavro.writer(sink, _entries_schema(parts), entries, codec="deflate", metadata=about)
    return sink.getvalue()


def read_manifest(data: bytes, record: Mapping[str, Any]) -> list[Json]:
    """Return the live entries of a manifest, with the numbers that they inherit from its record.

    Raises BrokenManifestError.
    """
    try:
        entries = [entry for entry in _read(data) if entry["status"] != DELETED]
        for entry in entries:
            if entry["status"] == ADDED:
                for name in ("sequence_number", "file_sequence_number"):
                    if entry.get(name) is None:
                        entry[name] = record["sequence_number"]
            if entry.get("snapshot_id") is None:
                entry["snapshot_id"] = record["added_snapshot_id"]
            entry["status"] = EXISTING
            if not isinstance(entry["data_file"]["file_path"], str):
                raise BrokenManifestError(_OUTDATED)
    except (KeyError, TypeError) as error:
        raise BrokenManifestError(f"{_OUTDATED}: {error}") from error
    return entries


def write_list(records: Sequence[Json], snapshot: int, parent: int | None, sequence: int) -> bytes:
    """Return the bytes of a manifest list."""
    about = {
        "snapshot-id": str(snapshot),
        "parent-snapshot-id": "null" if parent is None else str(parent),
        "sequence-number": str(sequence),
        "format-version": "2",
    }
    sink = io.BytesIO()
    fastavro.writer(sink, _LIST_SCHEMA, records, codec="deflate", metadata=about)
    return sink.getvalue()


def read_list(data: bytes) -> list[Json]:
    """Return the records of a manifest list. Raises BrokenManifestError."""
    needed = {field["name"] for field in _LIST_SCHEMA["fields"]}
    records = _read(data)
    if any(needed - record.keys() for record in records):
        raise BrokenManifestError(_OUTDATED)
    return records


def _read(data: bytes) -> list[Any]:
    try:
        return list(fastavro.reader(io.BytesIO(data)))
    except Exception as error:
        # fastavro raises bare exceptions of many kinds for bytes that are no Avro.
        raise BrokenManifestError(f"{type(error).__name__}: {error}") from error


def described(path: str, size: int, entries: Sequence[Json], **facts: Any) -> Json:
    """Return the record of a manifest in a manifest list."""
    counts = {EXISTING: [0, 0], ADDED: [0, 0], DELETED: [0, 0]}
    lowest = facts["sequence_number"]
    for entry in entries:
        count = counts[entry["status"]]
        count[0] += 1
        count[1] += entry["data_file"]["record_count"]
        if entry["status"] != DELETED and entry["sequence_number"] is not None:
            lowest = min(lowest, entry["sequence_number"])
    return {
        "manifest_path": path,
        "manifest_length": size,
        "min_sequence_number": lowest,
        "added_files_count": counts[ADDED][0],
        "existing_files_count": counts[EXISTING][0],
        "deleted_files_count": counts[DELETED][0],
        "added_rows_count": counts[ADDED][1],
        "existing_rows_count": counts[EXISTING][1],
        "deleted_rows_count": counts[DELETED][1],
        **facts,
    }


def live_files(record: Mapping[str, Any]) -> int:
    """Return the number of live files in a manifest."""
    return int(record["added_files_count"]) + int(record["existing_files_count"])


def added(file: Json, snapshot: int) -> Json:
    """Return the entry of a file that a snapshot adds."""
    return {
        "status": ADDED,
        "snapshot_id": snapshot,
        "sequence_number": None,
        "file_sequence_number": None,
        "data_file": file,
    }


# The description of a data file, with the bounds that Delta's log has of it.


def file_of(
    file: DataFile, path: str, rows: int, types: Mapping[str, tuple[int, Any]], parts: Partitioning
) -> Json:
    """Return the description of a data file; `types` are ids and types by column."""
    statistics = file.statistics()
    lows, highs, nulls = (statistics.get(k) or {} for k in ("minValues", "maxValues", "nullCount"))
    lowest, highest, missing = [], [], []
    for name, count in nulls.items() if isinstance(nulls, dict) else ():
        if name in types and isinstance(count, int):
            missing.append({"key": types[name][0], "value": count})
    for name, low in lows.items() if isinstance(lows, dict) else ():
        if name not in types:
            continue
        number, type_ = types[name]
        ends = bound(type_, low), bound(type_, highs.get(name), upper=True)
        if ends[0] is not None and ends[1] is not None:
            lowest.append({"key": number, "value": ends[0]})
            highest.append({"key": number, "value": ends[1]})
    counted = [{"key": count["key"], "value": rows} for count in missing]
    return {
        "content": ROWS,
        "file_path": path,
        "file_format": "PARQUET",
        "partition": parts.values(file.values),
        "record_count": rows,
        "file_size_in_bytes": file.size,
        "value_counts": counted or None,
        "null_value_counts": missing or None,
        "lower_bounds": lowest or None,
        "upper_bounds": highest or None,
        "referenced_data_file": None,
    }


def bound(type_: Any, value: Any, *, upper: bool = False) -> bytes | None:
    """Return a bound of Delta's log as Iceberg writes it; None if there is no exact one.

    Floating point gets none: the formats place NaN differently.
    """
    try:
        match type_:
            case "int" if type(value) is int:
                return value.to_bytes(4, "little", signed=True)
            case "long" if type(value) is int:
                return value.to_bytes(8, "little", signed=True)
            case "string" if isinstance(value, str):
                return value.encode()
            case "boolean" if type(value) is bool:
                return b"\1" if value else b"\0"
            case "date" if isinstance(value, str):
                days = (date.fromisoformat(value) - _EPOCH.date()).days
                return days.to_bytes(4, "little", signed=True)
            case "timestamptz" | "timestamp" if isinstance(value, str):
                return _moment(value, upper=upper)
            case str() if type_.startswith("decimal(") and isinstance(value, int):
                return _decimal(Decimal(value), type_)
    except (ValueError, OverflowError):
        return None
    return None


def _moment(text: str, *, upper: bool) -> bytes:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    microseconds = (moment - _EPOCH) // _MICROSECOND
    digits = len(text.rstrip("Z").partition("+")[0].rpartition(".")[2]) if "." in text else 0
    if upper and digits <= _MILLISECOND_DIGITS:
        # Spark cuts the microseconds off.
        microseconds += 999
    return microseconds.to_bytes(8, "little", signed=True)


def _decimal(value: Decimal, type_: str) -> bytes:
    scale = int(type_.rstrip(")").rpartition(",")[2])
    unscaled = int(value.scaleb(scale))
    return unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)
