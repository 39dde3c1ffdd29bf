"""Sorted runs: the files that carry records between the two hops of a stage.

Hop one sorts its records by key and writes them as one Arrow file. Hop two maps the file into
memory and takes slices of it, which copies nothing; Spark's own shuffle would move every record
twice between Python and the JVM. The files are in the checkpoint, which all workers see, and are
deleted when the stage is over. For workers that do not see the checkpoint, see `packets`.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.model.facts import Fact, SortedRun, decode, encode, route_key
from distributary.model.record import RAW
from distributary.model.routing import Rejected, Route, RouteKey
from distributary.stage.unwrap import Rows, Unwrapped

SORTED = RAW.append(pa.field("payload", pa.binary()))
"""A raw record and the payload found in it; the payload is null if values are payloads."""

Values = tuple[Any, ...]

DOCUMENT_DDL = "kind string, body string"
DOCUMENT = pa.schema([pa.field("kind", pa.string()), pa.field("body", pa.string())])
"""A JSON document that a task sends to the driver, and its kind."""


HELD: dict[str, pa.RecordBatch] = {}
"""The runs of this worker's task that are held in memory, for lack of a folder that all workers
see."""


def write_run(batch: pa.RecordBatch, folder: str) -> str:
    """Write a batch as a new file and return its path. Without a folder, hold it in memory."""
    if not folder:
        name = uuid.uuid4().hex
        HELD[name] = batch
        return name
    # The folder exists as long as the driver waits for this task; without it, writing fails.
    path = Path(folder) / f"{uuid.uuid4().hex}.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return str(path)


def open_run(path: str) -> pa.RecordBatch:
    """Map the batch of a run's file into memory, or return the batch that is held there."""
    if path in HELD:
        return HELD[path]
    with pa.memory_map(path) as source:
        return pa.ipc.open_file(source).get_batch(0)


def documents_batch(documents: Iterable[tuple[str, str]]) -> pa.RecordBatch:
    """Build the batch that a task sends to the driver from kinds and JSON documents."""
    columns = list(zip(*documents, strict=True)) or [(), ()]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, pa.string()) for column in columns], schema=DOCUMENT
    )


def documents_of(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, str]]:
    """Yield the kinds and documents of batches; the inverse of `documents_batch`."""
    for batch in batches:
        yield from zip(*(batch.column(i).to_pylist() for i in (0, 1)), strict=True)


def facts_batch(facts: Iterable[Fact]) -> pa.RecordBatch:
    """Build the batch that reports facts to the driver."""
    return documents_batch(map(encode, facts))


def facts_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Fact]:
    """Yield the facts of batches; the inverse of `facts_batch`."""
    return (decode(kind, document) for kind, document in documents_of(batches))


# The distribution of the keys of all runs over the tasks of hop two. Hop one has counted the
# records of every key, so the distribution is exact: a light table goes to one task, a heavy table
# is cut by rows.

_ROWS_PER_KEY = 100
"""The fixed cost of a key, in rows."""
_SMALLEST_CUT = 5_000
"""The fewest rows of a piece of a table, because each piece becomes a file."""


class Slice(NamedTuple):
    """Rows of a run."""

    path: str
    start: int
    rows: int


@dataclass(frozen=True, slots=True)
class Share:
    """Records of one key for one task."""

    key: RouteKey
    slices: tuple[Slice, ...]


@dataclass(slots=True)
class Load:
    """The work of one task of hop two: the shares of each of its tables."""

    tables: dict[str, list[Share]] = field(default_factory=dict)
    letters: list[str] = field(default_factory=list)
    """Files of dead letters that hop one has written."""


