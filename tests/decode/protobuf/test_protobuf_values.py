"""The values that protobuf payloads give."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message_factory import GetMessageClass

from distributary.decode.base import DecodeLimits
from distributary.decode.protobuf.decoder import ProtobufDecoder
from distributary.errors import ErrorCode
from distributary.model.deadletter import Decoded

Compile = Callable[[str], bytes]
WELL_KNOWN = "".join(
    f'import "google/protobuf/{name}.proto";'
    for name in ("any", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers")
)


def message_class(body: bytes, name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in FileDescriptorSet.FromString(body).file:
        pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(name))


def decode(body: bytes, name: str, *payloads: bytes, **limits: Any) -> Decoded:
    decoder = ProtobufDecoder(body, name, DecodeLimits(**limits))
    return decoder.decode(pa.array(payloads, pa.binary()))


def rows(body: bytes, name: str, *payloads: bytes, **limits: Any) -> list[dict[str, Any]]:
    decoded = decode(body, name, *payloads, **limits)
    assert decoded.failed == ()
    decoded.ok.validate(full=True)
    return list(decoded.ok.to_pylist())


def codes(decoded: Decoded) -> dict[int, ErrorCode]:
    return {failure.index: failure.code for failure in decoded.failed}


def test_absent_is_null_only_where_the_schema_knows_presence(compiled: Compile) -> None:
    body = compiled(
        """syntax = "proto3"; package t; message S { int32 v = 1; }
        message M { int32 a = 1; optional int32 b = 2; string c = 3; optional string d = 4;
                    S e = 5; repeated int32 f = 6; map<string, int32> g = 7; bytes h = 8; }"""
    )
    given = b"\x10\x00\x22\x00\x2a\x00"
    assert rows(body, "t.M", b"", given) == [
        {"a": 0, "b": None, "c": "", "d": None, "e": None, "f": [], "g": [], "h": b""},
        {"a": 0, "b": 0, "c": "", "d": "", "e": {"v": 0}, "f": [], "g": [], "h": b""},
    ]


def test_missing_required_fields_are_null(compiled: Compile) -> None:
    body = compiled(
        """syntax = "proto2"; package t;
        message M { required int32 a = 1; optional int32 b = 2 [default = 7]; extensions 10; }
        extend M { optional int32 ext = 10; }"""
    )
    assert rows(body, "t.M", b"\x50\x05") == [{"a": None, "b": None}]


def test_unsigned_numbers_are_exact(compiled: Compile) -> None:
    body = compiled(
        f"""syntax = "proto3"; package t; {WELL_KNOWN} message S {{ uint64 v = 1; }}
        message M {{ uint64 a = 1; repeated fixed64 b = 2; map<uint64, uint64> c = 3; S d = 4;
                     google.protobuf.UInt64Value e = 5; uint32 f = 6; }}"""
    )
    top = 2**64 - 1
    message = message_class(body, "t.M")(a=top, b=[0, top], c={top: top}, f=2**32 - 1)
    message.d.v = 2**63
    message.e.value = top
    assert rows(body, "t.M", message.SerializeToString()) == [
        {
            "a": Decimal(top),
            "b": [Decimal(0), Decimal(top)],
            "c": [(Decimal(top), Decimal(top))],
            "d": {"v": Decimal(2**63)},
            "e": Decimal(top),
            "f": 2**32 - 1,
        }
    ]


def test_enums_are_names_and_unknown_numbers_are_digits(compiled: Compile) -> None:
    text = """package t; enum E {{ option allow_alias = true; A = 0; B = 1; C = 1; D = -2; }}
        message M {{ {0} E e = 1; repeated E es = 2; }}"""
    payloads = (b"\x08\x01", b"\x08\x63\x10\x63", b"\x08" + b"\xfe" + b"\xff" * 8 + b"\x01")
    for syntax, optional in (("proto2", "optional"), ("proto3", "")):
        body = compiled(f'syntax = "{syntax}"; {text.format(optional)}')
        assert rows(body, "t.M", *payloads) == [
            {"e": "B", "es": []},
            {"e": "99", "es": ["99"]},
            {"e": "D", "es": []},
        ]


def test_times_are_exact_to_the_microsecond(compiled: Compile) -> None:
    body = compiled(
        f"""syntax = "proto3"; package t; {WELL_KNOWN}
        message M {{ google.protobuf.Timestamp at = 1; google.protobuf.Duration took = 2; }}"""
    )
    new = message_class(body, "t.M")
    messages = [new(), new(), new()]
    messages[0].at.FromJsonString("0001-01-01T00:00:00Z")
    messages[1].at.FromJsonString("9999-12-31T23:59:59.999999999Z")
    messages[0].took.FromNanoseconds(-1_999)
    messages[1].took.FromSeconds(315_576_000_000)
    assert rows(body, "t.M", *(m.SerializeToString() for m in messages)) == [
        {"at": datetime(1, 1, 1, tzinfo=UTC), "took": -1},
        {
            "at": datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
            "took": 315_576_000_000_000_000,
        },
        {"at": None, "took": None},
    ]


@pytest.mark.parametrize(("seconds", "nanos"), [(2**62, 0), (253_402_300_800, 0), (0, -1)])
def test_times_out_of_range_fail_wherever_they_are(
    compiled: Compile, seconds: int, nanos: int
) -> None:
    body = compiled(
        f"""syntax = "proto3"; package t; {WELL_KNOWN}
        message S {{ google.protobuf.Timestamp at = 1; }}
        message M {{ google.protobuf.Timestamp a = 1; repeated google.protobuf.Timestamp b = 2;
                     map<int32, S> c = 3; repeated S d = 4; }}"""
    )
    new = message_class(body, "t.M")
    bad = [new() for _ in range(4)]
    for stamp in (bad[0].a, bad[1].b.add(), bad[2].c[5].at, bad[3].d.add().at):
        stamp.seconds, stamp.nanos = seconds, nanos
    good = new()
    good.b.add(seconds=5)
    payloads = [m.SerializeToString() for m in (good, *bad, good)]
    decoded = decode(body, "t.M", *payloads)
    assert codes(decoded) == dict.fromkeys(range(1, 5), ErrorCode.VALUE_OUT_OF_RANGE)
    assert decoded.origin is not None
    assert decoded.origin.to_pylist() == [0, 5]


def test_documents_are_json_text(compiled: Compile) -> None:
    body = compiled(
        f"""syntax = "proto3"; package t; {WELL_KNOWN}
        message M {{ google.protobuf.Struct a = 1; google.protobuf.Value b = 2;
                     google.protobuf.ListValue c = 3; map<string, google.protobuf.Value> d = 4;
                     repeated google.protobuf.Struct e = 5; }}"""
    )
    message = message_class(body, "t.M")()
    message.a.update({"x": [1, None, {"grüße": True}]})
    message.b.string_value = 'a "quote"'
    message.c.extend([1.5, "two"])
    message.d["none"].SetInParent()
    message.e.add()
    (row,) = rows(body, "t.M", message.SerializeToString())
    assert row["a"] == '{"x":[1.0,null,{"grüße":true}]}'
    assert json.loads(row["b"]) == 'a "quote"'
    assert json.loads(row["c"]) == [1.5, "two"]
    assert row["d"] == [("none", "null")]
    assert row["e"] == ["{}"]


def test_json_cannot_hold_every_number(compiled: Compile) -> None:
    body = compiled(
        f'syntax = "proto3"; package t; {WELL_KNOWN} message M {{ google.protobuf.Value a = 1; }}'
    )
    message = message_class(body, "t.M")()
    message.a.number_value = float("nan")
    decoded = decode(body, "t.M", message.SerializeToString(), b"")
    assert codes(decoded) == {0: ErrorCode.VALUE_OUT_OF_RANGE}


def test_any_is_unpacked_when_its_type_is_known(compiled: Compile) -> None:
    body = compiled(
        f"""syntax = "proto3"; package t; {WELL_KNOWN} message S {{ int64 long_name = 1; }}
        message M {{ google.protobuf.Any a = 1; }}"""
    )
    new, inner = message_class(body, "t.M"), message_class(body, "t.S")
    messages = [new() for _ in range(5)]
    messages[0].a.Pack(inner(long_name=5))
    messages[1].a.type_url, messages[1].a.value = "x.com/not.Known", b"\x00\xff"
    messages[2].a.type_url, messages[2].a.value = "x.com/t.S", b"\xff"
    messages[3].a.type_url = "x.com/google.protobuf.Duration"
    messages[4].a.SetInParent()
    texts = [row["a"] for row in rows(body, "t.M", *(m.SerializeToString() for m in messages))]
    assert [json.loads(text) for text in texts] == [
        {"@type": "type.googleapis.com/t.S", "long_name": "5"},
        {"@type": "x.com/not.Known", "value": "AP8="},
        {"@type": "x.com/t.S", "value": "/w=="},
        {"@type": "x.com/google.protobuf.Duration", "value": "0s"},
        {},
    ]


def test_any_in_any_without_end_is_kept_and_not_followed(compiled: Compile) -> None:
    body = compiled(
        f'syntax = "proto3"; package t; {WELL_KNOWN} message M {{ google.protobuf.Any a = 1; }}'
    )
    inner = b""
    url = b"x/google.protobuf.Any"
    for _ in range(3_000):
        inner = b"\x0a" + bytes([len(url)]) + url + b"\x12" + varint(len(inner)) + inner
    decoded = decode(body, "t.M", b"\x0a" + varint(len(inner)) + inner)
    assert decoded.ok.num_rows == 1


def varint(number: int) -> bytes:
    low = number & 127
    return bytes([low | 128]) + varint(number >> 7) if number > 127 else bytes([low])


def test_messages_without_fields_say_whether_they_are_there(compiled: Compile) -> None:
    body = compiled(
        f"""syntax = "proto3"; package t; {WELL_KNOWN} message Ping {{}}
        message M {{ google.protobuf.Empty a = 1; repeated Ping b = 2; map<int32, Ping> c = 3;
                     oneof o {{ Ping d = 4; Ping e = 5; }} google.protobuf.FieldMask f = 6; }}"""
    )
    payload = b"\x0a\x00\x12\x00\x12\x00\x1a\x02\x08\x01\x2a\x00\x32\x06\x0a\x01a\x0a\x01b"
    assert rows(body, "t.M", payload, b"") == [
        {"a": "{}", "b": ["{}", "{}"], "c": [(1, "{}")], "d": None, "e": "{}", "f": "a,b"},
        {"a": None, "b": [], "c": [], "d": None, "e": None, "f": None},
    ]
    assert rows(body, "t.Ping", b"", b"\x08\x01", drop_unknown_fields=True) == [{}, {}]


def test_groups_are_structs(compiled: Compile) -> None:
    body = compiled(
        """syntax = "proto2"; package t;
        message M { optional group Inner = 1 { optional int32 v = 2; }
                    repeated group More = 3 { optional string s = 1; } }"""
    )
    payload = b"\x0b\x10\x05\x0c\x1b\x0a\x01a\x1c\x1b\x1c"
    assert rows(body, "t.M", payload) == [{"inner": {"v": 5}, "more": [{"s": "a"}, {"s": None}]}]


def test_editions_say_presence_and_encoding_by_field(compiled: Compile) -> None:
    body = compiled(
        """edition = "2023"; package t; message S { int32 v = 1; }
        message M { int32 a = 1; int32 b = 2 [features.field_presence = IMPLICIT];
                    S c = 3 [features.message_encoding = DELIMITED]; }"""
    )
    assert rows(body, "t.M", b"", b"\x1b\x08\x05\x1c") == [
        {"a": None, "b": 0, "c": None},
        {"a": None, "b": 0, "c": {"v": 5}},
    ]


def test_very_high_field_numbers(compiled: Compile) -> None:
    body = compiled('syntax = "proto3"; package t; message M { int32 a = 536870911; }')
    assert rows(body, "t.M", b"\xf8\xff\xff\xff\x0f\x05") == [{"a": 5}]


def test_recursion_ends_in_json_text(compiled: Compile) -> None:
    body = compiled(
        """syntax = "proto3"; package t;
        message N { int32 v = 1; N one = 2; repeated N many = 3; map<string, N> named = 4; }"""
    )
    new = message_class(body, "t.N")
    message = new(v=1, one=new(v=2, one=new(v=3), many=[new(v=4)], named={"k": new(v=5)}))
    (row,) = rows(body, "t.N", message.SerializeToString(), recursion_depth=1)
    assert row["one"] == {
        "v": 2,
        "one": '{"v":3}',
        "many": ['{"v":4}'],
        "named": [("k", '{"v":5}')],
    }


def test_the_last_member_of_a_oneof_counts(compiled: Compile) -> None:
    body = compiled(
        """syntax = "proto3"; package t; message S { int32 v = 1; int32 w = 2; }
        message M { oneof o { int32 a = 1; string b = 2; S c = 3; } }"""
    )
    payloads = (b"\x08\x01\x12\x01x", b"\x12\x01x\x08\x01", b"\x1a\x02\x08\x01\x1a\x02\x10\x02")
    assert rows(body, "t.M", *payloads) == [
        {"a": None, "b": "x", "c": None},
        {"a": 1, "b": None, "c": None},
        {"a": None, "b": None, "c": {"v": 1, "w": 2}},
    ]


def test_the_last_entry_of_a_map_key_counts(compiled: Compile) -> None:
    body = compiled('syntax = "proto3"; package t; message M { map<bool, int32> m = 1; }')
    one, two = b"\x0a\x04\x08\x01\x10\x05", b"\x0a\x04\x08\x01\x10\x06"
    assert rows(body, "t.M", one + two, one, b"\x0a\x00") == [
        {"m": [(True, 6)]},
        {"m": [(True, 5)]},
        {"m": [(False, 0)]},
    ]


def test_occurrences_of_one_message_merge(compiled: Compile) -> None:
    body = compiled(
        f"""syntax = "proto3"; package t; {WELL_KNOWN}
        message M {{ google.protobuf.Timestamp at = 1; google.protobuf.Struct doc = 2; }}"""
    )
    new = message_class(body, "t.M")
    first, second = new(), new()
    first.at.seconds, second.at.nanos = 1, 5_000
    first.doc["a"], second.doc["b"] = 1, 2
    (row,) = rows(body, "t.M", first.SerializeToString() + second.SerializeToString())
    assert row["at"] == datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=UTC)
    assert json.loads(row["doc"]) == {"a": 1, "b": 2}


def test_text_that_is_not_utf8_fails_in_either_syntax(compiled: Compile) -> None:
    for syntax, optional in (("proto2", "optional"), ("proto3", "")):
        body = compiled(
            f"""syntax = "{syntax}"; package t;
            message S {{ repeated string s = 1; }}
            message M {{ {optional} string a = 1; {optional} S b = 2; }}"""
        )
        bad = (b"\x0a\x03ok\xff", b"\x12\x03\x0a\x01\xff")
        decoded = decode(body, "t.M", b"\x0a\x02ok", *bad, b"")
        assert codes(decoded) == {1: ErrorCode.INVALID_UTF8, 2: ErrorCode.INVALID_UTF8}
        assert [failure.position for failure in decoded.failed] == [4, 4]
