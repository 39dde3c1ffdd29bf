"""Payloads that were written with another schema: fields it does not have, or has otherwise."""

from __future__ import annotations

import random
from collections.abc import Callable

import pyarrow as pa
import pytest
from google.protobuf.descriptor import FieldDescriptor as FD
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.message import DecodeError as ParseError
from hypothesis import given
from hypothesis import strategies as st

from distributary.decode.base import DecodeLimits
from distributary.decode.protobuf.decoder import ProtobufDecoder
from distributary.errors import ErrorCode
from distributary.model.deadletter import Decoded
from tests.decode.protobuf_samples import (
    SCALARS,
    Case,
    case,
    damaged,
    foreign,
    populate,
    schemas,
)

Compile = Callable[[str], bytes]
FIELDS = """
    message Sub { int32 x = 1; }
    int32 number = 1; string text = 2; Sub sub = 3; repeated Sub subs = 4;
    map<string, Sub> by = 5; map<string, int32> counts = 6;
    oneof choice { Sub left = 7; string right = 8; }
    repeated int32 packed = 9; repeated int32 plain = 10 [packed = false];
    fixed32 four = 11; double eight = 12;
"""
GOOD = b"\x08\x01"


def decode(body: bytes, *payloads: bytes, drop: bool = False) -> Decoded:
    limits = DecodeLimits(drop_unknown_fields=drop)
    return ProtobufDecoder(body, "M", limits).decode(pa.array(payloads, pa.binary()))


@pytest.mark.parametrize(
    "payload",
    [
        b"\x68\x01",
        b"\x1a\x02\x78\x01",
        b"\x22\x02\x08\x01\x22\x02\x78\x01",
        # what is replaced later was there
        b"\x3a\x02\x78\x01\x42\x01r",
        b"\x2a\x07\x0a\x01k\x12\x02\x78\x01\x2a\x05\x0a\x01k\x12\x00",
        b"\x32\x05\x0a\x01k\x78\x01",
        b"\x6b\x08\x01\x6c",
    ],
    ids=["top", "below", "list", "oneof", "map", "entry", "group"],
)
def test_a_field_that_the_schema_does_not_have(compiled: Compile, payload: bytes) -> None:
    body = compiled(f'syntax = "proto3"; message M {{ {FIELDS} }}')
    found = decode(body, GOOD, payload, GOOD)
    assert [(f.index, f.code) for f in found.failed] == [(1, ErrorCode.PAYLOAD_MISMATCH)]
    assert found.failed[0].position is not None
    kept = decode(body, GOOD, payload, GOOD, drop=True)
    assert not kept.failed
    assert kept.ok.num_rows == 3
    assert kept.unknown == (1,)


@pytest.mark.parametrize(
    "payload",
    [
        b"\x0a\x01a",
        b"\x10\x01",
        b"\x18\x01",
        b"\x1b\x08\x01\x1c",
        b"\x1a\x03\x0a\x01a",
        b"\x22\x00\x22\x03\x0a\x01a",
        b"\x32\x06\x0a\x01k\x12\x01v",
        b"\x4d\x01\x00\x00\x00",
        b"\x58\x01",
        b"\x65\x01\x00\x00\x00",
    ],
)
def test_a_field_that_comes_as_another_type_is_written(compiled: Compile, payload: bytes) -> None:
    body = compiled(f'syntax = "proto3"; message M {{ {FIELDS} }}')
    for drop in (False, True):
        found = decode(body, GOOD, payload, drop=drop)
        assert [(f.index, f.code) for f in found.failed] == [(1, ErrorCode.PAYLOAD_MISMATCH)]


def test_both_forms_of_a_list_of_numbers_are_right(compiled: Compile) -> None:
    body = compiled(f'syntax = "proto3"; message M {{ {FIELDS} }}')
    found = decode(body, b"\x4a\x02\x01\x02\x52\x01\x03", b"\x48\x01\x48\x02\x50\x03")
    assert not found.failed
    assert found.ok.column("packed").to_pylist() == [[1, 2], [1, 2]]
    assert found.ok.column("plain").to_pylist() == [[3], [3]]


def test_numbers_that_an_enum_does_not_know_are_no_unknown_fields(compiled: Compile) -> None:
    body = compiled(
        """syntax = "proto2"; enum E { A = 0; }
        message M { optional E one = 1; repeated E many = 2; map<string, E> by = 3; }"""
    )
    found = decode(body, b"\x08\x07\x10\x08\x1a\x05\x0a\x01k\x10\x09")
    assert not found.failed
    assert found.ok.to_pylist() == [{"one": "7", "many": ["8"], "by": [("k", "9")]}]


def test_extensions_are_what_a_schema_makes_room_for(compiled: Compile) -> None:
    body = compiled(
        """syntax = "proto2"; message M { optional int32 a = 1; extensions 100 to 199; }
        extend M { optional string known = 100; }"""
    )
    found = decode(
        body, b"\x08\x01\xa2\x06\x01x", b"\x08\x02\xaa\x06\x01x", b"\x08\x03\xc8\x0c\x01"
    )
    assert [f.index for f in found.failed] == [2]
    assert found.ok.column("a").to_pylist() == [1, 2]


