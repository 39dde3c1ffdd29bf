from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import PydanticCustomError

from distributary.config.base import format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500ms", timedelta(milliseconds=500)),
        ("10s", timedelta(seconds=10)),
        ("1m", timedelta(minutes=1)),
        ("2h", timedelta(hours=2)),
        ("7d", timedelta(days=7)),
        (" 10 s ", timedelta(seconds=10)),
        ("0s", timedelta(0)),
        ("999999999d", timedelta(days=999999999)),
    ],
)
def test_duration_is_read(text: str, expected: timedelta) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize(
    "value",
    [
        "",
        "10",
        "s",
        "-1s",
        "1.5s",
        "10 minutes",
        "1m30s",
        "\u0661s",
        "9999999999d",
        10,
        None,
        True,
        timedelta(microseconds=1),
        timedelta(seconds=-1),
    ],
)
def test_other_durations_are_refused(value: object) -> None:
    with pytest.raises(PydanticCustomError):
        parse_duration(value)


@given(st.integers(min_value=0, max_value=10**15))
def test_every_duration_survives_a_round_trip(milliseconds: int) -> None:
    duration = timedelta(milliseconds=milliseconds)
    # sub-second parts of centuries need more digits than a setting may have
    if len(format_duration(duration).rstrip("mshd")) <= 9:
        assert parse_duration(format_duration(duration)) == duration


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("16MiB", 16 << 20),
        ("16mib", 16 << 20),
        ("64 KiB", 64 << 10),
        ("1GB", 10**9),
        ("5kb", 5000),
        ("12", 12),
        ("12b", 12),
        (12, 12),
        ("2GiB", 2 << 30),
    ],
)
def test_size_is_read(value: object, expected: int) -> None:
    assert parse_size(value) == expected


@pytest.mark.parametrize("value", ["", "MiB", "-1", "1.5MiB", "16M", "1ib", "1PiB", True, -1, None])
def test_other_sizes_are_refused(value: object) -> None:
    with pytest.raises(PydanticCustomError):
        parse_size(value)


@given(st.integers(min_value=0, max_value=10**15 - 1))
def test_every_size_survives_a_round_trip(size: int) -> None:
    assert parse_size(format_size(size)) == size


@given(st.text(max_size=20))
def test_any_text_is_a_quantity_or_refused(text: str) -> None:
    for parse in (parse_duration, parse_size):
        try:
            parse(text)
        except PydanticCustomError:
            continue
