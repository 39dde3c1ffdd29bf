"""Where is my record? From source coordinates to rows, and from a row back to its source."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pa_fs

from distributary.delta.tables import lake_files, reaching_table
from distributary.errors import ConfigError, missing
from distributary.model import layout
from distributary.model.table import Role
from distributary.observe.cards import registrations
from distributary.observe.deadletters import DeadLetters
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
from distributary.observe.status.health import files_of
from distributary.publish.formats.table_format_entry import open_readable
from distributary.store.base import at

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
    """The place of a record in its source."""

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
    """In the table's folder, or in the lake or at an address if it is parked; None where the
    table's format does not tell."""
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
            waits, waiting = self._parked_rows(row)
            found += waiting
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
        hits, gone = self.holding(by_path)
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
                found += known or self.in_files(row, paths)
        for row in whole.values():
            found += self._in_table(row, None) or ()
        return found

    def holding(self, paths: Iterable[str]) -> tuple[set[str], set[str]]:
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

        None if a requested file has left the table, for example by compaction: then all files must
        be searched.
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

    def in_files(
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

    def _parked_rows(self, row: TableRow) -> tuple[bool, list[RowPlace]]:
        """Return whether files of the batch wait for the table, and the record's rows in them."""
        folder = self._parking(row.pipeline)
        if not folder:
            return False, []
        # the ledger is not trusted: any writer of the lake can change it
        table = "/".join(part for part in row.table.split("/") if part not in ("", ".", ".."))
        endings = tuple(f"/{name}" for name in row.files)
        with reaching_table(folder):
            below = at(folder).files(table, recursive=True)
            paths = [info.name for info in below if info.name.endswith(endings)]
            there = replace(self, files=lake_files(folder))
            found = there.in_files(row, there.holding(paths)[0], parked=True)
        named = (f"{folder}/{each.file}".removeprefix(layout.join(self.lake, "")) for each in found)
        return bool(paths), [replace(p, file=name) for p, name in zip(found, named, strict=True)]

    def _parking(self, pipeline: str) -> str:
        """Return the folder of a pipeline's parked batches; empty if its card does not name it."""
        folder = layout.parking(self.lake, pipeline, "")
        if folder:
            return folder
        cards = {card.name: card.checkpoint for card in registrations(self.lake)}
        return layout.parking(self.lake, pipeline, cards.get(pipeline, ""))


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


LETTER_COLUMNS = (
    *("id", "pipeline", "type", "schema_id", "stage", "error_code", "error_message"),
    *("batch", "first_seen", "last_seen", "attempts", "status", "note"),
)


class TraceVerdict(StrEnum):
    """The fate of a record."""

    WRITTEN = "written"
    DEAD_LETTER = "dead_letter"
    PARKED = "parked"
    NOT_FOUND = "not_found"
    """The record is in a range that was read, but there is no row and no dead letter of it."""
    NOT_READ = "not_read"
    """The record is behind the last record that was read."""
    BEFORE_START = "before_start"
    """The record is older than the offset at which reading began."""
    UNKNOWN_SOURCE = "unknown_source"
    """No record was ever read from this topic and partition."""


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
    where = {"topic": topic, "partition": partition, "offsets": offset, "columns": LETTER_COLUMNS}
    letters = letters_in(lake, ledger.tables(schema_ids=False), **where)
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


def letters_in(
    lake: str, tables: Iterable[TableSummary], **wanted: Any
) -> tuple[dict[str, Any], ...]:
    """Return the dead letters of all tables of dead letters, whatever their status."""
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