def spread(
    runs: Iterable[SortedRun],
    letters: Sequence[str],
    routes: Mapping[RouteKey, Route | Rejected],
    *,
    tasks: int,
    by_run: bool = False,
) -> list[Load]:
    """Distribute records over loads of about equal weight; at most `tasks` of them.

    With `by_run`, a table's rows in one run stay together.
    """
    tables = _by_table(runs, routes)
    weights = {name: sum(map(_weight, shares)) for name, shares in tables.items()}
    fair = max(1, -(-sum(weights.values()) // tasks))
    loads, filled = [Load() for _ in range(tasks)], [0] * tasks
    for name in sorted(tables, key=lambda name: (-weights[name], name)):
        rows = sum(_rows(share) for share in tables[name])
        pieces = pieces_of(weights[name], rows, fair, tasks)
        cut = _cut_by_run if by_run else _cut
        for piece in cut(tables[name], -(-rows // pieces)):
            lightest = filled.index(min(filled))
            loads[lightest].tables.setdefault(name, []).extend(piece)
            filled[lightest] += sum(map(_weight, piece))
    loads[filled.index(min(filled))].letters.extend(letters)
    return [load for load in loads if load.tables or load.letters]


def pieces_of(weight: int, rows: int, fair: int, tasks: int) -> int:
    """Return the number of tasks that a table is spread over."""
    return min(tasks, max(1, round(weight / fair)), max(1, rows // _SMALLEST_CUT))


def table_of(route: Route | Rejected) -> str:
    """Return the name under which records are landed together.

    Empty for records without a table.
    """
    return (route.table or f"type:{route.type}") if isinstance(route, Route) else ""


def _by_table(
    runs: Iterable[SortedRun], routes: Mapping[RouteKey, Route | Rejected]
) -> dict[str, list[Share]]:
    slices: dict[RouteKey, list[Slice]] = defaultdict(list)
    for run in runs:
        for r in run.ranges:
            slices[r.key].append(Slice(run.path, r.start, r.count))
    tables: dict[str, list[Share]] = defaultdict(list)
    for key in sorted(slices):
        tables[table_of(routes[key])].append(Share(key, tuple(slices[key])))
    return tables


def _rows(share: Share) -> int:
    return sum(s.rows for s in share.slices)


def _weight(share: Share) -> int:
    return _rows(share) + _ROWS_PER_KEY


def _cut(shares: Sequence[Share], rows: int) -> Iterator[list[Share]]:
    """Cut the shares, in order, into pieces of `rows` rows."""
    piece: list[Share] = []
    room = rows
    for share in shares:
        slices: list[Slice] = []
        for path, start, count in share.slices:
            end = start + count
            while start < end:
                taken = min(room, end - start)
                slices.append(Slice(path, start, taken))
                start, room = start + taken, room - taken
                if not room:
                    yield [*piece, Share(share.key, tuple(slices))]
                    piece, slices, room = [], [], rows
        if slices:
            piece.append(Share(share.key, tuple(slices)))
    if piece:
        yield piece


def _cut_by_run(shares: Sequence[Share], rows: int) -> Iterator[list[Share]]:
    """Cut the shares into pieces of at least `rows` rows, without cutting the rows of a run."""
    runs: dict[str, dict[RouteKey, list[Slice]]] = {}
    for share in shares:
        for one in share.slices:
            runs.setdefault(one.path, {}).setdefault(share.key, []).append(one)
    piece: list[Share] = []
    room = rows
    for keys in runs.values():
        piece += [Share(key, tuple(slices)) for key, slices in keys.items()]
        room -= sum(one.rows for slices in keys.values() for one in slices)
        if room <= 0:
            yield piece
            piece, room = [], rows
    if piece:
        yield piece


# Groups of records with equal keys, computed for a whole batch at once.


@dataclass(frozen=True, slots=True)
class RecordGroups:
    """The distinct keys of a batch, and for each record the number of its key."""

    keys: list[RouteKey]
    codes: Rows

    def counts(self) -> list[int]:
        """Return the number of records of each key."""
        return [int(n) for n in np.bincount(self.codes, minlength=len(self.keys))]

    def first_rows(self) -> list[int]:
        """Return the first record of each key."""
        _, first = np.unique(self.codes, return_index=True)
        return [int(row) for row in first]


def group(unwrapped: Unwrapped, unions: Collection[RouteKey] = ()) -> RecordGroups:
    """Group records by key.

    Records of a key in `unions` are grouped further, by their branch of the union.
    """
    distinct, codes = combinations(unwrapped.keys.values())
    named = (dict(zip(unwrapped.keys, values, strict=True)) for values in distinct)
    groups = RecordGroups([route_key(**fields) for fields in named], codes)
    return _by_branch(groups, unwrapped.payloads, unions) if unions else groups


def _by_branch(
    groups: RecordGroups, payloads: pa.BinaryArray, unions: Collection[RouteKey]
) -> RecordGroups:
    keys: dict[RouteKey, int] = {}
    codes = np.empty_like(groups.codes)
    for key, rows in zip(groups.keys, positions(groups.codes, len(groups.keys)), strict=True):
        if key not in unions:
            codes[rows] = keys.setdefault(key, len(keys))
            continue
        numbers = branches(payloads.take(pa.array(rows)))
        of_branch = [key._replace(message_index=(branch,)) for branch in numbers]
        codes[rows] = [keys.setdefault(one, len(keys)) for one in of_branch]
    return RecordGroups(list(keys), codes)


_LONGEST_VARINT = 10


def branches(payloads: pa.BinaryArray) -> list[int]:
    """Read the union branch of each Avro datum, a zigzag varint; -1 if there is none."""
    starts = pc.binary_slice(payloads, 0, 1).to_pylist()
    # More than 64 branches are rare, so the first byte nearly always is the whole number.
    return [
        _branch(start if start < b"\x80" else payloads[row].as_py()[:_LONGEST_VARINT])
        for row, start in enumerate(starts)
    ]


@lru_cache(maxsize=1024)
def _branch(start: bytes) -> int:
    number = 0
    for step, byte in enumerate(start):
        number |= (byte & 0x7F) << 7 * step
        if byte < 0x80:
            # A union has no negative branch numbers, and not so many branches.
            return -1 if number & 1 or number >> 32 else number >> 1
    return -1


def combinations(columns: Iterable[pa.Array | pa.ChunkedArray]) -> tuple[list[Values], Rows]:
    """Return the distinct rows of some columns, and for each row the number of its distinct row.

    Uses dictionary codes, so that no Python object is created per row.
    """
    distinct: list[Values] = [()]
    codes: Rows = np.zeros(1, np.int64)
    for column in columns:
        whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if not isinstance(whole, pa.DictionaryArray):
            whole = whole.dictionary_encode(null_encoding="encode")
        values = whole.dictionary.to_pylist()
        mixed = codes * len(values) + whole.indices.to_numpy(zero_copy_only=False)
        numbered = pa.array(mixed).dictionary_encode()
        codes = numbered.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        pairs = (divmod(number, len(values)) for number in numbered.dictionary.to_pylist())
        distinct = [(*distinct[before], values[at]) for before, at in pairs]
    return distinct, codes


def positions(codes: Rows, number: int) -> list[Rows]:
    """Return for each code 0..number-1 the records that have it, in order."""
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=number))
    return np.split(order, ends[:-1]) if number else []
