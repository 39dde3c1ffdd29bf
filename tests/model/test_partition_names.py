from __future__ import annotations

import re
from urllib.parse import unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from distributary.model.names import (
    HIVE_NULL,
    LONGEST_FOLDER,
    hive_folder,
    label_columns,
    label_folder,
)

VALUES = st.none() | st.text(min_size=1, max_size=300)
SAFE = re.compile(r"[A-Za-z0-9_.~%-]+=[A-Za-z0-9_.~%-]+")


@given(VALUES)
@example("..")
@example("a/../b")
@example(" ")
@example("é♞" * 100)
def test_hive_folder_is_one_safe_name_and_reads_back(value: str | None) -> None:
    folder = hive_folder("country", value)
    if folder is None:
        return
    assert SAFE.fullmatch(folder)
    assert len(folder) <= LONGEST_FOLDER
    name, _, text = folder.partition("=")
    assert name == "country"
    assert (None if text == HIVE_NULL else unquote(text)) == value


@pytest.mark.parametrize("value", [HIVE_NULL, "a\0b", "x" * 10_000, "♞" * 30])
def test_a_value_that_no_folder_can_have_has_none(value: str) -> None:
    assert hive_folder("country", value) is None


@pytest.mark.parametrize("column", ["a/b", "..", "ü", "a=b"])
def test_the_name_of_a_column_is_escaped_too(column: str) -> None:
    folder = hive_folder(column, "x") or ""
    assert SAFE.fullmatch(folder)
    assert unquote(folder.partition("=")[0]) == column


@given(VALUES, VALUES)
@example(None, "null")
@example("other", "other.d9298a10d1b0")
@example("", None)
def test_labels_are_safe_short_and_never_shared(one: str | None, other: str | None) -> None:
    first, second = label_folder("by_x", one), label_folder("by_x", other)
    assert (first == second) == (one == other)
    for folder in (first, second):
        assert re.fullmatch(r"by_x=[A-Za-z0-9_.-]{1,90}", folder)


def test_labels_of_plain_values_are_the_values() -> None:
    plain = ["de", "2026-11-15", "-7", "true", "DE", "1e5"]
    assert [label_folder("by_x", v) for v in plain] == [f"by_x={v}" for v in plain]


def test_label_columns_hide_from_no_reader_and_stay_apart() -> None:
    assert label_columns(["_date", "country"]) == {"_date": "by_date", "country": "by_country"}
    assert label_columns(["_topic", "topic"]) == {"_topic": "by__topic", "topic": "by_topic"}
    assert re.fullmatch(r"by_a-b\.[0-9a-f]{12}", label_columns(["a/b"])["a/b"])
    assert not any(name.startswith("_") for name in label_columns(["__", "_"]).values())
