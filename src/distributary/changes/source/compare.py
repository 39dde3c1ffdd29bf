"""Compares a merged table with its database, at one position of the database's log.

Keys are hashed, and ranges of hashes are compared by count and checksum: so neither the order of
rows nor the database's collation matters. Ranges that differ are read again: first two hashes of
each row, then the rows that differ, up to a limit. So the memory is bounded for any number of rows.

The stream goes on meanwhile. Rows that changed after the snapshot are taken from the log, as they
were just before it. What seems to differ is looked at again until the stream has passed the
snapshot, because a batch may be on its way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np
import pyarrow as pa

from distributary.changes.checksum import Words, equal_values, hash_rows
from distributary.changes.events.log_events import Definition, Flags, Ints, KeyIndex, key_texts
from distributary.changes.source.base import (
    Database,
    Moment,
    SourceColumn,
    SourceTable,
    ValueType,
)
from distributary.changes.source.database_values import ColumnPair, pair_of
from distributary.changes.source.lake_side import Later, MergedTable, is_among
from distributary.decode.change.base import column_names
from distributary.errors import ConfigError
from distributary.model.change import SHARD

RANGE_BITS = 12, 20
"""Bits of a hash that name its range, of a small table and of a large one."""
RANGE_ROWS = 256
"""Rows of a range, about."""
MOST_HASHES = 4_000_000
"""Rows of both sides in ranges that differ, whose hashes are compared at a time, about."""
MOST_KEPT = 100_000
"""Rows of ranges that differ that are kept in memory while hashes are compared."""
MOST_DIFFERENT = 250_000
"""Rows that are compared by value, because their hashes differ."""
MOST_NAMED = 10
_LONGEST = 200
_FIRST_ROWS = 20_000
_SAMPLE_ROWS = 2_000
_LOOK_SECONDS = 1.0

Progress = Callable[[str, int, int | None], None]
"""Called with the name of a side, the number of rows read so far, and the total."""


@dataclass(frozen=True, slots=True)
class RowDifference:
    """A value that the lake and the source do not agree on; without a column, a whole row."""

    key: str
    """The key as JSON."""
    column: str
    source: str | None
    lake: str | None


@dataclass(frozen=True, slots=True)
class Wrong:
    """The rows that differ, for healing."""

    rows: pa.Table
    """As the source has them, in the lake's columns."""
    gone: pa.Table
    """Keys of rows that only the lake has."""

    @property
    def count(self) -> int:
        """Return the number of rows."""
        return int(self.rows.num_rows + self.gone.num_rows)


@dataclass(frozen=True, slots=True)
class SourceCheck:
    """The result of a comparison with a database."""

    table: str
    source: str
    """The table in the database."""
    address: str
    position: str
    """The place in the database's log as of which both were compared."""
    source_rows: int
    lake_rows: int
    missing: int
    """Rows that only the source has."""
    extra: int
    """Rows that only the lake has."""
    different: int
    unclear: int
    """Rows that changed while the snapshot was taken, and were not compared."""
    unlike_log: int
    """Rows of the table that differ although its log is right."""
    differences: tuple[RowDifference, ...]
    only_in_source: tuple[str, ...]
    only_in_lake: tuple[str, ...]
    not_compared: tuple[str, ...]
    """Columns of both sides whose types cannot be compared."""
    passed: bool
    """Whether the log has events from after the snapshot."""
    cut_off: bool
    """Whether too many rows differ to compare all by value: the counts are of a part."""
    ranges: int
    ranges_different: int
    source_checksum: str
    lake_checksum: str
    sample: float | None
    seconds: float

    @property
    def agrees(self) -> bool:
        """Return whether nothing differs."""
        # a sample compares some rows, and only the number of all others
        counted = self.sample is None or bool(self.unclear) or self.source_rows == self.lake_rows
        wrong = self.missing or self.extra or self.different or self.unlike_log
        return counted and not wrong and not self.cut_off


