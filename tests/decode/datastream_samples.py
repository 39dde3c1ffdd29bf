"""Datastream events out of thin air, as Avro and as JSON."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import fastavro
import pyarrow as pa

from distributary.decode.base import DecodeLimits
from distributary.decode.change.datastream.decoder import DatastreamDecoder
from distributary.decode.json.infer import infer
from distributary.model.change import ChangeSettings
from distributary.model.deadletter import Decoded
from distributary.model.record import Format, WriterSchema
from tests.decode.json_samples import writer_schema

TS = 1_737_457_695_000
STREAM = "projects/1/locations/l/streams/s"
UUID = "ee7534b0-71d8-4164-8ad8-1eaf{:08x}"
OPTIONAL_STRING, OPTIONAL_LONG = ["null", "string"], ["null", "long"]
NAMES = {"type": "array", "items": "string"}

_TOP: list[dict[str, Any]] = [
    {"name": "uuid", "type": "string"},
    {"name": "read_timestamp", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "source_timestamp", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "object", "type": "string"},
    {"name": "read_method", "type": "string"},
    {"name": "stream_name", "type": "string"},
    {"name": "schema_key", "type": "string"},
    {"name": "sort_keys", "type": {"type": "array", "items": ["string", "long"]}},
]
SOURCES: dict[str, dict[str, Any]] = {
    "mysql": {
        "table": "string",
        "database": "string",
        "primary_keys": NAMES,
        "log_file": OPTIONAL_STRING,
        "log_position": OPTIONAL_LONG,
        "change_type": OPTIONAL_STRING,
        "is_deleted": ["null", "boolean"],
    },
    "postgresql": {
        "schema": "string",
        "table": "string",
        "is_deleted": ["null", "boolean"],
        "change_type": OPTIONAL_STRING,
        "tx_id": OPTIONAL_LONG,
        "lsn": OPTIONAL_STRING,
        "primary_keys": ["null", NAMES],
    },
    "oracle": {
        "schema": "string",
        "table": "string",
        "database": "string",
        "row_id": OPTIONAL_STRING,
        "scn": OPTIONAL_LONG,
        "is_deleted": ["null", "boolean"],
        "change_type": OPTIONAL_STRING,
        "ssn": OPTIONAL_LONG,
        "rs_id": OPTIONAL_STRING,
        "tx_id": OPTIONAL_STRING,
        "log_file": OPTIONAL_STRING,
        "primary_keys": ["null", NAMES],
    },
    "sqlserver": {
        "table": "string",
        "database": "string",
        "schema": "string",
        "is_deleted": ["null", "boolean"],
        "lsn": OPTIONAL_STRING,
        "tx_id": OPTIONAL_STRING,
        "physical_location": ["null", NAMES],
        "replication_index": ["null", NAMES],
        "change_type": OPTIONAL_STRING,
    },
    "other": {"table": "string", "change_type": OPTIONAL_STRING},
}
METHODS = {
    "mysql": "mysql-cdc-binlog",
    "postgresql": "postgres-cdc-wal",
    "oracle": "oracle-cdc-logminer",
    "sqlserver": "sqlserver-cdc",
    "other": "salesforce-cdc",
}
COLUMNS: dict[str, Any] = {"id": ["null", "int"], "val": ["null", "string"]}


def _fields(types: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"name": name, "type": type_} for name, type_ in types.items()]


def avro_schema(kind: str = "mysql", columns: Mapping[str, Any] = COLUMNS) -> dict[str, Any]:
    """The schema of a file."""
    source = {"type": "record", "name": "source_metadata", "fields": _fields(SOURCES[kind])}
    row = {"type": "record", "name": "payload", "fields": _fields(columns)}
    fields = [*_TOP, {"name": "source_metadata", "type": source}, {"name": "payload", "type": row}]
    return copy.deepcopy({"type": "record", "name": "shop_orders", "fields": fields})


def event(
    number: int = 0,
    kind: str = "mysql",
    *,
    payload: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    **top: Any,
) -> dict[str, Any]:
    """An event as a dictionary; what is given takes the place of the usual."""
    every: dict[str, dict[str, Any]] = {
        "mysql": {
            "database": "shop",
            "primary_keys": ["id"],
            "log_file": "mysql-bin.000131",
            "log_position": 2550 + number,
        },
        "postgresql": {"schema": "public", "lsn": f"16/{number:X}", "primary_keys": ["id"]},
        "oracle": {
            "schema": "HR",
            "database": "XE",
            "row_id": f"AAAEAR{number}",
            "scn": 1_706_664 + number,
            "rs_id": " 0x0000e5.0000e5c7.0010 ",
            "ssn": 0,
            "primary_keys": ["id"],
        },
        "sqlserver": {
            "schema": "dbo",
            "database": "mydb",
            "lsn": f"00000025:00000728:{number:04x}",
            "replication_index": ["ID"],
        },
        "other": {},
    }
    source = {"table": "orders", "change_type": "INSERT", "is_deleted": False, **every[kind]}
    if "is_deleted" not in SOURCES[kind]:
        del source["is_deleted"]
    made = {
        "uuid": UUID.format(number),
        "read_timestamp": TS + 1_000,
        "source_timestamp": TS,
        "object": "shop_orders",
        "read_method": METHODS[kind],
        "stream_name": STREAM,
        "schema_key": "4911",
        "sort_keys": [TS, "mysql-bin.000131", 2550 + number],
        "source_metadata": {**source, **(metadata or {})},
        "payload": {"id": number, "val": "v"} if payload is None else dict(payload),
    }
    return made | top


def settings(source_type: str = "", backfill: Any = "before_cdc") -> ChangeSettings:
    return ChangeSettings("datastream", source_type, backfill)


def avro_decoder(schema: Any, told: ChangeSettings | None = None) -> DatastreamDecoder:
    return _decoder(json.dumps(schema).encode(), told or settings())


@cache
def _decoder(body: bytes, told: ChangeSettings) -> DatastreamDecoder:
    writer = WriterSchema(1, Format.AVRO, body, "shop_orders")
    return DatastreamDecoder(writer, told, DecodeLimits())


@cache
def _parsed(text: str) -> Any:
    return fastavro.parse_schema(json.loads(text))


def avro_data(schema: Any, events: Iterable[Mapping[str, Any]]) -> pa.BinaryArray:
    parsed = _parsed(json.dumps(schema))
    data = []
    for each in events:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, each)
        data.append(out.getvalue())
    return pa.array(data, pa.binary())


def json_data(events: Iterable[Any]) -> pa.BinaryArray:
    texts = [e if isinstance(e, bytes) else json.dumps(e).encode() for e in events]
    return pa.array(texts, pa.binary())


def json_decoder(data: pa.BinaryArray, told: ChangeSettings | None = None) -> DatastreamDecoder:
    shape = infer(data)
    assert shape is not None
    return DatastreamDecoder(writer_schema(shape), told or settings(), DecodeLimits())


def raw(count: int) -> pa.Table:
    return pa.table({"offset": pa.array(range(count), pa.int64())})


def decoded_avro(
    events: Sequence[Mapping[str, Any]],
    kind: str = "mysql",
    columns: Mapping[str, Any] = COLUMNS,
    told: ChangeSettings | None = None,
) -> Decoded:
    schema = avro_schema(kind, columns)
    data = avro_data(schema, events)
    return avro_decoder(schema, told).decode(data, raw(len(data)))


def decoded_json(events: Sequence[Any], told: ChangeSettings | None = None) -> Decoded:
    data = json_data(events)
    return json_decoder(data, told).decode(data, raw(len(data)))


def rows(decoded: Decoded) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = decoded.ok.to_pylist()
    return found


def codes(decoded: Decoded) -> dict[int, str]:
    return {failure.index: str(failure.code) for failure in decoded.failed}
