"""Which Avro schemas can read the data of which others."""

from __future__ import annotations

import copy
import io
import json
from contextlib import suppress
from typing import Any

import fastavro
import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from distributary.model.record import Format
from distributary.registry.compatibility.avro_compatibility import unreadable
from distributary.registry.compatibility.levels import Level, Version, problems
from distributary.registry.compile.avro_compiler import compile_avro
from tests.decode.avro_samples import branch_name, data, encode, record, types, without_logical


def reasons(writer: Any, reader: Any) -> list[str]:
    old, new = (compile_avro(json.dumps(each)).body for each in (writer, reader))
    return unreadable(old, new)


def enum(*symbols: str, name: str = "E", **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


def fixed(size: int, name: str = "F", **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size, **more}


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def with_default(type_: Any, default: Any) -> dict[str, Any]:
    fields = [{"name": "f0", "type": "int"}, {"name": "new", "type": type_, "default": default}]
    return {"type": "record", "name": "R", "fields": fields}


LIST = {"type": "array", "items": "int"}
ALIASED = {
    "type": "record",
    "name": "R",
    "fields": [{"name": "g", "type": "long", "aliases": ["f0"]}],
}
TREE = {
    "type": "record",
    "name": "Tree",
    "fields": [{"name": "next", "type": ["null", "Tree"]}, {"name": "id", "type": "int"}],
}


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        ("int", "int"),
        *(("int", wider) for wider in ("long", "float", "double")),
        *(("long", wider) for wider in ("float", "double")),
        ("float", "double"),
        ("string", "bytes"),
        ("bytes", "string"),
        ("int", ["null", "double"]),
        (["null", "int"], ["long", "null", "string"]),
        (["int"], "int"),
        (LIST, {"type": "array", "items": ["null", "long"]}),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "double"}),
        (enum("A"), enum("B", "A")),
        (enum("A", "C"), enum("A", "B", default="B")),
        (enum("A", name="x.E"), enum("A", name="y.E")),
        (enum("A", name="x.Old"), enum("A", name="E", aliases=["x.Old"])),
        (fixed(4), fixed(4)),
        (decimal(9, 2), decimal(12, 2)),
        (decimal(9, 2), "bytes"),
        (record("int", "string"), record("long")),
        (record("int"), with_default(["null", "int"], 1123)),
        (record("int"), ALIASED),
        (TREE, copy.deepcopy(TREE)),
        (record("int"), ["null", record("int")]),
    ],
    ids=lambda given: json.dumps(given)[:50],
)
def test_readable(writer: Any, reader: Any) -> None:
    assert reasons(writer, reader) == []


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        ("long", "int"),
        ("double", "float"),
        ("string", "int"),
        ("null", "int"),
        (["null", "int"], "int"),
        (["int", "string"], ["int", "null"]),
        (LIST, {"type": "array", "items": "string"}),
        (LIST, {"type": "map", "values": "int"}),
        (enum("A", "B"), enum("A")),
        (enum("A"), enum("A", name="Other")),
        (enum("A"), record(name="E")),
        (fixed(4), fixed(5)),
        (fixed(4), [fixed(5), "null"]),
        (decimal(9, 2), decimal(9, 3)),
        (decimal(9, 2), decimal(8, 2)),
        (record("int"), record("int", "int")),
        (record("int"), with_default("int", "unfit")),
        (record("int"), record("int", name="Other")),
        (record("int"), [record("int", name="Other"), "null"]),
        (record(record("int", name="I")), record(record("int", "int", name="I"))),
    ],
    ids=lambda given: json.dumps(given)[:50],
)
def test_unreadable(writer: Any, reader: Any) -> None:
    assert reasons(writer, reader)


def test_reasons_name_the_field() -> None:
    inner, other = record("int", name="I"), record("string", name="I")
    assert "I.f0" in reasons(record(inner), record(other))[0]


