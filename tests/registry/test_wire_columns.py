"""Frames of a column: the same answers as record by record."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.errors import ErrorCode
from distributary.registry.frames import (
    FIRST_MESSAGE,
    BadFrame,
    SplitFrames,
    parse,
    payloads,
    split_v0,
)
from tests.registry.frames import frame, path_at

IDS = st.integers(min_value=0, max_value=2**32 - 1)
PATHS = st.sampled_from([(0,), (1,), (3,), (0, 2), (63,), (64,), (1, 1, 1), (0, 0), (9, 300)])
VALUES = (
    st.none()
    | st.binary(max_size=12)
    | st.binary(max_size=12).map(lambda rest: b"\x00" + rest)
    | st.binary(max_size=6).map(lambda rest: b"\x00\x00\x00\x00\x01" + rest)
    | st.builds(
        lambda payload, schema_id, path: frame(payload, schema_id=schema_id, indexes=path),
        st.binary(max_size=10),
        IDS,
        PATHS,
    )
)
TYPES = [pa.binary(), pa.large_binary()]


def assert_like_parse(split: SplitFrames, values: list[bytes | None], protobuf: bool) -> None:
    for position, value in enumerate(values):
        if value is None:
            assert split.reason(position) is ErrorCode.NULL_VALUE
            ok = False
        elif value[:1] == b"\x01":
            assert split.reason(position) is ErrorCode.BAD_MAGIC
            ok = False
        else:
            found = parse(value, protobuf=protobuf)
            ok = not isinstance(found, BadFrame)
            if isinstance(found, BadFrame):
                assert split.reason(position) is found.code
            else:
                assert split.reason(position) is None
                assert split.ids[position] == found.schema_id
                assert split.payload_start[position] == found.payload_start
                assert path_at(split, position) == found.indexes
        assert bool(split.framed[position]) is ok
        if not ok:
            assert split.ids[position] == -1
            assert split.payload_start[position] == 0
            assert path_at(split, position) == FIRST_MESSAGE


@pytest.mark.parametrize("type", TYPES, ids=str)
@pytest.mark.parametrize("protobuf", [True, False])
@given(st.lists(VALUES, max_size=30), st.integers(0, 5), st.integers(0, 5))
def test_a_column_is_read_as_its_values_are(
    type: pa.DataType, protobuf: bool, values: list[bytes | None], skip: int, drop: int
) -> None:
    array = pa.array(values, type).slice(skip, max(0, len(values) - skip - drop))
    kept = array.to_pylist()
    split = split_v0(array, protobuf=protobuf)
    assert len(split.framed) == len(kept)
    assert_like_parse(split, kept, protobuf)
    rest = payloads(array, split.payload_start).to_pylist()
    starts = split.payload_start.tolist()
    assert rest == [None if v is None else v[s:] for v, s in zip(kept, starts, strict=True)]


def test_a_null_may_hide_bytes() -> None:
    whole = pa.array([frame(b"a", schema_id=1), frame(b"b", schema_id=2)], pa.binary())
    _, offsets, data = whole.buffers()
    hidden = pa.Array.from_buffers(pa.binary(), 2, [pa.py_buffer(b"\x02"), offsets, data])
    split = split_v0(hidden, protobuf=True)
    assert split.framed.tolist() == [False, True]
    assert split.reason(0) is ErrorCode.NULL_VALUE
    assert split.ids.tolist() == [-1, 2]


@pytest.mark.parametrize("type", TYPES, ids=str)
@pytest.mark.parametrize("values", [[], [None], [b""], [b"", None, b""], [b"\x00"]])
def test_columns_with_next_to_nothing(type: pa.DataType, values: list[bytes | None]) -> None:
    array = pa.array(values, type)
    split = split_v0(array, protobuf=True)
    assert_like_parse(split, values, True)
    assert payloads(array, split.payload_start).to_pylist() == values


def test_bare_messages_are_left_alone() -> None:
    array = pa.array([b"\x0a\x01x", b"\x12\x00"], pa.binary())
    split = split_v0(array, protobuf=True)
    assert not split.framed.any()
    assert {split.reason(0), split.reason(1)} == {ErrorCode.BAD_MAGIC}
    assert payloads(array, split.payload_start).equals(array)


def test_a_large_column_with_every_kind_of_path() -> None:
    paths = [(0,), (1,), (0, 2), (70, 1), (1, 2, 3)]
    values = [
        frame(b"p" * (n % 50), schema_id=n, indexes=paths[n % len(paths)]) for n in range(20_000)
    ]
    array = pa.array(values, pa.binary())
    split = split_v0(array, protobuf=True)
    assert split.framed.all()
    assert np.array_equal(split.ids, np.arange(20_000))
    assert {split.paths[code] for code in split.path_codes[:5].tolist()} == set(paths)
    assert len(split.paths) == len(paths)
    rest = payloads(array, split.payload_start)
    assert rest.to_pylist() == [b"p" * (n % 50) for n in range(20_000)]
