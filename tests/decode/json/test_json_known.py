"""Texts that add nothing to a known shape, found by comparing values or by an expression."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.config.lake import Evolution
from distributary.decode.json import known_shapes as module
from distributary.decode.json.infer import NOTHING, grown, infer
from distributary.decode.json.kinds import Learner, profile_texts
from distributary.decode.json.known_shapes import Group, adding_nothing
from tests.decode.json.test_json_speeds import BYTES, HOSTILE, TEXTS, _objects

RECORDS = _objects(TEXTS).map(str.encode)


def mask_of(texts: list[bytes], shape: dict[str, Any], **named: str | None) -> list[bool]:
    group = Group(np.arange(len(texts)), shape, named)
    mask: list[bool] = adding_nothing(pa.array(texts, pa.binary()), [group]).tolist()
    return mask


def learned(texts: list[bytes], document: dict[str, Any] = NOTHING) -> dict[str, Any]:
    profile = profile_texts(pa.array(texts, pa.binary()))
    return document if profile is None else Learner(Evolution()).extended(document, profile)


@given(
    st.lists(RECORDS, min_size=1, max_size=5),
    st.lists(BYTES | RECORDS, min_size=1, max_size=5),
    st.booleans(),
)
def test_a_text_that_fits_adds_nothing(seen: list[bytes], more: list[bytes], changes: bool) -> None:
    texts = [*seen, *more, *HOSTILE]
    images = ("before", "after", "payload") if changes else None
    shape = grown(NOTHING, infer(seen, parts=changes) or NOTHING, images=images)
    for text, fits in zip(texts, mask_of(texts, shape), strict=True):
        if fits:
            assert grown(shape, infer([text], parts=changes) or NOTHING, images=images) == shape
    document = learned(seen)
    for text, fits in zip(texts, mask_of(texts, document), strict=True):
        if fits:
            assert learned([text], document) == document


@given(st.lists(RECORDS, min_size=1, max_size=5), st.lists(BYTES | RECORDS, max_size=5))
def test_values_fit_wherever_the_expression_matches(seen: list[bytes], more: list[bytes]) -> None:
    shape, texts = learned(seen), [*seen, *more]
    with patch.object(module, "_MANY", 0):
        matched = mask_of(texts, shape)
    for text, fits, matches in zip(texts, mask_of(texts, shape), matched, strict=True):
        assert fits or not matches, text


def test_usual_records_fit_whatever_the_order_of_their_members() -> None:
    record = {"id": 1, "name": 'é"\n', "price": 1.5, "paid": True, "at": {"x": {"y": [1]}, "z": 1}}
    record |= {"tags": ["a"], "lines": [{"n": 1}], "none": None, "long": 48.20817434567891}
    shape = learned([json.dumps(record).encode()])
    usual = [record, dict(reversed(record.items())), {}, {"price": 2}, {"tags": []}, {"id": None}]
    assert all(mask_of([json.dumps(each).encode() for each in usual], shape))
    odd = [
        {"id": "x"},
        {"new": 1},
        {"id": 2**53},
        {"id": 1.5},
        {"tags": [1]},
        {"at": {"z": "x"}},
        {"at": {"w": 1}},
    ]
    odd += [{"paid": 1}, {"price": 2**60}, [record], "x", 5]
    assert not any(mask_of([json.dumps(each).encode() for each in odd], shape))


def test_numbers_that_lose_digits_do_not_fit() -> None:
    shape = learned([b'{"n":1.5,"i":4611686018427387904}'])
    texts = [b'{"n":0.12345678901234567890123}', b'{"i":123456789012345678901234}', b'{"n":1e999}']
    assert mask_of([*texts, b'{"n":1e2}', b'{"i":9223372036854775807}'], shape) == [
        *[False] * 3,
        *[True] * 2,
    ]


def test_the_side_columns_of_a_field_take_their_own_values() -> None:
    shape = learned([b'{"n":1}', b'{"n":2}', b'{"n":"x"}'])
    assert "anyOf" in shape["properties"]["n"]
    texts = [b'{"n":3}', b'{"n":"y"}', b'{"n":1.5}', b'{"n":[1]}', b'{"n":true}']
    assert mask_of(texts, shape) == [True, True, False, False, False]


def test_the_texts_of_a_group_must_be_at_their_paths() -> None:
    shape = learned([b'{"event":{"name":"a"},"n":1}'])
    texts = [b'{"event":{"name":"a"}}', b'{"event":{"name":"b"}}', b'{"n":1}', b'{"event":null}']
    assert mask_of(texts, shape, **{"event.name": "a"}) == [True, False, False, False]
    assert mask_of(texts, shape, **{"event.name": None}) == [False, False, True, True]


@pytest.mark.parametrize(
    "body", [{"properties": {}}, {"type": "object"}, {"anyOf": 5}, {"type": []}]
)
def test_a_schema_that_is_no_shape_takes_nothing(body: dict[str, Any]) -> None:
    assert mask_of([b'{"a":1}', b"1"], body) == [False, False]


def test_small_groups_need_no_expression_and_large_ones_do() -> None:
    """The groups of a thousand types cost a parsed text each, not an expression each."""
    texts = [b'{"type":"t%d","n":%d}' % (n % 100, n) for n in range(1_000)]
    shapes = [learned([texts[n]]) for n in range(100)]
    groups = [Group(np.arange(n, 1_000, 100), shape) for n, shape in enumerate(shapes)]
    array = pa.array(texts, pa.binary())
    with patch.object(module, "familiar", wraps=module.familiar) as expression:
        assert adding_nothing(array, groups).all()
        assert not expression.called
        assert adding_nothing(array, [Group(np.arange(1_000), shapes[0])]).all()
        assert expression.called
    assert not adding_nothing(array, []).any()
    assert not adding_nothing(array[:0], [Group(np.arange(0), shapes[0])]).any()
