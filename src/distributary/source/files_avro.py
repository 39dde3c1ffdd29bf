"""Avro container files: each event as exactly the bytes that stand for it in the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from distributary.errors import DecodeError, ErrorCode, InvalidSchemaError
from distributary.registry.file_schemas import guid_of
from distributary.source.files_avro_events import AvroEvents
from distributary.source.files_bytes import MOST_LETTER_BYTES, Bytes, FileFaultError
from distributary.source.files_codecs import (
    CODECS,
    MOST_BLOCK_BYTES,
    TooLargeError,
    UnpackError,
    unpack,
)
from distributary.source.files_events import EVENTS_PER_BATCH, Events, Fault
from distributary.source.files_slices import Slicer, slicer_for

MAGIC = b"Obj\x01"

_SYNC_BYTES = 16
_MOST_LENGTH = 1 << 31
_MOST_HEADER_BYTES = 4 * 1024 * 1024
"""Four times as much as the longest schema."""
_MOST_ENTRIES = 1000
_MOST_TINY_EVENTS = 1024 * 1024
_TINY_BYTES = 16
"""No change of a row is so short: a block of very many such events was made to do harm."""


class _EndError(Exception):
    """The file ends in the middle of something."""


@dataclass(frozen=True, slots=True)
class _Header:
    schema: bytes
    codec: str
    sync: bytes


def read_avro(data: Bytes, keep: Callable[[bytes], None]) -> Iterator[Events | Fault]:
    """The events of a file; `keep` is given its schema before the first of them."""
    header = _whole_header(data)
    try:
        slicer = slicer_for(header.schema.decode())
    except (InvalidSchemaError, DecodeError, UnicodeDecodeError) as error:
        reason = getattr(error, "what", "the schema is not UTF-8")
        raise FileFaultError(ErrorCode.UNUSABLE_SCHEMA, reason, data.rest(0)) from error
    keep(header.schema)
    waiting = AvroEvents(guid_of(header.schema))
    try:
        for count, body in _blocks(data, header.sync):
            yield from _cut(count, body, header.codec, slicer, waiting)
    except FileFaultError:
        yield from waiting.take()
        raise
    yield from waiting.take()


def _cut(
    count: int, body: bytes, codec: str, slicer: Slicer, waiting: AvroEvents
) -> Iterator[Events | Fault]:
    """Take the events of a block; where they cannot be told apart any more, the rest is a fault.

    The blocks after it are not lost: they begin where this one says that it ends.
    """
    fault, start = None, 0
    try:
        data = unpack(codec, body)
    except UnpackError as error:
        large = isinstance(error, TooLargeError)
        code = ErrorCode.FILE_TOO_LARGE if large else ErrorCode.FILE_CORRUPT
        fault = Fault(code, f"a block cannot be unpacked: {error}", _kept(body))
    else:
        if count > len(data):
            reason = "a block has more events than bytes"
            fault = Fault(ErrorCode.FILE_CORRUPT, reason, _kept(data))
        elif count > _MOST_TINY_EVENTS and count > len(data) // _TINY_BYTES:
            reason = f"a block has {count} events in {len(data)} bytes"
            fault = Fault(ErrorCode.FILE_TOO_LARGE, reason, _kept(body))
    while fault is None:
        some = min(count, EVENTS_PER_BATCH)
        count -= some
        cut = slicer(data, some, start=start, last=not count)
        start = cut.end
        waiting.add(data, cut)
        if cut.fault:
            fault = Fault(ErrorCode.FILE_CORRUPT, cut.fault, _kept(data[start:]))
        elif waiting.many:
            yield from waiting.take()
        if not count:
            break
    if fault is not None:
        yield from waiting.take()
        yield fault


def _kept(data: bytes) -> bytes:
    """As much as a dead letter holds."""
    return data[:MOST_LETTER_BYTES]


def _blocks(data: Bytes, sync: bytes) -> Iterator[tuple[int, bytes]]:
    """How many events each block has, and its bytes."""
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


def _whole_header(data: Bytes) -> _Header:
    while True:
        try:
            return _header(data)
        except _EndError as error:
            if not data.back(0):
                reason = "the file ends inside of its header"
                raise FileFaultError(ErrorCode.FILE_TRUNCATED, reason, data.rest(0)) from error


def _header(data: Bytes) -> _Header:
    magic = data.read(len(MAGIC))
    if not MAGIC.startswith(magic):
        raise FileFaultError(ErrorCode.FILE_CORRUPT, "this is not an Avro file", data.rest(0))
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
        reason = "the header has no schema" if codec in CODECS else "the codec is not known"
        raise FileFaultError(ErrorCode.FILE_CORRUPT, reason, data.rest(0))
    return _Header(entries[b"avro.schema"], codec, _taken(data, _SYNC_BYTES))


def _block(data: Bytes, sync: bytes) -> tuple[int, bytes] | None:
    """How many events the next block has, and its bytes; None at the end of the file."""
    start = data.position
    first = data.read(1)
    if not first:
        return None
    count, size = _long(data, first), _long(data)
    if count < 0 or not 0 <= size <= MOST_BLOCK_BYTES:
        reason = "a block begins with numbers that cannot be"
        raise FileFaultError(ErrorCode.FILE_CORRUPT, reason, data.rest(start))
    body = _taken(data, size + _SYNC_BYTES)
    if not body.endswith(sync):
        reason = "a block does not end with the file's marker"
        raise FileFaultError(ErrorCode.FILE_CORRUPT, reason, data.rest(start))
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
            reason = "a number is longer than ten bytes"
            raise FileFaultError(ErrorCode.FILE_CORRUPT, reason, data.rest(0))
        byte = _taken(data, 1)


def _counted(data: Bytes) -> bytes:
    size = _long(data)
    if not 0 <= size < _MOST_LENGTH:
        reason = "the header has an entry of a length that cannot be"
        raise FileFaultError(ErrorCode.FILE_CORRUPT, reason, data.rest(0))
    if data.position + size > _MOST_HEADER_BYTES:
        raise _large_header(data, f"{_MOST_HEADER_BYTES} bytes")
    return _taken(data, size)


def _large_header(data: Bytes, most: str) -> FileFaultError:
    reason = f"the header has more than {most}"
    return FileFaultError(ErrorCode.FILE_TOO_LARGE, reason, data.rest(0))


def _taken(data: Bytes, count: int) -> bytes:
    taken = data.read(count)
    if len(taken) < count:
        raise _EndError
    return taken
