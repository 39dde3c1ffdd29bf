"""Table names are readable, safe, bounded, and never shared."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from distributary.errors import ConfigError, ErrorCode
from distributary.model.names import MAX_TABLE_NAME, propose, quote_sql

MARK = re.compile(r"_x[0-9a-f]{10}$")


def table_name(template: str, **settings: Any) -> str:
    """The name where nobody writes down who has which."""
    return propose(template, **settings).alone


@pytest.mark.parametrize(
    ("template", "fields", "name"),
    [
        ("silver_{type}", {"type": "chess"}, "silver_chess"),
        ("silver_{type}", {"type": "order_items"}, "silver_order_items"),
        ("silver_{type}", {"type": "2048"}, "silver_2048"),
        ("silver_{type}", {"type": "con"}, "silver_con"),
        ("{database}_{table}", {"database": "shop", "table": "orders"}, "shop_orders"),
        ("{database}_{table}", {"database": "shop", "table": "order_items"}, "shop_order_items"),
        ("{schema}_{table}", {"schema": "public", "table": "t2"}, "public_t2"),
        ("{database}__{table}", {"database": "my_shop", "table": "orders"}, "my_shop__orders"),
        ("{topic}", {"topic": "dev.orders"}, "dev__orders"),
        ("silver_{type}", {"type": "com.shop.order"}, "silver_com__shop__order"),
        ("{topic}", {"topic": "orders"}, "orders"),
        ("{table}", {"table": "orders", "database": "Not Mentioned"}, "orders"),
    ],
)
def test_common_names_stay_as_they_are(template: str, fields: dict[str, Any], name: str) -> None:
    assert table_name(template, **fields) == name


@pytest.mark.parametrize(
    ("template", "fields", "readable"),
    [
        ("silver_{type}", {"type": "Chess"}, "silver_chess"),
        ("silver_{type}", {"type": "com.shop.Order"}, "silver_com_shop_order"),
        ("silver_{type}", {"type": "Größe"}, "silver_groe"),
        ("silver_{type}", {"type": "日本"}, "silver"),
        ("silver_{type}", {"type": ""}, "silver"),
        ("silver_{type}", {"type": "_hidden"}, "silver_hidden"),
        ("silver_{type}", {"type": "../../etc/passwd"}, "silver_etc_passwd"),
        ("silver_{type}", {"type": "'; drop table x; --"}, "silver_drop_table_x"),
        ("silver_{type}", {"type": "chess_x0123456789"}, "silver_chess_x0123456789"),
        ("{type}", {"type": "2048"}, "t_2048"),
        ("{type}", {"type": "日本"}, "t"),
        ("{type}", {"type": "con"}, "con"),
        ("{type}", {"type": "order"}, "order"),
        ("{type}", {"type": "dead_letters"}, "dead_letters"),
        ("dead_{type}", {"type": "letters"}, "dead_letters"),
        ("{database}_{table}", {"database": "my_shop", "table": "orders"}, "my_shop_orders"),
        ("{database}_{table}", {"database": "日本", "table": "orders"}, "t_orders"),
        ("{a}{b}", {"a": "x", "b": "y"}, "xy"),
    ],
)
def test_other_names_carry_digits(template: str, fields: dict[str, Any], readable: str) -> None:
    name = table_name(template, **fields)
    assert MARK.search(name)
    assert MARK.sub("", name, count=1) == readable
    assert table_name(template, **fields) == name


@pytest.mark.parametrize(
    ("template", "fields", "plain"),
    [
        ("silver_{type}", {"type": "Chess"}, "silver_chess"),
        ("silver_{type}", {"type": "CHESS"}, "silver_chess"),
        ("{topic}", {"topic": "dev.orders"}, "dev_orders"),
        ("{database}_{table}", {"database": "l1", "table": "Category"}, "l1_category"),
        (
            "{database}_{table}",
            {"database": "test", "table": "test_accounts"},
            "test_test_accounts",
        ),
        ("silver_{type}", {"type": "a.b"}, "silver_a_b"),
        ("silver_{type}", {"type": "A.b"}, "silver_a_b"),
        ("silver_{type}", {"type": "a__b"}, "silver_a_b"),
        ("silver_{type}", {"type": "a-b"}, "silver_a_b"),
        ("silver_{type}", {"type": "a b"}, "silver_a_b"),
        ("silver_{type}", {"type": "_hidden"}, "silver_hidden"),
        ("silver_{type}", {"type": "com.shop.Order"}, "silver_com_shop_order"),
        ("{database}_{table}", {"database": "my_shop", "table": "orders"}, "my_shop_orders"),
        ("{a}{b}", {"a": "x", "b": "y"}, "xy"),
        ("silver_{type}", {"type": "Größe"}, "silver_grosse"),
        ("silver_{type}", {"type": "urn:shop:order+placed"}, "silver_urn_shop_order_placed"),
        ("silver_{type}", {"type": "日本"}, ""),
        ("silver_{type}", {"type": "chess日"}, ""),
        ("silver_{type}", {"type": "../../etc/passwd"}, ""),
        ("silver_{type}", {"type": "..."}, ""),
        ("silver_{type}", {"type": "chess_x0123456789"}, ""),
        ("silver_{type}", {"type": "a" * 150}, ""),
        ("{type}", {"type": "2048"}, "t_2048"),
        ("{type}", {"type": "Order"}, "t_order"),
        ("{type}", {"type": "con"}, ""),
        ("{type}", {"type": "Dead-Letters"}, ""),
    ],
)
def test_a_plain_name_is_for_the_first_who_wants_it(
    template: str, fields: dict[str, Any], plain: str
) -> None:
    found = propose(template, **fields)
    assert found.plain == plain
    assert found.exact in ("", found.alone)


def test_digits_grow_where_a_name_is_taken() -> None:
    first, second, *_ = propose("silver_{type}", type="Chess").marked()
    assert MARK.search(first)
    assert second.startswith(first) and len(second) == len(first) + 1


def test_two_ways_to_cut_a_name_are_two_tables() -> None:
    one = table_name("{database}_{table}", database="a_b", table="c")
    other = table_name("{database}_{table}", database="a", table="b_c")
    assert one != other
    assert other == "a_b_c"


def test_a_long_name_is_cut_and_stays_different() -> None:
    names = {table_name("silver_{type}", type="x" * 150 + end) for end in "ab"}
    assert len(names) == 2
    assert all(len(name) <= MAX_TABLE_NAME and MARK.search(name) for name in names)


def test_a_prefix_comes_first() -> None:
    assert table_name("{type}", prefix="dev_", type="2048") == "dev_2048"
    assert table_name("{type}", prefix="Dev_", type="a") == "Dev_a"


def test_a_taken_name_is_left_alone() -> None:
    taken = frozenset(["silver_chess", "Bronze_Events"])
    assert MARK.search(table_name("silver_{type}", type="chess", reserved=taken))
    assert MARK.search(table_name("bronze_{type}", type="events", reserved=taken))
    marked = table_name("silver_{type}", type="Chess")
    assert table_name("silver_{type}", type="Chess", reserved=frozenset([marked])) != marked


def test_no_table_is_called_like_the_log_of_another() -> None:
    log = table_name("{table}", table="orders", endings=("_log",)) + "_log"
    assert log == "orders_log"
    assert table_name("{table}", table="orders_log", endings=("_log",)) != log


@pytest.mark.parametrize(
    ("template", "prefix"),
    [
        ("silver", ""),
        ("silver_{type", ""),
        ("silver_{}", ""),
        ("silver_{type.__class__}", ""),
        ("silver_{type!r}", ""),
        ("silver_{type:>10}", ""),
        ("silver_{missing}", ""),
        ("a/{type}", ""),
        ("_{type}", ""),
        ("{type}", "_"),
        ("{type}", "dev-"),
        ("{type}", "x" * 61),
    ],
)
def test_a_template_that_cannot_work_is_refused(template: str, prefix: str) -> None:
    with pytest.raises(ConfigError) as caught:
        table_name(template, prefix=prefix, type="chess")
    assert caught.value.code is ErrorCode.CONFIG_INVALID


@pytest.mark.parametrize(("name", "quoted"), [("a", "`a`"), ("a`b", "`a``b`"), ("a.b", "`a.b`")])
def test_quotes_for_sql(name: str, quoted: str) -> None:
    assert quote_sql(name) == quoted


TEMPLATES = ["silver_{a}", "{a}", "{a}_{b}", "{a}__{b}", "x{a}_{b}_{c}", "{a}{b}", "{b}_{a}_log"]
# few characters, so that values often look like one another
VALUES = st.one_of(
    st.text("aAb_.x0", max_size=6),
    st.text("0123456789abcdef", min_size=10, max_size=10).map("a_x".__add__),
    st.text(max_size=8),
    st.sampled_from(["con", "nul", "dead_letters", "order", "a_log", "A" * 150, "a" * 150]),
)
FIELDS = st.fixed_dictionaries({"a": VALUES, "b": VALUES, "c": VALUES})


def used(template: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if f"{{{key}}}" in template}


@given(st.sampled_from(TEMPLATES), FIELDS, FIELDS)
def test_two_different_inputs_never_share_a_table(
    template: str, one: dict[str, Any], other: dict[str, Any]
) -> None:
    assume(used(template, one) != used(template, other))
    assert table_name(template, **one).lower() != table_name(template, **other).lower()


@pytest.mark.parametrize("template", ["{a}_{b}", "{a}__{b}", "{a}_a_{b}", "{a}{b}", "x_{b}_{a}_x"])
def test_all_short_values_have_tables_of_their_own(template: str) -> None:
    values = ["".join(letters) for n in range(4) for letters in product("aA_", repeat=n)]
    names = {table_name(template, a=a, b=b) for a in values for b in values}
    assert len(names) == len(values) ** 2


@given(st.sampled_from(TEMPLATES), FIELDS)
def test_a_name_is_always_safe(template: str, fields: dict[str, Any]) -> None:
    found = propose(template, **fields, reserved=frozenset(["silver_a"]), endings=("_log",))
    for name in filter(None, (found.alone, found.plain, found.former, *found.marked())):
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name)
        assert len(name) <= MAX_TABLE_NAME
        assert name not in {"con", "nul", "dead_letters", "silver_a", "order"}
        assert not name.endswith("_log")


@given(st.text(max_size=20))
def test_a_quoted_identifier_ends_where_it_should(name: str) -> None:
    inside = quote_sql(name)[1:-1]
    assert inside.replace("``", "") == name.replace("`", "")
    assert inside.replace("``", "`") == name
