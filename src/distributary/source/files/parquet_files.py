"""Parquet files in which each row is an event; events are given as JSON, as rows have no bytes."""

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

from distributary.decode.change.json_rows import carried_types
from distributary.delta.parquet import INT96_UNIT
from distributary.errors import ErrorCode
from distributary.registry.frames import read_varint, read_zigzag
from distributary.source.files.avro_codecs import MOST_BLOCK_BYTES
from distributary.source.files.file_bytes import (
    BYTES_PER_BATCH,
    MOST_LETTER_BYTES,
    Fault,
    FileEvents,
    FileFaultError,
    parsed_events,
    typed_events,
)

# The sizes of a Parquet file's pages by their headers, before anything is unpacked.
# The sizes in the footer are not verified by readers, which unpack each page to the size that its
# own header names. A header is in Thrift's compact protocol, of which only the needed part is read
# here.

_HEADER_BYTES = 1024
_MOST_HEADER_BYTES = 16 * 1024 * 1024
_MOST_LEVELS = 10
_DICTIONARY = 2
_UNPACKED, _PACKED = 2, 3
_VALUES = {5: "data", 7: "dictionary", 8: "data, second version"}
"""The fields of a header that are headers themselves; the first field of each is a count of
values."""


@dataclass(slots=True)
class Pages:
    """The sizes of a column's pages in one row group."""

    bytes: int = 0
    """The unpacked bytes of all pages."""
    largest: int = 0
    """The unpacked bytes of the largest page."""
    dictionary: int = 0
    """The unpacked bytes of the dictionary page."""
    values: int = 0


def pages_of(file: BinaryIO, chunk: Any) -> Pages:
    """Read the sizes of a column's pages; raise ValueError if they are invalid."""
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
    """Read the numbers in the header that begins here, by their path, and the header's size."""
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
    """Collect the numbers of a struct and of its inner structs; return the position after it."""
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
    # The headers of pages have no lists.
    raise ValueError("the header of a page has a field of an invalid type")


_MAGIC = b"PAR1"
_MOST_ROWS = 4096
_MOST_FOOTER_BYTES = 32 * 1024 * 1024
_MOST_COLUMNS = 20_000
_MOST_ITEMS = 16 * 1024 * 1024
"""The largest number of items of one column in the lists of a row group: one row could have all of
them."""
_MOST_TEXT_BYTES = 64 * 1024 * 1024
_NO_COUNT = "Not yet implemented"
"""The library's message for encodings that it can only copy."""


Rows = Callable[[pa.RecordBatch], FileEvents]


def read_parquet(
    file: BinaryIO, wait: Callable[[], bool], most: int, rows: Rows
) -> Iterator[FileEvents | Fault]:
    """Read the rows of a file; while it is incomplete, `wait` decides whether to check again.

    A row group of more than `most` bytes is not read. `rows` makes events of a batch.
    """
    # The footer is written last: without it the file is incomplete.
    while not (whole := _tail(file)[0]) and wait():
        pass
    try:
        if (footer := _tail(file)[1]) > _MOST_FOOTER_BYTES:
            raise _LargeError(f"the footer has {footer} bytes")
        with pq.ParquetFile(file, coerce_int96_timestamp_unit=INT96_UNIT) as parquet:
            for batch in _batches(file, parquet, most):
                for piece in _pieces(batch):
                    yield _too_long(piece) or rows(piece)
    except (MemoryError, FileFaultError):
        raise
    except _LargeError as error:
        reason = f"Parquet: {error}"
        raise FileFaultError(ErrorCode.FILE_TOO_LARGE, reason, beginning(file)) from error
    except (OSError, ValueError, ArithmeticError, RecursionError, pa.ArrowException) as error:
        # If the store is at fault, and not the file, this fails too.
        data = beginning(file)
        cut_short = data.startswith(_MAGIC) and not whole
        code = ErrorCode.FILE_TRUNCATED if cut_short else ErrorCode.FILE_CORRUPT
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise FileFaultError(code, f"Parquet: {reason}", data) from error


def beginning(file: BinaryIO) -> bytes:
    """Return as much of a file's beginning as a dead letter holds."""
    file.seek(0)
    return file.read(MOST_LETTER_BYTES)


class _LargeError(Exception):
    """An error for a part of a file that unpacks to too many bytes."""


