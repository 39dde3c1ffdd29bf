"""What may change in a protobuf schema while its data stays readable, as Confluent judges it.

Fields are compared by number, whatever they are called. Two deliberate differences to Confluent:
a number whose type is numeric may not change between one and many even where the label is implicit
(a packed list cannot be read as one value), and a number that was reserved stays reserved.
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
    """Why data of one descriptor set's schema cannot be read with another's; empty when it can."""
    old, new = _own_file(writer), _own_file(reader)
    found = []
    if old.package != new.package:
        found.append(f"package {old.package or '(none)'} became {new.package or '(none)'}")
    waiting: list[Pair] = []
    found += _messages(old.message_types_by_name, new.message_types_by_name, waiting)
    seen: set[tuple[str, str]] = set()
    # a work list instead of recursion: types from outside may refer to each other without end
    while waiting:
        pair = waiting.pop()
        names = (pair[0].full_name, pair[1].full_name)
        if names not in seen:
            seen.add(names)
            found += _message(*pair, waiting)
    return found


def reused_numbers(older: bytes, newer: bytes) -> list[str]:
    """Fields of a schema that take a number which an older version of it had reserved."""
    now = {_local_name(message): message for message in _all_messages(_own_file(newer))}
    found = []
    for before in _all_messages(_own_file(older)):
        after, proto = now.get(_local_name(before)), DescriptorProto()
        before.CopyToProto(proto)
        found += [
            f"{_label(field)} takes a number that was reserved"
            for field in (after.fields if after is not None else ())
            if any(r.start <= field.number < r.end for r in proto.reserved_range)
        ]
    return found


@lru_cache(maxsize=256)
def _own_file(descriptor_set: bytes) -> FileDescriptor:
    files = FileDescriptorSet.FromString(descriptor_set).file
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.AddSerializedFile(file.SerializeToString())
    return pool.FindFileByName(files[-1].name)


def _nested(message: Descriptor) -> dict[str, Descriptor]:
    return {n.name: n for n in message.nested_types if not n.GetOptions().map_entry}


def _all_messages(file: FileDescriptor) -> Iterator[Descriptor]:
    waiting = list(file.message_types_by_name.values())
    while waiting:
        message = waiting.pop()
        yield message
        waiting += _nested(message).values()


def _local_name(message: Descriptor) -> str:
    package = message.file.package
    return str(message.full_name).removeprefix(f"{package}." if package else "")


def _label(field: FieldDescriptor, owner: Descriptor | None = None) -> str:
    return f"field {field.number} ({(owner or field.containing_type).name}.{field.name})"


def _kind(field: FieldDescriptor) -> str:
    """What its bytes look like: a field may change between types of one kind."""
    kind = _KIND[field.type]
    is_map = kind == "message" and field.message_type.GetOptions().map_entry
    return "map" if is_map else kind


def _type(field: FieldDescriptor) -> str:
    return str(FieldDescriptorProto.Type.Name(field.type)).removeprefix("TYPE_").lower()


def _oneof(field: FieldDescriptor) -> str | None:
    # a proto3 `optional` is a oneof of one here, and a oneof of one has nothing to lose
    return field.containing_oneof.name if field.containing_oneof is not None else None


def _messages(
    old: Mapping[str, Descriptor], new: Mapping[str, Descriptor], waiting: list[Pair]
) -> list[str]:
    waiting += [(old[name], new[name]) for name in old if name in new]
    return [f"message {old[name].full_name} is gone" for name in old if name not in new]


def _message(old: Descriptor, new: Descriptor, waiting: list[Pair]) -> list[str]:
    before, after = ({field.number: field for field in each.fields} for each in (old, new))
    surviving = {_oneof(f) for number, f in before.items() if number in after} - {None}
    found = _merged_oneofs(new, before)
    for number, field in before.items():
        if number in after:
            found += _compare(field, after[number], new, waiting)
        elif field.is_required:
            found.append(f"{_label(field)} is gone, though it was required")
        elif _oneof(field) in surviving:
            found.append(f"{_label(field)} is gone from oneof {_oneof(field)}")
    found += [
        f"{_label(field)} is new and required"
        for number, field in after.items()
        if number not in before and field.is_required
    ]
    return found + _messages(_nested(old), _nested(new), waiting)


def _merged_oneofs(message: Descriptor, before: Mapping[int, FieldDescriptor]) -> list[str]:
    """Fields that could be set together before, and of which now one would erase the other."""
    return [
        f"oneof {message.name}.{oneof.name} now holds fields that could be set together"
        for oneof in message.oneofs
        if len({_oneof(before[f.number]) or f.number for f in oneof.fields if f.number in before})
        > 1
    ]


def _compare(
    old: FieldDescriptor, new: FieldDescriptor, owner: Descriptor, waiting: list[Pair]
) -> list[str]:
    label, kind = _label(new, owner), _kind(new)
    if _kind(old) != kind:
        return [f"{label} was {_shown(old)} and is {_shown(new)}"]
    if kind == "map":
        was, now = old.message_type.fields_by_number, new.message_type.fields_by_number
        pairs = ((was[number], now[number]) for number in (1, 2))
        return [m for pair in pairs for m in _compare(*pair, owner, waiting)]
    found = []
    if old.message_type is not None and new.message_type is not None:
        was, now = old.message_type, new.message_type
        if _local_name(was) != _local_name(now):
            found.append(f"{label} was a {was.full_name}, is a {now.full_name}")
        else:
            waiting.append((was, now))
    if old.is_repeated != new.is_repeated and kind not in _SPARED_BY_LABELS:
        found.append(f"{label} of type {_type(new)} changed between one value and many")
    if new.is_required and not old.is_required:
        found.append(f"{label} became required")
    return found


def _shown(field: FieldDescriptor) -> str:
    kind, type_ = _kind(field), _type(field)
    return type_ if kind == type_ else f"{type_} ({kind})"
