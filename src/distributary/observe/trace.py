"""Where is my record? From source coordinates to rows, and from a row back to its source."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import reduce
from itertools import chain
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pa_fs

from distributary.delta.log import snapshot_of
from distributary.delta.tables import lake_files, reaching_table
from distributary.errors import ConfigError, missing
from distributary.evolve.types import fold
from distributary.model import layout
from distributary.model.change import CHANGE_NAMES, SEQ
from distributary.model.incarnation import INCARNATIONS, Incarnations
from distributary.model.table import Role
from distributary.observe.deadletters import DeadLetters
from distributary.observe.health import files_of
from distributary.observe.ledger.ledger import Ledger
from distributary.observe.ledger.ledger_rows import (
    ACCEPTED,
    PARKED,
    RESUMED,
    BatchRow,
    TableRow,
    TableSummary,
    text,
)
from distributary.observe.log_format import plain
from distributary.publish.formats.readable import ReadableTable
from distributary.publish.formats.table_format_entry import open_readable

# Finding the rows of one source record: in the files of a batch, or in a whole table.

COORDINATES = pa.schema(
    [
        pa.field("_topic", pa.string()),
        pa.field("_partition", pa.int32()),
        pa.field("_offset", pa.int64()),
    ]
)
_ROWS_SHOWN = 100
_INT32, _INT64 = 2**31 - 1, 2**63 - 1
_FILE = "__filename"


@dataclass(frozen=True, slots=True)
class Coordinates:
    """Where a record was read."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Coordinates | None:
        """Parse TOPIC/PARTITION/OFFSET; None for other texts."""
        topic, *numbers = text.rsplit("/", 2)
        if len(numbers) != 2 or not topic or not all(n.isdecimal() for n in numbers):
            return None
        partition, offset = map(int, numbers)
        fits = partition <= _INT32 and offset <= _INT64
        return cls(topic, partition, offset) if fits else None

    def condition(self) -> pc.Expression:
        """Return the condition for rows of this record.

        A table may have only some of the columns.
        """
        topic, partition, offset = text("_topic"), pc.field("_partition"), pc.field("_offset")
        return (
            (offset == self.offset)
            & ((partition == self.partition) | partition.is_null())
            & ((topic == self.topic) | topic.is_null())
        )


@dataclass(frozen=True, slots=True)
class RowPlace:
    """A row that the record became."""

    table: str
    role: str
    file: str | None
    """In the table's folder; None where the table's format does not tell."""
    row: int | None
    """Number of the row in the file, from 0."""
    values: Mapping[str, Any] = field(default_factory=dict)
    parked: bool = False
    """The file waits: the row is not in the table yet."""


# The search for a record's rows: first the files of its batch, then, if need be, whole tables.


