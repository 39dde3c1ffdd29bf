"""Where is my record? From source coordinates to rows, and from a row back to its source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pyarrow.compute as pc

from distributary.model.table import Role
from distributary.observe import layout
from distributary.observe.deadletters import DeadLetters
from distributary.observe.delta import StorageOptions
from distributary.observe.ledger import Ledger
from distributary.observe.locate import Coordinates, Place
from distributary.observe.plain import plain
from distributary.observe.readable import open_readable
from distributary.observe.rows import BatchRow
from distributary.observe.search import Search
from distributary.observe.values import as_type, coordinates_of, missing

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
