"""The kind of database that an event of Datastream came from, and the position of its change."""

from __future__ import annotations

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.base import Positions
from distributary.decode.change.datastream.event_parts import DatastreamEvents
from distributary.decode.change.order import lsn, mysql
from distributary.decode.change.order.oracle import oracle_place
from distributary.decode.change.order.place import INT64, WHOLE, Place, nowhere
from distributary.model.change import ChangeSettings

KINDS = ("mysql", "postgresql", "sqlserver", "oracle")
_ALIASES = {"postgres": "postgresql", "mssql": "sqlserver", "sql_server": "sqlserver"}
_KNOWN_BY = (
    ("scn", "oracle"),
    ("log_position", "mysql"),
    ("binlog_position", "mysql"),
    ("lsn", "lsn"),
)
"""Names in the source's metadata, and the kind of database that has them."""


def kind_of(read_method: str | None, settings: ChangeSettings, given: frozenset[str]) -> str:
    """Return the kind of database that an event of Datastream came from; empty if unknown.

    The method is `mysql-cdc-binlog`, `oracle_dump`, or `cdc` alone. For events that do not say it
    the pipeline's file may; the names that their metadata gives are the last resort.
    """
    word = re.split(r"[-_]", (read_method or "").lower(), maxsplit=1)[0]
    for name in (word, settings.source_type.lower()):
        kind = _ALIASES.get(name, name)
        if kind in KINDS:
            return kind
    if word in ("cdc", "backfill", ""):
        return next((kind for name, kind in _KNOWN_BY if name in given), "")
    return ""


def is_backfill(read_method: str | None) -> bool:
    """Return whether rows were read, not changed."""
    words = re.split(r"[-_]", (read_method or "").lower())
    return any(word == "backfill" or word.endswith("dump") for word in words)


def datastream_places(events: DatastreamEvents, kind: str, ts: Positions) -> Place:
    """Read the positions of Datastream's events that came from one kind of database."""
    metadata, count = events.metadata, len(events)
    if kind == "mysql":
        return mysql.datastream_place(metadata, count)
    if kind == "oracle":
        return oracle_place(metadata, count)
    if kind in lsn.READERS:
        return lsn.datastream_place(metadata, count, kind=kind)
    return _by_sort_keys(events, ts)


def with_halves_together(
    events: DatastreamEvents, ts: Positions, change: pa.StringArray
) -> Positions:
    """Return times in which both halves of a change of key have the time of the first.

    MySQL's second half, the new row, comes with a time of one second later. Where times decide, an
    event about the row within that second would be taken for older.
    """
    if not pc.any(pc.equal(change, "UPDATE-DELETE"), min_count=0).as_py():
        return ts
    place = mysql.datastream_place(events.metadata, len(events))
    positions = list(zip(place.a.tolist(), place.b.tolist(), strict=True))
    changes = change.to_pylist()
    first: dict[tuple[int, int], int] = {}
    for row, (word, position) in enumerate(zip(changes, positions, strict=True)):
        # without a position it is unknown which halves belong together
        if word == "UPDATE-DELETE" and position[0]:
            first[position] = min(int(ts[row]), first.get(position, int(ts[row])))
    fixed = ts.copy()
    for row, (word, position) in enumerate(zip(changes, positions, strict=True)):
        if word == "UPDATE-INSERT":
            fixed[row] = min(int(ts[row]), first.get(position, int(ts[row])))
    return fixed


def _by_sort_keys(events: DatastreamEvents, ts: Positions) -> Place:
    if events.sort_keys is None:
        return nowhere(len(events))
    rows = np.zeros((len(events), 3), np.int64)
    for row, text in enumerate(events.sort_keys.to_pylist()):
        numbers = _numbers(text)
        if numbers and numbers[0] == ts[row]:
            numbers = numbers[1:]
        kept = numbers[:3]
        rows[row, : len(kept)] = kept
    return Place(rows[:, 0], rows[:, 1], rows[:, 2], np.zeros(len(events), np.bool_))


def _numbers(text: str | None) -> list[int]:
    """Return the numbers that a JSON list begins with."""
    try:
        values = json.loads(text or "[]")
    except ValueError:
        return []
    numbers: list[int] = []
    for value in values if isinstance(values, list) else ():
        if isinstance(value, str) and WHOLE.fullmatch(value):
            value = int(value)
        if type(value) is not int or not -INT64 <= value < INT64:
            break
        numbers.append(value)
    return numbers
