"""The entry of Canal: changes of MySQL as flat messages, JSON with the rows of one statement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from distributary.decode.base import DecodeLimits
from distributary.decode.change.base import (
    CHANGE,
    OTHER,
    ChangeDecoder,
    ChangeFormat,
    Named,
    Recognized,
    Records,
    Sampled,
    claim,
    mostly,
)
from distributary.decode.change.json_rows import (
    EventRecord,
    EventRows,
    RowChange,
    RowsDecoder,
    TypedRows,
    carried_types,
    parsed,
    refuse,
    text_in,
    with_old_key,
)
from distributary.errors import ErrorCode
from distributary.model.change import ChangeSettings
from distributary.model.record import Format, WriterSchema

_OPS = {"INSERT": "insert", "UPDATE": "update", "DELETE": "delete"}
_BYTES = ("binary", "varbinary", "blob", "tinyblob", "mediumblob", "longblob")
_LONGEST_TYPE = 10_000
_WORDS = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "integer", "year"), "int64"),
    **dict.fromkeys(("float", "double", "real", "double precision"), "float64"),
    **dict.fromkeys(("datetime", "timestamp"), "timestamp"),
    **dict.fromkeys(_BYTES, "latin1"),
    **dict.fromkeys(("boolean", "bool"), "int64"),
    "bigint": "int64",
    "date": "date",
}
"""The column types by MySQL's type; all other types are text."""
_CODES = {
    **dict.fromkeys((-6, -5, 4, 5), "int64"),
    **dict.fromkeys((6, 7, 8), "float64"),
    **dict.fromkeys((-4, -3, -2, 2004), "latin1"),
    91: "date",
    93: "timestamp",
}
"""The column types by the number of a type in `java.sql.Types`."""
_LATEST_MS = 253_402_300_799_999
_NO_ENVELOPE = ("data", "old", "mysqlType", "sqlType")


class Canal(ChangeFormat):
    """Events name database and table, and carry MySQL's type of each column."""

    name = "canal"
    label = "Canal"
    images = ("data",)

    def decoder(
        self,
        schema: WriterSchema,
        settings: ChangeSettings,
        limits: DecodeLimits,
        *,
        keys: WriterSchema | None = None,
    ) -> ChangeDecoder:
        """Return the decoder for the types that messages carry; they name their key."""
        del keys
        return RowsDecoder(TypedRows(schema.body), read_event, settings, limits)

    def carries_schemas(self, payload: Format) -> bool:
        """Return true: messages have the types of their columns."""
        return payload is Format.JSON

    def name_tables(self, records: Records, settings: ChangeSettings) -> Named:
        """Return the table of each message, and the types that it carries."""
        kinds: list[int] = []
        claims: list[str | None] = []
        codes: list[int] = []
        schemas: dict[bytes, int] = {}
        for event in parsed(records.payloads):
            members = event if isinstance(event, dict) else {}
            kinds.append(OTHER if _is_other(members) else CHANGE)
            claims.append(claim(members))
            codes.append(schemas.setdefault(carried_types(_types(members)), len(schemas)))
        return Named(
            np.array(kinds, np.int64),
            pa.array(claims, pa.string()),
            records.payloads,
            np.array(codes, np.int64),
            tuple(schemas),
        )

    def recognize(self, records: Sequence[Sampled]) -> Recognized | None:
        """Return what messages are, by the members that flat messages have."""
        events = [record.event for record in records if record.event is not None]
        messages = mostly(events, _message)
        if messages is None:
            return None
        named = (each for each in messages if text_in(each, "database") and text_in(each, "table"))
        tables = frozenset(f"{each['database']}.{each['table']}" for each in named)
        what = "Change events of Canal, flat messages in JSON"
        return Recognized(what, tables, "{database}_{table}", {"format": self.name})


def _message(event: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return event if {"isDdl", "database", "table", "type", "es", "data"} <= event.keys() else None


def _is_other(event: Mapping[str, Any]) -> bool:
    """Return whether a message is about no row: a changed schema, or a transaction."""
    type_ = text_in(event, "type").upper()
    is_known = type_ in _OPS or not type_
    return event.get("isDdl") is True or (not is_known and not event.get("data"))


def _types(event: Mapping[str, Any]) -> dict[str, str]:
    """Return the type of each column, in words of `column_types`."""
    names, codes = event.get("mysqlType"), event.get("sqlType")
    if isinstance(names, dict) and names:
        return {name: word_of(type_) for name, type_ in names.items()}
    if isinstance(codes, dict):
        return {
            name: _CODES.get(code, "text") if type(code) is int else "text"
            for name, code in codes.items()
        }
    return {}


def word_of(type_: Any) -> str:
    """Return the word for a type of MySQL: `bigint(20) unsigned` is `uint64`."""
    if not isinstance(type_, str) or len(type_) > _LONGEST_TYPE:
        return "text"
    before, _, inside = type_.lower().partition("(")
    arguments, _, after = inside.partition(")")
    name, *more = [*before.split(), *after.split()] or [""]
    if name in ("decimal", "numeric", "dec", "fixed"):
        parts = [part.strip() for part in (arguments.strip() or "10").split(",")]
        precision, scale = parts[0], parts[1] if len(parts) > 1 else "0"
        return f"decimal({precision},{scale})" if (precision + scale).isdecimal() else "text"
    if name == "bigint" and "unsigned" in more:
        return "uint64"
    return _WORDS.get(name, "text")


def read_event(event: Any, message: EventRecord) -> EventRows:
    """Read a flat message of Canal."""
    del message
    if not isinstance(event, dict) or text_in(event, "type").upper() not in _OPS:
        refuse(ErrorCode.NOT_AN_ENVELOPE, "it does not say what happened")
    rows = event.get("data")
    if not isinstance(rows, list) or not all(isinstance(row, dict) and row for row in rows):
        refuse(ErrorCode.NO_PAYLOAD, "it has no rows")
    time = event.get("es") if event.get("es") is not None else event.get("ts")
    if type(time) is not int or not 0 <= time <= _LATEST_MS:
        refuse(ErrorCode.BAD_SOURCE_TIME, "its time is not a time")
    envelope = {name: value for name, value in event.items() if name not in _NO_ENVELOPE}
    return EventRows([*_changes(event, rows)], int(time) * 1_000, envelope)


def _changes(event: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Iterator[RowChange]:
    op = _OPS[event["type"].upper()]
    given = event.get("pkNames")
    names = given if isinstance(given, list) else ()
    key = tuple(name for name in names if isinstance(name, str))
    before = event.get("old")
    old = before if op == "update" and isinstance(before, list) else [None] * len(rows)
    if len(old) != len(rows):
        refuse(ErrorCode.PAYLOAD_MISMATCH, "it has more or fewer old rows than rows")
    for row, values in zip(rows, old, strict=True):
        yield from with_old_key(
            RowChange(op, row, key, old=values if isinstance(values, dict) else None)
        )
