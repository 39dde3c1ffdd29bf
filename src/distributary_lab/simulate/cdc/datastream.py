"""Encoding of change events as Datastream files in Avro and JSON."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import fastavro

from distributary_lab.simulate.cdc.shapes import (
    EPOCH,
    Carried,
    CdcFormat,
    CdcPlan,
    Row,
    SourceShape,
    SourceType,
    avro_name,
    canonical,
    days,
    micros,
    since_midnight,
)
from distributary_lab.simulate.cdc.simulated_database import Op, SourceChange

# Avro files: one schema each, no compression, the same bytes for the same events.

_SYNC_BYTES = 16
_BLOCK_BYTES = 16_000

_MILLIS = {"type": "long", "logicalType": "timestamp-millis"}

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

    def __init__(self, shape: SourceShape) -> None:
        self.text = json.dumps(_file_schema(shape), separators=(",", ":"))
        self.key = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        """The `schema_key` of Datastream."""
        self._shape = shape

    @cached_property
    def _parsed(self) -> Any:
        return fastavro.parse_schema(json.loads(self.text))

    def file(self, envelopes: Iterable[dict[str, Any]], *, name: str) -> bytes:
        """Return the bytes of a file; its name determines the sync marker."""
        sync = hashlib.sha256(name.encode()).digest()[:_SYNC_BYTES]
        records = map(self._record, envelopes)
        out = io.BytesIO()
        fastavro.writer(
            out, self._parsed, records, "null", sync_interval=_BLOCK_BYTES, sync_marker=sync
        )
        return out.getvalue()

    def _record(self, envelope: dict[str, Any]) -> dict[str, Any]:
        return envelope | {"payload": _written(envelope["payload"], self._shape, _AVRO, _unchanged)}


Writer = Callable[[Any], Any]


def _unchanged(value: Any) -> Any:
    return value


_AVRO: dict[Carried, Writer] = {
    Carried.NUMBER: lambda value: format(value, "f"),
    Carried.DATE: days,
    Carried.TIME: since_midnight,
    Carried.TIME_INTERVAL: micros,
    Carried.TIMESTAMP: lambda value: micros(value - EPOCH),
    Carried.TIMESTAMP_TZ: lambda value: {
        "timestamp": micros(value - EPOCH),
        "offset": micros(value.utcoffset()) // 1_000,
    },
    Carried.DATETIME: lambda value: {
        "date": days(value.date()),
        "time": since_midnight(value.time()),
    },
}
"""Conversions of carried values to Avro; other values are written unchanged."""


def _written(row: Row, shape: SourceShape, writers: dict[Carried, Writer], rest: Writer) -> Row:
    """Convert the values of a row for a format."""
    return {
        column.name: None
        if (value := row[column.name]) is None
        else writers.get(column.carried, rest)(value)
        for column in shape.columns
    }


def _file_schema(shape: SourceShape) -> dict[str, Any]:
    source = shape.source_type
    metadata = [
        {"name": name, "type": _TYPES.get((source, name), _METADATA[name][0])}
        for name in _METADATA_OF[source].split()
    ]
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
        ("payload", {"type": "record", "name": "payload", "fields": [*_payload_fields(shape)]}),
    )
    return {
        "type": "record",
        "name": avro_name(shape.object),
        "fields": [{"name": name, "type": type} for name, type in fields],
    }


def _payload_fields(shape: SourceShape) -> Iterator[dict[str, Any]]:
    defined = set()
    for column in shape.columns:
        type: Any = _PLAIN.get(column.carried)
        if column.carried is Carried.DECIMAL:
            digits = {"precision": column.precision, "scale": column.scale}
            type = {"type": "bytes", "logicalType": "decimal", **digits}
        elif record := _RECORDS.get(column.carried):
            # a record is defined once, and referred to by name after that
            type = record["name"] if record["name"] in defined else record
            defined.add(record["name"])
        yield {"name": column.name, "type": ["null", type], "default": None}


# JSON files: one event per line, or all events in one array.

TIME_STYLES = 4
"""Number of formats for the times of an event."""


def json_file(events: Iterable[bytes], plan: CdcPlan) -> bytes:
    """Return the bytes of a file."""
    if plan.format is CdcFormat.JSON_ARRAY:
        data = b"[" + b",".join(events) + b"]"
    else:
        data = b"".join(event + b"\n" for event in events)
    # gzip would write the current time into the file
    return gzip.compress(data, mtime=0) if plan.gzip else data


def json_event(envelope: dict[str, Any], shape: SourceShape, *, time_style: int) -> bytes:
    """Return the bytes of one event, which are the same in every file that repeats it."""
    times = {
        name: _envelope_time(envelope[name], time_style)
        for name in ("read_timestamp", "source_timestamp")
    }
    built = envelope | times | {"payload": _written(envelope["payload"], shape, _JSON, canonical)}
    return json.dumps(built, ensure_ascii=False, separators=(",", ":")).encode()


_JSON: dict[Carried, Writer] = {
    Carried.DECIMAL: float,
    Carried.JSON: json.loads,
    Carried.BYTES: lambda value: base64.b64encode(value).decode(),
    Carried.TIME_INTERVAL: micros,
    Carried.DATETIME: lambda value: value.replace(tzinfo=None).isoformat(timespec="microseconds"),
    Carried.TIMESTAMP_TZ: lambda value: value.isoformat(timespec="microseconds"),
}
"""Conversions of carried values to JSON; other values are canonical."""


def _envelope_time(millis: int, style: int) -> str | int:
    moment = datetime.fromtimestamp(millis // 1_000, UTC).replace(
        microsecond=millis % 1_000 * 1_000, tzinfo=None
    )
    match style:
        case 0 | 1:
            return moment.isoformat(timespec="milliseconds") + ("" if style else "Z")
        case 2:
            return moment.isoformat(" ", timespec="milliseconds")
        case _:
            return millis


# The envelope of an event, with the fields of each database.

_HALF_LATER = 1_000
"""Milliseconds by which MySQL's second half of a change of key states a time too late."""

