"""Small files of one table become large ones, and rows that are gone leave files for good.

Rows, columns, marks and order stay what they are.
"""

from __future__ import annotations

import io
import json
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from distributary.delta.columns import UnsupportedTypeError, columns_of
from distributary.delta.commit import Change, commit
from distributary.delta.damage import checksum, spelled
from distributary.delta.log import DataFile, Snapshot, follow
from distributary.delta.parquet import read_pieces, statistics
from distributary.delta.tables import OvertakenError, until_not_overtaken
from distributary.model.manifest import Mark, StagedFile
from distributary.store.base import Store, stay_inside
from distributary.store.disk import Disk, sync

# Which files of a table are put together. Pure.
#
# Only neighbours become one file, in their own order: a file goes on holding one stretch of time,
# or of keys, so that readers can skip it, and the order in which a table was written can still be
# told from it.

Bin = tuple[DataFile, ...]

_ALMOST = 0.75
"""A file of this part of the target is as large as it should be."""
MOST_LOST = 0.3
"""A file of which more rows than this part are gone is written again without them."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """When files are too small, and how large they should be."""

    target: int
    min_files: int
    by: tuple[str, ...] = ()
    """Columns by whose values rows lie in files, if not by the time at which they came."""


def bins(files: Iterable[DataFile], sizes: Sizes) -> list[Bin]:
    """Files to be put together, each group into one."""
    groups: dict[tuple[object, ...], list[DataFile]] = {}
    for file in in_order(list(files), by=sizes.by):
        kind = file.path.rpartition("/")[2].partition("-")[0]
        groups.setdefault((kind, tuple(sorted(file.values.items()))), []).append(file)
    found = [run for group in groups.values() for run in _runs(group, sizes)]
    found = [each for each in found if len(each) >= max(2, sizes.min_files)]
    taken = {file.path for each in found for file in each}
    every = (file for group in groups.values() for file in group)
    return found + [(file,) for file in every if file.path not in taken and _is_hollow(file)]


def _is_hollow(file: DataFile) -> bool:
    return file.written is not None and file.lost > file.written * MOST_LOST


def in_order(files: Sequence[DataFile], *, by: Sequence[str] = ()) -> list[DataFile]:
    """By their lowest values of some columns, or as they were written.

    The latter is by their batches if all of them tell, else by their times.
    """
    if by:
        return sorted(files, key=lambda file: [_lowest(file, name) for name in by])
    batches = [_batch(file) for file in files]
    known = all(batch is not None for batch in batches)
    keys = [
        (batch if known and batch is not None else 0, file.modified_ms, file.path)
        for file, batch in zip(files, batches, strict=True)
    ]
    return [files[at] for at in sorted(range(len(files)), key=keys.__getitem__)]


def _lowest(file: DataFile, column: str) -> tuple[str, Any]:
    """To be compared with others of any type; those without bounds are apart."""
    low, _ = file.bounds(column)
    return (type(low).__name__, low) if isinstance(low, int | str) else ("", 0)


def _batch(file: DataFile) -> int | None:
    found = (file.told().get("minValues") or {}).get("_batch")
    return found if isinstance(found, int) else None


def _runs(group: Sequence[DataFile], sizes: Sizes) -> Iterator[Bin]:
    """Small files that follow each other, cut where they make a large one."""
    run: list[DataFile] = []
    size = 0
    for file in group:
        if run and (file.size >= sizes.target * _ALMOST or size + file.size > sizes.target):
            yield _worth_it(run)
            run, size = [], 0
        if file.size < sizes.target * _ALMOST:
            run.append(file)
            size += file.size
    yield _worth_it(run)


def _worth_it(run: Sequence[DataFile]) -> Bin:
    """Without what was put together before, as long as that is larger than all that came since.

    Else each turn would write the same rows again: so a row is written a few times in all.
    """
    kept, rest = list(run), sum(file.size for file in run)
    while kept and kept[0].size * 2 > rest:
        rest -= kept.pop(0).size
    return tuple(kept)


# Several files become one, piece by piece, with the columns that the table has now.

Keep = Callable[[pa.Table], pa.Table]
"""The rows of a piece that stay."""

_GROUP_BYTES = 64 * 2**20
"""In memory: then what was read is written, so that a file of any size can be made."""
_JOINED_PIECES = 64
"""Pieces of files that wait in memory by themselves before they are put together."""
_MADE_BY_US = re.compile(r"-c[0-9a-f]{12}$")
_LONGEST_STEM = 150


class RowsLostError(Exception):
    """What would be written is not what was read: nothing is committed."""


def stored_schema(state: Snapshot) -> pa.Schema:
    """The columns that are in a table's files: all but those that it is partitioned by."""
    columns = columns_of(state.fields)
    apart = set(state.partition_columns)
    return pa.schema([pa.field(c.name, c.type) for c in columns if c.name not in apart])


