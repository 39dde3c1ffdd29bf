"""JSON is read at several speeds, and all of them give the same, bit by bit."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from distributary.decode.base import DecodeLimits, RefusedError
from distributary.decode.json import columns
from distributary.decode.json import decoder as decoders
from distributary.decode.json import infer as inference
from distributary.decode.json.decoder import JsonDecoder
from distributary.decode.json.infer import NOTHING, grown, infer, join, shape_of
from distributary.decode.json.json_text import parse, parse_strictly, plain_numbers, render
from distributary.decode.json.pattern import familiar, shape_in
from distributary.errors import ErrorCode
from distributary.model.deadletter import Decoded
from tests.decode.json_samples import writer_schema

DEPTH = 100
NUMBERS = [
    *(
        "0",
        "-0",
        "-0.0",
        "0.0",
        "1",
        "1.0",
        "1.50",
        "-7",
        "01",
        "1.",
        ".5",
        "-",
        "+1",
        "1e5",
        "1E-7",
    ),
    *("1e400", "1e-400", "-1e-400", "1e16", "1e22", "0.0001", "0.00001", "123456789.1234567"),
    *("123456789012345.6", "1234567890123456.0", "12345678901234567.0", "9007199254740993.0"),
    *("0.1234567890123456789", "999999999999999999", "9223372036854775807", "9223372036854775808"),
    *("-9223372036854775808", "18446744073709551615", "18446744073709551616", "1" * 50),
    *("NaN", "Infinity", "-Infinity", "true", "false", "null", "nul", "True"),
]
STRINGS = [
    *('""', '"a"', '"a\\"b"', '"\\":"', '"\\u0022"', '"\\u0061"', '"\\ud800"', '"\\ud83d\\ude00"'),
    *(
        '"\\/"',
        '"\u00e9"',
        '"\x7f"',
        '"\x01"',
        '"\u2028"',
        '", :1e5"',
        '"1e5"',
        '"',
        '"\\x"',
        "'a'",
    ),
    *('"2024-05-06T07:08:09Z"', '"12345678901234567890.5"', '"-0 "', '"null"'),
]
BLANKS = st.sampled_from(["", "", "", " ", "\n", "\t", "  ", "\r\n"])
NAMES = st.sampled_from(['"a"', '"b"', '"c"', '"\\u0061"', '"d e"', '"\u00fc"', '"q\\"t"', '""'])


def _between(inner: list[str], blank: str) -> str:
    return f"{blank},{blank}".join(inner)


def _arrays(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    made = st.tuples(st.lists(inner, max_size=3), BLANKS)
    return made.map(lambda each: f"[{each[1]}{_between(*each)}{each[1]}]")


def _objects(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    members = st.tuples(NAMES, BLANKS, inner).map(lambda m: f"{m[0]}{m[1]}:{m[1]}{m[2]}")
    made = st.tuples(st.lists(members, max_size=4), BLANKS)
    return made.map(lambda each: f"{{{_between(*each)}}}")


LEAVES = st.sampled_from(NUMBERS + STRINGS) | st.floats().map(repr) | st.integers().map(str)
TEXTS = st.recursive(LEAVES, lambda inner: _arrays(inner) | _objects(inner), max_leaves=8)
BYTES = st.tuples(
    st.sampled_from([b"", b"", b"", b"", b"\xef\xbb\xbf", b" ", b"\xff"]),
    TEXTS.map(str.encode),
    st.sampled_from([b"", b"", b"", b"", b"\n", b"x", b" {}", b"\x00"]),
).map(b"".join)
HOSTILE = [
    *(
        b"",
        b" ",
        b"\x00",
        b"{",
        b"[",
        b'{"a":1',
        b'{"a":1}}',
        b'{"a":1}{"a":2}',
        b'{"a":1,}',
        b"null",
    ),
    *(b'{"a":1,"a":1}', b'{"a":1,"\\u0061":2}', b'{"a":"\\u0022","b":1,"b":2}', b'{"a":1,"a" :2}'),
    *(b'{"a":{"b":1,"b":1}}', b'{"a":[{"b":1,"b":1}]}', b"[" * 2_000, b"[" * 101 + b"]" * 101),
    *(b"[" * 100 + b"]" * 100, b'{"a":' * 99 + b"1" + b"}" * 99, b"1" * 5_000, b"-" + b"9" * 400),
    *(
        b'{"a":"\xff"}',
        b'{"\xff":1}',
        b'{"a":"\xed\xa0\x80"}',
        b'\xef\xbb\xbf{"a":1}',
        b'{"a":\xa01}',
    ),
    *(
        b"[]",
        b"[1]",
        b'"a"',
        b"1",
        b'[{"a":1},{"a":2}]',
        b'{"a":-0}',
        b'{"a":-0.0}',
        b'{"a": 1E400}',
    ),
]


def bits(value: Any) -> Any:
    """A value in which 1 and 1.0, 0.0 and -0.0, doubles and decimals differ."""
    match value:
        case dict():
            return [(name, bits(each)) for name, each in value.items()]
        case list() | tuple():
            return [bits(each) for each in value]
        case float():
            return struct.pack("<d", value)
        case Decimal():
            return "decimal", str(value)
    return type(value).__name__, value


def outcome(read: Callable[[], Any]) -> Any:
    try:
        return bits(read())
    except RefusedError as error:
        return error.code, error.reason, error.position


def each_example(values: list[Any]) -> Callable[[Any], Any]:
    def decorated(test: Any) -> Any:
        for value in values:
            test = example(value)(test)
        return test

    return decorated


@each_example(HOSTILE)
@given(BYTES)
def test_a_text_is_read_alike_quickly_and_strictly(data: bytes) -> None:
    strictly = outcome(lambda: parse_strictly(data, max_depth=DEPTH))
    plain = plain_numbers(pa.array([data], pa.binary()))[0]
    assert outcome(lambda: parse(data, max_depth=DEPTH)) == strictly
    assert outcome(lambda: parse(data, max_depth=DEPTH, plain=plain)) == strictly


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    # as parsed: what a double keeps is never a decimal
    | st.just(Decimal("0.12345678901234567890"))
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('ab"\\é\x00\x7f'), inner),
    max_leaves=6,
)


@given(VALUES)
def test_a_value_is_written_as_python_writes_it(value: Any) -> None:
    assert outcome(lambda: parse_strictly(render(value).encode(), max_depth=DEPTH)) == bits(value)
    if "0.12345678901234567890" not in render(value):
        assert render(value) == json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def shown(decoded: Decoded) -> Any:
    failed = [(f.index, f.code, f.message, f.position) for f in decoded.failed]
    origin = None if decoded.origin is None else decoded.origin.to_pylist()
    return bits(decoded.ok.to_pylist()), decoded.ok.schema, origin, failed, decoded.empty


def at_every_speed(make: Callable[[], JsonDecoder], payloads: list[bytes]) -> list[Any]:
    """What Arrow and orjson, orjson alone, and Python's own reader make of payloads."""
    array = pa.array(payloads, pa.binary())
    found = [make().decode(array)]
    with patch.object(columns, "_BLOCK_BYTES", 48):
        # of several blocks nothing else may come than of one
        assert shown(make().decode(array)) == shown(found[0])
    slow = make()
    slow._engine = None
    found.append(slow.decode(array))
    with patch.object(
        decoders, "parse", lambda data, max_depth, plain: parse_strictly(data, max_depth=max_depth)
    ):
        found.append(slow.decode(array))
    return [shown(each) for each in found]