def test_long_chains_of_records_are_compared() -> None:
    records: list[Any] = [{"type": "record", "name": "N0", "fields": []}]
    for i in range(1, 3_000):
        fields = [{"name": "next", "type": f"N{i - 1}"}]
        records.append({"type": "record", "name": f"N{i}", "fields": fields})
    schema = record(*records)
    assert reasons(schema, schema) == []


def test_levels_use_the_rules() -> None:
    old, new = record("int"), with_default("int", 5)
    bodies = [compile_avro(json.dumps(each)).body for each in (old, new, record("int", "int"))]
    history = [Version(1, Format.AVRO, bodies[0])]
    for body, level, fine in (
        (bodies[1], Level.FULL_TRANSITIVE, True),
        (bodies[2], Level.BACKWARD, False),
        (bodies[2], Level.FORWARD, True),
        (bodies[2], Level.NONE, True),
    ):
        found = problems(body, format=Format.AVRO, history=history, level=level)
        assert (not found) == fine


WIDER = {"int": ["long", "float", "double"], "long": ["double"], "float": ["double"]}
DEFAULTS = [("int", 1), (["null", "string"], None), ("string", "x"), (LIST, [1])]


@st.composite
def evolved(draw: st.DrawFn, schema: Any) -> Any:
    """A schema that somebody has worked on."""
    if draw(st.integers(0, 9)) == 0 and not isinstance(schema, list) and schema != "null":
        return ["null", schema]
    if isinstance(schema, str):
        change = draw(st.integers(0, 3)) == 0
        return draw(st.sampled_from(WIDER.get(schema, ["string"]))) if change else schema
    if isinstance(schema, list):
        kept = [each for each in map(draw, map(evolved, schema)) if not isinstance(each, list)]
        kept += draw(st.sampled_from([[], ["null"], ["string"]])) or ["null"]
        unique = list({branch_name(each): each for each in kept}.values())
        return unique[draw(st.integers(0, min(1, len(unique) - 1))) :]
    new = dict(schema)
    match schema["type"]:
        case "array":
            new["items"] = draw(evolved(schema["items"]))
        case "map":
            new["values"] = draw(evolved(schema["values"]))
        case "enum":
            new["symbols"] = draw(st.sampled_from([schema["symbols"], ["A"], ["A", "B", "C", "Z"]]))
            if draw(st.booleans()):
                new["default"] = new["symbols"][0]
        case "record":
            new["fields"] = draw(_fields(schema["fields"]))
    return new


@st.composite
def _fields(draw: st.DrawFn, fields: list[Any]) -> list[Any]:
    new = []
    for field in fields:
        match draw(st.sampled_from(["keep", "keep", "keep", "drop", "rename", "alias"])):
            case "keep":
                new.append({**field, "type": draw(evolved(field["type"]))})
            case "rename":
                new.append({**field, "name": f"{field['name']}_new"})
            case "alias":
                new.append({**field, "name": f"{field['name']}_new", "aliases": [field["name"]]})
    if draw(st.booleans()):
        type_, default = draw(st.sampled_from(DEFAULTS))
        new.append({"name": "added", "type": type_, "default": default})
    return draw(st.permutations(new))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Any, Any, Any]:
    names = [0]
    count = draw(st.integers(1, 3))
    writer = without_logical(record(*(draw(types(names, 2)) for _ in range(count))))
    reader = draw(evolved(writer))
    assume(isinstance(reader, dict))
    return writer, reader, draw(data(writer))


@given(sample=pairs())
def test_what_is_called_readable_is_read_by_fastavro(sample: tuple[Any, Any, Any]) -> None:
    writer, reader, datum = sample
    found = reasons(writer, reader)
    event("unreadable" if found else "the same" if writer == reader else "readable")
    if not found:
        payload = io.BytesIO(encode(writer, datum))
        # bytes may be read as text by the rules, which cannot know what is in them
        with suppress(UnicodeDecodeError):
            fastavro.schemaless_reader(payload, writer, reader)
