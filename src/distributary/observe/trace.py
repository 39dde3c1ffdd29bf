"""Where is my record? From source coordinates to rows, and from a row back to its source."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pa_fs

from distributary.delta.tables import StorageOptions, lake_files, reaching
from distributary.errors import ConfigError, ErrorCode
from distributary.model import layout
from distributary.model.table import Role
from distributary.observe.deadletters import DeadLetters
from distributary.observe.health import files_of, open_readable
from distributary.observe.ledger import Ledger
from distributary.observe.log_format import plain
from distributary.observe.rows import ACCEPTED, PARKED, RESUMED, BatchRow, TableRow, text

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
        """The inverse of `str`; None for what is no TOPIC/PARTITION/OFFSET."""
        topic, *numbers = text.rsplit("/", 2)
        if len(numbers) != 2 or not topic or not all(n.isdecimal() for n in numbers):
            return None
        partition, offset = map(int, numbers)
        fits = partition <= _INT32 and offset <= _INT64
        return cls(topic, partition, offset) if fits else None

    def condition(self) -> pc.Expression:
        """Rows of this record; a table may have been told to keep only some of the columns."""
        topic, partition, offset = text("_topic"), pc.field("_partition"), pc.field("_offset")
        return (
            (offset == self.offset)
            & ((partition == self.partition) | partition.is_null())
            & ((topic == self.topic) | topic.is_null())
        )


@dataclass(frozen=True, slots=True)
class Place:
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


def files_holding(
    files: pa_fs.FileSystem, paths: Iterable[str], wanted: Coordinates
) -> tuple[set[str], set[str]]:
    """Of many files of many tables: those with rows of the record, and those that are gone."""
    listed = list(paths)
    there = [info.type == pa_fs.FileType.File for info in files.get_file_info(listed)]
    present = [path for path, is_there in zip(listed, there, strict=True) if is_there]
    gone = {path for path, is_there in zip(listed, there, strict=True) if not is_there}
    if not present:
        return set(), gone
    # one scan for all of them: columns that a file lacks read as null
    everything = ds.dataset(present, schema=COORDINATES, format="parquet", filesystem=files)
    hits = everything.scanner(columns=[_FILE], filter=wanted.condition()).to_table()
    return set(hits[_FILE].to_pylist()), gone


def places_in_table(
    lake: str,
    folder: str,
    wanted: Coordinates,
    *,
    table: str,
    role: str,
    only: Iterable[str] | None = None,
    storage_options: StorageOptions | None = None,
) -> tuple[Place, ...] | None:
    """The record's rows in a table's live files, or only in some of these.

    None: a file asked for is not live any more (it was compacted, say): look at all of them.
    """
    found = open_readable(layout.join(lake, folder), storage_options)
    if found is None or "_offset" not in found.schema.names:
        return ()
    condition = _known(found.schema, wanted)
    live = found.files
    if live is None:
        rows = found.rows(where=condition, limit=_ROWS_SHOWN)
        return tuple(Place(table, role, None, None, row) for row in rows.to_pylist())
    if only is None:
        fragments = list(live.get_fragments(filter=condition))
    else:
        names = set(only)
        fragments = [f for f in live.get_fragments() if f.path in names]
        if len(fragments) < len(names):
            return None
    places = (_places(f, live.schema, condition, table=table, role=role) for f in fragments)
    return tuple(chain.from_iterable(places))[:_ROWS_SHOWN]


def places_in_file(
    files: pa_fs.FileSystem,
    path: str,
    wanted: Coordinates,
    *,
    table: str,
    role: str,
    parked: bool = False,
) -> tuple[Place, ...]:
    """The record's rows in one file of which no table format knows (yet)."""
    alone = ds.dataset([path], format="parquet", filesystem=files)
    (fragment,) = alone.get_fragments()
    condition = _known(alone.schema, wanted)
    found = _places(fragment, alone.schema, condition, table=table, role=role, parked=parked)
    return tuple(found)[:_ROWS_SHOWN]


