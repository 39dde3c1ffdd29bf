"""The rows of a merged table that events are about, found by reading as little as possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa

from distributary.changes.contest import Known
from distributary.changes.events.log_events import (
    Definition,
    Flags,
    Ints,
    KeyIndex,
    Span,
    combined,
    owners,
)
from distributary.changes.merge_order import (
    MergedColumns,
)
from distributary.decode.base import truths
from distributary.delta.log import DataFile, Snapshot
from distributary.delta.skipping import KeyRanges

T = TypeVar("T")
R = TypeVar("R")

READ_WHOLE = 16 * 2**20
"""The bytes up to which a table is read at once; of a larger one, the keys are read first."""


@dataclass(slots=True)
class Part:
    """One file of the table."""

    file: DataFile
    known: Ints
    """The known rows that are in the file, by their numbers among all known rows."""
    places: Ints
    """The positions of these rows in the file, deleted rows not counted."""


@dataclass(frozen=True, slots=True)
class _Found:
    file: DataFile
    places: Ints
    groups: list[Ints]
    known: pa.Table | None


def at_once(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Compute the results for all items with as many threads as Arrow may use."""
    threads = min(len(items), pa.cpu_count())
    if threads < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, items))


class MergeTarget:
    """A merged table at one version: its rows, in the columns that it will have."""

    def __init__(self, snapshot: Snapshot | None, table_columns: MergedColumns) -> None:
        self.snapshot = snapshot
        self._columns = table_columns
        self._whole = snapshot is not None and snapshot.size <= READ_WHOLE
        self._read: dict[str, pa.Table] = {}

    def pieces(self, file: DataFile) -> Iterator[pa.Table]:
        """Read all rows of a file, piece by piece."""
        if self.snapshot is None or self._whole:
            yield self.columns(file, self._columns.schema)
            return
        lenient = self._columns.rewritten
        yield from self.snapshot.pieces(file, self._columns.schema, lenient=lenient)

    def forgotten(self, file: DataFile) -> Flags | None:
        """Return the soft-deleted rows, if the table loses the column that marks them."""
        before = self.snapshot
        if before is None or "_deleted" in self._columns.names:
            return None
        if all(field["name"] != "_deleted" for field in before.fields):
            return None
        return truths(before.read(file, pa.schema([("_deleted", pa.bool_())])).column(0))

    def find(
        self,
        keys: Sequence[KeyIndex],
        *,
        spans: Sequence[Span],
        extra: Sequence[str],
        everything: bool,
    ) -> tuple[Known, list[Part], pa.Table]:
        """Find the rows with keys of events, or all rows, with their parts and `extra`."""
        names = sorted({name for index in keys for name in index.definition})
        wanted = self._fields(list(dict.fromkeys(["_seq", *self._deleted(), *extra])))

        def look(file: DataFile) -> _Found:
            rows = self.columns(file, self._fields(names))
            groups = [index.find(rows) for index in keys]
            met = np.ones(rows.num_rows, bool) if everything else _any(groups, rows.num_rows)
            places = np.flatnonzero(met)
            known = self.columns(file, wanted).take(places) if len(places) else None
            return _Found(file, places, [each[places] for each in groups], known)

        nothing = np.zeros(0, np.int64)
        files = list(self.snapshot.files.values()) if self.snapshot else []
        # bounds were written for the column's old type, and do not apply to its current one
        whole = everything or self._columns.rewritten
        may = files if whole else _candidates(files, keys)
        looked = {each.file.path: each for each in at_once(look, may)}
        unread = [nothing] * len(keys)
        found = [looked.get(f.path) or _Found(f, nothing, unread, None) for f in files]
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
        """Return the place of every row, file by file."""
        for file in self.snapshot.files.values() if self.snapshot else ():
            yield self.columns(file, self._fields(["_seq"])).column("_seq")

    def _deleted(self) -> list[str]:
        return ["_deleted"] if "_deleted" in self._columns.names else []

    def _fields(self, names: Sequence[str]) -> pa.Schema:
        return pa.schema([self._columns.schema.field(name) for name in names])

    def columns(self, file: DataFile, schema: pa.Schema) -> pa.Table:
        """Return some columns of the rows of a file."""
        if self.snapshot is None:
            return schema.empty_table()
        if not self._whole:
            return self.snapshot.read(file, schema, lenient=self._columns.rewritten)
        rows = self._read.get(file.path)
        if rows is None:
            rows = self.snapshot.read(file, self._columns.schema, lenient=self._columns.rewritten)
            self._read[file.path] = rows
        return rows.select(schema.names)


class MemoryTarget:
    """The same interface for rows in memory, which are not in a table yet."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows

    def find(
        self,
        keys: Sequence[KeyIndex],
        *,
        spans: Sequence[Span],
        extra: Sequence[str],
        everything: bool,
    ) -> tuple[Known, list[Part], pa.Table]:
        """Find rows as `MergeTarget.find` does; there is only one part."""
        rows = self.rows
        here = [index.find(rows) for index in keys]
        met = np.ones(rows.num_rows, bool) if everything else _any(here, rows.num_rows)
        places = np.flatnonzero(met)
        wanted = ["_seq", *(["_deleted"] if "_deleted" in rows.column_names else []), *extra]
        table = rows.select(list(dict.fromkeys(wanted))).take(places)
        groups = [[numbers[places]] for numbers in here]
        known = _known(table, groups, spans, [index.definition for index in keys])
        return known, [Part(DataFile("", "", 0), np.arange(len(places)), places)], table

    def places(self) -> Iterator[pa.ChunkedArray]:
        """Return the place of every row."""
        yield self.rows.column("_seq")


def _candidates(files: Sequence[DataFile], keys: Sequence[KeyIndex]) -> Sequence[DataFile]:
    """Return the files that can hold a row with the key of an event."""
    if len(files) < 2:
        # reading one file takes less time than comparing its bounds
        return files
    wanted = [KeyRanges(index.rows, index.definition) for index in keys]
    return [file for file in files if any(each.may_be_in(file) for each in wanted)]


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
    seq = combined(table.column("_seq"))
    live = np.ones(table.num_rows, np.bool_)
    if "_deleted" in table.column_names:
        live = ~truths(table.column("_deleted"))
    none = np.zeros(0, np.int64)
    return Known(
        seq=seq,
        groups=[np.concatenate([none, *each]) for each in groups],
        owner=owners(spans, definitions, seq),
        live=live,
    )