@given(
    st.lists(_objects(TEXTS).map(str.encode), min_size=1, max_size=6), st.lists(BYTES, max_size=4)
)
def test_records_without_a_schema_are_decoded_alike_at_every_speed(
    seen: list[bytes], others: list[bytes]
) -> None:
    schema = writer_schema(grown(NOTHING, infer(seen) or NOTHING))
    payloads = [*seen, *others, *HOSTILE]
    found = at_every_speed(
        lambda: JsonDecoder(schema.body, schema.message, DecodeLimits()), payloads
    )
    assert found[0] == found[2]
    assert found[1] == found[2]


SCHEMAS: list[dict[str, Any]] = [
    {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "string"}}},
    {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0}, "b": {}}},
    {"type": "object", "properties": {"a": {"type": ["integer", "null"]}}, "required": ["a"]},
    {
        "properties": {
            "a": {"properties": {"b": {"type": "integer"}}},
            "b": {"items": {"type": "number"}},
        }
    },
    {"type": "object", "additionalProperties": {"type": "number"}},
    {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "number"}}}},
    {"type": "array", "items": {"type": "integer"}},
    {"type": "object", "properties": {"a": {"type": "string", "format": "date-time"}}},
    {
        "type": "object",
        "properties": {"a": {"type": "integer", "maximum": 10**30}, "c": {"type": "null"}},
    },
    {"type": "object", "properties": {"a": {"type": "object", "properties": {}}}},
    {},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
