"""Payloads that are meant to hurt."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from distributary.decode.base import DecodeLimits
from distributary.decode.protobuf.decoder import ProtobufDecoder
from distributary.errors import ErrorCode
from distributary.model.deadletter import Decoded

Compile = Callable[[str], bytes]
NODE = 'syntax = "proto3"; package t; message N { int32 v = 1; N next = 2; }'


def decode(body: bytes, *payloads: bytes, limits: DecodeLimits | None = None) -> Decoded:
    decoder = ProtobufDecoder(body, "t.N", limits or DecodeLimits())
    return decoder.decode(pa.array(payloads, pa.binary()))


def nested(levels: int) -> bytes:
    payload = b""
    for _ in range(levels):
        length = len(payload)
        size = bytes([length & 127 | 128, length >> 7]) if length > 127 else bytes([length])
        payload = b"\x12" + size + payload
    return payload


@pytest.mark.parametrize(("limit", "deepest"), [(100, 100), (20, 20), (2, 2), (1_000, 100)])
def test_nesting_is_limited(compiled: Compile, limit: int, deepest: int) -> None:
    payloads = [nested(1), nested(deepest), nested(deepest + 1)]
    decoded = decode(compiled(NODE), *payloads, limits=DecodeLimits(max_depth=limit))
    assert decoded.ok.num_rows == 2
    (failure,) = decoded.failed
    assert (failure.index, failure.code) == (2, ErrorCode.NESTING_TOO_DEEP)
    assert failure.position is not None


def test_groups_that_no_one_knows_do_not_exhaust_the_stack(compiled: Compile) -> None:
    decoded = decode(compiled(NODE), b"\x08\x01", b"\x1b" * 500_000, b"\x08\x02")
    assert decoded.ok.column("v").to_pylist() == [1, 2]
    assert [(f.index, f.code) for f in decoded.failed] == [(1, ErrorCode.NESTING_TOO_DEEP)]


@pytest.mark.parametrize(
    ("payload", "position"),
    [
        (b"\x08", 1),
        (b"\x08\x80", 1),
        (b"\x08" + b"\xff" * 11, 1),
        (b"\x08\x01\x12\x05\x08", 3),
        (b"\x12\x02\x08\x80", 3),
        (b"\x08\x01\x00", 2),
        (b"\x08\x01\x0f", 2),
        (b"\x1a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 1),
        (b"\x1b\x08\x01", 3),
        (b"\x1b\x24", 1),
        (b"\x1c", 0),
        (b"\x88\x80\x80\x80\x80\x80\x01\x01", 0),
        (b"\x1d\x00\x00", 1),
        (b"\x19\x00\x00\x00\x00", 1),
    ],
)
def test_the_failing_byte_is_named(compiled: Compile, payload: bytes, position: int) -> None:
    (failure,) = decode(compiled(NODE), payload).failed
    assert (failure.code, failure.position) == (ErrorCode.PAYLOAD_MISMATCH, position)


def test_packed_items_must_be_whole(compiled: Compile) -> None:
    body = compiled('syntax = "proto3"; package t; message N { repeated double d = 1; }')
    good = b"\x0a\x08" + bytes(8)
    decoded = decode(body, good, b"\x0a\x09" + bytes(9))
    assert decoded.ok.to_pylist() == [{"d": [0.0]}]
    assert [(f.index, f.position) for f in decoded.failed] == [(1, 2)]


def test_a_member_of_a_oneof_that_is_cut_off_does_not_end_the_process(compiled: Compile) -> None:
    body = compiled(
        'syntax = "proto3"; package t; message N { oneof o { int64 a = 4; string b = 5; } }'
    )
    decoded = decode(body, b"\x2a\x01x", b"\x20\x05", b"\x2a")
    assert decoded.ok.to_pylist() == [{"a": None, "b": "x"}, {"a": 5, "b": None}]
    assert [(f.index, f.code) for f in decoded.failed] == [(2, ErrorCode.PAYLOAD_MISMATCH)]