def _places(
    fragment: ds.Fragment,
    schema: pa.Schema,
    condition: pc.Expression,
    *,
    table: str,
    role: str,
    parked: bool = False,
) -> list[Place]:
    values = fragment.to_table(schema=schema, filter=condition).to_pylist()
    if not values:
        return []
    kept = [name for name in COORDINATES.names if name in schema.names]
    rows = fragment.to_table(schema=schema, columns=kept)
    numbered = rows.append_column("_row", pa.array(range(len(rows)), pa.int64()))
    numbers = numbered.filter(condition)["_row"].to_pylist()
    return [
        Place(table, role, fragment.path, number, row, parked)
        for number, row in zip(numbers, values, strict=True)
    ]


def _known(schema: pa.Schema, wanted: Coordinates) -> pc.Expression:
    """The condition on those coordinates that the table keeps."""
    condition = pc.field("_offset") == wanted.offset
    if "_partition" in schema.names:
        condition = condition & (pc.field("_partition") == wanted.partition)
    if "_topic" in schema.names:
        condition = condition & (text("_topic") == wanted.topic)
    return condition


# The search for a record's rows: first the files of its batch, then, if need be, whole tables.


class Search:
    """Looks for one record in the tables of one lake."""

    def __init__(
        self, lake: str, wanted: Coordinates, *, storage_options: StorageOptions | None = None
    ) -> None:
        self._lake = lake
        self._wanted = wanted
        self._options = storage_options

    def places(self, rows: Iterable[TableRow]) -> tuple[Place, ...]:
        """The record's rows, given what the ledger says of the batches that read it."""
        with reaching(self._lake):
            files = lake_files(self._lake, self._options)
            if files is None:
                return ()
            current = last_word(rows)
            found = self._written(files, [row for row in current if row.outcome != PARKED])
            waiting = [row for row in current if row.outcome == PARKED]
            found += self._waiting(files, waiting, certain=bool(found))
        return tuple(sorted(found, key=lambda p: (p.table, p.file or "", p.row or 0)))

    def _written(self, files: pa_fs.FileSystem, rows: Sequence[TableRow]) -> list[Place]:
        listed = [(row, self._files(row)) for row in rows]
        by_path = {
            f"{layout.inside(self._lake, row.path)}/{name}": (row, name)
            for row, names in listed
            for name in names
        }
        hits, gone = files_holding(files, by_path, self._wanted)
        # sums of old batches name no files, and compacted files are gone: such tables are
        # searched as a whole
        whole = {row.table: row for row, names in listed if not names}
        whole |= {by_path[path][0].table: by_path[path][0] for path in gone}
        by_table: dict[str, list[str]] = defaultdict(list)
        for path in sorted(hits):
            by_table[by_path[path][0].table].append(path)
        found: list[Place] = []
        for table, paths in by_table.items():
            row = by_path[paths[0]][0]
            known = self._in_table(row, {by_path[path][1] for path in paths})
            if known is None:
                whole[table] = row
            else:
                found += known or self._in_folder(files, row, paths)
        for row in whole.values():
            found += self._in_table(row, None) or ()
        return found

    def _files(self, row: TableRow) -> tuple[str, ...]:
        return files_of(layout.place(self._lake, row.path), row)

    def _in_table(self, row: TableRow, only: Iterable[str] | None) -> tuple[Place, ...] | None:
        return places_in_table(
            self._lake,
            layout.inside(self._lake, row.path),
            self._wanted,
            table=row.table,
            role=row.role,
            only=only,
            storage_options=self._options,
        )

    def _in_folder(
        self,
        files: pa_fs.FileSystem,
        row: TableRow,
        paths: Iterable[str],
        *,
        parked: bool = False,
    ) -> list[Place]:
        return [
            place
            for path in sorted(paths)
            for place in places_in_file(
                files, path, self._wanted, table=row.table, role=row.role, parked=parked
            )
        ]

    def _waiting(
        self, files: pa_fs.FileSystem, rows: Sequence[TableRow], *, certain: bool
    ) -> list[Place]:
        found: list[Place] = []
        for row in rows:
            waits = _below(files, self._lake, row)
            hits, _ = files_holding(files, waits, self._wanted)
            found += self._in_folder(files, row, hits, parked=True)
            if not waits and not certain:
                # the offsets fit, and nothing else is known of the record: it must be in there
                found.append(Place(row.table, row.role, None, None, parked=True))
        return found


