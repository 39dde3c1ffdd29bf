"""A walk over the bytes of MessagePack that says where they are wrong, in bounded memory.

The library that parses payloads makes room for as many items as a header announces, for each
array that it is in. It never sees a payload in which many long arrays could be in each other.
"""

from __future__ import annotations

from distributary.decode.base import RefusedError
from distributary.errors import ErrorCode

_LONG = (b"\xdc", b"\xdd", b"\xde", b"\xdf")
"""The first bytes of arrays and maps that may be long."""
_HARMLESS = 4096
"""The longest payload whose headers can announce little."""
_TIMESTAMPS = (4, 8, 12)
_FIXED = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
"""The bytes behind the first one, of numbers."""
_SIZED = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
"""The bytes of a length, of bytes and texts."""
_COUNTED = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""The bytes of a count, and the values an item has, of arrays and maps."""
_EXTENSIONS = {0xC7: 1, 0xC8: 2, 0xC9: 4}
"""The bytes of a length, of extensions."""


def is_suspicious(data: bytes, max_depth: int) -> bool:
    """Return true for a payload that may announce far more items than it has."""
    return len(data) > _HARMLESS and sum(map(data.count, _LONG)) > max_depth


def check(data: bytes, max_depth: int) -> None:
    """Raise `RefusedError` for the first byte that is wrong, or nests too deep."""
    left, maps = [1], [False]
    place = 0
    while left:
        if not left[-1]:
            left.pop()
            maps.pop()
            continue
        first = data[place] if place < len(data) else 0
        if maps[-1] and left[-1] % 2 == 0 and place < len(data) and not _is_text(first):
            reason = "a map has a name that is not text"
            raise RefusedError(ErrorCode.INVALID_NAME, reason, place)
        left[-1] -= 1
        place, items = _value(data, place)
        if items:
            if items > len(data) - place:
                raise _truncated(len(data))
            if len(left) > max_depth:
                reason = f"arrays and maps nest deeper than {max_depth}"
                raise RefusedError(ErrorCode.NESTING_TOO_DEEP, reason, place)
            left.append(items)
            maps.append(first < 0x90 or first >= 0xDE)
    if place != len(data):
        reason = "the payload continues after its value"
        raise RefusedError(ErrorCode.TRAILING_BYTES, reason, place)


def _is_text(first: int) -> bool:
    return 0xA0 <= first < 0xC0 or first in (0xD9, 0xDA, 0xDB)


def _value(data: bytes, place: int) -> tuple[int, int]:
    """Return the place behind a value or behind a header, and how many values belong to it."""
    if place >= len(data):
        raise _truncated(len(data))
    first = data[place]
    if first < 0x80 or first >= 0xE0 or first in (0xC0, 0xC2, 0xC3):
        return place + 1, 0
    if first < 0x90:
        return place + 1, (first & 0x0F) * 2
    if first < 0xA0:
        return place + 1, first & 0x0F
    if first < 0xC0:
        return _text(data, place + 1, first & 0x1F), 0
    if first in _FIXED:
        return _behind(data, place + 1, _FIXED[first]), 0
    if first in _COUNTED:
        size, values = _COUNTED[first]
        count = _number(data, place + 1, size)
        return place + 1 + size, count * values
    if first in _SIZED:
        size = _SIZED[first]
        length, start = _number(data, place + 1, size), place + 1 + size
        return (_text if first >= 0xD9 else _behind)(data, start, length), 0
    if first == 0xC1:
        raise RefusedError(ErrorCode.NOT_MSGPACK, "the byte 0xc1 is not MessagePack", place)
    return _extension(data, place, first), 0


def _extension(data: bytes, place: int, first: int) -> int:
    size = _EXTENSIONS.get(first, 0)
    length = _number(data, place + 1, size) if size else 1 << (first - 0xD4)
    end = _behind(data, place + 1 + size, length + 1)
    code = int.from_bytes(data[place + 1 + size : place + 2 + size], signed=True)
    if code != -1:
        reason = f"a value has the extension type {code}, whose meaning is unknown"
        raise RefusedError(ErrorCode.UNKNOWN_EXTENSION, reason, place)
    if length not in _TIMESTAMPS:
        raise RefusedError(ErrorCode.NOT_MSGPACK, f"a timestamp has {length} bytes", place)
    return end


def _number(data: bytes, place: int, size: int) -> int:
    return int.from_bytes(data[place : _behind(data, place, size)])


def _text(data: bytes, place: int, length: int) -> int:
    end = _behind(data, place, length)
    try:
        data[place:end].decode()
    except UnicodeDecodeError as error:
        reason = "a text is not UTF-8"
        raise RefusedError(ErrorCode.INVALID_UTF8, reason, place + error.start) from None
    return end


def _behind(data: bytes, place: int, length: int) -> int:
    if length > len(data) - place:
        raise _truncated(len(data))
    return place + length


def _truncated(place: int) -> RefusedError:
    return RefusedError(
        ErrorCode.PAYLOAD_TRUNCATED, "the payload ends before its value does", place
    )
