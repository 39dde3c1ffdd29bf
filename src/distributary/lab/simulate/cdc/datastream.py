"""Events to the bytes of a file, in the format of the plan."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cached_property
from typing import Any

import fastavro

from distributary.lab.simulate.cdc.database import Change, Op
from distributary.lab.simulate.cdc.shapes import (
    Carried,
    CdcColumn,
    CdcFormat,
    CdcPlan,
    Row,
    Shape,
    SourceType,
    avro_name,
    canonical,
    micros,
    since_midnight,
)

# Datastream's Avro files: one schema each, no compression, the same bytes for the same events.

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


# Datastream's JSON files: an event a line, or all of them in one array.

TIME_STYLES = 4
"""In how many ways the times of an event are written."""


def json_file(events: Iterable[bytes], plan: CdcPlan) -> bytes:
    """A whole file."""
    if plan.format is CdcFormat.JSON_ARRAY:
        data = b"[" + b",".join(events) + b"]"
    else:
        data = b"".join(event + b"\n" for event in events)
    # without the time of day, which gzip would write into the file
    return gzip.compress(data, mtime=0) if plan.gzip else data


def json_event(envelope: dict[str, Any], shape: Shape, *, time_style: int) -> bytes:
    """One event: always the same bytes, in whichever file it comes again."""
    times = {
        name: _envelope_time(envelope[name], time_style)
        for name in ("read_timestamp", "source_timestamp")
    }
    built = envelope | times | {"payload": _values(envelope["payload"], shape)}
    return json.dumps(built, ensure_ascii=False, separators=(",", ":")).encode()


def _values(row: Row, shape: Shape) -> Row:
    carried = {column.name: column.carried for column in shape.columns}
    return {name: _value(value, carried[name]) for name, value in row.items()}


def _value(value: Any, carried: Carried) -> Any:
    if value is None:
        return None
    match carried:
        case Carried.DECIMAL:
            return float(value)
        case Carried.JSON:
            return json.loads(value)
        case Carried.BYTES:
            return base64.b64encode(value).decode()
        case Carried.TIME_INTERVAL:
            return micros(value)
        case Carried.DATETIME:
            return value.replace(tzinfo=None).isoformat(timespec="microseconds")
        case Carried.TIMESTAMP_TZ:
            return value.isoformat(timespec="microseconds")
        case _:
            return canonical(value)


def _envelope_time(millis: int, style: int) -> str | int:
    moment = datetime.fromtimestamp(millis // 1_000, UTC).replace(
        microsecond=millis % 1_000 * 1_000, tzinfo=None
    )
    match style:
        case 0:
            return moment.isoformat(timespec="milliseconds") + "Z"
        case 1:
            return moment.isoformat(timespec="milliseconds")
        case 2:
            return moment.isoformat(" ", timespec="milliseconds")
        case _:
            return millis


# What Datastream says about a change: the fields around the row, as each database has them.

_HALF_LATER = 1_000
"""The second half of a change of key in MySQL states a time that is a second too late."""

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
class Event:
    """A change that was put into a file, where it got an id."""

    number: int
    """Counts the events of the stream: two with one number are one, sent twice."""
    change: Change
    uuid: str
    read_ts: int
    """When it was read, in milliseconds since 1970."""
    time_style: int = 0
    """How a JSON file writes its times."""


class Envelopes:
    """Builds the fields of events; times are still numbers, and values still typed."""

    def __init__(self, plan: CdcPlan) -> None:
        self._plan = plan
        self._stream = f"projects/545418958905/locations/us-central1/streams/simulated-{plan.seed}"

    def read_method(self, change: Change) -> str:
        """How an event was read."""
        read = change.op is Op.READ
        if self._plan.bare_methods:
            return "backfill" if read else "cdc"
        change_log, first, again = _METHODS[self._plan.source_type]
        if not read:
            return change_log
        return first if change.filed <= self._plan.start_millis else again

    def build(self, event: Event, *, schema_key: str) -> dict[str, Any]:
        """All fields of an event, in the order in which real files have them."""
        change, told = event.change, stated_time(event.change)
        return {
            "uuid": event.uuid,
            "read_timestamp": event.read_ts,
            "source_timestamp": told,
            "object": change.shape.object,
            "read_method": self.read_method(change),
            "stream_name": self._stream,
            "schema_key": schema_key,
            "sort_keys": [told, *_sort_keys(change)],
            "source_metadata": source_metadata(change),
            "payload": payload(change),
        }


def stated_time(change: Change) -> int:
    """The source's time as the event states it."""
    mysql = change.shape.source_type is SourceType.MYSQL
    return change.ts + (_HALF_LATER if mysql and change.op is Op.KEY_INSERT else 0)