def _below(files: pa_fs.FileSystem, lake: str, row: TableRow) -> list[str]:
    """The batch's files among all that wait for the table; files have names of their own."""
    folder = layout.join(layout.parked(lake, row.pipeline), row.table)
    inside = folder[len(layout.join(lake, "")) :]
    listing = files.get_file_info(pa_fs.FileSelector(inside, allow_not_found=True, recursive=True))
    endings = tuple(f"/{name}" for name in row.files)
    return [info.path for info in listing if endings and info.path.endswith(endings)]


def last_word(rows: Iterable[TableRow]) -> list[TableRow]:
    """What batches did last: no dead letters, no parked rows of what was resumed since."""
    kept = [row for row in rows if row.role != Role.DEAD_LETTERS and row.outcome != ACCEPTED]
    resumed = {(row.key, row.table) for row in kept if row.outcome == RESUMED}
    return [row for row in kept if row.outcome != PARKED or (row.key, row.table) not in resumed]


# Values that a person types, and names that are not there.


def as_type(value: Any, column: pa.Field) -> pa.Scalar:
    """A value in the type of a column. Raises ConfigError."""
    try:
        return pa.scalar(value).cast(column.type)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise ConfigError(
            f"the value does not fit column {column.name}",
            evidence=f"{str(value)[:80]!r} is not of type {column.type}",
            next_step="give a value of that type, for a time like 2026-11-15T12:00:00Z",
        ) from error


def coordinates_of(row: Mapping[str, Any]) -> Coordinates | None:
    """Where the record of a row was read, if the table keeps that."""
    topic, partition, offset = (row.get(name) for name in COORDINATES.names)
    if offset is None:
        return None
    return Coordinates(topic or "", partition or 0, offset)


def missing(what: str, name: str, known: Sequence[str]) -> ConfigError:
    """The error for a name that nothing has."""
    near = get_close_matches(name, known, n=3)
    return ConfigError(
        what,
        code=ErrorCode.NOT_FOUND,
        evidence=repr(name[:100]),
        next_step=f"did you mean {', '.join(near)}?" if near else "distributary tables",
    )


_LETTER_COLUMNS = (
    *("id", "pipeline", "type", "schema_id", "stage", "error_code", "error_message"),
    *("batch", "first_seen", "last_seen", "attempts", "status", "note"),
)


class Verdict(StrEnum):
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
    verdict: Verdict
    batches: tuple[BatchRow, ...] = ()
    places: tuple[Place, ...] = ()
    dead_letters: tuple[dict[str, Any], ...] = ()
    read_to: int | None = None
    """One past the last offset that was read from this partition."""

    def sentence(self) -> str:
        """The same in one line."""
        match self.verdict:
            case Verdict.WRITTEN | Verdict.PARKED:
                what = "waits in" if self.verdict is Verdict.PARKED else "is in"
                tables = sorted({p.table for p in self.places if p.parked == (what == "waits in")})
                return f"{self.source} {what} {', '.join(tables)}"
            case Verdict.DEAD_LETTER:
                letter = self.dead_letters[-1]
                return (
                    f"{self.source} is dead letter {letter['id']} "
                    f"({letter['error_code']}, {letter['status']})"
                )
            case Verdict.NOT_FOUND:
                return (
                    f"{self.source} was read, but no row is left of it: a gap in the "
                    "offsets, a tombstone, a re-delivery, or a table without coordinates"
                )
            case Verdict.NOT_READ:
                return f"{self.source} is not read yet: the next offset to read is {self.read_to}"
            case Verdict.BEFORE_START:
                return f"{self.source} is from before the offset at which reading began"
            case Verdict.UNKNOWN_SOURCE:
                return f"nothing was read from {self.source.topic}/{self.source.partition}"

    def as_dict(self) -> dict[str, Any]:
        """The documented shape for `--json`."""
        return {"version": 1, "sentence": self.sentence(), **plain(self)}