_METHODS = {
    SourceType.MYSQL: ("mysql-cdc-binlog", "mysql-backfill-fulldump", "mysql-backfill-incremental"),
    SourceType.POSTGRESQL: ("postgres-cdc-wal", "postgresql-backfill", "postgresql-backfill"),
    SourceType.ORACLE: ("oracle-cdc-logminer", "oracle-backfill", "oracle-backfill"),
    SourceType.SQLSERVER: ("sqlserver-cdc", "sqlserver-backfill", "sqlserver-backfill"),
}
_CHANGE_TYPES = {
    Op.READ: "INSERT",
    Op.INSERT: "INSERT",
    Op.UPDATE: "UPDATE",
    Op.DELETE: "DELETE",
    Op.KEY_DELETE: "DELETE",
    Op.KEY_INSERT: "INSERT",
}
_MYSQL_CHANGE_TYPES = _CHANGE_TYPES | {
    Op.UPDATE: "UPDATE-INSERT",
    Op.KEY_DELETE: "UPDATE-DELETE",
    Op.KEY_INSERT: "UPDATE-INSERT",
}


@dataclass(frozen=True, slots=True)
class NumberedEvent:
    """A change in a file, with its id."""

    number: int
    """Number of the event in the stream; events with the same number are duplicates."""
    change: SourceChange
    uuid: str
    read_ts: int
    """Time of reading, in milliseconds since 1970."""
    time_style: int = 0
    """The format of times in a JSON file."""


def change_type(change: SourceChange) -> str:
    """Return `INSERT`, `UPDATE` or `DELETE`, or MySQL's names for them."""
    mysql = change.shape.source_type is SourceType.MYSQL
    return (_MYSQL_CHANGE_TYPES if mysql else _CHANGE_TYPES)[change.op]


def row_id(serial: int) -> str:
    """Return Oracle's address of a row, which stays when the key changes."""
    tail = base64.b64encode(serial.to_bytes(9, "big")).decode()
    return f"AAAEAR{tail}".replace("=", "A")


def _position_field(name: str, *, missing: Any = None) -> Callable[[SourceChange], Any]:
    return lambda change: change.position.event_fields.get(name, missing)


def _key(change: SourceChange) -> list[str]:
    return list(change.shape.stated_key)


