"""Payloads that are several rows, none, or a single value."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pyarrow as pa

from distributary.decode.avro.decoder import AvroDecoder
from distributary.decode.base import DecodeLimits
from distributary.errors import ErrorCode
from distributary.registry.compile.avro_compiler import compile_avro
from tests.decode.avro_samples import zigzag


def orders(*more: dict[str, Any]) -> dict[str, Any]:
    product = [{"name": "name", "type": "string"}, {"name": "price", "type": "double"}, *more]
    products = {"type": "record", "name": "Product", "fields": product}
    order = [
        {"name": "order_id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "description", "type": "string"},
        {"name": "price", "type": "double"},
        {"name": "products", "type": {"type": "array", "items": products}},
    ]
    return {"type": "array", "items": {"type": "record", "name": "Order", "fields": order}}


V1 = orders()
V2 = orders({"name": "uuid", "type": ["null", "int"], "default": 1123})


def order(number: int, **more: Any) -> dict[str, Any]:
    products = [{"name": f"p{i}", "price": i / 2, **more} for i in range(number % 3)]
    return {
        "order_id": number,
        "customer": f"customer {number}",
        "description": "żółć",
        "price": number * 1.5,
        "products": products,
    }


def decoder_of(schema: Any) -> AvroDecoder:
    compiled = compile_avro(json.dumps(schema))
    return AvroDecoder(compiled.body, compiled.message, DecodeLimits())


def payload(schema: Any, content: Any) -> bytes:
    # fastavro refuses the default of the second version, as strict parsers do
    parsed = fastavro.parse_schema(schema, _ignore_default_error=True)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, parsed, content)
    return out.getvalue()


def test_an_array_of_records_is_one_row_for_each() -> None:
    contents = [[order(1), order(2)], [], [order(5, uuid=None), order(6, uuid=7)], [order(3)]]
    for schema, quick in ((V1, True), (V2, True), (V1, False), (V2, False)):
        decoder = decoder_of(schema)
        if not quick:
            decoder._engine = None
        decoded = decoder.decode(pa.array([payload(schema, c) for c in contents], pa.binary()))
        assert decoded.ok.column("order_id").to_pylist() == [1, 2, 5, 6, 3]
        assert decoded.origin is not None
        assert decoded.origin.to_pylist() == [0, 0, 2, 2, 3]
        assert (decoded.empty, decoded.failed) == (1, ())


def test_a_payload_is_all_of_its_rows_or_none() -> None:
    good = payload(V1, [order(1), order(2)])
    decoded = decoder_of(V1).decode(
        pa.array([good, good[:-3], good + b"\0", b"\0", good], pa.binary())
    )
    assert decoded.ok.column("order_id").to_pylist() == [1, 2, 1, 2]
    assert decoded.origin is not None
    assert decoded.origin.to_pylist() == [0, 0, 4, 4]
    assert decoded.empty == 1
    assert [(f.index, f.code) for f in decoded.failed] == [
        (1, ErrorCode.PAYLOAD_TRUNCATED),
        (2, ErrorCode.TRAILING_BYTES),
    ]


def test_rows_that_are_read_again_keep_their_place() -> None:
    schema = {"type": "array", "items": {"type": "map", "values": "int"}}
    twice = zigzag(2) + b"\x02a\x02" * 2 + b"\0"
    once = zigzag(1) + b"\x02a\x04" + b"\0"
    payloads = [zigzag(2) + once + twice + b"\0", zigzag(2) + once + once + b"\0"]
    decoded = decoder_of(schema).decode(pa.array(payloads, pa.binary()))
    assert decoded.ok.to_pylist() == [{"value": [("a", n)]} for n in (2, 1, 2, 2)]
    assert decoded.origin is not None
    assert decoded.origin.to_pylist() == [0, 0, 1, 1]


def test_as_many_rows_as_payloads_does_not_mean_one_each() -> None:
    decoded = decoder_of({"type": "array", "items": "int"}).decode(
        pa.array([b"\x04\x02\x04\x00", b"\x00"], pa.binary())
    )
    assert decoded.ok.to_pylist() == [{"value": 1}, {"value": 2}]
    assert decoded.origin is not None
    assert decoded.origin.to_pylist() == [0, 0]
    assert decoded.empty == 1


def test_other_types_at_the_top_are_a_column_called_value() -> None:
    symbols = {"type": "enum", "name": "shop.State", "symbols": ["OPEN", "DONE"]}
    for schema, data, expected, message in (
        ("string", b"\x04hi", "hi", "string"),
        ("null", b"", None, "null"),
        (["null", "long"], b"\x02\x0a", 5, "union"),
        (symbols, b"\x02", "DONE", "shop.State"),
        ({"type": "map", "values": "int"}, b"\x02\x02a\x02\x00", [("a", 1)], "map"),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", b"ab", "F"),
    ):
        assert compile_avro(json.dumps(schema)).message == message
        decoded = decoder_of(schema).decode(pa.array([data], pa.binary()))
        assert decoded.ok.to_pylist() == [{"value": expected}]
        assert decoded.origin is None