def write_together(
    state: Snapshot,
    files: Sequence[DataFile],
    schema: pa.Schema,
    *,
    keep: Keep | None = None,
    key: Sequence[str] = (),
) -> StagedFile | None:
    """Write the rows of files, in their order, to one file; on disk for good when it returns.

    None where no row of theirs stays.
    """
    stay_inside(state.folder, *(f"{state.folder}/{file.path}" for file in files))
    path = name_after(files[0].path)
    target = _Target(state.store, path, schema, key)
    read = 0
    try:
        for file in files:
            rows = 0
            pieces = read_pieces(
                state.store, file.path, schema, size=file.size, expected=file.checksum
            )
            for piece in state.left(file, pieces):
                rows += piece.num_rows
                target.add(piece if keep is None else keep(piece))
            _check(file, rows)
            read += rows
        made = target.close(files[0].values)
        if keep is None and (made.rows if made else 0) != read:
            raise RowsLostError(f"{read} rows were read, {made.rows if made else 0} written")
    except BaseException:
        target.drop()
        raise
    return made


def name_after(path: str) -> str:
    """A new name beside an old one that sorts like it, and begins like it.

    How names begin tells files of a history apart, and how they sort is the order of a log.
    """
    folder, slash, name = path.rpartition("/")
    stem = _MADE_BY_US.sub("", name.removesuffix(".parquet"))[:_LONGEST_STEM]
    return f"{folder}{slash}{stem}-c{uuid.uuid4().hex[:12]}.parquet"


def _check(file: DataFile, rows: int) -> None:
    if file.rows is not None and file.rows != rows:
        raise RowsLostError(f"{file.path} has {rows} rows; by the log it should have {file.rows}")


class _Target:
    """A Parquet file that is being written, and the bounds of what is in it."""

    def __init__(self, store: Store, path: str, schema: pa.Schema, key: Sequence[str]) -> None:
        self._store, self._path = store, path
        self._schema, self._key = schema, key
        self._waiting: list[pa.Table] = []
        self._joined = 0
        """How many of the waiting tables, from the first, were put together of several pieces."""
        self._bytes = 0
        self._sink: _Summed | None = None
        self._writer: pq.ParquetWriter | None = None
        self._told: list[dict[str, Any]] = []

    def add(self, rows: pa.Table) -> None:
        """Take rows over; write what was gathered once it is large enough for a row group."""
        if not rows.num_rows:
            return
        self._waiting.append(rows)
        # each piece is measured once; `nbytes` takes fifteen times as long for many columns
        self._bytes += rows.get_total_buffer_size()
        if len(self._waiting) - self._joined >= _JOINED_PIECES:
            # hundreds of columns of a few rows each are mostly the objects that hold them
            joined = pa.concat_tables(self._waiting[self._joined :]).combine_chunks()
            self._waiting[self._joined :] = [joined]
            self._joined += 1
        if self._bytes >= _GROUP_BYTES:
            self._flush()

    def close(self, values: Mapping[str, str | None]) -> StagedFile | None:
        """The file, there for good now; None where it would have no row."""
        self._flush()
        if self._writer is None:
            return None
        self._writer.close()
        size = self._landed()
        rows = sum(told["numRecords"] for told in self._told)
        # deltalake 1.6 takes an escaped character from above U+1FFFF for another one
        stats = json.dumps(joined(self._told), separators=(",", ":"), ensure_ascii=False)
        found = self._sink.checksum if self._sink else None
        return StagedFile(self._path, size, rows, stats, dict(values), checksum=found)

    def _landed(self) -> int:
        """The size of the file, there for good."""
        into = self._sink.into if self._sink else None
        if isinstance(into, io.BytesIO):
            content = into.getvalue()
            self._store.write(self._path, content)
            return len(content)
        path = f"{self._store.address}/{self._path}"
        if into is not None:
            into.close()
        sync(path)
        sync(os.path.dirname(path))
        return os.path.getsize(path)

    def drop(self) -> None:
        if self._writer is not None:
            self._writer = None
            self._store.remove(self._path)

    def _flush(self) -> None:
        if not self._waiting:
            return
        rows = pa.concat_tables(self._waiting)
        self._waiting, self._joined, self._bytes = [], 0, 0
        if self._writer is None:
            on_disk = isinstance(self._store, Disk)
            path = f"{self._store.address}/{self._path}"
            self._sink = _Summed(open(path, "wb") if on_disk else io.BytesIO())
            self._writer = pq.ParquetWriter(
                pa.PythonFile(self._sink, mode="w"),
                self._schema,
                compression="zstd",
                compression_level=1,
                write_statistics=_bounded(self._schema),
                store_schema=False,
            )
        self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        self._told.append(json.loads(statistics(rows, key=self._key)))


