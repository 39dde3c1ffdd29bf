"""Checksums of rows that do not depend on the order of rows or on their files. Pure.

Each value is hashed to 64 bits. The hashes of a row are added and mixed, and the results of all
rows are added: rows may come in any order, columns in several passes, and a duplicate row counts
twice. It is no cryptographic signature: two different tables with one checksum can be constructed.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.events.log_events import Flags, combined, comparable
from distributary.decode.base import truths

Words = npt.NDArray[np.uint64]

_NULL = np.uint64(0x6E756C6C)
_BASE = np.uint64(0x9E3779B97F4A7C15)
_STEP = 0x100000001B3


class Checksum:
    """The checksum of a table's rows; columns are added one by one."""

    def __init__(self, rows: int) -> None:
        self._rows: Words = np.zeros(rows, np.uint64)

    def add(self, name: str, column: pa.ChunkedArray) -> None:
        """Add a column, which must have as many rows as the other columns."""
        seed = np.uint64(zlib.crc32(name.encode()))
        with np.errstate(over="ignore"):
            self._rows += _mixed(_words(comparable(column)) ^ _mixed(np.array([seed]))[0])

    def words(self) -> Words:
        """Return 64 bits for each row."""
        return _mixed(self._rows)

    def text(self) -> str:
        """Format the checksum of all rows as sixteen hexadecimal digits."""
        with np.errstate(over="ignore"):
            return f"{int(self.words().sum(dtype=np.uint64)):016x}"


def _words(column: pa.ChunkedArray) -> Words:
    """Return 64 bits for each value, the same for equal values."""
    array = combined(column)
    known = array.is_valid().to_numpy(zero_copy_only=False)
    words = np.full(len(array), _NULL)
    words[known] = _known_words(array.drop_null())
    return words


def _known_words(array: pa.Array) -> Words:
    kind = array.type
    words: Words
    if pa.types.is_boolean(kind):
        words = array.to_numpy(zero_copy_only=False).astype(np.uint64)
    elif pa.types.is_floating(kind):
        words = np.ascontiguousarray(array.cast(pa.float64()).to_numpy()).view(np.uint64)
    elif pa.types.is_unsigned_integer(kind):
        words = array.to_numpy().astype(np.uint64)
    elif pa.types.is_integer(kind):
        words = array.to_numpy().astype(np.int64).view(np.uint64)
    elif pa.types.is_temporal(kind):
        whole = array.view(pa.int64() if kind.bit_width == 64 else pa.int32())
        words = whole.to_numpy().astype(np.int64).view(np.uint64)
    else:
        text = array.cast(pa.string()) if pa.types.is_decimal(kind) else array
        words = _text_words(pc.cast(text, pa.large_binary()))
    return words


def _text_words(array: pa.LargeBinaryArray) -> Words:
    """Read bytes as digits of a number, modulo 2^64, all texts at once."""
    if not len(array):
        return np.zeros(0, np.uint64)
    _, offsets_buffer, data = array.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64)[array.offset : array.offset + len(array) + 1]
    lengths = np.diff(offsets)
    content = np.frombuffer(data or b"", np.uint8)[offsets[0] : offsets[-1]]
    with np.errstate(over="ignore"):
        powers = np.full(int(lengths.max(initial=0)) + 1, _STEP, np.uint64)
        powers[0] = 1
        powers = np.multiply.accumulate(powers)
        starts = offsets[:-1] - offsets[0]
        place = np.arange(len(content)) - np.repeat(starts, lengths)
        digits = (content.astype(np.uint64) + np.uint64(1)) * powers[place]
        sums = np.concatenate([[np.uint64(0)], np.add.accumulate(digits)])
        words: Words = sums[starts + lengths] - sums[starts]
        return words


def _mixed(words: Words) -> Words:
    """Mix the bits of words, so that each bit of a result depends on all bits of its word."""
    with np.errstate(over="ignore"):
        mixed = words + _BASE
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))


def hash_rows(rows: pa.Table, names: Sequence[str]) -> Words:
    """Return 64 bits for each row, made of some of its columns."""
    checksum = Checksum(rows.num_rows)
    for name in names:
        checksum.add(name, rows.column(name))
    return checksum.words()


def equal_values(one: pa.ChunkedArray, other: pa.ChunkedArray) -> Flags:
    """Mark the rows in which two columns have equal values; null equals null."""
    both = [comparable(each) for each in (one, other)]
    same = pc.equal(*both)
    if pa.types.is_floating(one.type):
        same = pc.or_(same, pc.and_(*map(pc.is_nan, both)))
    neither = pc.and_(*map(pc.is_null, both))
    return truths(pc.or_(same.fill_null(False), neither))
