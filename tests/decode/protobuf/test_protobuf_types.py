"""The columns that a protobuf schema gives."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from distributary.decode.base import DecodeLimits
from distributary.decode.protobuf.decoder import ProtobufDecoder
from distributary.errors import DecodeError, ErrorCode
from distributary.model.table import Column

Compile = Callable[[str], bytes]


def columns(body: bytes, message: str, *, recursion_depth: int = 3) -> dict[str, Column]:
    limits = DecodeLimits(recursion_depth=recursion_depth)
    return {c.name: c for c in ProtobufDecoder(body, message, limits).columns}


def types(body: bytes, message: str, *, recursion_depth: int = 3) -> dict[str, pa.DataType]:
    found = columns(body, message, recursion_depth=recursion_depth)
    return {name: column.type for name, column in found.items()}


def test_scalars_become_the_types_of_a_lake(compiled: Compile) -> None:
    body = compiled(
        """syntax = "proto3"; package t; enum E { A = 0; }
        message M {
          double a = 1; float b = 2; int32 c = 3; int64 d = 4; uint32 e = 5; uint64 f = 6;
          sint32 g = 7; sint64 h = 8; fixed32 i = 9; fixed64 j = 10; sfixed32 k = 11;
          sfixed64 l = 12; bool m = 13; string n = 14; bytes o = 15; E p = 16;
        }"""
    )
    decimal = pa.decimal128(20, 0)
    assert list(types(body, "t.M").values()) == [
        pa.float64(),
        pa.float32(),
        pa.int32(),
        pa.int64(),
        pa.int64(),
        decimal,
        pa.int32(),
        pa.int64(),
        pa.int64(),
        decimal,
        pa.int32(),
        pa.int64(),
        pa.bool_(),
        pa.string(),
        pa.binary(),
        pa.string(),
    ]


def test_well_known_types_become_plain_ones(compiled: Compile) -> None:
    body = compiled(
        """syntax = "proto3"; package t;
        import "google/protobuf/any.proto"; import "google/protobuf/duration.proto";
        import "google/protobuf/empty.proto"; import "google/protobuf/field_mask.proto";
        import "google/protobuf/struct.proto"; import "google/protobuf/timestamp.proto";
        import "google/protobuf/wrappers.proto";
        message M {
          google.protobuf.Timestamp at = 1; google.protobuf.Duration took = 2;
          google.protobuf.Struct doc = 3; google.protobuf.Value value = 4;
          google.protobuf.ListValue list = 5; google.protobuf.Any any = 6;
          google.protobuf.Empty empty = 7; google.protobuf.FieldMask mask = 8;
          google.protobuf.UInt64Value big = 9; google.protobuf.StringValue text = 10;
          repeated google.protobuf.Timestamp times = 11;
          map<uint64, google.protobuf.Duration> spans = 12;
        }"""
    )
    stamp = pa.timestamp("us", "UTC")
    assert types(body, "t.M") == {
        "at": stamp,
        "took": pa.int64(),
        "doc": pa.string(),
        "value": pa.string(),
        "list": pa.string(),
        "any": pa.string(),
        "empty": pa.string(),
        "mask": pa.string(),
        "big": pa.decimal128(20, 0),
        "text": pa.string(),
        "times": pa.list_(stamp),
        "spans": pa.map_(pa.decimal128(20, 0), pa.int64()),
    }


def test_comments_name_the_field_and_the_unit(compiled: Compile) -> None:
    body = compiled(
        """syntax = "proto3"; package t; import "google/protobuf/duration.proto";
        message S { google.protobuf.Duration took = 1; }
        message M { int32 id = 4; google.protobuf.Duration took = 2; S stats = 3; string _x = 5; }
        """
    )
    found = columns(body, "t.M")
    assert {name: (c.comment, c.number) for name, c in found.items()} == {
        "id": ("field t.M.id (#4)", 4),
        "took": ("field t.M.took (#2); in microseconds", 2),
        "stats": ("field t.M.stats (#3); durations in microseconds", 3),
        "field_x": ("field t.M._x (#5); renamed from _x", 5),
    }


def test_columns_keep_the_order_of_the_schema_at_every_level(compiled: Compile) -> None:
    body = compiled(
        """syntax = "proto3"; package t;
        message S { int32 z = 9; string y = 1; }
        message M { S last = 7; int32 first = 1; }"""
    )
    assert types(body, "t.M") == {
        "last": pa.struct([("z", pa.int32()), ("y", pa.string())]),
        "first": pa.int32(),
    }
    decoder = ProtobufDecoder(body, "t.M", DecodeLimits())
    decoded = decoder.decode(pa.array([b"\x3a\x05\x0a\x01a\x48\x05\x08\x02"]))
    assert decoded.ok.to_pylist() == [{"last": {"z": 5, "y": "a"}, "first": 2}]


def test_names_that_differ_only_in_case_are_told_apart_by_number(compiled: Compile) -> None:
    body = compiled(
        """syntax = "proto2"; package t;
        message S { optional int32 B = 5; optional int32 b = 2; }
        message M { optional int32 Id = 2; optional int32 id = 1; optional int32 ID__2 = 3;
                    optional S s = 4; }"""
    )
    assert list(types(body, "t.M")) == ["Id__2__2", "id", "ID__2", "s"]
    assert types(body, "t.M")["s"] == pa.struct([("B__5", pa.int32()), ("b", pa.int32())])


def test_leading_underscores_belong_to_the_pipeline_at_the_top_only(compiled: Compile) -> None:
    body = compiled(
        """syntax = "proto3"; package t;
        message S { int32 _offset = 1; }
        message M { int32 _offset = 1; int32 field_offset = 2; S s = 3; }"""
    )
    assert list(types(body, "t.M")) == ["field_offset__1", "field_offset", "s"]
    assert types(body, "t.M")["s"] == pa.struct([("_offset", pa.int32())])


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_message_contains_itself_as_columns_for_some_levels(
    compiled: Compile, depth: int
) -> None:
    body = compiled('syntax = "proto3"; package t; message N { int32 v = 1; N next = 2; }')
    expected = pa.string()
    for _ in range(depth):
        expected = pa.struct([("v", pa.int32()), ("next", expected)])
    assert types(body, "t.N", recursion_depth=depth)["next"] == expected


def test_messages_that_contain_each_other_through_lists_and_maps(compiled: Compile) -> None:
    body = compiled(
        """syntax = "proto3"; package t;
        message A { repeated B bs = 1; } message B { map<string, A> as = 1; }"""
    )
    once = pa.list_(pa.struct([("as", pa.map_(pa.string(), pa.string()))]))
    assert types(body, "t.A", recursion_depth=0) == {"bs": once}
    twice = pa.struct([("bs", pa.list_(pa.string()))])
    assert types(body, "t.A", recursion_depth=1)["bs"] != once
    inner = types(body, "t.B", recursion_depth=0)["as"]
    assert inner == pa.map_(pa.string(), twice)


def test_types_that_unfold_without_end_are_cut_to_a_size_a_table_can_have(
    compiled: Compile,
) -> None:
    names = range(14)
    text = "".join(
        f"message M{i} {{ {' '.join(f'M{j} f{j} = {j + 1};' for j in names)} }}" for i in names
    )
    body = compiled(f'syntax = "proto3"; package t; {text}')
    found = types(body, "t.M0")
    assert len(found) == 14
    assert sum(map(leaves, found.values())) <= 5_000
    assert found["f0"] == pa.string()
    assert pa.types.is_struct(found["f1"])


def chain(length: int) -> str:
    links = "".join(f"message M{i} {{ M{i + 1} next = 1; }}" for i in range(length))
    return f'syntax = "proto3"; package t; {links} message M{length} {{ int32 v = 1; }}'


def test_a_long_chain_of_messages_that_the_runtime_cannot_follow(compiled: Compile) -> None:
    with pytest.raises(DecodeError) as caught:
        types(compiled(chain(3_000)), "t.M0")
    assert caught.value.code == ErrorCode.UNUSABLE_SCHEMA


def test_a_chain_of_messages_is_cut(compiled: Compile) -> None:
    type_, levels = types(compiled(chain(120)), "t.M0")["next"], 0
    while pa.types.is_struct(type_):
        type_, levels = type_.field(0).type, levels + 1
    assert type_ == pa.string()
    assert levels == 50


def leaves(type_: pa.DataType) -> int:
    return sum(leaves(f.type) for f in type_) if pa.types.is_struct(type_) else 1


def test_other_messages_under_well_known_names_are_ordinary() -> None:
    file = FileDescriptorProto(name="x.proto", package="google.protobuf", syntax="proto3")
    stamp = file.message_type.add(name="Timestamp")
    stamp.field.add(name="text", number=1, type="TYPE_STRING", label="LABEL_OPTIONAL")
    holder = file.message_type.add(name="M")
    holder.field.add(
        name="at",
        number=1,
        type="TYPE_MESSAGE",
        label="LABEL_OPTIONAL",
        type_name=".google.protobuf.Timestamp",
    )
    body = FileDescriptorSet(file=[file]).SerializeToString()
    assert types(body, "google.protobuf.M") == {"at": pa.struct([("text", pa.string())])}


def test_a_message_that_the_schema_does_not_define(compiled: Compile) -> None:
    body = compiled('syntax = "proto3"; package t; message M { int32 v = 1; }')
    with pytest.raises(DecodeError) as caught:
        ProtobufDecoder(body, "t.Other", DecodeLimits())
    assert caught.value.code == ErrorCode.UNUSABLE_SCHEMA


def test_an_import_that_is_not_in_the_set() -> None:
    file = FileDescriptorProto(name="x.proto", dependency=["missing.proto"])
    body = FileDescriptorSet(file=[file]).SerializeToString()
    with pytest.raises(DecodeError) as caught:
        ProtobufDecoder(body, "t.M", DecodeLimits())
    assert caught.value.code == ErrorCode.UNUSABLE_SCHEMA
