"""The rows that a table should have, from its whole log, without holding the log in memory.

Only keys, places and what events leave out are kept for every row, and the log file and the row in
it that has the rest. Chunks of the log are merged into that one after the other, by the same
decisions as batches into a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.errors import ErrorCode, PublishError
from distributary.merge.definitions import Span, definitions_of
from distributary.merge.events import CHANGE_SCHEMA, Events, left_out_in, read_events, read_file
from distributary.merge.order import MergeOrder
from distributary.merge.plan import plan
from distributary.merge.rewrite import staying
from distributary.merge.sequence import Ints
from distributary.merge.shape import Shape
from distributary.merge.snapshot import load
from distributary.merge.target import MemoryTarget
from distributary.merge.tombstones import SCHEMA as TOMBSTONES
from distributary.merge.tombstones import Tombstones, latest
from distributary.merge.usable import folder_of, refuse_unreadable

CHUNK_ROWS = 1_000_000
"""Rows of the log that are looked at together."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a table should be."""

    rows: pa.Table
    """One row each, with its place, its key, what events left out, and where the rest is."""
    files: tuple[str, ...]
    tombstones: pa.Table
    spans: tuple[Span, ...]
    file_name: str
    row_name: str

    def key_names(self) -> tuple[str, ...]:
        """All columns that were ever part of a key: together they tell any two rows apart."""
        return tuple(sorted({name for span in self.spans for name in span.key}))

    def gather(self, schema: pa.Schema) -> Iterator[pa.Table]:
        """Columns of the rows, log file by log file, in the order of `rows`."""
        numbers: Ints = self.rows.column(self.file_name).to_numpy()
        have = set(self.rows.column_names)
        missing = pa.schema([field for field in schema if field.name not in have])
        cuts = np.flatnonzero(np.diff(numbers)) + 1
        for part in np.split(np.arange(len(numbers)), cuts) if len(numbers) else ():
            own = self.rows.slice(int(part[0]), len(part))
            if len(missing):
                path = self.files[numbers[part[0]]]
                rest = read_file(path, missing, lenient=True).take(own.column(self.row_name))
                for field in missing:
                    own = own.append_column(field, rest.column(field.name))
            yield own.select(schema.names)


@dataclass(frozen=True, slots=True)
class _Survey:
    """What has to be known of a log before its events can be looked at."""

    files: tuple[str, ...]
    """As the batches came: at one and the same place the first one counts."""
    rows: tuple[int, ...]
    columns: frozenset[str]
    """Parts of keys, and columns that events leave out."""


def replay(
    log_path: str, order: MergeOrder, shape: Shape, *, as_of_us: int | None = None
) -> Replayed:
    """Merge a whole log, or what its source did up to a moment, into nothing."""
    survey = _survey(log_path, order, shape)
    file_name, row_name = (_free(name, shape.names) for name in ("_file", "_row"))
    narrow = _narrow(shape, survey, file_name, row_name)
    rows = narrow.schema.empty_table()
    spans: tuple[Span, ...] = ()
    tombstones = Tombstones("", TOMBSTONES.empty_table(), since_us=0)
    for numbers in _chunks(survey.rows):
        events = _events(survey, numbers, narrow.schema, file_name, row_name)
        events = events if as_of_us is None else _until(events, as_of_us)
        made = plan(
            events,
            MemoryTarget(rows),
            tombstones,
            shape=narrow,
            spans=spans,
            soft=order.soft,
            now_us=order.now_us,
        )
        kept = staying(rows, made.parts[0], made.decision)
        rows, spans = pa.concat_tables([kept, made.winners]), made.spans
        remembered = latest(pa.concat_tables([tombstones.rows, made.tombstones]))
        tombstones = Tombstones("", remembered, since_us=0)
    rows = rows.sort_by([(file_name, "ascending"), (row_name, "ascending")])
    return Replayed(rows, survey.files, tombstones.rows, spans, file_name, row_name)


def _survey(log_path: str, order: MergeOrder, shape: Shape) -> _Survey:
    snapshot = load(folder_of(log_path))
    if snapshot is None:
        raise PublishError(
            f"table {order.table} has no log",
            code=ErrorCode.NOT_FOUND,
            where=log_path,
            evidence="there is no table in this folder",
            next_step="set cdc.log to true, and let the source be read again",
        )
    refuse_unreadable(snapshot, f"{order.table}_log")
    wanted = pa.schema([CHANGE_SCHEMA.field(n) for n in ("_key", "_unchanged", "_batch")])
    columns: set[str] = set()
    found: list[tuple[int, str, int]] = []
    for file in snapshot.files:
        told = snapshot.read(file, wanted)
        keys, _ = definitions_of(told.column("_key"), shape.names)
        columns.update(*keys, left_out_in(told.column("_unchanged"), shape.names))
        batch = pc.min(told.column("_batch")).as_py()
        found.append((-1 if batch is None else batch, file.path, told.num_rows))
    files = sorted(found)
    return _Survey(
        tuple(f"{snapshot.folder}/{path}" for _, path, _ in files),
        tuple(rows for _, _, rows in files),
        frozenset(columns),
    )


def _narrow(shape: Shape, survey: _Survey, file_name: str, row_name: str) -> Shape:
    kept = {*survey.columns, "_seq", "_source_ts", "_deleted"}
    fields = [field for field in shape.schema if field.name in kept]
    where = [pa.field(file_name, pa.int32()), pa.field(row_name, pa.int64())]
    return Shape([], pa.schema([*fields, *where]), changed=False)


def _chunks(rows: Sequence[int]) -> Iterator[list[int]]:
    chunk: list[int] = []
    size = 0
    for number, count in enumerate(rows):
        chunk.append(number)
        size += count
        if size >= CHUNK_ROWS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _events(
    survey: _Survey, numbers: Sequence[int], narrow: pa.Schema, file_name: str, row_name: str
) -> Events:
    where = (file_name, row_name)
    own = [f for f in narrow if f.name not in CHANGE_SCHEMA.names and f.name not in where]
    tables = []
    for number in numbers:
        rows = read_events([survey.files[number]], pa.schema(own)).rows
        size = rows.num_rows
        rows = rows.append_column(
            narrow.field(file_name), pa.repeat(pa.scalar(number, pa.int32()), size)
        )
        tables.append(rows.append_column(narrow.field(row_name), pa.array(np.arange(size))))
    return Events(pa.concat_tables(tables))


def _until(events: Events, as_of_us: int) -> Events:
    """Events up to a moment; one without a time cannot be told to be later."""
    moment = pa.scalar(as_of_us, pa.int64()).cast(CHANGE_SCHEMA.field("_source_ts").type)
    before = pc.less_equal(events.rows.column("_source_ts"), moment).fill_null(True)
    return Events(events.rows.filter(before))


def _free(name: str, taken: Sequence[str]) -> str:
    while name in taken:
        name += "_"
    return name
