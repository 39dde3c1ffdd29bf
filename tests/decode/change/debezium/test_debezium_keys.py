"""The key of a change, from the key of its message."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from distributary.decode.base import DecodeLimits
from distributary.decode.change.debezium.decoder import DebeziumDecoder
from distributary.decode.change.debezium.message_kinds import KeyReader
from distributary.decode.json.infer import infer
from distributary.errors import ErrorCode
from distributary.model.change import ChangeSettings
from distributary.model.record import Format, WriterSchema
from distributary.registry.compile.avro_compiler import compile_avro
from tests.decode.debezium_samples import connect_schema, decode, raw_table
from tests.decode.json_samples import writer_schema

KEY_FIELDS = [{"type": "int32", "field": "id"}, {"type": "string", "field": "b"}]
FRAMED = json.dumps({"type": "struct", "fields": KEY_FIELDS, "name": "t.Key"}).encode()


def event(op: str, before: Any, after: Any, **source: Any) -> bytes:
    told = {"connector": "postgresql", "db": "d", "schema": "s", "table": "t", "lsn": 7, **source}
    return json.dumps({"before": before, "after": after, "source": told, "op": op}).encode()


def framed(text: bytes) -> bytes:
    return b'{"schema":' + FRAMED + b',"payload":' + text + b"}"


def names(*keys: bytes | None, schema: WriterSchema | None = None) -> list[Any]:
    found = KeyReader(schema, DecodeLimits()).read(pa.array(keys, pa.binary()))
    return [found.names[code] for code in found.codes.tolist()]


def test_json_without_a_schema() -> None:
    assert names(b'{"id":1}', b'{"id":-2.5e3}', b'{"id":"}\\"{"}') == [("id",)] * 3
    assert names(b'{"id":1,"b":null}', None, b'{"id":1}') == [("id", "b"), (), ("id",)]
    assert names(b'{"b":1,"id":1}', b' { "id" : 1 } ', b'{"id":{"x":1}}') == [
        ("b", "id"),
        ("id",),
        ("id",),
    ]


def test_json_with_a_schema() -> None:
    assert names(framed(b'{"id":1,"b":"x"}'), framed(b"[]")) == [("id", "b")] * 2
    assert names(framed(b'{"id":1,"b":"x"}'), b'{"id":1}', None) == [("id", "b"), ("id",), ()]
    assert names(b'{"schema":null,"payload":null}') == [()]


@pytest.mark.parametrize("key", [b"7", b'"text"', b"\xff", b"{", b"", b"\0\0\0\0\7\2", b"[1]"])
def test_keys_that_name_no_columns(key: bytes) -> None:
    assert names(key, b'{"id":1}', None) == [None, ("id",), ()]


def test_many_different_keys() -> None:
    keys = [json.dumps({f"k{n % 40}": n}).encode() for n in range(400)]
    assert names(*keys) == [(f"k{n % 40}",) for n in range(400)]
    assert names(*[b"7"] * 500) == [None] * 500


def test_names_that_mean_something_to_expressions() -> None:
    assert names(b'{"a.b(":1}', b'{"axb(":1}') == [("a.b(",), ("axb(",)]


def avro_key() -> WriterSchema:
    fields = [{"name": "id", "type": "int"}, {"name": "b", "type": ["null", "string"]}]
    text = json.dumps({"type": "record", "name": "Key", "namespace": "t", "fields": fields})
    compiled = compile_avro(text)
    return WriterSchema(5, Format.AVRO, compiled.body, compiled.message)


def test_avro() -> None:
    frame = b"\0\0\0\0\5"
    keys = [frame + b"\x02\x00", None, frame + b"\x04\x02\x02x", frame + b"broken"]
    assert names(*keys, schema=avro_key()) == [("id", "b"), (), ("id", "b"), ("id", "b")]
    values = KeyReader(avro_key(), DecodeLimits()).values(pa.array(keys, pa.binary()))
    assert values == [{"id": 1, "b": None}, None, {"id": 2, "b": "x"}, None]


ROW = {"id": 1, "b": "x", "c": 1.5}
SHAPE = writer_schema(infer([event("c", None, ROW), event("d", ROW, None)]))


def test_a_delete_without_an_image_has_its_key() -> None:
    events = [event("d", None, None), event("d", None, None), event("d", ROW, None)]
    keys = [b'{"id":7,"b":"k"}', framed(b'{"id":8,"b":"l"}'), b'{"id":1,"b":"x"}']
    decoded = decode(SHAPE, events, keys=keys)
    assert decoded.failed == ()
    rows = decoded.ok.to_pylist()
    assert [(row["id"], row["b"], row["c"]) for row in rows] == [
        (7, "k", None),
        (8, "l", None),
        (1, "x", 1.5),
    ]
    assert [row["_unchanged"] for row in rows] == [["c"]] * 3


def test_a_delete_with_neither_is_refused() -> None:
    events = [event("d", None, None), event("c", None, None), event("d", ROW, None)]
    decoded = decode(SHAPE, events, keys=[None, b'{"id":1}', b'{"id":1}'])
    assert [(f.index, f.code) for f in decoded.failed] == [
        (0, ErrorCode.NO_PAYLOAD),
        (1, ErrorCode.NO_PAYLOAD),
    ]
    assert decoded.ok["id"].to_pylist() == [1]


def test_a_key_whose_value_no_column_takes_is_refused() -> None:
    decoded = decode(SHAPE, [event("d", None, None)], keys=[b'{"id":"seven"}'])
    assert [f.code for f in decoded.failed] == [ErrorCode.NO_PAYLOAD]


def test_a_key_that_is_not_in_the_row_is_refused() -> None:
    events = [event("c", None, ROW)] * 3
    decoded = decode(SHAPE, events, keys=[b'{"other":1}', b"7", b'{"id":1}'])
    assert [(f.index, f.code) for f in decoded.failed] == [
        (0, ErrorCode.KEY_NOT_IN_PAYLOAD),
        (1, ErrorCode.KEY_NOT_IN_PAYLOAD),
    ]
    assert decoded.origin is not None
    assert decoded.origin.to_pylist() == [2]


def test_a_key_may_be_null_and_may_change() -> None:
    events = [event("c", None, ROW | {"b": None}), event("c", None, ROW), event("c", None, ROW)]
    decoded = decode(SHAPE, events, keys=[b'{"b":null}', b'{"id":1,"b":"x"}', None])
    assert decoded.ok["_key"].to_pylist() == [["b"], ["id", "b"], []]


def test_a_key_is_called_as_its_column_is() -> None:
    row = {"_key": 1, "order id": 2}
    shape = writer_schema(infer([event("c", None, row)]))
    decoded = decode(shape, [event("c", None, row)], keys=[b'{"_key":1,"order id":2}'])
    names_ = decoded.ok["_key"].to_pylist()[0]
    assert [decoded.ok[name].to_pylist() for name in names_] == [[1], [2]]
    assert names_[0] == "_key__source"


def test_tombstones_of_flattened_avro() -> None:
    fields = [
        {"name": "id", "type": "int"},
        {"name": "b", "type": ["null", "string"]},
        {"name": "c", "type": ["null", "double"]},
    ]
    text = json.dumps({"type": "record", "name": "Value", "namespace": "t", "fields": fields})
    compiled = compile_avro(text)
    schema = WriterSchema(6, Format.AVRO, compiled.body, compiled.message)
    keys = [b"\0\0\0\0\5\x02\x02\x02x"] * 2
    events = [b"\x02\x02\x02x\x00", b""]
    settings = ChangeSettings(format="debezium")
    rows = decode(schema, events, keys=keys, settings=settings, key=avro_key()).ok.to_pylist()
    assert [(row["_op"], row["id"], row["b"]) for row in rows] == [
        ("update", 1, "x"),
        ("delete", 1, "x"),
    ]
    assert rows[1]["_unchanged"] == ["c"]


MOVED_FIELDS: list[dict[str, Any]] = [
    {"type": "int32", "field": "d", "name": "io.debezium.time.Date"},
    {"type": "int64", "field": "at", "name": "io.debezium.time.Timestamp"},
    {
        "type": "bytes",
        "field": "n",
        "name": "org.apache.kafka.connect.data.Decimal",
        "parameters": {"scale": "2", "connect.decimal.precision": "10"},
    },
    {"type": "bytes", "field": "b"},
    {"type": "string", "field": "a b"},
]
MOVED_KEYS: dict[bytes, Any] = {
    b'{"d":19782,"at":1709208000000,"n":"BNI=","b":"AP8=","a b":"x"}': {
        "d": "2024-02-29",
        "at": "2024-02-29T12:00:00+00:00",
        "n": "12.34",
        "b": "AP8=",
        "a_b": "x",
    },
    b'{"schema":{},"payload":{"d":19782}}': {"d": "2024-02-29"},
    b'{"d":null}': {"d": None},
    b'{"d":"no day"}': {"d": "no day"},
    b'{"d":1,"other":2}': {"d": 1, "other": 2},
    b"[1]": [1],
    b"{}": {},
}


def test_old_keys_are_told_in_the_words_of_the_columns() -> None:
    row = {"type": "struct", "fields": MOVED_FIELDS, "name": "t.Value", "optional": True}
    source = [{"type": "string", "field": n} for n in ("connector", "db", "schema", "table")]
    source.append({"type": "int64", "field": "lsn"})
    envelope = {
        "type": "struct",
        "fields": [
            {**row, "field": "before"},
            {**row, "field": "after"},
            {"type": "struct", "fields": source, "name": "t.Source", "field": "source"},
            {"type": "string", "field": "op"},
        ],
    }
    schema = connect_schema(json.dumps(envelope).encode())
    values = {"d": 1, "at": 1, "n": "BNI=", "b": "AP8=", "a b": "y"}
    payload = event("c", None, values)
    raw = raw_table(
        {"key": b'{"d":1}', "headers": [{"key": "__debezium.oldkey", "value": key}]}
        for key in MOVED_KEYS
    )
    decoder = DebeziumDecoder(schema, ChangeSettings(format="debezium"), DecodeLimits())
    decoded = decoder.decode(pa.array([payload] * len(MOVED_KEYS), pa.binary()), raw)
    assert decoded.failed == ()
    told = [json.loads(text)["old_key"] for text in decoded.ok["_envelope"].to_pylist()]
    assert told == list(MOVED_KEYS.values())
