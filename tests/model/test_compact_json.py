"""Thousands of small documents: written and read as `json` would."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from enum import StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.model.manifest import compact, parsed

_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


class Colour(StrEnum):
    RED = "red"


@given(_VALUES)
def test_what_is_written_is_read_again_by_us_and_by_everybody(document: object) -> None:
    text = compact(document)
    assert parsed(text) == document
    assert json.loads(text) == document


@given(_VALUES)
def test_text_of_others_is_read(document: object) -> None:
    assert parsed(json.dumps(document)) == document


def test_characters_stay_what_they_are() -> None:
    assert compact({"名": "𠀀"}) == '{"名":"𠀀"}'


def test_what_is_not_utf_8_is_escaped_or_left_to_the_caller() -> None:
    name = "file-\udcff.avro"
    assert compact([name]) == '["file-\\udcff.avro"]'
    assert parsed(compact([name])) == [name]
    assert compact([name], escaped=False) == f'["{name}"]'


def test_numbers_beyond_64_bits_are_written_exactly() -> None:
    assert compact([2**70]) == f"[{2**70}]"


def test_what_json_takes_is_taken() -> None:
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    assert compact({1: (Colour.RED, Counter("aa"), moment)}, default=str) == json.dumps(
        {1: (Colour.RED, Counter("aa"), moment)}, separators=(",", ":"), default=str
    )
    assert compact(moment, default=str) == f'"{moment}"'


def test_what_json_refuses_is_refused() -> None:
    with pytest.raises(TypeError):
        compact({"at": datetime(2026, 1, 2, tzinfo=UTC)})
