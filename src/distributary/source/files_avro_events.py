"""Events that were cut out of blocks of Avro data, put together as columns.

An event is given in the frame of a registry that names schemas by GUID, byte 1, the GUID, the data:
from here on nothing knows that it came out of a file. The GUID is made of the file's own schema.
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.source.files_events import (
    BYTES_PER_BATCH,
    EARLIEST_US,
    EVENTS_PER_BATCH,
    LATEST_US,
    Events,
    claim_of,
)
from distributary.source.files_slices import Slices

_GUID_FRAME = b"\x01"
_NOTHING = pa.scalar(b"", pa.binary())
_MOST_CLAIMS = 4096
_BYTES_AT_ONCE = 4 * 1024 * 1024
"""Blocks are small: what costs something each time is done for many of them together."""


class AvroEvents:
    """Gathers the events of a file's blocks."""

    def __init__(self, guid: UUID) -> None:
        self._frame = pa.scalar(_GUID_FRAME + guid.bytes, pa.binary())
        self._claims: dict[tuple[bytes, ...], bytes | None] = {}
        self._cuts: list[tuple[bytes, Slices]] = []
        self._size = 0
        self._count = 0

    @property
    def many(self) -> bool:
        """Whether enough wait to be taken."""
        return self._size > _BYTES_AT_ONCE or self._count >= EVENTS_PER_BATCH

    def add(self, block: bytes, cut: Slices) -> None:
        """Events of a block."""
        if cut.ends:
            data = block[cut.start : cut.end]
            self._cuts.append((data, cut))
            self._size += len(data)
            self._count += len(cut.ends)

    def take(self) -> Iterator[Events]:
        """Everything that was added, in portions."""
        cuts, self._cuts, self._size, self._count = self._cuts, [], 0, 0
        if not cuts:
            return
        data = b"".join(data for data, _ in cuts)
        starts = np.cumsum([0, *(len(data) for data, _ in cuts[:-1])])
        pairs = [(at - cut.start, cut) for at, (_, cut) in zip(starts, cuts, strict=True)]
        ends = np.concatenate([np.array(cut.ends, np.int64) + start for start, cut in pairs])
        offsets = np.concatenate([[0], ends]).astype(np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        values = pa.BinaryArray.from_buffers(pa.binary(), len(ends), buffers)
        claims = self._named([name for _, cut in cuts for name in cut.names])
        times = _times(data, pairs)
        start = 0
        while start < len(values):
            most = int(offsets[start]) + BYTES_PER_BATCH
            end = max(start + 1, int(np.searchsorted(offsets, most, side="right")) - 1)
            end = min(end, start + EVENTS_PER_BATCH)
            piece = slice(start, end)
            framed = pc.binary_join_element_wise(self._frame, values[piece], _NOTHING)
            yield Events(framed, claims[piece], times[piece])
            start = end

    def _named(self, names: list[tuple[bytes, ...]]) -> pa.BinaryArray:
        if len(self._claims) > _MOST_CLAIMS:
            self._claims.clear()
        codes: dict[tuple[bytes, ...], int] = {}
        numbers = [codes.setdefault(each, len(codes)) for each in names]
        for each in codes:
            if each not in self._claims:
                self._claims[each] = _claim(each)
        found = pa.array([self._claims[each] for each in codes], pa.binary())
        return found.take(pa.array(numbers, pa.int32()))


def _claim(names: tuple[bytes, ...]) -> bytes | None:
    try:
        return claim_of(*(name.decode() for name in names))
    except UnicodeDecodeError:
        return None


def _times(data: bytes, pairs: list[tuple[np.int64, Slices]]) -> pa.Int64Array:
    """The events' times in microseconds, decoded all at once."""
    at = np.concatenate([np.array(cut.times, np.int64) for _, cut in pairs])
    known = at >= 0
    at += np.repeat([start for start, _ in pairs], [len(cut.times) for _, cut in pairs])
    number = _numbers(np.frombuffer(data, np.uint8), np.where(known, at, 0))
    scale = 1 if pairs[0][1].time_micros else 1000
    known &= (number >= -(-EARLIEST_US // scale)) & (number <= LATEST_US // scale)
    return pa.array(np.where(known, number, 0) * scale, pa.int64(), mask=~known)


def _numbers(data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The numbers that begin at these positions."""
    value = np.zeros(len(at), np.uint64)
    going = np.ones(len(at), np.bool_)
    for step in range(10):
        byte = data[np.minimum(at + step, len(data) - 1)].astype(np.uint64)
        value |= np.where(going, byte & np.uint64(0x7F), np.uint64(0)) << np.uint64(7 * step)
        going &= byte > 0x7F
        if not going.any():
            break
    number: npt.NDArray[np.int64] = (value >> np.uint64(1)).astype(np.int64)
    sign: npt.NDArray[np.int64] = (value & np.uint64(1)).astype(np.int64)
    return number ^ -sign
