"""Schemas that are no record at the top: one column, `value`, or a dead letter with its code."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.decode.avro.decoder import AvroDecoder
from distributary.decode.base import DecodeLimits
from distributary.errors import ErrorCode
from distributary.model.deadletter import Decoded
from distributary.registry.compile.avro_compiler import compile_avro
from tests.decode.avro_samples import PRIMITIVES, zigzag

DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
RECORD = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}


def decode(schema: Any, *payloads: bytes, **limits: Any) -> Decoded:
    """In both ways, which have to agree."""
    compiled = compile_avro(json.dumps(schema))
    found = []
    for quick in (True, False):
        decoder = AvroDecoder(compiled.body, compiled.message, DecodeLimits(**limits))
        assert [column.name for column in decoder.columns] == ["value"]
        if not quick:
            decoder._engine = None
        found.append(decoder.decode(pa.array(payloads, pa.binary())))
    assert found[0].ok.equals(found[1].ok) and found[0].failed == found[1].failed
    return found[0]


def values(decoded: Decoded) -> list[Any]:
    return [row["value"] for row in decoded.ok.to_pylist()]


def codes(decoded: Decoded) -> dict[int, ErrorCode]:
    return {failure.index: failure.code for failure in decoded.failed}


@pytest.mark.parametrize(
    ("schema", "value", "column"),
    [
        ("boolean", True, True),
        ("int", -7, -7),
        ("long", 2**40, 2**40),
        ("float", 0.5, 0.5),
        ("double", 0.1, 0.1),
        ("string", "größe", "größe"),
        ("bytes", b"\x00a", b"\x00a"),
        ("null", None, None),
        (["null", "int"], None, None),
        (["null", "int"], 5, 5),
        (["int", "string"], "a", {"int": None, "string": "a"}),
        (["null", "bytes"], b"a", b"a"),
        (["null"], None, None),
        ({"type": "map", "values": "int"}, {"a": 1}, [("a", 1)]),
        ({"type": "map", "values": RECORD}, {"a": {"a": 1}}, [("a", {"a": 1})]),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", b"ab"),
        ({"type": "fixed", "name": "F", "size": 0}, b"", b""),
        (["int", RECORD], {"a": 1}, {"int": None, "R": {"a": 1}}),
        (DECIMAL, Decimal("1.23"), Decimal("1.23")),
    ],
)
def test_a_value_is_a_row_of_one_column(schema: Any, value: Any, column: Any) -> None:
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(schema), value)
    payload = written.getvalue()
    decoded = decode(schema, payload, payload)
    assert values(decoded) == [column, column] and decoded.failed == ()
    # one byte more is never taken for a part of it, one less never for all of it
    assert codes(decode(schema, payload + b"\x00")) == {0: ErrorCode.TRAILING_BYTES}
    if payload:
        assert codes(decode(schema, payload[:-1])) == {0: ErrorCode.PAYLOAD_TRUNCATED}


def test_items_at_the_top_are_rows() -> None:
    decoded = decode({"type": "array", "items": "int"}, zigzag(2) + b"\2\4\0", b"\0", b"", b"\2")
    assert values(decoded) == [1, 2] and decoded.empty == 1
    assert codes(decoded) == dict.fromkeys((2, 3), ErrorCode.PAYLOAD_TRUNCATED)
    nested = {"type": "array", "items": {"type": "array", "items": "bytes"}}
    assert values(decode(nested, zigzag(1) + zigzag(1) + b"\2a\0\0")) == [[b"a"]]


@pytest.mark.parametrize("schema", ["bytes", "string"])
def test_a_length_that_is_missing_or_wrong(schema: str) -> None:
    decoded = decode(
        schema,
        zigzag(3) + b"abc",
        b"abc",
        b"",
        zigzag(9) + b"abc",
        zigzag(1) + b"abc",
        b"\xff" * 12,
        zigzag(2**62) + b"abc",
    )
    assert [row["value"] for row in decoded.ok.to_pylist()] == [
        "abc" if schema == "string" else b"abc"
    ]
    assert codes(decoded) == {
        1: ErrorCode.INVALID_LENGTH,
        2: ErrorCode.PAYLOAD_TRUNCATED,
        3: ErrorCode.PAYLOAD_TRUNCATED,
        4: ErrorCode.TRAILING_BYTES,
        5: ErrorCode.PAYLOAD_MISMATCH,
        6: ErrorCode.PAYLOAD_TRUNCATED,
    }


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_bytes_behind_the_registrys_header_are_all_there_is(payloads: list[bytes]) -> None:
    decoded = decode("bytes", *payloads, raw_bytes=True)
    assert values(decoded) == payloads and decoded.failed == ()


def test_a_decimal_behind_the_registrys_header() -> None:
    decoded = decode(DECIMAL, b"\x7b", b"", b"\x7f\x7f\x7f\x7f", b"\x85", raw_bytes=True)
    assert values(decoded) == [Decimal("1.23"), Decimal("0.00"), Decimal("-1.23")]
    assert codes(decoded) == {2: ErrorCode.VALUE_OUT_OF_RANGE}


def test_raw_bytes_have_their_limit() -> None:
    decoded = decode("bytes", b"x" * 100, b"y" * 10, raw_bytes=True, max_payload_bytes=50)
    assert values(decoded) == [b"y" * 10]
    assert codes(decoded) == {0: ErrorCode.PAYLOAD_TOO_LARGE}


@pytest.mark.parametrize(
    "schema", ["string", ["null", "bytes"], {"type": "array", "items": "bytes"}]
)
def test_nothing_else_comes_without_its_length(schema: Any) -> None:
    assert codes(decode(schema, b"\xc8", raw_bytes=True)) != {}


@given(st.sampled_from([*PRIMITIVES, DECIMAL, ["null", "string"]]), st.binary(max_size=40))
def test_any_bytes_are_a_row_or_a_dead_letter(schema: Any, payload: bytes) -> None:
    for raw in (False, True):
        decoded = decode(schema, payload, raw_bytes=raw)
        assert decoded.ok.num_rows + len(decoded.failed) == 1
