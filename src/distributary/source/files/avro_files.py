"""Avro container files: each event as exactly its bytes in the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.errors import DecodeError, ErrorCode, InvalidSchemaError
from distributary.registry.record_schemas import guid_of
from distributary.source.files.avro_codecs import (
    CODECS,
    MOST_BLOCK_BYTES,
    TooLargeError,
    UnpackError,
    unpack,
)
from distributary.source.files.avro_slices import Slicer, Slices, slicer_for
from distributary.source.files.file_bytes import (
    BYTES_PER_BATCH,
    EARLIEST_US,
    EVENTS_PER_BATCH,
    LATEST_US,
    MOST_LETTER_BYTES,
    Bytes,
    Fault,
    FileEvents,
    FileFaultError,
    claim_of,
)

# The events that were cut out of blocks, as columns.
# An event is given in the frame of a registry that names schemas by GUID: byte 1, the GUID, the
# data. The steps after this do not know that it came from a file. The GUID is derived from the
# file's schema.

_GUID_FRAME = b"\x01"
_NOTHING = pa.scalar(b"", pa.binary())
_BYTES_AT_ONCE = 4 * 1024 * 1024
"""Bytes to collect before columns are built: blocks are small, and each build has a fixed cost."""


def in_frame(guid: UUID, values: pa.BinaryArray) -> pa.BinaryArray:
    """Return values with the frame that names their schema."""
    frame = pa.scalar(_GUID_FRAME + guid.bytes, pa.binary())
    return pc.binary_join_element_wise(frame, values, _NOTHING)


class AvroFileEvents:
    """A collector of the events of a file's blocks."""

    def __init__(self, guid: UUID) -> None:
        self._guid = guid
        self._cuts: list[tuple[bytes, Slices]] = []
        self._size = 0
        self._count = 0

    @property
    def many(self) -> bool:
        """Return whether enough events have been collected."""
        return self._size > _BYTES_AT_ONCE or self._count >= EVENTS_PER_BATCH

    def add(self, block: bytes, cut: Slices) -> None:
        """Add the events of a block."""
        if cut.ends:
            data = block[cut.start : cut.end]
            self._cuts.append((data, cut))
            self._size += len(data)
            self._count += len(cut.ends)

    def take(self) -> Iterator[FileEvents]:
        """Yield the collected events, in portions."""
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
        claims = _claims([name for _, cut in cuts for name in cut.names])
        times = _times(data, pairs)
        start = 0
        while start < len(values):
            most = int(offsets[start]) + BYTES_PER_BATCH
            end = max(start + 1, int(np.searchsorted(offsets, most, side="right")) - 1)
            end = min(end, start + EVENTS_PER_BATCH)
            piece = slice(start, end)
            yield FileEvents(in_frame(self._guid, values[piece]), claims[piece], times[piece])
            start = end


def _claims(names: list[tuple[bytes, ...]]) -> pa.BinaryArray:
    codes: dict[tuple[bytes, ...], int] = {}
    numbers = [codes.setdefault(name, len(codes)) for name in names]
    return pa.array(map(_claim, codes), pa.binary()).take(pa.array(numbers, pa.int32()))


def _claim(names: tuple[bytes, ...]) -> bytes | None:
    try:
        return claim_of(*(name.decode() for name in names))
    except UnicodeDecodeError:
        return None


