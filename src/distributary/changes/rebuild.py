"""Rebuilding of a merged table from its log, by one commit; and comparison of both."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.apply import clustering, merge_table, open_target, plan, staying, written
from distributary.changes.checksum import Checksum, equal_values
from distributary.changes.events.log_events import (
    CHANGE_SCHEMA,
    PROPERTY,
    ChangeEvents,
    Flags,
    Ints,
    KeyIndex,
    Span,
    by_time,
    combined,
    definitions_of,
    is_merged_by_time,
    key_texts,
    left_out_in,
    read_events,
    to_text,
    without_times,
)
from distributary.changes.merge_order import (
    MergedColumns,
    MergeOrder,
    MergeResult,
    RebuildNeededError,
    TombstonesBehindError,
)
from distributary.changes.merge_target import MemoryTarget
from distributary.changes.tombstones import SCHEMA as TOMBSTONES
from distributary.changes.tombstones import (
    Tombstones,
    latest,
    marks_for,
    open_tombstones,
    remember,
    replace_all,
    take_as_they_are,
)
from distributary.decode.change.envelope import is_positional
from distributary.delta.commit import Change, rewrite_files
from distributary.delta.log import Snapshot, snapshot_of
from distributary.delta.parquet import read_file
from distributary.delta.tables import OvertakenError, committing
from distributary.errors import ErrorCode, PublishError
from distributary.model.incarnation import INCARNATIONS, Incarnations
from distributary.retries import attempts_on

# Computation of a table's rows from its whole log, without holding the log in memory. For every
# row, only its key, place and omitted columns are kept, with the log file and row that have its
# values. Chunks of the log are merged one after the other, by the rules for merging batches.

_log = logging.getLogger(__name__)

CHUNK_ROWS = 1_000_000
"""The number of log rows that are merged at once."""
Choose = Callable[[ChangeEvents], ChangeEvents]
"""A function that selects events of a log."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The rows that a table should have, by its log."""

    rows: pa.Table
    """Place, key, omitted columns, and position in the log of each row."""
    files: tuple[str, ...]
    tombstones: pa.Table
    spans: tuple[Span, ...]
    incarnations: Incarnations
    file_name: str
    row_name: str

    def key_names(self) -> tuple[str, ...]:
        """Return all columns that were ever part of a key; together they identify a row."""
        return tuple(sorted({name for span in self.spans for name in span.key}))

    def gather(self, schema: pa.Schema) -> Iterator[pa.Table]:
        """Read columns of the rows, log file by log file, in the order of `rows`."""
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


def merge_in_order(order: MergeOrder) -> MergeResult:
    """Merge an order; first rebuild the table if its rows are in another order than events.

    Tombstones that are older than the table are rebuilt from its log, too. Raises PublishError.
    """
    try:
        return merge_table(order)
    except TombstonesBehindError as error:
        if not order.log:
            raise
        _log.warning("%s: it is made again from the log", error.what)
        with committing(order.tombstones, doing="make tombstones again"):
            _make_tombstones_again(order)
        return merge_in_order(order)
    except RebuildNeededError as error:
        if not order.log:
            raise
        _log.warning("%s: the table is made again from its log", error.what)
        # the order covers the whole log
        rebuild(order.log, replace(order, batch=-1))
        return merge_table(order)


def _make_tombstones_again(order: MergeOrder) -> None:
    """Write tombstones of everything that the log deletes; the table's rows do not change."""
    before, columns = open_target(order)
    replayed = replay(order.log, replace(order, batch=-1), columns, before=before)
    known = open_tombstones(order.tombstones, now_us=order.now_us, horizon=order.horizon)
    remember(known, replayed.tombstones, table=order.table)
    take_as_they_are(order.path, order.tombstones, table=order.table)


@dataclass(frozen=True, slots=True)
class _Survey:
    """Facts about a log that are needed before its events are merged."""

    files: tuple[str, ...]
    """The files in the order of their batches: of events at one place, the first one counts."""
    rows: tuple[int, ...]
    columns: frozenset[str]
    """The columns of keys, and the columns that events omit."""
    positional: bool
    """Whether positions decide the order, without the times before them."""


