"""The entry of Maxwell: changes of MySQL and MariaDB as JSON, an object for each row."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
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
    NOWHERE,
    EventRecord,
    EventRows,
    InferredRows,
    RowChange,
    RowsDecoder,
    parsed,
    refuse,
    text_in,
    with_old_key,
)
from distributary.errors import ErrorCode
from distributary.model.change import ChangeSettings
from distributary.model.record import WriterSchema

_OPS = {"insert": "insert", "update": "update", "delete": "delete", "bootstrap-insert": "read"}
_OTHERS = re.compile(r"bootstrap-(start|complete)|heartbeat|(table|database)-[a-z]+", re.ASCII)
"""The types of events that are about no row: a bootstrap, a sign of life, a changed schema."""
_POSITION = re.compile(r"[^:]*\.(\d{1,18}):(\d{1,18})", re.ASCII)
_LAST = 2**62
"""The place of a transaction's last row, which has no number of its own."""
_MILLISECONDS = 10**11
"""Times from here on are milliseconds; below they are seconds."""
_LATEST = 253_402_300_799
_POSITIONS = ("position", "xoffset")
_KEY = "pk."


class Maxwell(ChangeFormat):
    """Events name database and table; the schema is inferred from their rows."""

    name = "maxwell"
    label = "Maxwell"
    images = ("data",)

    def decoder(
        self,
        schema: WriterSchema,
        settings: ChangeSettings,
        limits: DecodeLimits,
        *,
        keys: WriterSchema | None = None,
    ) -> ChangeDecoder:
        """Return the decoder for an inferred schema; keys are JSON without a schema."""
        del keys
        reader = InferredRows(schema.body, "data", limits)
        return RowsDecoder(reader, read_event, settings, limits)

    def name_tables(self, records: Records, settings: ChangeSettings) -> Named:
        """Return the table of each event."""
        kinds: list[int] = []
        claims: list[str | None] = []
        for event in parsed(records.payloads):
            members = event if isinstance(event, dict) else {}
            other = _OTHERS.fullmatch(text_in(members, "type"))
            kinds.append(OTHER if other else CHANGE)
            claims.append(claim(members))
        return Named(np.array(kinds, np.int64), pa.array(claims, pa.string()), records.payloads)

    def recognize(self, records: Sequence[Sampled]) -> Recognized | None:
        """Return what events are, by the members that all of them have."""
        events = [record.event for record in records if record.event is not None]
        rows = mostly(events, _row_change)
        if rows is None:
            return None
        tables = frozenset(f"{row['database']}.{row['table']}" for row in rows)
        what = "Change events of Maxwell in JSON"
        return Recognized(what, tables, "{database}_{table}", {"format": self.name})


def _row_change(event: Mapping[str, Any]) -> Mapping[str, Any] | None:
    has_names = text_in(event, "database") and text_in(event, "table")
    known = text_in(event, "type") in _OPS and isinstance(event.get("data"), dict)
    return event if has_names and known and "ts" in event else None


def read_event(event: Any, message: EventRecord) -> EventRows:
    """Read an event of Maxwell."""
    if not isinstance(event, dict) or text_in(event, "type") not in _OPS:
        refuse(ErrorCode.NOT_AN_ENVELOPE, "it does not say what happened")
    op, row, old = _OPS[event["type"]], event.get("data"), event.get("old")
    if not isinstance(row, dict) or not row:
        refuse(ErrorCode.NO_PAYLOAD, "it has no row")
    if op != "update" or not isinstance(old, dict):
        old = None
    # Maxwell can be set to omit nulls: a changed column that the update does not name is null
    row = {**dict.fromkeys(old or ()), **row}
    place, own = _place(event)
    change = RowChange(
        op,
        row,
        _key(event, message),
        place,
        old=old,
        has_own_place=own,
    )
    envelope = {name: value for name, value in event.items() if name not in ("data", "old")}
    content = None
    if place != NOWHERE:
        content = {name: value for name, value in event.items() if name not in _POSITIONS}
    return EventRows(with_old_key(change), _time_us(event), envelope, content)


def _place(event: Mapping[str, Any]) -> tuple[tuple[int, int, int], bool]:
    """Return the position of a change, and whether it shares it with no other."""
    given = event.get("position")
    if given is None:
        return NOWHERE, False
    match = _POSITION.fullmatch(given) if isinstance(given, str) else None
    if match is None:
        refuse(ErrorCode.BAD_POSITION, "its position is none")
    number, last = event.get("xoffset"), event.get("commit") is True
    if type(number) is int and 0 <= number < _LAST:
        return (int(match[1]), int(match[2]), number), True
    return (int(match[1]), int(match[2]), _LAST if last else 0), last


def _time_us(event: Mapping[str, Any]) -> int:
    time = event.get("ts")
    if type(time) is not int or not 0 <= time <= _LATEST * 1_000:
        refuse(ErrorCode.BAD_SOURCE_TIME, "its time is not a time")
    return int(time) * (1_000 if time >= _MILLISECONDS else 1_000_000)


def _key(event: Mapping[str, Any], message: EventRecord) -> tuple[str, ...]:
    """Return the columns of the key: the event may name them, else the key of its record does."""
    given = event.get("primary_key_columns")
    if isinstance(given, list):
        return tuple(name for name in given if isinstance(name, str))
    try:
        key = json.loads(message.key or b"null")
    except (ValueError, RecursionError):
        return ()
    if isinstance(key, dict):
        return tuple(name.removeprefix(_KEY) for name in key if name.startswith(_KEY))
    if isinstance(key, list) and key and isinstance(key[-1], list):
        parts = [part for part in key[-1] if isinstance(part, dict)]
        return tuple(name for part in parts for name in part)
    return ()
