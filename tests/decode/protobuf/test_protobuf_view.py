"""A payload as a person sees it."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from distributary.decode.payload_view import VIEW_CHARACTERS
from distributary.decode.protobuf.wire import best_effort_text

Compile = Callable[[str], bytes]
SCHEMA = """
syntax = "proto3"; package t; enum E { A = 0; B = 1; }
message S { sint32 z = 1; double d = 2; }
message M { int32 id = 1; string name = 2; S inner = 3; E e = 4; bool ok = 5; bytes raw = 6; }
"""
GOOD = b"\x08\x05\x12\x03a\nb\x1a\x02\x08\x03\x20\x01\x28\x01\x32\x01\xff"


def test_a_payload_that_parses_is_in_text_format(compiled: Compile) -> None:
    text = best_effort_text(compiled(SCHEMA), "t.M", GOOD)
    assert text.splitlines() == [
        "id: 5",
        'name: "a\\nb"',
        "inner {",
        "  z: -2",
        "}",
        "e: B",
        "ok: true",
        'raw: "\\377"',
    ]


def test_a_damaged_payload_is_shown_up_to_the_byte_that_is_wrong(compiled: Compile) -> None:
    text = best_effort_text(compiled(SCHEMA), "t.M", GOOD + b"\x12\x7fabc")
    lines = text.splitlines()
    assert lines[:8] == best_effort_text(compiled(SCHEMA), "t.M", GOOD).splitlines()
    assert len(lines) == 9
    assert lines[8].startswith(f"# cannot be read from byte {len(GOOD) + 1} on")


def test_damage_inside_a_message_is_shown_inside_it(compiled: Compile) -> None:
    text = best_effort_text(compiled(SCHEMA), "t.M", b"\x08\x05\x1a\x03\x08\x03\x11")
    assert text.splitlines()[:3] == ["id: 5", "inner {", "  z: -2"]


def test_without_a_schema_fields_have_numbers() -> None:
    text = best_effort_text(None, "t.M", GOOD + b"\x3b\x08\x01\x3c\x45\x01\x00\x00\x00")
    assert text.splitlines() == [
        "1: 5",
        '2: "a\\nb"',
        "3 {",
        "  1: 3",
        "}",
        "4: 1",
        "5: 1",
        '6: "\\377"',
        "7 {",
        "  1: 1",
        "}",
        "8: 1",
    ]


def test_an_unusable_schema_is_like_none(compiled: Compile) -> None:
    assert best_effort_text(b"\xff", "t.M", b"\x08\x05") == "1: 5\n"
    assert best_effort_text(compiled(SCHEMA), "t.Other", b"\x08\x05") == "1: 5\n"


def test_a_long_text_is_cut(compiled: Compile) -> None:
    payload = b"\x08\x05" * 100_000
    text = best_effort_text(None, "t.M", payload)
    assert len(text) < VIEW_CHARACTERS + 100
    assert text.splitlines()[-1].startswith("# ")


@given(payload=st.binary(max_size=80), known=st.booleans())
def test_any_bytes_give_printable_text(compiled: Compile, payload: bytes, known: bool) -> None:
    text = best_effort_text(compiled(SCHEMA) if known else None, "t.M", payload)
    assert all(c == "\n" or c.isprintable() for c in text)
