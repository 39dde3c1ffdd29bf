"""Random schemas and random messages for the tests of the protobuf decoder."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from google.protobuf import (
    any_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import FieldDescriptor as FD
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import strategies as st

from distributary.decode.base import DecodeLimits
from distributary.decode.protobuf.decoder import ProtobufDecoder

MODULES = (
    any_pb2,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
WELL_KNOWN = (
    "Any BoolValue BytesValue DoubleValue Duration Empty FieldMask FloatValue Int32Value "
    "Int64Value ListValue StringValue Struct Timestamp UInt32Value UInt64Value Value"
).split()
SCALARS = [t for t in range(1, 19) if t not in (FD.TYPE_GROUP, FD.TYPE_MESSAGE, FD.TYPE_ENUM)]
KEYS = [t for t in SCALARS if t not in (FD.TYPE_DOUBLE, FD.TYPE_FLOAT, FD.TYPE_BYTES)]
LIMITS = DecodeLimits(recursion_depth=1, drop_unknown_fields=True)
INTS = {
    FD.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FD.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FD.CPPTYPE_UINT32: (0, 2**32 - 1),
    FD.CPPTYPE_UINT64: (0, 2**64 - 1),
}


# random schemas


@st.composite
def schemas(draw: st.DrawFn) -> FileDescriptorProto:
    proto3 = draw(st.booleans())
    file = FileDescriptorProto(name="t.proto", package="t", syntax="proto3" if proto3 else "proto2")
    file.dependency.extend(module.DESCRIPTOR.name for module in MODULES)
    enum = file.enum_type.add(name="E")
    enum.options.allow_alias = True
    numbers = [0, 1, 1, 7, -1] if proto3 else draw(st.sampled_from([[5, 5, -3], [0, 1, 1, 9]]))
    for place, number in enumerate(numbers):
        enum.value.add(name=f"N{place}", number=number)
    count = draw(st.integers(1, 3))
    for place in range(count):
        file.message_type.add(name=f"M{place}")
    for message in file.message_type:
        fill(draw, message, proto3=proto3, count=count)
    return file


def fill(draw: st.DrawFn, message: DescriptorProto, *, proto3: bool, count: int) -> None:
    numbers = draw(st.lists(st.integers(1, 40), min_size=1, max_size=6, unique=True))
    oneof = len(numbers) > 3 and draw(st.booleans())
    if oneof:
        message.oneof_decl.add(name="choice")
    for place, number in enumerate(numbers):
        field = message.field.add(name=f"f{number}", number=number, label=FD.LABEL_OPTIONAL)
        in_oneof = oneof and place < 3
        kinds = ["scalar", "enum", "message", "known"]
        if not in_oneof:
            kinds += ["map"] if proto3 else ["map", "group"]
        kind = draw(st.sampled_from(kinds))
        if kind == "map":
            a_map(draw, message, field, count)
            continue
        if kind == "group":
            nested = message.nested_type.add(name=f"G{number}")
            nested.field.add(name="inner", number=1, type=FD.TYPE_INT32, label=FD.LABEL_OPTIONAL)
            field.type, field.type_name = FD.TYPE_GROUP, f".t.{message.name}.G{number}"
        else:
            typed(draw, field, kind, count)
        if in_oneof:
            field.oneof_index = 0
        elif draw(st.integers(0, 2)) == 0:
            field.label = FD.LABEL_REPEATED
        elif kind in ("scalar", "enum") and proto3 and draw(st.booleans()):
            field.proto3_optional = True
    # the oneofs that stand for `optional` come after the real ones
    for field in message.field:
        if field.proto3_optional:
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")


def typed(draw: st.DrawFn, field: FieldDescriptorProto, kind: str, count: int) -> None:
    match kind:
        case "scalar":
            field.type = draw(st.sampled_from(SCALARS))
        case "enum":
            field.type, field.type_name = FD.TYPE_ENUM, ".t.E"
        case "message":
            field.type = FD.TYPE_MESSAGE
            field.type_name = f".t.M{draw(st.integers(0, count - 1))}"
        case _:
            field.type = FD.TYPE_MESSAGE
            field.type_name = f".google.protobuf.{draw(st.sampled_from(WELL_KNOWN))}"


def a_map(
    draw: st.DrawFn, message: DescriptorProto, field: FieldDescriptorProto, count: int
) -> None:
    name = f"{field.name.capitalize()}Entry"
    entry = message.nested_type.add(name=name)
    entry.options.map_entry = True
    key = draw(st.sampled_from(KEYS))
    entry.field.add(name="key", number=1, type=key, label=FD.LABEL_OPTIONAL)
    value = entry.field.add(name="value", number=2, label=FD.LABEL_OPTIONAL)
    # a closed enum without zero has no default that the runtimes agree on
    typed(draw, value, draw(st.sampled_from(["scalar", "message", "known"])), count)
    field.type, field.label = FD.TYPE_MESSAGE, FD.LABEL_REPEATED
    field.type_name = f".t.{message.name}.{name}"


@dataclass
class Case:
    decoder: ProtobufDecoder
    strict: ProtobufDecoder
    """The same, but for fields that the schema does not have."""
    cls: Any
    unfolded: Any
    """A class of the same wire format in which nothing is replaced, left out or moved."""
    pool: Any
    rnd: random.Random
    proto2: bool


def case(file: FileDescriptorProto, seed: int) -> Case:
    files = [FileDescriptorProto.FromString(m.DESCRIPTOR.serialized_pb) for m in MODULES]
    body = FileDescriptorSet(file=[*files, file]).SerializeToString()
    pool = pool_of([*files, file])
    return Case(
        ProtobufDecoder(body, "t.M0", LIMITS),
        ProtobufDecoder(body, "t.M0", replace(LIMITS, drop_unknown_fields=False)),
        GetMessageClass(pool.FindMessageTypeByName("t.M0")),
        GetMessageClass(pool_of(map(unfolded, [*files, file])).FindMessageTypeByName("t.M0")),
        pool,
        random.Random(seed),
        file.syntax == "proto2",
    )


def pool_of(files: Iterable[FileDescriptorProto]) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for each in files:
        pool.Add(each)
    return pool


def unfolded(file: FileDescriptorProto) -> FileDescriptorProto:
    """Enums as numbers, maps as lists of entries, members of oneofs as fields."""
    copy = FileDescriptorProto.FromString(file.SerializeToString())
    messages = list(copy.message_type)
    for message in messages:
        messages += message.nested_type
        message.options.ClearField("map_entry")
        message.ClearField("oneof_decl")
        for field in message.field:
            for name in ("oneof_index", "proto3_optional", "default_value"):
                field.ClearField(name)
            if field.type == FD.TYPE_ENUM:
                field.type = FD.TYPE_INT32
                field.ClearField("type_name")
    return copy


def foreign(message: Any) -> Iterator[bool]:
    """Of an unfolded message: each unknown field, and whether its number is known."""
    known = message.DESCRIPTOR.fields_by_number
    yield from (unknown.field_number in known for unknown in UnknownFieldSet(message))
    for below in submessages(message):
        yield from foreign(below)


def submessages(message: Any) -> Iterator[Any]:
    for field, content in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            if field.message_type.fields_by_name["value"].message_type is not None:
                yield from (content[key] for key in content)
        else:
            yield from content if field.is_repeated else [content]


# random messages


def populate(message: Any, rnd: random.Random, depth: int) -> Any:
    name = message.DESCRIPTOR.full_name
    if name == "google.protobuf.Any":
        return pack(message, rnd)
    if name in ("google.protobuf.Timestamp", "google.protobuf.Duration"):
        return moment(message, rnd)
    for field in message.DESCRIPTOR.fields:
        if rnd.random() < 0.4 or (depth > 5 and field.message_type is not None):
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            a_map_value(message, field, rnd, depth)
        elif field.is_repeated:
            target = getattr(message, field.name)
            for _ in range(rnd.randrange(3)):
                if field.message_type is not None:
                    populate(target.add(), rnd, depth + 1)
                else:
                    target.append(scalar(field, rnd))
        elif field.message_type is not None:
            inner = getattr(message, field.name)
            inner.SetInParent()
            populate(inner, rnd, depth + 1)
        else:
            setattr(message, field.name, scalar(field, rnd))
    return message


def a_map_value(message: Any, field: Any, rnd: random.Random, depth: int) -> None:
    entry = field.message_type.fields_by_name
    target = getattr(message, field.name)
    for _ in range(rnd.randrange(3)):
        key = scalar(entry["key"], rnd)
        if entry["value"].message_type is not None:
            populate(target[key], rnd, depth + 1)
        else:
            target[key] = scalar(entry["value"], rnd)


def pack(message: Any, rnd: random.Random) -> Any:
    if rnd.random() < 0.5:
        message.type_url = "type.googleapis.com/google.protobuf.StringValue"
        message.value = wrappers_pb2.StringValue(value="packed").SerializeToString()
    elif rnd.random() < 0.5:
        message.type_url, message.value = "example.com/not.Known", rnd.randbytes(5)
    return message


def moment(message: Any, rnd: random.Random) -> Any:
    message.seconds = rnd.choice([0, 1, -1, 1_700_000_000, -62_135_596_800, 253_402_300_799])
    message.nanos = rnd.choice([0, 1, 999, 1_500, 999_999_999])
    if message.DESCRIPTOR.name == "Duration" and message.seconds <= 0:
        message.nanos = -message.nanos
    if rnd.random() < 0.02:
        message.seconds = rnd.choice([2**62, -(2**63), 400_000_000_000])
    return message


def scalar(field: Any, rnd: random.Random) -> Any:
    if field.enum_type is not None:
        numbers = [value.number for value in field.enum_type.values]
        return rnd.choice(numbers if field.enum_type.is_closed else [*numbers, 99])
    if field.cpp_type in INTS:
        low, high = INTS[field.cpp_type]
        return rnd.choice([low, high, max(low, -1), 0, 1, rnd.randint(low, high)])
    if field.type == FD.TYPE_BOOL:
        return rnd.random() < 0.5
    if field.type == FD.TYPE_BYTES:
        return rnd.randbytes(rnd.randrange(4))
    if field.type == FD.TYPE_STRING:
        return rnd.choice(["", "a", "grüße", "\x00\n", "日本", "🎲" * 3, "k1", "k2"])
    special = rnd.choice([0.0, -0.0, 1.5, 0.1, -1e30, math.inf, math.nan])
    return special if field.full_name != "google.protobuf.Value.number_value" else 2.5


def damaged(payload: bytes, rnd: random.Random) -> bytes:
    data = bytearray(payload)
    for _ in range(rnd.randrange(1, 4)):
        at = rnd.randrange(len(data) + 1)
        match rnd.randrange(5):
            case 0:
                del data[at:]
            case 1 if at < len(data):
                data[at] = rnd.randrange(256)
            case 2 if at < len(data):
                data[at] ^= 1 << rnd.randrange(8)
            case 3:
                data[at:at] = rnd.randbytes(rnd.randrange(1, 4))
            case _:
                del data[at : at + 1]
    return bytes(data)
