"""JSON payloads that are wrong, each with its own code, and never a word of what is in them."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from distributary.decode.base import DecodeLimits
from distributary.decode.json.decoder import JsonDecoder
from distributary.errors import DecodeError, ErrorCode
from distributary.model.deadletter import Failure
from distributary.registry.compile.json_compiler import compile_json

CANARY = "canary7f3a"
PERSON: dict[str, Any] = {
    "title": "Person",
    "type": "object",
    "additionalProperties": False,
    "required": ["id"],
    "properties": {
        "id": {"type": "integer"},
        "name": {"type": "string"},
        "score": {"type": "number"},
        "at": {"type": "string", "format": "date-time"},
        "day": {"type": "string", "format": "date"},
        "kind": {"enum": ["a", "b"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "inner": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
    },
}
GOOD = b'{"id":1}'
CLOSED = {"additionalProperties": False}


def decoder(schema: Any, *, quick: bool = True, **limits: Any) -> JsonDecoder:
    compiled = compile_json(json.dumps(schema))
    built = JsonDecoder(compiled.body, compiled.message, DecodeLimits(**limits))
    if not quick:
        built._engine = None
    return built


def failure(schema: Any, payload: bytes, *, quick: bool, **limits: Any) -> Failure:
    """The one failure of a bad payload between two good ones."""
    array = pa.array([GOOD, payload, GOOD], pa.binary())
    decoded = decoder(schema, quick=quick, **limits).decode(array)
    (found,) = decoded.failed
    assert found.index == 1
    assert decoded.ok.num_rows == 2
    return found


@pytest.mark.parametrize("quick", [True, False], ids=["quick", "careful"])
@pytest.mark.parametrize(
    ("payload", "code", "position"),
    [
        (b"", ErrorCode.PAYLOAD_TRUNCATED, 0),
        (b'{"id":', ErrorCode.PAYLOAD_TRUNCATED, 6),
        (b'{"id":1,"name":"ab', ErrorCode.PAYLOAD_TRUNCATED, 18),
        (b'{"id":1,"tags":[tru', ErrorCode.PAYLOAD_TRUNCATED, 19),
        (b"{id:1}", ErrorCode.NOT_JSON, 1),
        (b'{"id":01}', ErrorCode.NOT_JSON, 7),
        (b"{'id':1}", ErrorCode.NOT_JSON, 1),
        (b'{"id":1,}', ErrorCode.NOT_JSON, 8),
        (b'{"id":1} // x', ErrorCode.TRAILING_BYTES, 9),
        (b'{"id":1}{"id":2}', ErrorCode.TRAILING_BYTES, 8),
        (b'{"id":1}\n{"id":2}', ErrorCode.TRAILING_BYTES, 9),
        (b'{"id":1},"s":"x"}\n{"v":{"id":2}', ErrorCode.TRAILING_BYTES, 8),
        (b'{"id":1}\x00', ErrorCode.TRAILING_BYTES, 8),
        (b'\xef\xbb\xbf{"id":1}', ErrorCode.NOT_JSON, 0),
        (b'{"id":1,"name":"\xff"}', ErrorCode.INVALID_UTF8, 16),
        (b'{"id":1,"name":"\\ud800"}', ErrorCode.INVALID_UTF8, None),
        (b'{"id":1,"name":"a\nb"}', ErrorCode.NOT_JSON, 17),
        (b'{"id":1,"score":NaN}', ErrorCode.INVALID_NUMBER, None),
        (b'{"id":1,"score":-Infinity}', ErrorCode.INVALID_NUMBER, None),
        (b'{"id":1,"score":1e400}', ErrorCode.VALUE_OUT_OF_RANGE, None),
        (b'{"id":1,"score":1' + b"0" * 400 + b"}", ErrorCode.VALUE_OUT_OF_RANGE, None),
        (b'{"id":1' + b"0" * 5000 + b"}", ErrorCode.VALUE_OUT_OF_RANGE, None),
        (b'{"id":9223372036854775808}', ErrorCode.VALUE_OUT_OF_RANGE, None),
        (b'{"id":1,"id":1}', ErrorCode.DUPLICATE_KEY, None),
        (b'{"id":1,"inner":{"x":1,"x":2}}', ErrorCode.DUPLICATE_KEY, None),
        (b'{"id":1,"tags":' + b"[" * 101 + b"]" * 101 + b"}", ErrorCode.NESTING_TOO_DEEP, 114),
        (b'{"id":1,"tags":' + b"[" * 100_000, ErrorCode.NESTING_TOO_DEEP, 114),
        (b"null", ErrorCode.PAYLOAD_MISMATCH, None),
        (b"[]", ErrorCode.PAYLOAD_MISMATCH, None),
        (b"{}", ErrorCode.PAYLOAD_MISMATCH, None),
        (b'{"id":null}', ErrorCode.PAYLOAD_MISMATCH, None),
        (b'{"id":1.5}', ErrorCode.PAYLOAD_MISMATCH, None),
        (b'{"id":true}', ErrorCode.PAYLOAD_MISMATCH, None),
        (b'{"id":"1"}', ErrorCode.PAYLOAD_MISMATCH, None),
        (b'{"id":1,"name":null}', ErrorCode.PAYLOAD_MISMATCH, None),
        (b'{"id":1,"n\\u0061me":null}', ErrorCode.PAYLOAD_MISMATCH, None),
        (b'{"id":1,"tags":[null]}', ErrorCode.PAYLOAD_MISMATCH, None),
        (b'{"id":1,"tags":{}}', ErrorCode.PAYLOAD_MISMATCH, None),
        (b'{"id":1,"inner":{}}', ErrorCode.PAYLOAD_MISMATCH, None),
        (b'{"id":1,"kind":"c"}', ErrorCode.PAYLOAD_MISMATCH, None),
        (b'{"id":1,"more":1}', ErrorCode.PAYLOAD_MISMATCH, None),
        (b'{"id":1,"at":"2024-03-01T12:00:00"}', ErrorCode.PAYLOAD_MISMATCH, None),
        (b'{"id":1,"at":"yesterday"}', ErrorCode.PAYLOAD_MISMATCH, None),
        (b'{"id":1,"at":"2024-02-30T12:00:00Z"}', ErrorCode.PAYLOAD_MISMATCH, None),
        (b'{"id":1,"day":"0000-01-01"}', ErrorCode.PAYLOAD_MISMATCH, None),
        (b'{"id":1,"day":"20240101"}', ErrorCode.PAYLOAD_MISMATCH, None),
    ],
)
def test_bad_payloads_have_their_own_code(
    payload: bytes, code: ErrorCode, position: int | None, quick: bool
) -> None:
    found = failure(PERSON, payload, quick=quick)
    assert (found.code, found.position) == (code, position)


def test_the_quick_way_is_taken_for_the_schema_of_these_tests() -> None:
    assert decoder(PERSON)._engine is not None


@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        (PERSON, f'{{"id":"{CANARY}"}}'),
        (PERSON, f'{{"id":1,"{CANARY}":1}}'),
        (PERSON, f'{{"id":1,"at":"{CANARY}"}}'),
        (PERSON, f'{{"id":1,"name":"{CANARY}" {CANARY}}}'),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, f'{{"{CANARY}":"x"}}'),
        ({"propertyNames": {"maxLength": 3}}, f'{{"{CANARY}":"x"}}'),
        ({"properties": {"id": {"const": 1}}, "not": {"required": ["no"]}}, f'{{"no":"{CANARY}"}}'),
    ],
)
def test_failures_do_not_quote_the_payload(schema: Any, payload: str) -> None:
    built = decoder(schema)
    (found,) = built.decode(pa.array([payload.encode()], pa.binary())).failed
    assert CANARY not in found.message


def test_a_mismatch_says_where() -> None:
    found = failure(PERSON, b'{"id":1,"tags":["a",5]}', quick=True)
    assert found.message.startswith("/tags/1 ")


def test_assertions_beyond_types_are_validated() -> None:
    schema = {"type": "object", "properties": {"id": {"type": "integer", "maximum": 10}}}
    assert failure(schema, b'{"id":11}', quick=True).code is ErrorCode.PAYLOAD_MISMATCH


def test_an_expression_that_would_run_for_ever_is_given_up() -> None:
    evil = {"type": "string", "pattern": "^(?=(a+)+$)x"}
    schema = {"type": "object", "properties": {"id": {}, "v": evil}}
    payload = json.dumps({"v": "a" * 5_000 + "b"}).encode()
    assert failure(schema, payload, quick=True).code is ErrorCode.PAYLOAD_MISMATCH


def test_a_lower_limit_of_depth_holds_also_where_the_schema_is_deeper() -> None:
    payload = b'{"id":1,"inner":{"x":1}}'
    found = failure(PERSON, payload, quick=True, max_depth=1)
    assert found.code is ErrorCode.NESTING_TOO_DEEP


def test_brackets_in_texts_are_not_depth() -> None:
    payload = json.dumps({"id": 1, "name": '[{"\\' * 200}).encode()
    decoded = decoder(PERSON, quick=False).decode(pa.array([payload], pa.binary()))
    assert decoded.failed == ()


def test_a_refused_record_leaves_nothing_behind() -> None:
    schema = {
        "type": "object",
        "properties": {
            "tags": {"type": "array", "items": {"type": "string"}},
            "by": {"type": "object", "additionalProperties": {"type": "integer"}},
            "id": {"type": "integer"},
        },
    }
    bad = {"tags": ["lost"], "by": {"lost": 1}, "id": 2**70, "more": 1}
    good = {"tags": ["a"], "by": {"b": 1}, "id": 1}
    array = pa.array([json.dumps(each).encode() for each in (good, bad, good)], pa.binary())
    decoded = decoder(schema, quick=False).decode(array)
    decoded.ok.validate(full=True)
    row = {"tags": ["a"], "by": [("b", 1)], "id": 1, "_rest": None}
    assert decoded.ok.to_pylist() == [row, row]
    assert [f.code for f in decoded.failed] == [ErrorCode.VALUE_OUT_OF_RANGE]


def test_many_records_with_surprises_are_all_decoded() -> None:
    schema = {"type": "object", "properties": {"id": {"type": "integer"}}}
    payloads = [json.dumps({"id": i, "more": i}).encode() for i in range(1_000)]
    decoded = decoder(schema).decode(pa.array(payloads, pa.binary()))
    assert decoded.origin is None
    assert decoded.ok.column("_rest").to_pylist() == [f'{{"more":{i}}}' for i in range(1_000)]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"draft":7}',
        b'{"draft":3,"schema":{},"references":{}}',
        b'{"draft":7,"schema":{"type":"x"},"references":{}}',
    ],
)
def test_a_body_that_nobody_compiled_is_an_error(body: bytes) -> None:
    with pytest.raises(DecodeError):
        JsonDecoder(body, "value", DecodeLimits())


@pytest.mark.parametrize(
    ("pattern", "length"),
    [
        (r"^(a+)+$", 30),
        (r"^(a(?=a|b)|a(?!z))+$", 30),
        # it would match in the end
        (r"^((a(?=a|b)|a(?!z))+|.*)$", 17),
    ],
)
@pytest.mark.parametrize("where", ["pattern", "not", "patternProperties", "propertyNames"])
def test_a_pattern_that_would_never_end_gives_up(where: str, pattern: str, length: int) -> None:
    text = "a" * length + "b"
    schemas: dict[str, Any] = {
        "pattern": {"properties": {"id": {}, "x": {"pattern": pattern}}},
        "not": {"properties": {"id": {}, "x": {"not": {"not": {"pattern": pattern}}}}},
        "patternProperties": {"patternProperties": {pattern: {}, "^id$": {}}, **CLOSED},
        "propertyNames": {"propertyNames": {"anyOf": [{"const": "id"}, {"pattern": pattern}]}},
    }
    named = where in ("patternProperties", "propertyNames")
    payload = json.dumps({"id": 1, **({text: 1} if named else {"x": text})}).encode()
    schema = {"title": "Person", "type": "object", **schemas[where]}
    found = failure(schema, payload, quick=True)
    assert found.code is ErrorCode.PAYLOAD_MISMATCH
    assert text not in found.message


def test_a_pattern_with_look_around_takes_a_long_text() -> None:
    schema = {"title": "Text", "properties": {"x": {"pattern": r"^((?!secret).)*$"}}}
    payloads = [json.dumps({"x": "ab" * 10_000}).encode(), b'{"x": "a secret"}']
    decoded = decoder(schema).decode(pa.array(payloads, pa.binary()))
    assert [each.index for each in decoded.failed] == [1]


@pytest.mark.parametrize("texts", [["a" * 25_001], ["a" * 2_501] * 100])
def test_a_pattern_does_not_look_around_in_very_long_texts(texts: list[str]) -> None:
    patterned = {"items": {"pattern": r"^(?=a*$)a+$"}}
    schema = {"title": "Texts", "type": "object", "properties": {"x": patterned}}
    found = failure(schema, json.dumps({"x": texts}).encode(), quick=True)
    assert found.code is ErrorCode.PAYLOAD_MISMATCH
    plain = {"title": "Texts", "type": "object", "properties": {"x": {"items": {"pattern": "^a"}}}}
    decoded = decoder(plain).decode(pa.array([json.dumps({"x": texts}).encode()], pa.binary()))
    assert not decoded.failed
