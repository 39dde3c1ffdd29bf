"""How a record says which schema it was written with, in front of its payload or in a header.

    prefix, by id     00 | id, 4 bytes, big endian     | payload
    prefix, by GUID   01 | GUID, 16 bytes              | payload
    header            `__value_schema_id` holds one of the above without a payload; the last wins

With protobuf, a path to the message follows the id: how many numbers, then each of them, as zigzag
varints: the position in the file, then among the types nested in that one. The usual path, the
first message of the file, is the single byte 00.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from numpy.typing import NDArray

from distributary.errors import ErrorCode

VALUE_HEADER = "__value_schema_id"
FIRST_MESSAGE = (0,)
MAX_INDEXES = 100_000
"""The longest path that the official clients accept."""

_BY_ID, _BY_GUID = 0, 1
_ID_END, _GUID_END = 5, 17
_MAX_VARINT = 10


@dataclass(frozen=True, slots=True)
class Framed:
    """What a frame says; exactly one of id and GUID is there."""

    schema_id: int | None
    guid: UUID | None
    indexes: tuple[int, ...]
    """The path to the message; the first message of the file for formats without paths."""
    payload_start: int
    """Where the payload begins in the value."""


@dataclass(frozen=True, slots=True)
class BadFrame:
    """Why a value is not framed."""

    code: ErrorCode
    message: str
    position: int
    """The byte of the value, or of the header, at which the frame stops being one."""


def parse(
    value: bytes,
    headers: Iterable[tuple[str, bytes | None]] = (),
    *,
    protobuf: bool = True,
) -> Framed | BadFrame:
    """Read the frame of a record's value.

    A header, where there is one, is the whole frame: the value then is the payload.
    """
    named = [content for name, content in headers if name == VALUE_HEADER]
    if not named or named[-1] is None:
        return _parse_bytes(value, protobuf)
    found = _parse_bytes(named[-1], protobuf)
    return found if isinstance(found, BadFrame) else replace(found, payload_start=0)


def read_indexes(data: bytes | memoryview, start: int) -> tuple[tuple[int, ...], int] | BadFrame:
    """A path to a message and the position behind it, from bytes that may hold anything."""
    at, indexes = start, list[int]()
    try:
        count, behind = read_zigzag(data, at)
        if count == 0:
            return FIRST_MESSAGE, behind
        if not 0 < count <= MAX_INDEXES:
            return BadFrame(ErrorCode.BAD_MESSAGE_INDEX, "impossible number of indexes", at)
        for _ in range(count):
            at = behind
            index, behind = read_zigzag(data, at)
            if index < 0:
                return BadFrame(ErrorCode.BAD_MESSAGE_INDEX, "negative message index", at)
            indexes.append(index)
    except IndexError:
        message = "the value ends inside the message indexes"
        return BadFrame(ErrorCode.WIRE_HEADER_TRUNCATED, message, len(data))
    except ValueError:
        return BadFrame(ErrorCode.BAD_MESSAGE_INDEX, "a message index is too long", at)
    return tuple(indexes), behind


@lru_cache(maxsize=4096)
def message_by_index(descriptor_set: bytes, indexes: tuple[int, ...]) -> str | None:
    """Full name of the message that a path leads to in a compiled schema; None when to nothing."""
    file = FileDescriptorSet.FromString(descriptor_set).file[-1]
    names, messages = [file.package] if file.package else [], file.message_type
    for index in indexes:
        if not 0 <= index < len(messages):
            return None
        names.append(messages[index].name)
        messages = messages[index].nested_type
    return ".".join(names) if indexes else None


def _parse_bytes(data: bytes, protobuf: bool) -> Framed | BadFrame:
    if data and data[0] not in (_BY_ID, _BY_GUID):
        return BadFrame(ErrorCode.BAD_MAGIC, f"first byte is {data[0]:#04x}, not a frame's", 0)
    end = _GUID_END if data and data[0] == _BY_GUID else _ID_END
    if len(data) < end:
        message = f"{len(data)} bytes, the frame alone needs {end}"
        return BadFrame(ErrorCode.WIRE_HEADER_TRUNCATED, message, len(data))
    schema_id = int.from_bytes(data[1:end], "big") if end == _ID_END else None
    guid = UUID(bytes=bytes(data[1:end])) if end == _GUID_END else None
    if not protobuf:
        return Framed(schema_id, guid, FIRST_MESSAGE, end)
    path = read_indexes(data, end)
    return path if isinstance(path, BadFrame) else Framed(schema_id, guid, *path)


def read_varint(data: bytes | memoryview, start: int) -> tuple[int, int]:
    """A number, seven bits a byte, lowest first, and the position behind it.

    Raises IndexError where the data end inside of it, and ValueError where it is too long.
    """
    number = shift = 0
    for at in range(start, start + _MAX_VARINT):
        byte = data[at]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at + 1
        shift += 7
    raise ValueError("a number is longer than ten bytes")


def read_zigzag(data: bytes | memoryview, start: int) -> tuple[int, int]:
    """The same for a number that may be negative."""
    number, behind = read_varint(data, start)
    return (number >> 1) ^ -(number & 1), behind


# The frames of a whole column at once: `wire.parse` by position, for the hot path.

REASONS = (
    None,
    ErrorCode.NULL_VALUE,
    ErrorCode.BAD_MAGIC,
    ErrorCode.WIRE_HEADER_TRUNCATED,
    ErrorCode.BAD_MESSAGE_INDEX,
)
"""What the numbers in `SplitFrames.reasons` mean."""

_NULL, _MAGIC, _TRUNCATED = 1, 2, 3
_WORD = 8

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SplitFrames:
    """The frames of a column, position by position."""

    framed: NDArray[np.bool_]
    """Where there is a whole frame."""
    ids: NDArray[np.int64]
    """Schema ids; -1 where there is no frame, or one that names a GUID."""
    payload_start: NDArray[np.int32]
    """Where the payload begins; 0 where there is no frame, so that a bare value is its payload."""
    reasons: NDArray[np.int8]
    """Why there is no frame: a position in `REASONS`, 0 where there is one."""
    path_codes: NDArray[np.int32]
    """Which message it is: a position in `paths`, 0 for the first message of the file."""
    paths: tuple[tuple[int, ...], ...]
    """The distinct paths to a message, as `wire.message_by_index` takes them."""
    guid_codes: NDArray[np.int32]
    """The schema's GUID: a position in `guids`, -1 where there is no frame, or one with an id."""
    guids: tuple[UUID, ...] = ()
    """The distinct GUIDs."""

    def reason(self, position: int) -> ErrorCode | None:
        """Why there is no frame at a position; None where there is one."""
        return REASONS[self.reasons[position]]


