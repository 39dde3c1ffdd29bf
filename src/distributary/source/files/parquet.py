"""Parquet files, in which a row is an event: given as JSON, because no row has bytes of its own."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from distributary.delta.parquet import INT96_UNIT
from distributary.errors import ErrorCode
from distributary.registry.wire import read_varint, read_zigzag
from distributary.source.files.avro import MOST_BLOCK_BYTES
from distributary.source.files.bytes import (
    BYTES_PER_BATCH,
    MOST_LETTER_BYTES,
    Events,
    Fault,
    FileFaultError,
    parsed_events,
)

# The pages of a Parquet file by their headers: what they unpack to, before anything is unpacked.
#
# What the footer says about sizes is not checked by anybody; a reader unpacks the pages, each of
# the size that its own header names. A header is Thrift's compact protocol, of which this reads
# as much as it needs.

_HEADER_BYTES = 1024
_MOST_HEADER_BYTES = 16 * 1024 * 1024
_MOST_LEVELS = 10
_DICTIONARY = 2
_UNPACKED, _PACKED = 2, 3
_VALUES = {5: "data", 7: "dictionary", 8: "data, second version"}
"""Fields of a header that are headers of their own; the first field of each counts values."""


@dataclass(slots=True)
class Pages:
    """What the pages of a column hold, in one group of rows."""

    bytes: int = 0
    """Unpacked, all together."""
    largest: int = 0
    """Unpacked, the largest of them."""
    dictionary: int = 0
    """Unpacked, the one with the values that others point to."""
    values: int = 0


def pages_of(file: BinaryIO, chunk: Any) -> Pages:
    """The pages of a column; ValueError where they make no sense."""
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        start = min(start, chunk.dictionary_page_offset)
    end = start + chunk.total_compressed_size
    pages = Pages()
    while pages.values < chunk.num_values and start < end:
        header, size = _header(file, start)
        unpacked, packed = header.get((_UNPACKED,), -1), header.get((_PACKED,), -1)
        if unpacked < 0 or packed < 0:
            raise ValueError("the header of a page has no sizes")
        if header.get((1,)) == _DICTIONARY:
            pages.dictionary = unpacked
        else:
            pages.values += max(0, *(header.get((field, 1), 0) for field in _VALUES))
        pages.bytes += unpacked
        pages.largest = max(pages.largest, unpacked)
        start += size + packed
    return pages


def _header(file: BinaryIO, start: int) -> tuple[dict[tuple[int, ...], int], int]:
    """The numbers in the header that begins here, by their path, and its size."""
    most = _HEADER_BYTES
    while True:
        file.seek(start)
        data = file.read(most)
        numbers: dict[tuple[int, ...], int] = {}
        try:
            return numbers, _struct(data, 0, (), numbers)
        except IndexError:
            if len(data) < most or most >= _MOST_HEADER_BYTES:
                raise ValueError("a page has no header") from None
            most *= 16


def _struct(data: bytes, at: int, path: tuple[int, ...], into: dict[tuple[int, ...], int]) -> int:
    """Note the numbers of a struct, and of those in it; gives what comes behind it."""
    field = 0
    while data[at]:
        kind, step = data[at] & 15, data[at] >> 4
        at += 1
        if step:
            field += step
        else:
            field, at = read_zigzag(data, at)
        at = _value(data, at, kind, (*path, field), into)
    return at + 1


def _value(
    data: bytes, at: int, kind: int, path: tuple[int, ...], into: dict[tuple[int, ...], int]
) -> int:
    if len(path) > _MOST_LEVELS:
        raise ValueError("the header of a page nests too deep")
    match kind:
        case 1 | 2:
            return at
        case 3:
            return at + 1
        case 4 | 5 | 6:
            into[path], at = read_zigzag(data, at)
            return at
        case 7:
            return at + 8
        case 8:
            size, at = read_varint(data, at)
            return at + size
        case 12:
            return _struct(data, at, path, into)
    # the headers of pages have no lists
    raise ValueError("the header of a page has a field of a kind that it cannot have")


_MAGIC = b"PAR1"
_MOST_ROWS = 4096
_MOST_FOOTER_BYTES = 32 * 1024 * 1024
_MOST_COLUMNS = 20_000
_MOST_ITEMS = 16 * 1024 * 1024
"""Of one column, in the lists of a group of rows: all of them could be those of one row."""
_MOST_TEXT_BYTES = 64 * 1024 * 1024
_NO_COUNT = "Not yet implemented"
"""What the library says of encodings that it can only copy."""


def read_parquet(file: BinaryIO, wait: Callable[[], bool], most: int) -> Iterator[Events | Fault]:
    """The rows of a file; while it is not whole and `wait` says so, it may become whole.

    A group of rows that has more than `most` bytes is not begun.
    """
    # the footer is written last: without it the file is only begun
    while not (whole := _tail(file)[0]) and wait():
        pass
    try:
        if (footer := _tail(file)[1]) > _MOST_FOOTER_BYTES:
            raise _LargeError(f"the footer has {footer} bytes")
        with pq.ParquetFile(file, coerce_int96_timestamp_unit=INT96_UNIT) as parquet:
            for batch in _batches(file, parquet, most):
                yield from map(_events, _pieces(batch))
    except MemoryError:
        raise
    except _LargeError as error:
        reason = f"Parquet: {error}"
        raise FileFaultError(ErrorCode.FILE_TOO_LARGE, reason, beginning(file)) from error
    except (OSError, ValueError, ArithmeticError, RecursionError, pa.ArrowException) as error:
        # where the store is at fault, and not the file, this fails too
        data = beginning(file)
        begun = data.startswith(_MAGIC) and not whole
        code = ErrorCode.FILE_TRUNCATED if begun else ErrorCode.FILE_CORRUPT
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise FileFaultError(code, f"Parquet: {reason}", data) from error


def beginning(file: BinaryIO) -> bytes:
    """As much of a file as a dead letter holds."""
    file.seek(0)
    return file.read(MOST_LETTER_BYTES)


class _LargeError(Exception):
    """A part of the file unpacks to more than can be held."""


def _tail(file: BinaryIO) -> tuple[bool, int]:
    """Whether a file is whole, and how long its footer is."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - len(_MAGIC) - 4))
    tail = file.read()
    length = int.from_bytes(tail[:4], "little")
    # one that is longer than its file is no footer at all, which the library says
    return tail.endswith(_MAGIC), length if length < size else 0


