"""Delta tables without a JVM: reading of selected rows, and retries for concurrent writers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pa_fs
from deltalake import DeltaTable
from deltalake.exceptions import (
    CommitFailedError,
    DeltaError,
    DeltaProtocolError,
    TableNotFoundError,
)
from deltalake.fs import DeltaStorageHandler

from distributary.delta.column_merge import ColumnConflictError, UnsupportedTypeError
from distributary.delta.damage import damage_in, damaged
from distributary.delta.log import load
from distributary.delta.log_reading import LOG, BrokenLogError
from distributary.errors import DistributaryError, LakeUnavailableError, PublishError, clean
from distributary.model import layout
from distributary.model.table import is_below
from distributary.retries import attempts_on
from distributary.store.base import Store, at, local_folder, options_of, refuse_links, stay_inside

if TYPE_CHECKING:
    from tenacity import Retrying

CONFLICT_ATTEMPTS = 20
_SEARCH_SECONDS = 10.0
"""The time to search for the damaged file in which a reader failed."""
_MILLISECOND = 1000
"""A millisecond in microseconds."""
_GONE = "there is no such file"
_LOG_STEP = (
    "the table's log is damaged: restore the files of _delta_log from a backup; without one, "
    "`distributary verify TABLE` says what can be done"
)
_FOREIGN = (DeltaError, OSError, pa.ArrowException, BrokenLogError)


@contextmanager
def reaching_table(path: str) -> Iterator[None]:
    """Convert exceptions of the storage and of the table format to PublishError."""
    try:
        yield
    except CommitFailedError as error:
        raise PublishError(
            "other writers committed to the table first each time",
            where=path,
            evidence=clean(f"{type(error).__name__}: {error}"),
            next_step="run the command again: this attempt changed nothing",
        ) from error
    except Exception as error:
        # The engine inside deltalake raises bare exceptions.
        if type(error) is not Exception and not isinstance(error, _FOREIGN):
            raise
        lost = isinstance(error, FileNotFoundError) and not layout.is_ledger(path)
        step = "check the lake's path, permissions and credentials with `doctor`"
        if isinstance(error, BrokenLogError):
            step = _LOG_STEP
        elif not lost:
            refuse_damaged(path, cause=error)
        raise LakeUnavailableError(
            "the lake cannot be read or written",
            where=path,
            evidence=clean(f"{type(error).__name__}: {error}"),
            next_step=step,
        ) from error


def refuse_damaged(path: str, *, cause: Exception) -> None:
    """Raise DamagedFileError if a reader of a table failed because of a damaged file.

    Files are checked one by one, for a few seconds: engines do not name the file in which they
    failed.
    """
    until = time.monotonic() + _SEARCH_SECONDS
    try:
        store = at(path)
        for name, size, expected in _data_files(store):
            gone = layout.is_ledger(path) and store.size(name) is None
            damage = damage_in(store, name, size=size, expected=expected) if not gone else _GONE
            if damage is not None:
                raise damaged(store.address, name, damage) from cause
            if time.monotonic() > until:
                return
    except (OSError, ValueError, BrokenLogError):
        # The table cannot be read for another reason, which the caller knows already.
        return


def _data_files(store: Store) -> Iterator[tuple[str, int, str | None]]:
    """Yield path, size and checksum of the files of a Delta or plain Parquet table."""
    delta = load(store)
    if delta is not None:
        for file in delta.files.values():
            if is_below(file.path):
                yield file.path, file.size, file.checksum
        return
    for info in store.files(recursive=True):
        # Readers skip folders whose names begin with an underscore.
        if info.name.endswith(".parquet") and not info.name.startswith("_"):
            yield info.name, info.size, None


def conflict_attempts() -> Retrying:
    """Return a retrier for changes that other writers' commits overtake."""
    most = CONFLICT_ATTEMPTS
    return attempts_on(
        CommitFailedError, most=most, seconds=60.0, pause=0.02, longest=1.0, jitter=0.1
    )


def load_table(
    path: str, *, version: int | None = None, options: Mapping[str, str] | None = None
) -> DeltaTable:
    """Load a table with deltalake, as it raises; OSError if its log is listed without an end."""
    storage = dict(options_of(path) if options is None else options) or None

    def load_it() -> DeltaTable:
        return DeltaTable(path, version=version, storage_options=storage)

    return at(path).listed_by(load_it, LOG)


def update_table(table: DeltaTable, path: str) -> None:
    """Bring a table to its newest version; raise OSError if its log is listed without an end."""
    at(path).listed_by(table.update_incremental, LOG)


