"""What Kafka Connect means by a type survives the compiler: decoders of change data need it."""

from __future__ import annotations

import json
from typing import Any

from distributary.registry.compile.avro_compiler import compile_avro
from distributary.registry.compile.avro_schema import AvroRecord, Connect, Primitive, parse_avro


def record(**types: Any) -> str:
    fields = [{"name": name, "type": type_} for name, type_ in types.items()]
    return json.dumps({"type": "record", "name": "R", "fields": fields})


def types_in(text: str) -> list[Any]:
    (found,) = parse_avro(text).named.values()
    assert isinstance(found, AvroRecord)
    return [field.type for field in found.fields]


DATE = {"type": "int", "connect.version": 1, "connect.name": "io.debezium.time.Date"}
BITS = {
    "type": "bytes",
    "connect.parameters": {"length": "3", "odd": 7},
    "connect.name": "io.debezium.data.Bits",
}


def test_names_and_parameters_are_read() -> None:
    assert types_in(record(a=DATE, b=BITS, c="int")) == [
        Primitive("int", None, Connect("io.debezium.time.Date")),
        Primitive("bytes", None, Connect("io.debezium.data.Bits", (("length", "3"),))),
        Primitive("int"),
    ]


def test_they_survive_the_compiler() -> None:
    text = record(a=["null", DATE], b={"type": "array", "items": BITS})
    body = compile_avro(text).body.decode()
    assert types_in(body) == types_in(text)
    assert '"connect.name":"io.debezium.time.Date"' in body
    assert compile_avro(body).body.decode() == body


def test_what_is_no_name_is_left_out() -> None:
    text = record(a={"type": "int", "connect.name": 7, "connect.parameters": []})
    assert types_in(text) == [Primitive("int")]
    assert "connect" not in compile_avro(text).body.decode()
