"""The two ways of decoding Avro agree, with each other and with fastavro."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from distributary.decode.avro.decoder import AvroDecoder
from distributary.decode.base import DecodeLimits
from distributary.registry.compile.avro_compiler import compile_avro
from tests.decode.avro_samples import (
    data,
    encode,
    kind_of,
    lake,
    lake_row,
    plain,
    record,
    types,
    without_logical,
)


def decoder_of(schema: Any, **limits: Any) -> AvroDecoder:
    compiled = compile_avro(json.dumps(schema))
    return AvroDecoder(compiled.body, compiled.message, DecodeLimits(**limits))


def slow(schema: Any, **limits: Any) -> AvroDecoder:
    decoder = decoder_of(schema, **limits)
    decoder._engine = None
    return decoder


def binary(payloads: list[bytes]) -> pa.BinaryArray:
    return pa.array(payloads, pa.binary())


@st.composite
def records(draw: st.DrawFn) -> tuple[Any, list[Any]]:
    names = [0]
    schema = record(*(draw(types(names)) for _ in range(draw(st.integers(1, 4)))))
    return schema, draw(st.lists(data(schema), min_size=1, max_size=4))


@given(sample=records(), blocks=st.booleans())
def test_both_ways_give_what_was_written(sample: tuple[Any, list[Any]], blocks: bool) -> None:
    schema, rows = sample
    payloads = binary([encode(schema, row, blocks=blocks) for row in rows])
    expected = [lake_row(schema, row) for row in rows]
    quick, careful = decoder_of(schema).decode(payloads), slow(schema).decode(payloads)
    for decoded in (quick, careful):
        assert not decoded.failed
        decoded.ok.validate(full=True)
        assert decoded.ok.num_rows == len(rows)
        assert decoded.ok.to_pylist() == expected
    assert quick.ok.schema == careful.ok.schema
    assert quick.ok.equals(careful.ok)


@given(sample=records(), blocks=st.booleans())
def test_fastavro_reads_the_same(sample: tuple[Any, list[Any]], blocks: bool) -> None:
    schema, rows = sample
    bare = fastavro.parse_schema(without_logical(schema))
    payloads = [encode(schema, row, blocks=blocks) for row in rows]
    theirs = [fastavro.schemaless_reader(io.BytesIO(each), bare, None) for each in payloads]
    assert theirs == [plain(schema, row) for row in rows]
    ours = slow(schema).decode(binary(payloads)).ok.to_pylist()
    assert ours == [lake_row(schema, row) for row in rows]


@st.composite
def damaged(draw: st.DrawFn, payload: bytes) -> bytes:
    """A payload with something done to it."""
    at = draw(st.integers(0, len(payload)))
    match draw(st.sampled_from(["cut", "add", "change", "insert", "keep"])):
        case "cut":
            return payload[:at]
        case "add":
            return payload + draw(st.binary(min_size=1, max_size=9))
        case "change" if at < len(payload):
            return payload[:at] + draw(st.binary(min_size=1, max_size=1)) + payload[at + 1 :]
        case "insert":
            extreme = [b"\xff" * 9 + b"\x01", b"\x80" * 9 + b"\x01", b"\xfe" * 9 + b"\x7f", b"\x01"]
            return payload[:at] + draw(st.sampled_from(extreme)) + payload[at:]
    return payload


@given(sample=records(), chance=st.data())
def test_both_ways_refuse_the_same(sample: tuple[Any, list[Any]], chance: st.DataObject) -> None:
    schema, rows = sample
    good = [encode(schema, row) for row in rows]
    payloads = binary([chance.draw(damaged(each)) for each in good] + good)
    quick, careful = decoder_of(schema).decode(payloads), slow(schema).decode(payloads)
    assert quick.failed == careful.failed
    assert quick.origin == careful.origin
    assert str(quick.ok.to_pylist()) == str(careful.ok.to_pylist())
    assert quick.ok.num_rows + len(quick.failed) == len(payloads)
    assert {failure.index for failure in quick.failed} <= set(range(len(rows)))


@st.composite
def tops(draw: st.DrawFn) -> tuple[Any, list[Any]]:
    names = [0]
    item = draw(types(names, 2))
    schema = draw(st.sampled_from([item, {"type": "array", "items": item}]))
    if schema is item and isinstance(item, dict) and item["type"] in ("record", "array"):
        schema = {"type": "map", "values": item}
    return schema, draw(st.lists(data(schema), min_size=1, max_size=4))


@given(sample=tops())
def test_any_type_may_be_at_the_top(sample: tuple[Any, list[Any]]) -> None:
    schema, rows = sample
    payloads = binary([encode(schema, row) for row in rows])
    if isinstance(schema, list) and {kind_of(each) for each in schema} <= {"record", "null"}:
        return  # several types on one topic: `message` says which
    quick, careful = decoder_of(schema).decode(payloads), slow(schema).decode(payloads)
    assert not quick.failed
    assert quick.ok.equals(careful.ok)
    assert (quick.origin, quick.empty) == (careful.origin, careful.empty)
    if isinstance(schema, dict) and schema["type"] == "array":
        item = schema["items"]
        is_record = isinstance(item, dict) and item["type"] == "record"
        one = lake_row if is_record else lambda schema, datum: {"value": lake(schema, datum)}
        assert quick.ok.to_pylist() == [one(item, each) for row in rows for each in row]
        assert quick.empty == sum(not row for row in rows)
        positions = pa.array(range(len(rows))) if quick.origin is None else quick.origin
        assert positions.to_pylist() == [i for i, row in enumerate(rows) for _ in row]
    else:
        assert quick.ok.to_pylist() == [{"value": lake(schema, row)} for row in rows]
