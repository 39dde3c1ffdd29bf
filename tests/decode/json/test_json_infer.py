"""Schemas inferred from JSON: joined in any order they are the same, and nothing is lost."""

from __future__ import annotations

import json
from decimal import Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.decode.base import DecodeLimits
from distributary.decode.json.decoder import JsonDecoder
from distributary.decode.json.infer import (
    ANYTHING,
    MAX_PROPERTIES,
    NOTHING,
    arrow_shape,
    grown,
    infer,
    join,
    shape_of,
)
from distributary.decode.json.json_text import parse
from tests.decode.datastream_samples import event
from tests.decode.json_samples import writer_schema

NUMBERS = [
    *("0", "-1", "5", str(2**53 - 1), str(2**53), str(-(2**53)), str(2**63 - 1), str(-(2**63))),
    *(str(2**63), str(2**64), str(10**20 - 1), str(10**20), str(10**38), "-1" + "0" * 40),
    *("0.5", "1e3", "1.0", "0.1", "12.345678901234567890", "123456789.123456789", "1e-320"),
    *("0.30000000000000004", "1.2345678901234567e-7", "-0.0", "9007199254740993.0"),
    *("12345678901234567890e-10", "-1234567890123456e3", "123456789012345e-5"),
]
LEAVES = st.none() | st.booleans() | st.text(max_size=4)
VALUES = st.recursive(
    LEAVES | st.sampled_from(NUMBERS).map(Decimal),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "c d", "sort_keys"]), inner, max_size=3)
    ),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from(["id", "payload", "sort_keys", "x"]), VALUES, max_size=4)


def text(value: Any) -> bytes:
    """JSON with numbers spelled as they were chosen."""
    match value:
        case Decimal():
            spelled = next(number for number in NUMBERS if Decimal(number) == value)
            return spelled.encode()
        case dict():
            members = (json.dumps(name).encode() + b":" + text(v) for name, v in value.items())
            return b"{" + b",".join(members) + b"}"
        case list():
            return b"[" + b",".join(map(text, value)) + b"]"
    return json.dumps(value).encode()


def shape(*values: Any) -> Any:
    return infer([text(value) for value in values])


def decoder(found: Any) -> JsonDecoder:
    schema = writer_schema(found)
    return JsonDecoder(schema.body, schema.message, DecodeLimits())


shapes = VALUES.map(lambda value: shape_of(parse(text(value), max_depth=100)))


@given(shapes, shapes, shapes)
def test_joining_is_a_least_upper_bound(a: Any, b: Any, c: Any) -> None:
    assert join(a, a) == a
    assert join(a, NOTHING) == join(NOTHING, a) == a
    assert join(a, b) == join(b, a)
    assert join(join(a, b), c) == join(a, join(b, c))
    joined = join(a, b)
    assert join(joined, a) == joined == join(b, joined)


@given(OBJECTS, st.lists(shapes, max_size=4), st.booleans())
def test_what_is_known_of_objects_is_never_lost(known: Any, more: list[Any], changes: bool) -> None:
    first = now = shape_of(parse(text(known), max_depth=100))
    for each in [*more, ANYTHING]:
        now = grown(now, each, images=("before", "after", "payload") if changes else None)
    assert now["type"] == ["null", "object"]
    assert now["properties"].keys() >= first["properties"].keys()