@dataclass(frozen=True, slots=True)
class _Search:
    """Looks for one record in the tables of one lake."""

    lake: str
    wanted: Coordinates
    files: pa_fs.FileSystem

    def places(self, rows: Iterable[TableRow]) -> tuple[RowPlace, ...]:
        """Find the record's rows, given the ledger's batches that read it."""
        # without dead letters, and without parked rows of tables that were resumed since
        kept = [row for row in rows if row.role != Role.DEAD_LETTERS and row.outcome != ACCEPTED]
        resumed = {(row.key, row.table) for row in kept if row.outcome == RESUMED}
        found = self._written([row for row in kept if row.outcome != PARKED])
        certain = bool(found)
        for row in kept:
            if row.outcome != PARKED or (row.key, row.table) in resumed:
                continue
            waits = self._parked_files(row)
            hits, _ = self._holding(waits)
            found += self._in_files(row, hits, parked=True)
            if not waits and not certain:
                # the offsets fit, so the parked batch must have the record
                found.append(RowPlace(row.table, row.role, None, None, parked=True))
        return tuple(sorted(found, key=lambda p: (p.table, p.file or "", p.row or 0)))

    def _written(self, rows: Sequence[TableRow]) -> list[RowPlace]:
        listed = [(row, files_of(layout.place(self.lake, row.path), row)) for row in rows]
        by_path = {
            f"{layout.inside(self.lake, row.path)}/{name}": (row, name)
            for row, names in listed
            for name in names
        }
        hits, gone = self._holding(by_path)
        # sums of old batches name no files, and compaction removes files: such tables are
        # searched as a whole
        whole = {row.table: row for row, names in listed if not names}
        whole |= {by_path[path][0].table: by_path[path][0] for path in gone}
        by_table: dict[str, list[str]] = defaultdict(list)
        for path in sorted(hits):
            by_table[by_path[path][0].table].append(path)
        found: list[RowPlace] = []
        for table, paths in by_table.items():
            row = by_path[paths[0]][0]
            known = self._in_table(row, {by_path[path][1] for path in paths})
            if known is None:
                whole[table] = row
            else:
                found += known or self._in_files(row, paths)
        for row in whole.values():
            found += self._in_table(row, None) or ()
        return found

    def _holding(self, paths: Iterable[str]) -> tuple[set[str], set[str]]:
        """Return the files that have rows of the record, and the files that are gone."""
        listed = list(paths)
        infos = self.files.get_file_info(listed)
        present = [info.path for info in infos if info.type == pa_fs.FileType.File]
        gone = {*listed} - {*present}
        if not present:
            return set(), gone
        # one scan reads all files; a column that a file lacks is null
        rows = ds.dataset(present, schema=COORDINATES, format="parquet", filesystem=self.files)
        hits = rows.scanner(columns=[_FILE], filter=self.wanted.condition()).to_table()
        return set(hits[_FILE].to_pylist()), gone

    def _in_table(self, row: TableRow, only: set[str] | None) -> list[RowPlace] | None:
        """Find the record's rows in a table's live files, or in some of them.

        None: a file asked for is not live any more (it was compacted, say): look at all of them.
        """
        found = open_readable(layout.place(self.lake, row.path))
        if found is None or "_offset" not in found.schema.names:
            return []
        condition = _known(found.schema, self.wanted)
        live = found.files
        if live is None:
            rows = found.rows(where=condition, limit=_ROWS_SHOWN).to_pylist()
            return [RowPlace(row.table, row.role, None, None, values) for values in rows]
        if only is None:
            fragments = list(live.get_fragments(filter=condition))
        else:
            fragments = [f for f in live.get_fragments() if f.path in only]
            if len(fragments) < len(only):
                return None
        places = (_places(row, f, live.schema, condition) for f in fragments)
        return list(chain.from_iterable(places))[:_ROWS_SHOWN]

    def _in_files(
        self, row: TableRow, paths: Iterable[str], *, parked: bool = False
    ) -> list[RowPlace]:
        """Find the record's rows in files that no table format lists (yet)."""
        found: list[RowPlace] = []
        for path in sorted(paths):
            alone = ds.dataset([path], format="parquet", filesystem=self.files)
            (fragment,) = alone.get_fragments()
            condition = _known(alone.schema, self.wanted)
            found += _places(row, fragment, alone.schema, condition, parked=parked)[:_ROWS_SHOWN]
        return found

    def _parked_files(self, row: TableRow) -> list[str]:
        """Return the batch's files among all that wait for the table."""
        folder = layout.join(layout.parked(self.lake, row.pipeline), row.table)
        inside = folder[len(layout.join(self.lake, "")) :]
        below = pa_fs.FileSelector(inside, allow_not_found=True, recursive=True)
        endings = tuple(f"/{name}" for name in row.files)
        paths = (info.path for info in self.files.get_file_info(below))
        return [path for path in paths if path.endswith(endings)]


def _places(
    row: TableRow,
    fragment: ds.Fragment,
    schema: pa.Schema,
    condition: pc.Expression,
    *,
    parked: bool = False,
) -> list[RowPlace]:
    found = fragment.to_table(schema=schema, filter=condition).to_pylist()
    if not found:
        return []
    kept = [name for name in COORDINATES.names if name in schema.names]
    rows = fragment.to_table(schema=schema, columns=kept)
    numbered = rows.append_column("_row", pa.array(range(len(rows)), pa.int64()))
    numbers = numbered.filter(condition)["_row"].to_pylist()
    return [
        RowPlace(row.table, row.role, fragment.path, number, values, parked)
        for number, values in zip(numbers, found, strict=True)
    ]


