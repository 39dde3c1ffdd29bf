"""Checks whether data of one protobuf schema can be read with another, as Confluent does.

Fields are compared by number, whatever their names. There are two deliberate differences to
Confluent. A field of a numeric type may not change between one value and many, even with an
implicit label, because a packed list cannot be read as one value. And a reserved number stays
reserved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorSet

_GROUPS: Mapping[str, tuple[str, ...]] = {
    "varint": ("INT32", "INT64", "UINT32", "UINT64", "BOOL", "ENUM"),
    "zigzag": ("SINT32", "SINT64"),
    "text": ("STRING", "BYTES"),
    "fixed32": ("FIXED32", "SFIXED32"),
    "fixed64": ("FIXED64", "SFIXED64"),
    "float": ("FLOAT",),
    "double": ("DOUBLE",),
    "message": ("MESSAGE",),
    "group": ("GROUP",),
}
_KIND = {
    FieldDescriptorProto.Type.Value(f"TYPE_{name}"): kind
    for kind, names in _GROUPS.items()
    for name in names
}
_SPARED_BY_LABELS = ("text", "message", "group", "map")

Pair = tuple[Descriptor, Descriptor]


def unreadable(writer: bytes, reader: bytes) -> list[str]:
    """Return the reasons why data of one descriptor set cannot be read with another."""
    old, new = _own_file(writer), _own_file(reader)
    problems = []
    if old.package != new.package:
        problems.append(f"package {old.package or '(none)'} became {new.package or '(none)'}")
    pending: list[Pair] = []
    problems += _messages(old.message_types_by_name, new.message_types_by_name, pending)
    seen: set[tuple[str, str]] = set()
    # a work list instead of recursion, because types from outside may refer to each other endlessly
    while pending:
        pair = pending.pop()
        names = (pair[0].full_name, pair[1].full_name)
        if names not in seen:
            seen.add(names)
            problems += _message(*pair, pending)
    return problems


def reused_numbers(older: bytes, newer: bytes) -> list[str]:
    """Return the fields of a schema that use a number which an older version had reserved."""
    now = {_local_name(message): message for message in _all_messages(_own_file(newer))}
    problems = []
    for before in _all_messages(_own_file(older)):
        after, proto = now.get(_local_name(before)), DescriptorProto()
        before.CopyToProto(proto)
        problems += [
            f"{_label(field)} takes a number that was reserved"
            for field in (after.fields if after is not None else ())
            if any(
                reserved.start <= field.number < reserved.end for reserved in proto.reserved_range
            )
        ]
    return problems


@lru_cache(maxsize=256)
def _own_file(descriptor_set: bytes) -> FileDescriptor:
    files = FileDescriptorSet.FromString(descriptor_set).file
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.AddSerializedFile(file.SerializeToString())
    return pool.FindFileByName(files[-1].name)


def _nested(message: Descriptor) -> dict[str, Descriptor]:
    return {
        nested.name: nested for nested in message.nested_types if not nested.GetOptions().map_entry
    }


def _all_messages(file: FileDescriptor) -> Iterator[Descriptor]:
    pending = list(file.message_types_by_name.values())
    while pending:
        message = pending.pop()
        yield message
        pending += _nested(message).values()


def _local_name(message: Descriptor) -> str:
    package = message.file.package
    return str(message.full_name).removeprefix(f"{package}." if package else "")


def _label(field: FieldDescriptor, owner: Descriptor | None = None) -> str:
    return f"field {field.number} ({(owner or field.containing_type).name}.{field.name})"


def _kind(field: FieldDescriptor) -> str:
    """Return the encoding of a field; a field may change between types of one encoding."""
    kind = _KIND[field.type]
    is_map = kind == "message" and field.message_type.GetOptions().map_entry
    return "map" if is_map else kind


def _type(field: FieldDescriptor) -> str:
    return str(FieldDescriptorProto.Type.Name(field.type)).removeprefix("TYPE_").lower()


def _oneof(field: FieldDescriptor) -> str | None:
    # a proto3 `optional` is a oneof with one member here, which makes no difference
    return field.containing_oneof.name if field.containing_oneof is not None else None


def _messages(
    old: Mapping[str, Descriptor], new: Mapping[str, Descriptor], pending: list[Pair]
) -> list[str]:
    pending += [(old[name], new[name]) for name in old if name in new]
    return [f"message {old[name].full_name} is gone" for name in old if name not in new]


def _message(old: Descriptor, new: Descriptor, pending: list[Pair]) -> list[str]:
    before, after = ({field.number: field for field in message.fields} for message in (old, new))
    surviving = {_oneof(field) for number, field in before.items() if number in after} - {None}
    problems = _merged_oneofs(new, before)
    for number, field in before.items():
        if number in after:
            problems += _compare(field, after[number], new, pending)
        elif field.is_required:
            problems.append(f"{_label(field)} is gone, though it was required")
        elif _oneof(field) in surviving:
            problems.append(f"{_label(field)} is gone from oneof {_oneof(field)}")
    problems += [
        f"{_label(field)} is new and required"
        for number, field in after.items()
        if number not in before and field.is_required
    ]
    return problems + _messages(_nested(old), _nested(new), pending)


def _merged_oneofs(message: Descriptor, before: Mapping[int, FieldDescriptor]) -> list[str]:
    """Report fields that could be set together before and now exclude each other."""
    return [
        f"oneof {message.name}.{oneof.name} now holds fields that could be set together"
        for oneof in message.oneofs
        if len(
            {
                _oneof(before[field.number]) or field.number
                for field in oneof.fields
                if field.number in before
            }
        )
        > 1
    ]


def _compare(
    old: FieldDescriptor, new: FieldDescriptor, owner: Descriptor, pending: list[Pair]
) -> list[str]:
    label, kind = _label(new, owner), _kind(new)
    if _kind(old) != kind:
        return [f"{label} was {_shown(old)} and is {_shown(new)}"]
    if kind == "map":
        was, now = old.message_type.fields_by_number, new.message_type.fields_by_number
        pairs = ((was[number], now[number]) for number in (1, 2))
        return [message for pair in pairs for message in _compare(*pair, owner, pending)]
    problems = []
    if old.message_type is not None and new.message_type is not None:
        was, now = old.message_type, new.message_type
        if _local_name(was) != _local_name(now):
            problems.append(f"{label} was a {was.full_name}, is a {now.full_name}")
        else:
            pending.append((was, now))
    if old.is_repeated != new.is_repeated and kind not in _SPARED_BY_LABELS:
        problems.append(f"{label} of type {_type(new)} changed between one value and many")
    if new.is_required and not old.is_required:
        problems.append(f"{label} became required")
    return problems


def _shown(field: FieldDescriptor) -> str:
    kind, type_ = _kind(field), _type(field)
    return type_ if kind == type_ else f"{type_} ({kind})"
