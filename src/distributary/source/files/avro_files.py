"""Avro container files: each event as exactly its bytes in the file."""

from __future__ import annotations

import bz2
import lzma
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.errors import DecodeError, ErrorCode, InvalidSchemaError
from distributary.registry.compile.avro_schema import (
    Array,
    AvroRecord,
    Enum,
    Fixed,
    Map,
    Name,
    Primitive,
    Schema,
    Type,
    Union,
    parse_avro,
)
from distributary.registry.frames import read_varint
from distributary.registry.record_schemas import guid_of
from distributary.source.files.file_bytes import (
    BYTES_PER_BATCH,
    EARLIEST_US,
    EVENTS_PER_BATCH,
    LATEST_US,
    MOST_LETTER_BYTES,
    NAMES,
    Bytes,
    Fault,
    FileEvents,
    FileFaultError,
    claim_of,
)

# The codecs of Avro files, each with a limit to the size of an unpacked block.

MOST_BLOCK_BYTES = 256 * 1024 * 1024
"""The most bytes of a block, stored and unpacked: a few bytes could unpack to any number."""


class UnpackError(Exception):
    """An error for a block that its codec cannot unpack."""


class TooLargeError(UnpackError):
    """An error for a block that would unpack to too many bytes."""

    def __init__(self) -> None:
        super().__init__(f"the block holds more than {MOST_BLOCK_BYTES} bytes")


def _stream(unpacker: Any, data: bytes) -> bytes:
    unpacked: bytes = unpacker.decompress(data, MOST_BLOCK_BYTES)
    if not unpacker.eof:
        if len(unpacked) < MOST_BLOCK_BYTES:
            raise UnpackError("the block ends too early")
        raise TooLargeError
    return unpacked


def _snappy(data: bytes) -> bytes:
    packed, checksum = data[:-4], int.from_bytes(data[-4:], "big")
    size, _ = read_varint(packed, 0)
    if size > MOST_BLOCK_BYTES:
        raise TooLargeError
    unpacked: bytes = pa.Codec("snappy").decompress(packed, size, asbytes=True)
    if zlib.crc32(unpacked) != checksum:
        raise UnpackError("the checksum does not match")
    return unpacked


def _zstandard(data: bytes) -> bytes:
    with pa.input_stream(pa.BufferReader(data), compression="zstd") as stream:
        unpacked: bytes = stream.read(MOST_BLOCK_BYTES + 1)
    if len(unpacked) > MOST_BLOCK_BYTES:
        raise TooLargeError
    return unpacked


CODECS: dict[str, Callable[[bytes], bytes]] = {
    "null": lambda data: data,
    "deflate": lambda data: _stream(zlib.decompressobj(wbits=-15), data),
    "snappy": _snappy,
    "zstandard": _zstandard,
    "bzip2": lambda data: _stream(bz2.BZ2Decompressor(), data),
    "xz": lambda data: _stream(lzma.LZMADecompressor(memlimit=MOST_BLOCK_BYTES), data),
}


def unpack(codec: str, data: bytes) -> bytes:
    """Unpack a block; raise UnpackError if it is damaged or too large."""
    try:
        return CODECS[codec](data)
    except (OSError, EOFError, IndexError, ValueError, zlib.error, lzma.LZMAError) as error:
        raise UnpackError(f"{type(error).__name__}: {error}") from error


# Generation of Python code that steps over Avro data of one schema.
# The code has a handful of instructions per field, and few calls: 4 us an event, where a closure
# for each type takes 9 and decoding with a library 19, by turns. A run spends 11 to 14 on an event.
# `p` is the position in the bytes `b`. Only numbers from outside become part of the code: of
# branches, and of sizes.

_MOST_INDENTED = 12
_FIXED_SIZES = {"boolean": 1, "float": 4, "double": 8}
_TABLE = "source_metadata"
_TIME = "source_timestamp"


def _takes_no_bytes(schema: Schema, type_: Type, known: dict[str, bool]) -> bool:
    """Return whether values of a type take no bytes: then a count of them could be anything.

    The results for named types are added to `known`.
    """
    match type_:
        case Primitive(name):
            return name == "null"
        case Name(full) if full not in known:
            # A record that contains nothing but itself has no data at all.
            known[full] = True
            match schema.named[full]:
                case Fixed(size=size):
                    known[full] = size == 0
                case AvroRecord(fields=fields):
                    known[full] = all(_takes_no_bytes(schema, f.type, known) for f in fields)
                case _:
                    known[full] = False
            return known[full]
        case Name(full):
            return known[full]
    return False


