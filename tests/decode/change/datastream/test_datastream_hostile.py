"""Avro that was not written by Datastream, or was damaged on its way."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.errors import ErrorCode
from distributary.registry.compile.avro_compiler import compile_avro
from tests.decode.datastream_samples import (
    COLUMNS,
    SOURCES,
    avro_data,
    avro_decoder,
    avro_schema,
    codes,
    event,
    raw,
    rows,
)

SCHEMA = avro_schema("oracle", {**COLUMNS, "amount": ["null", "double"]})
USUAL = event(1, "oracle", payload={"id": 1, "val": "x", "amount": 0.5})
DATA: bytes = avro_data(SCHEMA, [USUAL])[0].as_py()

WRONG: list[tuple[Any, Any]] = [
    ("int", -5),
    ("long", 2**60),
    ("double", 0.5),
    ("boolean", True),
    ("bytes", b"\xff"),
    ("string", ""),
    ("string", "x" * 1_000),
    (["null", "string"], None),
    ({"type": "array", "items": "int"}, [1]),
    ({"type": "array", "items": ["null", "string"]}, [None, "a\x1fb"]),
    ({"type": "map", "values": "int"}, {"a": 1}),
    ({"type": "record", "name": "W", "fields": [{"name": "w", "type": "int"}]}, {"w": 1}),
    ({"type": "record", "name": "E", "fields": []}, {}),
    ("null", None),
]
TOP = [field["name"] for field in SCHEMA["fields"]]


def _with_type(part: str, inside: str | None, type_: Any) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(json.dumps(SCHEMA))
    fields = schema["fields"]
    if inside is not None:
        fields = next(f for f in fields if f["name"] == inside)["type"]["fields"]
    next(field for field in fields if field["name"] == part)["type"] = type_
    return schema


@pytest.mark.parametrize("number", range(len(WRONG)))
@pytest.mark.parametrize("part", TOP)
def test_parts_of_the_envelope_of_another_type(part: str, number: int) -> None:
    type_, value = WRONG[number]
    schema = _with_type(part, None, type_)
    found = avro_decoder(schema).decode(avro_data(schema, [{**USUAL, part: value}]), raw(1))
    assert found.ok.num_rows + len(found.failed) == 1
    for row in rows(found):
        json.loads(row["_envelope"])


@pytest.mark.parametrize("number", range(len(WRONG)))
@pytest.mark.parametrize("part", SOURCES["oracle"])
def test_parts_of_the_metadata_of_another_type(part: str, number: int) -> None:
    type_, value = WRONG[number]
    schema = _with_type(part, "source_metadata", type_)
    given_ = {**USUAL, "source_metadata": {**USUAL["source_metadata"], part: value}}
    found = avro_decoder(schema).decode(avro_data(schema, [given_]), raw(1))
    assert found.ok.num_rows + len(found.failed) == 1
    assert set(codes(found).values()) <= {ErrorCode.BAD_POSITION, ErrorCode.KEY_NOT_IN_PAYLOAD}
    for row in rows(found):
        json.loads(row["_envelope"])


@pytest.mark.parametrize("method", ["mysql-cdc", "postgresql-cdc", "sqlserver-cdc", "cdc", "x"])
@pytest.mark.parametrize("number", range(len(WRONG)))
def test_positions_of_another_type(method: str, number: int) -> None:
    type_, value = WRONG[number]
    names = ("log_file", "log_position", "lsn", "scn", "ssn", "rs_id")
    # a record is defined once, and named from then on
    again = type_["name"] if isinstance(type_, dict) and "name" in type_ else type_
    fields = [{"name": name, "type": again if n else type_} for n, name in enumerate(names)]
    source = {"type": "record", "name": "M", "fields": fields}
    schema = _with_type("source_metadata", None, source)
    given_ = {**USUAL, "read_method": method, "source_metadata": dict.fromkeys(names, value)}
    found = avro_decoder(schema).decode(avro_data(schema, [given_]), raw(1))
    assert found.ok.num_rows + len(found.failed) == 1
    assert set(codes(found).values()) <= {ErrorCode.BAD_POSITION}


def test_null_everywhere() -> None:
    schema: dict[str, Any] = json.loads(json.dumps(SCHEMA))
    for field in schema["fields"]:
        field["type"] = ["null", field["type"]]
    given_ = dict.fromkeys(TOP)
    found = avro_decoder(schema).decode(avro_data(schema, [given_, USUAL]), raw(2))
    assert codes(found) == {0: ErrorCode.NO_SOURCE_METADATA}
    assert [row["id"] for row in rows(found)] == [1]


def test_cut_anywhere() -> None:
    parts = [DATA[:end] for end in range(len(DATA))]
    data = pa.array([DATA, *parts, DATA + b"\x00", DATA], pa.binary())
    found = avro_decoder(SCHEMA).decode(data, raw(len(data)))
    assert set(codes(found)) == set(range(1, len(data) - 1))
    assert [row["id"] for row in rows(found)] == [1, 1]
    assert found.origin is not None and found.origin.to_pylist() == [0, len(data) - 1]


@given(st.lists(st.tuples(st.integers(0, len(DATA) - 1), st.integers(0, 255)), max_size=3))
def test_damaged_bytes_hurt_nobody_else(changes: list[tuple[int, int]]) -> None:
    damaged = bytearray(DATA)
    for at, byte in changes:
        damaged[at] = byte
    data = pa.array([DATA, bytes(damaged), DATA], pa.binary())
    found = avro_decoder(SCHEMA).decode(data, raw(3))
    assert set(codes(found)) <= {1}
    whole = rows(avro_decoder(SCHEMA).decode(pa.array([DATA], pa.binary()), raw(1)))[0]
    assert rows(found)[0] == rows(found)[-1] == whole


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=5))
def test_noise_is_never_a_crash(noise: list[bytes]) -> None:
    found = avro_decoder(SCHEMA).decode(pa.array(noise, pa.binary()), raw(len(noise)))
    assert found.ok.num_rows + len(found.failed) == len(noise)


def test_texts_that_are_no_utf8() -> None:
    at = DATA.index(b"shop_orders")
    damaged = DATA[:at] + b"\xff" + DATA[at + 1 :]
    found = avro_decoder(SCHEMA).decode(pa.array([damaged, DATA], pa.binary()), raw(2))
    assert codes(found) == {0: ErrorCode.INVALID_UTF8}
    assert not found.failed[0].message.startswith("field")


def test_no_word_of_an_event_is_in_what_is_told_about_it() -> None:
    schema = avro_schema()
    bad = [
        event(0, metadata={"log_file": "secret"}),
        event(1, metadata={"primary_keys": ["secret"]}),
    ]
    found = avro_decoder(schema).decode(avro_data(schema, bad), raw(2))
    assert len(found.failed) == 2
    assert not any("secret" in failure.message for failure in found.failed)


def test_a_compiled_schema_does_as_well() -> None:
    compiled = compile_avro(json.dumps(SCHEMA))
    decoder = avro_decoder(json.loads(compiled.body))
    assert rows(decoder.decode(pa.array([DATA], pa.binary()), raw(1)))[0]["id"] == 1


def test_a_huge_value_is_a_value() -> None:
    schema = avro_schema()
    large = "x" * 1_000_000
    data = avro_data(schema, [event(payload={"id": 1, "val": large})])
    assert rows(avro_decoder(schema).decode(data, raw(1)))[0]["val"] == large


def test_large_arrays_and_slices_of_them() -> None:
    schema = avro_schema()
    data = avro_data(schema, [event(n) for n in range(100)])
    decoder = avro_decoder(schema)
    whole = decoder.decode(data, raw(100)).ok
    assert decoder.decode(data[40:60], raw(20)).ok.equals(whole.slice(40, 20))
    large = decoder.decode(data.cast(pa.large_binary()), raw(100)).ok
    assert large.equals(whole)