@dataclass(frozen=True, slots=True)
class _Layout:
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    data: NDArray[np.uint8]


def split(
    array: pa.BinaryArray,
    headers: pa.ListArray | None = None,
    *,
    protobuf: bool,
) -> SplitFrames:
    """Read the frames of a column of values in all their forms.

    The usual form, `00 | id`, costs as much as with `split_v0`. The other forms, and the content
    of the header, are read once for each distinct frame.
    """
    frames, words = _split(array, protobuf)
    rows, contents = header_contents(headers, VALUE_HEADER)
    # a null is a tombstone, whatever its headers say
    living = frames.reasons[rows] != _NULL
    if living.any():
        named = contents.filter(pa.array(living))
        frames = _filled(frames, rows[living], named, protobuf, payload_start=0)
    by_guid = (words >> 56 == 1) & (frames.reasons == _MAGIC)
    # a bad header is the record's fault, even where the value looks like a frame
    by_guid[rows] = False
    rows = np.flatnonzero(by_guid)
    if len(rows) == 0:
        return frames
    values = array.take(pa.array(rows))
    # the usual path is one byte long: so much tells nearly all of them
    start = pc.binary_slice(values, 0, _GUID_END + protobuf)
    frames = _filled(frames, rows, start, protobuf)
    rest = np.flatnonzero(~frames.framed[rows] & (_layout(values).lengths > _GUID_END))
    if len(rest):
        frames = _filled(frames, rows[rest], values.take(pa.array(rest)), protobuf)
    return frames