def _tail(file: BinaryIO) -> tuple[bool, int]:
    """Return whether a file is complete, and the length of its footer."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - len(_MAGIC) - 4))
    tail = file.read()
    length = int.from_bytes(tail[:4], "little")
    # A footer that is longer than its file is invalid, which the library reports.
    return tail.endswith(_MAGIC), length if length < size else 0


def _batches(file: BinaryIO, parquet: pq.ParquetFile, most: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows group by group: damage in one group does not hide those before it."""
    if parquet.metadata.num_columns > _MOST_COLUMNS:
        raise _LargeError(f"there are {parquet.metadata.num_columns} columns")
    for number in range(parquet.metadata.num_row_groups):
        yield from parquet.iter_batches(
            _rows_at_once(file, parquet.metadata, number, most), row_groups=[number]
        )


def _rows_at_once(file: BinaryIO, metadata: pq.FileMetaData, number: int, most: int) -> int:
    """Return how many rows of a group can be unpacked together."""
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
            # Each text may share its beginning with the text before it.
            longest += pages.largest
        elif chunk.physical_type == "FIXED_LEN_BYTE_ARRAY":
            longest += int(column.length)
        elif chunk.physical_type == "BYTE_ARRAY" and column.logical_type.type != "DECIMAL":
            # A text that is stored once may occur in every row.
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
        raise _LargeError("the length of texts in lists is unknown")
    # No text is longer than all of them together.
    return max(1, min(rows, _MOST_TEXT_BYTES // sum(texts.values())))


def _rows_of_texts(
    file: BinaryIO, number: int, texts: Mapping[str, int], in_lists: bool, rows: int, most: int
) -> int | None:
    """Return the rows to unpack together, by counting dictionary texts without copying them.

    None if they can only be copied.
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
                    raise _LargeError(f"dictionary texts expand to {total} bytes and more")
            if largest <= _MOST_TEXT_BYTES or rows == 1:
                return rows
            rows = max(1, min(rows // 2, rows * _MOST_TEXT_BYTES // largest))


def _all_short(first: pa.RecordBatch, texts: Mapping[str, int], rows: int) -> bool:
    """Return whether rows stay small even if each has the longest text of each column.

    True only if the first row comes with the whole dictionary, where a length precedes each text.
    """
    lengths = [pc.binary_length(array.dictionary) for array in _dictionaries(first.columns)]
    sizes = [(pc.sum(column).as_py() or 0) + 4 * len(column) for column in lengths]
    longest = sum(pc.max(column).as_py() or 0 for column in lengths)
    return sizes == list(texts.values()) and longest * rows <= _MOST_TEXT_BYTES


def _dictionaries(arrays: Iterable[pa.Array]) -> Iterator[pa.DictionaryArray]:
    """Yield dictionary columns, wherever they are nested."""
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
    """Cut a batch of long rows: as JSON, rows take several times as much memory."""
    if batch.nbytes <= BYTES_PER_BATCH or batch.num_rows < 2:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _pieces(batch.slice(0, half))
    yield from _pieces(batch.slice(half))


def _too_long(batch: pa.RecordBatch) -> Fault | None:
    if batch.num_rows == 1 and batch.nbytes > MOST_LETTER_BYTES:
        return Fault(ErrorCode.FILE_TOO_LARGE, f"a row has {batch.nbytes} bytes", None)
    return None


def json_events(batch: pa.RecordBatch) -> FileEvents:
    """Return rows as JSON, with the table and time that they name."""
    rows = batch.to_pylist()
    return parsed_events([as_json(row).encode() for row in rows], rows)


def carrying_events(batch: pa.RecordBatch) -> FileEvents:
    """Return rows as JSON that carry the types of their columns."""
    types = carried_types({field.name: _word(field.type) for field in batch.schema})
    return typed_events([as_json(row).encode() for row in batch.to_pylist()], types)


def _word(type_: pa.DataType) -> str:
    """Return the word for a type, of which `as_json` writes the values."""
    if pa.types.is_decimal(type_):
        return f"decimal({type_.precision},{type_.scale})"
    kinds = pa.types
    words = (
        (kinds.is_boolean, "bool"),
        (kinds.is_uint64, "uint64"),
        (kinds.is_integer, "int64"),
        (kinds.is_floating, "float64"),
        (kinds.is_date, "date"),
        (kinds.is_timestamp, "timestamp"),
        (kinds.is_binary, "hex"),
        (kinds.is_large_binary, "hex"),
        (kinds.is_fixed_size_binary, "hex"),
    )
    return next((word for test, word in words if test(type_)), "text")


def as_json(value: object) -> str:
    """Format a value of a row as JSON; decimals keep all digits, bytes are hex."""
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