def _batches(file: BinaryIO, parquet: pq.ParquetFile, most: int) -> Iterator[pa.RecordBatch]:
    """One group of rows after the other: damage in one does not hide those before it."""
    if parquet.metadata.num_columns > _MOST_COLUMNS:
        raise _LargeError(f"there are {parquet.metadata.num_columns} columns")
    for number in range(parquet.metadata.num_row_groups):
        yield from parquet.iter_batches(
            _rows_at_once(file, parquet.metadata, number, most), row_groups=[number]
        )


def _rows_at_once(file: BinaryIO, metadata: pq.FileMetaData, number: int, most: int) -> int:
    """How many rows of a group can be unpacked together."""
    group = metadata.row_group(number)
    size, longest, in_lists = 0, 0, False
    texts: dict[str, int] = {}
    paths: set[str] = set()
    for index in range(group.num_columns):
        chunk, column = group.column(index), metadata.schema.column(index)
        pages, listed = pages_of(file, chunk), column.max_repetition_level > 0
        size += pages.bytes
        paths.add(chunk.path_in_schema)
        if pages.largest > MOST_BLOCK_BYTES:
            raise _LargeError(f"a page unpacks to {pages.largest} bytes")
        if listed and pages.values > _MOST_ITEMS:
            raise _LargeError(f"lists have {pages.values} items")
        if "DELTA_BYTE_ARRAY" in chunk.encodings:
            # each text may begin as the one before it does
            longest += pages.largest
        elif chunk.physical_type == "FIXED_LEN_BYTE_ARRAY":
            longest += int(column.length)
        elif chunk.physical_type == "BYTE_ARRAY" and column.logical_type.type != "DECIMAL":
            # a text that is stored once may stand in every row
            at_once = pages.values if listed else _MOST_ROWS
            if pages.dictionary * at_once > _MOST_TEXT_BYTES:
                texts[chunk.path_in_schema] = pages.dictionary
                in_lists |= listed
    if size > most:
        raise _LargeError(f"{group.num_rows} rows unpack to {size} bytes")
    rows = BYTES_PER_BATCH // max(1, size // max(1, group.num_rows), longest)
    rows = max(1, min(_MOST_ROWS, int(rows)))
    if not texts:
        return rows
    try:
        if len(paths) == group.num_columns:
            counted = _rows_of_texts(file, number, texts, in_lists, rows, most - size)
            if counted is not None:
                return counted
    except (OSError, pa.ArrowException) as error:
        if _NO_COUNT not in str(error):
            raise
    if in_lists:
        raise _LargeError("how long the texts in lists are cannot be known")
    # none is longer than all of them
    return max(1, min(rows, _MOST_TEXT_BYTES // sum(texts.values())))


def _rows_of_texts(
    file: BinaryIO, number: int, texts: Mapping[str, int], in_lists: bool, rows: int, most: int
) -> int | None:
    """The same for columns whose texts are stored once: they are counted without being copied.

    None where they can only be copied.
    """
    columns = list(texts)
    with pq.ParquetFile(file, read_dictionary=columns, arrow_extensions_enabled=False) as parquet:
        first = next(parquet.iter_batches(1, row_groups=[number], columns=columns), None)
        if first is None:
            return rows
        if len(list(_dictionaries(first.columns))) < len(columns):
            return None
        if not in_lists and _all_short(first, texts, rows):
            return rows
        while True:
            total, largest = 0, 0
            for batch in parquet.iter_batches(rows, row_groups=[number], columns=columns):
                size = sum(map(_text_bytes, _dictionaries(batch.columns)))
                total, largest = total + size, max(largest, size)
                if total > most or (rows == 1 and size > MOST_BLOCK_BYTES):
                    raise _LargeError(f"texts that are stored once become {total} bytes and more")
            if largest <= _MOST_TEXT_BYTES or rows == 1:
                return rows
            rows = max(1, min(rows // 2, rows * _MOST_TEXT_BYTES // largest))


def _all_short(first: pa.RecordBatch, texts: Mapping[str, int], rows: int) -> bool:
    """Whether rows stay small even if each has the longest of a column's texts.

    Only if the first row comes with all of them: a length stands before each.
    """
    lengths = [pc.binary_length(array.dictionary) for array in _dictionaries(first.columns)]
    sizes = [(pc.sum(each).as_py() or 0) + 4 * len(each) for each in lengths]
    longest = sum(pc.max(each).as_py() or 0 for each in lengths)
    return sizes == list(texts.values()) and longest * rows <= _MOST_TEXT_BYTES


def _dictionaries(arrays: Iterable[pa.Array]) -> Iterator[pa.DictionaryArray]:
    """Columns of texts, wherever they are nested."""
    for array in arrays:
        if isinstance(array, pa.DictionaryArray):
            yield array
        elif isinstance(array, pa.MapArray):
            yield from _dictionaries([array.keys, array.items])
        elif isinstance(array, pa.StructArray):
            yield from _dictionaries(array.flatten())
        elif pa.types.is_nested(array.type):
            yield from _dictionaries([array.flatten()])


def _text_bytes(array: pa.DictionaryArray) -> int:
    return pc.sum(pc.binary_length(array.dictionary).take(array.indices)).as_py() or 0


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Rows as JSON take several times as much: those that are long come a few at a time."""
    if batch.nbytes <= BYTES_PER_BATCH or batch.num_rows < 2:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _pieces(batch.slice(0, half))
    yield from _pieces(batch.slice(half))


def _events(batch: pa.RecordBatch) -> Events | Fault:
    if batch.num_rows == 1 and batch.nbytes > MOST_LETTER_BYTES:
        return Fault(ErrorCode.FILE_TOO_LARGE, f"a row has {batch.nbytes} bytes", None)
    rows = batch.to_pylist()
    return parsed_events([as_json(row).encode() for row in rows], rows)


def as_json(value: object) -> str:
    """A value of a row as JSON text; decimals are numbers of all their digits, bytes are hex."""
    match value:
        case None | bool() | int() | str():
            return json.dumps(value, ensure_ascii=False)
        case float():
            return json.dumps(value) if math.isfinite(value) else f'"{value}"'
        case Decimal():
            return f"{value:f}"
        case bytes():
            return f'"{value.hex()}"'
        case dict():
            inner = (f"{json.dumps(k, ensure_ascii=False)}:{as_json(v)}" for k, v in value.items())
            return "{" + ",".join(inner) + "}"
        case list():
            return "[" + ",".join(map(as_json, value)) + "]"
        case tuple():
            return as_json(list(value))
        case timedelta():
            return str(value // timedelta(microseconds=1))
        case datetime() | date() | time():
            return f'"{value.isoformat()}"'
    raise ValueError(f"a value of type {type(value).__name__} has no JSON")
