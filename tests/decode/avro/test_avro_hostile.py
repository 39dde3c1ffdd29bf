"""Payloads that are wrong, or that want to be trouble."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from distributary.decode.avro.decoder import AvroDecoder
from distributary.decode.base import DecodeLimits
from distributary.errors import DecodeError, ErrorCode
from distributary.model.deadletter import Decoded, Failure
from distributary.registry.compile.avro_compiler import compile_avro
from tests.decode.avro_samples import FIXED, LOGICAL, PRIMITIVES, record, zigzag

LOWEST = b"\xff" * 9 + b"\x01"
ARRAY = {"type": "array", "items": "long"}


def decode(schema: Any, *payloads: bytes, quick: bool = True, **limits: Any) -> Decoded:
    compiled = compile_avro(json.dumps(schema))
    decoder = AvroDecoder(compiled.body, compiled.message, DecodeLimits(**limits))
    if not quick:
        decoder._engine = None
    return decoder.decode(pa.array(payloads, pa.binary()))


def fault(schema: Any, payload: bytes, **limits: Any) -> Failure:
    """What is wrong with a payload, in both ways of decoding."""
    found = []
    for quick in (True, False):
        decoded = decode(schema, payload, quick=quick, **limits)
        assert decoded.ok.num_rows == 0
        found.append(decoded.failed)
    assert found[0] == found[1]
    (failure,) = found[0]
    return failure


@pytest.mark.parametrize(
    ("type_", "payload", "code", "position"),
    [
        ("long", b"", ErrorCode.PAYLOAD_TRUNCATED, 0),
        ("long", b"\x80\x80", ErrorCode.PAYLOAD_TRUNCATED, 0),
        ("long", b"\x02\x00", ErrorCode.TRAILING_BYTES, 1),
        ("long", b"\xff" * 10 + b"\x01", ErrorCode.PAYLOAD_MISMATCH, 0),
        ("int", zigzag(2**31), ErrorCode.PAYLOAD_MISMATCH, 0),
        ("boolean", b"\x02", ErrorCode.PAYLOAD_MISMATCH, 0),
        ("double", b"\x00" * 7, ErrorCode.PAYLOAD_TRUNCATED, 0),
        ("float", b"\x00" * 3, ErrorCode.PAYLOAD_TRUNCATED, 0),
        ("string", zigzag(4) + b"abc", ErrorCode.PAYLOAD_TRUNCATED, 1),
        ("string", zigzag(4) + b"ab\xff\xff", ErrorCode.INVALID_UTF8, 3),
        ("string", zigzag(-1) + b"abc", ErrorCode.INVALID_LENGTH, 0),
        ("bytes", zigzag(-(2**63)) + b"abc", ErrorCode.INVALID_LENGTH, 0),
        ("bytes", zigzag(2**60) + b"abc", ErrorCode.PAYLOAD_TRUNCATED, 9),
        ({"type": "fixed", "name": "F", "size": 8}, b"abc", ErrorCode.PAYLOAD_TRUNCATED, 0),
        ({"type": "fixed", "name": "F", "size": 2**31 - 1}, b"abc", ErrorCode.PAYLOAD_TRUNCATED, 0),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", ErrorCode.INVALID_INDEX, 0),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x01", ErrorCode.INVALID_INDEX, 0),
        ({"type": "enum", "name": "E", "symbols": []}, b"\x00", ErrorCode.INVALID_INDEX, 0),
        (["null", "int"], b"\x04", ErrorCode.INVALID_INDEX, 0),
        (["null", "int"], b"\x01", ErrorCode.INVALID_INDEX, 0),
        (["int", "string", "bytes"], zigzag(3), ErrorCode.INVALID_INDEX, 0),
        (ARRAY, zigzag(2**60) + b"\x02", ErrorCode.PAYLOAD_TRUNCATED, 10),
        (ARRAY, LOWEST + b"\x02\x00", ErrorCode.INVALID_LENGTH, 0),
        (ARRAY, zigzag(1) + b"\x02", ErrorCode.PAYLOAD_TRUNCATED, 2),
        ({"type": "map", "values": "int"}, LOWEST + b"\x02\x00", ErrorCode.INVALID_LENGTH, 0),
        ({"type": "map", "values": "int"}, b"\x02\x02\xff\x02\x00", ErrorCode.INVALID_UTF8, 2),
        (
            {"type": "map", "values": "null"},
            zigzag(2**50) + b"\x02a",
            ErrorCode.PAYLOAD_TRUNCATED,
            10,
        ),
        ({"type": "array", "items": "null"}, zigzag(2**40) + b"\0", ErrorCode.PAYLOAD_TOO_LARGE, 6),
        (
            {"type": "array", "items": record("null", record(name="E"), name="N")},
            zigzag(-(2**62)) + b"\0" + b"\0",
            ErrorCode.PAYLOAD_TOO_LARGE,
            10,
        ),
    ],
    ids=lambda given: str(given)[:50],
)
def test_each_fault_has_its_code_and_place(
    type_: Any, payload: bytes, code: ErrorCode, position: int
) -> None:
    failure = fault(record(type_), payload)
    assert (failure.code, failure.position) == (code, position)
    # nothing of the payload is in the words
    assert failure.message.isascii()


def test_the_field_is_named() -> None:
    inner = record("string", name="I", namespace="x")
    assert "field x.I.f0:" in fault(record("int", inner), b"\x02\x04a").message


def test_a_list_of_nothing_may_have_a_thousand_items() -> None:
    schema = record({"type": "array", "items": "null"})
    decoded = decode(schema, zigzag(1_000) + b"\0", zigzag(1_001) + b"\0", b"\0")
    assert [len(row["f0"]) for row in decoded.ok.to_pylist()] == [1_000, 0]
    assert [(f.index, f.code) for f in decoded.failed] == [(1, ErrorCode.PAYLOAD_TOO_LARGE)]


def test_a_top_level_list_of_nothing_is_limited_as_well() -> None:
    decoded = decode({"type": "array", "items": "null"}, zigzag(2**40) + b"\0", zigzag(2) + b"\0")
    assert decoded.ok.to_pylist() == [{"value": None}] * 2
    assert decoded.failed[0].code == ErrorCode.PAYLOAD_TOO_LARGE


def test_characters_are_not_put_together_from_two_records() -> None:
    decoded = decode(record("string"), b"\x02\xc3", b"\x02\xa9", b"\x04\xc3\xa9")
    assert decoded.ok.to_pylist() == [{"f0": "é"}]
    assert [f.code for f in decoded.failed] == [ErrorCode.INVALID_UTF8] * 2


def test_few_bad_payloads_spoil_no_others() -> None:
    schema = record("long", "string", ["null", "double"])
    good = [zigzag(i) + b"\x02x" + b"\0" for i in range(3_000)]
    bad = {5: b"", 900: good[900] + b"x", 1_700: good[1_700][:-1], 2_999: b"\x02\x02\xff\0"}
    decoded = decode(schema, *(bad.get(i, each) for i, each in enumerate(good)))
    assert {f.index for f in decoded.failed} == set(bad)
    assert decoded.ok.column("f0").to_pylist() == [i for i in range(3_000) if i not in bad]
    assert decoded.origin is not None
    assert decoded.origin.to_pylist() == [i for i in range(3_000) if i not in bad]


LIST = {
    "type": "record",
    "name": "Cell",
    "fields": [{"name": "next", "type": ["null", "Cell"]}, {"name": "id", "type": "int"}],
}


def cells(count: int) -> bytes:
    return b"\x02" * (count - 1) + b"\x00" + b"\x02" * count


@pytest.mark.parametrize("limit", [3, 100, 10_000])
def test_nesting_is_limited(limit: int) -> None:
    deepest = min(limit, 100) + 1
    decoded = decode(LIST, cells(deepest), cells(deepest + 1), cells(100_000), max_depth=limit)
    assert decoded.ok.num_rows == 1
    assert {f.code for f in decoded.failed} == {ErrorCode.NESTING_TOO_DEEP}


def test_a_schema_that_is_deeper_than_the_limit_is_watched() -> None:
    schema = record(["null", record(["null", record("int", name="C")], name="B")], name="A")
    decoded = decode(schema, b"\0", b"\x02\0", b"\x02\x02\x02", max_depth=1)
    assert decoded.ok.num_rows == 2
    assert [(f.index, f.code) for f in decoded.failed] == [(2, ErrorCode.NESTING_TOO_DEEP)]


def test_records_in_lists_in_records_do_not_exhaust_the_stack() -> None:
    inner: Any = ["null", "A"]
    for _ in range(45):
        inner = {"type": "array", "items": inner}
    other: Any = {"type": "record", "name": "B", "fields": [{"name": "a", "type": inner}]}
    for _ in range(45):
        other = {"type": "array", "items": other}
    schema = {"type": "record", "name": "A", "fields": [{"name": "b", "type": other}]}
    payload = b"\x02" * 5_000
    assert fault(schema, payload, max_depth=10_000).code == ErrorCode.NESTING_TOO_DEEP


def test_the_engine_does_not_complain_aloud(capfd: pytest.CaptureFixture[str]) -> None:
    # a panic would be caught, but not before it has written to the error stream
    fixed = [{"type": "fixed", "name": f"F{i}", **each} for i, each in enumerate(FIXED)]
    for type_ in [*PRIMITIVES[1:], *LOGICAL, *fixed]:
        array = {"type": "array", "items": type_}
        for schema in (type_, ["null", type_], [type_, ARRAY], array):
            decode(record(schema), b"", b"\xff" * 30, b"\x02" * 30, bytes(100))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "body", [b"", b"\xff", b"{}", b'"Nobody"', b"[" * 5_000, b'{"type":"record"}']
)
def test_bodies_that_are_no_schemas(body: bytes) -> None:
    with pytest.raises(DecodeError) as caught:
        AvroDecoder(body, "R", DecodeLimits())
    assert caught.value.code == ErrorCode.UNUSABLE_SCHEMA
