"""Payloads that are small and become large: refused before anything is decoded."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.decode import base
from distributary.decode.base import DecodeLimits, Decoder
from distributary.decode.formats import FORMATS, change_decoder_for
from distributary.decode.json.infer import infer
from distributary.decode.protobuf.decoder import decode_together
from distributary.errors import ErrorCode
from distributary.model.change import ChangeSettings
from distributary.model.deadletter import Decoded
from distributary.model.record import Format, WriterSchema
from distributary.registry.compile.avro_compiler import payload_name
from distributary.registry.compile.avro_schema import parse_avro
from tests.decode.avro_samples import zigzag
from tests.decode.debezium_samples import raw_table
from tests.decode.json_samples import writer_schema

MIB = 1 << 20
COLUMNS = 100


def proto(columns: int = COLUMNS, more: str = "") -> str:
    fields = "\n".join(f"  int64 c{n} = {n};" for n in range(1, columns + 1))
    return f"""
syntax = "proto3";
package shop;
message Item {{
{fields}
}}
message Order {{
  string name = 1;
  repeated Item items = 2;
  repeated Box boxes = 3;
  map<string, Item> named = 4;
  repeated int64 numbers = 5;
  {more}
}}
message Box {{ repeated Item items = 1; }}
"""


GROUPED = proto().replace('syntax = "proto3"', 'syntax = "proto2"')
GROUPED = GROUPED.replace("  int64 c", "  optional int64 c").replace(
    "string name", "optional string name"
)
GROUPED = GROUPED.replace(
    "repeated Box boxes = 3;", "repeated group Boxes = 3 { optional int64 a = 1; }"
)

ITEM = {
    "type": "record",
    "name": "Item",
    "fields": [{"name": f"c{n}", "type": "long"} for n in range(COLUMNS)],
}
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "items", "type": {"type": "array", "items": ["null", ITEM]}},
    ],
}
CAREFUL_AVRO = {
    **AVRO,
    "fields": [*AVRO["fields"], {"name": "odd", "type": {"type": "fixed", "name": "F", "size": 3}}],
}
MEMBERS = {f"c{n}": {"type": "integer"} for n in range(COLUMNS)}
JSON: dict[str, Any] = {
    "title": "shop.Order",
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string"},
        "items": {
            "type": "array",
            "items": {"type": "object", "properties": MEMBERS, "additionalProperties": False},
        },
    },
}
# properties beside those of the schema are for the careful decoder
OPEN_JSON = {**JSON, "additionalProperties": True}


def protobuf_order(items: int) -> bytes:
    return b"\x0a\x01a" + b"\x12\x00" * items


def avro_order(items: int) -> bytes:
    block = zigzag(items) + b"\x00" * items if items else b""
    return b"\x02a" + block + b"\x00"


def json_order(items: int) -> bytes:
    return b'{"name":"a","items":[' + b",".join([b"{}"] * items) + b"]}"


@dataclass(frozen=True)
class Sample:
    """A format with orders that have items of many columns."""

    build: Callable[[DecodeLimits], Decoder]
    order: Callable[[int], bytes]
    """An order of so many empty items."""
    item: int
    """Bytes of an empty item."""


def json_body(schema: dict[str, Any]) -> bytes:
    return json.dumps({"draft": 7, "references": {}, "schema": schema}).encode()


NAMES = ["protobuf", "protobuf groups", "avro", "avro careful", "json", "json careful"]


@pytest.fixture(params=NAMES)
def sample(request: pytest.FixtureRequest, compiled: Callable[[str], bytes]) -> Sample:
    return sample_of(request.param, compiled)


def sample_of(name: str, compiled: Callable[[str], bytes]) -> Sample:
    match name:
        case "protobuf" | "protobuf groups":
            text = proto() if name == "protobuf" else GROUPED
            build = FORMATS[Format.PROTOBUF].decoder
            return Sample(
                lambda limits: build(compiled(text), "shop.Order", limits), protobuf_order, 2
            )
        case "avro" | "avro careful":
            odd = name != "avro"
            body = json.dumps(CAREFUL_AVRO if odd else AVRO).encode()
            return Sample(
                lambda limits: FORMATS[Format.AVRO].decoder(body, "Order", limits),
                lambda items: avro_order(items) + b"odd" * odd,
                1,
            )
        case _:
            body = json_body(JSON if name == "json" else OPEN_JSON)
            return Sample(
                lambda limits: FORMATS[Format.JSON].decoder(body, "shop.Order", limits),
                json_order,
                3,
            )


def decode(decoder: Decoder, *payloads: bytes) -> Decoded:
    return decoder.decode(pa.array(payloads, pa.binary()))


def codes(decoded: Decoded) -> dict[int, ErrorCode]:
    return {failure.index: failure.code for failure in decoded.failed}


def test_a_mebibyte_of_empty_items_is_refused_and_its_neighbours_are_rows(sample: Sample) -> None:
    decoder = sample.build(DecodeLimits())
    bomb = sample.order(MIB // sample.item)
    decoded = decode(decoder, sample.order(0), bomb, sample.order(3))
    assert decoded.ok.nbytes < MIB
    assert codes(decoded) == {1: ErrorCode.PAYLOAD_EXPANDS}
    assert [len(row["items"]) for row in decoded.ok.to_pylist()] == [0, 3]


def test_what_is_said_about_a_refused_payload_is_its_size_and_the_limit(sample: Sample) -> None:
    limits = DecodeLimits(max_decoded_bytes=40_000)
    decoded = decode(sample.build(limits), sample.order(10), sample.order(10_000))
    (failure,) = decoded.failed
    assert (failure.index, failure.code) == (1, ErrorCode.PAYLOAD_EXPANDS)
    size, limit = (int(word) for word in failure.message.split() if word.isdigit())
    assert size > limit == 40_000


@given(
    counts=st.lists(st.integers(0, 300), max_size=12), limit=st.sampled_from([10**4, 10**5, 10**9])
)
@pytest.mark.parametrize("name", NAMES)
def test_an_estimate_is_never_below_the_columns(
    name: str, counts: list[int], limit: int, compiled: Callable[[str], bytes]
) -> None:
    sample = sample_of(name, compiled)
    decoder = sample.build(DecodeLimits(max_decoded_bytes=limit))
    for count in counts:
        payload = sample.order(count)
        decoded = decode(decoder, payload)
        measured = decoder.expansion.measure(payload, limit)
        most = decoder.expansion.most(pa.array([payload], pa.binary()))
        assert bool(decoded.failed) == (measured > limit)
        assert measured <= max(most, limit)
        # a column of one bit for each item takes a byte where there is one item
        assert decoded.failed or decoded.ok.nbytes <= 1.25 * measured


@given(counts=st.lists(st.integers(0, 60), min_size=1, max_size=40))
@pytest.mark.parametrize("name", NAMES)
def test_slices_are_small_and_together_what_the_whole_is(
    name: str, counts: list[int], compiled: Callable[[str], bytes]
) -> None:
    sample = sample_of(name, compiled)
    decoder = sample.build(DecodeLimits())
    payloads = pa.array([sample.order(count) for count in counts], pa.binary())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "SLICE_BYTES", 200_000)
        parts = list(decoder.expansion.slices(payloads, limit=MIB))
    assert [part.start for part in parts] == [0, *(part.stop for part in parts)][: len(parts)]
    assert parts[-1].stop == len(payloads)
    found = [decoder.decode(payloads[part]).ok for part in parts]
    assert all(batch.nbytes <= 200_000 or batch.num_rows == 1 for batch in found)
    whole = decoder.decode(payloads).ok
    assert (
        pa.Table.from_batches(found)
        .combine_chunks()
        .equals(pa.Table.from_batches([whole]).combine_chunks())
    )


def test_small_records_are_one_slice_and_nothing_of_them_is_counted(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = sample.build(DecodeLimits())
    payloads = pa.array([sample.order(3)] * 1_000, pa.binary())
    assert list(decoder.expansion.slices(payloads, limit=MIB)) == [slice(0, 1_000)]
    uncounted = replace(decoder.expansion, measure=lambda *given: pytest.fail("nobody asks"))
    monkeypatch.setattr(decoder, "expansion", uncounted)
    assert not decoder.decode(payloads).failed


SHAPES = {
    "below others": b"\x1a\x80\x80\x40" + b"\x0a\x00" * (MIB // 2),
    "in many lists": b"\x1a\x02\x0a\x00" * (MIB // 4),
    "of a map": b"\x22\x00" * (MIB // 2),
    "with tags that are too long": b"\x92\x80\x80\x00\x00" * (MIB // 2),
    "with lengths that are too long": b"\x12\x80\x00" * (MIB // 2),
    "cut off": b"\x12\x00" * (MIB // 2) + b"\x12\x7f",
}


@pytest.mark.parametrize("shape", list(SHAPES))
def test_items_of_protobuf_are_found_wherever_they_are(
    shape: str, compiled: Callable[[str], bytes]
) -> None:
    decoder = FORMATS[Format.PROTOBUF].decoder(compiled(proto()), "shop.Order", DecodeLimits())
    assert codes(decode(decoder, SHAPES[shape])) == {0: ErrorCode.PAYLOAD_EXPANDS}


def test_groups_of_protobuf_are_counted_and_any_depth_of_unknown_ones_is_harmless(
    compiled: Callable[[str], bytes],
) -> None:
    limits = DecodeLimits(max_decoded_bytes=MIB)
    decoder = FORMATS[Format.PROTOBUF].decoder(compiled(GROUPED), "shop.Order", limits)
    decoded = decode(decoder, b"\x1b\x1c" * 100_000, b"\x7b" * 100_000)
    assert codes(decoded) == {0: ErrorCode.PAYLOAD_EXPANDS, 1: ErrorCode.NESTING_TOO_DEEP}


def test_many_numbers_in_a_list_are_no_reason_to_refuse(compiled: Callable[[str], bytes]) -> None:
    """As many as the largest payload holds."""
    decoder = FORMATS[Format.PROTOBUF].decoder(compiled(proto()), "shop.Order", DecodeLimits())
    count = 15 * MIB
    length = bytes(
        [count & 127 | 128, count >> 7 & 127 | 128, count >> 14 & 127 | 128, count >> 21]
    )
    decoded = decode(decoder, b"\x2a" + length + b"\x01" * count)
    assert not decoded.failed
    assert len(decoded.ok.column("numbers").values) == count


def test_large_text_with_the_bytes_of_tags_is_no_reason_to_refuse(sample: Sample) -> None:
    decoder = sample.build(DecodeLimits())
    order = sample.order(1)
    if order.startswith(b"{"):
        order = order.replace(b'"a"', b'"' + b"{null,[" * (MIB // 4) + b'"')
    elif order.startswith(b"\x0a"):
        order = b"\x0a\x80\x80\x40" + b"\x12\x22" * (MIB // 2) + order
    else:
        order = b"\x80\x80\x80\x01" + b"\x00" * MIB + order[2:]
    decoded = decode(decoder, order)
    assert not decoded.failed
    assert [len(row) for row in decoded.ok.column("items").to_pylist()] == [1]


@pytest.mark.parametrize("end", [b"", b"]", b"x"])
def test_json_of_many_items_that_is_none_is_called_what_it_is(end: bytes) -> None:
    decoder = FORMATS[Format.JSON].decoder(json_body(JSON), "shop.Order", DecodeLimits())
    broken = json_order(MIB // 3)[:-2] + end
    code = ErrorCode.NOT_JSON if end == b"x" else ErrorCode.PAYLOAD_TRUNCATED
    assert codes(decode(decoder, broken)) == {0: code}


@pytest.mark.parametrize("item", ["null", {"type": "record", "name": "E", "fields": []}])
@pytest.mark.parametrize("count", [2**40, -(2**40)])
def test_items_of_avro_that_take_no_bytes_are_refused(item: Any, count: int) -> None:
    schema = record_of({"type": "array", "items": item})
    decoder = FORMATS[Format.AVRO].decoder(json.dumps(schema).encode(), "R", DecodeLimits())
    size = zigzag(0) if count < 0 else b""
    assert codes(decode(decoder, zigzag(count) + size + b"\x00")) == {
        0: ErrorCode.PAYLOAD_TOO_LARGE
    }


def test_rows_of_an_array_at_the_top_are_items() -> None:
    body = json.dumps({"type": "array", "items": ["null", ITEM]}).encode()
    decoder = FORMATS[Format.AVRO].decoder(
        body, payload_name(parse_avro(body.decode())), DecodeLimits()
    )
    decoded = decode(decoder, zigzag(2) + b"\0" * 3, zigzag(MIB) + b"\0" * (MIB + 1))
    assert codes(decoded) == {1: ErrorCode.PAYLOAD_EXPANDS}
    assert decoded.ok.num_rows == 2
    rows = JSON["properties"]["items"] | {"title": "shop.Items"}
    decoder = FORMATS[Format.JSON].decoder(json_body(rows), "shop.Items", DecodeLimits())
    bomb = b"[" + b",".join([b"{}"] * (MIB // 3)) + b"]"
    decoded = decode(decoder, b"[{},{}]", bomb)
    assert codes(decoded) == {1: ErrorCode.PAYLOAD_EXPANDS}
    assert decoded.ok.num_rows == 2


def test_versions_are_not_decoded_together_where_that_becomes_large(
    compiled: Callable[[str], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    build = FORMATS[Format.PROTOBUF].decoder
    texts = [proto(), proto(more="int64 later = 9;")]
    decoders = tuple(build(compiled(text), "shop.Order", DecodeLimits()) for text in texts)
    arrays = [pa.array([protobuf_order(n)], pa.binary()) for n in (2, 3)]
    assert decode_together(decoders, arrays) is not None
    arrays[1] = pa.array([protobuf_order(MIB // 2)], pa.binary())
    monkeypatch.setattr(type(decoders[0]), "accepts", lambda *given: pytest.fail("parsed"))
    assert decode_together(decoders, arrays) is None


def test_images_of_a_change_are_counted_too() -> None:
    item = {"type": "struct", "fields": [int64(f"c{n}") for n in range(COLUMNS)]}
    row = {
        "type": "struct",
        "optional": True,
        "fields": [
            int64("id"),
            {"type": "array", "items": item, "field": "items", "optional": True},
        ],
    }
    names = [{"type": "string", "field": name} for name in ("connector", "db", "table")]
    schema = {
        "type": "struct",
        "fields": [
            row | {"field": "before"},
            row | {"field": "after"},
            {"type": "struct", "fields": names, "field": "source"},
            {"type": "string", "field": "op"},
        ],
    }
    source = {"connector": "mysql", "db": "d", "table": "t"}
    events = [
        json.dumps(
            {"after": {"id": 1, "items": [{}] * count}, "source": source, "op": "c"}
        ).encode()
        for count in (2, MIB // 4)
    ]
    writer = WriterSchema(1, Format.JSON, json.dumps(schema).encode(), "event")
    decoder = change_decoder_for(writer, ChangeSettings("debezium"), DecodeLimits())
    raw = raw_table({"key": b'{"id":1}', "value": event} for event in events)
    decoded = decoder.decode(pa.array(events, pa.binary()), raw)
    assert codes(decoded) == {1: ErrorCode.PAYLOAD_EXPANDS}
    assert decoded.ok.num_rows == 1
    parts = list(decoder.expansion.slices(pa.array(events * 20, pa.binary()), limit=128 * MIB))
    assert len(parts) > 1


def test_a_shape_is_found_in_memory_that_a_record_does_not_decide() -> None:
    wide = json.dumps({"items": [{f"c{n}": n for n in range(COLUMNS)}]}).encode()
    texts = [wide, b'{"id":1}', b'{"items":[' + b"{}," * (MIB // 3) + b"{}]}", b'{"id":2}']
    usual = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(pool)
    try:
        shape = infer(texts)
    finally:
        pa.set_memory_pool(usual)
    assert pool.max_memory() < 100 * MIB
    assert shape is not None
    assert shape["properties"].keys() == {"items", "id"}
    assert infer(texts, careful=True) == shape
    assert writer_schema(shape).format is Format.JSON


ENGINES = {
    Format.PROTOBUF: "distributary.decode.protobuf.fast_decoder.ptars.HandlerPool",
    Format.AVRO: "distributary.decode.avro.fast_decoder.pyruhvro.deserialize_array",
    Format.JSON: "distributary.decode.json.columns.arrow_json.read_json",
}


@pytest.mark.parametrize("error", [MemoryError, pa.ArrowMemoryError])
@pytest.mark.parametrize("format", list(ENGINES))
def test_an_engine_without_memory_is_no_reason_for_a_decoder_that_needs_more(
    format: Format,
    error: type[Exception],
    compiled: Callable[[str], bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*given: Any, **named: Any) -> None:
        raise error

    handler = Mock(array_to_record_batch=fail)
    pool = Mock(get_for_message=Mock(return_value=handler))
    proto_engine = format is Format.PROTOBUF
    monkeypatch.setattr(ENGINES[format], Mock(return_value=pool) if proto_engine else fail)
    sample = sample_of(str(format.value), compiled)
    decoder = sample.build(DecodeLimits())
    with pytest.raises(MemoryError):
        decode(decoder, sample.order(1))


def int64(name: str) -> dict[str, Any]:
    return {"type": "int64", "field": name, "optional": True}


def record_of(type_: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": "items", "type": type_}]}
