"""What became of a change file, or of all files in a folder: events, rows and dead letters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from distributary.model.table import Role
from distributary.observe import layout
from distributary.observe.deadletters import DeadLetters
from distributary.observe.delta import StorageOptions
from distributary.observe.ledger import Ledger
from distributary.observe.locate import Coordinates
from distributary.observe.matching import text
from distributary.observe.readable import Readable, open_readable
from distributary.observe.row_events import key_of_event
from distributary.observe.rows import TableSummary
from distributary.observe.values import coordinates_of

MOST_EVENTS = 1000
"""Of one table."""
_LETTER_COLUMNS = ("id", "topic", "partition", "offset", "error_code", "error_message", "status")


@dataclass(frozen=True, slots=True)
class FileEvent:
    """An event that a file brought."""

    source: Coordinates
    """The file's path and number, and the event's place in the file."""
    op: str
    key: Mapping[str, Any]
    source_ts: datetime | None
    batch: int | None
    current: bool | None
    """The row is what this event says; None where there is no table of rows."""


@dataclass(frozen=True, slots=True)
class FileTable:
    """A log that has events of a file, and the table that is made of it."""

    log: str
    table: str | None
    events: tuple[FileEvent, ...]
    complete: bool
    """Whether these are all; otherwise the first ones."""


@dataclass(frozen=True, slots=True)
class FileTrace:
    """The answer."""

    path: str
    """Below the root of its source."""
    tables: tuple[FileTable, ...] = ()
    dead_letters: tuple[dict[str, Any], ...] = ()

    @property
    def events(self) -> int:
        """How many were found."""
        return sum(len(each.events) for each in self.tables)


def roots_of(lake: str, *, storage_options: StorageOptions | None = None) -> tuple[str, ...]:
    """The folders and buckets from which files were read into a lake."""
    topics = Ledger(lake, storage_options=storage_options).read_ranges()["topic"].to_pylist()
    return tuple(sorted({topic for topic in topics if "/" in topic}))


def below(roots: Sequence[str], path: str) -> str:
    """A path as records have it: without the root of its source."""
    whole = path.rstrip("/")
    for root in sorted(roots, key=len, reverse=True):
        base = root.rstrip("/")
        if whole == base:
            return ""
        if whole.startswith(f"{base}/"):
            return whole[len(base) + 1 :]
    return whole


def trace_file(lake: str, path: str, *, storage_options: StorageOptions | None = None) -> FileTrace:
    """What a file, or the files in a folder, became; `path` is one that `below` gives."""
    tables = Ledger(lake, storage_options=storage_options).tables(schema_ids=False)
    found = [_events_in(lake, log, tables, path, storage_options) for log in _logs(tables)]
    letters = _letters(lake, tables, path, storage_options)
    return FileTrace(path, tuple(each for each in found if each is not None), letters)


def _logs(tables: Sequence[TableSummary]) -> list[TableSummary]:
    return [table for table in tables if table.role == Role.LOG]


def _from_files(path: str) -> pc.Expression:
    topic = text("_topic")
    inside = pc.starts_with(topic, pattern=f"{path}/" if path else "")
    return (topic == path) | inside


def _events_in(
    lake: str,
    log: TableSummary,
    tables: Sequence[TableSummary],
    path: str,
    options: StorageOptions | None,
) -> FileTable | None:
    here = _open(lake, log, options)
    if here is None or "_topic" not in here.schema.names:
        return None
    rows = here.rows(where=_from_files(path), limit=MOST_EVENTS + 1).to_pylist()
    if not rows:
        return None
    made = next((t for t in tables if t.role == Role.MERGED and _source(t) == _source(log)), None)
    current = None if made is None else _open(lake, made, options)
    places = None if current is None else _places(current, rows)
    events = [_event(row, places) for row in rows[:MOST_EVENTS]]
    events.sort(key=lambda event: (event.source.topic, event.source.partition, event.source.offset))
    name = None if made is None else made.table
    return FileTable(log.table, name, tuple(events), complete=len(rows) <= MOST_EVENTS)


def _event(row: Mapping[str, Any], places: set[str] | None) -> FileEvent:
    return FileEvent(
        source=coordinates_of(row) or Coordinates(row["_topic"] or "", 0, 0),
        op=row["_op"],
        key=dict(key_of_event(row)),
        source_ts=row["_source_ts"],
        batch=row.get("_batch"),
        current=None if places is None else _place(row) in places,
    )


def _places(table: Readable, events: Sequence[Mapping[str, Any]]) -> set[str]:
    """The keys and places of the rows that events speak of, as they are now."""
    keys = [dict(key_of_event(row)) for row in events]
    names = {next(iter(key)) for key in keys if key}
    found: set[str] = set()
    for name in names & set(table.schema.names):
        kind = table.schema.field(name).type
        values = pa.array([key[name] for key in keys if name in key], kind)
        where = pc.field(name).cast(kind).isin(values)
        rows = table.rows(where=where, limit=MOST_EVENTS * 10).to_pylist()
        shapes = {tuple(key) for key in keys}
        found |= {_place({**row, "_key": shape}) for row in rows for shape in shapes}
    return found


def _place(row: Mapping[str, Any]) -> str:
    return repr((sorted(dict(key_of_event(row)).items()), row["_seq"]))


def _letters(
    lake: str, tables: Sequence[TableSummary], path: str, options: StorageOptions | None
) -> tuple[dict[str, Any], ...]:
    folders = {layout.inside(lake, t.path) for t in tables if t.role == Role.DEAD_LETTERS}

    def select() -> Iterator[dict[str, Any]]:
        for folder in sorted(folders):
            store = DeadLetters(layout.join(lake, folder), storage_options=options)
            yield from store.select(status=None, columns=_LETTER_COLUMNS).to_pylist()

    prefix = f"{path}/" if path else ""
    return tuple(
        each for each in select() if each["topic"] == path or each["topic"].startswith(prefix)
    )


def _source(table: TableSummary) -> tuple[str, str]:
    return table.pipeline, table.type


def _open(lake: str, table: TableSummary, options: StorageOptions | None) -> Readable | None:
    return open_readable(layout.place(lake, table.path), options)
