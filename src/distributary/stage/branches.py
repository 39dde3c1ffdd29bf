"""Which branch of a union an Avro datum is: the number in front of it, as a zigzag varint."""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

_LONGEST_VARINT = 10


def branches(payloads: pa.BinaryArray) -> list[str]:
    """The branch of each datum as text; `?` where there is no number."""
    starts = pc.binary_slice(payloads, 0, 1).to_pylist()
    # more than 64 branches are rare: nearly always the first byte is the whole number
    return [
        _branch(start if start < b"\x80" else payloads[row].as_py()[:_LONGEST_VARINT])
        for row, start in enumerate(starts)
    ]


@lru_cache(maxsize=1024)
def _branch(start: bytes) -> str:
    number = 0
    for step, byte in enumerate(start):
        number |= (byte & 0x7F) << 7 * step
        if byte < 0x80:
            return str((number >> 1) ^ -(number & 1))
    return "?"