def open_table(path: str, *, version: int | None = None) -> DeltaTable | None:
    """Open a table at its newest version, or at `version`; None if there is no table."""
    refuse_links(path)
    try:
        with reaching_table(path):
            return load_table(path, version=version)
    except LakeUnavailableError as error:
        if isinstance(error.__cause__, TableNotFoundError):
            return None
        raise


def arrow_schema(table: DeltaTable) -> pa.Schema:
    """Return the table's columns as a pyarrow schema."""
    return pa.schema(table.schema().to_arrow())


def dataset(table: DeltaTable) -> ds.Dataset | None:
    """Return the live files as a dataset; None if only the built-in engine can read the table."""
    folder = local_folder(table.table_uri)
    # Arrow's read-ahead must not call Python: it may still run, and crash, when the process ends.
    files = pa_fs.SubTreeFileSystem(folder, pa_fs.LocalFileSystem()) if folder else None
    try:
        live = table.to_pyarrow_dataset(filesystem=files)
    except DeltaProtocolError:
        return None
    if folder:
        only_below(folder, live.files)
    return _with_true_bounds(table, live)


def _with_true_bounds(table: DeltaTable, files: ds.FileSystemDataset) -> ds.FileSystemDataset:
    """Return the same files with correct bounds, so that skipping files misses no row.

    deltalake 1.6 states a column without bounds as between null and null, which excludes all
    values, and a column without null counts as free of nulls.
    """
    actions = pa.table(table.get_add_actions(flatten=True))
    paths = [unquote(path) for path in actions["path"].to_pylist()]
    bounds_by_path = dict(zip(paths, _bounds(actions, files.schema), strict=True))
    sizes = dict(zip(paths, actions["size_bytes"].to_pylist(), strict=True))
    fragments = []
    for path in files.files:
        # The log may name a file by an address, which then is its path.
        name = path if path in bounds_by_path else unquote(path)
        bounds, size = bounds_by_path.get(name, ds.scalar(True)), sizes.get(name)
        fragments.append(
            files.format.make_fragment(
                path, filesystem=files.filesystem, partition_expression=bounds, file_size=size
            )
        )
    return ds.FileSystemDataset(
        fragments, schema=files.schema, format=files.format, filesystem=files.filesystem
    )


def _bounds(actions: pa.Table, schema: pa.Schema) -> list[ds.Expression]:
    """Return for each file an expression that is true of all its rows."""
    all_true: list[list[ds.Expression]] = [[] for _ in range(actions.num_rows)]
    have = set(actions.column_names)
    for field in schema:
        name, here = field.name, ds.field(field.name)
        if (part := f"partition.{name}") in have:
            for number, value in enumerate(actions[part].cast(field.type)):
                all_true[number].append(here == value if value.is_valid else here.is_null())
        # A name with a dot in it may also mean a field of a struct.
        elif f"min.{name}" in have and _has_order(field.type) and "." not in name:
            lows, highs = (actions[f"{end}.{name}"].cast(field.type) for end in ("min", "max"))
            nulls = actions[f"null_count.{name}"].to_pylist()
            for number, (low, high) in enumerate(zip(lows, _raised(highs), strict=True)):
                if low.is_valid and high.is_valid:
                    ends = [here >= low, here <= high]
                    may = [end if nulls[number] == 0 else end | here.is_null() for end in ends]
                    all_true[number] += may
    return [reduce(and_, true, ds.scalar(True)) for true in all_true]


def _has_order(type_: pa.DataType) -> bool:
    """Return whether all writers write exact bounds for a type."""
    whole = pa.types.is_integer(type_) or pa.types.is_date32(type_)
    return bool(whole or (pa.types.is_timestamp(type_) and type_.unit == "us"))


def _raised(highs: pa.ChunkedArray) -> pa.ChunkedArray:
    """Raise upper bounds of timestamps by a millisecond, because some writers truncate them."""
    if not pa.types.is_timestamp(highs.type):
        return highs
    return pc.add(highs.cast(pa.int64()), _MILLISECOND).cast(highs.type)


def only_below(folder: str, files: Iterable[str]) -> None:
    """Raise OutsideLakeError if one of a table's files is outside of its folder, or is a link."""
    places = {os.path.dirname(file) for file in files}
    links = (f"{folder}/{file}" for file in files if os.path.islink(f"{folder}/{file}"))
    stay_inside(folder, *(f"{folder}/{place}" for place in places), *links)


