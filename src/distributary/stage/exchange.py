"""Sorted runs: what travels between the two hops of a stage.

Hop one sorts its records by key and writes them as one Arrow file; hop two maps the file into
memory and takes slices of it, which copies nothing. Spark's own shuffle would carry every record
twice between Python and the JVM. The files lie in the checkpoint, which all workers see, and are
gone when the stage is over. Where workers do not see it, see `packets`.
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

from distributary.model.manifest import compact, parsed
from distributary.model.plan import Rejected, Route, RouteKey
from distributary.model.record import RAW
from distributary.stage.unwrap import Rows, Unwrapped

SORTED = RAW.append(pa.field("payload", pa.binary()))
"""A raw record and the payload that was found in it; none where all values are payloads."""

Values = tuple[Any, ...]

FACT_DDL = "kind string, body string"
FACT = pa.schema([pa.field("kind", pa.string()), pa.field("body", pa.string())])


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The rows of a run that have one key."""

    key: RouteKey
    start: int
    count: int
    first_offset: int
    newest: int = 0
    """Of change data: when the newest of these records was made, in microseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Run:
    """A file of records sorted by key."""

    path: str
    ranges: tuple[KeyRange, ...]

    def as_json(self) -> str:
        """For the way from a task to the driver."""
        ranges = [[r.key, r.start, r.count, r.first_offset, r.newest] for r in self.ranges]
        return compact([self.path, ranges])

    @classmethod
    def of(cls, body: Any) -> Run:
        """The inverse of `as_json`, after the JSON has been parsed."""
        path, ranges = body
        return cls(path, tuple(KeyRange(route_key(*key), *more) for key, *more in ranges))


def route_key(
    claim: str, schema_id: int, message_index: Sequence[int] = (), *more: Any, **others: Any
) -> RouteKey:
    """A key as it came through JSON or Arrow."""
    # Arrow and JSON have lists only
    return RouteKey(claim, schema_id, tuple(message_index), *more, **others)


HELD: dict[str, pa.RecordBatch] = {}
"""Runs of this worker's task that are no files, because there is no folder that all workers see."""


def write_run(batch: pa.RecordBatch, folder: str) -> str:
    """Write a batch as a file of its own; returns its path. Without a folder it is only held."""
    if not folder:
        name = uuid.uuid4().hex
        HELD[name] = batch
        return name
    # where the folder is gone, nobody waits for it
    path = Path(folder) / f"{uuid.uuid4().hex}.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return str(path)


def open_run(path: str) -> pa.RecordBatch:
    """The batch of a file, mapped into memory; or one that is held."""
    if path in HELD:
        return HELD[path]
    with pa.memory_map(path) as source:
        return pa.ipc.open_file(source).get_batch(0)


def facts_batch(facts: Iterable[tuple[str, str]]) -> pa.RecordBatch:
    """What a task tells the driver: kinds and JSON documents."""
    listed = list(facts)
    kinds, bodies = [f[0] for f in listed], [f[1] for f in listed]
    return pa.RecordBatch.from_arrays(
        [pa.array(kinds, pa.string()), pa.array(bodies, pa.string())], schema=FACT
    )


def facts_of(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, Any]]:
    """The inverse of `facts_batch`, with the documents parsed."""
    for batch in batches:
        kinds, bodies = (batch.column(i).to_pylist() for i in (0, 1))
        yield from zip(kinds, map(parsed, bodies), strict=True)


# Who lands what: the keys of all runs, spread over tasks by what they weigh.
#
# Hop one has counted every key, so the spread is exact: a light table is the work of one task, a
# heavy one is cut by rows.

_ROWS_PER_KEY = 100
"""What the fixed cost of a key is worth in rows."""
_SMALLEST_CUT = 5_000
"""A table is not cut into pieces of fewer rows: each of them is a file."""


class Slice(NamedTuple):
    """Rows of a run."""

    path: str
    start: int
    rows: int


@dataclass(frozen=True, slots=True)
class Share:
    """Records of one key, for one task."""

    key: RouteKey
    slices: tuple[Slice, ...]


@dataclass(slots=True)
class Load:
    """What one task of hop two does: the shares of each of its tables."""

    tables: dict[str, list[Share]] = field(default_factory=dict)
    letters: list[str] = field(default_factory=list)
    """Files of dead letters that hop one has written."""


