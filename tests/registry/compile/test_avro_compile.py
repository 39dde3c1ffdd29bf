"""Avro schemas and their references become one text that stands for itself."""

from __future__ import annotations

import json
from typing import Any

import fastavro
import pytest

from distributary.errors import ErrorCode, InvalidSchemaError
from distributary.model.record import Format
from distributary.registry.compile import compile_schema
from distributary.registry.compile.avro_compiler import compile_avro
from distributary.registry.compile.avro_schema import (
    MAX_LEVELS,
    MAX_TEXT,
    AvroRecord,
    Defaults,
    Enum,
    Fixed,
    parse_avro,
)


def record(name: str, *fields: tuple[str, Any], **more: Any) -> dict[str, Any]:
    listed = [{"name": field, "type": type_} for field, type_ in fields]
    return {"type": "record", "name": name, "fields": listed, **more}


def body_of(schema: Any, **imports: Any) -> Any:
    texts = {name.replace("_", "."): json.dumps(each) for name, each in imports.items()}
    return json.loads(compile_avro(json.dumps(schema), imports=texts).body)


def refused(text: Any, imports: dict[str, str] | None = None) -> InvalidSchemaError:
    given = text if isinstance(text, str) else json.dumps(text)
    with pytest.raises(InvalidSchemaError) as caught:
        compile_avro(given, imports=imports or {})
    assert caught.value.code == ErrorCode.SCHEMA_INVALID
    assert caught.value.evidence
    assert caught.value.next_step
    assert len(str(caught.value)) < 2_000
    return caught.value


@pytest.mark.parametrize(
    ("schema", "message", "messages"),
    [
        (record("Order"), "Order", ("Order",)),
        (record("Order", namespace="shop.eu"), "shop.eu.Order", ("shop.eu.Order",)),
        (record("shop.Order", namespace="other"), "shop.Order", ("shop.Order",)),
        ({"type": "array", "items": record("a.Order")}, "a.Order", ("a.Order",)),
        ({"type": "array", "items": "int"}, "array", ("array",)),
        ({"type": "map", "values": record("a.Order")}, "map", ("map",)),
        ("string", "string", ("string",)),
        ({"type": "enum", "name": "a.E", "symbols": ["X"]}, "a.E", ("a.E",)),
        ([record("A"), record("b.B")], "A", ("A", "b.B")),
        (["null", record("A"), record("b.B")], "A", ("", "A", "b.B")),
        ([record("A"), "null"], "A", ("A", "")),
        ([record("A"), "string"], "union", ("union",)),
        (["null"], "union", ("union",)),
    ],
    ids=lambda given: str(given)[:40],
)
def test_what_a_payload_is(schema: Any, message: str, messages: tuple[str, ...]) -> None:
    compiled = compile_schema(json.dumps(schema), format=Format.AVRO, imports={})
    assert (compiled.message, compiled.messages) == (message, messages)


