"""Which changes of a JSON Schema are accepted at which level."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from distributary.model.record import Format
from distributary.registry.compatibility.json_compatibility import unreadable
from distributary.registry.compatibility.levels import Level, Version, problems
from distributary.registry.compile.json_compiler import compile_json
from distributary.registry.compile.json_documents import Documents

TEXT: dict[str, Any] = {"type": "string"}
NUMBER: dict[str, Any] = {"type": "integer"}
NULL: dict[str, Any] = {"type": "null"}


def body(schema: Any) -> bytes:
    return compile_json(json.dumps(schema)).body


def judged(old: Any, new: Any) -> list[str]:
    """Why data of the old may not be valid for the new."""
    return unreadable(body(old), body(new))


def an_object(*required: str, closed: bool = False, **properties: Any) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    schema |= {"required": list(required)} if required else {}
    return schema | ({"additionalProperties": False} if closed else {})


WIDER = [
    (NUMBER, {"type": "number"}),
    (TEXT, {"type": ["string", "null"]}),
    (TEXT, {"oneOf": [NULL, TEXT]}),
    (TEXT, {}),
    (TEXT, True),
    (False, TEXT),
    ({"enum": ["a"]}, {"enum": ["a", "b"]}),
    ({"enum": ["a"]}, TEXT),
    ({"const": 1}, {"enum": [1.0, 2]}),
    ({"type": "integer", "maximum": 5}, {"type": "integer", "maximum": 6}),
    ({"type": "integer", "exclusiveMaximum": 5}, {"type": "integer", "maximum": 5}),
    ({"type": "string", "maxLength": 5}, TEXT),
    ({"type": "string", "pattern": "a"}, TEXT),
    ({"type": "integer", "multipleOf": 4}, {"type": "integer", "multipleOf": 2}),
    ({"type": "array", "minItems": 2}, {"type": "array", "minItems": 1}),
    ({"anyOf": [TEXT, NUMBER]}, {"anyOf": [TEXT, NUMBER, NULL]}),
    ({"oneOf": [TEXT, NUMBER]}, {"type": ["string", "integer"]}),
    ({"allOf": [TEXT, {"maxLength": 3}]}, {"allOf": [TEXT]}),
    ({"not": NULL}, {}),
    (an_object(a=TEXT, b=TEXT), an_object(a=TEXT)),
    (an_object(closed=True, a=TEXT), an_object(closed=True, a=TEXT, b=TEXT)),
    (an_object(closed=True, a=TEXT), an_object(a=TEXT)),
    (an_object("a", a=TEXT), an_object(a=TEXT)),
    (
        an_object(closed=True, a=TEXT),
        an_object("b", closed=True, a=TEXT, b={**TEXT, "default": ""}),
    ),
    (
        an_object(a=an_object(closed=True, b=NUMBER)),
        an_object(a=an_object(closed=True, b={}, c=NULL)),
    ),
    ({"type": "array", "items": NUMBER}, {"type": "array", "items": {"type": "number"}}),
]
"""Every value of the first is one of the second, and not the other way round."""


@pytest.mark.parametrize(("narrow", "wide"), WIDER)
def test_a_schema_may_become_wider_but_not_narrower(narrow: Any, wide: Any) -> None:
    assert judged(narrow, wide) == []
    assert judged(wide, narrow) != []


@pytest.mark.parametrize(
    "same",
    [
        an_object(a=TEXT, b={}),
        {**an_object(a=TEXT), "title": "other", "description": "words"},
        {"$ref": "#/definitions/o", "definitions": {"o": an_object(a=TEXT)}},
        {"allOf": [{"type": "object"}, {"properties": {"a": TEXT}}]},
    ],
)
def test_words_that_change_nothing_are_free(same: Any) -> None:
    assert judged(an_object(a=TEXT), same) == judged(same, an_object(a=TEXT)) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (TEXT, NUMBER),
        (an_object(a=TEXT), an_object(a=TEXT, b=TEXT)),
        (an_object(a=TEXT), an_object(a=NUMBER)),
        (an_object(closed=True, a=TEXT), an_object(closed=True, b=TEXT)),
        (an_object(a=TEXT), an_object("a", a=TEXT)),
        (TEXT, {"type": "string", "format": "date-time"}),
        ({"type": "array"}, {"type": "array", "uniqueItems": True}),
        ({"not": NULL}, {"not": NUMBER}),
        ({"type": "array", "items": [TEXT]}, {"type": "array", "items": [NUMBER]}),
        (
            {"type": "object", "additionalProperties": TEXT},
            {"type": "object", "additionalProperties": NUMBER},
        ),
        (
            {"type": "object", "patternProperties": {"^a": TEXT}},
            {"type": "object", "patternProperties": {"^a": NUMBER}},
        ),
        ({"anyOf": [an_object("a", a=TEXT), NULL]}, {"anyOf": [an_object("a", "b", a=TEXT), NULL]}),
    ],
)
def test_incompatible_changes_are_told(old: Any, new: Any) -> None:
    assert judged(old, new) != []


def test_schemas_that_contain_themselves_are_compared() -> None:
    def tree(value: Any) -> Any:
        node = an_object(closed=True, value=value, next={"$ref": "#/definitions/node"})
        return {"definitions": {"node": node}, "$ref": "#/definitions/node"}

    assert judged(tree(NUMBER), tree({"type": "number"})) == []
    assert judged(tree({"type": "number"}), tree(NUMBER)) != []


def test_too_much_to_compare_is_not_compatible() -> None:
    choice = {"anyOf": [{"enum": [i]} for i in range(3)]}
    many = {"allOf": [choice] + [{"anyOf": [{"minimum": i}, {"minimum": -i}]} for i in range(20)]}
    assert judged(many, {**many, "description": "the same"}) != []


def test_a_place_is_named() -> None:
    (reason,) = judged(an_object(a=an_object(b=TEXT)), an_object(a=an_object(b=NUMBER)))
    assert reason.startswith("/a/b ")


@pytest.mark.parametrize(
    ("level", "accepted"),
    [
        (Level.BACKWARD, True),
        (Level.FORWARD, False),
        (Level.FULL, False),
        (Level.NONE, True),
    ],
)
def test_levels_ask_in_their_direction(level: Level, accepted: bool) -> None:
    old, new = an_object(a=NUMBER), an_object(a={"type": "number"})
    found = problems(
        body(new), format=Format.JSON, history=[Version(1, Format.JSON, body(old))], level=level
    )
    assert (found == []) is accepted


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, "", "a", "ab"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abx"), inner, max_size=3)
    ),
    max_leaves=6,
)
LEAVES = st.sampled_from(
    [
        {},
        TEXT,
        NUMBER,
        NULL,
        {"type": "number", "minimum": -1},
        {"type": "integer", "exclusiveMaximum": 2},
        {"enum": ["a", 1]},
        {"const": "a"},
        {"type": "string", "maxLength": 1},
        {"type": ["string", "null"]},
    ]
)


def grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.sampled_from("ab")
    objects = st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(names, inner, max_size=2)},
        optional={
            "required": st.lists(names, min_size=1, unique=True),
            "additionalProperties": inner | st.booleans(),
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "x"]), inner, max_size=1),
            "maxProperties": st.integers(0, 2),
        },
    )
    lists = st.fixed_dictionaries(
        {"type": st.just("array")}, optional={"items": inner, "minItems": st.integers(0, 2)}
    )
    choices = st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=2)})
    return objects | lists | choices | inner.map(lambda each: {"allOf": [each]})


SCHEMAS = st.recursive(LEAVES, grown, max_leaves=5)


@given(old=SCHEMAS, new=SCHEMAS, values=st.lists(VALUES, min_size=5, max_size=20))
def test_what_is_called_compatible_is(old: Any, new: Any, values: list[Any]) -> None:
    assume(judged(old, new) == [])
    before, after = (Documents.of(body(each)).validator for each in (old, new))
    for value in values:
        assert not before.is_valid(value) or after.is_valid(value)


@given(schema=SCHEMAS)
def test_a_schema_is_compatible_with_itself(schema: Any) -> None:
    assert judged(schema, json.loads(json.dumps(schema))) == []
