"""Values and schemas of columns as Kafka Connect has them in JSON."""

from __future__ import annotations

import base64
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from distributary.simulate.cdc.kinds import Carried, micros, since_midnight
from distributary.simulate.cdc.plan import SourceType
from distributary.simulate.cdc.shapes import CdcColumn, Row, Shape

UNAVAILABLE = "__debezium_unavailable_value"
"""Stands for a long value that PostgreSQL did not log, because it did not change."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_DAY = date(1970, 1, 1)
_IN_UTC = (SourceType.MYSQL, SourceType.POSTGRESQL)
_DECIMAL = "org.apache.kafka.connect.data.Decimal"

_TYPES: dict[Carried, dict[str, Any]] = {
    Carried.INTEGER: {"type": "int32"},
    Carried.LONG: {"type": "int64"},
    Carried.FLOAT: {"type": "float"},
    Carried.DOUBLE: {"type": "double"},
    Carried.STRING: {"type": "string"},
    Carried.BOOLEAN: {"type": "boolean"},
    Carried.BYTES: {"type": "bytes"},
    Carried.DATE: {"type": "int32", "name": "io.debezium.time.Date", "version": 1},
    Carried.DATETIME: {"type": "int64", "name": "io.debezium.time.MicroTimestamp", "version": 1},
    Carried.TIMESTAMP: {"type": "string", "name": "io.debezium.time.ZonedTimestamp", "version": 1},
    Carried.TIME: {"type": "int64", "name": "io.debezium.time.MicroTime", "version": 1},
    Carried.JSON: {"type": "string", "name": "io.debezium.data.Json", "version": 1},
    Carried.NUMBER: {
        "type": "struct",
        "fields": [
            {"type": "int32", "optional": False, "field": "scale"},
            {"type": "bytes", "optional": False, "field": "value"},
        ],
        "name": "io.debezium.data.VariableScaleDecimal",
        "version": 1,
    },
}
_TYPES[Carried.TIMESTAMP_TZ] = _TYPES[Carried.TIMESTAMP]


def connect_row(row: Row, shape: Shape) -> Row:
    """A row's values as JSON has them."""
    return {
        column.name: _value(row.get(column.name), column, shape.source_type)
        for column in shape.columns
    }


def connect_fields(columns: tuple[CdcColumn, ...]) -> list[dict[str, Any]]:
    """The fields of a struct with these columns."""
    return [_field(column) for column in columns]


def _field(column: CdcColumn) -> dict[str, Any]:
    optional = {"optional": column.nullable, "field": column.name}
    if column.carried is Carried.DECIMAL:
        digits = {"scale": str(column.scale), "connect.decimal.precision": str(column.precision)}
        named = {"name": _DECIMAL, "version": 1, "parameters": digits}
        return {"type": "bytes", **named, **optional}
    return {**_TYPES[column.carried], **optional}


def _value(value: Any, column: CdcColumn, source_type: SourceType) -> Any:
    if value is None:
        return None
    match column.carried:
        case Carried.DECIMAL:
            return _unscaled(value, column.scale)
        case Carried.NUMBER:
            scale = max(0, -int(value.as_tuple().exponent))
            return {"scale": scale, "value": _unscaled(value, scale)}
        case Carried.BYTES:
            return base64.b64encode(value).decode()
        case Carried.DATE:
            return (value - _FIRST_DAY).days
        case Carried.TIME:
            return since_midnight(value)
        case Carried.DATETIME:
            return micros(value - _EPOCH)
        case Carried.TIMESTAMP | Carried.TIMESTAMP_TZ:
            moment = value.astimezone(UTC) if source_type in _IN_UTC else value
            return moment.isoformat().replace("+00:00", "Z")
        case _:
            return value


def _unscaled(value: Decimal, scale: int) -> str:
    number = int(value.scaleb(scale))
    return base64.b64encode(
        number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)
    ).decode()