def split_v0(array: pa.BinaryArray, *, protobuf: bool) -> SplitFrames:
    """Read the `00 | id` frames of a column; GUID frames (`01`) count as `BAD_MAGIC` here."""
    return _split(array, protobuf)[0]


def payloads(array: pa.BinaryArray, payload_start: NDArray[np.int32]) -> pa.BinaryArray:
    """The values without their first bytes: `payload_start` of them, value by value."""
    distinct = np.unique(payload_start).tolist()
    if not any(distinct):
        return array
    # said aloud: without an end, pyarrow overflows on more than a few bytes (apache/arrow#51222)
    end = int(_layout(array).lengths.max())
    # nearly every column has one or two distinct starts, so this is one or two passes
    result = pc.binary_slice(array, distinct[0], end) if distinct[0] else array
    for start in distinct[1:]:
        cut = pc.binary_slice(array, start, max(start, end))
        result = pc.if_else(pa.array(payload_start == start), cut, result)
    return result


def _split(array: pa.BinaryArray, protobuf: bool) -> tuple[SplitFrames, NDArray[np.uint64]]:
    """The `00 | id` frames, and the first eight bytes of each value."""
    layout = _layout(array)
    words = _first_words(layout)
    magic = words >> 56 != 0
    reasons = np.zeros(len(array), dtype=np.int8)
    reasons[layout.lengths < _ID_END] = _TRUNCATED
    reasons[magic & (layout.lengths > 0)] = _MAGIC
    if array.null_count:
        reasons[array.is_null().to_numpy(zero_copy_only=False)] = _NULL
    framed = reasons == 0
    ids = np.where(framed, words >> 24 & 0xFFFFFFFF, -1).astype(np.int64)
    payload_start = np.where(framed, _ID_END, 0).astype(np.int32)
    codes = np.zeros(len(array), dtype=np.int32)
    guids = np.full(len(array), -1, dtype=np.int32)
    frames = SplitFrames(framed, ids, payload_start, reasons, codes, (FIRST_MESSAGE,), guids)
    return _with_paths(frames, layout, words) if protobuf else frames, words


def header_contents(headers: pa.ListArray | None, name: str) -> tuple[Rows, pa.BinaryArray]:
    """The records that have a header of this name, and the last one's content for each."""
    nothing = np.zeros(0, dtype=np.int64), pa.array([], pa.binary())
    if headers is None or len(headers.values) == 0:
        return nothing
    entries = headers.flatten()
    keys, contents = entries.flatten()
    named = pc.fill_null(pc.equal(keys, pa.scalar(name, keys.type)), False)
    places = np.flatnonzero(named.to_numpy(zero_copy_only=False))
    if len(places) == 0:
        return nothing
    lengths = pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False)
    rows = np.searchsorted(np.cumsum(lengths), places, side="right").astype(np.int64)
    last = np.append(rows[1:] != rows[:-1], True)
    found = contents.take(pa.array(places[last]))
    # a header without content says nothing: the value is looked at
    said = found.is_valid()
    return rows[last][said.to_numpy(zero_copy_only=False)], found.filter(said)


def _filled(
    frames: SplitFrames,
    rows: Rows,
    contents: pa.BinaryArray,
    protobuf: bool,
    *,
    payload_start: int | None = None,
) -> SplitFrames:
    """Put what the contents say in these rows, reading each distinct one once."""
    encoded = contents.dictionary_encode()
    paths = {path: code for code, path in enumerate(frames.paths)}
    guids = {guid: code for code, guid in enumerate(frames.guids)}
    found = np.empty((len(encoded.dictionary), 5), dtype=np.int64)
    for number, content in enumerate(encoded.dictionary.to_pylist()):
        frame = parse(content, protobuf=protobuf)
        if isinstance(frame, BadFrame):
            found[number] = (-1, 0, REASONS.index(frame.code), 0, -1)
            continue
        found[number] = (
            -1 if frame.schema_id is None else frame.schema_id,
            frame.payload_start if payload_start is None else payload_start,
            0,
            paths.setdefault(frame.indexes, len(paths)),
            -1 if frame.guid is None else guids.setdefault(frame.guid, len(guids)),
        )
    each = found[encoded.indices.to_numpy(zero_copy_only=False)].T
    frames.ids[rows], frames.payload_start[rows], frames.reasons[rows] = each[:3]
    frames.path_codes[rows], frames.guid_codes[rows] = each[3:]
    frames.framed[rows] = each[2] == 0
    return replace(frames, paths=tuple(paths), guids=tuple(guids))


