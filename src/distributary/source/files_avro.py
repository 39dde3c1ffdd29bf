"""Avro container files: each event as exactly the bytes that stand for it in the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from distributary.errors import DecodeError, ErrorCode, InvalidSchemaError
from distributary.registry.file_schemas import guid_of
from distributary.source.files_avro_events import AvroEvents
from distributary.source.files_bytes import Bytes, FileFaultError
from distributary.source.files_codecs import CODECS, MOST_BLOCK_BYTES, UnpackError, unpack
from distributary.source.files_events import Events, Fault
from distributary.source.files_slices import Slicer, slicer_for

MAGIC = b"Obj\x01"

_SYNC_BYTES = 16
_MOST_HEADER_BYTES = 64 * 1024 * 1024
_BYTES_AT_ONCE = 4 * 1024 * 1024
"""Blocks are small: what costs something each time is done for many of them together."""


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
            fault = _cut(count, body, header.codec, slicer, waiting)
            if fault is not None or waiting.size > _BYTES_AT_ONCE:
                yield from waiting.take()
            if fault is not None:
                yield fault
    except FileFaultError:
        yield from waiting.take()
        raise
    yield from waiting.take()


def _cut(count: int, body: bytes, codec: str, slicer: Slicer, waiting: AvroEvents) -> Fault | None:
    """Take the events of a block; where they cannot be told apart any more, the rest is a fault.

    The blocks after it are not lost: they begin where this one says that it ends.
    """
    try:
        data = unpack(codec, body)
    except UnpackError as error:
        return Fault(ErrorCode.FILE_CORRUPT, f"a block cannot be unpacked: {error}", body)
    if count > len(data):
        return Fault(ErrorCode.FILE_CORRUPT, "a block has more events than bytes", data)
    cut = slicer(data, count)
    end = cut.ends[-1] if cut.ends else 0
    waiting.add(data[:end], cut)
    return Fault(ErrorCode.FILE_CORRUPT, cut.fault, data[end:]) if cut.fault else None


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
    while count := _long(data):
        if count < 0:
            count = -count
            _long(data)
        for _ in range(count):
            key = _counted(data)
            entries[key] = _counted(data)
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
    if not 0 <= size <= _MOST_HEADER_BYTES:
        reason = "the header has an entry of a length that cannot be"
        raise FileFaultError(ErrorCode.FILE_CORRUPT, reason, data.rest(0))
    return _taken(data, size)


def _taken(data: Bytes, count: int) -> bytes:
    taken = data.read(count)
    if len(taken) < count:
        raise _EndError
    return taken
