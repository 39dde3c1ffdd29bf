"""What every decoder does, whatever the format."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.decode.base import DecodeLimits, Decoder
from distributary.decode.formats import FORMATS
from distributary.errors import DecodeError, ErrorCode
from distributary.model.deadletter import Decoded
from distributary.model.record import Format

PERSON = """
syntax = "proto3";
package people;
message Person {
  int64 id = 1;
  string name = 2;
  repeated string tags = 3;
}
"""
CANARY = "canary-7f3a"


@dataclass(frozen=True)
class Sample:
    """A format with a schema of three fields: id, name and tags."""

    format: Format
    build: Callable[[DecodeLimits], Decoder]
    payload: Callable[[int, str], bytes]
    """A good payload: id, name and the tags `a` and `b`."""
    unusable: bytes
    """A schema that no decoder can be built for."""
    truncated: ErrorCode
    """What a payload is called that ends early."""


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def protobuf_payload(number: int, name: str) -> bytes:
    text = name.encode()
    return b"\x08" + varint(number) + b"\x12" + varint(len(text)) + text + b"\x1a\x01a\x1a\x01b"


AVRO_PERSON = b"""{"type": "record", "name": "Person", "namespace": "people", "fields": [
  {"name": "id", "type": "long"},
  {"name": "name", "type": "string"},
  {"name": "tags", "type": {"type": "array", "items": "string"}}
]}"""


def avro_payload(number: int, name: str) -> bytes:
    text = name.encode()
    return varint(2 * number) + varint(2 * len(text)) + text + b"\x04\x02a\x02b\x00"


JSON_PERSON = b"""{"draft": 7, "references": {}, "schema": {
  "title": "people.Person", "type": "object", "additionalProperties": false, "properties": {
    "id": {"type": "integer"},
    "name": {"type": "string"},
    "tags": {"type": "array", "items": {"type": "string"}}
}}}"""


def json_payload(number: int, name: str) -> bytes:
    return json.dumps({"id": number, "name": name, "tags": ["a", "b"]}).encode()


@pytest.fixture(params=[Format.PROTOBUF, Format.AVRO, Format.JSON])
def sample(request: pytest.FixtureRequest, compiled: Callable[[str], bytes]) -> Sample:
    match request.param:
        case Format.PROTOBUF:
            build = FORMATS[Format.PROTOBUF].decoder
            return Sample(
                Format.PROTOBUF,
                lambda limits: build(compiled(PERSON), "people.Person", limits),
                protobuf_payload,
                b"not a descriptor set",
                ErrorCode.PAYLOAD_MISMATCH,
            )
        case Format.AVRO:
            return Sample(
                Format.AVRO,
                lambda limits: FORMATS[Format.AVRO].decoder(AVRO_PERSON, "people.Person", limits),
                avro_payload,
                b"not a schema",
                ErrorCode.PAYLOAD_TRUNCATED,
            )
        case Format.JSON:
            return Sample(
                Format.JSON,
                lambda limits: FORMATS[Format.JSON].decoder(JSON_PERSON, "people.Person", limits),
                json_payload,
                b"not a schema",
                ErrorCode.PAYLOAD_TRUNCATED,
            )
        case other:
            raise AssertionError(other)


def decode(sample: Sample, payloads: list[bytes], **limits: Any) -> Decoded:
    return sample.build(DecodeLimits(**limits)).decode(pa.array(payloads, pa.binary()))


def people(sample: Sample, count: int) -> list[bytes]:
    return [sample.payload(i, f"name {i}") for i in range(count)]


def row(number: int) -> dict[str, Any]:
    return {"id": number, "name": f"name {number}", "tags": ["a", "b"]}


def test_good_payloads_become_rows_in_order(sample: Sample) -> None:
    decoded = decode(sample, people(sample, 5))
    assert decoded.ok.to_pylist() == [row(i) for i in range(5)]
    assert decoded.origin is None
    assert decoded.failed == ()
    assert decoded.empty == 0


def test_the_batch_has_the_columns_of_the_decoder(sample: Sample) -> None:
    decoder = sample.build(DecodeLimits())
    schema = decoder.decode(pa.array(people(sample, 2))).ok.schema
    assert schema.names == [c.name for c in decoder.columns] == ["id", "name", "tags"]
    assert schema.types == [c.type for c in decoder.columns]
    assert all(field.nullable for field in schema)
    assert all(column.comment for column in decoder.columns)


def test_truncated_payload_goes_to_failed(sample: Sample) -> None:
    payloads = people(sample, 3)
    payloads[1] = payloads[1][:5]
    decoded = decode(sample, payloads)
    assert decoded.ok.to_pylist() == [row(0), row(2)]
    assert decoded.origin is not None
    assert decoded.origin.to_pylist() == [0, 2]
    (failure,) = decoded.failed
    assert (failure.index, failure.code) == (1, sample.truncated)
    assert failure.position is not None
    assert 0 <= failure.position <= 5


def test_few_bad_payloads_among_many_are_found_exactly(sample: Sample) -> None:
    payloads = people(sample, 5_000)
    bad = {0, 17, 4_999}
    for index in bad:
        payloads[index] = payloads[index][:-1]
    decoded = decode(sample, payloads)
    assert {failure.index for failure in decoded.failed} == bad
    assert decoded.ok.column("id").to_pylist() == [i for i in range(5_000) if i not in bad]


def test_nothing_but_bad_payloads_gives_an_empty_batch_with_columns(sample: Sample) -> None:
    decoded = decode(sample, [b"\xff", b"\xff\xff", sample.payload(1, "x")[:-1]])
    assert decoded.ok.num_rows == 0
    assert decoded.ok.schema.names == ["id", "name", "tags"]
    assert [failure.index for failure in decoded.failed] == [0, 1, 2]
    assert decoded.origin is not None
    assert len(decoded.origin) == 0


def test_no_payloads_give_no_rows(sample: Sample) -> None:
    decoded = decode(sample, [])
    assert decoded.ok.num_rows == 0
    assert decoded.ok.schema.names == ["id", "name", "tags"]
    assert decoded.failed == ()


@pytest.mark.parametrize("type_", [pa.binary(), pa.large_binary()])
def test_slices_are_decoded_as_they_are_seen(sample: Sample, type_: pa.DataType) -> None:
    payloads = [b"\xff", *people(sample, 6), b"\xff"]
    decoder = sample.build(DecodeLimits())
    decoded = decoder.decode(pa.array(payloads, type_).slice(3, 3))
    assert decoded.ok.to_pylist() == [row(2), row(3), row(4)]
    assert decoded.origin is None


def test_payloads_above_the_limit_are_not_opened(sample: Sample) -> None:
    payloads = [sample.payload(0, "x"), sample.payload(1, "x" * 500), sample.payload(2, "x")]
    decoded = decode(sample, payloads, max_payload_bytes=100)
    assert decoded.ok.column("id").to_pylist() == [0, 2]
    assert [(f.index, f.code) for f in decoded.failed] == [(1, ErrorCode.PAYLOAD_TOO_LARGE)]


def test_failures_do_not_quote_the_payload(sample: Sample) -> None:
    good = sample.payload(1, CANARY)
    payloads = [good[:cut] for cut in range(len(good))] + [good + b"\xff", good + good[:20]]
    decoded = decode(sample, payloads, max_payload_bytes=len(good) - 3)
    assert decoded.failed
    assert not any(CANARY in failure.message for failure in decoded.failed)


def test_failures_come_in_the_order_of_the_payloads(sample: Sample) -> None:
    payloads = people(sample, 6)
    payloads[4], payloads[1], payloads[2] = b"\xff", sample.payload(1, "x" * 300), b"\xff"
    decoded = decode(sample, payloads, max_payload_bytes=200)
    assert [failure.index for failure in decoded.failed] == [1, 2, 4]


def test_decoding_does_not_change_the_decoder(sample: Sample) -> None:
    decoder = sample.build(DecodeLimits())
    first = decoder.decode(pa.array(people(sample, 3)))
    decoder.decode(pa.array([b"\xff"], pa.binary()))
    assert decoder.decode(pa.array(people(sample, 3))).ok.equals(first.ok)


def test_a_schema_that_cannot_be_used_is_an_error_at_once(sample: Sample) -> None:
    with pytest.raises(DecodeError) as caught:
        FORMATS[sample.format].decoder(sample.unusable, "people.Person", DecodeLimits())
    assert caught.value.code == ErrorCode.UNUSABLE_SCHEMA
    assert caught.value.next_step


@given(payloads=st.lists(st.binary(max_size=60), max_size=20), seed=st.integers(0, 99))
def test_every_payload_is_a_row_or_a_failure(
    sample: Sample, payloads: list[bytes], seed: int
) -> None:
    mixed = [*payloads, *people(sample, 3)]
    random.Random(seed).shuffle(mixed)
    decoded = decode(sample, mixed)
    assert decoded.ok.num_rows + len(decoded.failed) + decoded.empty == len(mixed)
    decoded.ok.validate(full=True)
