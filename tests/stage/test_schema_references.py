"""The forms in which a record may name its schema, through a whole stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from distributary.config.load import load_text
from distributary.model.record import RAW
from distributary.registry.frames import VALUE_HEADER
from tests.registry.frames import frame
from tests.registry.scratch import ScratchRegistry
from tests.stage.conftest import Bench

PEOPLE = """
syntax = "proto3";
package shop;
message Person { int32 id = 1; }
message Company { string name = 1; message Branch { string city = 1; } }
"""
PERSON, COMPANY, BRANCH = b"\x08\x07", b"\x0a\x03ACM", b"\x0a\x04Rome"


def make(root: Path, payload: str, tables: str = "{each: '{record}'}", envelope: str = "") -> Bench:
    text = f"""
name: people
source: {{type: delta, path: {root}/t}}
registry: {{path: {root}/schemas}}
{envelope}
payload: {payload}
tables: {tables}
lake: {{path: {root}}}
"""
    return Bench(root, ScratchRegistry(), load_text(text, file="p.yaml", environ={}).config)


def raw(values: list[bytes | None], headers: list[Any] | None = None) -> pa.RecordBatch:
    count = len(values)
    arrays = [
        pa.nulls(count, pa.binary()),
        pa.array(values, pa.binary()),
        pa.array(headers or [None] * count, RAW.field("headers").type),
        pa.array(["people"] * count),
        pa.array([0] * count, pa.int32()),
        pa.array(range(count), pa.int64()),
        pa.array([0] * count, RAW.field("timestamp").type),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=RAW)


def test_a_topic_of_several_messages_is_a_table_per_message(tmp_path: Path) -> None:
    one = make(tmp_path, "{format: protobuf}")
    number = one.registry.register("people-value", PEOPLE)
    values: list[bytes | None] = [
        frame(PERSON, schema_id=number),
        frame(COMPANY, schema_id=number, indexes=(1,)),
        frame(BRANCH, schema_id=number, indexes=(1, 0)),
        # the long form of the first message
        b"\x00" + number.to_bytes(4, "big") + b"\x02\x00" + PERSON,
        frame(PERSON, schema_id=number, indexes=(7,)),
    ]
    staged = one.stage([raw(values)])
    assert dict(staged.dead) == {"BAD_MESSAGE_INDEX": 1}
    assert one.rows(staged, "person")["id"].to_pylist() == [7, 7]
    assert one.rows(staged, "company")["name"].to_pylist() == ["ACM"]
    assert one.rows(staged, "branch")["city"].to_pylist() == ["Rome"]


def test_a_schema_is_named_by_id_or_guid_in_front_or_in_a_header(tmp_path: Path) -> None:
    one = make(tmp_path, "{format: protobuf}")
    number = one.registry.register("people-value", PEOPLE)
    guid = one.registry.guid_of(number)
    header = [{"key": VALUE_HEADER, "value": frame(b"", guid=guid)}]
    unknown = [{"key": VALUE_HEADER, "value": frame(b"", schema_id=99)}]
    other = [{"key": "trace", "value": b"1"}]
    values: list[bytes | None] = [
        frame(PERSON, schema_id=number),
        frame(PERSON, guid=guid),
        PERSON,
        # an empty message is a message where a header names its schema
        b"",
        PERSON,
        frame(PERSON, schema_id=number),
        b"",
    ]
    headers = [None, None, header, header, unknown, other, other]
    staged = one.stage([raw(values, headers)])
    assert dict(staged.dead) == {"UNKNOWN_SCHEMA_ID": 1, "EMPTY_VALUE": 1}
    rows = one.rows(staged, "person").sort_by("_offset")
    assert rows["_offset"].to_pylist() == [0, 1, 2, 3, 5]
    assert rows["id"].to_pylist() == [7, 7, 7, 0, 7]
    assert set(rows["_schema_id"].to_pylist()) == {number}


def test_a_bare_record_is_of_its_subject_s_newest_schema(tmp_path: Path) -> None:
    one = make(tmp_path, "{format: protobuf, framing: auto}", "{each: people}")
    first = one.registry.register("people-value", 'syntax = "proto3"; message P { int32 a = 1; }')
    staged = one.stage([raw([frame(PERSON, schema_id=first), PERSON])])
    assert sorted(one.rows(staged, "people")["_schema_id"].to_pylist()) == [first, first]
    newer = 'syntax = "proto3"; message P { int32 a = 1; int32 b = 2; }'
    second = one.registry.register("people-value", newer)
    one.planner.begin_batch()
    staged = one.stage([raw([frame(PERSON, schema_id=first), PERSON])])
    assert sorted(one.rows(staged, "people")["_schema_id"].to_pylist()) == [first, second]


def test_records_of_one_name_in_two_namespaces_do_not_share_a_table(tmp_path: Path) -> None:
    one = make(tmp_path, "{format: protobuf}")
    numbers = [
        one.registry.register(f"{package}.Person", PEOPLE.replace("shop", package))
        for package in ("shop", "club")
    ]
    staged = one.stage([raw([frame(PERSON, schema_id=number) for number in numbers])])
    assert len(staged.records) == 2
    assert "person" in staged.records


ENVELOPE = "envelope: {format: protobuf, subject: w, type: kind, payload: payload}"
WRAPPER = (
    'syntax = "proto3"; message W { string kind = 1; int32 schema_id = 2; bytes payload = 3; }'
)


def wrapped(number: int, payload: bytes) -> bytes:
    return b"\x0a\x01p\x10" + bytes([number]) + b"\x1a" + bytes([len(payload)]) + payload


def test_a_payload_may_be_framed_inside_of_its_envelope(tmp_path: Path) -> None:
    for framing, dead in (("auto", {}), ("confluent", {"BAD_MAGIC": 2})):
        root = tmp_path / framing
        payload = f"{{format: protobuf, framing: {framing}, message: Person}}"
        one = make(root, payload, "{each: '{type}'}", ENVELOPE)
        one.registry.register("w", WRAPPER)
        number = one.registry.register("p-value", PEOPLE)
        values: list[bytes | None] = [
            wrapped(number, frame(PERSON, schema_id=number)),
            wrapped(number, PERSON),
            wrapped(number, PERSON),
        ]
        staged = one.stage([raw(values)])
        assert dict(staged.dead) == dead
        assert set(one.rows(staged, "p")["id"].to_pylist()) == {7}
        assert one.rows(staged, "p").num_rows == 3 - sum(dead.values())