@given(st.lists(BYTES | _objects(TEXTS).map(str.encode), min_size=1, max_size=6))
def test_records_with_a_schema_are_decoded_alike_at_every_speed(
    schema: dict[str, Any], payloads: list[bytes]
) -> None:
    body = json.dumps({"schema": schema | {"title": "t"}, "draft": 7, "references": {}}).encode()
    found = at_every_speed(lambda: JsonDecoder(body, "t", DecodeLimits()), [*payloads, *HOSTILE])
    assert found[0] == found[2]
    assert found[1] == found[2]


ARRAYS = {"type": "array", "items": {"type": "integer"}}
LISTED = {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "integer"}}}}
A = {"a": {"type": "integer"}}


@pytest.mark.parametrize(
    ("schema", "taken", "refused"),
    [
        (ARRAYS | {"minItems": 1}, b"[1]", b"[]"),
        (ARRAYS | {"maxItems": 1}, b"[1]", b"[1,2]"),
        (ARRAYS | {"uniqueItems": True}, b"[1]", b"[1,1]"),
        (ARRAYS | {"contains": {"const": 1}}, b"[1]", b"[2]"),
        (ARRAYS | {"not": {"maxItems": 0}}, b"[1]", b"[]"),
        (ARRAYS | {"if": {"maxItems": 1}, "then": {"minItems": 1}}, b"[1]", b"[]"),
        (ARRAYS | {"enum": [[1]]}, b"[1]", b"[2]"),
        (LISTED | {"minItems": 1}, b'[{"a":1}]', b"[]"),
        (LISTED | {"const": [{"a": 1}]}, b'[{"a":1}]', b'[{"a":2}]'),
        ({"properties": A, "required": ["created_at"]}, b'{"created_at":"x"}', b'{"a":1}'),
        (
            {"properties": {"b": {"properties": A, "required": ["c"]}}},
            b'{"b":{"a":1,"c":1}}',
            b'{"b":{"a":1}}',
        ),
        ({"properties": {"a": ARRAYS | {"enum": [[1]]}}}, b'{"a":[1]}', b'{"a":[2]}'),
        ({"properties": {"a": ARRAYS | {"const": [1]}}}, b'{"a":[1]}', b'{"a":[2]}'),
    ],
)
def test_what_a_schema_asks_beside_types_is_asked_at_every_speed(
    schema: dict[str, Any], taken: bytes, refused: bytes
) -> None:
    body = json.dumps({"schema": schema | {"title": "t"}, "draft": 7, "references": {}}).encode()
    for payloads, failed in (([refused], [0]), ([taken], []), ([taken, refused], [1])):
        found = at_every_speed(lambda: JsonDecoder(body, "t", DecodeLimits()), payloads)
        assert found[0] == found[1] == found[2]
        assert [(f[0], f[1]) for f in found[0][3]] == [
            (index, ErrorCode.PAYLOAD_MISMATCH) for index in failed
        ]


def test_one_bad_value_among_thousands_is_one_failure() -> None:
    """Columns are made of many records at once; a value without a place is still one record's."""
    body = json.dumps(
        {
            "schema": {"properties": {"a": {"type": "integer"}, "b": {}}},
            "draft": 7,
            "references": {},
        }
    )
    payloads = [json.dumps({"a": i, "b": [i]}).encode() for i in range(3_000)]
    for index in (0, 1_234, 2_999):
        payloads[index] = b'{"a":99999999999999999999,"b":1}'
    decoded = JsonDecoder(body.encode(), "value", DecodeLimits()).decode(
        pa.array(payloads, pa.binary())
    )
    assert [(f.index, f.code) for f in decoded.failed] == [
        (index, ErrorCode.VALUE_OUT_OF_RANGE) for index in (0, 1_234, 2_999)
    ]
    assert decoded.origin is not None
    assert decoded.ok.column("a").to_pylist() == decoded.origin.to_pylist()


@given(
    st.lists(_objects(TEXTS).map(str.encode), min_size=1, max_size=5),
    st.lists(BYTES | _objects(TEXTS).map(str.encode), min_size=1, max_size=5),
    st.booleans(),
)
def test_what_looks_familiar_adds_nothing(
    seen: list[bytes], more: list[bytes], changes: bool
) -> None:
    images = ("before", "after", "payload") if changes else None
    known = grown(NOTHING, infer(seen, parts=changes) or NOTHING, images=images)
    texts = [*seen, *more, *HOSTILE]
    mask = familiar(pa.array(texts, pa.binary()), known)
    for text in (texts[i] for i in np.flatnonzero(mask)):
        assert grown(known, infer([text], parts=changes) or NOTHING, images=images) == known