def change_type(change: Change) -> str:
    """`INSERT`, `UPDATE`, `DELETE`, and what MySQL says instead."""
    mysql = change.shape.source_type is SourceType.MYSQL
    return (_MYSQL_CHANGE_TYPES if mysql else _CHANGE_TYPES)[change.op]


def payload(change: Change) -> Row:
    """The row; PostgreSQL remembers of a deleted one only its key, if it has one."""
    shape, forgets = change.shape, change.shape.source_type is SourceType.POSTGRESQL
    if forgets and change.deleted and shape.key:
        return {name: change.row[name] if name in shape.key else None for name in shape.names}
    return change.row


def source_metadata(change: Change) -> dict[str, Any]:
    """The fields that are different for each database."""
    shape, told = change.shape, change.position.told
    outcome = {"is_deleted": change.deleted, "change_type": change_type(change)}
    keys = list(shape.stated_key)
    match shape.source_type:
        case SourceType.MYSQL:
            return {
                "table": shape.table,
                "database": shape.database,
                "primary_keys": keys,
                "log_file": told["log_file"],
                "log_position": told["log_position"],
                **dict(reversed(outcome.items())),
            }
        case SourceType.POSTGRESQL:
            log = {"tx_id": told.get("tx_id"), "lsn": told.get("lsn")}
            names = {"schema": shape.schema, "table": shape.table}
            return {**names, **outcome, **log, "primary_keys": keys}
        case SourceType.ORACLE:
            return {
                "schema": shape.schema,
                "table": shape.table,
                "database": shape.database,
                "row_id": row_id(change.serial),
                "scn": told["scn"],
                **outcome,
                "ssn": told["ssn"],
                "rs_id": told["rs_id"],
                "tx_id": told.get("tx_id"),
                "log_file": "",
                "primary_keys": keys,
            }
        case SourceType.SQLSERVER:
            names = {"database": shape.database, "schema": shape.schema, "table": shape.table}
            log = {"lsn": told.get("lsn"), "tx_id": told.get("tx_id")}
            place = [1, change.serial // 64, change.serial % 64]
            return {
                **names,
                **outcome,
                **log,
                "physical_location": place,
                "replication_index": keys,
            }


def _sort_keys(change: Change) -> list[Any]:
    told = change.position.told
    match change.shape.source_type:
        case SourceType.MYSQL:
            # newer files have numbers where there is no log
            missing = told["log_file"] is None
            return [0, 0] if missing else [told["log_file"], told["log_position"]]
        case SourceType.ORACLE:
            return [told["scn"], told["rs_id"], told["ssn"]]
        case _:
            return [told["lsn"]] if "lsn" in told else []


def row_id(serial: int) -> str:
    """Oracle's address of a row: it stays when the key changes."""
    tail = base64.b64encode(serial.to_bytes(9, "big")).decode()
    return f"AAAEAR{tail}".replace("=", "A")


_SUFFIXES = {CdcFormat.AVRO: ".avro", CdcFormat.JSON: ".jsonl", CdcFormat.JSON_ARRAY: ".json"}


class FileEncoder:
    """Writes files of events; knows the schema of each shape that a table ever had."""

    def __init__(self, plan: CdcPlan) -> None:
        self._plan = plan
        self._envelopes = Envelopes(plan)
        self._schemas: dict[Shape, AvroSchema] = {}

    @property
    def suffix(self) -> str:
        """What names of files end with."""
        return _SUFFIXES[self._plan.format] + (".gz" if self._plan.gzip else "")

    def schema(self, shape: Shape) -> AvroSchema:
        """The schema of a table's files; files in JSON name it, too."""
        if shape not in self._schemas:
            self._schemas[shape] = AvroSchema(shape)
        return self._schemas[shape]

    def read_method(self, change: Change) -> str:
        """How an event was read."""
        return self._envelopes.read_method(change)

    def file(self, events: Sequence[Event], shape: Shape, *, name: str) -> bytes:
        """A whole file."""
        schema = self.schema(shape)
        built = [self._envelopes.build(event, schema_key=schema.key) for event in events]
        if self._plan.format is CdcFormat.AVRO:
            return schema.file(built, name=name)
        lines = [
            json_event(envelope, shape, time_style=event.time_style)
            for envelope, event in zip(built, events, strict=True)
        ]
        return json_file(lines, self._plan)
