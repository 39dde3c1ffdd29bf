"""Compaction: small files of a table become large ones, and deleted rows leave their files.

The table's rows, columns, marks and order do not change.
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

from distributary.delta.column_merge import UnsupportedTypeError, columns_of
from distributary.delta.commit import Change, commit
from distributary.delta.damage import checksum, spelled
from distributary.delta.log import DataFile, Snapshot, follow
from distributary.delta.parquet import read_pieces, statistics
from distributary.delta.tables import OvertakenError, until_not_overtaken
from distributary.model.manifest import Mark, StagedFile
from distributary.store.base import Store, stay_inside
from distributary.store.disk import Disk, sync

# The choice of files to put together, without I/O.
# Only neighbours become one file, in their order: each file still covers one range of time or of
# keys, so that readers can skip it, and the order in which the table was written stays visible.

Bin = tuple[DataFile, ...]

_ALMOST = 0.75
"""The part of the target size from which a file is large enough."""
MOST_LOST = 0.3
"""The part of deleted rows above which a file is written again without them."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The size that files should have, and when they are compacted."""

    target: int
    min_files: int
    by: tuple[str, ...] = ()
    """The columns that order rows in files; empty if files are ordered by time."""


def bins(files: Iterable[DataFile], sizes: Sizes) -> list[Bin]:
    """Return the groups of files to put together, each into one file."""
    groups: dict[tuple[object, ...], list[DataFile]] = {}
    for file in in_order(list(files), by=sizes.by):
        kind = file.path.rpartition("/")[2].partition("-")[0]
        groups.setdefault((kind, tuple(sorted(file.values.items()))), []).append(file)
    chosen = [run for group in groups.values() for run in _runs(group, sizes)]
    chosen = [run for run in chosen if len(run) >= max(2, sizes.min_files)]
    taken = {file.path for run in chosen for file in run}
    every = (file for group in groups.values() for file in group)
    return chosen + [(file,) for file in every if file.path not in taken and _is_hollow(file)]


def _is_hollow(file: DataFile) -> bool:
    return file.written is not None and file.lost > file.written * MOST_LOST


def in_order(files: Sequence[DataFile], *, by: Sequence[str] = ()) -> list[DataFile]:
    """Sort files by their lowest values in some columns, or in the order of their writing.

    The order of writing is by batches if the statistics of all files have them, otherwise by times.
    """
    if by:
        return sorted(files, key=lambda file: [_lowest(file, name) for name in by])
    batches = [_batch(file) for file in files]
    all_known = all(batch is not None for batch in batches)
    keys = [
        (batch if all_known and batch is not None else 0, file.modified_ms, file.path)
        for file, batch in zip(files, batches, strict=True)
    ]
    return [files[at] for at in sorted(range(len(files)), key=keys.__getitem__)]


def _lowest(file: DataFile, column: str) -> tuple[str, Any]:
    """Return a sort key for a file's lowest value of any type; files without bounds come first."""
    low, _ = file.bounds(column)
    return (type(low).__name__, low) if isinstance(low, int | str) else ("", 0)


def _batch(file: DataFile) -> int | None:
    batch = (file.statistics().get("minValues") or {}).get("_batch")
    return batch if isinstance(batch, int) else None


def _runs(group: Sequence[DataFile], sizes: Sizes) -> Iterator[Bin]:
    """Yield runs of consecutive small files, cut where a run reaches the target size."""
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
    """Drop leading files that are larger than all files after them together.

    A file that was compacted before would otherwise be written again each time. This way a row is
    rewritten only a few times in all.
    """
    kept, rest = list(run), sum(file.size for file in run)
    while kept and kept[0].size * 2 > rest:
        rest -= kept.pop(0).size
    return tuple(kept)


# The writing of several files into one, piece by piece, with the table's current columns.

Keep = Callable[[DataFile, pa.Table], pa.Table]
"""A function that returns the rows of a piece of a file that stay."""

_GROUP_BYTES = 64 * 2**20
"""Bytes of rows in memory after which a row group is written, so that files of any size can be
written."""
_JOINED_PIECES = 64
"""Pieces that are held in memory separately before they are concatenated."""
_MADE_BY_US = re.compile(r"-c[0-9a-f]{12}$")
_LONGEST_STEM = 150


class RowsLostError(Exception):
    """An error for written rows that differ from the rows read: nothing is committed."""