def replay(
    log_path: str,
    order: MergeOrder,
    table_columns: MergedColumns,
    *,
    before: Snapshot | None,
    chosen: Choose | None = None,
    version: int | None = None,
) -> Replayed:
    """Merge a whole log, or chosen events of it, into an empty table.

    `before` is the existing table, whose known incarnations of the source are used; `version` is
    that of the log, by default the newest.
    """
    survey = _survey(log_path, order, table_columns, version)
    text = None if before is None else before.property(INCARNATIONS)
    incarnations = Incarnations.from_text(text)
    if text is not None and order.arrival != "files":
        order = replace(order, arrival="unknown")
    while True:
        replayed = _replay(survey, order, table_columns, incarnations, chosen=chosen)
        if replayed.incarnations == incarnations or order.arrival != "files":
            return replayed
        # files arrive in any order: earlier events may belong to a server that is detected later
        incarnations = replayed.incarnations


def _replay(
    survey: _Survey,
    order: MergeOrder,
    table_columns: MergedColumns,
    incarnations: Incarnations,
    *,
    chosen: Choose | None,
) -> Replayed:
    file_name, row_name = (_free(name, table_columns.names) for name in ("_file", "_row"))
    narrow = _narrow(table_columns, survey, file_name, row_name)
    rows = narrow.schema.empty_table()
    spans: tuple[Span, ...] = ()
    tombstones = Tombstones("", TOMBSTONES.empty_table(), since_us=0)
    for numbers in _chunks(survey.rows):
        events = _events(survey, numbers, narrow.schema, file_name, row_name)
        if survey.positional:
            events = ChangeEvents(without_times(events.rows))
        events = events if chosen is None else chosen(events)
        made = plan(
            events,
            MemoryTarget(rows),
            tombstones,
            order=order,
            table_columns=narrow,
            spans=spans,
            incarnations=incarnations,
        )
        kept = staying(rows, made.parts[0], made.decision)
        rows, spans = pa.concat_tables([kept, made.winners]), made.spans
        incarnations = made.incarnations
        remembered = latest(pa.concat_tables([tombstones.rows, made.tombstones]))
        tombstones = Tombstones("", remembered, since_us=0)
    rows = rows.sort_by([(file_name, "ascending"), (row_name, "ascending")])
    return Replayed(rows, survey.files, tombstones.rows, spans, incarnations, file_name, row_name)


def _survey(
    log_path: str, order: MergeOrder, table_columns: MergedColumns, version: int | None
) -> _Survey:
    snapshot = snapshot_of(log_path, version=version)
    if snapshot is None:
        raise PublishError(
            f"table {order.table} has no log",
            code=ErrorCode.NOT_FOUND,
            where=log_path,
            evidence="there is no table in this folder",
            next_step="set cdc.log to true, then read the source again: `distributary reset FILE`",
        )
    snapshot.refuse_unreadable(f"{order.table}_log")
    wanted = pa.schema([CHANGE_SCHEMA.field(n) for n in ("_key", "_unchanged", "_batch")])
    columns: set[str] = set()
    found: list[tuple[int, str, int]] = []
    for file in snapshot.files.values():
        # a damaged log would give wrong rows with matching checksums
        rows_read = snapshot.read(file, wanted, checked=True)
        keys, _ = definitions_of(rows_read.column("_key"), table_columns.names)
        columns.update(*keys, left_out_in(rows_read.column("_unchanged"), table_columns.names))
        batch = pc.min(rows_read.column("_batch")).as_py()
        found.append((-1 if batch is None else batch, file.path, rows_read.num_rows))
    files = sorted(found)
    return _Survey(
        tuple(f"{snapshot.folder}/{path}" for _, path, _ in files),
        tuple(rows for _, _, rows in files),
        frozenset(columns),
        _is_positional(snapshot),
    )


_FEW_FILES = 4
"""The number of files of a table that are read for its order."""


def is_in_old_order(table: Snapshot, log_path: str) -> bool:
    """Return whether the first files of a table have rows that are in the order of times.

    False if positions do not decide the order of its source.
    """
    if not is_merged_by_time(table, most_files=_FEW_FILES):
        return False
    log = snapshot_of(log_path)
    return log is not None and _is_positional(log)


def _is_positional(log: Snapshot) -> bool:
    """Return whether the events of a log come from a database whose changes have positions.

    Logs of Datastream's events have times in front of positions that were written before these
    alone decided, and those of other sources still have: the events' own envelope shows which.
    """
    schema = pa.schema([pa.field("_envelope", pa.string()), CHANGE_SCHEMA.field("_seq")])
    for file in log.files.values():
        rows = log.read(file, schema)
        timed = np.flatnonzero(by_time(combined(rows.column("_seq"))))
        if len(timed):
            return is_positional(rows.column("_envelope")[int(timed[0])].as_py() or "")
    return False


