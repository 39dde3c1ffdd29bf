"""The events behind rows of change data: those of one row, and those of a file of changes.

Events are read from the log of a table, in the order of the source. A row reflects the event that
was applied last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from distributary.delta.log import snapshot_of
from distributary.errors import ConfigError, missing
from distributary.evolve.types import fold
from distributary.model import layout
from distributary.model.change import CHANGE_NAMES, SEQ
from distributary.model.incarnation import INCARNATIONS, Incarnations
from distributary.model.table import Role
from distributary.observe.ledger.ledger import Ledger
from distributary.observe.ledger.ledger_rows import TableSummary, text
from distributary.observe.trace import COORDINATES, Coordinates, as_type, coordinates_of, letters_in
from distributary.publish.formats.readable import ReadableTable
from distributary.publish.formats.table_format_entry import open_readable

Conditions = tuple[tuple[str, str], ...]
"""Columns and the values asked for; a column without a name is the next one of the key."""

MOST_EVENTS = 1000
"""Of one table."""
_TRUNCATE = "truncate"
_MOST_KEYS = 10
_SYSTEM = frozenset({*CHANGE_NAMES, *COORDINATES.names, "_timestamp", "_schema_id", "_batch"})


@dataclass(frozen=True, slots=True)
class RowEvent:
    """One event about a row."""

    op: str
    deleted: bool
    source_ts: datetime | None
    batch: int | None
    source: Coordinates | None
    """The coordinates of the event; None if the log keeps none."""
    current: bool
    """Whether the row has the values of this event."""
    changed: Mapping[str, Any] = field(default_factory=dict)
    """The new values of the columns that this event changed."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """The source's columns that are not null."""


@dataclass(frozen=True, slots=True)
class RowStory:
    """A row that there is or was, by its key."""

    key: Mapping[str, Any]
    row: Mapping[str, Any] | None
    """As the table has it; None where it has none."""
    events: tuple[RowEvent, ...]


def is_made_of_log(table: TableSummary) -> bool:
    """Return whether a table is built from a log, so that its rows have a history."""
    return table.role in (Role.MERGED, Role.HISTORY)


def trace_key(
    lake: str, table: TableSummary, log: TableSummary, conditions: Conditions
) -> tuple[RowStory, ...]:
    """Return the rows that fulfil the conditions now or did so earlier, each with its events."""
    here = _open(lake, log)
    if here is None:
        raise missing("no such table", log.table, [])
    current = _open(lake, table)
    incarnations = _incarnations(current)
    named = _named(conditions, here)
    where = _where(named, here.schema)
    rows = here.rows(where=where, limit=MOST_EVENTS).to_pylist()
    stories = []
    keys = {str(key): key for key in map(_key_of_event, rows) if key}
    for key in list(keys.values())[:_MOST_KEYS]:
        of_row = _equal(key, here.schema) | (pc.field("_op") == _TRUNCATE)
        events = incarnations.applied(here.rows(where=of_row, limit=MOST_EVENTS)).to_pylist()
        row = None if current is None or table.role != Role.MERGED else _row_of(current, key)
        stories.append(RowStory(dict(key), row, tuple(_events(events, row))))
    return tuple(stories)


def _named(conditions: Conditions, log: ReadableTable) -> Conditions:
    """Return every condition with the name of its column."""
    if all(column for column, _ in conditions):
        return conditions
    key = _key_of(log)
    if len(key) != len(conditions):
        raise ConfigError(
            "a key needs one value for each of its columns",
            evidence=f"the key is {', '.join(key)[:200] or 'nothing'}; given: {len(conditions)}",
            next_step="give one value per key column, or COLUMN=VALUE",
        )
    return tuple((column or key[at], value) for at, (column, value) in enumerate(conditions))


def _key_of(log: ReadableTable) -> list[str]:
    """Return the key's columns in the source's order, by one file of the log."""
    files = list(log.files.get_fragments()) if log.files is not None else []
    keys = files[-1].to_table(columns=["_key"])["_key"].to_pylist() if files else []
    return next((list(key) for key in reversed(keys) if key), [])


def _where(conditions: Conditions, schema: pa.Schema) -> pc.Expression:
    by_fold = {fold(name): name for name in reversed(schema.names)}
    found = []
    for column, value in conditions:
        name = column if column in schema.names else by_fold.get(fold(column), column)
        if name not in schema.names:
            raise missing("no such column in the log", column, schema.names)
        found.append((name, as_type(value, schema.field(name)).as_py()))
    return _equal(found, schema)


def _equal(values: Sequence[tuple[str, Any]], schema: pa.Schema) -> pc.Expression:
    return reduce(and_, (_is(name, value, schema.field(name).type) for name, value in values))


def _is(name: str, value: Any, kind: pa.DataType) -> pc.Expression:
    if value is None:
        return pc.field(name).is_null()
    # the cast is for files whose kind of text or bytes pyarrow cannot compare as it is
    return pc.field(name).cast(kind) == pa.scalar(value, kind)