def stored_schema(state: Snapshot) -> pa.Schema:
    """Return the columns that a table's files hold: all except the partition columns."""
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
    """Write the rows of files, in order, to one durable file.

    Returns None if `keep` removes all rows.
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
                target.add(piece if keep is None else keep(file, piece))
            _check(file, rows)
            read += rows
        written = target.close(files[0].values)
        if keep is None and (written.rows if written else 0) != read:
            raise RowsLostError(f"{read} rows were read, {written.rows if written else 0} written")
    except BaseException:
        target.drop()
        raise
    return written


def name_after(path: str) -> str:
    """Return a new file name that sorts and begins like an old one.

    The beginning of a name distinguishes the files of a history table; the order of names is the
    order of a log table.
    """
    folder, slash, name = path.rpartition("/")
    stem = _MADE_BY_US.sub("", name.removesuffix(".parquet"))[:_LONGEST_STEM]
    return f"{folder}{slash}{stem}-c{uuid.uuid4().hex[:12]}.parquet"


def _check(file: DataFile, rows: int) -> None:
    if file.rows is not None and file.rows != rows:
        raise RowsLostError(f"{file.path} has {rows} rows; the log says {file.rows}")


class _Target:
    """A Parquet file that is being written, and the bounds of its rows."""

    def __init__(self, store: Store, path: str, schema: pa.Schema, key: Sequence[str]) -> None:
        self._store, self._path = store, path
        self._schema, self._key = schema, key
        self._waiting: list[pa.Table] = []
        self._joined = 0
        """The number of waiting tables, from the first, that are concatenations of several
        pieces."""
        self._bytes = 0
        self._sink: _Summed | None = None
        self._writer: pq.ParquetWriter | None = None
        self._statistics: list[dict[str, Any]] = []

    def add(self, rows: pa.Table) -> None:
        """Add rows; write a row group once enough rows have been gathered."""
        if not rows.num_rows:
            return
        self._waiting.append(rows)
        # Measured once for each piece; `nbytes` takes fifteen times as long for many columns.
        self._bytes += rows.get_total_buffer_size()
        if len(self._waiting) - self._joined >= _JOINED_PIECES:
            # Hundreds of columns of a few rows each take most of their memory for the objects
            # around them.
            joined = pa.concat_tables(self._waiting[self._joined :]).combine_chunks()
            self._waiting[self._joined :] = [joined]
            self._joined += 1
        if self._bytes >= _GROUP_BYTES:
            self._flush()

    def close(self, values: Mapping[str, str | None]) -> StagedFile | None:
        """Finish the file durably and return it; None if it has no row."""
        self._flush()
        if self._writer is None:
            return None
        self._writer.close()
        size = self._landed()
        rows = sum(part["numRecords"] for part in self._statistics)
        # deltalake 1.6 misreads escaped characters above U+1FFFF.
        stats = json.dumps(joined(self._statistics), separators=(",", ":"), ensure_ascii=False)
        crc = self._sink.checksum if self._sink else None
        return StagedFile(self._path, size, rows, stats, dict(values), checksum=crc)

    def _landed(self) -> int:
        """Store the file durably and return its size."""
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
        self._statistics.append(json.loads(statistics(rows, key=self._key)))


class _Summed(io.RawIOBase):
    """A file written from beginning to end, with the checksum of its bytes."""

    def __init__(self, into: IO[bytes]) -> None:
        self.into = into
        self._sum = 0

    @property
    def checksum(self) -> str:
        """Return the checksum of the bytes written so far."""
        return spelled(self._sum)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._sum = checksum(data, self._sum)
        return self.into.write(data)


def _bounded(schema: pa.Schema) -> list[str] | bool:
    """Return the columns that get bounds; floating point gets none, because bounds ignore NaN."""
    names = [
        field.name
        for field in schema
        if not pa.types.is_nested(field.type) and not pa.types.is_floating(field.type)
    ]
    # ParquetWriter takes a name with a dot for a field of a struct.
    return [name for name in names if "." not in name] or False


def joined(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the statistics of the pieces of a file.

    A column has bounds only if each piece with a value has them: a missing bound can be anything.
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


# One commit that replaces files of a table while other writers commit too.
# Commits that only add files are no conflict: the swap is committed on top of them. A commit that
# removed a file of a swap, or changed the columns, invalidates that swap: the swap is dropped, and
# the table is unchanged.


class BusyError(Exception):
    """An error for a table that another writer needs now; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Swap:
    """Files that are removed, and the file that replaces them."""

    removed: tuple[DataFile, ...]
    added: StagedFile | None


@dataclass(frozen=True, slots=True)
class FileExchange:
    """The kind of a commit that replaces files, and how hard to try."""

    operation: str
    data_change: bool
    """True if the rows differ from the rows before."""
    ready: Callable[[], None] = field(default=lambda: None)
    """A check before every attempt; it may raise BusyError."""
    patient: bool = True
    """True to try again after another writer committed first."""


OPTIMIZE = FileExchange("OPTIMIZE", data_change=False)


def exchange(
    state: Snapshot, swaps: Sequence[Swap], about: FileExchange
) -> tuple[Snapshot, list[Swap]]:
    """Commit the swaps whose files are still there; delete the new files of all others.

    Returns the new snapshot and the committed swaps. Raises BusyError and OvertakenError.
    """
    done: list[Swap] = []

    def attempt() -> Snapshot:
        about.ready()
        newest = follow(state)
        same = state.metadata is newest.metadata and state.protocol is newest.protocol
        there = newest.files
        done[:] = [s for s in swaps if same and all(there.get(f.path) == f for f in s.removed)]
        if done:
            newest = commit(newest.store, newest, _change(done, about, newest))
        return newest

    try:
        after = until_not_overtaken(attempt) if about.patient else attempt()
    except (BusyError, OvertakenError):
        drop(state.store, swaps)
        raise
    drop(state.store, [swap for swap in swaps if swap not in done])
    return after, done


