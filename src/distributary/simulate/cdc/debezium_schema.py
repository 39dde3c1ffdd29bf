"""The schemas that Kafka Connect's JSON converter writes into each message."""

from __future__ import annotations

from functools import cache
from typing import Any

from distributary.simulate.cdc.debezium_types import connect_fields
from distributary.simulate.cdc.plan import SourceType
from distributary.simulate.cdc.shapes import Shape

_ENVELOPE_VERSION = 2
_HEAD = (
    ("version", "string", False),
    ("connector", "string", False),
    ("name", "string", False),
    ("ts_ms", "int64", False),
    ("snapshot", "string", True),
    ("db", "string", False),
    ("sequence", "string", True),
    ("ts_us", "int64", True),
    ("ts_ns", "int64", True),
)
_PLACES = {
    SourceType.MYSQL: (
        ("table", "string", True),
        ("server_id", "int64", False),
        ("gtid", "string", True),
        ("file", "string", False),
        ("pos", "int64", False),
        ("row", "int32", False),
        ("thread", "int64", True),
        ("query", "string", True),
    ),
    SourceType.POSTGRESQL: (
        ("schema", "string", False),
        ("table", "string", False),
        ("txId", "int64", True),
        ("lsn", "int64", True),
        ("xmin", "int64", True),
    ),
    SourceType.ORACLE: (
        ("schema", "string", False),
        ("table", "string", False),
        ("txId", "string", True),
        ("scn", "string", True),
        ("commit_scn", "string", True),
        ("rs_id", "string", True),
        ("ssn", "int64", True),
        ("redo_thread", "int32", True),
        ("user_name", "string", True),
        ("row_id", "string", True),
    ),
    SourceType.SQLSERVER: (
        ("schema", "string", False),
        ("table", "string", False),
        ("change_lsn", "string", True),
        ("commit_lsn", "string", True),
        ("event_serial_no", "int64", True),
    ),
}


@cache
def key_schema(shape: Shape, topic: str) -> dict[str, Any]:
    """Of a message's key."""
    columns = tuple(shape.column(name) for name in shape.key)
    return {
        "type": "struct",
        "fields": connect_fields(columns),
        "optional": False,
        "name": f"{topic}.Key",
    }


@cache
def value_schema(shape: Shape, topic: str) -> dict[str, Any]:
    """Of a message's value."""
    row = {
        "type": "struct",
        "fields": connect_fields(shape.columns),
        "optional": True,
        "name": f"{topic}.Value",
    }
    source = {
        "type": "struct",
        "fields": _plain(_HEAD + _PLACES[shape.source_type]),
        "optional": False,
        "name": f"io.debezium.connector.{shape.source_type}.Source",
        "version": 1,
        "field": "source",
    }
    block = {
        "type": "struct",
        "fields": _plain(
            (
                ("id", "string", False),
                ("total_order", "int64", False),
                ("data_collection_order", "int64", False),
            )
        ),
        "optional": True,
        "name": "event.block",
        "version": 1,
        "field": "transaction",
    }
    times = (("op", "string", False), ("ts_ms", "int64", True), ("ts_us", "int64", True))
    return {
        "type": "struct",
        "fields": [
            {**row, "field": "before"},
            {**row, "field": "after"},
            source,
            block,
            *_plain((*times, ("ts_ns", "int64", True))),
        ],
        "optional": False,
        "name": f"{topic}.Envelope",
        "version": _ENVELOPE_VERSION,
    }


def _plain(fields: tuple[tuple[str, str, bool], ...]) -> list[dict[str, Any]]:
    return [{"type": type, "optional": optional, "field": name} for name, type, optional in fields]
