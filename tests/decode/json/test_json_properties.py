"""What was written comes back, by both ways of decoding JSON, whatever the schema."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import jsonschema_rs
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from distributary.decode.base import DecodeLimits
from distributary.decode.json.decoder import JsonDecoder
from distributary.decode.json.schema import lake_names
from distributary.errors import ErrorCode, InvalidSchemaError
from distributary.model.deadletter import Decoded
from distributary.registry.compile.json_compiler import compile_json

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NAMES = st.sampled_from(["id", "name", "a b", "x", "Über", 'q"t', "null", "b\\c"])


@dataclass(frozen=True)
class Shape:
    """A schema, its values, and what they are in the lake."""

    schema: Any
    values: st.SearchStrategy[tuple[Any, Any]]
    """A value as JSON, and as the lake gives it back."""


def same(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, Any]]:
    return values.map(lambda value: (value, value))


def as_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def instant(moment: datetime) -> tuple[str, datetime]:
    return moment.isoformat().replace("+00:00", "Z"), moment


ANYTHING = st.recursive(
    st.booleans() | st.integers() | TEXTS | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
DAYS = st.dates(date(1, 1, 1))
MOMENTS = st.datetimes(datetime(1, 1, 1), timezones=st.just(UTC))
LEAVES = [
    Shape({"type": "boolean"}, same(st.booleans())),
    Shape({"type": "integer"}, same(st.integers(-(2**63), 2**63 - 1))),
    Shape({"type": "integer", "minimum": 0}, same(st.integers(0, 2**63 - 1))),
    Shape(
        {"type": "integer", "minimum": 0, "maximum": 2**64},
        st.integers(0, 2**64).map(lambda n: (n, Decimal(n))),
    ),
    Shape({"type": "number"}, same(st.floats(allow_nan=False, allow_infinity=False))),
    Shape({"type": "string"}, same(TEXTS)),
    Shape({"type": "string", "maxLength": 8}, same(TEXTS)),
    Shape({"enum": ["a", "null", "ü"]}, same(st.sampled_from(["a", "null", "ü"]))),
    Shape({"type": "string", "format": "date-time"}, MOMENTS.map(instant)),
    Shape({"type": "string", "format": "date"}, DAYS.map(lambda day: (day.isoformat(), day))),
    Shape({}, ANYTHING.map(lambda value: (value, as_text(value)))),
    Shape({"type": ["string", "boolean"]}, (TEXTS | st.booleans()).map(lambda v: (v, as_text(v)))),
]


def nullable(shape: Shape) -> Shape:
    if not shape.schema or "oneOf" in shape.schema:
        return shape
    return Shape({"oneOf": [{"type": "null"}, shape.schema]}, same(st.none()) | shape.values)


def listed(shape: Shape) -> Shape:
    values = st.lists(shape.values, max_size=3).map(
        lambda pairs: ([one for one, _ in pairs], [lake for _, lake in pairs])
    )
    return Shape({"type": "array", "items": shape.schema}, values)


def mapped(shape: Shape) -> Shape:
    values = st.dictionaries(TEXTS, shape.values, max_size=3).map(
        lambda pairs: (
            {key: one for key, (one, _) in pairs.items()},
            [(key, lake) for key, (_, lake) in pairs.items()],
        )
    )
    return Shape({"type": "object", "additionalProperties": shape.schema}, values)


def an_object(members: dict[str, Shape], required: set[str], top: bool = False) -> Shape:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: shape.schema for name, shape in members.items()},
        "additionalProperties": False,
    }
    if required:
        schema["required"] = sorted(required)
    names = lake_names(members, top=top)

    @st.composite
    def values(draw: st.DrawFn) -> tuple[Any, Any]:
        content: dict[str, Any] = {}
        lake: dict[str, Any] = dict.fromkeys(names.values())
        for name, shape in members.items():
            if name in required or draw(st.booleans()):
                content[name], lake[names[name]] = draw(shape.values)
        return content, lake

    return Shape(schema, values())


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Shape], top: bool = False) -> Shape:
    members = draw(st.dictionaries(NAMES, inner, min_size=1, max_size=4))
    required = draw(st.sets(st.sampled_from(sorted(members))))
    return an_object(members, required, top)


SHAPES = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: inner.map(nullable) | inner.map(listed) | inner.map(mapped) | objects(inner),
    max_leaves=4,
)


@st.composite
def samples(draw: st.DrawFn) -> tuple[Any, list[Any], list[Any]]:
    shape = draw(objects(SHAPES, top=True))
    pairs = draw(st.lists(shape.values, min_size=1, max_size=4))
    return shape.schema, [one for one, _ in pairs], [lake for _, lake in pairs]


def decoder(schema: Any) -> JsonDecoder:
    compiled = compile_json(json.dumps(schema))
    return JsonDecoder(compiled.body, compiled.message, DecodeLimits())


def careful(schema: Any) -> JsonDecoder:
    built = decoder(schema)
    built._engine = None
    return built


def both(schema: Any, payloads: list[bytes]) -> tuple[Decoded, Decoded]:
    array = pa.array(payloads, pa.binary())
    found = decoder(schema).decode(array), careful(schema).decode(array)
    for each in found:
        each.ok.validate(full=True)
    return found


@given(sample=samples(), indent=st.sampled_from([None, 1]), escaped=st.booleans())
def test_both_ways_give_what_was_written(
    sample: tuple[Any, list[Any], list[Any]], indent: int | None, escaped: bool
) -> None:
    schema, values, lake = sample
    payloads = [json.dumps(v, indent=indent, ensure_ascii=escaped).encode() for v in values]
    quick, slow = both(schema, payloads)
    assert quick.failed == slow.failed == ()
    assert quick.ok.to_pylist() == slow.ok.to_pylist() == lake
    assert quick.ok.schema == slow.ok.schema


@given(sample=samples(), data=st.data())
def test_both_ways_agree_on_what_is_broken(
    sample: tuple[Any, list[Any], list[Any]], data: st.DataObject
) -> None:
    schema, values, _ = sample
    payloads = [json.dumps(value).encode() for value in values]
    broken = bytearray(data.draw(st.sampled_from(payloads)))
    at = data.draw(st.integers(0, max(len(broken) - 1, 0)))
    piece = data.draw(
        st.sampled_from([b"", b"null", b"1", b"0.5", b'"', b"}", b"[", b"\xff", b","])
    )
    broken[at : at + data.draw(st.integers(0, 4))] = piece
    payloads.insert(1, bytes(broken))
    quick, slow = both(schema, payloads)
    assert quick.failed == slow.failed
    assert quick.ok.to_pylist() == slow.ok.to_pylist()
    assert len(payloads) == quick.ok.num_rows + len(quick.failed)


@given(sample=samples(), others=st.lists(ANYTHING, min_size=1, max_size=4))
def test_a_row_is_what_the_validator_takes(
    sample: tuple[Any, list[Any], list[Any]], others: list[Any]
) -> None:
    schema, values, _ = sample
    everything = [*values, *others]
    decoded = decoder(schema).decode(pa.array([json.dumps(v).encode() for v in everything]))
    valid = {i for i, v in enumerate(everything) if jsonschema_rs.is_valid(schema, v, draft=7)}
    mismatched = {f.index for f in decoded.failed if f.code is ErrorCode.PAYLOAD_MISMATCH}
    assert decoded.ok.num_rows + len(decoded.failed) == len(everything)
    assert not mismatched & valid
    assert set(range(len(everything))) - {f.index for f in decoded.failed} <= valid


WORDS = st.sampled_from(
    "type properties items anyOf oneOf allOf not if then enum const required $ref $id $defs "
    "additionalProperties patternProperties format minimum maximum prefixItems title".split()
)
TINY = st.sampled_from(
    [
        "object",
        "array",
        "string",
        "integer",
        "#",
        "#/properties/a",
        "date-time",
        "a",
        1,
        -5,
        1e300,
        True,
        None,
    ]
)
SCHEMAS: st.SearchStrategy[Any] = st.recursive(
    TINY | st.booleans() | st.just({}),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(WORDS | st.sampled_from("abc"), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(schema=SCHEMAS, value=ANYTHING, draft=st.sampled_from(["draft-04", "draft-07", ""]))
def test_no_schema_breaks_more_than_itself(schema: Any, value: Any, draft: str) -> None:
    if isinstance(schema, dict):
        schema = {**schema, "$schema": "https://json-schema.org/draft/2020-12/schema"}
        if draft:
            schema["$schema"] = f"http://json-schema.org/{draft}/schema#"
    try:
        built = decoder(schema)
    except InvalidSchemaError:
        return
    decoded = built.decode(pa.array([json.dumps(value).encode()] * 2, pa.binary()))
    decoded.ok.validate(full=True)
    assert [c.name for c in built.columns] == decoded.ok.schema.names
    assert [c.type for c in built.columns] == decoded.ok.schema.types