def test_the_body_means_the_same_as_the_text() -> None:
    schema = record(
        "Order",
        ("id", "long"),
        ("state", {"type": "enum", "name": "State", "symbols": ["A", "B"], "default": "A"}),
        ("again", ["null", "State", "shop.Order"]),
        ("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
        ("hash", {"type": "fixed", "name": "other.Hash", "size": 16, "aliases": ["Md5", "b.Md"]}),
        ("hashes", {"type": "array", "items": "other.Hash"}),
        ("map", {"type": "map", "values": {"type": "int", "logicalType": "date"}}),
        namespace="shop",
        doc="an order",
    )
    schema["fields"][0] |= {"default": 5, "aliases": ["number"], "doc": "a number \ud800"}
    body = compile_avro(json.dumps(schema)).body
    assert compile_avro(body.decode()).body == body
    assert parse_avro(body.decode()) == parse_avro(json.dumps(schema))
    assert body.isascii()
    fastavro.parse_schema(json.loads(body))


def test_references_are_written_where_they_are_first_used() -> None:
    address = record("Address", ("street", "string"), namespace="shop")
    customer = record("Customer", ("home", "Address"), namespace="shop")
    order = record(
        "Order", ("to", "shop.Address"), ("by", "Customer"), ("list", "Customer"), namespace="shop"
    )
    body = body_of(order, shop_Customer=customer, shop_Address=address)
    assert body["fields"][0]["type"] == {k: v for k, v in address.items() if k != "namespace"}
    assert body["fields"][1]["type"]["fields"][0]["type"] == "shop.Address"
    assert body["fields"][2]["type"] == "shop.Customer"
    fastavro.parse_schema(body)


def test_a_reference_may_have_another_name_or_hold_more_than_it_says() -> None:
    outer = record("Outer", ("inner", record("Inner", ("x", "int"))), namespace="a")
    body = body_of(record("R", ("f", "a.Inner")), something=outer)
    assert body["fields"][0]["type"]["name"] == "Inner"
    assert "Outer" not in json.dumps(body)


def test_types_that_two_references_define_alike_are_one() -> None:
    common = record("Common", ("x", "int"), namespace="a")
    one, two = record("One", ("c", common)), record("Two", ("c", common))
    body = body_of(record("R", ("one", "One"), ("two", "Two")), One=one, Two=two)
    assert json.dumps(body).count('"Common"') == 1
    other = record("Two", ("c", record("Common", ("x", "long"), namespace="a")))
    texts = {"One": json.dumps(one), "Two": json.dumps(other)}
    refused(record("R", ("one", "One"), ("two", "Two")), texts)


def test_references_in_a_circle() -> None:
    texts = {
        "A": json.dumps(record("A", ("b", ["null", "B"]))),
        "B": json.dumps(record("B", ("a", ["null", "A"]))),
    }
    compiled = compile_avro(json.dumps(record("R", ("a", "A"))), imports=texts)
    assert set(parse_avro(compiled.body.decode()).named) == {"R", "A", "B"}


def test_names_without_a_namespace_inside_a_namespace() -> None:
    plain = record("Order", ("x", "int"))
    spaced = record("Order", ("y", "int"), ("top", "Top"), namespace="shop")
    schema = record("Top", ("plain", plain), ("spaced", spaced))
    assert parse_avro(json.dumps(schema)).named.keys() == {"Top", "Order", "shop.Order"}
    # from inside the namespace, the plain name would be taken for the other one
    inside = record("shop.Holder", ("own", "shop.Order"), ("plain", ".Order"))
    compiled = compile_avro(
        json.dumps(record("R", ("a", "Order"), ("b", "shop.Holder"))),
        imports={"Order": json.dumps(plain), "shop.Order": json.dumps(record("shop.Order"))}
        | {"shop.Holder": json.dumps(inside)},
    )
    parsed = parse_avro(compiled.body.decode())
    holder = parsed.named["shop.Holder"]
    assert isinstance(holder, AvroRecord)
    assert [str(f.type) for f in holder.fields] == ["Name(full='shop.Order')", "Name(full='Order')"]


def test_what_registries_accept_is_accepted() -> None:
    parsed = parse_avro(
        json.dumps(
            record(
                "größe.Maß",
                ("wert", {"type": {"type": "string", "avro.java.string": "String"}}),
                ("e", {"type": "enum", "name": "E", "symbols": [], "default": "gone"}),
                ("f", {"type": "fixed", "name": "F", "size": 0, "logicalType": "uuid"}),
                aliases=["no-name", 5],
            )
        )
    )
    top = parsed.named["größe.Maß"]
    assert isinstance(top, AvroRecord)
    assert top.aliases == ()
    assert parsed.named["größe.E"] == Enum("größe.E", ())
    assert parsed.named["größe.F"] == Fixed("größe.F", 0)
    assert compile_avro(" string ").message == "string"


@pytest.mark.parametrize(
    ("type_", "default", "encoded"),
    [
        (["null", "int"], 1123, b"\x02\xc6\x11"),
        (["int", "null"], None, b"\x02"),
        ("int", 5, b"\x0a"),
        ("int", 2**31, None),
        ("int", "5", None),
        ("int", True, None),
        ("long", -(2**63), b"\xff" * 9 + b"\x01"),
        ("double", 1, b"\x00\x00\x00\x00\x00\x00\xf0\x3f"),
        ("float", 1e300, None),
        ("double", 10**400, None),
        ("boolean", True, b"\x01"),
        ("string", "é", b"\x04\xc3\xa9"),
        ("string", "\ud800", None),
        ("bytes", "\u00ff", b"\x02\xff"),
        ("bytes", "\u0100", None),
        ({"type": "fixed", "name": "F", "size": 2}, "ab", b"ab"),
        ({"type": "fixed", "name": "F", "size": 2}, "abc", None),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", b"\x02"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, ["B"], None),
        ({"type": "array", "items": "int"}, [1, 2], b"\x04\x02\x04\x00"),
        ({"type": "array", "items": "int"}, [], b"\x00"),
        ({"type": "map", "values": "int"}, {"a": 1}, b"\x02\x02a\x02\x00"),
        (record("I", ("a", "int"), ("b", "int")), {"a": 1, "b": 2}, b"\x02\x04"),
        (record("I", ("a", "int"), ("b", "int")), {"a": 1}, None),
        (
            {"type": "record", "name": "I", "fields": [{"name": "a", "type": "int", "default": 3}]},
            {},
            b"\x06",
        ),
        ("R", {}, None),
    ],
    ids=lambda given: str(given)[:40],
)
def test_defaults_that_fit_are_kept(type_: Any, default: Any, encoded: bytes | None) -> None:
    schema = record("R")
    schema["fields"] = [{"name": "f", "type": type_, "default": default}]
    parsed = parse_avro(json.dumps(schema))
    top = parsed.named["R"]
    assert isinstance(top, AvroRecord)
    assert (top.fields[0].default is None) == (encoded is None)
    assert Defaults(parsed.named).encoded("R", top.fields[0]) == encoded
    assert ("default" in body_of(schema)["fields"][0]) == (encoded is not None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nothing",
        "5",
        "null",
        "[]",
        "{}",
        "[" * 100_000,
        '{"type":' * 100_000,
        "1" * 5_000,
        '"' + "x" * MAX_TEXT + '"',
        ["int", "int"],
        ["int", ["null", "string"]],
        "Nobody",
        {"type": "array"},
        {"type": "map", "values": 5},
        {"type": "fixed", "name": "F"},
        {"type": "fixed", "name": "F", "size": -1},
        {"type": "fixed", "name": "F", "size": True},
        {"type": "fixed", "name": "F", "size": 2**31},
        {"type": "enum", "name": "E"},
        {"type": "enum", "name": "E", "symbols": ["A", "A"]},
        {"type": "enum", "name": "E", "symbols": ["a b"]},
        {"type": "enum", "name": "E", "symbols": "AB"},
        {"type": "record", "name": "R"},
        {"type": "record", "fields": []},
        record("../../etc/passwd"),
        record("a..b"),
        record("1a"),
        record("<script>"),
        record("int"),
        record("a\u0000b"),
        record("R", ("x", "int"), ("x", "int")),
        record("R", ("a b", "int")),
        record("R", ("x", "int"), namespace=5),
        {"type": "record", "name": "R", "fields": [5]},
        {"type": "record", "name": "R", "fields": [{"name": "x"}]},
        record("R", ("x", record("R", ("y", "int")))),
        record("R", ("x", {"type": "fixed", "name": "F", "size": 1}), ("y", record("F"))),
    ],
    ids=lambda given: str(given)[:40],
)
def test_texts_that_are_no_schemas(text: Any) -> None:
    refused(text)