def _with_paths(split: SplitFrames, layout: _Layout, words: NDArray[np.uint64]) -> SplitFrames:
    """Read the paths: the usual one for all at once, others once for each distinct form."""
    usual = split.framed & (layout.lengths > _ID_END) & (words >> 16 & 0xFF == 0)
    split.payload_start[usual] = _ID_END + 1
    codes: dict[tuple[int, ...], int] = {FIRST_MESSAGE: 0}
    unusual = split.framed & ~usual
    # a path that ends within the word is told by the word's last three bytes
    told = np.flatnonzero(unusual & (layout.lengths >= _WORD))
    forms, form_of = np.unique(words[told] & 0xFFFFFF, return_inverse=True)
    code, start = np.zeros(len(forms), dtype=np.int32), np.zeros(len(forms), dtype=np.int32)
    for number, form in enumerate(forms.tolist()):
        found = read_indexes(form.to_bytes(3, "big"), 0)
        if not isinstance(found, BadFrame):
            code[number] = codes.setdefault(found[0], len(codes))
            start[number] = _ID_END + found[1]
    split.path_codes[told], split.payload_start[told] = code[form_of], start[form_of]
    alone = (unusual & (layout.lengths < _WORD)) | (split.framed & (split.payload_start == 0))
    for position in np.flatnonzero(alone).tolist():
        begin, length = layout.starts[position], layout.lengths[position]
        path = read_indexes(layout.data.data[begin : begin + length], _ID_END)
        if isinstance(path, BadFrame):
            split.framed[position] = False
            split.reasons[position] = REASONS.index(path.code)
            split.ids[position], split.payload_start[position] = -1, 0
        else:
            split.path_codes[position] = codes.setdefault(path[0], len(codes))
            split.payload_start[position] = path[1]
    return replace(split, paths=tuple(codes))


def _layout(array: pa.BinaryArray) -> _Layout:
    _, offsets, content = array.buffers()
    width = np.int64 if pa.types.is_large_binary(array.type) else np.int32
    data = np.frombuffer(content, dtype=np.uint8) if content else np.zeros(0, dtype=np.uint8)
    if offsets is None or len(array) == 0:
        empty = np.zeros(0, dtype=np.int64)
        return _Layout(empty, empty, data)
    ends = np.frombuffer(offsets, dtype=width)[array.offset : array.offset + len(array) + 1]
    places = ends.astype(np.int64)
    return _Layout(places[:-1], np.diff(places), data)


def _first_words(layout: _Layout) -> NDArray[np.uint64]:
    """The first eight bytes of each value as one number; what lies behind a short one is noise."""
    # one look at each value: they do not fit a processor's cache, so each costs as much
    data = layout.data
    if len(data) < _WORD:
        data = np.concatenate([data, np.zeros(_WORD, dtype=np.uint8)])
    at_any_byte: NDArray[np.uint64] = np.ndarray(
        shape=(len(data) - _WORD + 1,), dtype=">u8", buffer=data.data, strides=(1,)
    )
    # near the end of the data, look a little earlier and push the extra bytes out
    inside = np.minimum(layout.starts, len(data) - _WORD)
    extra = np.minimum(layout.starts - inside, _WORD - 1).astype(np.uint64) * np.uint64(8)
    return at_any_byte[inside].astype(np.uint64) << extra