@dataclass(frozen=True, slots=True)
class RowOrigin:
    """A row, and the record it came from."""

    source: Coordinates | None
    """None where the table keeps no coordinates."""
    values: dict[str, Any] = field(default_factory=dict)


def trace_offset(
    lake: str,
    topic: str,
    partition: int,
    offset: int,
    *,
    storage_options: StorageOptions | None = None,
) -> Trace:
    """What became of one source record."""
    source = Coordinates(topic, partition, offset)
    ledger = Ledger(lake, storage_options=storage_options)
    found = ledger.find_batch(topic, partition, offset)
    batches = tuple(f.batch for f in found)
    if not found:
        return _unread(ledger, source)
    letters = _letters(ledger, lake, source, storage_options)
    rows = [row for f in found for row in f.tables]
    jobs = {f.batch.pipeline for f in found}
    rows += [r for name in sorted(jobs) for r in ledger.shared_tables(name, offset)]
    if any(letter["status"] == "replayed" for letter in letters):
        jobs |= {letter["pipeline"] for letter in letters}
        rows += [r for name in sorted(jobs) for r in ledger.replayed_tables(name, offset)]
    places = Search(lake, source, storage_options=storage_options).places(rows)
    return Trace(source, _verdict(places, letters), batches, places, letters)


def trace_row(
    lake: str,
    table: str,
    column: str,
    value: Any,
    *,
    limit: int = 10,
    storage_options: StorageOptions | None = None,
) -> tuple[RowOrigin, ...]:
    """Rows of a table that hold this value, each with the record it came from."""
    folder = _folder_of(lake, table, storage_options)
    found = open_readable(layout.join(lake, folder), storage_options)
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
        return Trace(source, Verdict.UNKNOWN_SOURCE)
    first, end = ranges["first"][0].as_py(), ranges["end"][0].as_py()
    if source.offset >= end:
        return Trace(source, Verdict.NOT_READ, read_to=end)
    verdict = Verdict.BEFORE_START if source.offset < first else Verdict.NOT_FOUND
    return Trace(source, verdict, read_to=end)


def _letters(
    ledger: Ledger, lake: str, source: Coordinates, storage_options: StorageOptions | None
) -> tuple[dict[str, Any], ...]:
    tables = ledger.tables(schema_ids=False)
    folders = {layout.inside(lake, t.path) for t in tables if t.role == Role.DEAD_LETTERS}
    return tuple(
        letter
        for folder in sorted(folders)
        for letter in DeadLetters(layout.join(lake, folder), storage_options=storage_options)
        .select(
            topic=source.topic,
            partition=source.partition,
            offsets=source.offset,
            status=None,
            columns=_LETTER_COLUMNS,
        )
        .to_pylist()
    )


def _verdict(places: Sequence[Place], letters: Sequence[dict[str, Any]]) -> Verdict:
    if letters and any(letter["status"] != "replayed" for letter in letters):
        return Verdict.DEAD_LETTER
    if any(place.parked for place in places):
        return Verdict.PARKED
    if places:
        return Verdict.WRITTEN
    return Verdict.DEAD_LETTER if letters else Verdict.NOT_FOUND


def _folder_of(lake: str, table: str, storage_options: StorageOptions | None) -> str:
    """Only tables that the ledger knows: a name from outside never becomes a path."""
    ledger = Ledger(lake, storage_options=storage_options)
    known = {t.table: t.path for t in ledger.tables(schema_ids=False)}
    if table not in known:
        raise missing("no such table", table, list(known))
    return layout.inside(lake, known[table])
