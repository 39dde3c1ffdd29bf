from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.errors import DecodeError, InvalidSchemaError
from distributary.source.files.avro_slices import Slices, slicer_for
from tests.decode.avro_samples import data, encode, record, types, zigzag

NODE = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "below", "type": {"type": "array", "items": "Node"}}],
}


def cut(schema: Any, block: bytes, count: int) -> Slices:
    return slicer_for(json.dumps(schema))(block, count)


@st.composite
def samples(draw: st.DrawFn) -> tuple[Any, list[Any]]:
    names = [0]
    kinds = [draw(types(names)) for _ in range(draw(st.integers(0, 4)))]
    schema = record("boolean", *kinds)
    return schema, draw(st.lists(data(schema), min_size=1, max_size=5))


@given(sample=samples(), blocks=st.booleans())
def test_events_of_any_schema_are_cut_where_they_end(
    sample: tuple[Any, list[Any]], blocks: bool
) -> None:
    schema, rows = sample
    encoded = [encode(schema, row, blocks=blocks) for row in rows]
    found = cut(schema, b"".join(encoded), len(rows))
    ends = [sum(map(len, encoded[: number + 1])) for number in range(len(encoded))]
    assert (found.ends, found.fault) == (ends, "")


@given(sample=samples(), chance=st.data())
def test_damaged_data_end_in_a_fault_or_in_as_many_events(
    sample: tuple[Any, list[Any]], chance: st.DataObject
) -> None:
    schema, rows = sample
    block = bytearray(b"".join(encode(schema, row) for row in rows))
    at = chance.draw(st.integers(0, len(block) - 1))
    block[at] = chance.draw(st.integers(0, 255))
    del block[chance.draw(st.integers(1, len(block))) :]
    found = cut(schema, bytes(block), len(rows))
    assert len(found.ends) == len(found.names) == len(found.times)
    assert all(0 < end <= len(block) for end in found.ends)
    whole = len(found.ends) == len(rows) and found.ends[-1] == len(block)
    assert whole is (found.fault == "")


def envelope(time: Any, *metadata: tuple[str, Any]) -> dict[str, Any]:
    fields = [{"name": name, "type": type_} for name, type_ in metadata]
    inner = {"type": "record", "name": "M", "fields": fields}
    return {
        "type": "record",
        "name": "E",
        "fields": [
            {"name": "source_timestamp", "type": time},
            {"name": "source_metadata", "type": ["null", inner]},
            {"name": "again", "type": ["null", "M"]},
        ],
    }


def test_names_and_times_are_noted() -> None:
    schema = envelope(["null", "long"], ("table", "string"), ("database", ["null", "string"]))
    one = zigzag(1) + zigzag(500) + zigzag(1) + b"\4ab" + zigzag(1) + b"\2x" + zigzag(0)
    none = zigzag(0) + zigzag(0) + zigzag(1) + b"\4no" + zigzag(0)
    found = cut(schema, one + none, 2)
    assert found.names == [(b"x", b"", b"ab", b""), (b"", b"", b"", b"")]
    assert found.times == [1, -1]
    assert (found.fault, found.time_micros) == ("", False)


def test_times_may_be_microseconds() -> None:
    schema = envelope({"type": "long", "logicalType": "timestamp-micros"}, ("table", "int"))
    found = cut(schema, zigzag(3) + zigzag(1) + zigzag(9) + zigzag(0), 1)
    assert (found.names, found.time_micros) == ([(b"", b"", b"", b"")], True)


@pytest.mark.parametrize(
    ("schema", "block"),
    [
        (record("boolean", {"type": "array", "items": "null"}), b"\1" + zigzag(2**62) + b"\0"),
        (
            record({"type": "array", "items": record(name="Empty")}),
            zigzag(-(2**62)) + b"\2" + b"\0",
        ),
    ],
)
def test_items_that_take_no_bytes_cost_no_time(schema: Any, block: bytes) -> None:
    assert cut(schema, block, 1).ends == [len(block)]


@pytest.mark.parametrize(
    ("schema", "block"),
    [
        (record("string"), zigzag(2**62)),
        (record("string"), zigzag(-1)),
        (record("string"), b"\xff" * 40),
        (record("bytes"), zigzag(200) + b"x" * 199),
        (record({"type": "array", "items": "int"}), zigzag(2**62) + b"\2\2"),
        (record({"type": "map", "values": "null"}), b"\xff" * 1000),
        (record(["null", "int"]), zigzag(2)),
        (record(["null", "int"]), zigzag(-1)),
        (record({"type": "fixed", "name": "F", "size": 2**20}), b"x"),
        (record("int"), b""),
        (record("int"), b"\2\2"),
        (NODE, zigzag(1) * 100_000),
    ],
)
def test_hostile_data_end_in_a_fault(schema: Any, block: bytes) -> None:
    found = cut(schema, block, 1)
    assert found.fault


def test_a_schema_that_doubles_with_every_record_stays_small() -> None:
    fields: list[dict[str, Any]] = [{"name": "a", "type": "int"}]
    for number in range(60):
        inner = {"type": "record", "name": f"R{number}", "fields": fields}
        fields = [{"name": "a", "type": inner}, {"name": "b", "type": f"R{number}"}]
    assert slicer_for(json.dumps({"type": "record", "name": "Top", "fields": fields}))


@pytest.mark.parametrize("levels", [1, 8, 20, 40])
def test_nested_lists_of_any_depth(levels: int) -> None:
    type_: Any = "int"
    for _ in range(levels):
        type_ = {"type": "array", "items": type_}
    block = zigzag(1) * levels + zigzag(77) + zigzag(0) * levels
    assert cut(record(type_), block, 1).ends == [len(block)]


def test_wide_records() -> None:
    schema = record(*[["null", "string"]] * 3000)
    block = (zigzag(1) + b"\2x") * 3000
    assert cut(schema, block, 1).ends == [len(block)]


def test_schemas_that_cannot_be_cut() -> None:
    with pytest.raises(InvalidSchemaError):
        slicer_for("{")
    for empty in (record(), record("null", record(name="Inner")), "null"):
        with pytest.raises(DecodeError):
            slicer_for(json.dumps(empty))


def test_names_of_a_schema_do_not_become_code() -> None:
    schema = record("int", name="print_R")
    schema["fields"][0]["name"] = "__import__"
    assert cut(schema, zigzag(1), 1).ends == [1]
