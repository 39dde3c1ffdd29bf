"""Whatever a payload holds: it is a row or a dead letter with a known code, once, and no more."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest

from distributary.decode.base import DecodeLimits
from distributary.decode.formats import FORMATS
from distributary.errors import DistributaryError, ErrorCode
from distributary.model.deadletter import Decoded
from distributary.model.record import HEADER, Format
from distributary.registry.frames import BadFrame, parse, split
from tests.attack.mutations import mutated, replanted
from tests.decode import datastream_samples, debezium_samples
from tests.decode.conftest import compiled
from tests.decode.test_decoder_behaviors import (
    AVRO_PERSON,
    JSON_PERSON,
    PERSON,
    avro_payload,
    json_payload,
    protobuf_payload,
)

__all__ = ["compiled"]

pytestmark = pytest.mark.slow
COUNT = 400
PAYLOADS = {
    Format.PROTOBUF: protobuf_payload,
    Format.AVRO: avro_payload,
    Format.JSON: json_payload,
}


def account(decoded: Decoded, count: int) -> None:
    """Each payload is decoded or refused, once; one may be several rows, or none."""
    failed = [failure.index for failure in decoded.failed]
    assert len(set(failed)) == len(failed)
    assert all(0 <= index < count for index in failed)
    assert all(ErrorCode(failure.code) for failure in decoded.failed)
    if decoded.origin is None:
        assert decoded.ok.num_rows + len(failed) == count
    else:
        origin = set(decoded.origin.to_pylist())
        assert decoded.ok.num_rows == len(decoded.origin)
        assert not origin & set(failed)
        assert origin <= set(range(count))
    decoded.ok.validate(full=True)


def spoiled(good: Sequence[bytes], dice: random.Random, count: int = COUNT) -> list[bytes]:
    """Payloads of which a few are as they should be."""
    found = [mutated(dice.choice(good), dice) for _ in range(count)]
    return [dice.choice(good) if dice.random() < 0.1 else payload for payload in found]


@pytest.mark.parametrize("format", list(PAYLOADS))
def test_payloads(dice: random.Random, compiled: Callable[[str], bytes], format: Format) -> None:
    body = {
        Format.PROTOBUF: compiled(PERSON),
        Format.AVRO: AVRO_PERSON,
        Format.JSON: JSON_PERSON,
    }[format]
    good = [PAYLOADS[format](n * 10**n, "ß" * n) for n in range(12)]
    decoder = FORMATS[format].decoder(body, "people.Person", DecodeLimits())
    for size in (1, 7, COUNT):
        account(decoder.decode(pa.array(spoiled(good, dice, size), pa.binary())), size)


def schema(dice: random.Random) -> tuple[Format, bytes]:
    if dice.random() < 0.5:
        return Format.AVRO, json.dumps(replanted(json.loads(AVRO_PERSON), dice)).encode()
    return Format.JSON, json.dumps(replanted(json.loads(JSON_PERSON), dice)).encode()


def test_schemas_and_payloads(dice: random.Random, compiled: Callable[[str], bytes]) -> None:
    built = 0
    for _ in range(150):
        try:
            format, body = schema(dice)
        except TypeError:
            continue
        if dice.random() < 0.3:
            format, body = Format.PROTOBUF, mutated(compiled(PERSON), dice)
        good = [PAYLOADS[format](n, "x" * n) for n in range(5)]
        try:
            decoder = FORMATS[format].decoder(body, "people.Person", DecodeLimits())
        except DistributaryError:
            continue
        built += 1
        account(decoder.decode(pa.array(spoiled(good, dice, 20), pa.binary())), 20)
    assert built


@pytest.mark.parametrize("topic", debezium_samples.topics())
def test_debezium(dice: random.Random, topic: str) -> None:
    raw = debezium_samples.messages(topic)
    for decoder, payloads, rows in debezium_samples.decoders(raw):
        good = [value for value in payloads.to_pylist() if value]
        bad = spoiled(good, dice, 60)
        around = raw.take([dice.choice(rows) for _ in bad])
        keys = pa.array(
            [key if key is None else mutated(key, dice) for key in around["key"].to_pylist()],
            around.schema.field("key").type,
        )
        around = around.set_column(around.schema.get_field_index("key"), "key", keys)
        account(decoder.decode(pa.array(bad, pa.binary()), around), len(bad))


@pytest.mark.parametrize("kind", ["avro", "json"])
def test_datastream(dice: random.Random, kind: str) -> None:
    events = [datastream_samples.event() for _ in range(3)]
    if kind == "avro":
        told = datastream_samples.avro_schema()
        decoder = datastream_samples.avro_decoder(told)
        good = datastream_samples.avro_data(told, events).to_pylist()
    else:
        data = datastream_samples.json_data(json.loads(json.dumps(events, default=str)))
        decoder, good = datastream_samples.json_decoder(data), data.to_pylist()
        trees = [json.loads(each) for each in good]
        for _ in range(100):
            try:
                good.append(json.dumps(replanted(dice.choice(trees), dice)).encode())
            except TypeError:
                continue
    bad = spoiled(good, dice)
    account(decoder.decode(pa.array(bad, pa.binary()), datastream_samples.raw(COUNT)), COUNT)


@pytest.mark.parametrize("protobuf", [True, False])
def test_frames(dice: random.Random, protobuf: bool) -> None:
    good = [b"\x00\x00\x00\x00\x07\x00\x08\x01", b"\x01" + bytes(16) + b"\x04\x02\x04x", b""]
    bad = spoiled(good, dice)
    headers = pa.array([None] * COUNT, pa.list_(HEADER))
    found = split(pa.array(bad, pa.binary()), headers, protobuf=protobuf)
    assert len(found.framed) == COUNT
    for at, value in enumerate(bad):
        wanted = parse(value, (), protobuf=protobuf)
        code = wanted.code if isinstance(wanted, BadFrame) else None
        assert found.reason(at) is code