@given(st.lists(OBJECTS, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_order_grouping_and_repetition_do_not_matter(values: list[Any], random: Any) -> None:
    whole = shape(*values)
    again = [*values, random.choice(values)]
    random.shuffle(again)
    cut = random.randrange(len(again) + 1)
    parts = [infer([text(v) for v in part]) or NOTHING for part in (again[:cut], again[cut:])]
    assert reduce(join, parts) == (whole or NOTHING)


@given(st.lists(OBJECTS, min_size=2, max_size=5))
def test_arrow_agrees_where_it_has_an_answer(values: list[Any]) -> None:
    texts = [text(value) for value in values]
    quick = arrow_shape(pa.array(texts, pa.binary()))
    careful = reduce(join, [shape_of(parse(each, max_depth=100)) for each in texts])
    if quick is not None:
        assert quick == careful


@pytest.mark.parametrize(
    "data",
    [
        b'{"n":12345678901234567890e-10}',
        b'{"n": -1234567890123456789E-9}',
        b"[12345678901234567e-3]",
        b'{"n":[1.5,\n12345678901234567e-3]}',
    ],
)
def test_digits_before_an_exponent_are_not_lost(data: bytes) -> None:
    assert infer([data, data]) == infer([data, data], careful=True)


def test_digits_in_texts_are_no_reason_for_doubt() -> None:
    text = b'{"id":"1234567890123456e7ab","n":1.5}'
    assert arrow_shape(pa.array([text, text], pa.binary())) is not None


@given(st.lists(OBJECTS, min_size=1, max_size=5))
def test_what_was_inferred_from_is_taken_and_nothing_is_lost(values: list[Any]) -> None:
    texts = [text(value) for value in values]
    found = infer(texts)
    if found is None or not found.get("properties"):
        return
    built = decoder(found)
    decoded = built.decode(pa.array(texts, pa.binary()))
    assert decoded.failed == () and decoded.origin is None
    columns = {column.comment.split(" ")[1]: column.name for column in built.columns}
    # a batch without columns gives no dictionaries
    found_rows = decoded.ok.to_pylist() or [{}] * len(texts)
    for each, row in zip(texts, found_rows, strict=True):
        for name, value in parse(each, max_depth=100).items():
            if name in columns:
                _same(value, row[columns[name]], found["properties"][name])
            else:
                assert value is None or found["properties"][name]["type"] == "null"


def _same(value: Any, column: Any, shape_: Any) -> None:
    """Whether a column holds all that a value was."""
    types = set(shape_["type"]) - {"null"} if shape_ else set()
    if value is None:
        assert column is None
    elif not shape_ or len(types) > 1 or (types == {"object"} and not _shown(shape_)):
        assert parse(column.encode(), max_depth=100) == value
    elif isinstance(value, dict):
        for (_, inner), found in zip(_shown(shape_), column.values(), strict=True):
            _same(value.get(_), found, inner)
    elif isinstance(value, list):
        assert len(value) == len(column)
        for each, found in zip(value, column, strict=True):
            if shape_["items"].get("type") != "null":
                _same(each, found, shape_["items"])
    else:
        assert column == value


def _shown(shape_: Any) -> list[tuple[str, Any]]:
    return [(n, s) for n, s in shape_["properties"].items() if s.get("type") != "null"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["true"], {"type": ["boolean", "null"]}),
        (["1", "null"], {"type": ["integer", "null"]}),
        ([str(2**53)], {"type": ["integer", "null"], "format": "int64"}),
        ([str(-(2**63))], {"type": ["integer", "null"], "format": "int64"}),
        (["1", "0.5"], {"type": ["null", "number"]}),
        ([str(2**53), "0.5"], {"type": ["null", "number", "string"]}),
        (["0.12345678901234567890"], {"type": ["null", "number", "string"]}),
        (["1" + "0" * 40], {"type": ["integer", "null", "string"]}),
        (['"2021-05-16T01:13:01Z"'], {"type": ["null", "string"]}),
        (["1", '"a"'], {"type": ["integer", "null", "string"]}),
        (["[]"], {"type": ["array", "null"], "items": NOTHING}),
        (['["a", null]'], {"type": ["array", "null"], "items": {"type": ["null", "string"]}}),
        (['[{"a": 1}]'], {"type": ["array", "null"], "items": ANYTHING}),
    ],
)
def test_shapes(values: list[str], expected: Any) -> None:
    texts = [f'{{"x": {value}}}'.encode() for value in values]
    for given_ in (texts, texts * 3):
        found = infer(given_)
        assert found is not None and found["properties"]["x"] == expected


@pytest.mark.parametrize("bits", [64, 128])
def test_integers_of_more_than_64_bits_are_decimals(bits: int) -> None:
    value = 2**bits // 4 if bits == 128 else 2**bits
    found = infer([f'{{"x":{value}}}'.encode()])
    built = decoder(found)
    assert built.columns[0].type == pa.decimal128(20 if bits == 64 else 38, 0)
    row = built.decode(pa.array([f'{{"x":{value}}}'.encode()], pa.binary())).ok.to_pylist()[0]
    assert row["x"] == value


def test_objects_are_followed_for_two_levels() -> None:
    found = shape({"payload": {"doc": {"deep": True}}})
    assert found["properties"]["payload"]["properties"]["doc"] == ANYTHING
    assert found["properties"]["payload"]["additionalProperties"] is False


def test_an_object_with_too_many_names_can_be_anything() -> None:
    many = {f"n{number}": 1 for number in range(MAX_PROPERTIES + 1)}
    assert infer([json.dumps({"x": many}).encode()])["properties"]["x"] == ANYTHING  # type: ignore[index]
    halves = [dict(list(many.items())[:3_000]), dict(list(many.items())[2_000:])]
    parts = [infer([json.dumps(half).encode()]) for half in halves]
    assert join(*parts) == ANYTHING  # type: ignore[arg-type]


def test_what_is_no_json_says_nothing() -> None:
    assert infer([]) is None
    assert infer([b"{", b"\xff", b"null", b""]) is None
    good = json.dumps({"a": 1}).encode()
    assert infer([good, b"{broken", b'{"a":1,"a":"x"}', b'{"a":NaN}']) == infer([good])


def test_a_name_that_is_not_utf8_says_nothing_beside_others() -> None:
    texts = [json.dumps({"a": n}).encode() for n in range(100)]
    assert infer([*texts, b'{"\xb8": 1}']) == infer(texts)


def test_sort_keys_of_datastream_may_mix() -> None:
    events = [json.dumps(event(number)).encode() for number in range(5)]
    found = infer(events)
    assert found is not None
    assert found["properties"]["sort_keys"] == {"type": ["array", "null"], "items": ANYTHING}
    assert found == reduce(join, [infer([each]) or NOTHING for each in events])


def test_slices_and_other_types_of_arrays() -> None:
    texts = [json.dumps({"a": n, "r": n / 7}).encode() for n in range(50)]
    array = pa.array([b"{}", *texts, b'{"z":1}'], pa.binary())
    assert infer(array[1:51]) == infer(texts)
    assert infer(pa.array(texts, pa.large_binary())) == infer(texts)


@pytest.mark.parametrize("count", [1, 3])
def test_lists_that_nest_deep_have_a_schema_that_compiles(count: int) -> None:
    text = b'{"a":' + b"[" * 90 + b"1" + b"]" * 90 + b"}"
    shape = infer([text] * count)
    assert shape == infer([text] * count, careful=True)
    assert writer_schema(shape).body