def _narrow(
    table_columns: MergedColumns, survey: _Survey, file_name: str, row_name: str
) -> MergedColumns:
    kept = {*survey.columns, "_seq", "_source_ts", "_deleted"}
    fields = [field for field in table_columns.schema if field.name in kept]
    where = [pa.field(file_name, pa.int32()), pa.field(row_name, pa.int64())]
    return MergedColumns([], pa.schema([*fields, *where]), changed=False)


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
) -> ChangeEvents:
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
    return ChangeEvents(pa.concat_tables(tables))


def _until(as_of_us: int | None) -> Choose | None:
    """Choose the events up to a moment, including events without a time."""
    if as_of_us is None:
        return None
    moment = pa.scalar(as_of_us, pa.int64()).cast(CHANGE_SCHEMA.field("_source_ts").type)

    def choose(events: ChangeEvents) -> ChangeEvents:
        before = pc.less_equal(events.rows.column("_source_ts"), moment).fill_null(True)
        return ChangeEvents(events.rows.filter(before))

    return choose


def _free(name: str, taken: Sequence[str]) -> str:
    while name in taken:
        name += "_"
    return name


ATTEMPTS = 3


def rebuild(log_path: str, order: MergeOrder, *, as_of_us: int | None = None) -> tuple[int, int]:
    """Rebuild the order's table from its log, now or as of a moment. Raises PublishError.

    The order's files are ignored, and no mark is set: when batches that are in the log are merged
    later, they change nothing. Readers see the old table until the commit. Return the version and
    the number of rows; -1 if there is no table, and no row or server that took over for one.
    """
    again = attempts_on(OvertakenError, most=ATTEMPTS, jitter=0.1)
    with committing(order.path, doing="rebuild a table"):
        return again(_attempt, log_path, order, as_of_us)


def _attempt(log_path: str, order: MergeOrder, as_of_us: int | None) -> tuple[int, int]:
    before, columns = open_target(order)
    replayed = replay(log_path, order, columns, before=before, chosen=_until(as_of_us))
    rows = replayed.rows.num_rows
    if before is None and rows == 0 and not replayed.incarnations.starts:
        return -1, 0
    key = clustering(replayed.spans[-1].key if replayed.spans else (), columns.schema)
    added = written(replayed.gather(columns.schema), folder=order.path, key=key)
    # new tombstones come first, and old ones stay: a deleted row without a tombstone could come
    # back, in this table or, after a crash, in the old one
    known = open_tombstones(order.tombstones, now_us=order.now_us, horizon=order.horizon)
    remembered = remember(known, replayed.tombstones, table=order.table)
    change = Change(
        "REBUILD",
        order.table,
        comment=order.comment,
        fields=columns.fields if columns.changed else None,
        properties={INCARNATIONS: replayed.incarnations.to_text()}
        | ({PROPERTY: to_text(replayed.spans)} if replayed.spans else {}),
        removed=() if before is None else list(before.files.values()),
        added=added,
        marks=marks_for(before, remembered),
        metrics={"numOutputRows": rows, "numFiles": len(added)},
    )
    version = rewrite_files(order.path, before, change).version
    # rows that were deleted after the moment exist again, and may change
    replace_all(order.tombstones, replayed.tombstones, table=order.table)
    return version, rows


# Comparison of a merged table with the rows that its log yields.

MOST_DIFFERENCES = 20
_LONGEST = 200
_MEMORY = 2**30
"""The approximate bytes of columns in memory at once; a larger table is read in parts."""
_UNPACKED = 8
"""The largest ratio of the size of rows in memory to their size in a file."""