def _known(schema: pa.Schema, wanted: Coordinates) -> pc.Expression:
    """Build the condition on the coordinates that the table keeps."""
    condition = pc.field("_offset") == wanted.offset
    if "_partition" in schema.names:
        condition = condition & (pc.field("_partition") == wanted.partition)
    if "_topic" in schema.names:
        condition = condition & (text("_topic") == wanted.topic)
    return condition


# Conversion of typed values, and errors for unknown names.


def as_type(value: Any, column: pa.Field) -> pa.Scalar:
    """Convert a value to the type of a column. Raises ConfigError."""
    try:
        return pa.scalar(value).cast(column.type)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise ConfigError(
            f"the value does not fit column {column.name}",
            evidence=f"{str(value)[:80]!r} is not of type {column.type}",
            next_step="give a value of that type, for a time like 2026-11-15T12:00:00Z",
        ) from error


def coordinates_of(row: Mapping[str, Any]) -> Coordinates | None:
    """Return the coordinates of a row's record, if the table has them."""
    topic, partition, offset = (row.get(name) for name in COORDINATES.names)
    if offset is None:
        return None
    return Coordinates(topic or "", partition or 0, offset)


_LETTER_COLUMNS = (
    *("id", "pipeline", "type", "schema_id", "stage", "error_code", "error_message"),
    *("batch", "first_seen", "last_seen", "attempts", "status", "note"),
)


class TraceVerdict(StrEnum):
    """What became of a record."""

    WRITTEN = "written"
    DEAD_LETTER = "dead_letter"
    PARKED = "parked"
    NOT_FOUND = "not_found"
    """It lies in a range that was read, but no row and no dead letter is it."""
    NOT_READ = "not_read"
    """It is past everything that was read so far."""
    BEFORE_START = "before_start"
    """Reading began after it."""
    UNKNOWN_SOURCE = "unknown_source"
    """Nothing was ever read from this topic and partition."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The answer, with the evidence for it."""

    source: Coordinates
    verdict: TraceVerdict
    batches: tuple[BatchRow, ...] = ()
    places: tuple[RowPlace, ...] = ()
    dead_letters: tuple[dict[str, Any], ...] = ()
    read_to: int | None = None
    """One past the last offset that was read from this partition."""

    def sentence(self) -> str:
        """Return the result in one line."""
        match self.verdict:
            case TraceVerdict.WRITTEN | TraceVerdict.PARKED:
                what = "waits in" if self.verdict is TraceVerdict.PARKED else "is in"
                tables = sorted({p.table for p in self.places if p.parked == (what == "waits in")})
                return f"{self.source} {what} {', '.join(tables)}"
            case TraceVerdict.DEAD_LETTER:
                letter = self.dead_letters[-1]
                return (
                    f"{self.source} is dead letter {letter['id']} "
                    f"({letter['error_code']}, {letter['status']})"
                )
            case TraceVerdict.NOT_FOUND:
                return (
                    f"{self.source} was read, but no row is left of it: a gap in the "
                    "offsets, a tombstone, a re-delivery, a condition of `shape`, or a table "
                    "without coordinates"
                )
            case TraceVerdict.NOT_READ:
                return f"{self.source} is not read yet: the next offset to read is {self.read_to}"
            case TraceVerdict.BEFORE_START:
                return f"{self.source} is from before the offset at which reading began"
            case TraceVerdict.UNKNOWN_SOURCE:
                return f"nothing was read from {self.source.topic}/{self.source.partition}"

    def as_dict(self) -> dict[str, Any]:
        """Return the documented shape for `--json`."""
        return {"version": 1, "sentence": self.sentence(), **plain(self)}


@dataclass(frozen=True, slots=True)
class RowOrigin:
    """A row, and the record it came from."""

    source: Coordinates | None
    """None where the table keeps no coordinates."""
    values: dict[str, Any] = field(default_factory=dict)


