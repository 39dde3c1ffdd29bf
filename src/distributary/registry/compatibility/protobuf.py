"""What may change in a protobuf schema while its data stays readable, as Confluent judges it.

Fields are compared by number, whatever they are called. Two deliberate differences to Confluent:
a number whose type is numeric may not change between one and many even where the label is implicit
(a packed list cannot be read as one value), and a number that was reserved stays reserved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class _Field:
    number: int
    name: str
    kind: str
    type: str
    message: Descriptor | None
    repeated: bool
    required: bool
    oneof: str | None

    def label(self, owner: Descriptor) -> str:
        return f"field {self.number} ({owner.name}.{self.name})"


def unreadable(writer: bytes, reader: bytes) -> list[str]:
    """Why data of one descriptor set's schema cannot be read with another's; empty when it can."""
    old, new = _own_file(writer), _own_file(reader)
    found = []
    if old.package != new.package:
        found.append(f"package {old.package or '(none)'} became {new.package or '(none)'}")
    waiting: list[Pair] = []
    found += _messages(_top(old), _top(new), waiting)
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
        after = now.get(_local_name(before))
        ranges = _proto(before).reserved_range
        if after is None or not ranges:
            continue
        found += [
            f"{field.label(after)} takes a number that was reserved"
            for field in _fields(after).values()
            if any(r.start <= field.number < r.end for r in ranges)
        ]
    return found


@lru_cache(maxsize=256)
def _own_file(descriptor_set: bytes) -> FileDescriptor:
    files = FileDescriptorSet.FromString(descriptor_set).file
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.AddSerializedFile(file.SerializeToString())
    return pool.FindFileByName(files[-1].name)


def _top(file: FileDescriptor) -> dict[str, Descriptor]:
    return dict(file.message_types_by_name)


def _nested(message: Descriptor) -> dict[str, Descriptor]:
    return {n.name: n for n in message.nested_types if not n.GetOptions().map_entry}


def _all_messages(file: FileDescriptor) -> Iterator[Descriptor]:
    waiting = list(_top(file).values())
    while waiting:
        message = waiting.pop()
        yield message
        waiting += _nested(message).values()


def _local_name(message: Descriptor) -> str:
    package = message.file.package
    return str(message.full_name).removeprefix(f"{package}." if package else "")


def _proto(message: Descriptor) -> DescriptorProto:
    proto = DescriptorProto()
    message.CopyToProto(proto)
    return proto


def _fields(message: Descriptor) -> dict[int, _Field]:
    return {field.number: _field(field) for field in message.fields}


def _field(field: FieldDescriptor) -> _Field:
    kind = _KIND[field.type]
    if kind == "message" and field.message_type.GetOptions().map_entry:
        kind = "map"
    # a proto3 `optional` is a oneof of one here, and a oneof of one has nothing to lose
    oneof = field.containing_oneof
    return _Field(
        number=field.number,
        name=field.name,
        kind=kind,
        type=FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower(),
        message=field.message_type,
        repeated=field.is_repeated,
        required=field.is_required,
        oneof=oneof.name if oneof is not None else None,
    )


def _messages(
    old: Mapping[str, Descriptor], new: Mapping[str, Descriptor], waiting: list[Pair]
) -> list[str]:
    waiting += [(old[name], new[name]) for name in old if name in new]
    return [f"message {old[name].full_name} is gone" for name in old if name not in new]


def _message(old: Descriptor, new: Descriptor, waiting: list[Pair]) -> list[str]:
    before, after = _fields(old), _fields(new)
    surviving = {f.oneof for number, f in before.items() if f.oneof and number in after}
    found = _merged_oneofs(new, before, after)
    for number, field in before.items():
        if number in after:
            found += _compare(field, after[number], new, waiting)
        elif field.required:
            found.append(f"{field.label(old)} is gone, though it was required")
        elif field.oneof in surviving:
            found.append(f"{field.label(old)} is gone from oneof {field.oneof}")
    found += [
        f"{field.label(new)} is new and required"
        for number, field in after.items()
        if number not in before and field.required
    ]
    return found + _messages(_nested(old), _nested(new), waiting)


def _merged_oneofs(
    message: Descriptor, before: Mapping[int, _Field], after: Mapping[int, _Field]
) -> list[str]:
    """Fields that could be set together before, and of which now one would erase the other."""
    origins: dict[str, set[str | int]] = {}
    for number, field in after.items():
        if field.oneof and number in before:
            origins.setdefault(field.oneof, set()).add(before[number].oneof or number)
    return [
        f"oneof {message.name}.{name} now holds fields that could be set together"
        for name, groups in origins.items()
        if len(groups) > 1
    ]


def _compare(old: _Field, new: _Field, owner: Descriptor, waiting: list[Pair]) -> list[str]:
    label = new.label(owner)
    if old.kind != new.kind:
        return [f"{label} was {_shown(old)} and is {_shown(new)}"]
    if old.kind == "map":
        entries = zip(_entry(old), _entry(new), strict=True)
        return [m for pair in entries for m in _compare(*pair, owner, waiting)]
    found = []
    if old.message is not None and new.message is not None:
        if _local_name(old.message) != _local_name(new.message):
            found.append(f"{label} was a {old.message.full_name}, is a {new.message.full_name}")
        else:
            waiting.append((old.message, new.message))
    if old.repeated != new.repeated and old.kind not in _SPARED_BY_LABELS:
        found.append(f"{label} of type {new.type} changed between one value and many")
    if new.required and not old.required:
        found.append(f"{label} became required")
    return found


def _entry(field: _Field) -> tuple[_Field, _Field]:
    parts = _fields(field.message)
    return parts[1], parts[2]


def _shown(field: _Field) -> str:
    return field.type if field.kind == field.type else f"{field.type} ({field.kind})"
