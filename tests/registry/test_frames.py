"""Frames of one record: ids, GUIDs, headers and paths to a message."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.errors import ErrorCode
from distributary.registry.compile.protobuf_compiler import compile_proto
from distributary.registry.frames import (
    FIRST_MESSAGE,
    MAX_INDEXES,
    VALUE_HEADER,
    BadFrame,
    Framed,
    message_by_index,
    parse,
)
from tests.registry.frames import encode_indexes, frame

GUID = UUID("6f1e7a52-1c4b-4d39-9a0e-0123456789ab")
PATHS = st.lists(st.integers(min_value=0, max_value=5000), min_size=1, max_size=6).map(tuple)


@pytest.mark.parametrize(
    ("indexes", "encoded"),
    [
        ((0,), b"\x00"),
        ((1,), b"\x02\x02"),
        ((0, 2), b"\x04\x00\x04"),
        ((64,), b"\x02\x80\x01"),
        ((0, 0), b"\x04\x00\x00"),
    ],
)
def test_paths_in_bytes(indexes: tuple[int, ...], encoded: bytes) -> None:
    assert encode_indexes(indexes) == encoded
    found = parse(b"\x00\x00\x00\x00\x07" + encoded + b"rest")
    assert found == Framed(7, None, indexes, 5 + len(encoded))


def test_the_long_form_of_the_first_message_is_understood() -> None:
    assert parse(b"\x00\x00\x00\x00\x07\x02\x00rest") == Framed(7, None, FIRST_MESSAGE, 7)


def test_ids_are_big_endian_and_unsigned() -> None:
    assert parse(b"\x00\x00\x00\x01\x02\x00") == Framed(258, None, FIRST_MESSAGE, 6)
    assert parse(b"\x00\xff\xff\xff\xff\x00") == Framed(2**32 - 1, None, FIRST_MESSAGE, 6)


def test_formats_without_paths_begin_behind_the_id() -> None:
    assert parse(b"\x00\x00\x00\x00\x07\x02\x02", protobuf=False) == Framed(7, None, (0,), 5)


def test_a_guid_is_read_with_and_without_path() -> None:
    value = frame(b"payload", guid=GUID, indexes=(1,))
    assert value[0] == 1
    assert parse(value) == Framed(None, GUID, (1,), 19)
    assert parse(value, protobuf=False) == Framed(None, GUID, FIRST_MESSAGE, 17)


def test_a_header_is_the_whole_frame() -> None:
    header = frame(b"", guid=GUID, indexes=(2, 1))
    assert parse(b"\x00any value", [(VALUE_HEADER, header)]) == Framed(None, GUID, (2, 1), 0)


def test_the_last_header_wins_and_others_do_not_matter() -> None:
    first, last = frame(b"", guid=GUID), frame(b"", schema_id=9)
    headers = [
        (VALUE_HEADER, first),
        ("__key_schema_id", first),
        (VALUE_HEADER, last),
        ("trace", b"\x05"),
    ]
    assert parse(b"payload", headers) == Framed(9, None, FIRST_MESSAGE, 0)


def test_a_header_without_a_value_is_no_header() -> None:
    value = frame(b"payload", schema_id=3)
    assert parse(value, [(VALUE_HEADER, None)]) == Framed(3, None, FIRST_MESSAGE, 6)


def test_a_bad_header_is_not_covered_up_by_a_good_value() -> None:
    found = parse(frame(b"payload", schema_id=3), [(VALUE_HEADER, b"\x01short")])
    assert isinstance(found, BadFrame)
    assert found.code is ErrorCode.WIRE_HEADER_TRUNCATED


@pytest.mark.parametrize(
    ("value", "code", "position"),
    [
        (b"", ErrorCode.WIRE_HEADER_TRUNCATED, 0),
        (b"\x00", ErrorCode.WIRE_HEADER_TRUNCATED, 1),
        (b"\x00\x00\x00\x00", ErrorCode.WIRE_HEADER_TRUNCATED, 4),
        (b"\x00\x00\x00\x00\x01", ErrorCode.WIRE_HEADER_TRUNCATED, 5),
        (b"\x00\x00\x00\x00\x01\x02", ErrorCode.WIRE_HEADER_TRUNCATED, 6),
        (b"\x00\x00\x00\x00\x01\x80", ErrorCode.WIRE_HEADER_TRUNCATED, 6),
        (b"\x01" + b"g" * 15, ErrorCode.WIRE_HEADER_TRUNCATED, 16),
        (b"\x02\x00\x00\x00\x01\x00", ErrorCode.BAD_MAGIC, 0),
        (b"{}", ErrorCode.BAD_MAGIC, 0),
        (b"\x0a", ErrorCode.BAD_MAGIC, 0),
        (b"\x00\x00\x00\x00\x01\x01", ErrorCode.BAD_MESSAGE_INDEX, 5),
        (b"\x00\x00\x00\x00\x01\x02\x01", ErrorCode.BAD_MESSAGE_INDEX, 6),
        (b"\x00\x00\x00\x00\x01" + b"\xff" * 20, ErrorCode.BAD_MESSAGE_INDEX, 5),
        (b"\x00\x00\x00\x00\x01\x04\x00" + b"\xff" * 20, ErrorCode.BAD_MESSAGE_INDEX, 7),
    ],
)
def test_what_is_not_a_frame_says_why_and_where(
    value: bytes, code: ErrorCode, position: int
) -> None:
    found = parse(value)
    assert isinstance(found, BadFrame)
    assert (found.code, found.position) == (code, position)


def test_an_absurd_number_of_indexes_is_refused_before_it_is_read() -> None:
    path = encode_indexes((0,) * (MAX_INDEXES + 1))
    found = parse(b"\x00\x00\x00\x00\x01" + path)
    assert isinstance(found, BadFrame)
    assert found.code is ErrorCode.BAD_MESSAGE_INDEX
    longest = parse(b"\x00\x00\x00\x00\x01" + encode_indexes((0,) * MAX_INDEXES))
    assert isinstance(longest, Framed)


@given(
    st.binary(max_size=40),
    st.integers(min_value=0, max_value=2**32 - 1) | st.uuids(),
    PATHS | st.none(),
)
def test_parse_is_the_inverse_of_frame(
    payload: bytes, name: int | UUID, indexes: tuple[int, ...] | None
) -> None:
    guid = name if isinstance(name, UUID) else None
    schema_id = name if isinstance(name, int) else None
    value = frame(payload, schema_id=schema_id, guid=guid, indexes=indexes)
    found = parse(value, protobuf=indexes is not None)
    assert isinstance(found, Framed)
    assert (found.schema_id, found.guid) == (schema_id, guid)
    assert found.indexes == (indexes or FIRST_MESSAGE)
    assert value[found.payload_start :] == payload


@given(st.binary(max_size=60), st.booleans())
def test_no_bytes_raise(value: bytes, protobuf: bool) -> None:
    for prefix in (b"", b"\x00", b"\x01", b"\x00\x00\x00\x00\x01"):
        found = parse(prefix + value, [("other", value)], protobuf=protobuf)
        header = parse(b"", [(VALUE_HEADER, prefix + value)], protobuf=protobuf)
        if isinstance(found, Framed):
            assert 0 < found.payload_start <= len(prefix + value)
            assert isinstance(header, Framed)
            assert header.payload_start == 0
        else:
            assert found == header


NESTED = compile_proto(
    """syntax = "proto3"; package a.b;
    message First { message Inner { message Core {} } map<string, int32> m = 1; message Other {} }
    message Second {}
    """
).body


@pytest.mark.parametrize(
    ("indexes", "name"),
    [
        ((0,), "a.b.First"),
        ((1,), "a.b.Second"),
        ((0, 0), "a.b.First.Inner"),
        ((0, 0, 0), "a.b.First.Inner.Core"),
        ((0, 2), "a.b.First.Other"),
        ((2,), None),
        ((1, 0), None),
        ((0, 0, 0, 0), None),
        ((-1,), None),
        ((2**60,), None),
        ((), None),
    ],
)
def test_a_path_leads_to_a_message_or_to_nothing(
    indexes: tuple[int, ...], name: str | None
) -> None:
    assert message_by_index(NESTED, indexes) == name


def test_a_message_without_package_has_a_plain_name() -> None:
    plain = compile_proto('syntax = "proto3"; message M {}').body
    assert message_by_index(plain, (0,)) == "M"