def spread(
    runs: Iterable[Run],
    letters: Sequence[str],
    routes: Mapping[RouteKey, Route | Rejected],
    *,
    tasks: int,
    by_run: bool = False,
) -> list[Load]:
    """Loads of about the same weight; fewer than `tasks` where there is less to do.

    With `by_run` what lies together in a run stays together.
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
    """Over how many tasks a table is spread."""
    return min(tasks, max(1, round(weight / fair)), max(1, rows // _SMALLEST_CUT))


def table_of(route: Route | Rejected) -> str:
    """Under which name records are landed together; empty for those that have no table."""
    return (route.table or f"type:{route.type}") if isinstance(route, Route) else ""


def _by_table(
    runs: Iterable[Run], routes: Mapping[RouteKey, Route | Rejected]
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
    """The shares in their order, in pieces of so many rows."""
    piece: list[Share] = []
    room = rows
    for share in shares:
        mine: list[Slice] = []
        for path, start, count in share.slices:
            end = start + count
            while start < end:
                taken = min(room, end - start)
                mine.append(Slice(path, start, taken))
                start, room = start + taken, room - taken
                if not room:
                    yield [*piece, Share(share.key, tuple(mine))]
                    piece, mine, room = [], [], rows
        if mine:
            piece.append(Share(share.key, tuple(mine)))
    if piece:
        yield piece


def _cut_by_run(shares: Sequence[Share], rows: int) -> Iterator[list[Share]]:
    """The shares in pieces of so many rows, or more where the rows of a run are more."""
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


# Records with the same key, found for a whole batch at once.


@dataclass(frozen=True, slots=True)
class Groups:
    """The distinct keys of a batch, and for each record the number of its key."""

    keys: list[RouteKey]
    codes: Rows

    def counts(self) -> list[int]:
        """Records per key."""
        return [int(n) for n in np.bincount(self.codes, minlength=len(self.keys))]

    def first_rows(self) -> list[int]:
        """The first record of each key."""
        _, first = np.unique(self.codes, return_index=True)
        return [int(row) for row in first]


def group(unwrapped: Unwrapped, unions: Collection[RouteKey] = ()) -> Groups:
    """The records by key.

    Those of a key in `unions` are told apart once more, by their branch of the union.
    """
    found, codes = combinations(unwrapped.keys.values())
    named = (dict(zip(unwrapped.keys, values, strict=True)) for values in found)
    groups = Groups([route_key(**fields) for fields in named], codes)
    return _by_branch(groups, unwrapped.payloads, unions) if unions else groups


def _by_branch(groups: Groups, payloads: pa.BinaryArray, unions: Collection[RouteKey]) -> Groups:
    keys: dict[RouteKey, int] = {}
    codes = np.empty_like(groups.codes)
    for key, rows in zip(groups.keys, positions(groups.codes, len(groups.keys)), strict=True):
        if key not in unions:
            codes[rows] = keys.setdefault(key, len(keys))
            continue
        found = branches(payloads.take(pa.array(rows)))
        of_branch = [key._replace(message_index=(branch,)) for branch in found]
        codes[rows] = [keys.setdefault(one, len(keys)) for one in of_branch]
    return Groups(list(keys), codes)


_LONGEST_VARINT = 10


def branches(payloads: pa.BinaryArray) -> list[int]:
    """The branch of a union that each Avro datum is, a zigzag varint; -1 where there is none."""
    starts = pc.binary_slice(payloads, 0, 1).to_pylist()
    # more than 64 branches are rare: nearly always the first byte is the whole number
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
            # no union has a branch below zero, or so many
            return -1 if number & 1 or number >> 32 else number >> 1
    return -1


def combinations(columns: Iterable[pa.Array | pa.ChunkedArray]) -> tuple[list[Values], Rows]:
    """The distinct rows of some columns, and for each row the number of its own.

    By dictionary codes, so that no Python object is made per row.
    """
    found: list[Values] = [()]
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
        found = [(*found[before], values[at]) for before, at in pairs]
    return found, codes


def positions(codes: Rows, number: int) -> list[Rows]:
    """For each code 0..number-1 the records that have it, in their order."""
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=number))
    return np.split(order, ends[:-1]) if number else []