def test_groups_of_an_edition_and_its_maps_are_what_they_are(compiled: Compile) -> None:
    body = compiled(
        """edition = "2023"; option features.message_encoding = DELIMITED;
        message Sub { int32 x = 1; }
        message M { Sub sub = 1; repeated Sub subs = 2; map<string, Sub> by = 3; }"""
    )
    entry = b"\x1a\x07\x0a\x01k\x12\x02\x08\x05"
    found = decode(body, b"\x0b\x08\x01\x0c\x13\x08\x02\x14" + entry, b"\x0a\x02\x08\x01")
    assert [f.index for f in found.failed] == [1]
    by = [("k", {"x": 5})]
    assert found.ok.to_pylist() == [{"sub": {"x": 1}, "subs": [{"x": 2}], "by": by}]


@pytest.mark.parametrize("odd", [0, 1, 4_999, 9_999])
def test_one_among_thousands_is_found(compiled: Compile, odd: int) -> None:
    body = compiled(f'syntax = "proto3"; message M {{ {FIELDS} }}')
    payloads = [GOOD] * 10_000
    payloads[odd] = b"\x3a\x02\x78\x01"
    # others that the parser does not accept must not hide it
    payloads[5_000] = payloads[2] = b"\x0a"
    found = decode(body, *payloads)
    assert [f.index for f in found.failed] == sorted({2, 5_000, odd})


@given(file=schemas(), seed=st.integers(0, 2**32))
def test_payloads_of_another_schema_fail_as_the_official_runtime_does_not_know_them(
    file: FileDescriptorProto, seed: int
) -> None:
    this = case(file, seed)
    writer = case(changed(file, this.rnd), seed)
    own = [populate(this.cls(), this.rnd, 2).SerializePartialToString() for _ in range(3)]
    theirs = [populate(writer.cls(), this.rnd, 2).SerializePartialToString() for _ in range(9)]
    check(this, [*own, *theirs])


@given(file=schemas(), seed=st.integers(0, 2**32))
def test_damaged_payloads_fail_as_the_official_runtime_does_not_know_them(
    file: FileDescriptorProto, seed: int
) -> None:
    this = case(file, seed)
    parts = [populate(this.cls(), this.rnd, 2).SerializePartialToString() for _ in range(4)]
    check(this, [damaged(this.rnd.choice(parts), this.rnd) for _ in range(24)])


def changed(file: FileDescriptorProto, rnd: random.Random) -> FileDescriptorProto:
    """The same with one field more, and another of another type."""
    copy = FileDescriptorProto.FromString(file.SerializeToString())
    message = rnd.choice(copy.message_type)
    field = rnd.choice(message.field)
    if not field.HasField("oneof_index") and field.type != FD.TYPE_GROUP:
        field.ClearField("type_name")
        field.type = rnd.choice(SCALARS)
    add(message, rnd.randrange(41, 60), rnd.choice(SCALARS))
    return copy


def add(message: DescriptorProto, number: int, type_: int) -> None:
    message.field.add(name=f"f{number}", number=number, type=type_, label=FD.LABEL_OPTIONAL)


def check(this: Case, payloads: list[bytes]) -> None:
    """Strict and lenient differ in payloads with unknown numbers, and in nothing else."""
    array = pa.array(payloads, pa.binary())
    strict, lenient = this.strict.decode(array), this.decoder.decode(array)
    refused = {f.index: f.code for f in strict.failed}
    broken = {f.index: f.code for f in lenient.failed}
    assert not strict.unknown
    assert set(refused) == set(broken) | set(lenient.unknown)
    for index, payload in enumerate(payloads):
        if index in broken and broken[index] is not ErrorCode.PAYLOAD_MISMATCH:
            continue
        try:
            strange = list(foreign(this.unfolded.FromString(payload)))
        except ParseError:
            assert index in broken, payload.hex()
            continue
        assert (index in broken) == any(strange), payload.hex()
        assert (index in lenient.unknown) == (bool(strange) and not any(strange)), payload.hex()


def test_text_that_is_not_utf8_is_found_beside_fields_that_are_dropped(compiled: Compile) -> None:
    body = compiled(
        """syntax = "proto2"; message Sub { optional string s = 1; }
        message M { repeated Sub subs = 1; }"""
    )
    good, beyond, broken = (
        b"\x0a\x03\x0a\x01a",
        b"\x0a\x05\x0a\x01a\x78\x01",
        b"\x0a\x03\x0a\x01\xff",
    )
    found = decode(body, good, beyond, broken, drop=True)
    assert [(f.index, f.code) for f in found.failed] == [(2, ErrorCode.INVALID_UTF8)]
    assert found.unknown == (1,)
