"""Expressions for JSON texts that look like those before them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from distributary.decode.json.pattern import _merged_order

NAMES = st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=8)


def inserted(lists: list[list[str]]) -> list[str]:
    """The same with a list, which takes a look at all names for each of them."""
    order: list[str] = []
    for names in lists:
        place = 0
        for name in names:
            if name not in order:
                order.insert(place, name)
            place = order.index(name) + 1
    return order


@given(st.lists(NAMES, max_size=5))
def test_a_new_name_stands_behind_the_one_that_it_follows(lists: list[list[str]]) -> None:
    assert _merged_order(lists) == inserted(lists)
