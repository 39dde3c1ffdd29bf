"""The Parquet files of tables: written before a commit names them, read with current columns."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from distributary.delta.column_merge import ColumnConflictError, UnsupportedTypeError
from distributary.delta.damage import (
    checksum,
    damage_in,
    damaged,
    differs,
    reading,
    spelled,
)
from distributary.evolve.align import align
from distributary.evolve.types import fits
from distributary.model.manifest import StagedFile, compact
from distributary.model.table import Fill
from distributary.store.base import Store, Uploads, at, is_remote

_STATISTICS_COLUMNS = 32
_LONGEST_TEXT = 80
"""The longest text in characters that gets bounds; ids of change events are not longer."""
_MANY_ROWS = 20_000
_SAMPLE_ROWS = 2_000
_EPOCH = datetime(1970, 1, 1)
_WHOLE_NUMBERS = 2**53

UPLOADS = Uploads()
"""The uploads of this process; a worker's task waits for them before it returns."""


class AbandonedError(Exception):
    """An error for a task whose job was cancelled or has failed, so that its files are unwanted."""


class Written:
    """The files of one task, for removal: Spark drops a task long before its process notices."""

    def __init__(self) -> None:
        self._ticket: str | None = None
        self._paths: list[str] = []

    def begin(self, ticket: str | None) -> None:
        """Begin a task; it is wanted while the file `ticket` exists, or always if that is empty."""
        self._ticket, self._paths = ticket, []

    def end(self) -> None:
        """End the task: files that are written from here on are not tracked."""
        self.begin(None)

    def add(self, path: str) -> None:
        """Register a file before it is written; raise AbandonedError if the task is unwanted."""
        if self._ticket is not None:
            self.check()
            self._paths.append(path)

    def check(self) -> None:
        """Raise AbandonedError if the ticket is gone; the driver then removes the files so far."""
        if self._ticket and not os.path.exists(self._ticket):
            raise AbandonedError(os.path.basename(self._ticket))

    def take_back(self) -> None:
        """Delete the files of the task."""
        UPLOADS.forget()
        for path in self._paths:
            with suppress(OSError):
                folder, _, name = path.rpartition("/")
                at(folder).remove(name)
        self.end()


WRITTEN = Written()
"""The files of the current task of this process."""


def write_file(
    table: pa.Table,
    folder: str,
    name: str,
    *,
    partition_values: Mapping[str, str | None] | None = None,
    first_offset: int = -1,
    last_offset: int = -1,
    schema_ids: Sequence[int] = (),
    key: Sequence[str] = (),
) -> StagedFile:
    """Write rows below a table's folder, with the bounds by which a reader may skip the file.

    Columns of the key always get bounds, wherever they stand.
    """
    if table.num_rows < _MANY_ROWS:
        # Writing pieces of a few rows costs more than joining them first.
        table = table.combine_chunks()
    size, crc = _write(table, f"{folder}/{name}")
    return StagedFile(
        path=name,
        size=size,
        rows=table.num_rows,
        stats=statistics(table, key=key),
        partition_values=dict(partition_values or {}),
        first_offset=first_offset,
        last_offset=last_offset,
        schema_ids=tuple(sorted(set(schema_ids))),
        checksum=crc,
    )


def _write(table: pa.Table, path: str) -> tuple[int, str]:
    """Write the file; return its size and its checksum."""
    large = table.num_rows >= _MANY_ROWS
    # A small file is one row group: readers skip it by the statistics in the table's log, so
    # statistics inside the file and better compression would cost more than they save.
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        compression="zstd" if large else "snappy",
        compression_level=1 if large else None,
        use_dictionary=_repeating_columns(table) if large else False,
        write_statistics=large,
        store_schema=False,
        write_page_index=False,
    )
    content = sink.getvalue()
    crc = spelled(checksum(content))
    WRITTEN.add(path)
    if is_remote(path):
        UPLOADS.put(path, content)
        return len(content), crc
    try:
        file = open(path, "wb")
    except FileNotFoundError:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "wb")
    with file:
        file.write(content)
    return len(content), crc


def _repeating_columns(table: pa.Table) -> list[str]:
    """Return the paths of columns with repeated values: Parquet writes those with a dictionary.

    For other columns a dictionary is begun and given up, which costs a third of the time and of the
    size of a file of change data.
    """
    rows = table.slice(0, _SAMPLE_ROWS).combine_chunks()
    return [
        path
        for name, column in zip(table.column_names, rows.columns, strict=True)
        for chunk in column.chunks
        for path in _repeating_in(chunk, name)
    ]