def test_records_of_the_usual_kind_look_familiar() -> None:
    def records(first: int) -> list[Any]:
        return [
            {
                "id": i,
                "name": f'the "{i}" é\n',
                "price": i / 4,
                "big": 10**17 + i,
                "paid": None if i % 3 else True,
                "address": {"zip (a+b)*": "1", "deep": {"x": [i]}},
                "lines": [{"sku": f"s{i}", "n": i}] * (i % 3),
                "tags": ["a", "b"][: i % 3],
                **({"note": "n"} if i % 2 else {}),
            }
            for i in range(first, first + 10)
        ]

    for blanks in (None, (",", ":")):
        known = infer([json.dumps(each, separators=blanks).encode() for each in records(0)])
        assert known is not None
        # a schema that was written down has its properties in the order of the alphabet
        body = writer_schema(json.loads(json.dumps(known, sort_keys=True))).body
        assert shape_in(body) == known
        texts = [json.dumps(each, separators=blanks).encode() for each in records(50)]
        assert familiar(pa.array(texts, pa.binary()), shape_in(body)).all()
        odd = [
            {"id": "x"},
            {"id": 1, "new": 2},
            {"id": 2**60},
            {"id": 1.5},
            {"id": 1, "price": "x"},
            [],
        ]
        others = pa.array(
            [json.dumps(each, separators=blanks).encode() for each in odd], pa.binary()
        )
        assert not familiar(others, shape_in(body)).any()


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"schema":true}', b'{"schema":{"properties":1}}', b"\xff"]
)
def test_a_schema_that_no_expression_is_made_for_makes_nothing_familiar(body: bytes) -> None:
    assert not familiar(pa.array([b'{"a":1}']), shape_in(body)).any()


@given(
    st.lists(_objects(TEXTS).map(str.encode), min_size=1, max_size=8),
    st.lists(BYTES | _objects(TEXTS).map(str.encode), max_size=8),
    st.booleans(),
)
def test_a_sample_and_what_is_not_like_it_tell_what_all_tell(
    seen: list[bytes], more: list[bytes], changes: bool
) -> None:
    texts = [*seen, *more, *seen, *more, *HOSTILE]
    with patch.object(inference, "_SAMPLE", len(seen)):
        assert infer(texts, parts=changes) == infer(texts, parts=changes, careful=True)


_ORDER = {
    "id": 7,
    "type": "order",
    "at": "2024-05-09",
    "source": {"table": "t", "schema": None, "n": [1, "a", {"x": {}}]},
    "price": 1.5,
    "row": {"name": "n", "deep": {"a": 1}},
}


@given(
    st.integers(0, 400),
    st.binary(max_size=3)
    | st.sampled_from([b"{", b"}", b'"', b"\\", b"\\u12", b"0", b"1.", b"\t"]),
    st.integers(0, 3),
)
def test_what_looks_familiar_is_json(place: int, more: bytes, removed: int) -> None:
    usual = json.dumps(_ORDER).encode()
    known = infer([usual, usual])
    assert known is not None
    place %= len(usual)
    text = usual[:place] + more + usual[place + removed :]
    array = pa.array([usual, text, usual], pa.binary())
    mask = familiar(array, known)
    assert mask[0] and mask[2]
    if mask[1]:
        found = json.loads(text.decode(errors="replace"))
        assert join(known, shape_of(found)) == known
    wanted = {"type": "order", "source.table": "t", "source.schema": None, "source.none": None}
    assert familiar(array, known, wanted, plain="at")[0]
    if familiar(array, known, wanted, plain="at")[1]:
        assert (found["type"], found["source"]["table"]) == ("order", "t")
        assert found["source"].get("schema") is None and "none" not in found["source"]
        first = text.index(b'"at":') + 5
        assert json.loads(text[first : text.index(b",", first)]) == found["at"]


