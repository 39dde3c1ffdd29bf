"""The fast writers write what Confluent's serializers do."""

import json
from typing import Any

import pytest

from distributary_lab.simulate.dice import WRAPPER, delimited, header, person
from distributary_lab.simulate.games import PERSON, PeoplePlan, stream_people
from distributary_lab.simulate.orders import (
    CUSTOMER,
    avro_encoder,
    customer,
    order_list,
    orders,
    product,
)
from tests.lab.simulate.serializers import avro_serializer, protobuf_serializer


def test_people_are_framed_alike(recording: Any) -> None:
    for each in stream_people(PeoplePlan(versions=3, records=20), registry=recording):
        values = [message.value or b"" for message in each.messages()]
        schema_id = each.sent().schema_ids[PERSON][each.version]
        framed = protobuf_serializer(person(each.version), schema_id)
        assert [framed(value.removeprefix(header(schema_id))) for value in values] == values


def test_a_wrapper_has_the_same_header() -> None:
    body = delimited(1, b"chess_game")
    assert protobuf_serializer(WRAPPER, 300)(body) == header(300) + body


@pytest.mark.parametrize("schema_id", [None, 7, 2**31 - 1])
@pytest.mark.parametrize("version", [1, 2])
def test_lists_of_orders_are_written_alike(version: int, schema_id: int | None) -> None:
    ours = avro_encoder(orders(version), schema_id)
    theirs = avro_serializer(orders(version), schema_id=schema_id)
    for value in ([], *(order_list(5, row, version=version) for row in range(20))):
        assert ours(value) == theirs(value)


def test_records_of_a_union_are_written_alike() -> None:
    fields = [{"name": name, "type": "int"} for name in ("customer_id", "product_id")]
    text = json.dumps(
        [
            {"type": "record", "name": name, "namespace": "shop", "fields": [field]}
            for name, field in zip(("Customer", "Product"), fields, strict=True)
        ]
    )
    ours, theirs = avro_encoder(text, 7), avro_serializer(text, schema_id=7)
    for value in ((CUSTOMER, customer(5, 1)), ("shop.Product", product(5, 1))):
        assert ours(value) == theirs(value)


def test_avro_with_and_without_the_header() -> None:
    text = '{"type": "array", "items": "long"}'
    bare = avro_encoder(text, None)([1, 2])
    assert bare == b"\x04\x02\x04\x00"
    assert avro_encoder(text, 7)([1, 2]) == b"\x00\x00\x00\x00\x07" + bare
