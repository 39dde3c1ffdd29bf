"""Confluent's serializers write what the fast writers do."""

from typing import Any

from distributary.lab.simulate.dice import WRAPPER, delimited, header
from distributary.lab.simulate.games import PeoplePlan, stream_people
from distributary.lab.simulate.orders import avro_serializer, protobuf_serializer


def test_people_are_the_same_by_either_way(recording: Any) -> None:
    plan = PeoplePlan(versions=3, records=20)
    ours = [m for r in stream_people(plan, registry=recording) for m in r.messages()]
    framed = stream_people(plan, registry=recording, framing=protobuf_serializer)
    assert [m for each in framed for m in each.messages()] == ours


def test_a_wrapper_has_the_same_header() -> None:
    body = delimited(1, b"chess_game")
    assert protobuf_serializer(WRAPPER, 300)(body) == header(300) + body


def test_avro_with_and_without_the_header() -> None:
    text = '{"type": "array", "items": "long"}'
    bare = avro_serializer(text, schema_id=None)([1, 2])
    assert bare == b"\x04\x02\x04\x00"
    assert avro_serializer(text, schema_id=7)([1, 2]) == b"\x00\x00\x00\x00\x07" + bare
