"""Topics whose Avro schema is no record, as the registry's own serializers write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from distributary.model.record import Format
from tests.decode.avro_samples import zigzag
from tests.lab.simulate.serializers import avro_serializer
from tests.registry.frames import frame
from tests.stage.test_schema_references import make, raw

TABLE = "{each: '{topic}'}"


@pytest.mark.parametrize(
    ("schema", "written"),
    [
        ("bytes", [b"abc", b"", b"\x06abc", b"\x00", b"\xff" * 12]),
        ("string", ["abc", "", "größe"]),
        ("int", [0, -5]),
        (["null", "int"], [None, 7]),
        (["null", "bytes"], [None, b"", b"abc"]),
        ({"type": "map", "values": "int"}, [{"a": 1}, {}]),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, ["B"]),
    ],
)
def test_what_a_serializer_writes_is_a_row(tmp_path: Path, schema: Any, written: list[Any]) -> None:
    one = make(tmp_path, "{format: avro}", TABLE)
    text = json.dumps(schema)
    number = one.registry.register("people-value", text, format=Format.AVRO)
    write = avro_serializer(text, schema_id=number)
    # the serializer takes nothing for a tombstone: its header says that there is a value
    sent = [
        frame(b"\x00", schema_id=number, indexes=None) if v is None else write(v) for v in written
    ]
    staged = one.stage([raw([*sent, None])])
    assert dict(staged.dead) == {"NULL_VALUE": 1}
    rows = one.rows(staged, "people")["value"].to_pylist()
    assert rows == [list(v.items()) if isinstance(v, dict) else v for v in written]


def test_bytes_without_the_header_have_their_length(tmp_path: Path) -> None:
    one = make(tmp_path, "{format: avro, framing: auto}", TABLE)
    number = one.registry.register("people-value", '"bytes"', format=Format.AVRO)
    values: list[bytes | None] = [
        zigzag(3) + b"abc",
        frame(b"def", schema_id=number, indexes=None),
        b"abc",
        zigzag(7) + b"abc",
        zigzag(1) + b"abc",
    ]
    staged = one.stage([raw(values)])
    assert dict(staged.dead) == {"INVALID_LENGTH": 1, "PAYLOAD_TRUNCATED": 1, "TRAILING_BYTES": 1}
    assert sorted(one.rows(staged, "people")["value"].to_pylist()) == [b"abc", b"def"]


@pytest.mark.parametrize(("framing", "kept"), [("confluent", b"\x06abc"), ("none", b"abc")])
def test_bytes_inside_an_envelope(tmp_path: Path, framing: str, kept: bytes) -> None:
    wrapper = """syntax = "proto3";
    message Wrapper { string type = 1; int32 schema_id = 2; bytes payload = 3; }"""
    envelope = "envelope: {format: protobuf, framing: none, subject: wrapper-value, type: type}"
    one = make(tmp_path, f"{{format: avro, framing: {framing}}}", "{each: '{type}'}", envelope)
    one.registry.register("wrapper-value", wrapper)
    number = one.registry.register("chess-value", '"bytes"', format=Format.AVRO)
    inner = zigzag(3) + b"abc"
    inner = frame(inner, schema_id=number, indexes=None) if framing == "confluent" else inner
    value = b"\x0a\x05chess\x10" + bytes([number]) + b"\x1a" + bytes([len(inner)]) + inner
    staged = one.stage([raw([value])])
    assert dict(staged.dead) == {}
    assert one.rows(staged, "chess")["value"].to_pylist() == [kept]