@dataclass(frozen=True, slots=True)
class RebuildDifference:
    """A value that differs from the log, or a whole row, with an empty `column`."""

    key: str
    """The row's key as JSON."""
    column: str
    expected: str | None
    found: str | None


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of a comparison."""

    table: str
    expected: int
    """The number of rows by the log."""
    found: int
    missing: int
    extra: int
    different: int
    """The number of rows with other values."""
    differences: tuple[RebuildDifference, ...]
    """The first differences."""
    expected_checksum: str
    """The checksum of all rows by the log."""
    found_checksum: str
    seconds: float = 0.0

    @property
    def agrees(self) -> bool:
        """Return whether the table agrees with its log."""
        return not (self.missing or self.extra or self.different)


class Versions(NamedTuple):
    """The versions of a merged table and of its log in one cut."""

    table: int
    log: int


def verify(
    log_path: str,
    order: MergeOrder,
    *,
    as_of_us: int | None = None,
    versions: Versions | None = None,
) -> Verified:
    """Compare the order's table with its log: now, as of a moment, or both at versions.

    Changes nothing.
    """
    started = time.perf_counter()
    version, log_version = (None, None) if versions is None else versions
    with committing(order.path, doing="verify a table"):
        before, columns = open_target(replace(order, evolution="none"), version=version)
        if before is not None and order.arrival == "files":
            # the table knows its servers; a batch may need fewer of them than the whole log shows
            order = replace(order, arrival="unknown")
        chosen = _until(as_of_us)
        replayed = replay(
            log_path, order, columns, before=before, chosen=chosen, version=log_version
        )
        pairs = _pairs(replayed, before, columns.schema)
        unlike, differences, sums = _compare(replayed, before, columns.schema, pairs)
    return Verified(
        table=order.table,
        expected=replayed.rows.num_rows,
        found=len(pairs.found),
        missing=int((pairs.expected < 0).sum()),
        extra=int((pairs.found < 0).sum()),
        different=int(unlike.sum()),
        differences=(*_unpaired(pairs), *differences)[:MOST_DIFFERENCES],
        expected_checksum=sums[0].text(),
        found_checksum=sums[1].text(),
        seconds=time.perf_counter() - started,
    )


@dataclass(frozen=True, slots=True)
class _Pairs:
    """The pairs of rows of the table and rows that the log yields."""

    expected: Ints
    """For each expected row: the number of the table's row, or -1."""
    found: Ints
    """For each row of the table: the number of the expected row, or -1."""
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
        # from the last to the first, so that the first of several rows with one key is paired
        expected[by_group[groups[met[::-1]]]] = met[::-1]
        have = np.flatnonzero(expected >= 0)
        found[expected[have]] = have
    return _Pairs(expected, found, expected_keys, found_keys, names)


def _unpaired(pairs: _Pairs) -> Iterator[RebuildDifference]:
    for at in np.flatnonzero(pairs.expected < 0):
        yield RebuildDifference(_key(pairs.expected_keys, int(at), pairs.names), "", "a row", None)
    for at in np.flatnonzero(pairs.found < 0):
        yield RebuildDifference(_key(pairs.found_keys, int(at), pairs.names), "", None, "a row")


def _compare(
    replayed: Replayed, before: Snapshot | None, schema: pa.Schema, pairs: _Pairs
) -> tuple[Flags, list[RebuildDifference], tuple[Checksum, Checksum]]:
    """Return the pairs with different values, the first differences, and both checksums."""
    expected_at = np.flatnonzero(pairs.expected >= 0)
    found_at = pairs.expected[expected_at]
    unlike = np.zeros(len(expected_at), np.bool_)
    differences: list[RebuildDifference] = []
    sums = Checksum(len(pairs.expected)), Checksum(len(pairs.found))
    for names in _turns(schema.names, before):
        fields = pa.schema([schema.field(name) for name in names])
        expected = pa.concat_tables([fields.empty_table(), *replayed.gather(fields)])
        found = fields.empty_table() if before is None else before.rows(fields)
        for name in names:
            sums[0].add(name, expected.column(name))
            sums[1].add(name, found.column(name))
            one, other = expected.column(name).take(expected_at), found.column(name).take(found_at)
            here = ~equal_values(one, other)
            unlike |= here
            for at in np.flatnonzero(here)[: MOST_DIFFERENCES - len(differences)]:
                number = int(at)
                key = _key(pairs.expected_keys, int(expected_at[at]), pairs.names)
                differences.append(
                    RebuildDifference(key, name, _text(one[number]), _text(other[number]))
                )
    return unlike, differences, sums


def _turns(names: Sequence[str], before: Snapshot | None) -> Iterator[list[str]]:
    size = 0 if before is None else before.size
    turns = min(len(names), 1 + size * _UNPACKED // _MEMORY)
    for turn in range(turns):
        yield list(names[turn::turns])


def _key(rows: pa.Table, at: int, names: tuple[str, ...]) -> str:
    return str(key_texts(rows.slice(at, 1), names)[0].as_py()) if names else "{}"


def _text(value: pa.Scalar) -> str | None:
    return None if not value.is_valid else str(value)[:_LONGEST]
