"""Places, keys and definitions of keys: what a merge compares."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.changes.events.log_events import (
    MOST_SPANS,
    KeyIndex,
    Place,
    Span,
    advanced,
    definitions_of,
    from_text,
    highest,
    key_texts,
    lowest,
    owners,
    place_of,
    places,
    ranks,
    resolve,
    to_text,
)

NUMBERS = st.sampled_from([-(2**63), -1, 0, 1, 2**63 - 1])
PLACES = st.tuples(
    st.integers(0, 1),
    NUMBERS,
    NUMBERS,
    NUMBERS,
    NUMBERS,
    st.integers(0, 1),
    st.sampled_from(["", "a", "b", "ab", "\u00e9", "\uffff", "\U0001f600", "0" * 40]),
)


@given(st.lists(PLACES, max_size=12), st.lists(PLACES, max_size=12))
def test_places_are_ordered_field_by_field(one: list[Place], other: list[Place]) -> None:
    first, second = ranks([places(one), pa.chunked_array([places(other)])])
    found = [*zip(one, first, strict=True), *zip(other, second, strict=True)]
    for place, rank in found:
        for place_2, rank_2 in found:
            assert (place < place_2) == (rank < rank_2)
    assert [place_of(value) for value in places(one).to_pylist()] == one
    assert highest(places(one)) == max(one, default=None)
    assert lowest(places(one)) == min(one, default=None)


def test_slices_and_rows_without_a_place_are_ranked() -> None:
    seq = pa.concat_arrays([places([(1, 5, 0, 0, 0, 1, "")]), pa.nulls(1, places([]).type)])
    assert ranks([seq.slice(0, 1), seq.slice(1)])[0] > ranks([seq.slice(0, 1), seq.slice(1)])[1]


VALUES = st.tuples(
    st.sampled_from([None, 1, 2]),
    st.sampled_from([None, "a", "b", '","', ""]),
    st.sampled_from([None, 0.0, -0.0, 1.5, float("nan")]),
)


def rows_of(values: list[tuple[int | None, str | None, float | None]]) -> pa.Table:
    return pa.table(
        {
            "a": pa.array([v[0] for v in values], pa.int64()),
            "b": pa.array([v[1] for v in values], pa.string()),
            "c": pa.array([v[2] for v in values], pa.float64()),
        }
    )


def same(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    nan = [
        all(isinstance(v, float) and math.isnan(v) for v in pair)
        for pair in zip(one, other, strict=True)
    ]
    return all(n or x == y for n, x, y in zip(nan, one, other, strict=True))


@given(st.lists(VALUES, max_size=10), st.lists(VALUES, max_size=10))
def test_rows_agree_if_all_values_of_a_key_do(
    one: list[tuple[int | None, str | None, float | None]],
    other: list[tuple[int | None, str | None, float | None]],
) -> None:
    index = KeyIndex(rows_of(one), ("a", "b", "c"))
    found = index.find(rows_of(other))
    texts = key_texts(rows_of(one), ("a", "b", "c")).to_pylist()
    other_texts = key_texts(rows_of(other), ("a", "b", "c")).to_pylist()
    for row, group, text in zip(one, index.groups, texts, strict=True):
        for row_2, group_2, text_2 in zip(other, found, other_texts, strict=True):
            assert same(row, row_2) == (group == group_2) == (text == text_2)
    assert all(group < index.count for group in index.groups)


def test_definitions_are_told_apart_whatever_is_in_a_name() -> None:
    columns = ["a", "b", "a,b", "1:a", "Ключ"]
    lists = [["a", "b"], ["B", "A"], ["a,b"], ["1:a"], ["КЛЮЧ"], [], None, ["a", None], ["x"]]
    keys = pa.chunked_array([pa.array(lists, pa.list_(pa.string()))])
    found, numbers = definitions_of(keys, columns)
    names = [found[n] if n >= 0 else None for n in numbers]
    both = ("a", "b")
    assert names == [both, both, ("a,b",), ("1:a",), ("Ключ",), None, None, None, None]


def test_an_exact_name_goes_before_another_case() -> None:
    assert resolve(["ID"], ["id", "ID"]) == ("ID",)
    assert resolve(["Id"], ["id", "ID"]) == ("id",)
    assert resolve(["id", "nowhere"], ["id"]) is None


SEEN = st.lists(
    st.tuples(st.integers(0, 9), st.sampled_from([("a",), ("b",), ("c",)])),
    unique_by=lambda pair: pair[0],
    max_size=10,
)


@given(st.lists(SEEN, max_size=5))
def test_every_place_keeps_the_key_that_was_seen_there(
    batches: list[list[tuple[int, tuple[str, ...]]]],
) -> None:
    spans: tuple[Span, ...] = ()
    seen: dict[int, tuple[str, ...]] = {}
    for batch in batches:
        new = {n: key for n, key in batch if n not in seen}
        top = place(max(seen)) if seen else None
        spans = from_text(to_text(advanced(spans, [(place(n), k) for n, k in new.items()], top)))
        seen |= new
    keys = [("a",), ("b",), ("c",)]
    known = places([place(n) for n in seen])
    assert [keys[n] for n in owners(spans, keys, known)] == list(seen.values()) or not spans


def place(number: int) -> Place:
    return (1, number, 0, 0, 0, 1, "")


def test_keys_that_go_to_and_fro_are_forgotten_at_the_old_end() -> None:
    seen = [(place(n), (("a",), ("b",))[n % 2]) for n in range(300)]
    spans = advanced((), seen, None)
    assert len(spans) == MOST_SPANS
    assert spans[-1].key == ("b",)


@pytest.mark.parametrize("text", [None, "", "no json", "{}", "[1]", '[{"columns": 5}]'])
def test_a_property_that_is_not_ours_says_nothing(text: str | None) -> None:
    assert from_text(text) == ()
