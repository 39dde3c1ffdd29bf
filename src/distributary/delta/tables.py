"""Delta tables without a JVM: read only what is needed, try again when others write too."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import and_
from typing import TypeVar
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
from tenacity import Retrying

from distributary.delta.columns import ColumnConflictError, UnsupportedTypeError
from distributary.delta.damage import damage_in, damaged
from distributary.delta.log import BrokenLogError, load
from distributary.errors import DistributaryError, LakeUnavailableError, PublishError, clean
from distributary.model.table import is_below
from distributary.retries import attempts_on
from distributary.store.base import Store, at, local_folder, options_of, refuse_links, stay_inside

CONFLICT_ATTEMPTS = 20
_SEARCH_SECONDS = 10.0
"""For the file in which a reader failed."""
_MILLISECOND = 1000
"""In microseconds."""
_FOREIGN = (DeltaError, OSError, pa.ArrowException, BrokenLogError)


@contextmanager
def reaching(path: str) -> Iterator[None]:
    """Turns what storage and the table format raise into our own errors."""
    try:
        yield
    except CommitFailedError as error:
        raise PublishError(
            "another writer kept changing the table first",
            where=path,
            evidence=clean(f"{type(error).__name__}: {error}"),
            next_step="run it again: nothing was changed by this try",
        ) from error
    except Exception as error:
        # the engine inside deltalake has no exceptions of its own
        if type(error) is not Exception and not isinstance(error, _FOREIGN):
            raise
        if not isinstance(error, FileNotFoundError | BrokenLogError):
            refuse_damaged(path, cause=error)
        raise LakeUnavailableError(
            "the lake cannot be read or written",
            where=path,
            evidence=clean(f"{type(error).__name__}: {error}"),
            next_step="check that the lake's path, rights and credentials are right: `doctor`",
        ) from error


def refuse_damaged(path: str, *, cause: Exception) -> None:
    """Raise DamagedFileError if a reader of a table failed because one of its files is damaged.

    Files are looked at one by one, for a few seconds: engines do not say in which one they failed.
    """
    until = time.monotonic() + _SEARCH_SECONDS
    try:
        store = at(path)
        for name, size, expected in _data_files(store):
            found = damage_in(store, name, size=size, expected=expected)
            if found is not None:
                raise damaged(store.address, name, found) from cause
            if time.monotonic() > until:
                return
    except (OSError, ValueError, BrokenLogError):
        # the table cannot be read for another reason, which the caller knows already
        return


def _data_files(store: Store) -> Iterator[tuple[str, int, str | None]]:
    """Path, size and checksum of the files of a table, of whichever format it is."""
    delta = load(store)
    if delta is not None:
        for file in delta.files.values():
            if is_below(file.path):
                yield file.path, file.size, file.checksum
        return
    for info in store.files(recursive=True):
        # a folder whose name begins so is passed over by readers
        if info.name.endswith(".parquet") and not info.name.startswith("_"):
            yield info.name, info.size, None


def conflict_attempts() -> Retrying:
    """Tries a change again while other writers commit first."""
    most = CONFLICT_ATTEMPTS
    return attempts_on(
        CommitFailedError, most=most, seconds=60.0, pause=0.02, longest=1.0, jitter=0.1
    )


def open_table(path: str, *, version: int | None = None) -> DeltaTable | None:
    """The table at its newest version, or at another one; None where there is no table."""
    refuse_links(path)
    try:
        with reaching(path):
            return DeltaTable(path, version=version, storage_options=options_of(path) or None)
    except LakeUnavailableError as error:
        if isinstance(error.__cause__, TableNotFoundError):
            return None
        raise


def arrow_schema(table: DeltaTable) -> pa.Schema:
    """The table's columns in pyarrow's own words."""
    return pa.schema(table.schema().to_arrow())


def dataset(table: DeltaTable) -> ds.Dataset | None:
    """The live files as a dataset, or None for a table that only the built-in engine can read."""
    folder = local_folder(table.table_uri)
    # what reads ahead must not need Python: it may still do so when the process ends, and crash
    files = pa_fs.SubTreeFileSystem(folder, pa_fs.LocalFileSystem()) if folder else None
    try:
        found = table.to_pyarrow_dataset(filesystem=files)
    except DeltaProtocolError:
        return None
    if folder:
        only_below(folder, found.files)
    return _with_true_bounds(table, found)


def _with_true_bounds(table: DeltaTable, files: ds.FileSystemDataset) -> ds.FileSystemDataset:
    """The same files, so that whoever skips some of them by their bounds misses no row.

    deltalake 1.6 says of a column without bounds that its values are above and below null, which
    no value is; and of one whose nulls are not counted that it has none.
    """
    actions = pa.table(table.get_add_actions(flatten=True))
    told = [unquote(path) for path in actions["path"].to_pylist()]
    known = dict(zip(told, _bounds(actions, files.schema), strict=True))
    sizes = dict(zip(told, actions["size_bytes"].to_pylist(), strict=True))
    fragments = []
    for path in files.files:
        # a file that the log names by an address has that as its path
        name = path if path in known else unquote(path)
        bounds, size = known.get(name, ds.scalar(True)), sizes.get(name)
        fragments.append(
            files.format.make_fragment(
                path, filesystem=files.filesystem, partition_expression=bounds, file_size=size
            )
        )
    return ds.FileSystemDataset(
        fragments, schema=files.schema, format=files.format, filesystem=files.filesystem
    )


def _bounds(actions: pa.Table, schema: pa.Schema) -> list[ds.Expression]:
    """What is true of all rows of each file."""
    all_true: list[list[ds.Expression]] = [[] for _ in range(actions.num_rows)]
    have = set(actions.column_names)
    for field in schema:
        name, here = field.name, ds.field(field.name)
        if (part := f"partition.{name}") in have:
            for number, value in enumerate(actions[part].cast(field.type)):
                all_true[number].append(here == value if value.is_valid else here.is_null())
        # a name with a dot in it may also mean a field of a struct
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
    """Types whose bounds are what every writer says they are."""
    whole = pa.types.is_integer(type_) or pa.types.is_date32(type_)
    return bool(whole or (pa.types.is_timestamp(type_) and type_.unit == "us"))


def _raised(highs: pa.ChunkedArray) -> pa.ChunkedArray:
    """Some writers cut times to milliseconds."""
    if not pa.types.is_timestamp(highs.type):
        return highs
    return pc.add(highs.cast(pa.int64()), _MILLISECOND).cast(highs.type)


def only_below(folder: str, files: Iterable[str]) -> None:
    """OutsideLakeError where one of a table's files is not in its folder, or is a link."""
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
    """Rows that satisfy `where`, an expression and never a text: nothing in it can be injected.

    Whoever has the `files` of the table already spares the time to look for them.
    """
    with reaching(table.table_uri):
        names = None if columns is None else list(columns)
        found = (
            scanner(table, names, where)
            if files is None
            else files.scanner(columns=names, filter=where)
        )
        return found.to_table() if limit is None else found.head(limit)