def trace_offset(lake: str, source: Coordinates) -> Trace:
    """Trace one source record to its rows."""
    topic, partition, offset = source.topic, source.partition, source.offset
    ledger = Ledger(lake)
    found = ledger.find_batch(topic, partition, offset)
    batches = tuple(f.batch for f in found)
    if not found:
        return _unread(ledger, source)
    where = {"topic": topic, "partition": partition, "offsets": offset, "columns": _LETTER_COLUMNS}
    letters = _letters(lake, ledger.tables(schema_ids=False), **where)
    rows = [row for f in found for row in f.tables]
    jobs = {f.batch.pipeline for f in found}
    rows += [r for name in sorted(jobs) for r in ledger.shared_tables(name, offset)]
    if any(letter["status"] == "replayed" for letter in letters):
        jobs |= {letter["pipeline"] for letter in letters}
        rows += [r for name in sorted(jobs) for r in ledger.replayed_tables(name, offset)]
    with reaching_table(lake):
        places = _Search(lake, source, lake_files(lake)).places(rows)
    return Trace(source, _verdict(places, letters), batches, places, letters)


def trace_row(
    lake: str, table: str, column: str, value: Any, *, limit: int = 10
) -> tuple[RowOrigin, ...]:
    """Return a table's rows with this value, each with the record it came from."""
    # only tables that the ledger knows: a name from outside never becomes a path
    tables = Ledger(lake).tables(schema_ids=False)
    known = {t.table: t.path for t in tables}
    if table not in known:
        raise missing("no such table", table, list(known))
    found = open_readable(layout.place(lake, known[table]))
    if found is None:
        raise missing("no such table", table, [])
    schema = found.schema
    if column not in schema.names:
        raise missing(f"no such column in {table}", column, schema.names)
    # the cast is for files whose kind of text or bytes pyarrow cannot compare as it is
    kind = schema.field(column).type
    where = pc.field(column).cast(kind) == as_type(value, schema.field(column))
    rows = found.rows(where=where, limit=limit)
    return tuple(RowOrigin(coordinates_of(row), row) for row in rows.to_pylist())


def _unread(ledger: Ledger, source: Coordinates) -> Trace:
    ranges = ledger.read_ranges().filter(
        (pc.field("topic") == source.topic) & (pc.field("partition") == source.partition)
    )
    if not len(ranges):
        return Trace(source, TraceVerdict.UNKNOWN_SOURCE)
    first, end = ranges["first"][0].as_py(), ranges["end"][0].as_py()
    if source.offset >= end:
        return Trace(source, TraceVerdict.NOT_READ, read_to=end)
    verdict = TraceVerdict.BEFORE_START if source.offset < first else TraceVerdict.NOT_FOUND
    return Trace(source, verdict, read_to=end)


def _letters(
    lake: str, tables: Iterable[TableSummary], **wanted: Any
) -> tuple[dict[str, Any], ...]:
    places = {layout.place(lake, t.path) for t in tables if t.role == Role.DEAD_LETTERS}
    stores = map(DeadLetters, sorted(places))
    found = (store.select(status=None, **wanted).to_pylist() for store in stores)
    return tuple(chain.from_iterable(found))


def _verdict(places: Sequence[RowPlace], letters: Sequence[dict[str, Any]]) -> TraceVerdict:
    if letters and any(letter["status"] != "replayed" for letter in letters):
        return TraceVerdict.DEAD_LETTER
    if any(place.parked for place in places):
        return TraceVerdict.PARKED
    if places:
        return TraceVerdict.WRITTEN
    return TraceVerdict.DEAD_LETTER if letters else TraceVerdict.NOT_FOUND


# The origin of a row: the events of its key in the log, in the order of the source.

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
    """Where it was read; None where the log keeps no coordinates."""
    current: bool
    """The row is what this event says."""
    changed: Mapping[str, Any] = field(default_factory=dict)
    """Columns that it gave another value than the event before, with the new value."""
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
            "a row is found by one value for each column of its key",
            evidence=f"the key is {', '.join(key)[:200] or 'nothing'}; given: {len(conditions)}",
            next_step="give as many values as the key has columns, or COLUMN=VALUE",
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
        for letter in _letters(lake, tables, columns=names)
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
