"""Which branch of a union an Avro datum is: the number in front of it, as a zigzag varint."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_LONGEST_VARINT = 10


def branch_marks(
    payloads: pa.BinaryArray,
    ids: npt.NDArray[np.int64],
    unions: frozenset[int],
    marks: pa.StringArray | None,
) -> pa.StringArray:
    """The branch of every payload whose schema is a union; the marks there were for the others."""
    chosen = np.flatnonzero(np.isin(ids, list(unions)))
    branches = ["" for _ in range(len(ids))] if marks is None else marks.to_pylist()
    starts = pc.binary_slice(payloads.take(pa.array(chosen)), 0, 1).to_pylist()
    for row, start in zip(chosen.tolist(), starts, strict=True):
        # more than 64 branches are rare: nearly always the first byte is the whole number
        whole = start if start < b"\x80" else payloads[row].as_py()[:_LONGEST_VARINT]
        branches[row] = _branch(whole)
    return pa.array(branches, pa.string())


@lru_cache(maxsize=1024)
def _branch(start: bytes) -> str:
    """The number as text; `?` where there is none."""
    number = 0
    for step, byte in enumerate(start):
        number |= (byte & 0x7F) << 7 * step
        if byte < 0x80:
            return str((number >> 1) ^ -(number & 1))
    return "?"
