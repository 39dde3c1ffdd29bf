"""The few pieces of the protobuf and registry wire formats that a fast writer needs.

A template per schema with values dropped in is several times faster than building message objects;
the tests hold the bytes against the official runtime.
"""

from __future__ import annotations

VARINT, DELIMITED, FIXED32 = 0, 2, 5


def varint(number: int) -> bytes:
    """A number that is not negative, seven bits a byte, lowest first."""
    return _SMALL[number] if number < len(_SMALL) else _varint(number)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


_SMALL = tuple(_varint(n) for n in range(4096))


def tag(number: int, wire_type: int) -> bytes:
    """What stands before a field's value."""
    return varint(number << 3 | wire_type)


def delimited(number: int, body: bytes) -> bytes:
    """A string, bytes or message field."""
    return tag(number, DELIMITED) + varint(len(body)) + body


def header(schema_id: int) -> bytes:
    """The registry's header for the first message of a file: magic, schema id, message index."""
    return b"\x00" + schema_id.to_bytes(4, "big") + b"\x00"
