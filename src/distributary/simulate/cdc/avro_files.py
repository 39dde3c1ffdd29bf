"""Datastream's Avro files: one schema each, no compression, the same bytes for the same events."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable
from datetime import UTC, date, datetime
from functools import cached_property
from typing import Any

import fastavro

from distributary.simulate.cdc.kinds import Carried, micros, since_midnight
from distributary.simulate.cdc.plan import SourceType
from distributary.simulate.cdc.shapes import CdcColumn, Shape, avro_name

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_DAY = date(1970, 1, 1)
_SYNC_BYTES = 16
_BLOCK_BYTES = 16_000

_MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
_STRINGS = {"type": "array", "items": "string"}
_OUTCOME = (("is_deleted", ["null", "boolean"]), ("change_type", ["null", "string"]))
_METADATA: dict[SourceType, tuple[tuple[str, Any], ...]] = {
    SourceType.MYSQL: (
        ("table", "string"),
        ("database", "string"),
        ("primary_keys", _STRINGS),
        ("log_file", ["null", "string"]),
        ("log_position", ["null", "long"]),
        *reversed(_OUTCOME),
    ),
    SourceType.POSTGRESQL: (
        ("schema", "string"),
        ("table", "string"),
        *_OUTCOME,
        ("tx_id", ["null", "long"]),
        ("lsn", ["null", "string"]),
        ("primary_keys", ["null", _STRINGS]),
    ),
    SourceType.ORACLE: (
        ("schema", "string"),
        ("table", "string"),
        ("database", "string"),
        ("row_id", ["null", "string"]),
        ("scn", ["null", "long"]),
        *_OUTCOME,
        ("ssn", ["null", "long"]),
        ("rs_id", ["null", "string"]),
        ("tx_id", ["null", "string"]),
        ("log_file", ["null", "string"]),
        ("primary_keys", ["null", _STRINGS]),
    ),
    SourceType.SQLSERVER: (
        ("database", "string"),
        ("schema", "string"),
        ("table", "string"),
        *_OUTCOME,
        ("lsn", ["null", "string"]),
        ("tx_id", ["null", "string"]),
        ("physical_location", ["null", {"type": "array", "items": "long"}]),
        ("replication_index", ["null", _STRINGS]),
    ),
}

_PLAIN: dict[Carried, Any] = {
    Carried.INTEGER: "int",
    Carried.LONG: "long",
    Carried.NUMBER: {"type": "string", "logicalType": "number"},
    Carried.FLOAT: "float",
    Carried.DOUBLE: "double",
    Carried.STRING: "string",
    Carried.BOOLEAN: "boolean",
    Carried.DATE: {"type": "int", "logicalType": "date"},
    Carried.TIMESTAMP: {"type": "long", "logicalType": "timestamp-micros"},
    Carried.TIME: {"type": "long", "logicalType": "time-micros"},
    Carried.TIME_INTERVAL: {"type": "long", "logicalType": "time-interval-micros"},
    Carried.JSON: {"type": "string", "logicalType": "json"},
    Carried.BYTES: "bytes",
}
_RECORDS: dict[Carried, dict[str, Any]] = {
    Carried.DATETIME: {
        "type": "record",
        "name": "datetime",
        "fields": [
            {"name": "date", "type": "int", "logicalType": "date"},
            {"name": "time", "type": "long", "logicalType": "time-micros"},
        ],
    },
    Carried.TIMESTAMP_TZ: {
        "type": "record",
        "name": "timestampTz",
        "fields": [
            {"name": "timestamp", "type": _PLAIN[Carried.TIMESTAMP]},
            {"name": "offset", "type": {"type": "int", "logicalType": "time-millis"}},
        ],
    },
}


class AvroSchema:
    """The schema of a table's files while its columns stay the same."""

    def __init__(self, shape: Shape) -> None:
        self.text = json.dumps(_file_schema(shape), separators=(",", ":"))
        self.key = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        """What Datastream calls its `schema_key`."""
        self._carried = {column.name: column.carried for column in shape.columns}

    @cached_property
    def _parsed(self) -> Any:
        return fastavro.parse_schema(json.loads(self.text))

    def file(self, envelopes: Iterable[dict[str, Any]], *, name: str) -> bytes:
        """A whole file; its name makes the mark between its blocks."""
        sync = hashlib.sha256(name.encode()).digest()[:_SYNC_BYTES]
        records = map(self._record, envelopes)
        out = io.BytesIO()
        fastavro.writer(
            out, self._parsed, records, "null", sync_interval=_BLOCK_BYTES, sync_marker=sync
        )
        return out.getvalue()

    def _record(self, envelope: dict[str, Any]) -> dict[str, Any]:
        row = {
            name: _avro_value(value, self._carried[name])
            for name, value in envelope["payload"].items()
        }
        return envelope | {"payload": row}


def _avro_value(value: Any, carried: Carried) -> Any:
    """A typed value as the number, text or record that Avro has for it."""
    if value is None:
        return None
    match carried:
        case Carried.NUMBER:
            return format(value, "f")
        case Carried.DATE:
            return (value - _FIRST_DAY).days
        case Carried.TIME:
            return since_midnight(value)
        case Carried.TIME_INTERVAL:
            return micros(value)
        case Carried.TIMESTAMP:
            return micros(value - _EPOCH)
        case Carried.TIMESTAMP_TZ:
            offset = micros(value.utcoffset()) // 1_000
            return {"timestamp": micros(value - _EPOCH), "offset": offset}
        case Carried.DATETIME:
            return {
                "date": (value.date() - _FIRST_DAY).days,
                "time": since_midnight(value.time()),
            }
        case _:
            return value


def _file_schema(shape: Shape) -> dict[str, Any]:
    metadata = [{"name": name, "type": type} for name, type in _METADATA[shape.source_type]]
    fields = (
        ("uuid", "string"),
        ("read_timestamp", _MILLIS),
        ("source_timestamp", _MILLIS),
        ("object", "string"),
        ("read_method", "string"),
        ("stream_name", "string"),
        ("schema_key", "string"),
        ("sort_keys", {"type": "array", "items": ["string", "long"]}),
        ("source_metadata", {"type": "record", "name": "source_metadata", "fields": metadata}),
        ("payload", {"type": "record", "name": "payload", "fields": _payload_fields(shape)}),
    )
    return {
        "type": "record",
        "name": avro_name(shape.object),
        "fields": [{"name": name, "type": type} for name, type in fields],
    }


def _payload_fields(shape: Shape) -> list[dict[str, Any]]:
    fields, defined = [], set()
    for column in shape.columns:
        record = _RECORDS.get(column.carried)
        type: Any = _plain_type(column) if record is None else record
        if record is not None and record["name"] in defined:
            # a record is written out once, and called by its name from then on
            type = record["name"]
        elif record is not None:
            defined.add(record["name"])
        fields.append({"name": column.name, "type": ["null", type], "default": None})
    return fields


def _plain_type(column: CdcColumn) -> Any:
    if column.carried is Carried.DECIMAL:
        digits = {"precision": column.precision, "scale": column.scale}
        return {"type": "bytes", "logicalType": "decimal", **digits}
    return _PLAIN[column.carried]
