"""JSON Schemas and what they refer to, compiled without a network."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from distributary.errors import ErrorCode, InvalidSchemaError
from distributary.model.record import Compiled, Format
from distributary.registry.compile.json_compiler import compile_json, facts_of
from distributary.registry.compile.json_documents import Documents
from distributary.registry.folder import FileRegistry

DRAFTS = [
    ("http://json-schema.org/draft-04/schema#", 4),
    ("http://json-schema.org/draft-06/schema#", 6),
    ("http://json-schema.org/draft-07/schema", 7),
    ("https://json-schema.org/draft-07/schema#", 7),
    ("https://json-schema.org/draft/2019-09/schema", 2019),
    ("https://json-schema.org/draft/2020-12/schema", 2020),
]
LOOP = {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(40)}


def compiled(schema: Any, **imports: Any) -> Compiled:
    texts = {name.replace("__", "."): json.dumps(each) for name, each in imports.items()}
    return compile_json(json.dumps(schema), imports=texts)


def takes(found: Compiled, value: Any) -> bool:
    return Documents.of(found.body).validator.is_valid(value)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a schema made somebody open a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.parametrize(("uri", "draft"), DRAFTS)
def test_every_draft_is_known(uri: str, draft: int) -> None:
    found = compiled({"$schema": uri, "type": "integer"})
    assert Documents.of(found.body).draft == draft
    # only draft 4 tells 1.0 from 1
    assert takes(found, 1.0) is (draft != 4)


def test_a_schema_that_does_not_say_its_draft_is_a_draft_7() -> None:
    assert Documents.of(compiled({"type": "null"}).body).draft == 7


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"title": "Order"}, "Order"),
        ({"title": " an\n order ", "$id": "http://a.b/x.json"}, "an order"),
        ({"$id": "http://a.b/shop/order.schema.json"}, "order"),
        ({"$id": "http://a.b/shop/order.json#"}, "order"),
        ({"$id": "urn:shop:order"}, "order"),
        ({}, "value"),
        (True, "value"),
    ],
)
def test_a_message_is_called_by_its_title(schema: Any, message: str) -> None:
    assert compiled(schema).message == message


@pytest.mark.parametrize(
    ("schema", "imports"),
    [
        ({"$ref": "n.json"}, {"n__json": {"type": "integer"}}),
        ({"$ref": "./n.json"}, {"n__json": {"type": "integer"}}),
        (
            {"$ref": "n.json#/definitions/i"},
            {"n__json": {"definitions": {"i": {"type": "integer"}}}},
        ),
        (
            {"$id": "http://a.b/s/root.json", "allOf": [{"$ref": "n.json"}]},
            {"n__json": {"type": "integer"}},
        ),
        (
            {"$ref": "http://c.d/n.json"},
            {"http://c__d/n__json": {"$ref": "m.json"}, "m__json": {"type": "integer"}},
        ),
        (
            {
                "$ref": "#/definitions/a/definitions/b",
                "definitions": {"a": {"definitions": {"b": {"type": "integer"}}}},
            },
            {},
        ),
        ({"definitions": {"x": {"$id": "#i", "type": "integer"}}, "$ref": "#i"}, {}),
        ({"definitions": {"x": {"$id": "i.json", "type": "integer"}}, "$ref": "i.json"}, {}),
        (
            {"definitions": {"a/b~c d": {"type": "integer"}}, "$ref": "#/definitions/a~1b~0c%20d"},
            {},
        ),
    ],
)
def test_references_are_found(schema: Any, imports: dict[str, Any]) -> None:
    found = compiled(schema, **imports)
    assert takes(found, 5)
    assert not takes(found, "5")
    # the planner's own way of following a reference agrees with the validator's
    documents = Documents.of(found.body)
    assert facts_of(documents, [documents.root]).atoms == {"integer"}


def test_a_body_stands_for_itself() -> None:
    found = compiled({"$ref": "n.json"}, n__json={"type": "integer"})
    assert Documents.of(found.body).body == found.body


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "5",
        '"string"',
        "[" * 100_000,
        json.dumps({"a": 1})[:-1],
        '{"type": "nothing"}',
        '{"type": 5}',
        '{"properties": []}',
        '{"required": "a"}',
        '{"pattern": "("}',
        '{"maximum": NaN}',
        '{"maximum": 1e999}',
        '{"$schema": "http://example.com/my-own-draft"}',
        '{"$ref": "missing.json"}',
        '{"$ref": "http://127.0.0.1:9/schema.json"}',
        '{"$ref": "file:///etc/hostname"}',
        '{"$ref": "#/definitions/missing"}',
        '{"$ref": "http://["}',
        '{"$id": "http://[", "type": "null"}',
        '{"$ref": "#/strange", "strange": {"properties": 5}}',
        '{"title": "\\ud800"}',
        '{"title": 5}',
        "[" * 101 + "]" * 101,
        json.dumps({"$schema": DRAFTS[-1][0], "$defs": LOOP | {"a40": {}}, "$ref": "#/$defs/a0"}),
    ],
)
def test_what_is_not_a_schema_is_an_error(text: str) -> None:
    with pytest.raises(InvalidSchemaError) as caught:
        compile_json(text)
    assert caught.value.code is ErrorCode.SCHEMA_INVALID
    assert caught.value.evidence
    assert caught.value.next_step


def test_a_bad_reference_is_an_error_too() -> None:
    with pytest.raises(InvalidSchemaError):
        compile_json('{"$ref": "r.json"}', imports={"r.json": '{"properties": 5}'})
    with pytest.raises(InvalidSchemaError):
        compile_json('{"$ref": "r.json"}', imports={"r.json": "no JSON"})


def test_schemas_that_refer_to_themselves_are_fine() -> None:
    assert takes(compiled({"allOf": [{"$ref": "#"}], "type": "null"}), None)
    assert takes(compiled({"items": {"$ref": "#"}}), [[[]]])


def test_a_registry_keeps_json_with_references(tmp_path: Path) -> None:
    registry = FileRegistry(tmp_path)
    registry.register("address", '{"type": "string"}', format=Format.JSON)
    order = {"title": "Order", "type": "object", "properties": {"to": {"$ref": "address.json"}}}
    schema_id = registry.register(
        "orders-value",
        json.dumps(order),
        format=Format.JSON,
        references=[{"name": "address.json", "subject": "address", "version": 1}],
    )
    schema = FileRegistry(tmp_path).by_id(schema_id)
    assert (schema.message, schema.messages) == ("Order", ("Order",))
    assert Documents.of(schema.body).validator.is_valid({"to": "x"})
    assert not Documents.of(schema.body).validator.is_valid({"to": 5})