@pytest.mark.parametrize(
    ("named", "plain"),
    [
        ({"type": "Order"}, ""),
        ({"source.table": "u"}, ""),
        ({"source.table": None}, ""),
        ({"none": "x"}, ""),
        ({"id": "7"}, ""),
        ({}, "price"),
        ({}, "none"),
    ],
)
def test_what_is_not_there_makes_nothing_familiar(named: dict[str, Any], plain: str) -> None:
    usual = [json.dumps(_ORDER).encode()] * 3
    known = infer(usual)
    assert known is not None
    assert not familiar(pa.array(usual, pa.binary()), known, named, plain=plain).any()


def test_texts_are_cut_in_their_own_places() -> None:
    """Braces in strings, objects that are missing, slices of an array: none of it is a mistake."""
    usual = [json.dumps(_ORDER | {"id": n}).encode() for n in range(9)]
    odd = [
        json.dumps(_ORDER | more).encode()
        for more in ({"at": "{"}, {"row": None}, {"source": None}, {"row": {}}, {"at": "é{\\"})
    ]
    known = infer([*usual, *odd])
    assert known is not None
    texts = pa.array([b"{", *usual, *odd, b"", b"{{{{"], pa.binary())
    # an object of which the first member is missing has to be looked at
    row = len(usual) + 4
    expected = np.array([False, *[True] * 14, False, False])
    expected[row] = False
    assert familiar(texts, known).tolist() == expected.tolist()
    assert familiar(texts[1:row], known).all()
    assert not familiar(texts[:1], known).any()
    assert not familiar(texts[:0], known).any()


_LINES = st.lists(
    st.sampled_from(
        [
            *(b'{"a":1}', b'{"a":2}{"a":3}', b'{"a":4}\n{"a":5}', b'{"a":6} {}', b"{}", b"{}{}"),
            *(b'{"a":7}\x00}', b"{\x00}", b'{"a":8}\x00{}', b'{"a":\n9}', b'{"a":{}', b"{}}", b"}"),
            *(
                b'{"a":"}',
                b'{"}',
                b"{",
                b"{}//}",
                b"{}/*}",
                b"{}*/{}",
                b"{},{}",
                b"[{}",
                b" {}",
                b"",
            ),
            *(b'{"a":1,"a":2}', b'{"b":[{}', b"{}]}", b'{"a":null}', b"null", b"1", b"{}\r{}"),
        ]
    )
    | st.binary(max_size=6).map(lambda inside: b"{" + inside + b"}"),
    min_size=1,
    max_size=6,
)


@given(_LINES, st.sampled_from(["ignore", "error"]))
@settings(max_examples=5 * settings().max_examples)
def test_texts_are_one_row_each_or_none_at_all(texts: list[bytes], unexpected: str) -> None:
    type_ = pa.struct([("a", pa.int64())])
    rows = columns.read_texts(pa.array(texts, pa.binary()), type_, unexpected=unexpected)
    if rows is not None:
        alone = [json.loads(text) for text in texts]
        assert rows.to_pylist() == [
            None if each is None else {"a": each.get("a")} for each in alone
        ]


def test_objects_are_read_without_a_seal() -> None:
    type_ = pa.struct([("a", pa.int64())])
    texts = pa.array([b"", b'{"a":1}', b'{"a":\n2}', b"{}", b"null"], pa.binary())
    with patch.object(columns, "_read_sealed") as sealed:
        found = columns.read_texts(texts[1:4], type_)
        assert found is not None and found.to_pylist() == [{"a": 1}, {"a": 2}, {"a": None}]
        assert not sealed.called
    found = columns.read_texts(texts[1:], type_)
    assert found is not None and found.to_pylist() == [{"a": 1}, {"a": 2}, {"a": None}, None]


def test_many_members_are_familiar_where_they_are_all_there() -> None:
    """An expression in which any of hundreds may be missing needs more memory than it gets."""

    def texts(count: int, step: int) -> list[bytes]:
        rows = ({f"column_{i}": i for i in range(0, count, 1 + n % step)} for n in range(20))
        return [json.dumps(row).encode() for row in rows]

    for count, step, expected in ((300, 1, True), (90, 7, True), (300, 7, False)):
        some = texts(count, step)
        known = infer(some)
        assert known is not None
        assert familiar(pa.array(some, pa.binary()), known).tolist() == [expected] * 20
    whole = texts(300, 1)
    known = infer(whole)
    assert known is not None
    without = json.loads(whole[0])
    del without["column_150"]
    some = [*whole, json.dumps(without).encode(), json.dumps(without | {"new": 1}).encode()]
    assert familiar(pa.array(some, pa.binary()), known).tolist() == [True] * 21 + [False]