def read_rows(
    table: DeltaTable,
    *,
    columns: Sequence[str] | None = None,
    where: pc.Expression | None = None,
    limit: int | None = None,
    files: ds.Dataset | None = None,
) -> pa.Table:
    """Read rows that satisfy `where`, an expression and not a text, so that nothing is injected.

    A caller that has the `files` of the table already passes them to save the time to list them.
    """
    with reaching_table(table.table_uri):
        names = None if columns is None else list(columns)
        scan = (
            scanner(table, names, where)
            if files is None
            else files.scanner(columns=names, filter=where)
        )
        return scan.to_table() if limit is None else scan.head(limit)


def scanner(
    table: DeltaTable, columns: list[str] | None, where: pc.Expression | None = None
) -> ds.Scanner:
    """Return a scanner that reads a table's rows batch by batch."""
    files = dataset(table)
    if files is not None:
        return files.scanner(columns=columns, filter=where)
    # The table has deletion vectors or mapped columns: deltalake reads and pyarrow filters, so that
    # values from outside never become part of a SQL text.
    target = arrow_schema(table)
    folder = local_folder(table.table_uri)
    if folder:
        stay_inside(folder, *table.file_uris())
    batches = pa.RecordBatchReader.from_stream(table.scan())
    return ds.Scanner.from_batches(
        (batch.cast(target) for batch in batches), schema=target, columns=columns, filter=where
    )


def lake_files(folder: str) -> pa_fs.FileSystem:
    """Return a file system for reading the lake, or a folder of it, by relative paths."""
    local = local_folder(folder)
    if local is None:
        return pa_fs.PyFileSystem(DeltaStorageHandler(folder, options_of(folder)))
    # Four times faster than deltalake's general handler.
    return pa_fs.SubTreeFileSystem(os.path.abspath(local), pa_fs.LocalFileSystem())


# Several writers of one table: a writer that commits second reads the table again and retries.

ATTEMPTS = 15
"""The number of attempts at a commit that other writers overtake."""

T = TypeVar("T")


class OvertakenError(Exception):
    """An error for a commit whose version another commit took; nothing was written."""


def until_not_overtaken(attempt: Callable[[], T]) -> T:
    """Return the result of the first attempt that is not overtaken.

    Raise OvertakenError at last.
    """
    try:
        # The first attempt nearly always succeeds, and the retrier is too slow for each of a
        # thousand tables.
        return attempt()
    except OvertakenError:
        again = attempts_on(
            OvertakenError, most=ATTEMPTS, seconds=45.0, pause=0.005, longest=0.25, jitter=0.05
        )
        return again(attempt)


# Errors during a commit, turned into errors of ours, without secrets in them.

_LASTING = frozenset({"columns", "features", "format", "partitions", "store"})
"""Reasons that last until a person removes them."""


def may_pass(error: PublishError) -> bool:
    """Return whether the same commit may succeed a moment later without a person's help."""
    return error.retryable and error.context.get("reason") not in _LASTING


@contextmanager
def committing(path: str, *, doing: str) -> Iterator[None]:
    """Turn exceptions of the libraries below into PublishError."""
    try:
        yield
    except DistributaryError:
        raise
    except Exception as error:
        raise as_publish_error(error, doing=doing, path=path) from error


def as_publish_error(error: Exception, *, doing: str, path: str) -> PublishError:
    """Return the PublishError for an exception of deltalake, Arrow or the store."""
    evidence = clean(f"{error}") or type(error).__name__
    what = f"cannot {doing}"
    if isinstance(error, PublishError):
        return error
    if isinstance(error, OvertakenError):
        return PublishError(
            what,
            where=path,
            evidence=f"other writers committed first each time: {evidence}",
            next_step="let fewer writers commit to this table at the same time",
            reason="overtaken",
        )
    if isinstance(error, ColumnConflictError | UnsupportedTypeError):
        return PublishError(
            what,
            where=path,
            evidence=evidence,
            next_step="the table has changed since the batch was planned: plan it again, or give "
            "the column another name",
            reason="columns",
        )
    if isinstance(error, OSError):
        return LakeUnavailableError(
            what,
            where=path,
            evidence=evidence,
            next_step="check that the lake can be reached, allows writing and has free space",
        )
    if isinstance(error, BrokenLogError):
        return PublishError(
            what,
            where=path,
            evidence=evidence,
            next_step=_LOG_STEP,
        )
    return PublishError(
        what,
        where=path,
        evidence=evidence,
        next_step="if the table uses features that the direct publisher does not support, set "
        "tables.publisher to spark",
    )
