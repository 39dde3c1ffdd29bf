"""The pages of a Parquet file by their headers: what they unpack to, before anything is unpacked.

What the footer says about sizes is not checked by anybody; a reader unpacks the pages, each of the
size that its own header names. A header is Thrift's compact protocol, of which this reads as much
as it needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, BinaryIO

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
            number, at = _number(data, at)
            field = number >> 1 ^ -(number & 1)
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
            number, at = _number(data, at)
            into[path] = number >> 1 ^ -(number & 1)
            return at
        case 7:
            return at + 8
        case 8:
            size, at = _number(data, at)
            return at + size
        case 12:
            return _struct(data, at, path, into)
    # the headers of pages have no lists
    raise ValueError("the header of a page has a field of a kind that it cannot have")


def _number(data: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number is longer than ten bytes")
