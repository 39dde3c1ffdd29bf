"""Versions of a message in one call: when it is taken, and when it must not be."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from distributary.decode.base import DecodeLimits
from distributary.decode.protobuf.decoder import ProtobufDecoder, decode_together

Compile = Callable[[str], bytes]
OLD = "string name = 1; int32 level = 2;"


def decoder(compiled: Compile, fields: str, *, syntax: str = "proto3") -> ProtobufDecoder:
    body = compiled(f'syntax = "{syntax}"; message M {{ {fields} }}')
    return ProtobufDecoder(body, "M", DecodeLimits())


def array(*payloads: bytes) -> pa.BinaryArray:
    return pa.array(payloads, pa.binary())


def test_the_widest_version_reads_for_all(compiled: Compile) -> None:
    old, new = decoder(compiled, OLD), decoder(compiled, OLD + "int32 extra = 3;")
    found = decode_together((old, new), [array(b"\x0a\x01a"), array(b"\x0a\x01b\x18\x07")])
    assert found is not None
    assert found[0].ok.to_pylist() == [{"name": "a", "level": 0}]
    assert found[1].ok.to_pylist() == [{"name": "b", "level": 0, "extra": 7}]


def test_a_field_that_a_version_does_not_know_is_for_that_version_to_judge(
    compiled: Compile,
) -> None:
    old, new = decoder(compiled, OLD), decoder(compiled, OLD + "int32 extra = 3;")
    assert decode_together((old, new), [array(b"\x0a\x01a\x18\x07"), array(b"")]) is None


@pytest.mark.parametrize(
    "newer",
    [
        "string name = 1; int64 level = 2;",
        "string name = 1; optional int32 level = 2; int32 extra = 3;",
        "string title = 1; int32 level = 2; int32 extra = 3;",
        "string name = 4; int32 level = 2; int32 extra = 3;",
        "string name = 1; oneof only { int32 level = 2; int32 extra = 3; }",
    ],
    ids=["type", "presence", "name", "number", "oneof"],
)
def test_another_reading_of_a_field_is_no_cover(compiled: Compile, newer: str) -> None:
    old, new = decoder(compiled, OLD), decoder(compiled, newer)
    assert decode_together((old, new), [array(b"\x0a\x01a"), array(b"")]) is None


def test_a_required_field_of_a_newer_version_is_no_cover(compiled: Compile) -> None:
    fields = "optional string name = 1;"
    old = decoder(compiled, fields, syntax="proto2")
    new = decoder(compiled, fields + "required int32 must = 2;", syntax="proto2")
    assert decode_together((old, new), [array(b"\x0a\x01a"), array(b"\x10\x01")]) is None


def test_a_payload_that_does_not_decode_sends_each_version_to_its_own(compiled: Compile) -> None:
    old, new = decoder(compiled, OLD), decoder(compiled, OLD + "int32 extra = 3;")
    assert decode_together((old, new), [array(b"\x0a\x05a"), array(b"")]) is None


def test_text_that_depends_on_what_a_version_knows_is_no_cover(compiled: Compile) -> None:
    def versions(extra: str, newer: str, fields: str) -> tuple[ProtobufDecoder, ProtobufDecoder]:
        begin = 'syntax = "proto3"; import "google/protobuf/any.proto";'
        begin += ' import "google/protobuf/struct.proto";'
        old = compiled(f"{begin} {extra} message M {{ {fields} }}")
        new = compiled(f"{begin} {extra} {newer} message M {{ {fields} int32 e = 2; }}")
        return ProtobufDecoder(old, "M", DecodeLimits()), ProtobufDecoder(new, "M", DecodeLimits())

    promo = "message Promo { int32 x = 1; }"
    record, other = array(b"\x0a\x0d\x0a\x07t/Promo\x12\x02\x08\x07"), array(b"\x10\x01")
    old, new = versions("", promo, "google.protobuf.Any d = 1;")
    assert old.decode(record).ok.to_pylist() == [{"d": '{"@type":"t/Promo","value":"CAc="}'}]
    assert decode_together((old, new), [record, other]) is None
    within = versions("message In { google.protobuf.Any d = 1; }", promo, "repeated In d = 1;")
    assert decode_together(within, [array(b""), other]) is None
    # what says itself what it is, every version reads alike
    told = versions("", promo, "google.protobuf.Struct d = 1;")
    assert decode_together(told, [array(b"\x0a\x00"), other]) is not None
