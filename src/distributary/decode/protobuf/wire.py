"""The protobuf wire format: faults in payloads, the number of their items, and views for people."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from operator import length_hint
from typing import Any, NamedTuple

from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError as ParseError
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.text_encoding import CEscape
from google.protobuf.unknown_fields import UnknownFieldSet

from distributary.decode.base import (
    JSON_GROWTH,
    TEXT,
    Expansion,
    RefusedError,
    width,
)
from distributary.decode.payload_view import VIEW_CHARACTERS, printable_lines
from distributary.decode.protobuf.schema import (
    OFFICIAL_MAX_DEPTH,
    TEXT_KINDS,
    ProtobufKind,
    ProtobufValue,
    find_message,
    open_pool,
    wire_types,
)
from distributary.errors import DecodeError, ErrorCode

VARINT, FIXED64, BYTES, START_GROUP, END_GROUP, FIXED32 = range(6)
_MAX_TAG = 0xFFFF_FFFF
_PACKED = {
    **dict.fromkeys(wire_types("FIXED64", "SFIXED64", "DOUBLE"), 8),
    **dict.fromkeys(wire_types("FIXED32", "SFIXED32", "FLOAT"), 4),
}
_NEVER_PACKED = (FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_GROUP)
_WIRE_NAMES = ("a varint", "8 bytes", "a length and bytes", "a group", "a group's end", "4 bytes")
_WIRES = {
    FieldDescriptor.TYPE_GROUP: START_GROUP,
    **{type_: FIXED64 if width == 8 else FIXED32 for type_, width in _PACKED.items()},
    **dict.fromkeys(wire_types("BYTES", "STRING", "MESSAGE"), BYTES),
}
"""The wire type of a field by its declared type; all other types are varints."""


class WireStoppedAtError(RefusedError):
    """A payload that cannot be read further than `position`."""

    def __init__(
        self, position: int, reason: str, code: ErrorCode = ErrorCode.PAYLOAD_MISMATCH
    ) -> None:
        super().__init__(code, reason, position)


def find_fault(payload: bytes, descriptor: Descriptor, *, max_depth: int) -> RefusedError | None:
    """Return the first fault that keeps a payload from being a message of this type, if any."""
    return _Walk(payload, max_depth).fault(descriptor)


def find_foreign(
    payload: bytes, descriptor: Descriptor
) -> tuple[RefusedError | None, RefusedError | None]:
    """Return the first field with a wrong wire type, and the first field unknown to the schema.

    Numbers that a message reserves for extensions do not count as unknown.
    """
    walk = _Walk(payload, OFFICIAL_MAX_DEPTH, judges=True)
    return walk.fault(descriptor), walk.unknown


def read_varint(payload: bytes, position: int, end: int) -> tuple[int, int]:
    """Return a varint and the position after it."""
    value = shift = 0
    for index in range(position, min(end, position + 10)):
        byte = payload[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, index + 1
        shift += 7
    if position + 10 <= end:
        raise WireStoppedAtError(position, "a number is longer than ten bytes")
    raise WireStoppedAtError(position, "the payload ends inside a number")


def read_tag(payload: bytes, position: int, end: int) -> tuple[int, int, int]:
    """Return a field number, its wire type and the position after them."""
    tag, after = read_varint(payload, position, end)
    number, wire = tag >> 3, tag & 7
    if number == 0 or tag > _MAX_TAG or after - position > 5 or wire > FIXED32:
        raise WireStoppedAtError(position, "this is not the start of a field")
    return number, wire, after


def read_span(payload: bytes, wire: int, position: int, end: int) -> tuple[int, int]:
    """Return the start and end of the content of a value that is no group."""
    if wire == VARINT:
        return position, read_varint(payload, position, end)[1]
    start, length = position, 8 if wire == FIXED64 else 4
    if wire == BYTES:
        length, start = read_varint(payload, position, end)
    if start + length > end:
        raise WireStoppedAtError(
            position, f"a value should have {length} bytes, and {end - start} are left"
        )
    return start, start + length


class _Walk:
    def __init__(self, payload: bytes, max_depth: int, *, judges: bool = False) -> None:
        self._payload = payload
        self._max_depth = max_depth
        self._judges = judges
        self.unknown: RefusedError | None = None

    def fault(self, descriptor: Descriptor) -> RefusedError | None:
        """Return the fault at which the payload stops being a message of a type, if any."""
        try:
            self.message(0, len(self._payload), descriptor, 0)
        except WireStoppedAtError as stopped:
            # without the traceback, because there may be one fault for each payload
            return stopped.with_traceback(None)
        return None

    def message(
        self, position: int, end: int, descriptor: Descriptor | None, depth: int, group: int = 0
    ) -> int:
        """Walk a message up to `end`, or a group to its end tag; return the position after it."""
        if depth > self._max_depth:
            reason = f"messages nest deeper than {self._max_depth} levels"
            raise WireStoppedAtError(position, reason, ErrorCode.NESTING_TOO_DEEP)
        while position < end:
            number, wire, after = read_tag(self._payload, position, end)
            if wire == END_GROUP:
                if number != group:
                    raise WireStoppedAtError(position, f"group #{number} ends but did not start")
                return after
            field = descriptor.fields_by_number.get(number) if descriptor is not None else None
            if self._judges and descriptor is not None:
                self._judge(position, number, wire, field, descriptor)
            if wire == START_GROUP:
                is_group = field is not None and field.type == FieldDescriptor.TYPE_GROUP
                below = field.message_type if field is not None and is_group else None
                position = self.message(after, end, below, depth + 1, number)
            else:
                start, position = read_span(self._payload, wire, after, end)
                if wire == BYTES and field is not None:
                    self._content(start, position, field, depth)
        if group:
            raise WireStoppedAtError(position, f"group #{group} does not end")
        return position

    def _judge(
        self,
        position: int,
        number: int,
        wire: int,
        field: FieldDescriptor | None,
        descriptor: Descriptor,
    ) -> None:
        if field is not None:
            usual = _WIRES.get(field.type, VARINT)
            packed = wire == BYTES and field.is_repeated and field.type not in _NEVER_PACKED
            if wire != usual and not packed:
                reason = (
                    f"field {field.full_name} (#{number}) is encoded as {_WIRE_NAMES[wire]},"
                    f" but its type is encoded as {_WIRE_NAMES[usual]}"
                )
                raise WireStoppedAtError(position, reason)
        elif self.unknown is None and not may_be_extended(descriptor, number):
            reason = f"{descriptor.full_name} has no field #{number}"
            self.unknown = WireStoppedAtError(position, reason)

    def _content(self, start: int, end: int, field: FieldDescriptor, depth: int) -> None:
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            self.message(start, end, field.message_type, depth + 1)
        elif field.type == FieldDescriptor.TYPE_STRING:
            try:
                self._payload[start:end].decode("utf-8")
            except UnicodeDecodeError as error:
                reason = f"field {field.full_name} holds text that is not UTF-8"
                position = start + error.start
                raise WireStoppedAtError(position, reason, ErrorCode.INVALID_UTF8) from None
        elif field.is_repeated and field.type not in _NEVER_PACKED:
            self._packed(start, end, field)

    def _packed(self, start: int, end: int, field: FieldDescriptor) -> None:
        width = _PACKED.get(field.type)
        if width is None:
            while start < end:
                _, start = read_varint(self._payload, start, end)
        elif (end - start) % width:
            reason = f"field {field.full_name} has {end - start} bytes of items of {width} bytes"
            raise WireStoppedAtError(start, reason)


def may_be_extended(descriptor: Descriptor, number: int) -> bool:
    """Return True if a message reserves a field number for extensions."""
    if any(start <= number < end for start, end in descriptor.extension_ranges):
        return True
    # the old message-set format, in which extensions are groups of type and content
    return bool(descriptor.GetOptions().message_set_wire_format)


@dataclass(frozen=True, slots=True)
class _Items:
    """The bytes of columns that a field adds for its items."""

    width: int
    """Bytes of columns for each occurrence; 0 for a single message."""
    packed: int
    """Bytes of one packed item, 1 for varints; 0 if items are not packed."""
    below: Mapping[int, _Items]
    """The fields of a message that add bytes themselves."""
    group: bool = False


_NO_ITEMS = _Items(0, 0, {})
_VARINT_ENDS = bytes(range(0x80, 0x100))
"""Bytes that do not end a varint; every varint has exactly one byte that is none of these."""


def expansion_of(message: ProtobufValue) -> Expansion:
    """Return the estimate of the memory that payloads of a planned message need as columns."""
    fields = _items(message)
    row = width(message.type)
    all_items = list(_every(fields))
    # A tag begins with these seven bits in every encoding, and a length follows it.
    width_by_tag: dict[int, int] = {}
    plain = JSON_GROWTH if _has_text(message) else 1
    factor = 1
    for number, items in all_items:
        if items.packed:
            plain = max(plain, _per_byte(number, items))
        elif items.width:
            low = (number << 3 | (START_GROUP if items.group else BYTES)) & 0x7F
            width_by_tag[low] = max(width_by_tag.get(low, 0), items.width)
            factor = max(factor, _per_byte(number, items))

    def measure(payload: bytes, limit: int) -> int:
        most = row + plain * len(payload)
        for low, size in width_by_tag.items():
            most += size * (payload.count(low) + payload.count(low | 0x80))
        if most <= limit:
            return most
        counted = _Count(payload, limit, row + len(payload))
        # where this walk stops, the parser stops too
        with suppress(WireStoppedAtError):
            counted.message(0, len(payload), fields, 0)
        return counted.size

    return Expansion(row, max(plain, factor), measure)


def _items(message: ProtobufValue) -> dict[int, _Items]:
    """Return the fields of a message that repeat, or contain fields that repeat."""
    fields: dict[int, _Items] = {}
    for field in message.fields:
        below: Mapping[int, _Items] = _items(field.value)
        size = packed = 0
        if field.key is not None:
            below = {2: _Items(0, 0, below)} if below else {}
            size = width(field.key.type) + width(field.value.type)
        elif field.value.kind in TEXT_KINDS:
            size = TEXT
        elif field.repeated:
            size = width(field.value.type)
            usual = _WIRES.get(field.value.wire, VARINT)
            if field.value.kind is ProtobufKind.ENUM:
                size += max(map(len, field.value.names.values()), default=0)
            if field.value.wire and not field.value.wrapped and usual != BYTES:
                packed = _PACKED.get(field.value.wire, 1)
        if size or below:
            fields[field.number] = _Items(size, packed, below, field.group)
    return fields


def _every(fields: Mapping[int, _Items]) -> Iterator[tuple[int, _Items]]:
    for number, items in fields.items():
        yield number, items
        yield from _every(items.below)


def _per_byte(number: int, items: _Items) -> int:
    """Return the most bytes of columns for each byte of an item."""
    least = items.packed or 1 + ((number << 3).bit_length() + 6) // 7
    return -(-items.width // least)


def _has_text(message: ProtobufValue) -> bool:
    return any(field.value.kind in TEXT_KINDS or _has_text(field.value) for field in message.fields)


class _Count:
    """A walk that counts the items in a payload until there are too many."""

    def __init__(self, payload: bytes, limit: int, size: int) -> None:
        self._payload = payload
        self._limit = limit
        self.size = size

    def message(self, position: int, end: int, fields: Mapping[int, _Items], depth: int) -> int:
        """Walk a message up to `end`, or a group to its end tag; return the position after it."""
        payload = self._payload
        if depth > OFFICIAL_MAX_DEPTH:
            raise WireStoppedAtError(position, "messages nest too deep")
        while position < end and self.size <= self._limit:
            tag = payload[position]
            if tag < 0x80 and tag & 7 == BYTES and position + 1 < end and not payload[position + 1]:
                # an empty item in its shortest form, of which payloads with many items consist
                items = fields.get(tag >> 3, _NO_ITEMS)
                self.size += 0 if items.packed else items.width
                position += 2
                continue
            number, wire, position = read_tag(payload, position, end)
            items = fields.get(number, _NO_ITEMS)
            if wire == END_GROUP:
                return position
            if wire == START_GROUP:
                self.size += items.width
                position = self.message(position, end, items.below, depth + 1)
                continue
            start, position = read_span(payload, wire, position, end)
            if wire == BYTES and items.packed:
                self.size += items.width * self._packed(start, position, items.packed)
                continue
            self.size += items.width
            if wire == BYTES and items.below:
                self.message(start, position, items.below, depth + 1)
        return position

    def _packed(self, start: int, end: int, size: int) -> int:
        if size > 1:
            return (end - start) // size
        return len(self._payload[start:end].translate(None, _VARINT_ENDS))


# The official parser decides which payloads of an array are not messages of a type.

_BYTES_PER_MESSAGE = 4 * 1024 * 1024
_PAYLOADS_PER_MESSAGE = 4_096


class Judged(NamedTuple):
    """The indices of payloads that need a closer look."""

    rejected: list[int]
    """Payloads that do not parse."""
    foreign: dict[int, bool]
    """Payloads that parse and hold a field that the schema does not have or has with another wire
    type. The value is False if the field is certainly unknown to the schema."""


def judge(new_message: Callable[[], Any], payloads: Sequence[bytes], *, size: int) -> Judged:
    """Parse payloads of about `size` bytes together, and report those that need a closer look.

    `new_message` creates an empty message of the type, or of a type changed by
    `with_nothing_replaced`.
    """
    # Merging many payloads into one message is several times faster than a message for each, but
    # the message keeps the memory of all of them.
    share = _BYTES_PER_MESSAGE * len(payloads) // (size + 1)
    step = max(1, min(_PAYLOADS_PER_MESSAGE, share))
    judged = Judged([], {})
    left = iter(payloads)
    start = 0
    while length_hint(left):
        message = new_message()
        try:
            # merged and not parsed one by one, so that the message keeps the unknown fields of all
            deque(map(message.MergeFromString, islice(left, step)), maxlen=0)
            parsed = end = len(payloads) - length_hint(left)
        except ParseError:
            end = len(payloads) - length_hint(left)
            parsed = end - 1
            judged.rejected.append(parsed)
            # a failed parse leaves an invalid value in a oneof, and reading it would crash the
            # runtime
            message = new_message()
            deque(map(message.MergeFromString, payloads[start:parsed]), maxlen=0)
        if parsed > start and _holds_unknown(message):
            message = new_message()
            deque(map(message.MergeFromString, payloads[start:parsed]), maxlen=0)
            doubtful = not _only_beyond(message)
            for index in range(start, parsed):
                message = new_message()
                message.MergeFromString(payloads[index])
                if _holds_unknown(message):
                    judged.foreign[index] = doubtful
        start = end
    return judged


def _holds_unknown(message: Any) -> bool:
    """Return True if a message has unknown fields, down to level 60, and discard them."""
    size = len(message.SerializePartialToString())
    message.DiscardUnknownFields()
    return size != len(message.SerializePartialToString())


def _only_beyond(message: Any) -> bool:
    """Return True if all unknown fields have numbers that their types neither use nor reserve."""
    type_ = message.DESCRIPTOR
    numbers = {field.field_number for field in UnknownFieldSet(message)}
    if any(
        number in type_.fields_by_number or may_be_extended(type_, number) for number in numbers
    ):
        return False
    inner_messages = [
        (field, content)
        for field, content in message.ListFields()
        if field.message_type is not None
    ]
    # inner extensions and lists are not examined, so they count as doubtful
    return all(
        not (field.is_extension or field.is_repeated) and _only_beyond(content)
        for field, content in inner_messages
    )


# A view of a payload for people, as far as it can be read.

_ZIGZAG = (FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SINT64)
_SIGNED = (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64)
_FIXED = {
    FieldDescriptor.TYPE_DOUBLE: "<d",
    FieldDescriptor.TYPE_FLOAT: "<f",
    FieldDescriptor.TYPE_SFIXED64: "<q",
    FieldDescriptor.TYPE_SFIXED32: "<i",
}


def best_effort_text(body: bytes | None, message: str, payload: bytes) -> str:
    """Return a payload in protobuf's text format, or its fields up to the first wrong byte."""
    descriptor: Descriptor | None = None
    try:
        pool = open_pool(body or b"", message)
        descriptor = find_message(pool, message)
        parsed = GetMessageClass(descriptor).FromString(payload)
        text: str = text_format.MessageToString(
            parsed, as_utf8=False, descriptor_pool=pool, print_unknown_fields=True
        )
    except (DecodeError, ParseError, RecursionError, ValueError, TypeError):
        text = _fields(descriptor, payload)
    more = len(text) - VIEW_CHARACTERS
    if more > 0:
        text = f"{text[:VIEW_CHARACTERS]}\n# {more} more characters are cut off\n"
    return printable_lines(text)


