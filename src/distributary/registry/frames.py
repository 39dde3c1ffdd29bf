"""Frames: the reference to a record's schema, before its payload or in a header.

    prefix, by id     00 | id, 4 bytes, big endian     | payload
    prefix, by GUID   01 | GUID, 16 bytes              | payload
    header            `__value_schema_id` holds one of the above without a payload; the last wins

With protobuf, a path to the message follows the id: the count of numbers, then each number, as
zigzag varints. The first number is the position in the file, the next among the types nested there.
The usual path, the first message of the file, is the single byte 00.
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
    """The content of a frame, which has either an id or a GUID."""

    schema_id: int | None
    guid: UUID | None
    indexes: tuple[int, ...]
    """The path to the message; the first message of the file for formats without paths."""
    payload_start: int
    """The position of the payload in the value."""


@dataclass(frozen=True, slots=True)
class BadFrame:
    """The reason why a value has no valid frame."""

    code: ErrorCode
    message: str
    position: int
    """The byte of the value, or of the header, at which the frame becomes invalid."""


def parse(
    value: bytes,
    headers: Iterable[tuple[str, bytes | None]] = (),
    *,
    protobuf: bool = True,
) -> Framed | BadFrame:
    """Read the frame of a record's value.

    If there is a header, it is the whole frame, and the whole value is the payload.
    """
    contents = [content for name, content in headers if name == VALUE_HEADER]
    if not contents or contents[-1] is None:
        return _parse_bytes(value, protobuf)
    frame = _parse_bytes(contents[-1], protobuf)
    return frame if isinstance(frame, BadFrame) else replace(frame, payload_start=0)


def read_indexes(data: bytes | memoryview, start: int) -> tuple[tuple[int, ...], int] | BadFrame:
    """Return a path to a message and the position after it, from bytes of any content."""
    position, indexes = start, list[int]()
    try:
        count, end = read_zigzag(data, position)
        if count == 0:
            return FIRST_MESSAGE, end
        if not 0 < count <= MAX_INDEXES:
            return BadFrame(ErrorCode.BAD_MESSAGE_INDEX, "impossible number of indexes", position)
        for _ in range(count):
            position = end
            index, end = read_zigzag(data, position)
            if index < 0:
                return BadFrame(ErrorCode.BAD_MESSAGE_INDEX, "negative message index", position)
            indexes.append(index)
    except IndexError:
        message = "the value ends inside the message indexes"
        return BadFrame(ErrorCode.WIRE_HEADER_TRUNCATED, message, len(data))
    except ValueError:
        return BadFrame(ErrorCode.BAD_MESSAGE_INDEX, "a message index is too long", position)
    return tuple(indexes), end


@lru_cache(maxsize=4096)
def message_by_index(descriptor_set: bytes, indexes: tuple[int, ...]) -> str | None:
    """Return the full name of the message at a path of a compiled schema, or None."""
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
    """Return a number with seven bits in a byte, lowest first, and the position after it.

    Raises IndexError if the data ends inside the number, and ValueError if the number is too long.
    """
    number = shift = 0
    for position in range(start, start + _MAX_VARINT):
        byte = data[position]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position + 1
        shift += 7
    raise ValueError("a number is longer than ten bytes")


def read_zigzag(data: bytes | memoryview, start: int) -> tuple[int, int]:
    """Return a number that may be negative, and the position after it."""
    number, end = read_varint(data, start)
    return (number >> 1) ^ -(number & 1), end


# The frames of a whole column at once, for the hot path.

REASONS = (
    None,
    ErrorCode.NULL_VALUE,
    ErrorCode.BAD_MAGIC,
    ErrorCode.WIRE_HEADER_TRUNCATED,
    ErrorCode.BAD_MESSAGE_INDEX,
)
"""The error codes by their number in `SplitFrames.reasons`."""

_NULL, _MAGIC, _TRUNCATED = 1, 2, 3
_WORD = 8

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SplitFrames:
    """The frames of a column, element by element."""

    framed: NDArray[np.bool_]
    """A mask of the elements with a whole frame."""
    ids: NDArray[np.int64]
    """Schema ids; -1 where there is no frame, or one with a GUID."""
    payload_start: NDArray[np.int32]
    """Start of the payload; 0 without a frame, so that a bare value is its payload."""
    reasons: NDArray[np.int8]
    """The reason why there is no frame, as an index in `REASONS`; 0 if there is one."""
    path_codes: NDArray[np.int32]
    """The message, as an index in `paths`; 0 for the first message of the file."""
    paths: tuple[tuple[int, ...], ...]
    """The distinct paths to a message, as `message_by_index` takes them."""
    guid_codes: NDArray[np.int32]
    """The schema's GUID, as an index in `guids`; -1 without a frame, or with an id."""
    guids: tuple[UUID, ...] = ()
    """The distinct GUIDs."""

    def reason(self, position: int) -> ErrorCode | None:
        """Return the reason why there is no frame at a position, or None if there is one."""
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

    The usual form, `00 | id`, costs as much as with `split_v0`. The other forms, and the content of
    the header, are read once for each distinct frame.
    """
    frames, words = _split(array, protobuf)
    rows, contents = header_contents(headers, VALUE_HEADER)
    # a null is a tombstone, whatever its headers contain
    living = frames.reasons[rows] != _NULL
    if living.any():
        living_contents = contents.filter(pa.array(living))
        frames = _filled(frames, rows[living], living_contents, protobuf, payload_start=0)
    by_guid = (words >> 56 == 1) & (frames.reasons == _MAGIC)
    # with a bad header the record is bad, even if its value looks like a frame
    by_guid[rows] = False
    rows = np.flatnonzero(by_guid)
    if len(rows) == 0:
        return frames
    values = array.take(pa.array(rows))
    # the usual path is one byte long, so these bytes decide nearly all values
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
    """Return the values without their first `payload_start` bytes."""
    distinct = np.unique(payload_start).tolist()
    if not any(distinct):
        return array
    # an explicit end, because without one pyarrow overflows on more than a few bytes
    # (apache/arrow#51222)
    end = int(_layout(array).lengths.max())
    # nearly every column has one or two distinct starts, so this takes one or two passes
    result = pc.binary_slice(array, distinct[0], end) if distinct[0] else array
    for start in distinct[1:]:
        cut = pc.binary_slice(array, start, max(start, end))
        result = pc.if_else(pa.array(payload_start == start), cut, result)
    return result


def _split(array: pa.BinaryArray, protobuf: bool) -> tuple[SplitFrames, NDArray[np.uint64]]:
    """Return the `00 | id` frames, and the first eight bytes of each value."""
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
    """Return the records that have a header of this name, and the content of its last one."""
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
    last_contents = contents.take(pa.array(places[last]))
    # a header without content is ignored, and the value is read
    has_content = last_contents.is_valid()
    return rows[last][has_content.to_numpy(zero_copy_only=False)], last_contents.filter(has_content)


def _filled(
    frames: SplitFrames,
    rows: Rows,
    contents: pa.BinaryArray,
    protobuf: bool,
    *,
    payload_start: int | None = None,
) -> SplitFrames:
    """Set the frames of some rows from their contents, reading each distinct content once."""
    encoded = contents.dictionary_encode()
    paths = {path: code for code, path in enumerate(frames.paths)}
    guids = {guid: code for code, guid in enumerate(frames.guids)}
    frame_values = np.empty((len(encoded.dictionary), 5), dtype=np.int64)
    for number, content in enumerate(encoded.dictionary.to_pylist()):
        frame = parse(content, protobuf=protobuf)
        if isinstance(frame, BadFrame):
            frame_values[number] = (-1, 0, REASONS.index(frame.code), 0, -1)
            continue
        frame_values[number] = (
            -1 if frame.schema_id is None else frame.schema_id,
            frame.payload_start if payload_start is None else payload_start,
            0,
            paths.setdefault(frame.indexes, len(paths)),
            -1 if frame.guid is None else guids.setdefault(frame.guid, len(guids)),
        )
    row_values = frame_values[encoded.indices.to_numpy(zero_copy_only=False)].T
    frames.ids[rows], frames.payload_start[rows], frames.reasons[rows] = row_values[:3]
    frames.path_codes[rows], frames.guid_codes[rows] = row_values[3:]
    frames.framed[rows] = row_values[2] == 0
    return replace(frames, paths=tuple(paths), guids=tuple(guids))


def _with_paths(split: SplitFrames, layout: _Layout, words: NDArray[np.uint64]) -> SplitFrames:
    """Read the paths: the usual one for all at once, others once for each distinct form."""
    usual = split.framed & (layout.lengths > _ID_END) & (words >> 16 & 0xFF == 0)
    split.payload_start[usual] = _ID_END + 1
    codes: dict[tuple[int, ...], int] = {FIRST_MESSAGE: 0}
    unusual = split.framed & ~usual
    # the word's last three bytes hold every path that ends within the word
    in_word = np.flatnonzero(unusual & (layout.lengths >= _WORD))
    forms, form_number = np.unique(words[in_word] & 0xFFFFFF, return_inverse=True)
    code, start = np.zeros(len(forms), dtype=np.int32), np.zeros(len(forms), dtype=np.int32)
    for number, form in enumerate(forms.tolist()):
        path_and_end = read_indexes(form.to_bytes(3, "big"), 0)
        if not isinstance(path_and_end, BadFrame):
            code[number] = codes.setdefault(path_and_end[0], len(codes))
            start[number] = _ID_END + path_and_end[1]
    split.path_codes[in_word], split.payload_start[in_word] = code[form_number], start[form_number]
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
    """Return the first eight bytes of each value as a number, with noise after a short value."""
    # each value is read once, because values do not fit the CPU cache and each read costs as much
    data = layout.data
    if len(data) < _WORD:
        data = np.concatenate([data, np.zeros(_WORD, dtype=np.uint8)])
    at_any_byte: NDArray[np.uint64] = np.ndarray(
        shape=(len(data) - _WORD + 1,), dtype=">u8", buffer=data.data, strides=(1,)
    )
    # near the end of the data, read a little earlier and shift the extra bytes out
    inside = np.minimum(layout.starts, len(data) - _WORD)
    extra = np.minimum(layout.starts - inside, _WORD - 1).astype(np.uint64) * np.uint64(8)
    return at_any_byte[inside].astype(np.uint64) << extra
