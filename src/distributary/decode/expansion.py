"""How large payloads become as columns, told before any of them is decoded.

An item of a list may take one byte of a payload, and as a row of a hundred columns a thousand bytes
of memory. A schema tells how bad it can be for each byte; most payloads are too short to matter.
The others are looked at: quickly for more items than there can be, and where that is too much, item
by item until the limit is reached. Nothing here takes memory by what a payload says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds

from distributary.decode.gather import Gathered, Positions, without
from distributary.decode.json_text import RefusedTextError
from distributary.errors import ErrorCode

SLICE_BYTES = 256 * 1024 * 1024
"""What is decoded at once becomes about so many bytes at most."""
TEXT = 16
"""Bytes that a text takes beside its characters."""
JSON_GROWTH = 6
"""Bytes that a byte can become in JSON text, where it has to be escaped."""
_VALUE = 8
"""Bytes of any other value: parsers have a pointer or a word for each, whatever columns need."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """What payloads of one schema become."""

    row: int
    """Bytes of the columns of one payload without any items."""
    factor: int
    """The most bytes that a byte of a payload becomes."""
    measure: Callable[[bytes, int], int]
    """The bytes of one payload; above a limit, any number that is above it. What is no JSON at all
    need not be counted, and may be refused as its decoder would."""

    def most(self, payloads: pa.BinaryArray) -> int:
        """The most bytes that payloads become together."""
        return self.row * len(payloads) + self.factor * int(payloads.nbytes)

    def slices(self, payloads: pa.BinaryArray, *, limit: int) -> Iterator[slice]:
        """Parts to decode one after the other, where each payload is below a limit."""
        if len(payloads) < 2 or self.most(payloads) <= SLICE_BYTES:
            yield slice(0, len(payloads))
            return
        sizes = self._most_each(payloads)
        ends = np.cumsum(np.minimum(sizes, limit))
        start, before = 0, 0
        while start < len(payloads):
            stop = max(start + 1, int(np.searchsorted(ends, before + SLICE_BYTES, side="right")))
            yield slice(start, stop)
            start, before = stop, int(ends[stop - 1])

    def small_enough(
        self, payloads: pa.BinaryArray, positions: Positions, limit: int, gathered: Gathered
    ) -> tuple[pa.BinaryArray, Positions]:
        """The payloads that become at most so many bytes; the others have failed."""
        if self.row + self.factor * payloads.nbytes <= limit:
            return payloads, positions
        large = []
        for index in np.flatnonzero(self._most_each(payloads) > limit).tolist():
            try:
                size = self.measure(payloads[index].as_py(), limit)
            except RefusedTextError as refused:
                large.append(index)
                gathered.fail(
                    positions[index], refused.code, refused.reason, at_byte=refused.position
                )
                continue
            if size > limit:
                large.append(index)
                reason = (
                    f"it would become {size} bytes of columns or more;"
                    f" limits.max_decoded_bytes is {limit}"
                )
                gathered.fail(positions[index], ErrorCode.PAYLOAD_EXPANDS, reason)
        return without(large, payloads, positions) if large else (payloads, positions)

    def _most_each(self, payloads: pa.BinaryArray) -> Positions:
        lengths = pc.binary_length(payloads).to_numpy().astype(np.int64)
        most: Positions = self.row + self.factor * lengths
        return most


def width(type_: pa.DataType) -> int:
    """Bytes of a value of a type, also of one that is null, without items and characters."""
    if kinds.is_struct(type_):
        return _VALUE + sum(width(field.type) for field in type_)
    if kinds.is_string(type_) or kinds.is_binary(type_) or kinds.is_decimal(type_):
        return TEXT
    return _VALUE