def _fields(descriptor: Descriptor | None, payload: bytes) -> str:
    dump = _Dump(payload)
    try:
        dump.message(0, len(payload), descriptor, 0)
    except WireStoppedAtError as stopped:
        dump.lines.append(f"# cannot be read from byte {stopped.position} on: {stopped.reason}")
    return "".join(f"{line}\n" for line in dump.lines)


class _Dump:
    """The lines of a view: one for each field, with its name or else its number."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self.lines: list[str] = []

    def message(
        self, position: int, end: int, descriptor: Descriptor | None, depth: int, group: int = 0
    ) -> int:
        """Write the fields up to `end`, or to a group's end; return the position after them."""
        while position < end:
            number, wire, after = read_tag(self._payload, position, end)
            if wire == END_GROUP:
                if number != group:
                    raise WireStoppedAtError(position, f"group #{number} ends but did not start")
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
            raise WireStoppedAtError(position, f"group #{group} does not end")
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
            raise WireStoppedAtError(position, f"nested deeper than {OFFICIAL_MAX_DEPTH} levels")
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
        """Write the bytes of an unknown field as a message, if they parse and are no text."""
        content = self._payload[start:end]
        if not content or (content.isascii() and content.decode("ascii").isprintable()):
            return False
        inner = _Dump(self._payload)
        try:
            inner._nested(name, start, end, None, depth)
        except WireStoppedAtError:
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
        enum_value = field.enum_type.values_by_number.get(signed)
        return enum_value.name if enum_value is not None else str(signed)
    return str(signed if field.type in _SIGNED else value)
