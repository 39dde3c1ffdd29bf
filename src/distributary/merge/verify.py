"""Does a merged table have the rows that its log says? Recomputed, and compared row by row."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.merge.apply import open_target
from distributary.merge.checksum import Checksum
from distributary.merge.keys import KeyIndex, comparable, key_texts
from distributary.merge.order import MergeOrder
from distributary.merge.replay import Replayed, replay
from distributary.merge.sequence import Flags, Ints
from distributary.merge.snapshot import Snapshot
from distributary.merge.usable import merging

MOST_DIFFERENCES = 20
_LONGEST = 200
_MEMORY = 2**30
"""Bytes that a few columns of both sides may take, about; a larger table is read in turns."""
_UNPACKED = 8
"""How many times larger rows are in memory than in a file, at most."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that is not what the log says, or one row: then `column` is empty."""

    key: str
    """The row's key as JSON."""
    column: str
    expected: str | None
    found: str | None


@dataclass(frozen=True, slots=True)
class Verified:
    """What a comparison found."""

    table: str
    expected: int
    """Rows that the log says there are."""
    found: int
    missing: int
    extra: int
    different: int
    """Rows that are there, with other values."""
    differences: tuple[Difference, ...]
    """The first of all, for people."""
    expected_checksum: str
    """Of all values of all rows that the log says there are."""
    found_checksum: str
    seconds: float = 0.0

    @property
    def agrees(self) -> bool:
        """Whether the table is what its log says."""
        return not (self.missing or self.extra or self.different)


def verify(
    log_path: str,
    order: MergeOrder,
    *,
    as_of_us: int | None = None,
    most: int = MOST_DIFFERENCES,
) -> Verified:
    """Compare the order's table with what its log says, or said at a moment. Changes nothing."""
    started = time.perf_counter()
    with merging(order.path, doing="verify a table"):
        before, columns = open_target(replace(order, evolution="none"))
        replayed = replay(log_path, order, columns, as_of_us=as_of_us)
        pairs = _pairs(replayed, before, columns.schema)
        unlike, differences, sums = _compare(replayed, before, columns.schema, pairs, most=most)
    return Verified(
        table=order.table,
        expected=replayed.rows.num_rows,
        found=len(pairs.found),
        missing=int((pairs.expected < 0).sum()),
        extra=int((pairs.found < 0).sum()),
        different=int(unlike.sum()),
        differences=(*_unpaired(pairs), *differences)[:most],
        expected_checksum=sums[0].text(),
        found_checksum=sums[1].text(),
        seconds=time.perf_counter() - started,
    )


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Which row of the table is which row of the log's answer."""

    expected: Ints
    """For each expected row the one found, or -1."""
    found: Ints
    """For each row found the one expected, or -1."""
    expected_keys: pa.Table
    found_keys: pa.Table
    names: tuple[str, ...]


def _pairs(replayed: Replayed, before: Snapshot | None, schema: pa.Schema) -> _Pairs:
    names = replayed.key_names()
    expected_keys = replayed.rows.select(names)
    fields = pa.schema([schema.field(name) for name in (names or schema.names)])
    found_keys = fields.empty_table() if before is None else before.rows(fields)
    size, count = replayed.rows.num_rows, found_keys.num_rows
    expected, found = np.full(size, -1), np.full(count, -1)
    if size and count:
        index = KeyIndex(expected_keys, names)
        by_group = np.empty(index.count, np.int64)
        by_group[index.groups] = np.arange(size)
        groups = index.find(found_keys)
        met = np.flatnonzero(groups >= 0)
        # from the last to the first, so that of several rows with one key the first is the row
        expected[by_group[groups[met[::-1]]]] = met[::-1]
        have = np.flatnonzero(expected >= 0)
        found[expected[have]] = have
    return _Pairs(expected, found, expected_keys, found_keys, names)


def _unpaired(pairs: _Pairs) -> Iterator[Difference]:
    for at in np.flatnonzero(pairs.expected < 0):
        yield Difference(_key(pairs.expected_keys, int(at), pairs.names), "", "a row", None)
    for at in np.flatnonzero(pairs.found < 0):
        yield Difference(_key(pairs.found_keys, int(at), pairs.names), "", None, "a row")


def _compare(
    replayed: Replayed, before: Snapshot | None, schema: pa.Schema, pairs: _Pairs, *, most: int
) -> tuple[Flags, list[Difference], tuple[Checksum, Checksum]]:
    """Which pairs have different values, the first of these, and the sums of both sides."""
    expected_at = np.flatnonzero(pairs.expected >= 0)
    found_at = pairs.expected[expected_at]
    unlike = np.zeros(len(expected_at), np.bool_)
    differences: list[Difference] = []
    sums = Checksum(len(pairs.expected)), Checksum(len(pairs.found))
    for names in _turns(schema.names, before):
        fields = pa.schema([schema.field(name) for name in names])
        expected = pa.concat_tables([fields.empty_table(), *replayed.gather(fields)])
        found = fields.empty_table() if before is None else before.rows(fields)
        for name in names:
            sums[0].add(name, expected.column(name))
            sums[1].add(name, found.column(name))
            one, other = expected.column(name).take(expected_at), found.column(name).take(found_at)
            here = ~_equal(one, other)
            unlike |= here
            for at in np.flatnonzero(here)[: most - len(differences)]:
                number = int(at)
                key = _key(pairs.expected_keys, int(expected_at[at]), pairs.names)
                differences.append(Difference(key, name, _text(one[number]), _text(other[number])))
    return unlike, differences, sums


def _turns(names: Sequence[str], before: Snapshot | None) -> Iterator[list[str]]:
    size = 0 if before is None else before.size
    turns = min(len(names), 1 + size * _UNPACKED // _MEMORY)
    for turn in range(turns):
        yield list(names[turn::turns])


def _equal(one: pa.ChunkedArray, other: pa.ChunkedArray) -> Flags:
    """Value by value; null equals null."""
    both = [comparable(each) for each in (one, other)]
    same = pc.equal(*both)
    if pa.types.is_floating(one.type):
        same = pc.or_(same, pc.and_(*map(pc.is_nan, both)))
    neither = pc.and_(*map(pc.is_null, both))
    flags: Flags = pc.or_(same.fill_null(False), neither).to_numpy(zero_copy_only=False)
    return flags


def _key(rows: pa.Table, at: int, names: tuple[str, ...]) -> str:
    return str(key_texts(rows.slice(at, 1), names)[0].as_py()) if names else "{}"


def _text(value: pa.Scalar) -> str | None:
    return None if not value.is_valid else str(value)[:_LONGEST]
