"""Which type names are accepted, and what is said about the others."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.errors import ErrorCode
from distributary.model.names import casefold_key, check_type_name, refused_type_name


@pytest.mark.parametrize(
    "name",
    [
        "chess",
        "Chess",
        "com.shop.Order",
        "shop.public.order_items",
        "order-items",
        "2048",
        "a",
        "Schach Spiel",
        "größe",
        "日本語",
        "игра",
        "لعبة",
        "हिन्दी",
        "user@host",
        "a:b",
        "$price",
        "c#",
        "c++",
        "console",
        "com10",
        "null",
        "select",
        "x" * 200,
        ".hidden",
        "trailing.",
        "video/play",
        "com.example/order.placed",
        "application/vnd.shop.order+json",
        "https://example.com/events/created",
        "urn:example:order:placed",
        "ns::Type",
        "com.shop.Outer$Inner",
        "Shop.Order, Shop.Contracts, Version=1.0.0.0",
        "größe/länge",
    ],
)
def test_ordinary_names_of_any_script_are_fine(name: str) -> None:
    assert check_type_name(name) is None


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("", ErrorCode.TYPE_NAME_EMPTY),
        ("  \t\n", ErrorCode.TYPE_NAME_EMPTY),
        ("\u3000", ErrorCode.TYPE_NAME_EMPTY),
        ("x" * 201, ErrorCode.TYPE_NAME_TOO_LONG),
        ("../" * 100, ErrorCode.TYPE_NAME_TOO_LONG),
        ("../../etc/passwd", ErrorCode.TYPE_NAME_UNSAFE_PATH),
        ("..", ErrorCode.TYPE_NAME_UNSAFE_PATH),
        ("a..b", ErrorCode.TYPE_NAME_UNSAFE_PATH),
        ("/etc/passwd", ErrorCode.TYPE_NAME_UNSAFE_PATH),
        ("a/../b", ErrorCode.TYPE_NAME_UNSAFE_PATH),
        ("./a", ErrorCode.TYPE_NAME_UNSAFE_PATH),
        ("a/./b", ErrorCode.TYPE_NAME_UNSAFE_PATH),
        ("a//b", ErrorCode.TYPE_NAME_UNSAFE_PATH),
        ("a/ /b", ErrorCode.TYPE_NAME_UNSAFE_PATH),
        ("a/", ErrorCode.TYPE_NAME_UNSAFE_PATH),
        ("//host/share", ErrorCode.TYPE_NAME_UNSAFE_PATH),
        ("C:/windows", ErrorCode.TYPE_NAME_UNSAFE_PATH),
        ("file:///etc/passwd", ErrorCode.TYPE_NAME_UNSAFE_PATH),
        ("a/nul.txt", ErrorCode.TYPE_NAME_UNSAFE_PATH),
        ("c:\\windows", ErrorCode.TYPE_NAME_UNSAFE_PATH),
        ("chess\x00.parquet", ErrorCode.TYPE_NAME_UNSAFE_PATH),
        ("<script>alert(1)</script>", ErrorCode.TYPE_NAME_UNSAFE_MARKUP),
        ('"><img src=x onerror=alert(1)>', ErrorCode.TYPE_NAME_UNSAFE_MARKUP),
        ("a&amp;b", ErrorCode.TYPE_NAME_UNSAFE_MARKUP),
        ("chess; drop table x", ErrorCode.TYPE_NAME_UNSAFE_TEXT),
        ("x' or '1'='1", ErrorCode.TYPE_NAME_UNSAFE_TEXT),
        ('say "hi"', ErrorCode.TYPE_NAME_UNSAFE_TEXT),
        ("a`b", ErrorCode.TYPE_NAME_UNSAFE_TEXT),
        ("a -- b", ErrorCode.TYPE_NAME_UNSAFE_TEXT),
        ("a\nb", ErrorCode.TYPE_NAME_UNSAFE_TEXT),
        ("a\x1b[31mb", ErrorCode.TYPE_NAME_UNSAFE_TEXT),
        ("a\u2028b", ErrorCode.TYPE_NAME_UNSAFE_TEXT),
        ("a\x85b", ErrorCode.TYPE_NAME_UNSAFE_TEXT),
        ("CON", ErrorCode.TYPE_NAME_RESERVED),
        ("nul.txt", ErrorCode.TYPE_NAME_RESERVED),
        ("Com1", ErrorCode.TYPE_NAME_RESERVED),
        ("lpt9.a.b", ErrorCode.TYPE_NAME_RESERVED),
        ("aux ", ErrorCode.TYPE_NAME_RESERVED),
        (".", ErrorCode.TYPE_NAME_RESERVED),
        (". .", ErrorCode.TYPE_NAME_RESERVED),
        ("chess\U0001f600", ErrorCode.TYPE_NAME_UNSAFE_SYMBOL),
        ("1\ufe0f\u20e3", ErrorCode.TYPE_NAME_UNSAFE_SYMBOL),
        ("a\u200bb", ErrorCode.TYPE_NAME_UNSAFE_SYMBOL),
        ("abc\u202etxt", ErrorCode.TYPE_NAME_UNSAFE_SYMBOL),
        ("a\u2066b", ErrorCode.TYPE_NAME_UNSAFE_SYMBOL),
        ("a\xa0b", ErrorCode.TYPE_NAME_UNSAFE_SYMBOL),
        ("a\u3164b", ErrorCode.TYPE_NAME_UNSAFE_SYMBOL),
        ("a\ue000b", ErrorCode.TYPE_NAME_UNSAFE_SYMBOL),
        ("a\U000e0041b", ErrorCode.TYPE_NAME_UNSAFE_SYMBOL),
        ("a\ud800b", ErrorCode.TYPE_NAME_UNSAFE_SYMBOL),
        ("%2e%2e", ErrorCode.TYPE_NAME_UNSAFE_SYMBOL),
        ("${jndi:ldap}", ErrorCode.TYPE_NAME_UNSAFE_SYMBOL),
        ("a|b", ErrorCode.TYPE_NAME_UNSAFE_SYMBOL),
        ("a*", ErrorCode.TYPE_NAME_UNSAFE_SYMBOL),
        ("\u201cquoted\u201d", ErrorCode.TYPE_NAME_UNSAFE_SYMBOL),
    ],
)
def test_hostile_names_are_called_by_their_code(name: str, code: ErrorCode) -> None:
    assert check_type_name(name) is code


@given(st.text(st.characters(), max_size=12))
def test_an_accepted_name_holds_nothing_that_could_hurt(name: str) -> None:
    if check_type_name(name) is not None:
        return
    assert name.strip()
    assert not set(name) & set("\\<>&\"'`;%{}[]()|*?!~^\x00\r\n\t")
    assert not {"", ".", ".."} & set(name.replace("://", ":", 1).split("/"))
    assert all(unicodedata.category(c)[0] in "LMNPZS" for c in name)
    assert not any(c.isspace() and c != " " for c in name)
    assert all(c.isprintable() for c in name)


@given(st.text(max_size=12))
def test_names_that_differ_in_case_have_one_key(name: str) -> None:
    key = casefold_key(name)
    assert casefold_key(key) == key
    assert casefold_key(name.upper()) == casefold_key(name.upper().lower())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Chess", "CHESS"),
        ("straße", "STRASSE"),
        ("cafe\u0301", "caf\u00e9"),
        ("\u212a", "k"),
        ("\u0130", "i"),
        ("\u0131", "I"),
        ("\uff41", "A"),
    ],
)
def test_names_that_look_alike_clash(one: str, other: str) -> None:
    assert casefold_key(one) == casefold_key(other)


def test_different_names_do_not_clash() -> None:
    assert casefold_key("a.b") != casefold_key("a_b")


def test_the_longest_name_is_a_setting() -> None:
    assert refused_type_name("x" * 300, strict=True, longest=300) is None
    assert refused_type_name("x" * 301, strict=False, longest=300) is ErrorCode.TYPE_NAME_TOO_LONG
