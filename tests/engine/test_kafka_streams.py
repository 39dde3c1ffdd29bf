"""Kafka, registry and lake together: what people send, good and bad, and where it ends up."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from distributary.config.runtime import Trigger
from distributary.engine.progress.removal import dead_letters_of
from distributary.model.manifest import Counts
from distributary.model.record import Format
from distributary.observe.events import Event
from distributary.operations.replay import replay
from distributary.registry.frames import VALUE_HEADER
from tests.lakes.orders import ORDER, avro, avro_stream, order
from tests.lakes.streams import Stream
from tests.registry.frames import frame
from tests.services.secured import SecuredServices
from tests.waiting import until_read

CUSTOMER = {
    "type": "record",
    "name": "Customer",
    "namespace": "shop",
    "fields": [{"name": "customer_id", "type": "int"}, {"name": "name", "type": "string"}],
}
PRODUCT = {
    "type": "record",
    "name": "Product",
    "namespace": "shop",
    "fields": [{"name": "product_id", "type": "int"}, {"name": "price", "type": "double"}],
}


def test_orders_are_a_row_per_element_and_what_does_not_match_is_a_dead_letter(
    services: SecuredServices, tmp_path: Path, tasks: SparkSession
) -> None:
    stream = avro_stream(services, tmp_path)
    known = stream.registry.register(stream.subject, json.dumps(ORDER), format=Format.AVRO)
    other = stream.registry.register(
        f"other-{stream.subject}", json.dumps(CUSTOMER), format=Format.AVRO
    )
    good = avro(ORDER, [order(1), order(2)])
    bad = {
        "BAD_MAGIC": good,
        "WIRE_HEADER_TRUNCATED": b"\x00\x00\x01",
        "UNKNOWN_SCHEMA_ID": frame(good, schema_id=999_999, indexes=None),
        "WRONG_SUBJECT": frame(
            avro(CUSTOMER, {"customer_id": 1, "name": "x"}), schema_id=other, indexes=None
        ),
        "EMPTY_VALUE": b"",
    }
    framed = [frame(value, schema_id=known, indexes=None) for value in (good, avro(ORDER, []))]
    ends_early = frame(good[:-3], schema_id=known, indexes=None)
    left_over = frame(good + b"\x07", schema_id=known, indexes=None)
    stream.topics.send(stream.topic, [*framed, *bad.values(), ends_early, left_over])
    summary = stream.pipeline().run(spark=tasks)
    assert summary.counts == Counts(read=9, written=2, dead_lettered=7)
    rows = stream.rows()
    assert [(r["order_id"], r["customer"], r["_offset"]) for r in rows] == [
        (1, "Zoë", 0),
        (2, "Zoë", 0),
    ]
    assert rows[0]["products"] == [{"name": "čaj", "price": 1.5}]
    letters = {x["error_code"]: x["value"] for x in stream.letters()}
    assert {code: letters[code] for code in bad} == bad
    rest = {x["offset"]: x["error_code"] for x in stream.letters() if x["offset"] >= 7}
    assert len(set(rest.values())) == 2, rest


def test_an_unframed_message_lands_once_when_the_framing_is_mended(
    services: SecuredServices, tmp_path: Path, tasks: SparkSession
) -> None:
    stream = avro_stream(services, tmp_path)
    stream.registry.register(stream.subject, json.dumps(ORDER), format=Format.AVRO)
    bare = avro(ORDER, [order(7)])
    stream.topics.send(stream.topic, [bare], keys=[b"k"])
    assert stream.pipeline().run(spark=tasks).counts == Counts(read=1, dead_lettered=1)
    (letter,) = stream.letters()
    assert (letter["value"], letter["key"]) == (bare, b"k")
    stream.payload = "{format: avro, framing: auto, validate: registry}"
    pipeline = stream.pipeline()
    for expected in (1, 0):
        with pipeline.open(tasks, lane="replay") as context:
            letters = dead_letters_of(pipeline)
            done = replay(context, letters, letters.select(status="open"))
        assert done.replayed == expected
    assert [r["order_id"] for r in stream.rows()] == [7]


def test_a_union_of_records_is_a_table_per_record(
    services: SecuredServices, tmp_path: Path, tasks: SparkSession
) -> None:
    stream = avro_stream(services, tmp_path, tables="{each: '{record}'}")
    union = [CUSTOMER, PRODUCT]
    number = stream.registry.register(stream.subject, json.dumps(union), format=Format.AVRO)
    customer = {"customer_id": 1, "name": "Ann"}
    product = {"product_id": 2, "price": 9.5}
    data = [("shop.Customer", customer), ("shop.Product", product), ("shop.Customer", customer)]
    values = [frame(avro(union, datum), schema_id=number, indexes=None) for datum in data]
    nobody = frame(b"\x08", schema_id=number, indexes=None)
    stream.topics.send(stream.topic, [*values, nobody])
    summary = stream.pipeline().run(spark=tasks)
    assert summary.counts == Counts(read=4, written=3, dead_lettered=1)
    assert [r["name"] for r in stream.rows("customer")] == ["Ann", "Ann"]
    assert [r["price"] for r in stream.rows("product")] == [9.5]


def test_a_value_too_large_and_a_tombstone(
    services: SecuredServices, tmp_path: Path, tasks: SparkSession
) -> None:
    stream = avro_stream(services, tmp_path)
    known = stream.registry.register(stream.subject, json.dumps(ORDER), format=Format.AVRO)
    huge = frame(avro(ORDER, [order(1, "x" * 20_000_000)]), schema_id=known, indexes=None)
    small = frame(avro(ORDER, [order(2)]), schema_id=known, indexes=None)
    stream.topics.send(stream.topic, [huge, small, None, None], keys=[b"a", b"b", b"gone", None])
    pipeline = stream.pipeline(source="  tombstones: skip")
    summary = pipeline.run(spark=tasks)
    assert summary.counts == Counts(read=4, written=1, dead_lettered=2, skipped=1)
    assert sorted(x["error_code"] for x in stream.letters()) == ["NULL_VALUE", "PAYLOAD_TOO_LARGE"]
    assert max(len(x["value"] or b"") for x in stream.letters()) == len(huge)


def test_headers_are_read_and_kept(
    services: SecuredServices, tmp_path: Path, tasks: SparkSession
) -> None:
    stream = Stream(services, tmp_path, payload="{format: protobuf}")
    number = stream.registry.register(stream.subject, person(1), format=Format.PROTOBUF)
    mine = (VALUE_HEADER, frame(b"", schema_id=number))
    stream.topics.send(stream.topic, [b"\x08\x07"], headers=[("x", b"\x00\xff"), mine])
    stream.topics.send(stream.topic, [frame(b"\x08\x08", schema_id=number)])
    stream.topics.send(stream.topic, [b"bad"], headers=[("x", b"\x00\xff"), ("x", b"")])
    summary = stream.pipeline().run(spark=tasks)
    assert summary.counts == Counts(read=3, written=2, dead_lettered=1)
    assert sorted(row["id"] for row in stream.rows()) == [7, 8]
    (letter,) = stream.letters()
    assert letter["headers"] == [{"key": "x", "value": b"\x00\xff"}, {"key": "x", "value": b""}]


def test_ten_versions_arrive_during_one_continuous_run(
    services: SecuredServices, tmp_path: Path, tasks: SparkSession
) -> None:
    stream = Stream(services, tmp_path, payload="{format: protobuf, framing: confluent}")
    stream.tables = "{each: unified_gold}"
    pipeline = stream.pipeline()
    events: list[Event] = []
    pipeline.bus.subscribe(events.append)
    done: list[Any] = []
    thread = threading.Thread(
        target=lambda: done.append(pipeline.run(trigger=Trigger.parse("continuous"), spark=tasks))
    )
    thread.start()
    try:
        for version in range(1, 11):
            text = person(version)
            stream.registry.set_compatibility(stream.subject, "BACKWARD")
            number = stream.registry.register(stream.subject, text, format=Format.PROTOBUF)
            stream.topics.send(stream.topic, [frame(b"\x08\x01", schema_id=number)] * 3)
            until_read(events, 3 * version)
    finally:
        pipeline.stop.set()
        thread.join(120)
    assert done[0].counts == Counts(read=30, written=30)
    names = stream.table("unified_gold").schema.names
    assert [n for n in names if n.startswith("measure")] == [f"measure{i}" for i in range(10)]
    assert {r["_schema_id"] for r in stream.rows("unified_gold")} == {
        stream.registry.version(stream.subject, v).id for v in range(1, 11)
    }


def person(version: int) -> str:
    fields = "".join(f" float measure{i} = {i + 10};" for i in range(version))
    return f'syntax = "proto3"; message Person {{ int32 id = 1;{fields} }}'


@pytest.mark.parametrize("door", ["sasl", "mtls"])
def test_tasks_are_let_in_where_they_must_say_who_they_are(
    services: SecuredServices, tmp_path: Path, tasks: SparkSession, door: str
) -> None:
    stream = Stream(services, tmp_path, payload="{format: protobuf}")
    number = stream.registry.register(stream.subject, person(1), format=Format.PROTOBUF)
    stream.topics.send(stream.topic, [frame(b"\x08\x01", schema_id=number)])
    security = services.security
    settings = {
        "sasl": "protocol: SASL_PLAINTEXT, mechanism: SCRAM-SHA-512, "
        f"username: {security.username}, password: {security.password}",
        "mtls": f"protocol: SSL, ca_location: {security.authority}, "
        f"certificate_location: {security.certificate}, key_location: {security.key}",
    }[door]
    servers = {"sasl": security.sasl_plaintext, "mtls": security.ssl}[door]
    pipeline = stream.pipeline(servers=servers, source=f"  security: {{{settings}}}")
    assert pipeline.run(spark=tasks).counts == Counts(read=1, written=1)


@pytest.mark.parametrize("exchange", ["disk", "spark"])
@pytest.mark.parametrize("reader", ["native", "spark"])
def test_whoever_reads_and_however_records_travel_each_lands_once(
    services: SecuredServices, tmp_path: Path, spark: SparkSession, reader: str, exchange: str
) -> None:
    stream = Stream(services, tmp_path, payload="{format: protobuf}", partitions=3)
    number = stream.registry.register(stream.subject, person(1), format=Format.PROTOBUF)
    for partition, count in enumerate((700, 5, 90)):
        values = [frame(b"\x08\x01", schema_id=number)] * count
        stream.topics.send(stream.topic, values, partition=partition)
    source = f"  reader: {reader}\n  max_records_per_batch: 300"
    pipeline = stream.pipeline(source=source, extra=f"run: {{exchange: {exchange}}}")
    assert pipeline.run(spark=spark).counts == Counts(read=795, written=795)
    places = sorted((row["_partition"], row["_offset"]) for row in stream.rows())
    assert places == [(p, o) for p, count in enumerate((700, 5, 90)) for o in range(count)]