def _repeating_in(values: pa.Array, path: str) -> Iterator[str]:
    """Yield the paths of a column's leaves with repeated values, judged by a sample of rows."""
    type_ = values.type
    if pa.types.is_struct(type_):
        for field, child in zip(type_, values.flatten(), strict=True):
            yield from _repeating_in(child, f"{path}.{field.name}")
    elif pa.types.is_map(type_):
        yield from _repeating_in(values.keys, f"{path}.key_value.key")
        yield from _repeating_in(values.items, f"{path}.key_value.value")
    elif pa.types.is_list(type_):
        yield from _repeating_in(values.flatten(), f"{path}.list.element")
    elif not pa.types.is_nested(type_) and 2 * len(values.unique()) <= len(values):
        yield path


def statistics(table: pa.Table, *, key: Sequence[str] = ()) -> str:
    """Return row count, and bounds and null counts of the leading flat columns, as Delta's JSON."""
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    numbers: list[tuple[pa.Field, np.ndarray[Any, Any]]] = []
    wide = table.num_columns > _STATISTICS_COLUMNS
    for index, (field, column) in enumerate(zip(table.schema, table.columns, strict=True)):
        # The coordinates of a record are the last columns; searches for a record need their bounds.
        needed = field.name.startswith("_") or field.name in key
        if wide and index >= _STATISTICS_COLUMNS and not needed:
            continue
        if pa.types.is_nested(field.type):
            continue
        nulls[field.name] = column.null_count
        if not _has_bounds(field.type) or column.null_count == len(column):
            continue
        if _is_number(field.type) and column.num_chunks == 1 and not column.null_count:
            numbers.append((field, column.chunk(0).to_numpy().astype(np.int64, copy=False)))
            continue
        low, high = _bounds(column)
        if low is not None and high is not None:
            lowest[field.name], highest[field.name] = low, high
    for field, low, high in _bounds_of_numbers(numbers):
        lowest[field.name], highest[field.name] = low, high
    counts = {
        "numRecords": table.num_rows,
        "minValues": lowest,
        "maxValues": highest,
        "nullCount": nulls,
    }
    # deltalake 1.6 misreads escaped characters above U+1FFFF.
    return compact(counts, escaped=False)


def _bounds_of_numbers(
    columns: Sequence[tuple[pa.Field, np.ndarray[Any, Any]]],
) -> Iterator[tuple[pa.Field, Any, Any]]:
    """Yield the bounds of all number columns, computed at once: a call for each costs too much."""
    if not columns:
        return
    values = np.stack([values for _, values in columns])
    lows, highs = values.min(axis=1).tolist(), values.max(axis=1).tolist()
    for (field, _), low, high in zip(columns, lows, highs, strict=True):
        if pa.types.is_timestamp(field.type):
            low, high = _moment(low), _moment(high)
            if low is None or high is None:
                continue
        yield field, low, high


def _moment(microseconds: int) -> str | None:
    try:
        text: str | None = _json(_EPOCH + timedelta(microseconds=microseconds))
    except OverflowError:
        # Python's years end at 9999.
        return None
    return text


def _bounds(column: pa.ChunkedArray) -> tuple[Any, Any]:
    ends = pc.min_max(column)
    try:
        return _json(ends["min"].as_py()), _json(ends["max"].as_py())
    except (OverflowError, ValueError):
        # Python's years end at 9999.
        return None, None


def _is_number(type_: pa.DataType) -> bool:
    """Return whether values are integers, or timestamps as integers, of 64 bits with a sign."""
    if pa.types.is_timestamp(type_):
        return bool(type_.unit == "us")
    return bool(pa.types.is_integer(type_) and type_ != pa.uint64())


def _has_bounds(type_: pa.DataType) -> bool:
    """Return whether a type gets bounds.

    Floating point gets none: readers place NaN differently.
    """
    return bool(
        pa.types.is_integer(type_)
        or pa.types.is_string(type_)
        or pa.types.is_timestamp(type_)
        or pa.types.is_date(type_)
        or pa.types.is_boolean(type_)
        or (pa.types.is_decimal(type_) and type_.scale == 0)
    )


def _json(value: Any) -> Any:
    """Return a bound as a JSON value; None if it cannot be written exactly."""
    match value:
        case bool() | int():
            return value
        case str():
            return value if len(value) <= _LONGEST_TEXT else None
        case datetime():
            if value.year < 1000:
                return None
            return f"{value.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
        case date():
            return value.isoformat()
        case Decimal():
            # Some readers convert a larger number to floating point.
            return int(value) if abs(value) < _WHOLE_NUMBERS else None
    return None


# Rows of an older file in the table's current columns: missing columns are null, narrow types
# become wide.