class _Ranges:
    """The ranges into which the hashes of keys are cut, for so many rows."""

    def __init__(self, rows: int) -> None:
        least, most = RANGE_BITS
        self.bits = min(most, max(least, (rows // RANGE_ROWS).bit_length()))
        self.count = 1 << self.bits

    def of(self, keys: Words) -> Ints:
        """Return the number of the range of each key."""
        return (keys >> np.uint64(64 - self.bits)).astype(np.int64)


class _Side:
    """Count and checksum of each range of hashes, of one side."""

    def __init__(self, ranges: _Ranges) -> None:
        self._ranges = ranges
        self.counts: Ints = np.zeros(ranges.count, np.int64)
        self.sums: Words = np.zeros(ranges.count, np.uint64)

    def add(self, keys: Words, rows: Words) -> None:
        numbers = self._ranges.of(keys)
        self.counts += np.bincount(numbers, minlength=self._ranges.count)
        with np.errstate(over="ignore"):
            np.add.at(self.sums, numbers, rows)

    @property
    def checksum(self) -> str:
        with np.errstate(over="ignore"):
            return f"{int(self.sums.sum(dtype=np.uint64)):016x}"


class Comparison:
    """A table of a lake and its table in the database."""

    def __init__(
        self,
        merged: MergedTable,
        database: Database,
        names: Sequence[str],
        *,
        sample: float | None = None,
        progress: Progress = lambda *_: None,
        is_running: Callable[[], bool] = lambda: False,
    ) -> None:
        self.merged, self._database, self._sample = merged, database, sample
        self._progress = progress
        self._is_running = is_running
        """Whether a pipeline writes to the table, so that waiting may help."""
        self.source: SourceTable = database.describe(names)
        own = column_names([column.name for column in self.source.columns])
        merged.take_key([own[name] for name in self.source.key])
        self._pair(own)

    def _pair(self, own: dict[str, str]) -> None:
        columns = self.merged.columns
        by_name = {own[column.name]: column for column in self.source.columns}
        if SHARD in columns.names and SHARD not in by_name:
            # several databases share the table: only the rows of this one are compared
            by_name[SHARD] = SourceColumn(SHARD, ValueType.TEXT)
            self.merged.shard = self.source.database
        both = [name for name in columns.names if name in by_name]
        found = {name: pair_of(by_name[name], columns.field(name)) for name in both}
        self.pairs: dict[str, ColumnPair] = {n: pair for n, pair in found.items() if pair}
        self._only_in_source = tuple(n for n in by_name if n not in columns.names)
        self._only_in_lake = tuple(n for n in columns.names if n not in by_name)
        self._not_compared = tuple(name for name, pair in found.items() if pair is None)
        self.key: Definition = self.merged.key
        unfit = [name for name in self.key if name not in self.pairs]
        if not self.key or unfit:
            raise ConfigError(
                f"the rows of table {self.merged.order.table} cannot be identified in the source",
                where=self._database.address,
                evidence="columns of the key that one side lacks or that cannot be compared: "
                + ", ".join(unfit)
                if unfit
                else f"{self.source.title} has no primary key",
                next_step="give the table a key whose columns the source and the lake have",
            )

    @property
    def columns(self) -> list[str]:
        """Return the names of the columns that are compared."""
        return list(self.pairs)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Return the lake's columns without a comparable column in the source."""
        return (*self._only_in_lake, *self._not_compared)

    def run(self, *, patience: float = 60.0) -> tuple[SourceCheck, Wrong, Moment]:
        """Compare; wait so long for transactions to end, and for the stream to pass."""
        started = time.perf_counter()
        moment = self._database.open(patience)
        self.prepare()
        later = self.merged.later(moment)
        moved = [self._empty()]
        total = self._database.count(self.source)
        ranges = _Ranges(total)
        mine, other = _Side(ranges), _Side(ranges)
        sampled = [np.zeros(0, np.uint64)]
        for keys, rows in self._source_rows("source", total):
            apart = is_among(keys, later.keys)
            moved.append(rows.filter(pa.array(apart)))
            mine.add(keys[~apart], hash_rows(rows, self.columns)[~apart])
            if self._sample is not None:
                sampled.append(keys)
        wanted = np.unique(np.concatenate(sampled)) if self._sample is not None else None
        for keys, rows in self._lake_rows("lake", self.merged.count):
            apart = is_among(keys, later.keys)
            if wanted is not None:
                apart |= ~is_among(keys, wanted)
            other.add(keys[~apart], hash_rows(rows, self.columns)[~apart])
        unlike = (mine.counts != other.counts) | (mine.sums != other.sums)
        found = self._differing(ranges, unlike, mine.counts + other.counts, later, wanted)
        changed = later.keys if wanted is None else np.intersect1d(later.keys, wanted)
        doubtful = _Doubtful(
            pa.concat_tables([*moved, found.rows]),
            np.unique(np.concatenate([changed, found.keys])),
        )
        verdict = self._settled(doubtful, moment, later, patience)
        lake_rows = self._count(moment)
        check = SourceCheck(
            table=self.merged.order.table,
            source=self.source.title,
            address=self._database.address,
            position=moment.text,
            source_rows=total,
            lake_rows=lake_rows,
            missing=verdict.missing,
            extra=verdict.extra,
            different=verdict.different,
            unclear=verdict.unclear,
            unlike_log=verdict.unlike_log,
            differences=verdict.differences,
            only_in_source=self._only_in_source,
            only_in_lake=self._only_in_lake,
            not_compared=self._not_compared,
            passed=verdict.passed,
            cut_off=found.cut_off,
            ranges=ranges.count,
            ranges_different=int(unlike.sum()),
            source_checksum=mine.checksum,
            lake_checksum=other.checksum,
            sample=self._sample,
            seconds=time.perf_counter() - started,
        )
        return check, verdict.wrong, moment

    def prepare(self) -> None:
        """Take the newest version of the table, and find out how its values are written."""
        self.merged.refresh()
        self._choose_encodings()

    # Reading both sides in the lake's columns.

    def _schema(self) -> pa.Schema:
        return pa.schema([pair.field for pair in self.pairs.values()])

    def _empty(self) -> pa.Table:
        return self._schema().empty_table()

    def encoded(self, rows: pa.Table) -> pa.Table:
        """Return rows of the source in the lake's columns, comparably."""
        columns = {
            name: pair.normal(pair.encode(self._values(pair, rows)))
            for name, pair in self.pairs.items()
        }
        return pa.table(columns, schema=self._schema())

    def _values(self, pair: ColumnPair, rows: pa.Table) -> pa.ChunkedArray:
        """Return the values of a column in rows of the source."""
        if pair.source.name in rows.column_names:
            return rows.column(pair.source.name)
        return pa.chunked_array([pa.repeat(pa.scalar(self.merged.shard), rows.num_rows)])

    def normal(self, rows: pa.Table) -> pa.Table:
        """Return rows of the lake comparably."""
        columns = {name: pair.normal(rows.column(name)) for name, pair in self.pairs.items()}
        return pa.table(columns, schema=self._schema())

    def _source_rows(self, what: str, total: int | None = None) -> Iterator[tuple[Words, pa.Table]]:
        count = 0
        for piece in self._database.read(self.source, part=self._sample):
            rows = self.encoded(piece)
            yield hash_rows(rows, self.key), rows
            count += rows.num_rows
            self._progress(what, count, total if self._sample is None else None)

    def _lake_rows(self, what: str, total: int | None = None) -> Iterator[tuple[Words, pa.Table]]:
        count = 0
        for piece in self.merged.rows(self._schema()):
            rows = self.normal(piece)
            yield hash_rows(rows, self.key), rows
            count += rows.num_rows
            self._progress(what, count, total)

    def _choose_encodings(self) -> None:
        """Determine how events write the values of columns that have several encodings."""
        if all(len(pair.encodings) == 1 for pair in self.pairs.values()):
            return
        first = next(self._database.read(self.source, most=_FIRST_ROWS), None)
        if first is None:
            return
        for name in self.key:
            if len(self.pairs[name].encodings) == 1:
                continue
            sample = next(self.merged.rows(pa.schema([self.pairs[name].field])), None)
            if sample is not None:
                self.pairs[name] = _fitted_key(self.pairs[name], first, sample.column(name))
        index = KeyIndex(self.encoded(first).select(self.key), self.key)
        at = np.empty(index.count, np.int64)
        at[index.groups] = np.arange(first.num_rows)
        left, right = [], []
        met = 0
        for rows in self.merged.rows(self._schema()):
            groups = index.find(self.normal(rows))
            places = np.flatnonzero(groups >= 0)[:_SAMPLE_ROWS]
            left.append(first.take(pa.array(at[groups[places]])))
            right.append(rows.take(pa.array(places)))
            met += len(places)
            if met >= _SAMPLE_ROWS:
                break
        if not met:
            return
        source, lake = pa.concat_tables(left), pa.concat_tables(right)
        for name, pair in self.pairs.items():
            if name not in self.key and len(pair.encodings) > 1:
                self.pairs[name] = pair.fitted(source.column(pair.source.name), lake.column(name))

    # Ranges that differ: the hashes of their rows, then the rows whose hashes differ.

    def _differing(
        self, ranges: _Ranges, unlike: Flags, counts: Ints, later: Later, wanted: Words | None
    ) -> _Found:
        """Find the rows that are not the same on both sides, in ranges that differ."""
        found, kept, cut_off = np.zeros(0, np.uint64), None, False
        groups = [*_groups(unlike, counts)]
        for group in groups:
            chosen = np.zeros(ranges.count, np.bool_)
            chosen[group] = True
            more, kept = self._unlike_hashes(ranges, chosen, later, wanted)
            found = np.unique(np.concatenate([found, more]))
            cut_off = len(found) > MOST_DIFFERENT
            if cut_off:
                found = found[:MOST_DIFFERENT]
                break
        pieces = [self._empty()]
        if kept is not None and len(groups) == 1:
            pieces.append(kept.filter(pa.array(is_among(hash_rows(kept, self.key), found))))
        elif len(found):
            pieces += [rows for _, rows in self._source_again(found)]
        return _Found(pa.concat_tables(pieces), found, cut_off)

    def _unlike_hashes(
        self, ranges: _Ranges, chosen: Flags, later: Later, wanted: Words | None
    ) -> tuple[Words, pa.Table | None]:
        """Compare rows of some ranges by their hashes.

        Returns the keys of those that differ; and all of the source's rows there, if they are few.
        """
        kept: list[pa.Table] | None = [self._empty()]
        sides: list[Words] = []
        # read the same rows again, because each sample has other rows
        for rows_of in (
            self._source_again(wanted),
            self._lake_rows("lake, again", self.merged.count),
        ):
            hashes = [np.zeros((2, 0), np.uint64)]
            for keys, rows in rows_of:
                mask = chosen[ranges.of(keys)] & ~is_among(keys, later.keys)
                if wanted is not None:
                    mask &= is_among(keys, wanted)
                if not mask.any():
                    continue
                some = rows.filter(pa.array(mask))
                hashes.append(np.stack([keys[mask], hash_rows(some, self.columns)]))
                if kept is not None and not sides:
                    kept.append(some)
                    kept = kept if sum(each.num_rows for each in kept) <= MOST_KEPT else None
            sides.append(np.concatenate(hashes, axis=1))
        (source, source_rows), (lake, lake_rows) = sides
        source_words, lake_words = source ^ source_rows, lake ^ lake_rows
        unlike = ~is_among(source_words, np.unique(lake_words))
        extra = ~is_among(lake_words, np.unique(source_words))
        keys = np.unique(np.concatenate([source[unlike], lake[extra]]))
        return keys, None if kept is None else pa.concat_tables(kept)

    def _source_again(self, wanted: Words | None) -> Iterator[tuple[Words, pa.Table]]:
        count, total = 0, self._database.count(self.source)
        for piece in self._database.read(self.source):
            rows = self.encoded(piece)
            keys = hash_rows(rows, self.key)
            mask = pa.array(is_among(keys, wanted)) if wanted is not None else None
            yield (keys, rows) if mask is None else (keys[mask.to_numpy(False)], rows.filter(mask))
            count += rows.num_rows
            self._progress("source, again", count, total)

    # Rows that seem to differ are compared with the log until the stream has passed them.

    def _settled(
        self, doubtful: _Doubtful, moment: Moment, later: Later, patience: float
    ) -> _Verdict:
        deadline = time.monotonic() + patience
        while True:
            verdict = self._judged(doubtful, moment, later)
            wrong = bool(verdict.wrong.count) and not later.passed
            # a batch is in the log before it is in the table
            late = wrong or verdict.unlike_log
            if not late or not self._is_running() or time.monotonic() > deadline:
                return verdict
            self._progress("waiting for the stream", 0, None)
            time.sleep(_LOOK_SECONDS)
            self.merged.refresh()
            later = self.merged.later(moment)

    def _judged(self, doubtful: _Doubtful, moment: Moment, later: Later) -> _Verdict:
        keys = doubtful.keys[~is_among(doubtful.keys, later.unclear)]
        expected = doubtful.rows
        expected = expected.filter(pa.array(is_among(hash_rows(expected, self.key), keys)))
        if not len(keys):
            return self._verdict(expected, self._empty(), doubtful, later, unlike_log=0)
        by_log = self.normal(self.merged.as_of(moment, keys, self._schema()))
        verdict = self._verdict(expected, by_log, doubtful, later, unlike_log=0)
        static = keys[~is_among(keys, later.keys)]
        wrong = [hash_rows(verdict.wrong.rows, self.key), hash_rows(verdict.wrong.gone, self.key)]
        static = static[~is_among(static, np.unique(np.concatenate(wrong)))]
        if not len(static):
            return verdict
        # the log agrees with the source about these rows; now check the table
        here = [self._empty()]
        for hashes, rows in self._lake_rows("lake, again", self.merged.count):
            here.append(rows.filter(pa.array(is_among(hashes, static))))
        theirs = expected.filter(pa.array(is_among(hash_rows(expected, self.key), static)))
        table = self._verdict(theirs, pa.concat_tables(here), doubtful, later, unlike_log=0)
        count = table.missing + table.extra + table.different
        named = (*verdict.differences, *table.differences)[:MOST_NAMED]
        return replace(verdict, unlike_log=count, differences=named)

    def _verdict(
        self,
        expected: pa.Table,
        found: pa.Table,
        doubtful: _Doubtful,
        later: Later,
        *,
        unlike_log: int,
    ) -> _Verdict:
        """Compare rows of the source with the lake's, one by one."""
        match = _Match.of(expected, found, self.key)
        unlike = np.zeros(len(match.left), np.bool_)
        named: list[RowDifference] = []
        left, right = expected.take(pa.array(match.left)), found.take(pa.array(match.right))
        for name in self.columns:
            if name in self.key:
                continue
            here = ~equal_values(left.column(name), right.column(name))
            unlike |= here
            for at in np.flatnonzero(here)[:MOST_NAMED]:
                row = int(at)
                key = self._key_text(left, row)
                values = left.column(name)[row], right.column(name)[row]
                named.append(RowDifference(key, name, *map(_text, values)))
        missing, extra = expected.take(pa.array(match.missing)), found.take(pa.array(match.extra))
        named.sort(key=lambda one: one.key)
        lost = [
            RowDifference(self._key_text(missing, row), "", "a row", None)
            for row in range(min(missing.num_rows, MOST_NAMED))
        ]
        surplus = [
            RowDifference(self._key_text(extra, row), "", None, "a row")
            for row in range(min(extra.num_rows, MOST_NAMED))
        ]
        return _Verdict(
            missing=missing.num_rows,
            extra=extra.num_rows,
            different=int(unlike.sum()),
            unclear=int(is_among(doubtful.keys, later.unclear).sum()),
            unlike_log=unlike_log,
            differences=_of_each_kind(lost, surplus, named),
            passed=later.passed,
            wrong=Wrong(
                pa.concat_tables([missing, left.filter(pa.array(unlike))]),
                extra.select(self.key),
            ),
        )

    def _key_text(self, rows: pa.Table, row: int) -> str:
        return str(key_texts(rows.slice(row, 1).select(self.key), self.key)[0].as_py())

    def _count(self, moment: Moment) -> int:
        """Count the lake's rows just before the snapshot."""
        later = self.merged.later(moment)
        key = pa.schema([self.pairs[name].field for name in self.key])
        moved = self.merged.as_of(moment, later.keys, key).num_rows if len(later.keys) else 0
        for piece in self.merged.rows(key):
            rows = pa.table([self.pairs[n].normal(piece.column(n)) for n in self.key], schema=key)
            moved += int((~is_among(hash_rows(rows, self.key), later.keys)).sum())
        return int(moved)


def _of_each_kind(*kinds: Sequence[RowDifference]) -> tuple[RowDifference, ...]:
    """Choose the differences that are named: as many of each kind as there is room for."""
    turns = [
        (number, one)
        for turn in zip_longest(*kinds)
        for number, one in enumerate(turn)
        if one is not None
    ]
    chosen = sorted(turns[:MOST_NAMED], key=lambda one: one[0])
    return tuple(one for _, one in chosen)


@dataclass(frozen=True, slots=True)
class _Found:
    """Rows whose hashes differ: as the source has them, and all keys."""

    rows: pa.Table
    keys: Words
    cut_off: bool
    """Whether there may be more."""


@dataclass(frozen=True, slots=True)
class _Doubtful:
    """Rows that may differ: as the source has them, and the hashes of all their keys."""

    rows: pa.Table
    keys: Words


@dataclass(frozen=True, slots=True)
class _Verdict:
    missing: int
    extra: int
    different: int
    unclear: int
    unlike_log: int
    differences: tuple[RowDifference, ...]
    passed: bool
    wrong: Wrong


@dataclass(frozen=True, slots=True)
class _Match:
    """Which rows of two sides have one key."""

    left: Ints
    right: Ints
    missing: Ints
    extra: Ints

    @classmethod
    def of(cls, expected: pa.Table, found: pa.Table, key: Definition) -> _Match:
        sizes = expected.num_rows, found.num_rows
        if not all(sizes):
            none = np.zeros(0, np.int64)
            return cls(none, none, np.arange(sizes[0]), np.arange(sizes[1]))
        index = KeyIndex(expected.select(key), key)
        at = np.empty(index.count, np.int64)
        at[index.groups] = np.arange(sizes[0])
        groups = index.find(found.select(key))
        right = np.flatnonzero(groups >= 0)
        left = at[groups[right]]
        missing = np.setdiff1d(np.arange(sizes[0]), left)
        return cls(left, right, missing, np.flatnonzero(groups < 0))


def _groups(unlike: Flags, counts: Ints) -> Iterator[Ints]:
    """Cut the ranges that differ into groups that fit into memory."""
    group: list[int] = []
    size = 0
    for number in np.flatnonzero(unlike).tolist():
        if group and size + counts[number] > MOST_HASHES:
            yield np.array(group)
            group, size = [], 0
        group.append(number)
        size += int(counts[number])
    if group:
        yield np.array(group)


def _fitted_key(pair: ColumnPair, rows: pa.Table, lake: pa.ChunkedArray) -> ColumnPair:
    """Choose the encoding with which most of the source's values are among the lake's."""
    known = np.unique(hash_rows(pa.table({"k": pair.normal(lake)}), ["k"]))

    def met(number: int) -> int:
        one = replace(pair, encodings=(pair.encodings[number],))
        values = one.normal(one.encode(rows.column(pair.source.name)))
        return int(is_among(hash_rows(pa.table({"k": values}), ["k"]), known).sum())

    best = max(range(len(pair.encodings)), key=met)
    return replace(pair, encodings=(pair.encodings[best],))


def _text(value: pa.Scalar) -> str | None:
    return None if not value.is_valid else str(value)[:_LONGEST]
