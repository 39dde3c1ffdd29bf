"""Puts the parts of one decoded array together again."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

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

    def add(self, batch: pa.RecordBatch, positions: Positions) -> None:
        """Rows, and which payloads they come from."""
        self._parts.append((batch, positions))

    def fail(
        self, position: int, code: ErrorCode, reason: str, *, at_byte: int | None = None
    ) -> None:
        """A payload that is no row."""
        self._failures.append(Failure(int(position), code, reason, at_byte))

    def decoded(self) -> Decoded:
        """Everything, in the order of the payloads."""
        parts = [part for part in self._parts if len(part[1])]
        if len(parts) == 1:
            batch, positions = parts[0]
        elif parts:
            together = pa.Table.from_batches([batch for batch, _ in parts])
            positions = np.concatenate([positions for _, positions in parts])
            order = np.argsort(positions)
            positions = positions[order]
            batch = together.take(pa.array(order)).combine_chunks().to_batches()[0]
        else:
            batch, positions = (
                pa.RecordBatch.from_pylist([], schema=self._schema),
                np.array([], np.int64),
            )
        complete = len(positions) == self._count
        return Decoded(
            ok=batch,
            origin=None if complete else pa.array(positions, pa.int64()),
            failed=tuple(sorted(self._failures, key=lambda failure: failure.index)),
        )