def conform(table: pa.Table, schema: pa.Schema, *, rows: int, lenient: bool = False) -> pa.Table:
    """Return the table with exactly the columns of `schema`, in its order and of its types.

    Raises ColumnConflictError where values would be lost; if `lenient`, such values become null.
    """
    have = set(table.column_names)
    columns = [
        _column(table.column(field.name), field, lenient=lenient)
        if field.name in have
        else pa.nulls(rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema) if columns else table.select([])


def _column(column: pa.ChunkedArray, field: pa.Field, *, lenient: bool) -> pa.ChunkedArray:
    if column.type == field.type:
        return column
    if fits(column.type, field.type):
        source, target = pa.schema([(field.name, column.type)]), pa.schema([field])
        fill = (Fill(field.name, field.name, field.type),)
        batches = pa.table([column], schema=source).to_batches()
        return pa.chunked_array(
            [align(batch, fill, target).column(0) for batch in batches], field.type
        )
    try:
        return column.cast(field.type)
    except pa.ArrowException as error:
        if not lenient:
            raise ColumnConflictError(field.name, str(field.type), str(column.type)) from error
    values = [_cast(value, field.type) for value in column]
    return pa.chunked_array([pa.array(values, field.type)])


def _cast(value: pa.Scalar, type_: pa.DataType) -> object:
    """Return a value in another type; None if the type cannot hold it."""
    try:
        return value.cast(type_).as_py()
    except pa.ArrowException:
        return None


_WHOLE_BYTES = 16 * 2**20


def opened(
    store: Store, name: str, *, size: int | None = None, expected: str | None = None
) -> pa.NativeFile:
    """Open a file for reading in parts; a file in a bucket is read whole unless it is large.

    Each part of a file in a bucket would be a request. If a checksum is `expected`, all bytes are
    compared with it first. Raises DamagedFileError.
    """
    large = size is None or size > _WHOLE_BYTES
    if expected is not None and size is not None and large:
        damage = damage_in(store, name, size=size, expected=expected)
        if damage is not None:
            raise damaged(store.address, name, damage)
    if (store.asks_for_free and (expected is None or large)) or (size is not None and large):
        return store.open(name)
    data = store.read(name)
    if expected is not None and (actual := spelled(checksum(data))) != expected:
        raise damaged(store.address, name, differs(actual, expected))
    return pa.BufferReader(data)


def read_file(
    address: str,
    schema: pa.Schema,
    *,
    lenient: bool = False,
    size: int | None = None,
    expected: str | None = None,
) -> pa.Table:
    """Read a Parquet file with exactly the columns of a schema; missing columns are null.

    Raises DamagedFileError, and UnsupportedTypeError for values that would be misread.
    """
    folder, _, file_name = address.rpartition("/")
    store = at(folder)
    with (
        reading(store, file_name, size=size, expected=expected),
        _parquet(store, file_name, size=size, expected=expected) as file,
    ):
        have = set(file.schema_arrow.names)
        names = [name for name in schema.names if name in have]
        threads = size is None or size > _WHOLE_BYTES
        rows, count = file.read(columns=names, use_threads=threads), file.metadata.num_rows
    # A name with a dot in it also selects fields of other columns.
    return conform(rows.select(names), schema, rows=count, lenient=lenient)


_PIECE_ROWS = 65_536


def read_pieces(
    store: Store,
    name: str,
    schema: pa.Schema,
    *,
    size: int,
    lenient: bool = False,
    expected: str | None = None,
) -> Iterator[pa.Table]:
    """Read a file as `read_file` does, but piece by piece: the file may be larger than memory."""
    with _parquet(store, name, size=size, expected=expected) as file:
        have = set(file.schema_arrow.names)
        names = [name for name in schema.names if name in have]
        threads = size > _WHOLE_BYTES
        batches = file.iter_batches(_PIECE_ROWS, columns=names, use_threads=threads)
        while True:
            with reading(store, name, size=size, expected=expected):
                batch = next(batches, None)
            if batch is None:
                return
            rows = pa.Table.from_batches([batch])
            yield conform(rows.select(names), schema, rows=batch.num_rows, lenient=lenient)


INT96_UNIT = "us"
"""The unit of Spark's old timestamps; nanoseconds, Arrow's default, end in the year 2262."""
_OLD_CALENDAR = {b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"}


def _parquet(store: Store, name: str, *, size: int | None, expected: str | None) -> pq.ParquetFile:
    """Open a file of a table, which another program may have written."""
    with reading(store, name, size=size, expected=expected):
        content = opened(store, name, size=size, expected=expected)
        file = pq.ParquetFile(content, coerce_int96_timestamp_unit=INT96_UNIT)
    if _OLD_CALENDAR & {*(file.metadata.metadata or ())}:
        raise UnsupportedTypeError("its dates before 1582 are in Spark's old calendar")
    return file
