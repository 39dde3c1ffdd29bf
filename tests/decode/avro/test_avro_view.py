"""Avro payloads as people see them."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from distributary.decode.avro.decoder import best_effort_text
from distributary.decode.formats import FORMATS
from distributary.decode.payload_view import VIEW_CHARACTERS
from distributary.model.record import Format
from distributary.registry.compile.avro_compiler import compile_avro
from tests.decode.avro_samples import record, zigzag

SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "state", "type": ["null", "string", "int"]},
        {"name": "prices", "type": {"type": "map", "values": "double"}},
        {"name": "parts", "type": {"type": "array", "items": "Order"}},
    ],
}
BODY = compile_avro(json.dumps(SCHEMA)).body
PART = zigzag(2) + b"\x02b" + b"\0" + b"\0" + b"\0"
GOOD = (
    zigzag(1)
    + b"\x06\xc5\xba\x1b"
    + b"\x04\x0a"
    + b"\x02\x02k"
    + bytes(8)
    + b"\0"
    + b"\x02"
    + PART
    + b"\0"
)


def test_a_good_payload_is_shown_whole() -> None:
    assert best_effort_text(BODY, "Order", GOOD).splitlines() == [
        "{",
        "  id: 1",
        '  customer: "ź\\u001b"',
        "  state: (int) 5",
        "  prices: {",
        '    "k": 0.0',
        "  }",
        "  parts: [",
        "    {",
        "      id: 2",
        '      customer: "b"',
        "      state: null",
        "      prices: {",
        "      }",
        "      parts: [",
        "      ]",
        "    }",
        "  ]",
        "}",
    ]


def test_a_bad_payload_is_shown_up_to_the_byte_that_is_wrong() -> None:
    *good, last = best_effort_text(BODY, "Order", GOOD[:6]).splitlines()
    assert good == best_effort_text(BODY, "Order", GOOD).splitlines()[:3]
    assert "byte 6" in last or "byte 5" in last
    assert f"byte {len(GOOD)}" in best_effort_text(BODY, "Order", GOOD + b"x").splitlines()[-1]


def test_without_a_usable_schema_there_is_not_much_to_say() -> None:
    assert best_effort_text(None, "Order", GOOD) == best_effort_text(b"\xff", "Order", GOOD)
    assert FORMATS[Format.AVRO].view is best_effort_text


def test_long_texts_are_cut() -> None:
    body = compile_avro(json.dumps(record({"type": "array", "items": "string"}))).body
    payload = zigzag(5) + (zigzag(100_000) + b"x" * 100_000) * 5 + b"\0"
    text = best_effort_text(body, "R", payload)
    assert len(text) < VIEW_CHARACTERS + 100
    endless = compile_avro('{"type": "array", "items": "null"}').body
    assert len(best_effort_text(endless, "array", zigzag(2**40))) < 20_000


@given(st.binary(max_size=200))
def test_any_bytes_give_printable_text(payload: bytes) -> None:
    text = best_effort_text(BODY, "Order", payload)
    assert all(c == "\n" or c.isprintable() for c in text)
