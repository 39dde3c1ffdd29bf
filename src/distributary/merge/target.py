"""The rows of a table that a batch speaks of, found without reading more than it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa

from distributary.merge.contest import Known
from distributary.merge.definitions import Span, owners
from distributary.merge.keys import Definition, KeyIndex
from distributary.merge.sequence import Flags, Ints
from distributary.merge.shape import Shape
from distributary.merge.snapshot import LiveFile, Snapshot
from distributary.model.change import SEQ

T = TypeVar("T")
R = TypeVar("R")

READ_WHOLE = 16 * 2**20
"""Bytes: a table up to this size is read once, with all columns; of a larger one the keys first."""


@dataclass(slots=True)
class Part:
    """One file of the table."""

    file: LiveFile
    known: Ints
    """The known rows that are in it, by their numbers among all known rows."""
    places: Ints
    """Where these are in the file."""


@dataclass(frozen=True, slots=True)
class _Found:
    file: LiveFile
    places: Ints
    groups: list[Ints]
    known: pa.Table | None


def at_once(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """The results for all items, worked on by as many threads as Arrow may use."""
    threads = min(len(items), pa.cpu_count())
    if threads < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, items))


class Target:
    """A table's rows, in the columns that it will have."""

    def __init__(self, snapshot: Snapshot | None, shape: Shape) -> None:
        self.snapshot = snapshot
        self._shape = shape
        self._whole = snapshot is not None and snapshot.size <= READ_WHOLE
        self._read: dict[str, pa.Table] = {}

    def rows(self, file: LiveFile) -> pa.Table:
        """All rows of a file."""
        return self._columns(file, self._shape.schema)

    def forgotten(self, file: LiveFile) -> Flags | None:
        """Rows that were only marked as deleted, once the table has no column to tell."""
        before = self.snapshot
        if before is None or "_deleted" in self._shape.names:
            return None
        if all(field["name"] != "_deleted" for field in before.fields):
            return None
        column = before.read(file, pa.schema([("_deleted", pa.bool_())])).column(0)
        flags: Flags = column.fill_null(False).to_numpy(zero_copy_only=False)
        return flags

    def find(
        self,
        keys: Sequence[KeyIndex],
        *,
        spans: Sequence[Span],
        extra: Sequence[str],
        everything: bool,
    ) -> tuple[Known, list[Part], pa.Table]:
        """The rows that agree with an event on some key, or all; where they are; their `extra`."""
        names = sorted({name for index in keys for name in index.definition})
        wanted = self._fields(list(dict.fromkeys(["_seq", *self._deleted(), *extra])))

        def look(file: LiveFile) -> _Found:
            rows = self._columns(file, self._fields(names))
            groups = [index.find(rows) for index in keys]
            met = np.ones(rows.num_rows, bool) if everything else _any(groups, rows.num_rows)
            places = np.flatnonzero(met)
            known = self._columns(file, wanted).take(places) if len(places) else None
            return _Found(file, places, [each[places] for each in groups], known)

        found = at_once(look, self.snapshot.files if self.snapshot else ())
        parts: list[Part] = []
        count = 0
        for each in found:
            parts.append(Part(each.file, count + np.arange(len(each.places)), each.places))
            count += len(each.places)
        rows = [each.known for each in found if each.known is not None]
        table = pa.concat_tables([*rows, wanted.empty_table()])
        groups = [[each.groups[number] for each in found] for number in range(len(keys))]
        definitions = [index.definition for index in keys]
        return _known(table, groups, spans, definitions), parts, table

    def places(self) -> Iterator[pa.ChunkedArray]:
        """The place of every row, file by file."""
        for file in self.snapshot.files if self.snapshot else ():
            yield self._columns(file, self._fields(["_seq"])).column("_seq")

    def _deleted(self) -> list[str]:
        return ["_deleted"] if "_deleted" in self._shape.names else []

    def _fields(self, names: Sequence[str]) -> pa.Schema:
        return pa.schema([self._shape.schema.field(name) for name in names])

    def _columns(self, file: LiveFile, schema: pa.Schema) -> pa.Table:
        if self.snapshot is None:
            return schema.empty_table()
        if not self._whole:
            return self.snapshot.read(file, schema, lenient=self._shape.rewritten)
        rows = self._read.get(file.path)
        if rows is None:
            rows = self.snapshot.read(file, self._shape.schema, lenient=self._shape.rewritten)
            self._read[file.path] = rows
        return rows.select(schema.names)


class MemoryTarget:
    """The same for rows that are not in a table yet."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def find(
        self,
        keys: Sequence[KeyIndex],
        *,
        spans: Sequence[Span],
        extra: Sequence[str],
        everything: bool,
    ) -> tuple[Known, list[Part], pa.Table]:
        """Like `Target.find`; there is one part."""
        rows = self._rows
        here = [index.find(rows) for index in keys]
        met = np.ones(rows.num_rows, bool) if everything else _any(here, rows.num_rows)
        places = np.flatnonzero(met)
        wanted = ["_seq", *(["_deleted"] if "_deleted" in rows.column_names else []), *extra]
        table = rows.select(list(dict.fromkeys(wanted))).take(places)
        groups = [[numbers[places]] for numbers in here]
        known = _known(table, groups, spans, [index.definition for index in keys])
        return known, [Part(LiveFile("", 0), np.arange(len(places)), places)], table

    def places(self) -> Iterator[pa.ChunkedArray]:
        """The place of every row."""
        yield self._rows.column("_seq")


def _any(groups: Sequence[Ints], size: int) -> Flags:
    met = np.zeros(size, np.bool_)
    for numbers in groups:
        met |= numbers >= 0
    return met


def _known(
    table: pa.Table,
    groups: Sequence[Sequence[Ints]],
    spans: Sequence[Span],
    definitions: Sequence[Definition],
) -> Known:
    seq = pa.concat_arrays([*table.column("_seq").chunks, pa.array([], SEQ)])
    live = np.ones(table.num_rows, np.bool_)
    if "_deleted" in table.column_names:
        deleted = table.column("_deleted").fill_null(False)
        live = ~deleted.to_numpy(zero_copy_only=False)
    none = np.zeros(0, np.int64)
    return Known(
        seq=seq,
        groups=[np.concatenate([none, *each]) for each in groups],
        owner=owners(spans, definitions, seq),
        live=live,
    )