def exchange_all(state: Snapshot, swaps: Sequence[Swap], mark: Mark) -> Snapshot:
    """Commit all swaps under a mark, even none, if no file of `state` was removed since.

    Raises BusyError and OvertakenError, and then deletes the new files of the swaps.
    """

    def attempt() -> Snapshot:
        newest = follow(state)
        same = state.metadata is newest.metadata and state.protocol is newest.protocol
        if not same or not state.files.keys() <= newest.files.keys():
            raise BusyError("another writer has removed files of the table")
        return commit(newest.store, newest, replace(_change(swaps, OPTIMIZE, newest), mark=mark))

    try:
        return until_not_overtaken(attempt)
    except BaseException:
        drop(state.store, swaps)
        raise


def drop(store: Store, swaps: Sequence[Swap]) -> None:
    """Delete the new files of swaps that are not committed."""
    for swap in swaps:
        if swap.added is not None:
            store.remove(swap.added.path)


REMOVED = "distributary.rows-removed"
"""The application id under which a table counts the rows that we have removed from it: the number
of all of them. It is part of the commit that removes them, and stays when the log is cleaned."""


def removed_before(state: Snapshot) -> int:
    """Return how many rows of a table we have removed."""
    return state.marks.get(REMOVED, 0)


def _removed(before: Snapshot, swaps: Sequence[Swap]) -> dict[str, int]:
    """Return the new count of removed rows, as a mark; none if a file does not say its rows."""
    counts = [file.rows for swap in swaps for file in swap.removed]
    known = [rows for rows in counts if rows is not None]
    if len(known) < len(counts):
        return {}
    left = sum(swap.added.rows for swap in swaps if swap.added is not None)
    return {REMOVED: removed_before(before) + sum(known) - left}


def _change(swaps: Sequence[Swap], about: FileExchange, before: Snapshot) -> Change:
    gone = [file for swap in swaps for file in swap.removed]
    new = [swap.added for swap in swaps if swap.added is not None]
    return Change(
        about.operation,
        marks=_removed(before, swaps) if about.data_change else {},
        removed=gone,
        added=new,
        # A new file takes the place of its old files among others that are sorted by time.
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
"""Bytes of replaced files after which a commit is made, so that little is lost when the process is
killed."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """The outcome of a table's compaction, or the plan of one."""

    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    """In a plan, the same as `bytes_before`: the size is not known yet."""
    rows: int = 0
    """Rows that were rewritten; in a plan, as far as the log knows them."""
    version: int | None = None
    """The table's version after the last commit; None if nothing was committed."""
    seconds: float = 0.0
    left: str = ""
    """The reason why some files were left as they are."""


def planned(state: Snapshot, sizes: Sizes) -> Compacted | None:
    """Plan the compaction of a table; None if there is nothing to do."""
    groups = bins(state.files.values(), sizes)
    if not groups:
        return None
    after = len(state.files) - sum(len(group) - 1 for group in groups)
    rows = sum(file.rows or 0 for group in groups for file in group)
    return Compacted(len(state.files), after, state.size, state.size, rows)


def compact(
    state: Snapshot, sizes: Sizes, about: FileExchange = OPTIMIZE
) -> tuple[Snapshot, Compacted | None]:
    """Put small files together; None if there is nothing to do.

    Raises OSError, and UnsupportedTypeError for a table with columns that we cannot write.
    """
    groups = bins(state.files.values(), sizes)
    if not groups:
        return state, None
    started = time.perf_counter()
    now = state
    done: list[Swap] = []
    left = ""
    try:
        for share in shares(groups):
            swaps = rewritten(now, share, about.ready, key=sizes.by)
            now, swapped = exchange(now, swaps, about)
            done += swapped
            if len(swapped) < len(share):
                left = "another writer replaced some of the table's files"
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
    """Return the reason why a table cannot be compacted; empty if it can."""
    beyond = state.beyond_us()
    if beyond:
        return f"needs another engine, {beyond}"
    try:
        stored_schema(state)
    except UnsupportedTypeError as error:
        return str(error)
    return ""


def shares(groups: Sequence[Bin]) -> Iterator[list[Bin]]:
    """Yield groups of files in portions, each for one commit."""
    share: list[Bin] = []
    size = 0
    for files in groups:
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
    """Rewrite each group of files as one file that no commit names yet."""
    ready()
    schema = stored_schema(state)
    swaps: list[Swap] = []
    try:
        for files in groups:
            try:
                written = write_together(state, files, schema, keep=keep, key=key)
                swaps.append(Swap(files, written))
            except FileNotFoundError:
                newest = follow(state).files
                if all(file.path in newest for file in files):
                    raise
                # Otherwise another writer has replaced and deleted the files since `state`: skip
                # them.
    except BaseException:
        drop(state.store, swaps)
        raise
    return swaps