def _key_of_event(row: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return the key's columns with their values; their names may differ in case."""
    by_fold = {fold(name): name for name in reversed(list(row))}
    names = [name if name in row else by_fold.get(fold(name)) for name in row["_key"] or ()]
    return tuple((name, row[name]) for name in names if name is not None)


def _row_of(table: ReadableTable, key: Sequence[tuple[str, Any]]) -> Mapping[str, Any] | None:
    if any(name not in table.schema.names for name, _ in key):
        return None
    rows = table.rows(where=_equal(key, table.schema), limit=_MOST_KEYS).to_pylist()
    return rows[0] if rows else None


def _events(
    rows: Sequence[Mapping[str, Any]], current: Mapping[str, Any] | None
) -> Iterator[RowEvent]:
    before: Mapping[str, Any] = {}
    for row in sorted(rows, key=lambda each: [each["_seq"][part.name] for part in SEQ]):
        values = {n: v for n, v in row.items() if n not in _SYSTEM and v is not None}
        left_out = set(row["_unchanged"] or ())
        after = {**{n: before[n] for n in left_out if n in before}, **values}
        if row["_deleted"] or row["_op"] in ("delete", _TRUNCATE):
            after = before = {}
        changed = {n: after.get(n) for n in {*after, *before} if after.get(n) != before.get(n)}
        yield RowEvent(
            op=row["_op"],
            deleted=bool(row["_deleted"]),
            source_ts=row["_source_ts"],
            batch=row.get("_batch"),
            source=coordinates_of(row),
            current=current is not None and current.get("_seq") == row["_seq"],
            changed=dict(sorted(changed.items())),
            values=values,
        )
        before = after


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
        """Return the number of events."""
        return sum(len(each.events) for each in self.tables)


def roots_of(lake: str) -> tuple[str, ...]:
    """Return the folders and buckets from which files were read into a lake."""
    topics = Ledger(lake).read_ranges()["topic"].to_pylist()
    return tuple(sorted({topic for topic in topics if "/" in topic}))


def below(roots: Sequence[str], path: str) -> str:
    """Return a path as records have it: without the root of its source."""
    whole = path.rstrip("/")
    for root in sorted(roots, key=len, reverse=True):
        base = root.rstrip("/")
        if whole == base:
            return ""
        if whole.startswith(f"{base}/"):
            return whole[len(base) + 1 :]
    return whole


def trace_file(lake: str, path: str) -> FileTrace:
    """Trace the events of a file, or of the files in a folder; `path` comes from `below`."""
    tables = Ledger(lake).tables(schema_ids=False)
    logs = (table for table in tables if table.role == Role.LOG)
    found = (_events_in(lake, log, tables, path) for log in logs)
    names = ("id", "topic", "partition", "offset", "error_code", "error_message", "status")
    prefix = f"{path}/" if path else ""
    letters = (
        letter
        for letter in letters_in(lake, tables, columns=names)
        if letter["topic"] == path or letter["topic"].startswith(prefix)
    )
    return FileTrace(path, tuple(each for each in found if each is not None), tuple(letters))


def _events_in(
    lake: str, log: TableSummary, tables: Sequence[TableSummary], path: str
) -> FileTable | None:
    here = _open(lake, log)
    if here is None or "_topic" not in here.schema.names:
        return None
    topic = text("_topic")
    inside = pc.starts_with(topic, pattern=f"{path}/" if path else "")
    found = here.rows(where=(topic == path) | inside, limit=MOST_EVENTS + 1)
    if not found.num_rows:
        return None
    merged = (t for t in tables if t.role == Role.MERGED)
    made = next((t for t in merged if (t.pipeline, t.type) == (log.pipeline, log.type)), None)
    current = None if made is None else _open(lake, made)
    rows = _incarnations(current).applied(found).to_pylist()
    states = None if current is None else _states(current, rows)
    events = [_event(row, states) for row in rows[:MOST_EVENTS]]
    events.sort(key=lambda event: (event.source.topic, event.source.partition, event.source.offset))
    name = None if made is None else made.table
    return FileTable(log.table, name, tuple(events), complete=len(rows) <= MOST_EVENTS)


def _event(row: Mapping[str, Any], states: set[str] | None) -> FileEvent:
    return FileEvent(
        source=coordinates_of(row) or Coordinates(row["_topic"] or "", 0, 0),
        op=row["_op"],
        key=dict(_key_of_event(row)),
        source_ts=row["_source_ts"],
        batch=row.get("_batch"),
        current=None if states is None else _state(row) in states,
    )


def _states(table: ReadableTable, events: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the current keys of the rows of some events, each with its last event."""
    keys = [dict(_key_of_event(row)) for row in events]
    names = {next(iter(key)) for key in keys if key}
    shapes = {tuple(key) for key in keys}
    found: set[str] = set()
    for name in names & set(table.schema.names):
        kind = table.schema.field(name).type
        values = pa.array([key[name] for key in keys if name in key], kind)
        where = pc.field(name).cast(kind).isin(values)
        rows = table.rows(where=where, limit=MOST_EVENTS * 10).to_pylist()
        found |= {_state({**row, "_key": shape}) for row in rows for shape in shapes}
    return found


def _state(row: Mapping[str, Any]) -> str:
    return repr((sorted(dict(_key_of_event(row)).items()), row["_seq"]))


def _incarnations(table: ReadableTable | None) -> Incarnations:
    """Read which servers have taken over in the source of a table of current rows."""
    snapshot = None if table is None else snapshot_of(table.path)
    return Incarnations.from_text(snapshot.property(INCARNATIONS) if snapshot else None)


def _open(lake: str, table: TableSummary) -> ReadableTable | None:
    return open_readable(layout.place(lake, table.path))
