"""The seam that every format implements."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds

from distributary.decode.json.text import RefusedTextError
from distributary.errors import ErrorCode
from distributary.model.deadletter import Decoded, Failure
from distributary.model.table import Column

# Puts the parts of one decoded array together again.

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


# How large payloads become as columns, told before any of them is decoded.
#
# An item of a list may take one byte of a payload, and as a row of a hundred columns a thousand
# bytes of memory. A schema tells how bad it can be for each byte; most payloads are too short to
# matter. The others are looked at: quickly for more items than there can be, and where that is
# too much, item by item until the limit is reached. Nothing here takes memory by what a payload
# says.

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


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """What a decoder refuses, so that one record cannot hurt the others."""

    max_payload_bytes: int = 16 * 1024 * 1024
    max_decoded_bytes: int = 128 * 1024 * 1024
    """Of the columns that one payload becomes, estimated before it is decoded."""
    max_depth: int = 100
    """Nesting of messages in one payload, as the official runtimes limit it."""
    recursion_depth: int = 3
    """How often a message may contain itself as columns; what lies deeper is kept as JSON text."""
    drop_unknown_fields: bool = False
    """Protobuf: fields that the schema does not have are left out, and only counted."""
    raw_bytes: bool = False
    """Avro: a payload that is bytes at the top comes as it is, without its length before it."""


class HasColumns(Protocol):
    """What is known of a decoder by those who only want to know where its columns go."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """The lake columns that this writer schema gives, in the schema's order."""
        ...


class Decoder(HasColumns, Protocol):
    """Decodes payloads of one writer schema. Built once per schema and process, then reused."""

    @property
    def expansion(self) -> Expansion:
        """How large payloads become; what is decoded at once should be one of its slices."""
        ...

    def decode(self, payloads: pa.BinaryArray) -> Decoded:
        """Decode an array without nulls. Never raises for what a payload contains."""
        ...