def _times(data: bytes, pairs: list[tuple[np.int64, Slices]]) -> pa.Int64Array:
    """Return the events' times in microseconds, decoded all at once."""
    at = np.concatenate([np.array(cut.times, np.int64) for _, cut in pairs])
    known = at >= 0
    at += np.repeat([start for start, _ in pairs], [len(cut.times) for _, cut in pairs])
    number = _numbers(np.frombuffer(data, np.uint8), np.where(known, at, 0))
    scale = 1 if pairs[0][1].time_micros else 1000
    known &= (number >= -(-EARLIEST_US // scale)) & (number <= LATEST_US // scale)
    return pa.array(np.where(known, number, 0) * scale, pa.int64(), mask=~known)


def _numbers(data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Decode the zigzag varints that begin at these positions."""
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


MAGIC = b"Obj\x01"

_SYNC_BYTES = 16
_MOST_LENGTH = 1 << 31
_MOST_HEADER_BYTES = 4 * 1024 * 1024
"""The largest header, four times as long as the longest schema."""
_MOST_ENTRIES = 1000
_MOST_TINY_EVENTS = 1024 * 1024
_TINY_BYTES = 16
"""The bytes per event below which a block of very many events is refused: no row change is so
short."""


class _EndError(Exception):
    """An internal error for a file that ends inside of a structure."""


def read_avro(data: Bytes, keep: Callable[[bytes], None]) -> Iterator[FileEvents | Fault]:
    """Read the events of a file; call `keep` with its schema before the first of them."""
    schema, codec, sync = _whole_header(data)
    try:
        slicer = slicer_for(schema.decode())
    except (InvalidSchemaError, DecodeError, UnicodeDecodeError) as error:
        reason = getattr(error, "what", "the schema is not UTF-8")
        raise FileFaultError(ErrorCode.UNUSABLE_SCHEMA, reason, data.rest(0)) from error
    keep(schema)
    waiting = AvroFileEvents(guid_of(schema))
    try:
        for count, body in _blocks(data, sync):
            yield from _cut(count, body, codec, slicer, waiting)
    except FileFaultError:
        yield from waiting.take()
        raise
    yield from waiting.take()


def _cut(
    count: int, body: bytes, codec: str, slicer: Slicer, waiting: AvroFileEvents
) -> Iterator[FileEvents | Fault]:
    """Cut the events of a block; if they cannot be separated, yield the rest as a fault.

    The blocks after it are not lost: they begin where this block's size says that it ends.
    """
    fault, start = None, 0
    try:
        data = unpack(codec, body)
    except UnpackError as error:
        large = isinstance(error, TooLargeError)
        code = ErrorCode.FILE_TOO_LARGE if large else ErrorCode.FILE_CORRUPT
        fault = Fault(code, f"a block cannot be unpacked: {error}", _letter_part(body))
    else:
        if count > len(data):
            reason = "a block has more events than bytes"
            fault = Fault(ErrorCode.FILE_CORRUPT, reason, _letter_part(data))
        elif count > _MOST_TINY_EVENTS and count > len(data) // _TINY_BYTES:
            reason = f"a block has {count} events in {len(data)} bytes"
            fault = Fault(ErrorCode.FILE_TOO_LARGE, reason, _letter_part(body))
    while fault is None:
        some = min(count, EVENTS_PER_BATCH)
        count -= some
        cut = slicer(data, some, start=start, last=not count)
        start = cut.end
        waiting.add(data, cut)
        if cut.fault:
            fault = Fault(ErrorCode.FILE_CORRUPT, cut.fault, _letter_part(data[start:]))
        elif waiting.many:
            yield from waiting.take()
        if not count:
            break
    if fault is not None:
        yield from waiting.take()
        yield fault


def _letter_part(data: bytes) -> bytes:
    """Return as many bytes as a dead letter holds."""
    return data[:MOST_LETTER_BYTES]


def _blocks(data: Bytes, sync: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number of events and the bytes of each block."""
    position = data.position
    while True:
        try:
            block = _block(data, sync)
        except _EndError as error:
            if data.back(position):
                continue
            code, reason = ErrorCode.FILE_TRUNCATED, "the file ends inside of a block"
            raise FileFaultError(code, reason, data.rest(position)) from error
        if block is None:
            return
        yield block
        position = data.position


def _whole_header(data: Bytes) -> tuple[bytes, str, bytes]:
    """Read the header: the schema, the codec and the marker between blocks."""
    while True:
        try:
            return _header(data)
        except _EndError as error:
            if not data.back(0):
                reason = "the file ends inside of its header"
                raise FileFaultError(ErrorCode.FILE_TRUNCATED, reason, data.rest(0)) from error


def _header(data: Bytes) -> tuple[bytes, str, bytes]:
    magic = data.read(len(MAGIC))
    if not MAGIC.startswith(magic):
        raise _corrupt(data, "the file is not an Avro file")
    if len(magic) < len(MAGIC):
        raise _EndError
    entries: dict[bytes, bytes] = {}
    seen = 0
    while count := _long(data):
        if count < 0:
            count = -count
            _long(data)
        for _ in range(count):
            key = _counted(data)
            entries[key] = _counted(data)
            if (seen := seen + 1) > _MOST_ENTRIES:
                raise _large_header(data, f"{_MOST_ENTRIES} entries")
    codec = entries.get(b"avro.codec", b"null").decode("utf-8", "replace")
    if b"avro.schema" not in entries or codec not in CODECS:
        known_codec = codec in CODECS
        raise _corrupt(data, "the header has no schema" if known_codec else "the codec is unknown")
    return entries[b"avro.schema"], codec, _taken(data, _SYNC_BYTES)


def _block(data: Bytes, sync: bytes) -> tuple[int, bytes] | None:
    """Read the number of events and the bytes of the next block; None at the end of the file."""
    start = data.position
    first = data.read(1)
    if not first:
        return None
    count, size = _long(data, first), _long(data)
    if count < 0 or not 0 <= size <= MOST_BLOCK_BYTES:
        raise _corrupt(data, "a block begins with invalid numbers", start)
    body = _taken(data, size + _SYNC_BYTES)
    if not body.endswith(sync):
        raise _corrupt(data, "a block does not end with the file's marker", start)
    return count, body[:-_SYNC_BYTES]


def _long(data: Bytes, first: bytes = b"") -> int:
    value, shift = 0, 0
    byte = first or _taken(data, 1)
    while True:
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return (value >> 1) ^ -(value & 1)
        shift += 7
        if shift > 63:
            raise _corrupt(data, "a number is longer than ten bytes")
        byte = _taken(data, 1)


def _counted(data: Bytes) -> bytes:
    size = _long(data)
    if not 0 <= size < _MOST_LENGTH:
        raise _corrupt(data, "the header has an entry of an invalid length")
    if data.position + size > _MOST_HEADER_BYTES:
        raise _large_header(data, f"{_MOST_HEADER_BYTES} bytes")
    return _taken(data, size)


def _corrupt(data: Bytes, reason: str, start: int = 0) -> FileFaultError:
    return FileFaultError(ErrorCode.FILE_CORRUPT, reason, data.rest(start))


def _large_header(data: Bytes, most: str) -> FileFaultError:
    reason = f"the header has more than {most}"
    return FileFaultError(ErrorCode.FILE_TOO_LARGE, reason, data.rest(0))


def _taken(data: Bytes, count: int) -> bytes:
    taken = data.read(count)
    if len(taken) < count:
        raise _EndError
    return taken