_STRINGS = {"type": "array", "items": "string"}
_METADATA: dict[str, tuple[Any, Callable[[SourceChange], Any]]] = {
    "table": ("string", lambda change: change.shape.table),
    "database": ("string", lambda change: change.shape.database),
    "schema": ("string", lambda change: change.shape.schema),
    "is_deleted": (["null", "boolean"], lambda change: change.deleted),
    "change_type": (["null", "string"], change_type),
    "primary_keys": (["null", _STRINGS], _key),
    "replication_index": (["null", _STRINGS], _key),
    "log_file": (["null", "string"], _position_field("log_file", missing="")),
    "log_position": (["null", "long"], _position_field("log_position")),
    "lsn": (["null", "string"], _position_field("lsn")),
    "tx_id": (["null", "string"], _position_field("tx_id")),
    "scn": (["null", "long"], _position_field("scn")),
    "ssn": (["null", "long"], _position_field("ssn")),
    "rs_id": (["null", "string"], _position_field("rs_id")),
    "row_id": (["null", "string"], lambda change: row_id(change.serial)),
    "physical_location": (
        ["null", {"type": "array", "items": "long"}],
        lambda change: [1, *divmod(change.serial, 64)],
    ),
}
"""Avro type and value of the metadata fields of all databases."""
_METADATA_OF = {
    SourceType.MYSQL: "table database primary_keys log_file log_position change_type is_deleted",
    SourceType.POSTGRESQL: "schema table is_deleted change_type tx_id lsn primary_keys",
    SourceType.ORACLE: "schema table database row_id scn is_deleted change_type ssn rs_id tx_id "
    "log_file primary_keys",
    SourceType.SQLSERVER: "database schema table is_deleted change_type lsn tx_id "
    "physical_location replication_index",
}
_TYPES: dict[tuple[SourceType, str], Any] = {
    (SourceType.MYSQL, "primary_keys"): _STRINGS,
    (SourceType.POSTGRESQL, "tx_id"): ["null", "long"],
}
"""Avro types of metadata fields that differ for one database."""


def _sort_keys(change: SourceChange) -> list[Any]:
    event_fields = change.position.event_fields
    match change.shape.source_type:
        case SourceType.MYSQL:
            # newer files have numbers here when there is no log position
            missing = event_fields["log_file"] is None
            return [0, 0] if missing else [event_fields["log_file"], event_fields["log_position"]]
        case SourceType.ORACLE:
            return [event_fields["scn"], event_fields["rs_id"], event_fields["ssn"]]
        case _:
            return [event_fields["lsn"]] if "lsn" in event_fields else []


def _payload(change: SourceChange) -> Row:
    """Return the row; PostgreSQL logs only the key of a deleted row, if it has one."""
    shape, keeps_key_only = change.shape, change.shape.source_type is SourceType.POSTGRESQL
    if keeps_key_only and change.deleted and shape.key:
        return {name: change.row[name] if name in shape.key else None for name in shape.names}
    return change.row


_SUFFIXES = {CdcFormat.AVRO: ".avro", CdcFormat.JSON: ".jsonl", CdcFormat.JSON_ARRAY: ".json"}


class FileEncoder:
    """An encoder of files, with the schema of every shape that a table had."""

    def __init__(self, plan: CdcPlan) -> None:
        self._plan = plan
        self._stream = f"projects/545418958905/locations/us-central1/streams/simulated-{plan.seed}"
        self._schemas: dict[SourceShape, AvroSchema] = {}
        self.suffix = _SUFFIXES[plan.format] + (".gz" if plan.gzip else "")
        """The suffix of file names."""

    def schema(self, shape: SourceShape) -> AvroSchema:
        """Return the schema of a table's files; JSON files name it too."""
        if shape not in self._schemas:
            self._schemas[shape] = AvroSchema(shape)
        return self._schemas[shape]

    def read_method(self, change: SourceChange) -> str:
        """Return the read method of an event."""
        read = change.op is Op.READ
        if self._plan.bare_methods:
            return "backfill" if read else "cdc"
        change_log, first, again = _METHODS[self._plan.source_type]
        if not read:
            return change_log
        return first if change.filed <= self._plan.start_millis else again

    def file(self, events: Sequence[NumberedEvent], shape: SourceShape, *, name: str) -> bytes:
        """Return the bytes of a file."""
        schema = self.schema(shape)
        built = [self._envelope(event, schema.key) for event in events]
        if self._plan.format is CdcFormat.AVRO:
            return schema.file(built, name=name)
        lines = [
            json_event(envelope, shape, time_style=event.time_style)
            for envelope, event in zip(built, events, strict=True)
        ]
        return json_file(lines, self._plan)

    def _envelope(self, event: NumberedEvent, schema_key: str) -> dict[str, Any]:
        """Return all fields in the order of real files, with times as numbers and typed values."""
        change, source = event.change, event.change.shape.source_type
        late = source is SourceType.MYSQL and change.op is Op.KEY_INSERT
        stated = change.ts + (_HALF_LATER if late else 0)
        return {
            "uuid": event.uuid,
            "read_timestamp": event.read_ts,
            "source_timestamp": stated,
            "object": change.shape.object,
            "read_method": self.read_method(change),
            "stream_name": self._stream,
            "schema_key": schema_key,
            "sort_keys": [stated, *_sort_keys(change)],
            "source_metadata": {
                name: _METADATA[name][1](change) for name in _METADATA_OF[source].split()
            },
            "payload": _payload(change),
        }
