"""Several files become one, piece by piece, with the columns that the table has now."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from distributary.durable import sync
from distributary.merge.conform import conform
from distributary.publish.columns import UnsupportedTypeError, columns_of, fields_in
from distributary.stage.parquet import statistics
from distributary.stores.known import stay_inside
from distributary.upkeep.state import DataFile, TableState

Keep = Callable[[pa.Table], pa.Table]
"""The rows of a piece that stay."""

_READ_ROWS = 65_536
_GROUP_BYTES = 64 * 2**20
"""In memory: then what was read is written, so that a file of any size can be made."""
_MADE_BY_US = re.compile(r"-c[0-9a-f]{12}$")
_LONGEST_STEM = 150
_OLD_CALENDAR = {b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"}


class RowsLostError(Exception):
    """What would be written is not what was read: nothing is committed."""


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file that no commit names yet."""

    path: str
    size: int
    rows: int
    stats: str
    values: Mapping[str, str | None]
    modified_ms: int


@dataclass(frozen=True, slots=True)
class Written:
    """What became of some files."""

    file: NewFile | None
    """None: no row of theirs stays."""
    read: int


def stored_schema(state: TableState) -> pa.Schema:
    """The columns that are in a table's files: all but those that it is partitioned by."""
    columns = columns_of(fields_in(state.metadata["schemaString"]))
    apart = set(state.partition_columns)
    return pa.schema([pa.field(c.name, c.type) for c in columns if c.name not in apart])


def write_together(
    state: TableState, files: Sequence[DataFile], schema: pa.Schema, *, keep: Keep | None = None
) -> Written:
    """Write the rows of files, in their order, to one file; on disk for good when it returns."""
    stay_inside(state.folder, *(f"{state.folder}/{file.path}" for file in files))
    path = name_after(files[0].path)
    target = _Target(f"{state.folder}/{path}", schema)
    read = 0
    try:
        for file in files:
            rows = 0
            for piece in _pieces(f"{state.folder}/{file.path}", schema):
                rows += piece.num_rows
                target.add(piece if keep is None else keep(piece))
            _check(file, rows)
            read += rows
        rows, size = target.close()
        if keep is None and rows != read:
            raise RowsLostError(f"{read} rows were read, {rows} written")
    except BaseException:
        target.drop()
        raise
    if not rows:
        target.drop()
        return Written(None, read)
    # it stands where the files stood among the others that are sorted by their times
    modified = max(file.modified_ms for file in files)
    new = NewFile(path, size, rows, target.statistics(), files[0].values, modified)
    return Written(new, read)


def name_after(path: str) -> str:
    """A new name beside an old one that sorts like it, and begins like it.

    How names begin tells files of a history apart, and how they sort is the order of a log.
    """
    folder, slash, name = path.rpartition("/")
    stem = _MADE_BY_US.sub("", name.removesuffix(".parquet"))[:_LONGEST_STEM]
    return f"{folder}{slash}{stem}-c{uuid.uuid4().hex[:12]}.parquet"


def _pieces(path: str, schema: pa.Schema) -> Iterator[pa.Table]:
    # Spark's old kind of timestamp would be read in nanoseconds, which end in the year 2262
    with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
        if _OLD_CALENDAR & {*(file.metadata.metadata or ())}:
            raise UnsupportedTypeError("its days before 1582 are counted by Spark's old calendar")
        have = set(file.schema_arrow.names)
        names = [name for name in schema.names if name in have]
        for batch in file.iter_batches(batch_size=_READ_ROWS):
            rows = pa.Table.from_batches([batch])
            yield conform(rows.select(names), schema, rows=batch.num_rows)


def _check(file: DataFile, rows: int) -> None:
    told = file.told().get("numRecords")
    if isinstance(told, int) and told != rows:
        raise RowsLostError(f"{file.path} has {rows} rows; by the log it should have {told}")


class _Target:
    """A Parquet file that is being written, and the bounds of what is in it."""

    def __init__(self, path: str, schema: pa.Schema) -> None:
        self._path = path
        self._schema = schema
        self._waiting: list[pa.Table] = []
        self._writer: pq.ParquetWriter | None = None
        self._told: list[dict[str, Any]] = []

    def add(self, rows: pa.Table) -> None:
        if rows.num_rows:
            self._waiting.append(rows)
        if sum(table.nbytes for table in self._waiting) >= _GROUP_BYTES:
            self._flush()

    def close(self) -> tuple[int, int]:
        """Rows and bytes of the file, which is complete now."""
        self._flush()
        if self._writer is None:
            return 0, 0
        self._writer.close()
        handle = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(handle)
            size = os.fstat(handle).st_size
        finally:
            os.close(handle)
        sync(os.path.dirname(self._path))
        return sum(told["numRecords"] for told in self._told), size

    def drop(self) -> None:
        if self._writer is not None:
            if self._writer.is_open:
                self._writer.close()
            os.unlink(self._path)
            self._writer = None

    def statistics(self) -> str:
        # deltalake 1.6 takes an escaped character from above U+1FFFF for another one
        return json.dumps(joined(self._told), separators=(",", ":"), ensure_ascii=False)

    def _flush(self) -> None:
        if not self._waiting:
            return
        rows = pa.concat_tables(self._waiting)
        self._waiting = []
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._path,
                self._schema,
                compression="zstd",
                compression_level=1,
                write_statistics=_bounded(self._schema),
                store_schema=False,
            )
        self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        self._told.append(json.loads(statistics(rows)))


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
