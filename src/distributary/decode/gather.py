"""Puts the parts of one decoded array together again."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.errors import ErrorCode
from distributary.model.decoded import Decoded, Failure

Positions = npt.NDArray[np.int64]


class Gathered:
    """Rows and failures of an array of payloads, as they become known."""

    def __init__(self, schema: pa.Schema, count: int) -> None:
        self._schema = schema
        self._count = count
        self._parts: list[tuple[pa.RecordBatch, Positions]] = []
        self._failures: list[Failure] = []
        self._empty = 0
        self._unknown: list[int] = []

    def add(self, batch: pa.RecordBatch, positions: Positions, *, empty: int = 0) -> None:
        """Rows, and which payloads they come from; some payloads may give no row."""
        self._parts.append((batch, positions))
        self._empty += empty

    def fail(
        self, position: int, code: ErrorCode, reason: str, *, at_byte: int | None = None
    ) -> None:
        """A payload that is no row."""
        self._failures.append(Failure(int(position), code, reason, at_byte))

    def note_unknown(self, position: int) -> None:
        """A payload with fields that its schema does not have, and that no column is for."""
        self._unknown.append(int(position))

    def decoded(self) -> Decoded:
        """Everything, in the order of the payloads."""
        parts = [part for part in self._parts if len(part[1])]
        if len(parts) == 1:
            batch, positions = parts[0]
        elif parts:
            positions = np.concatenate([positions for _, positions in parts])
            # stable: rows of one payload keep their order
            order = np.argsort(positions, kind="stable")
            positions = positions[order]
            # as structs, because a batch without columns does not remember how many rows it has
            rows = pa.concat_arrays([batch.to_struct_array() for batch, _ in parts])
            batch = pa.RecordBatch.from_struct_array(rows.take(pa.array(order)))
        else:
            batch, positions = (
                pa.RecordBatch.from_pylist([], schema=self._schema),
                np.array([], np.int64),
            )
        return Decoded(
            ok=batch,
            origin=None if self._is_complete(positions) else pa.array(positions, pa.int64()),
            failed=tuple(sorted(self._failures, key=lambda failure: failure.index)),
            empty=self._empty,
            unknown=tuple(sorted(set(self._unknown) - {f.index for f in self._failures})),
        )

    def _is_complete(self, positions: Positions) -> bool:
        """Whether row i is payload i."""
        if len(positions) != self._count:
            return False
        # one row each, or payloads without rows and payloads with several
        return not self._empty and not self._failures


def without(
    indices: Collection[int], rows: pa.Array | pa.RecordBatch, positions: Positions
) -> tuple[Any, Positions]:
    """Rows and their positions, less those with these indices."""
    keep = np.ones(len(positions), np.bool_)
    keep[list(indices)] = False
    return rows.filter(pa.array(keep)), positions[keep]


def small_enough(
    array: pa.BinaryArray, limit: int, gathered: Gathered
) -> tuple[pa.BinaryArray, Positions]:
    """The payloads of at most so many bytes; the others have failed."""
    positions = np.arange(len(array), dtype=np.int64)
    if array.nbytes <= limit:
        return array, positions
    lengths = pc.binary_length(array).to_numpy()
    large = np.flatnonzero(lengths > limit).tolist()
    for index in large:
        reason = f"the payload has {lengths[index]} bytes, the limit is {limit}"
        gathered.fail(index, ErrorCode.PAYLOAD_TOO_LARGE, reason)
    return without(large, array, positions)
