"""A payload for human eyes, as far as it can be read."""

from __future__ import annotations

import struct

from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError as ParseError
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.text_encoding import CEscape

from distributary.decode.protobuf_descriptors import OFFICIAL_MAX_DEPTH, find_message, open_pool
from distributary.decode.protobuf_wire import (
    BYTES,
    END_GROUP,
    START_GROUP,
    VARINT,
    StoppedAtError,
    read_span,
    read_tag,
    read_varint,
)
from distributary.errors import DecodeError

MAX_CHARACTERS = 200_000
"""A longer text is cut; a person reads the beginning."""

_ZIGZAG = (FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SINT64)
_SIGNED = (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64)
_FIXED = {
    FieldDescriptor.TYPE_DOUBLE: "<d",
    FieldDescriptor.TYPE_FLOAT: "<f",
    FieldDescriptor.TYPE_SFIXED64: "<q",
    FieldDescriptor.TYPE_SFIXED32: "<i",
}


def best_effort_text(body: bytes | None, message: str, payload: bytes) -> str:
    """The payload in protobuf's text format, or field by field up to the byte that is wrong.

    Args:
        body: The compiled schema, where there is one that can be used.
        message: The full name of the payload's type.
        payload: The bytes, whatever they are.

    Returns:
        Printable text; everything else in it is escaped.
    """
    pool, descriptor = _type(body, message)
    text = _official(pool, descriptor, payload) if descriptor is not None else None
    if text is None:
        text = _fields(descriptor, payload)
    if len(text) > MAX_CHARACTERS:
        text = f"{text[:MAX_CHARACTERS]}\n# {len(text) - MAX_CHARACTERS} more characters\n"
    return "".join(c if c == "\n" or c.isprintable() else ascii(c)[1:-1] for c in text)


def _type(body: bytes | None, message: str) -> tuple[DescriptorPool | None, Descriptor | None]:
    if body is None:
        return None, None
    try:
        pool = open_pool(body, message)
        return pool, find_message(pool, message)
    except DecodeError:
        return None, None


def _official(pool: DescriptorPool | None, descriptor: Descriptor, payload: bytes) -> str | None:
    try:
        parsed = GetMessageClass(descriptor).FromString(payload)
        return str(
            text_format.MessageToString(
                parsed, as_utf8=False, descriptor_pool=pool, print_unknown_fields=True
            )
        )
    except (ParseError, RecursionError, ValueError, TypeError):
        return None


def _fields(descriptor: Descriptor | None, payload: bytes) -> str:
    dump = _Dump(payload)
    try:
        dump.message(0, len(payload), descriptor, 0)
    except StoppedAtError as stopped:
        fault = stopped.fault
        dump.lines.append(f"# stops to make sense at byte {fault.position}: {fault.reason}")
    return "".join(f"{line}\n" for line in dump.lines)


class _Dump:
    """One line per field, with its name where the schema knows it and its number elsewhere."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self.lines: list[str] = []

    def message(
        self, position: int, end: int, descriptor: Descriptor | None, depth: int, group: int = 0
    ) -> int:
        """Write the fields up to `end`, or up to the end of a group; where that was."""
        while position < end:
            number, wire, after = read_tag(self._payload, position, end)
            if wire == END_GROUP:
                if number != group:
                    raise StoppedAtError(position, f"a group #{number} ends that was not started")
                return after
            field = descriptor.fields_by_number.get(number) if descriptor is not None else None
            name = field.name if field is not None else str(number)
            if wire == START_GROUP:
                below = field.message_type if field is not None else None
                position = self._nested(name, after, end, below, depth, number)
            else:
                start, position = read_span(self._payload, wire, after, end)
                self._value(name, wire, start, position, field, depth)
        if group:
            raise StoppedAtError(position, f"the group #{group} does not end")
        return position

    def _nested(
        self,
        name: str,
        position: int,
        end: int,
        descriptor: Descriptor | None,
        depth: int,
        group: int = 0,
    ) -> int:
        if depth >= OFFICIAL_MAX_DEPTH:
            raise StoppedAtError(position, f"nested deeper than {OFFICIAL_MAX_DEPTH} levels")
        self._line(depth, f"{name} {{")
        position = self.message(position, end, descriptor, depth + 1, group)
        self._line(depth, "}")
        return position

    def _value(
        self,
        name: str,
        wire: int,
        start: int,
        end: int,
        field: FieldDescriptor | None,
        depth: int,
    ) -> None:
        if wire != BYTES:
            self._line(depth, f"{name}: {_number(self._payload, wire, start, end, field)}")
        elif field is not None and field.type == FieldDescriptor.TYPE_MESSAGE:
            self._nested(name, start, end, field.message_type, depth)
        elif field is not None or not self._guess(name, start, end, depth):
            self._line(depth, f'{name}: "{CEscape(self._payload[start:end], as_utf8=False)}"')

    def _guess(self, name: str, start: int, end: int, depth: int) -> bool:
        """Write bytes of an unknown field as a message, if they are one and are not a text."""
        content = self._payload[start:end]
        if not content or (content.isascii() and content.decode("ascii").isprintable()):
            return False
        inner = _Dump(self._payload)
        try:
            inner._nested(name, start, end, None, depth)
        except StoppedAtError:
            return False
        self.lines.extend(inner.lines)
        return True

    def _line(self, depth: int, text: str) -> None:
        self.lines.append("  " * depth + text)


def _number(payload: bytes, wire: int, start: int, end: int, field: FieldDescriptor | None) -> str:
    if wire != VARINT:
        raw = payload[start:end]
        code = _FIXED.get(field.type) if field is not None else None
        if code is not None and struct.calcsize(code) == len(raw):
            return str(struct.unpack(code, raw)[0])
        return str(int.from_bytes(raw, "little"))
    value, _ = read_varint(payload, start, end)
    if field is None:
        return str(value)
    if field.type in _ZIGZAG:
        return str((value >> 1) ^ -(value & 1))
    if field.type == FieldDescriptor.TYPE_BOOL:
        return "true" if value else "false"
    signed = value - (1 << 64) if value >> 63 else value
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(signed)
        return known.name if known is not None else str(signed)
    return str(signed if field.type in _SIGNED else value)
