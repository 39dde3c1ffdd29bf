"""How a record says which schema it was written with, in front of its payload or in a header.

    prefix, by id     00 | id, 4 bytes, big endian     | payload
    prefix, by GUID   01 | GUID, 16 bytes              | payload
    header            `__value_schema_id` holds one of the above without a payload; the last wins

With protobuf, a path to the message follows the id: how many numbers, then each of them, as zigzag
varints: the position in the file, then among the types nested in that one. The usual path, the
first message of the file, is the single byte 00.

Where framing is `auto`, a value that begins with 00 or 01 is taken as framed, and one that begins
otherwise as bare; a frame that breaks off is a bad record, not a bare one. With protobuf that is
exact, not a guess: a bare message cannot begin so, because there is no field number 0. It is exact
with JSON too, whose text begins with no such byte. With Avro it is a guess, and a bad one for some
schemas: a record whose first field is 0, -1, null, an empty string or the first branch of a union
begins with such a byte. Say `confluent` or `none` for Avro.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from uuid import UUID

from google.protobuf.descriptor_pb2 import FileDescriptorSet

from distributary.errors import ErrorCode

VALUE_HEADER = "__value_schema_id"
KEY_HEADER = "__key_schema_id"
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
    header: str = VALUE_HEADER,
) -> Framed | BadFrame:
    """Read the frame of a record's value, or of its key with `header=KEY_HEADER`.

    Raises nothing for what the bytes contain. A header, where there is one, is the whole frame:
    the value then is the payload.
    """
    named = [content for name, content in headers if name == header]
    if named and named[-1] is not None:
        found = _parse_bytes(named[-1], protobuf)
        if isinstance(found, BadFrame):
            return found
        return Framed(found.schema_id, found.guid, found.indexes, payload_start=0)
    return _parse_bytes(value, protobuf)


def frame(
    payload: bytes,
    *,
    schema_id: int | None = None,
    guid: UUID | None = None,
    indexes: Sequence[int] | None = FIRST_MESSAGE,
) -> bytes:
    """Put a frame before a payload; the inverse of `parse`. Without a payload it fits a header.

    Args:
        payload: The encoded record.
        schema_id: The schema's id; or else:
        guid: The schema's GUID.
        indexes: The path to the protobuf message; None for formats that have none.
    """
    if (schema_id is None) == (guid is None):
        raise ValueError("a frame names a schema either by id or by GUID")
    start = (
        bytes([_BY_ID]) + schema_id.to_bytes(4, "big")
        if schema_id is not None
        else bytes([_BY_GUID]) + (guid.bytes if guid else b"")
    )
    return start + (b"" if indexes is None else encode_indexes(indexes)) + payload


def encode_indexes(indexes: Sequence[int]) -> bytes:
    """The bytes of a path to a message."""
    if tuple(indexes) == FIRST_MESSAGE:
        return b"\x00"
    # both the count and the indexes are never negative, so their zigzag form is their double
    return b"".join(_varint(2 * number) for number in (len(indexes), *indexes))


def read_indexes(data: bytes | memoryview, start: int) -> tuple[tuple[int, ...], int] | BadFrame:
    """A path to a message and the position behind it, from bytes that may hold anything."""
    count, position = _zigzag(data, start)
    if position < 0:
        return _bad_varint(data, start)
    if count == 0:
        return FIRST_MESSAGE, position
    if not 0 < count <= MAX_INDEXES:
        return BadFrame(ErrorCode.BAD_MESSAGE_INDEX, "impossible number of indexes", start)
    indexes = []
    for _ in range(count):
        index, behind = _zigzag(data, position)
        if behind < 0:
            return _bad_varint(data, position)
        if index < 0:
            return BadFrame(ErrorCode.BAD_MESSAGE_INDEX, "negative message index", position)
        indexes.append(index)
        position = behind
    return tuple(indexes), position


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
    if isinstance(path, BadFrame):
        return path
    return Framed(schema_id, guid, path[0], path[1])


def _varint(number: int) -> bytes:
    if number < 0:
        raise ValueError("a message index is never negative")
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _zigzag(data: bytes | memoryview, start: int) -> tuple[int, int]:
    """A zigzag varint and the position behind it; the position is -1 when it does not end."""
    number = 0
    for step, byte in enumerate(data[start : start + _MAX_VARINT]):
        number |= (byte & 0x7F) << 7 * step
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), start + step + 1
    return 0, -1


def _bad_varint(data: bytes | memoryview, start: int) -> BadFrame:
    if len(data) - start < _MAX_VARINT:
        message = "the value ends inside the message indexes"
        return BadFrame(ErrorCode.WIRE_HEADER_TRUNCATED, message, len(data))
    return BadFrame(ErrorCode.BAD_MESSAGE_INDEX, "a message index is too long", start)
