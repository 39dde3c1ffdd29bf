"""Which columns a JSON Schema gives, and what its values look like in them."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from distributary.decode.base import DecodeLimits
from distributary.decode.json.decoder import JsonDecoder
from distributary.decode.json.json_text import best_effort_text
from distributary.errors import DecodeError
from distributary.model.deadletter import Decoded
from distributary.registry.compile.json_compiler import compile_json

NEWEST = "https://json-schema.org/draft/2020-12/schema"
NULL = {"type": "null"}
TEXT = {"type": "string"}
NUMBER = {"type": "integer"}


def decoder(schema: Any, imports: dict[str, Any] | None = None, **limits: Any) -> JsonDecoder:
    texts = {name: json.dumps(each) for name, each in (imports or {}).items()}
    compiled = compile_json(json.dumps(schema), imports=texts)
    return JsonDecoder(compiled.body, compiled.message, DecodeLimits(**limits))


def closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def types(schema: Any, **limits: Any) -> dict[str, str]:
    return {c.name: str(c.type) for c in decoder(schema, **limits).columns}


def decode(schema: Any, *values: Any, **limits: Any) -> Decoded:
    payloads = [v if isinstance(v, bytes) else json.dumps(v).encode() for v in values]
    decoded = decoder(schema, **limits).decode(pa.array(payloads, pa.binary()))
    decoded.ok.validate(full=True)
    return decoded


def rows(schema: Any, *values: Any, **limits: Any) -> list[dict[str, Any]]:
    decoded = decode(schema, *values, **limits)
    assert decoded.failed == ()
    found: list[dict[str, Any]] = decoded.ok.to_pylist()
    return found


@pytest.mark.parametrize(
    ("schema", "type_", "given", "expected"),
    [
        ({"type": "boolean"}, "bool", True, True),
        ({"type": "integer"}, "int64", -(2**63), -(2**63)),
        ({"type": "integer"}, "int64", b"1.0", 1),
        ({"type": "integer"}, "int64", b"2e3", 2000),
        (
            {"type": "integer", "maximum": 2**64 - 1},
            "decimal128(20, 0)",
            2**64 - 1,
            Decimal(2**64 - 1),
        ),
        ({"type": "integer", "minimum": -(10**30)}, "decimal128(38, 0)", -5, Decimal(-5)),
        ({"type": "integer", "maximum": 10**50}, "string", 10**50, str(10**50)),
        ({"type": "number"}, "double", 1.5, 1.5),
        ({"type": "number"}, "double", 3, 3.0),
        ({"type": ["integer", "number"]}, "double", 3, 3.0),
        ({"type": "string"}, "string", "\u00e9\u0000", "\u00e9\u0000"),
        ({"enum": ["a", "b"]}, "string", "b", "b"),
        ({"const": 5}, "int64", 5, 5),
        ({"type": "string", "format": "uuid"}, "string", "not checked", "not checked"),
        (
            {"type": "string", "format": "date-time"},
            "timestamp[us, tz=UTC]",
            "2024-03-01T12:00:00.123456789+01:30",
            datetime(2024, 3, 1, 10, 30, 0, 123456, tzinfo=UTC),
        ),
        ({"type": "string", "format": "date"}, "date32[day]", "2024-02-29", date(2024, 2, 29)),
        ({"type": ["null", "string"]}, "string", None, None),
        ({"oneOf": [NULL, NUMBER]}, "int64", 7, 7),
        ({"anyOf": [NUMBER, NULL]}, "int64", None, None),
        ({"enum": ["a", None]}, "string", None, None),
        ({"type": "array", "items": NUMBER}, "list<item: int64>", [1, 2], [1, 2]),
        (
            {"type": "array", "items": {"type": ["null", "integer"]}},
            "list<item: int64>",
            [None],
            [None],
        ),
        ({"type": ["string", "integer"]}, "string", 5, "5"),
        ({"type": ["string", "integer"]}, "string", "5", '"5"'),
        ({}, "string", {"a": [1, None]}, '{"a":[1,null]}'),
        (True, "string", "x", '"x"'),
        ({"type": "object"}, "string", {"b": 1.10}, '{"b":1.1}'),
        ({"type": "array"}, "string", [1, "a"], '[1,"a"]'),
        (
            {"type": "object", "additionalProperties": NUMBER},
            "map<string, int64>",
            {"a": 1, "b": 2},
            [("a", 1), ("b", 2)],
        ),
        (
            {"type": "object", "patternProperties": {"^x": TEXT}, "additionalProperties": False},
            "map<string, string>",
            {"xa": "1"},
            [("xa", "1")],
        ),
        (closed(a=closed(b=NUMBER))["properties"]["a"], "struct<b: int64>", {"b": 1}, {"b": 1}),
        (closed(), "string", {}, "{}"),
        (
            {"properties": {"a": TEXT}, "additionalProperties": False},
            "struct<a: string>",
            {},
            {"a": None},
        ),
        ({"$ref": "#/definitions/n"}, "int64", 4, 4),
        (
            {"allOf": [{"type": ["integer", "string"]}, {"type": ["integer", "null"]}]},
            "int64",
            4,
            4,
        ),
        ({"type": "array", "items": [NUMBER, TEXT]}, "string", [1, "a"], '[1,"a"]'),
    ],
)
def test_one_value_in_its_column(schema: Any, type_: str, given: Any, expected: Any) -> None:
    whole = {**closed(v=schema), "definitions": {"n": NUMBER}}
    assert types(whole) == {"v": type_}
    payload = b'{"v":' + given + b"}" if isinstance(given, bytes) else {"v": given}
    assert rows(whole, payload, {}) == [{"v": expected}, {"v": None}]


def test_columns_come_in_the_order_of_the_schema_also_through_references() -> None:
    schema = {
        "$ref": "#/definitions/order",
        "definitions": {"order": closed(z=TEXT, a=TEXT, m=TEXT)},
    }
    assert list(types(schema)) == ["z", "a", "m"]


def test_a_reference_to_another_document_is_followed() -> None:
    imports = {"address.json": {"definitions": {"a": closed(zip=TEXT)}}}
    built = decoder(closed(home={"$ref": "address.json#/definitions/a"}), imports)
    assert [str(c.type) for c in built.columns] == ["struct<zip: string>"]


def test_names_are_made_fit_for_a_lake() -> None:
    properties = {"first-name": TEXT, "First name": TEXT, "_id": TEXT, "": TEXT, "a.b": TEXT}
    columns = decoder(closed(**properties)).columns
    names = [c.name for c in columns]
    assert names[0] == "first_name"
    assert names[1].startswith("First_name_")
    assert names[2:] == ["field_id", "field_", "a_b"]
    assert "renamed from first-name" in columns[0].comment
    given = {name: str(i) for i, name in enumerate(properties)}
    assert list(rows(closed(**properties), given)[0].values()) == list("01234")


def test_a_name_keeps_its_column_when_a_similar_one_comes_before_it() -> None:
    before, after = types(closed(id=NUMBER)), types(closed(ID=TEXT, id=NUMBER))
    assert before["id"] == after["id"] == "int64"


def test_properties_that_are_not_named_are_kept_as_rest() -> None:
    line = {"type": "object", "properties": {"sku": TEXT}}
    schema = {
        "type": "object",
        "properties": {
            "id": NUMBER,
            "lines": {"type": "array", "items": line},
            "by": {"type": "object", "additionalProperties": line},
        },
    }
    assert types(schema)["_rest"] == "string"
    given = {
        "id": 1,
        "new": {"x": 0.1},
        "lines": [{"sku": "a"}, {"sku": "b", "gift": True}],
        "by": {"k": {"sku": "c", "n": None}},
    }
    left = {"new": {"x": 0.1}, "lines": [None, {"gift": True}], "by": {"k": {"n": None}}}
    got = rows(schema, given, {"id": 2})
    assert json.loads(got[0]["_rest"]) == left
    assert got[1]["_rest"] is None


def test_closed_schemas_have_no_rest() -> None:
    assert "_rest" not in types(closed(a=closed(b=TEXT)))


def test_a_property_called_rest_does_not_meet_the_column() -> None:
    schema = {"type": "object", "properties": {"_rest": TEXT}}
    assert rows(schema, {"_rest": "mine", "x": 1}) == [{"field_rest": "mine", "_rest": '{"x":1}'}]


def test_free_form_numbers_keep_every_digit() -> None:
    digits = b"123456789012345678901234567890.12345678901234567890"
    assert rows(closed(v={}), b'{"v":[' + digits + b"]}") == [{"v": f"[{digits.decode()}]"}]


def test_alternatives_of_objects_are_one_struct() -> None:
    schema = {
        "title": "Event",
        "oneOf": [
            {**closed(kind={"const": "made"}, at=NUMBER), "required": ["kind"]},
            {**closed(kind={"const": "sent"}, to=TEXT), "required": ["kind"]},
        ],
    }
    assert types(schema) == {"kind": "string", "at": "int64", "to": "string"}
    made, sent = {"kind": "made", "at": 1}, {"kind": "sent", "to": "x"}
    assert rows(schema, made, sent) == [{**made, "to": None}, {**sent, "at": None}]


def test_an_object_that_contains_itself_is_cut() -> None:
    tree = {"$ref": "#/definitions/tree"}
    schema = {"definitions": {"tree": closed(name=TEXT, left=tree, right=tree)}, **tree}
    deep: dict[str, Any] = {"name": "0"}
    for i in range(1, 6):
        deep = {"name": str(i), "left": deep}
    (row,) = rows(schema, deep, recursion_depth=1)
    assert row["left"]["name"] == "4"
    assert json.loads(row["left"]["left"])["left"]["name"] == "2"


def test_a_schema_without_end_does_not_become_columns_without_end() -> None:
    names = [f"t{i}" for i in range(12)]
    definitions = {n: closed(**{m: {"$ref": f"#/definitions/{m}"} for m in names}) for n in names}
    built = decoder({"definitions": definitions, "$ref": "#/definitions/t0"})
    assert len(built.columns) == 12


def test_an_array_at_the_top_is_a_row_per_item() -> None:
    schema = {"type": "array", "items": closed(a=NUMBER)}
    decoded = decode(schema, [{"a": 1}, {"a": 2}], [], [{"a": 3}])
    assert decoded.ok.to_pylist() == [{"a": 1}, {"a": 2}, {"a": 3}]
    assert decoded.origin is not None
    assert decoded.origin.to_pylist() == [0, 0, 2]
    assert decoded.empty == 1


def test_one_bad_item_refuses_the_whole_array() -> None:
    schema = {"type": "array", "items": closed(a=NUMBER)}
    decoded = decode(schema, [{"a": 1}, {"a": 2**70}], [{"a": 3}])
    assert decoded.ok.to_pylist() == [{"a": 3}]
    assert [f.index for f in decoded.failed] == [0]


@pytest.mark.parametrize(
    ("schema", "given", "expected"),
    [
        (NUMBER, 5, 5),
        ({"type": ["null", "integer"]}, None, None),
        ({"type": "object", "additionalProperties": NUMBER}, {"a": 1}, [("a", 1)]),
        ({"type": ["string", "object"]}, {"a": 1}, '{"a":1}'),
        ({}, [1], "[1]"),
    ],
)
def test_anything_else_at_the_top_is_a_value(schema: Any, given: Any, expected: Any) -> None:
    assert rows(schema, given) == [{"value": expected}]


def test_scalars_in_an_array_at_the_top_are_rows() -> None:
    assert rows({"type": "array", "items": NUMBER}, [1, 2]) == [{"value": 1}, {"value": 2}]


def test_null_instead_of_an_object_is_a_row_of_nulls() -> None:
    assert rows({**closed(a=NUMBER), "type": ["null", "object"]}, None) == [{"a": None}]


def test_a_property_that_is_never_anything_has_no_column() -> None:
    schema = closed(a=NUMBER, n=NULL, f=False)
    assert types(schema) == {"a": "int64"}
    assert rows(schema, {"a": 1, "n": None}) == [{"a": 1}]


def test_siblings_of_a_reference_count_as_the_draft_says() -> None:
    def schema(draft: str) -> dict[str, Any]:
        both = {"$ref": "#/$defs/any", "type": "integer"}
        return {"$schema": draft, "$defs": {"any": {}}, **closed(v=both)}

    assert types(schema(NEWEST)) == {"v": "int64"}
    assert types(schema("http://json-schema.org/draft-07/schema#")) == {"v": "string"}


def test_conditions_do_not_lose_what_they_name() -> None:
    schema = {
        "$schema": NEWEST,
        "type": "object",
        "properties": {"a": NUMBER},
        "if": {"required": ["a"]},
        "then": {"properties": {"b": NUMBER}},
        "unevaluatedProperties": False,
    }
    assert rows(schema, {"a": 1, "b": 2}) == [{"a": 1, "_rest": '{"b":2}'}]


def test_comments_say_where_a_column_comes_from() -> None:
    described = {"type": "string", "description": "who\n pays"}
    (column,) = decoder({"title": "Order", **closed(buyer=described)}).columns
    assert column.comment == "property buyer of Order; who pays"


def test_another_message_than_the_schema_has_is_an_error() -> None:
    compiled = compile_json(json.dumps({"title": "Order", **closed(a=TEXT)}))
    with pytest.raises(DecodeError):
        JsonDecoder(compiled.body, "Invoice", DecodeLimits())


@pytest.mark.parametrize(
    ("payload", "lines"),
    [
        (b'{"a":[1]}', 5),
        (b'{"a":1', 2),
        (b'{"a":1} x', 2),
        (b"\xff\x1b[2J", 2),
        (b'"\\u001b"', 1),
    ],
)
def test_payloads_are_shown_as_far_as_they_can_be_read(payload: bytes, lines: int) -> None:
    text = best_effort_text(None, "Order", payload)
    assert len(text.splitlines()) == lines
    assert all(c == "\n" or c.isprintable() for c in text)
