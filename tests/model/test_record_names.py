from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.model.names import propose, spelled_record, spelled_type

word = st.text("abAB01_", min_size=1, max_size=4)
full_names = st.lists(word, min_size=1, max_size=3).map(".".join)


@pytest.mark.parametrize(
    ("name", "record", "whole"),
    [
        ("Customer", "customer", "customer"),
        ("io.confluent.OrderItem", "order_item", "io.confluent.order_item"),
        ("shop.v1.Order2", "order2", "shop.v1.order2"),
    ],
)
def test_usual_names_are_readable(name: str, record: str, whole: str) -> None:
    assert spelled_record(name) == record
    assert spelled_type(name) == whole


def test_odd_names_have_digits_where_nobody_writes_down_who_has_which() -> None:
    assert propose("{record}", record=spelled_record("shop.OrderItem")).alone == "order_item"
    assert propose("{type}", type=spelled_type("shop.OrderItem")).alone == "shop__order_item"
    assert "_x" in propose("{record}", record=spelled_record("shop.order_item")).alone
    assert "_x" in propose("{record}", record=spelled_record("shop.HTTPServer")).alone


@given(full_names, full_names)
def test_two_types_never_share_a_table(one: str, other: str) -> None:
    if one != other:
        names = [propose("silver_{type}", type=spelled_type(name)).alone for name in (one, other)]
        assert names[0] != names[1]


@given(word, word)
def test_two_records_never_share_a_table(one: str, other: str) -> None:
    if one != other:
        names = [propose("{record}", record=spelled_record(name)).alone for name in (one, other)]
        assert names[0] != names[1]
