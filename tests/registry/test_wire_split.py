"""Frames of a column in all their forms: the same answers as record by record."""

from __future__ import annotations

from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.errors import ErrorCode
from distributary.model.record import HEADER
from distributary.registry.frames import (
    FIRST_MESSAGE,
    VALUE_HEADER,
    BadFrame,
    SplitFrames,
    parse,
    payloads,
    split,
    split_v0,
)
from tests.registry.frames import frame, guid_at, path_at

Entries = list[tuple[str, bytes | None]]
Record = tuple[bytes | None, Entries | None]

GUID, OTHER = UUID(int=7), UUID("0102aabb-ccdd-4eee-8f00-112233445566")
HEADERS = pa.list_(HEADER)
TYPES = [pa.binary(), pa.large_binary()]

FRAMES = st.builds(
    lambda payload, named, path: frame(payload, **named, indexes=path),
    st.binary(max_size=10),
    st.sampled_from([{"schema_id": 1}, {"schema_id": 2**32 - 1}, {"guid": GUID}, {"guid": OTHER}]),
    st.sampled_from([None, (0,), (1,), (0, 2), (64,), (1, 1, 1), (9, 300)]),
)
CUT = st.builds(lambda whole, length: whole[:length], FRAMES, st.integers(0, 25))
BYTES = (
    FRAMES
    | CUT
    | st.binary(max_size=24)
    | st.builds(
        lambda magic, rest: magic + rest,
        st.sampled_from([b"\x00", b"\x01", b"\x01" + GUID.bytes]),
        st.binary(max_size=20),
    )
)
NAMES = st.sampled_from([VALUE_HEADER, VALUE_HEADER, "__key_schema_id", "trace", ""])
ENTRIES = st.none() | st.lists(st.tuples(NAMES, st.none() | BYTES), max_size=3)
RECORDS = st.lists(st.tuples(st.none() | BYTES, ENTRIES), max_size=12)


def columns(records: list[Record], type: pa.DataType) -> tuple[pa.Array, pa.Array]:
    values = pa.array([value for value, _ in records], type)
    rows = [
        None if entries is None else [{"key": k, "value": v} for k, v in entries]
        for _, entries in records
    ]
    return values, pa.array(rows, HEADERS)


def assert_like_parse(found: SplitFrames, records: list[Record], *, protobuf: bool) -> None:
    assert len(found.framed) == len(records)
    for position, (value, entries) in enumerate(records):
        wanted = None if value is None else parse(value, entries or (), protobuf=protobuf)
        if wanted is None or isinstance(wanted, BadFrame):
            code = ErrorCode.NULL_VALUE if wanted is None else wanted.code
            assert found.reason(position) is code
            assert not found.framed[position]
            assert (found.ids[position], found.payload_start[position]) == (-1, 0)
            assert path_at(found, position) == FIRST_MESSAGE
            assert guid_at(found, position) is None
        else:
            assert found.reason(position) is None
            assert found.framed[position]
            assert found.ids[position] == (-1 if wanted.schema_id is None else wanted.schema_id)
            assert guid_at(found, position) == wanted.guid
            assert found.payload_start[position] == wanted.payload_start
            assert path_at(found, position) == wanted.indexes


@pytest.mark.parametrize("type", TYPES, ids=str)
@pytest.mark.parametrize("protobuf", [True, False])
@given(RECORDS, st.integers(0, 4), st.integers(0, 4))
def test_a_column_is_read_as_its_records_are(
    type: pa.DataType, protobuf: bool, records: list[Record], skip: int, drop: int
) -> None:
    values, headers = columns(records, type)
    length = max(0, len(records) - skip - drop)
    values, headers = values.slice(skip, length), headers.slice(skip, length)
    found = split(values, headers, protobuf=protobuf)
    kept = records[skip : skip + length]
    assert_like_parse(found, kept, protobuf=protobuf)
    rest = payloads(values, found.payload_start).to_pylist()
    starts = found.payload_start.tolist()
    assert rest == [v if v is None else v[s:] for (v, _), s in zip(kept, starts, strict=True)]


@pytest.mark.parametrize("protobuf", [True, False])
@given(st.lists(st.none() | BYTES, max_size=20))
def test_without_headers_only_the_values_count(protobuf: bool, values: list[bytes | None]) -> None:
    array = pa.array(values, pa.binary())
    records: list[Record] = [(value, None) for value in values]
    assert_like_parse(split(array, protobuf=protobuf), records, protobuf=protobuf)
    empty = pa.array([[]] * len(values), HEADERS)
    assert_like_parse(split(array, empty, protobuf=protobuf), records, protobuf=protobuf)