class _Summed(io.RawIOBase):
    """A file that is written from its beginning to its end, and the checksum of its bytes."""

    def __init__(self, into: IO[bytes]) -> None:
        self.into = into
        self._sum = 0

    @property
    def checksum(self) -> str:
        """The checksum of what was written until now."""
        return spelled(self._sum)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._sum = checksum(data, self._sum)
        return self.into.write(data)


def _bounded(schema: pa.Schema) -> list[str] | bool:
    """Columns whose bounds a reader may trust: NaN is in no bound of floating point."""
    names = [
        field.name
        for field in schema
        if not pa.types.is_nested(field.type) and not pa.types.is_floating(field.type)
    ]
    # a name with a dot in it means a field of a struct here
    return [name for name in names if "." not in name] or False


def joined(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The statistics of a file from those of its pieces.

    A column has bounds only if each piece with a value in it has: a bound that is missing may be
    anything.
    """
    rows = sum(part["numRecords"] for part in parts)
    nulls: dict[str, int] = {}
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    for name in parts[0]["nullCount"] if parts else ():
        nulls[name] = sum(part["nullCount"][name] for part in parts)
        valued = [part for part in parts if part["nullCount"][name] < part["numRecords"]]
        if valued and all(name in part["minValues"] for part in valued):
            lowest[name] = min(part["minValues"][name] for part in valued)
            highest[name] = max(part["maxValues"][name] for part in valued)
    return {"numRecords": rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls}


# One commit that takes files out of a table and puts others in, beside whoever else writes.
#
# Commits that only add files do not stand in the way: they come in between, and the swap goes on
# top of them. One that took a file away, or changed the columns, has changed what the swap was
# made of: that part of it is dropped, and nothing has happened.


class BusyError(Exception):
    """Another writer needs the table now; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Swap:
    """Files that go, and the one that stands for them."""

    removed: tuple[DataFile, ...]
    added: StagedFile | None


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a commit says of itself."""

    operation: str
    data_change: bool
    """Whether rows are other ones than before."""
    ready: Callable[[], None] = field(default=lambda: None)
    """Asked before every try; may raise BusyError."""
    patient: bool = True
    """Whether to try again when another commit was faster."""


OPTIMIZE = Exchange("OPTIMIZE", data_change=False)


def exchange(
    state: Snapshot, swaps: Sequence[Swap], about: Exchange
) -> tuple[Snapshot, list[Swap]]:
    """Commit what can still be swapped; files that were written for the rest are removed.

    Returns the table as it is then, and what was done. Raises BusyError and OvertakenError.
    """
    done: list[Swap] = []

    def attempt() -> Snapshot:
        about.ready()
        newest = follow(state)
        same = state.metadata is newest.metadata and state.protocol is newest.protocol
        there = newest.files
        done[:] = [s for s in swaps if same and all(there.get(f.path) == f for f in s.removed)]
        if done:
            newest = commit(newest.store, newest, _change(done, about))
        return newest

    try:
        after = until_not_overtaken(attempt) if about.patient else attempt()
    except (BusyError, OvertakenError):
        drop(state.store, swaps)
        raise
    drop(state.store, [swap for swap in swaps if swap not in done])
    return after, done


def exchange_all(state: Snapshot, swaps: Sequence[Swap], mark: Mark) -> Snapshot:
    """Commit all swaps under a mark, also where there is none, as long as no file of `state` left.

    Raises BusyError and OvertakenError; the files of the swaps are removed then.
    """

    def attempt() -> Snapshot:
        newest = follow(state)
        same = state.metadata is newest.metadata and state.protocol is newest.protocol
        if not same or not state.files.keys() <= newest.files.keys():
            raise BusyError("another writer has taken files away meanwhile")
        return commit(newest.store, newest, replace(_change(swaps, OPTIMIZE), mark=mark))

    try:
        return until_not_overtaken(attempt)
    except BaseException:
        drop(state.store, swaps)
        raise


def drop(store: Store, swaps: Sequence[Swap]) -> None:
    """Remove files that no commit names."""
    for swap in swaps:
        if swap.added is not None:
            store.remove(swap.added.path)


def _change(swaps: Sequence[Swap], about: Exchange) -> Change:
    gone = [file for swap in swaps for file in swap.removed]
    new = [swap.added for swap in swaps if swap.added is not None]
    return Change(
        about.operation,
        removed=gone,
        added=new,
        # each stands where its files stood among the others that are sorted by their times
        modified_ms={
            swap.added.path: max(file.modified_ms for file in swap.removed)
            for swap in swaps
            if swap.added is not None
        },
        same_rows=not about.data_change,
        metrics={
            "numRemovedFiles": len(gone),
            "numRemovedBytes": sum(file.size for file in gone),
            "numAddedFiles": len(new),
            "numAddedBytes": sum(file.size for file in new),
        },
    )


_COMMIT_BYTES = 2**30
"""Of files that are replaced: then a commit is made, so that little is lost when it is killed."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """What compaction did to a table, or would do."""

    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    """Not known before it is done: the same as before then."""
    rows: int = 0
    """Rows that were written again, as far as the log tells before it is done."""
    version: int | None = None
    """Of the table, by its last commit; None: nothing was committed."""
    seconds: float = 0.0
    left: str = ""
    """Why something that could be put together was not."""


def planned(state: Snapshot, sizes: Sizes) -> Compacted | None:
    """What could be put together; None where there is nothing."""
    found = bins(state.files.values(), sizes)
    if not found:
        return None
    after = len(state.files) - sum(len(each) - 1 for each in found)
    rows = sum(file.rows or 0 for each in found for file in each)
    return Compacted(len(state.files), after, state.size, state.size, rows)


def compact(
    state: Snapshot, sizes: Sizes, about: Exchange = OPTIMIZE
) -> tuple[Snapshot, Compacted | None]:
    """Put small files together; None where there is nothing to do.

    Raises UnsupportedTypeError for a table with columns that cannot be written again, and OSError.
    """
    found = bins(state.files.values(), sizes)
    if not found:
        return state, None
    started = time.perf_counter()
    now = state
    done: list[Swap] = []
    left = ""
    try:
        for share in _shares(found):
            swaps = rewritten(now, share, about.ready, key=sizes.by)
            now, swapped = exchange(now, swaps, about)
            done += swapped
            if len(swapped) < len(share):
                left = "another writer replaced some of its files meanwhile"
    except (BusyError, OvertakenError) as error:
        left = str(error) or "other writers were faster"
    gone = [file for swap in done for file in swap.removed]
    new = [swap.added for swap in done if swap.added is not None]
    return now, Compacted(
        files_before=len(state.files),
        files_after=len(state.files) - len(gone) + len(new),
        bytes_before=state.size,
        bytes_after=state.size - sum(file.size for file in gone) + sum(file.size for file in new),
        rows=sum(file.rows for file in new),
        version=now.version if done else None,
        seconds=time.perf_counter() - started,
        left=left,
    )


def refusal(state: Snapshot) -> str:
    """Why this table cannot be compacted; empty when it can."""
    beyond = state.beyond_us()
    if beyond:
        return f"needs another engine, {beyond}"
    try:
        stored_schema(state)
    except UnsupportedTypeError as error:
        return str(error)
    return ""


def _shares(found: Sequence[Bin]) -> Iterator[list[Bin]]:
    share: list[Bin] = []
    size = 0
    for files in found:
        share.append(files)
        size += sum(file.size for file in files)
        if size >= _COMMIT_BYTES:
            yield share
            share, size = [], 0
    if share:
        yield share


def rewritten(
    state: Snapshot,
    groups: Sequence[Bin],
    ready: Callable[[], None],
    *,
    keep: Keep | None = None,
    key: Sequence[str] = (),
) -> list[Swap]:
    """Each group of files as one file, which no commit names yet."""
    ready()
    schema = stored_schema(state)
    swaps: list[Swap] = []
    try:
        for files in groups:
            try:
                made = write_together(state, files, schema, keep=keep, key=key)
                swaps.append(Swap(files, made))
            except FileNotFoundError:
                newest = follow(state).files
                if all(file.path in newest for file in files):
                    raise
                # else replaced, and cleaned away, since the table was looked at
    except BaseException:
        drop(state.store, swaps)
        raise
    return swaps