def scanner(
    table: DeltaTable, columns: list[str] | None, where: pc.Expression | None = None
) -> ds.Scanner:
    """Reads the rows of a table bit by bit."""
    files = dataset(table)
    if files is not None:
        return files.scanner(columns=columns, filter=where)
    # deletion vectors or mapped columns: the engine reads, pyarrow filters, so that values
    # from outside still never become part of a SQL text
    target = arrow_schema(table)
    folder = local_folder(table.table_uri)
    if folder:
        stay_inside(folder, *table.file_uris())
    batches = pa.RecordBatchReader.from_stream(table.scan())
    return ds.Scanner.from_batches(
        (batch.cast(target) for batch in batches), schema=target, columns=columns, filter=where
    )


def lake_files(folder: str) -> pa_fs.FileSystem:
    """The files of the lake, or of a folder of it, by their paths there, to read from."""
    local = local_folder(folder)
    if local is None:
        return pa_fs.PyFileSystem(DeltaStorageHandler(folder, options_of(folder)))
    # four times faster than through the general handler
    return pa_fs.SubTreeFileSystem(os.path.abspath(local), pa_fs.LocalFileSystem())


# Several writers, one table: whoever comes second looks at the table again and tries again.

ATTEMPTS = 15
"""How often a commit that was overtaken is made again."""

T = TypeVar("T")


class OvertakenError(Exception):
    """Another commit took the place of this one; nothing was written."""


def until_not_overtaken(attempt: Callable[[], T]) -> T:
    """The result of the first attempt that is not overtaken. Raises OvertakenError in the end."""
    try:
        # nearly always enough: the machinery below is not paid for a thousand times a batch
        return attempt()
    except OvertakenError:
        again = attempts_on(
            OvertakenError, most=ATTEMPTS, seconds=45.0, pause=0.005, longest=0.25, jitter=0.05
        )
        return again(attempt)


# What went wrong while committing, in our words, and with nothing in it that should not leave.

_LASTING = frozenset({"columns", "features", "format", "partitions", "store"})
"""Reasons that somebody has to take away."""


def may_pass(error: PublishError) -> bool:
    """Whether the same commit may succeed a moment later, with nobody doing anything about it."""
    return error.retryable and error.context.get("reason") not in _LASTING


@contextmanager
def committing(path: str, *, doing: str) -> Iterator[None]:
    """Errors of the libraries below become ours."""
    try:
        yield
    except DistributaryError:
        raise
    except Exception as error:
        raise as_publish_error(error, doing=doing, path=path) from error


def as_publish_error(error: Exception, *, doing: str, path: str) -> PublishError:
    """The error of ours that fits an exception of the libraries below."""
    evidence = clean(f"{error}") or type(error).__name__
    what = f"cannot {doing}"
    if isinstance(error, PublishError):
        return error
    if isinstance(error, OvertakenError):
        return PublishError(
            what,
            where=path,
            evidence=f"other writers were faster, again and again: {evidence}",
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
            next_step="check that the lake can be reached and written to, and has room",
        )
    if isinstance(error, BrokenLogError):
        return PublishError(
            what,
            where=path,
            evidence=evidence,
            next_step="the table's log is damaged: put the files of _delta_log back from a copy",
        )
    return PublishError(
        what,
        where=path,
        evidence=evidence,
        next_step="if the table uses features that this way of committing does not know, publish "
        "it with Spark",
    )