@given(st.lists(st.none() | BYTES, max_size=20))
def test_where_there_are_only_ids_it_is_the_same_as_the_short_way(
    values: list[bytes | None],
) -> None:
    array = pa.array([v for v in values if v is None or v[:1] != b"\x01"], pa.binary())
    long, short = split(array, protobuf=True), split_v0(array, protobuf=True)
    for name in ("framed", "ids", "payload_start", "reasons", "path_codes", "guid_codes"):
        assert np.array_equal(getattr(long, name), getattr(short, name))
    assert (long.paths, long.guids) == (short.paths, ())


def test_the_last_header_wins_and_the_value_is_the_whole_payload() -> None:
    first, last = frame(b"", guid=OTHER), frame(b"", guid=GUID, indexes=(0, 2))
    value = frame(b"inner", schema_id=5)
    values, headers = columns(
        [(value, [(VALUE_HEADER, first), ("trace", b"x"), (VALUE_HEADER, last)])], pa.binary()
    )
    found = split(values, headers, protobuf=True)
    assert (guid_at(found, 0), path_at(found, 0), found.ids[0]) == (GUID, (0, 2), -1)
    assert payloads(values, found.payload_start).to_pylist() == [value]


def test_a_header_may_hold_an_id_and_that_of_the_key_is_another() -> None:
    entries: Entries = [(VALUE_HEADER, frame(b"", schema_id=3)), ("__key_schema_id", b"\x05")]
    values, headers = columns([(b"value", entries)], pa.binary())
    found = split(values, headers, protobuf=True)
    assert (found.ids.tolist(), found.payload_start.tolist()) == ([3], [0])


def test_a_bad_header_is_not_mended_by_a_good_value() -> None:
    good = [frame(b"p", schema_id=1), frame(b"p", guid=GUID)]
    values, headers = columns([(v, [(VALUE_HEADER, b"\x01short")]) for v in good], pa.binary())
    found = split(values, headers, protobuf=True)
    assert [found.reason(0), found.reason(1)] == [ErrorCode.WIRE_HEADER_TRUNCATED] * 2


def test_a_header_makes_an_empty_value_a_payload_and_no_tombstone_one() -> None:
    entries: Entries = [(VALUE_HEADER, frame(b"", guid=GUID))]
    values, headers = columns([(b"", entries), (None, entries)], pa.binary())
    found = split(values, headers, protobuf=True)
    assert found.framed.tolist() == [True, False]
    assert found.reason(1) is ErrorCode.NULL_VALUE


def test_headers_that_a_null_hides_do_not_count() -> None:
    entries: Entries = [(VALUE_HEADER, frame(b"", guid=GUID))]
    values, headers = columns([(b"\x0a", entries), (b"\x0a", entries)], pa.binary())
    hidden = pa.ListArray.from_arrays(
        pa.array([0, 1, 2], pa.int32()), headers.values, mask=pa.array([True, False])
    )
    assert hidden.null_count == 1
    found = split(values, hidden, protobuf=True)
    assert found.framed.tolist() == [False, True]


def test_a_large_column_of_every_kind() -> None:
    guids = [UUID(int=n) for n in range(50)]
    paths = [(0,), (0,), (0,), (1,), (70, 1)]
    records: list[Record] = []
    for n in range(9_000):
        payload, guid, path = b"p" * (n % 50), guids[n % 50], paths[n % 5]
        if n % 3 == 0:
            records.append((frame(payload, schema_id=n, indexes=path), None))
        elif n % 3 == 1:
            records.append((frame(payload, guid=guid, indexes=path), []))
        else:
            entry = frame(b"", guid=guid, indexes=path)
            records.append((payload, [("trace", b"x"), (VALUE_HEADER, entry)]))
    values, headers = columns(records, pa.binary())
    found = split(values, headers, protobuf=True)
    assert found.framed.all()
    assert len(found.guids) == 50 and len(found.paths) == 3
    by_id = np.arange(9_000) % 3 == 0
    assert np.array_equal(found.guid_codes < 0, by_id)
    assert np.array_equal(found.ids[by_id], np.arange(0, 9_000, 3))
    rest = payloads(values, found.payload_start)
    assert rest.to_pylist() == [b"p" * (n % 50) for n in range(9_000)]
