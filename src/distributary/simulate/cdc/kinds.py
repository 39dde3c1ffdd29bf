"""Kinds of column, and what becomes of each on its way through a stream."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any

from distributary.simulate.cdc.plan import CdcFormat, SourceType


class Kind(StrEnum):
    """What a database calls a column, more or less."""

    INT = "int"
    BIGINT = "bigint"
    NUMBER = "number"
    """A number of any size: without a precision, or unsigned with 64 bits."""
    DECIMAL = "decimal"
    FLOAT = "float"
    DOUBLE = "double"
    TEXT = "text"
    LONG_TEXT = "long_text"
    ENUM = "enum"
    UUID = "uuid"
    BOOL = "bool"
    DATE = "date"
    DATETIME = "datetime"
    """Without a zone."""
    TIMESTAMP = "timestamp"
    TIME = "time"
    JSON = "json"
    BINARY = "binary"


class Carried(StrEnum):
    """What a stream says about a value; Datastream calls these unified types."""

    INTEGER = "integer"
    LONG = "long"
    NUMBER = "number"
    DECIMAL = "decimal"
    FLOAT = "float"
    DOUBLE = "double"
    STRING = "string"
    BOOLEAN = "boolean"
    DATE = "date"
    DATETIME = "datetime"
    TIMESTAMP = "timestamp"
    TIMESTAMP_TZ = "timestamp_tz"
    TIME = "time"
    TIME_INTERVAL = "time_interval"
    JSON = "json"
    BYTES = "bytes"


_EVERYWHERE = {
    Kind.INT: Carried.INTEGER,
    Kind.BIGINT: Carried.LONG,
    Kind.NUMBER: Carried.NUMBER,
    Kind.DECIMAL: Carried.DECIMAL,
    Kind.FLOAT: Carried.FLOAT,
    Kind.DOUBLE: Carried.DOUBLE,
    Kind.TEXT: Carried.STRING,
    Kind.LONG_TEXT: Carried.STRING,
    Kind.ENUM: Carried.STRING,
    Kind.UUID: Carried.STRING,
    Kind.BOOL: Carried.BOOLEAN,
    Kind.DATE: Carried.DATE,
    Kind.DATETIME: Carried.DATETIME,
    Kind.TIMESTAMP: Carried.TIMESTAMP_TZ,
    Kind.TIME: Carried.TIME,
    Kind.JSON: Carried.JSON,
    Kind.BINARY: Carried.BYTES,
}

# the real files know no dates of MySQL, and its bytes as text in hexadecimal only
_IN_FILES = {
    SourceType.MYSQL: {
        Kind.BOOL: Carried.INTEGER,
        Kind.DATE: Carried.TIMESTAMP,
        Kind.DATETIME: Carried.TIMESTAMP,
        Kind.TIMESTAMP: Carried.TIMESTAMP,
        Kind.TIME: Carried.TIME_INTERVAL,
        Kind.BINARY: Carried.STRING,
    },
    SourceType.POSTGRESQL: {Kind.DATETIME: Carried.TIMESTAMP},
    SourceType.ORACLE: {
        Kind.BOOL: Carried.INTEGER,
        Kind.DATE: Carried.DATETIME,
        Kind.DATETIME: Carried.TIMESTAMP,
        Kind.TIME: Carried.STRING,
        Kind.JSON: Carried.STRING,
        Kind.BINARY: Carried.STRING,
    },
    SourceType.SQLSERVER: {Kind.NUMBER: Carried.DECIMAL, Kind.JSON: Carried.STRING},
}

_IN_MESSAGES = {
    SourceType.MYSQL: {Kind.NUMBER: Carried.DECIMAL},
    SourceType.POSTGRESQL: {},
    SourceType.ORACLE: {
        Kind.BOOL: Carried.INTEGER,
        Kind.DATE: Carried.DATETIME,
        Kind.TIME: Carried.STRING,
        Kind.JSON: Carried.STRING,
    },
    SourceType.SQLSERVER: {Kind.NUMBER: Carried.DECIMAL, Kind.JSON: Carried.STRING},
}


def carried_as(kind: Kind, source_type: SourceType, format: CdcFormat) -> Carried:
    """What a stream of this format says about such a column of this database."""
    special = _IN_MESSAGES if format is CdcFormat.DEBEZIUM else _IN_FILES
    return special[source_type].get(kind, _EVERYWHERE[kind])


def carry(value: Any, carried: Carried) -> Any:
    """A value of the database as the Python value that a faithful reader of the stream has."""
    match value:
        case bool() if carried is Carried.INTEGER:
            return int(value)
        case datetime():
            return value
        case date() if carried in (Carried.TIMESTAMP, Carried.DATETIME):
            return datetime(value.year, value.month, value.day, tzinfo=UTC)
        case timedelta() if carried is Carried.STRING:
            return interval_text(value)
        case timedelta() if carried is Carried.TIME:
            return (datetime.min + value).time()
        case bytes() if carried is Carried.STRING:
            return value.hex()
        case dict() | list():
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        case _:
            return value


def canonical(value: Any) -> Any:
    """A carried value as JSON that is the same wherever it was read from.

    Decimals are text, times ISO 8601 (moments in UTC, always with microseconds), bytes hexadecimal.
    """
    match value:
        case Decimal():
            return format(value, "f")
        case datetime():
            return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        case date():
            return value.isoformat()
        case time():
            return value.isoformat("microseconds")
        case timedelta():
            return interval_text(value)
        case bytes():
            return value.hex()
        case _:
            return value


def micros(value: timedelta) -> int:
    """A span of time in microseconds."""
    return value // timedelta(microseconds=1)


def since_midnight(value: time) -> int:
    """A time of day in microseconds."""
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return seconds * 1_000_000 + value.microsecond


def interval_text(value: timedelta) -> str:
    """`-838:59:59.000000`: hours may be more than a day has, and below zero."""
    count = abs(micros(value))
    minutes, rest = divmod(count // 1_000_000, 60)
    sign = "-" if value < timedelta() else ""
    return f"{sign}{minutes // 60:02}:{minutes % 60:02}:{rest:02}.{count % 1_000_000:06}"
