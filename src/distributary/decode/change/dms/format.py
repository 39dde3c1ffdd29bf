"""The entry of AWS DMS: rows in files of Parquet or CSV, in a folder for each table."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from distributary.config.cdc import DmsConfig as DmsSettings
from distributary.config.cdc import DmsOptions
from distributary.decode.base import DecodeLimits
from distributary.decode.change.base import (
    CHANGE,
    ChangeDecoder,
    ChangeFormat,
    Named,
    Recognized,
    Records,
    Sampled,
    claim,
)
from distributary.decode.change.column_types import moment_us
from distributary.decode.change.connect_frames import split_connect
from distributary.decode.change.json_rows import (
    NOWHERE,
    EventRecord,
    EventRows,
    RowChange,
    RowsDecoder,
    TypedRows,
    refuse,
)
from distributary.errors import ErrorCode
from distributary.model.change import ChangeSettings
from distributary.model.record import Format, WriterSchema

OPERATION = "Op"
_OPS = {"I": "insert", "U": "update", "D": "delete"}
_LOAD = re.compile(r"LOAD[0-9A-Fa-f]+", re.ASCII)
_CHANGES = re.compile(r"(\d{8})-(\d{9})", re.ASCII)
"""The names of files of changes: `20240131-101500123.parquet`."""
_DATE = re.compile(r"[0-9_-]+", re.ASCII)
_SEQUENCE = re.compile(r"\d{1,36}", re.ASCII)
_HALF = 10**18
"""A number of 36 digits is two of 18."""
_NONE = DmsSettings().options


class Dms(ChangeFormat):
    """Folders name schema and table; files have the types of their columns, and no key."""

    name = "dms"
    label = "AWS DMS"

    def decoder(
        self,
        schema: WriterSchema,
        settings: ChangeSettings,
        limits: DecodeLimits,
        *,
        keys: WriterSchema | None = None,
    ) -> ChangeDecoder:
        """Return the decoder for the types that a file has; the settings have the keys."""
        del keys
        options = _options(settings)
        beside = {OPERATION, options.timestamp, options.sequence}
        read = partial(read_event, options=options, beside=frozenset(beside))
        return RowsDecoder(TypedRows(schema.body, beside), read, settings, limits)

    def carries_schemas(self, payload: Format) -> bool:
        """Return true: the reader of files writes types of columns into records."""
        return payload is Format.JSON

    def name_tables(self, records: Records, settings: ChangeSettings) -> Named:
        """Return the table that the path of each record's file names."""
        topics = records.topics.dictionary_encode()
        claims = [_claim(path) for path in topics.dictionary.to_pylist()]
        frames = split_connect(records.payloads)
        return Named(
            np.full(len(records.topics), CHANGE),
            pa.array(claims, pa.string()).take(topics.indices),
            frames.payloads,
            frames.codes,
            frames.schemas,
        )

    def recognize(self, records: Sequence[Sampled]) -> Recognized | None:
        """Return what rows are, by the names of their files."""
        tables = {table for record in records if (table := _table(record.topic))}
        stems = [_stem(record.topic) for record in records]
        if not tables or not all(map(_is_named, stems)):
            return None
        rows = [_row(record.event or {}) for record in records]
        keyed = bool(rows) and all("id" in row for row in rows)
        names = frozenset(".".join(filter(None, table)) for table in tables)
        return Recognized(
            "Change files of AWS DMS",
            names,
            "{schema}_{table}",
            {"format": self.name, "dms": {"keys": {"*": ["id"]} if keyed else {}}},
            {"layout": "dms"},
            "Files do not name the keys of their tables: check cdc.dms.keys",
        )


def _options(settings: ChangeSettings) -> DmsOptions:
    return settings.options if isinstance(settings.options, DmsOptions) else _NONE


def _row(event: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = event.get("payload")
    return inner if isinstance(inner, dict) and "schema" in event else event


def _stem(path: str) -> str:
    return path.rpartition("/")[2].partition(".")[0]


def _is_named(stem: str) -> bool:
    return bool(_LOAD.fullmatch(stem) or _CHANGES.fullmatch(stem))


def _table(path: str) -> tuple[str, str] | None:
    """Return schema and table of a file, which may be in folders of a date; None without any."""
    folders = path.split("/")[:-1]
    while len(folders) > 2 and _DATE.fullmatch(folders[-1]):
        folders.pop()
    if not folders:
        return None
    return folders[-2] if len(folders) > 1 else "", folders[-1]


def _claim(path: str) -> str | None:
    table = _table(path)
    return None if table is None else claim({"schema": table[0], "table": table[1]})


def read_event(
    event: Any, message: EventRecord, *, options: DmsOptions, beside: frozenset[str]
) -> EventRows:
    """Read a row of a file of AWS DMS; some columns are not the table's."""
    if not isinstance(event, dict):
        refuse(ErrorCode.NOT_AN_ENVELOPE, "it is no row")
    stem, given = _stem(message.topic), event.get(OPERATION)
    is_load = bool(_LOAD.fullmatch(stem))
    op = _OPS.get(given) if isinstance(given, str) else None
    if is_load and (op or given is None):
        op = "read"
    if op is None:
        refuse(ErrorCode.NOT_AN_ENVELOPE, f"its column {OPERATION} is none of I, U and D")
    row = {name: value for name, value in event.items() if name not in beside}
    if not row:
        refuse(ErrorCode.NO_PAYLOAD, "it has no columns of a table")
    table = _table(message.topic) or ("", "")
    key = _key(".".join(filter(None, table)), options)
    # JSON omits a null, also in a column of the key
    row |= {name: None for name in key if name not in row}
    place = NOWHERE if is_load else _place(event, stem, message, options)
    change = RowChange(op, row, key, place, has_own_place=not is_load)
    envelope = {name: event[name] for name in sorted(beside & event.keys())}
    return EventRows((change,), _time_us(event, stem, message, options), envelope)


def _key(table: str, options: DmsOptions) -> tuple[str, ...]:
    return next((columns for each, columns in options.keys if fnmatchcase(table, each)), ())


def _place(
    event: Mapping[str, Any], stem: str, message: EventRecord, options: DmsOptions
) -> tuple[int, int, int]:
    """Return the place of a change: its number, or that of its file and of its row there."""
    if options.sequence:
        text = str(event.get(options.sequence)).strip()
        if not _SEQUENCE.fullmatch(text):
            refuse(ErrorCode.BAD_POSITION, "its sequence is no whole number of up to 36 digits")
        return (*divmod(int(text), _HALF), 0)
    named = _CHANGES.fullmatch(stem)
    if named is None:
        refuse(ErrorCode.BAD_POSITION, "its file is not named by a time")
    # the offset is the row's number in the file, from 0 on
    return int(named[1] + named[2]), message.offset + 1, 0


def _time_us(event: Mapping[str, Any], stem: str, message: EventRecord, options: DmsOptions) -> int:
    if options.timestamp and event.get(options.timestamp) is not None:
        try:
            return moment_us(event[options.timestamp])
        except ValueError:
            refuse(ErrorCode.BAD_SOURCE_TIME, "its time is not a time")
    if named := _CHANGES.fullmatch(stem):
        day, clock = named.groups()
        text = f"{day[:4]}-{day[4:6]}-{day[6:]}T{clock[:2]}:{clock[2:4]}:{clock[4:6]}.{clock[6:]}"
        try:
            return moment_us(text)
        except ValueError:
            return message.time_us
    return message.time_us