def test_schemas_may_be_deep_but_not_endless() -> None:
    def nested(levels: int) -> Any:
        schema: Any = "int"
        for _ in range(levels):
            schema = {"type": "array", "items": schema}
        return schema

    compile_avro(json.dumps(nested(MAX_LEVELS)))
    refused(nested(MAX_LEVELS + 1))


def test_references_may_not_nest_without_end() -> None:
    chain = {f"N{i}": json.dumps(record(f"N{i}", ("next", f"N{i + 1}"))) for i in range(500)}
    chain["N500"] = json.dumps(record("N500"))
    refused(record("R", ("first", "N0")), chain)
    refused(record("R", ("last", "Missing")), chain)
    refused('"int"', {f"N{i}": '"int"' for i in range(1_001)})


def test_defaults_that_could_take_for_ever_do_not() -> None:
    deep: Any = {}
    for _ in range(60):
        deep = {"x": deep}
    twins = [record("A", ("x", ["A", "B"])), record("B", ("x", ["A", "B"]), ("y", "int"))]
    schema = record("R", ("a", twins[0] | {"fields": [{"name": "x", "type": ["A", twins[1]]}]}))
    schema["fields"].append({"name": "b", "type": ["A", "B"], "default": deep})
    assert "default" not in body_of(schema)["fields"][1]
    # each default is two of the next one
    inner: Any = record("L40", ("x", "int"))
    inner["fields"][0]["default"] = 1
    for i in reversed(range(40)):
        fields = [
            {"name": "one", "type": inner, "default": {}},
            {"name": "two", "type": inner["name"], "default": {}},
        ]
        inner = {"type": "record", "name": f"L{i}", "fields": fields}
    assert "default" not in body_of(inner)["fields"][0]