class _StepWriter:
    """A generator of the functions for a schema."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._weightless: dict[str, bool] = {}
        self._shared = _used_often(schema)
        self._lines: list[str] = []
        self._named: dict[str | int, str] = {}
        self._waiting: list[tuple[str, Type]] = []
        self.time_micros = False

    def text(self) -> str:
        """Generate the module: `run` for the events of a block, and a function per shared type.

        It needs `wide`, `block` and `items`, for numbers of several bytes and for invalid ones.
        """
        empty = " = ".join(NAMES)
        self._add(0, "def run(b, p, count, ends, names, times):")
        self._add(1, "for _ in range(count):")
        self._add(2, f"{empty} = b''")
        self._add(2, "t = -1")
        self._envelope(2)
        self._add(2, f"ends(p); names(({', '.join(NAMES)})); times(t)")
        while self._waiting:
            name, type_ = self._waiting.pop()
            self._add(0, f"def {name}(b, p):")
            self._inline(type_, 1)
            self._add(1, "return p")
        return "\n".join(self._lines) + "\n"

    def _envelope(self, level: int) -> None:
        """Generate the steps over the envelope, of which some fields are kept."""
        record = self._schema.resolve(self._schema.top)
        if not isinstance(record, AvroRecord):
            self._inline(self._schema.top, level)
            return
        for field in record.fields:
            if field.name == _TIME:
                self._noted(field.type, level, "t", "long")
            elif field.name == _TABLE:
                self._metadata(field.type, level)
            else:
                self._type(field.type, level)

    def _metadata(self, type_: Type, level: int) -> None:
        if isinstance(type_, Union):
            self._branches(type_, level, self._metadata)
            return
        record = self._schema.resolve(type_)
        if not isinstance(record, AvroRecord):
            self._type(type_, level)
            return
        for field in record.fields:
            if field.name in NAMES:
                self._noted(field.type, level, field.name, "string")
            else:
                self._type(field.type, level)

    def _noted(self, type_: Type, level: int, variable: str, kind: str) -> None:
        """Generate the step over a field that is kept if it has the expected type."""
        match type_:
            case Union():
                self._branches(type_, level, partial(self._noted, variable=variable, kind=kind))
            case Primitive("long") if kind == "long":
                self.time_micros = bool(type_.logical and type_.logical.name.endswith("micros"))
                self._add(level, f"{variable} = p")
                self._type(type_, level)
            case Primitive("string") if kind == "string":
                self._length(level)
                self._add(level, f"{variable} = b[p:p + x]")
                self._add(level, "p += x")
            case _:
                self._type(type_, level)

    def _type(self, type_: Type, level: int) -> None:
        """Generate the step over a value; deep or shared types get their own function."""
        often = isinstance(type_, Name) and type_.full in self._shared
        if not often and level < _MOST_INDENTED:
            self._inline(type_, level)
            return
        key = type_.full if isinstance(type_, Name) else id(type_)
        if key not in self._named:
            self._named[key] = f"f{len(self._named)}"
            self._waiting.append((self._named[key], type_))
        self._add(level, f"p = {self._named[key]}(b, p)")

    def _inline(self, type_: Type, level: int) -> None:
        match type_:
            case Primitive(name):
                self._primitive(name, level)
            case Array(items):
                self._blocks(items, level, keyed=False)
            case Map(values):
                self._blocks(values, level, keyed=True)
            case Union():
                self._branches(type_, level, self._type)
            case Name(full):
                self._definition(full, level)

    def _definition(self, full: str, level: int) -> None:
        match self._schema.named[full]:
            case Enum():
                self._primitive("long", level)
            case Fixed(size=size):
                self._add(level, f"p += {size}")
            case AvroRecord(fields=fields):
                self._add(level, "pass")
                for field in fields:
                    self._type(field.type, level)

    def _primitive(self, name: str, level: int) -> None:
        if name in ("int", "long"):
            self._add(level, "while b[p] > 127: p += 1")
            self._add(level, "p += 1")
        elif name in ("string", "bytes"):
            self._length(level)
            self._add(level, "p += x")
        else:
            self._add(level, f"p += {_FIXED_SIZES.get(name, 0)}")

    def _length(self, level: int) -> None:
        self._add(level, "x = b[p]; p += 1")
        self._add(level, "if x & 129: x, p = wide(b, p)")
        self._add(level, "else: x >>= 1")

    def _branches(self, union: Union, level: int, write: Callable[[Type, int], None]) -> None:
        self._length(level)
        for number, branch in enumerate(union.branches):
            self._add(level, f"{'elif' if number else 'if'} x == {number}:")
            write(branch, level + 1)
        self._add(level, "else: raise ValueError('a union has no branch of this number')")

    def _blocks(self, items: Type, level: int, *, keyed: bool) -> None:
        weightless = not keyed and _takes_no_bytes(self._schema, items, self._weightless)
        self._add(level, "while True:")
        self._add(level + 1, "n = b[p]; p += 1")
        self._add(level + 1, f"if n & 129: n, p = {'block' if weightless else 'items'}(b, p)")
        self._add(level + 1, "else: n >>= 1")
        self._add(level + 1, "if not n: break")
        if weightless:
            return
        self._add(level + 1, "for _ in range(n):")
        if keyed:
            self._primitive("string", level + 2)
        self._type(items, level + 2)

    def _add(self, level: int, line: str) -> None:
        self._lines.append("  " * level + line)


def _used_often(schema: Schema) -> set[str]:
    """Return the names that occur more than once: repeating their code could explode."""
    seen: set[str] = set()
    often: set[str] = set()
    waiting: list[Type] = [schema.top]
    while waiting:
        match waiting.pop():
            case Array(inner) | Map(inner):
                waiting.append(inner)
            case Union(branches):
                waiting += branches
            case Name(full) if full in seen:
                often.add(full)
            case Name(full):
                seen.add(full)
                named = schema.named[full]
                if isinstance(named, AvroRecord):
                    waiting += [field.type for field in named.fields]
    return often


# Cutting of a block of Avro data into its events, without decoding them.
# Avro does not store the length of a record: to find its end, every field must be stepped over, by
# the function that `_StepWriter` generates. On its way it notes the names of the source table and
# the source's time.


@dataclass(slots=True)
class Slices:
    """The ends of events in a block, with the tables and times they name, in order."""

    start: int
    """The start of the first event."""

    ends: list[int]
    names: list[tuple[bytes, ...]]
    """For each event, the bytes of NAMES; empty for a missing name."""
    times: list[int]
    """For each event, the start of its time; -1 if it has none."""
    time_micros: bool
    """True if times are microseconds, not milliseconds."""
    fault: str = ""
    """The reason why the rest could not be cut."""

    @property
    def end(self) -> int:
        """Return the end of the last event."""
        return self.ends[-1] if self.ends else self.start


class Slicer:
    """A function that cuts data of one schema into events."""

    def __init__(self, schema: Schema) -> None:
        if _takes_no_bytes(schema, schema.top, {}):
            raise DecodeError("events of this schema take no bytes, so that they cannot be counted")
        writer = _StepWriter(schema)
        names: dict[str, Any] = {"wide": _wide, "block": _cut_block, "items": _items}
        # The code is our own: of a schema it only contains the numbers of branches and sizes.
        exec(compile(writer.text(), "<slices>", "exec"), names)  # noqa: S102
        self._run: Callable[..., None] = names["run"]
        self._time_micros = writer.time_micros

    def __call__(self, data: bytes, count: int, *, start: int = 0, last: bool = True) -> Slices:
        """Cut `count` events, or as many as are valid."""
        cut = Slices(start, [], [], [], self._time_micros)
        try:
            self._run(data, start, count, cut.ends.append, cut.names.append, cut.times.append)
        except IndexError:
            cut.fault = "the data end inside of an event"
        except RecursionError:
            cut.fault = "an event nests deeper than the interpreter can follow"
        except ValueError as error:
            cut.fault = str(error)
        within = bisect_right(cut.ends, len(data))
        if within < len(cut.ends):
            # A length that leads behind the end is only noticed where something is read there.
            for column in (cut.ends, cut.names, cut.times):
                del column[within:]
            cut.fault = "the data end inside of an event"
        left = len(data) - cut.end
        if last and not cut.fault and left:
            cut.fault = f"{left} bytes are left after the last event"
        return cut


@lru_cache(maxsize=512)
def slicer_for(text: str) -> Slicer:
    """Return the slicer of a schema's text.

    Raises:
        InvalidSchemaError: The text is no Avro schema.
        DecodeError: The schema's data cannot be cut.
    """
    return Slicer(parse_avro(text, datastream=True))


def _wide(data: bytes, position: int) -> tuple[int, int]:
    """Read a length whose first byte has been read; return it and the position after it."""
    value, position = read_varint(data, position - 1)
    if value & 1:
        raise ValueError("a length or an index is negative")
    return value >> 1, position


def _cut_block(data: bytes, position: int) -> tuple[int, int]:
    """Read the number of items of a block; return it and the position after the block's size."""
    value, position = read_varint(data, position - 1)
    if not value & 1:
        return value >> 1, position
    _, position = read_varint(data, position)
    return (value >> 1) + 1, position


def _items(data: bytes, position: int) -> tuple[int, int]:
    """Read a number of items that take bytes, and check that the data can hold them."""
    count, position = _cut_block(data, position)
    if count > len(data):
        raise ValueError("an array has more items than bytes")
    return count, position


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
