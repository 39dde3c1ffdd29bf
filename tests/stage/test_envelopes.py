"""Records that name their type: in a field, a header, the key, an envelope or a CloudEvent."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributary.config.load import load_text
from distributary.decode.base import RefusedError
from distributary.decode.json.infer import infer
from distributary.decode.json.json_text import parse
from distributary.engine.planning.planner import Planner
from distributary.engine.planning.table_names import Entries, Names, WantedName
from distributary.errors import ConfigError
from distributary.model.names import propose
from distributary.model.record import RAW, Format
from distributary.model.routing import EnvelopePlan
from distributary.registry.record_schemas import InferredSchemas
from distributary.stage.envelopes import OpenedEnvelopes, open_messages
from distributary.stage.job import Staged
from distributary.stage.task_outputs import Letter
from tests.lab.simulate.serializers import avro_serializer
from tests.registry.frames import frame
from tests.registry.scratch import ScratchRegistry
from tests.stage.conftest import Bench

Headers = dict[str, str | bytes]
PIPELINE = """
name: shop
source: {{type: kafka, bootstrap_servers: "127.0.0.1:9", topics: [events]}}
{settings}
lake: {{path: {lake}}}
"""
JSON = "payload: {format: json}\n"
TABLES = "tables: {each: 'silver_{type}'}"


class Stream:
    """Records of one topic, staged without Spark."""

    def __init__(self, lake: Path, settings: str, exchange: str = "disk") -> None:
        text = PIPELINE.format(lake=lake, settings=settings)
        config = load_text(text, file="shop.yaml", environ={}).config
        self.registry = ScratchRegistry()
        self.bench = Bench(lake, self.registry, config, exchange)
        self.bench.planner = Planner(
            config,
            registry=self.registry if config.registry else None,
            publisher=self.bench.publisher,
            names=Names(Entries(str(lake))),
            inferred=InferredSchemas(lake / "inferred") if config.infers else None,
        )
        self.start = 0

    def stage(self, *records: Any) -> Staged:
        """Values, or values with their headers, or with their headers and keys."""
        self.bench.planner.begin_batch()
        raw = [self._raw(records)]
        if self.bench.exchange == "disk":
            seen = self.bench.sorted(raw)
            self.bench.planner.learn(seen.shapes, seen.carried)
        return self.bench.stage(raw)

    def rows(self, staged: Staged, table: str) -> list[dict[str, Any]]:
        rows = self.bench.rows(staged, table).to_pylist()
        return [
            {k: v for k, v in row.items() if not k.startswith("_") and v is not None}
            for row in sorted(rows, key=lambda row: row["_offset"])
        ]

    def _raw(self, records: Iterable[Any]) -> pa.RecordBatch:
        rows = []
        for record in records:
            value, headers, key = (
                (*record, None, None)[:3]
                if isinstance(record, tuple)
                else (
                    record,
                    None,
                    None,
                )
            )
            named = [
                {"key": k, "value": v.encode() if isinstance(v, str) else v}
                for k, v in (headers or {}).items()
            ]
            value = value if isinstance(value, bytes | None) else json.dumps(value).encode()
            rows.append(
                {"key": key, "value": value, "headers": named or None, "topic": "events"}
                | {"partition": 0, "offset": self.start, "timestamp": 1_000_000}
            )
            self.start += 1
        (batch,) = pa.Table.from_pylist(rows, RAW).combine_chunks().to_batches()
        return batch


@pytest.fixture(params=["disk", "spark"])
def stream(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Stream]:
    return lambda settings: Stream(tmp_path, settings, request.param)


def tables(staged: Staged) -> list[str]:
    return sorted(name for name in staged.files if name != "dead_letters")


def test_a_field_of_the_message_names_its_type(stream: Callable[[str], Stream]) -> None:
    one = stream(JSON + "tables: {each: 'silver_{field:event.name}'}")
    staged = one.stage(
        {"event": {"name": "Placed"}, "id": 1},
        {"id": 2, "event": {"name": "paid", "at": 3}},
        {"event": {"name": "paid"}, "id": 10**20, "price": 1.10},
        {"event": {"name": 7}},
        {"event": "paid"},
        {"id": 3},
        [1],
        b'{"event": {"name": "paid"}, ',
        b"\xff",
        {"event": {"name": "../x"}},
        {"event": {"name": "<b>"}},
        {"event": {"name": ""}},
        {"event": {"name": "x" * 300}},
    )
    assert tables(staged) == ["silver_paid", "silver_placed"]
    assert [row["id"] for row in one.rows(staged, "silver_placed")] == [1]
    assert len(one.rows(staged, "silver_paid")) == 2
    assert dict(staged.dead) == {
        "MISSING_TYPE": 3,
        "NOT_AN_ENVELOPE": 1,
        "PAYLOAD_TRUNCATED": 1,
        "INVALID_UTF8": 1,
        "TYPE_NAME_UNSAFE_PATH": 1,
        "TYPE_NAME_UNSAFE_MARKUP": 1,
        "TYPE_NAME_EMPTY": 1,
        "TYPE_NAME_TOO_LONG": 1,
    }


@pytest.mark.parametrize(("longest", "landed"), [(300, 1), (299, 0)])
def test_how_long_a_name_may_be_is_said_in_the_file(
    stream: Callable[[str], Stream], longest: int, landed: int
) -> None:
    one = stream(JSON + f"limits: {{max_type_name: {longest}}}\ntables: {{each: '{{field:t}}'}}")
    staged = one.stage({"t": "x" * 300, "id": 1})
    assert len(tables(staged)) == landed
    assert dict(staged.dead) == ({} if landed else {"TYPE_NAME_TOO_LONG": 1})


def test_strangers_cannot_make_tables_without_end(stream: Callable[[str], Stream]) -> None:
    one = stream(JSON + "evolution: {max_new_tables_per_batch: 2}\ntables: {each: '{field:t}'}")
    staged = one.stage(*({"t": f"kind{n}", "id": n} for n in range(5)))
    assert len(tables(staged)) == 2 and dict(staged.dead) == {"TOO_MANY_TYPES": 3}


@pytest.mark.parametrize("short", [True, False])
def test_a_header_names_the_type(stream: Callable[[str], Stream], short: bool) -> None:
    spelled = "tables: {each: 'silver_{header:kind}'}"
    long = f"envelope: {{type: '{{header:kind}}'}}\n{TABLES}"
    one = stream(JSON + (spelled if short else long))
    staged = one.stage(
        ({"id": 1}, {"kind": "paid"}),
        ({"id": 2}, {"other": "x", "kind": "placed"}),
        ({"id": 3}, {"kind": b"\xff"}),
        ({"id": 4}, {"other": "x"}),
        {"id": 5},
        (b"nonsense", {"kind": "paid"}),
        (None, {"kind": "paid"}),
    )
    assert [row["id"] for row in one.rows(staged, "silver_paid")] == [1]
    assert [row["id"] for row in one.rows(staged, "silver_placed")] == [2]
    assert dict(staged.dead) == {"MISSING_TYPE": 3, "NOT_JSON": 1, "NULL_VALUE": 1}


def test_the_key_names_the_type(stream: Callable[[str], Stream]) -> None:
    one = stream(JSON + "tables: {each: 'silver_{key}'}")
    staged = one.stage(({"id": 1}, None, b"paid"), ({"id": 2}, None, b"\xff"), {"id": 3})
    assert one.rows(staged, "silver_paid") == [{"id": 1}]
    assert dict(staged.dead) == {"MISSING_TYPE": 2}


def test_a_header_names_the_type_of_what_the_registry_knows(
    stream: Callable[[str], Stream],
) -> None:
    one = stream(
        "payload: {format: avro}\nregistry: {path: s}\ntables: {each: 'silver_{header:kind}'}"
    )
    text = json.dumps(
        {"type": "record", "name": "Paid", "fields": [{"name": "id", "type": "long"}]}
    )
    write = avro_serializer(text, schema_id=one.registry.register("x", text, format=Format.AVRO))
    staged = one.stage((write({"id": 7}), {"kind": "paid"}), (b"x", {"kind": "paid"}))
    assert one.rows(staged, "silver_paid") == [{"id": 7}]
    assert dict(staged.dead) == {"BAD_MAGIC": 1}


def test_cloud_events_in_binary_mode_may_be_avro(stream: Callable[[str], Stream]) -> None:
    events = (
        "envelope: {format: cloudevents}\ntables: {each: '{type}', metadata: [cloudevent, offset]}"
    )
    one = stream(f"payload: {{format: avro, framing: confluent}}\nregistry: {{path: s}}\n{events}")
    text = json.dumps(
        {"type": "record", "name": "Paid", "fields": [{"name": "id", "type": "long"}]}
    )
    write = avro_serializer(text, schema_id=one.registry.register("x", text, format=Format.AVRO))
    staged = one.stage((write({"id": 7}), {"ce_type": "paid", "ce_id": "a"}))
    (row,) = one.bench.rows(staged, "paid").to_pylist()
    assert (row["id"], row["_cloudevent"]["id"]) == (7, "a")


ENVELOPE = "envelope: {format: json, type: event.name, payload: data}\n"


def test_a_json_payload_in_its_place_keeps_every_digit(stream: Callable[[str], Stream]) -> None:
    one = stream(JSON + ENVELOPE + "tables: {each: 'silver_{type}', bronze: bronze}")
    exact = '{ "n": 12345678901234567890.10, "big": 123456789012345678901234567890, "e": 1E5 }'
    staged = one.stage(
        f'{{"id": 1e999, "event": {{"name": "paid"}}, "data": {exact}, "z": []}}'.encode(),
        {"event": {"name": "paid"}, "data": '{"n": 1, "text": "a \\u00e9"}'},
        {"event": {"name": "paid"}, "data": None},
        {"event": {"name": "paid"}},
        {"data": {"n": 1}},
        b'{"event": {"name": "paid"}, "data": {"n": 1}',
        b'{"event": {"name": "paid"}, "data": {"n": 1}} x',
        b'{"event": {"name": "paid"}, "data": {"n": 1}, "data": {}}',
        b"[]",
        b'"x"',
        b"{" + b'"a":[' * 200_000,
    )
    payloads = one.bench.rows(staged, "bronze").sort_by("_offset")["payload"].to_pylist()
    assert payloads[0] == exact.encode()
    assert len(one.rows(staged, "silver_paid")) == 2
    assert dict(staged.dead) == {
        "MISSING_PAYLOAD": 2,
        "MISSING_TYPE": 1,
        "NOT_AN_ENVELOPE": 4,
        "DUPLICATE_KEY": 1,
        "NESTING_TOO_DEEP": 1,
    }


AVRO = {"type": "record", "name": "Paid", "fields": [{"name": "id", "type": "long"}]}


def bare_avro(schema: Any, value: Any) -> bytes:
    written: bytes = avro_serializer(json.dumps(schema), schema_id=1)(value)
    return written[5:]


def test_bytes_in_base64_with_the_id_of_their_schema(stream: Callable[[str], Stream]) -> None:
    one = stream(
        "payload: {format: avro}\nregistry: {path: s}\n" + TABLES + "\n"
        "envelope: {format: json, type: t, schema_id: meta.id, payload: p, encoding: base64}"
    )
    number = one.registry.register("paid-value", json.dumps(AVRO), format=Format.AVRO)
    text = base64.b64encode(bare_avro(AVRO, {"id": 7})).decode()
    staged = one.stage(
        {"t": "paid", "meta": {"id": number}, "p": text},
        {"t": "paid", "meta": {"id": str(number)}, "p": text},
        {"t": "paid", "meta": {"id": number}, "p": "*"},
        {"t": "paid", "meta": {"id": number}, "p": 5},
        {"t": "paid", "meta": {"id": -1}, "p": text},
        {"t": "paid", "meta": {"id": 2**40}, "p": text},
        {"t": "paid", "meta": {"id": True}, "p": text},
        {"t": "paid", "meta": {}, "p": text},
        {"t": "paid", "meta": {"id": 99}, "p": text},
    )
    assert one.rows(staged, "silver_paid") == [{"id": 7}, {"id": 7}]
    assert dict(staged.dead) == {
        "MISSING_PAYLOAD": 2,
        "MISSING_SCHEMA_ID": 4,
        "UNKNOWN_SCHEMA_ID": 1,
    }


WRAPPER = """syntax = "proto3";
message Meta { string kind = 1; uint64 id = 2; }
message Wrapper { Meta meta = 1; string text = 2; }"""


def wrapper(kind: str, text: str, number: int = 0) -> bytes:
    """Written by hand: the fields are few."""
    meta = b"\x0a" + bytes([len(kind)]) + kind.encode()
    if number:
        meta += b"\x10" + number.to_bytes(1, "big")
    return b"\x0a" + bytes([len(meta)]) + meta + b"\x12" + bytes([len(text)]) + text.encode()


def test_json_inside_of_protobuf_needs_no_schema_of_its_own(
    stream: Callable[[str], Stream],
) -> None:
    one = stream(
        JSON + "registry: {path: s}\n" + TABLES + "\n"
        "envelope: {subject: w-value, type: meta.kind, schema_id: none, payload: text}"
    )
    one.registry.register("w-value", WRAPPER)
    staged = one.stage(
        wrapper("paid", '{"id": 1}'), wrapper("placed", '{"no": 2}'), wrapper("paid", "x")
    )
    assert one.rows(staged, "silver_paid") == [{"id": 1}]
    assert one.rows(staged, "silver_placed") == [{"no": 2}]
    assert dict(staged.dead) == {"NOT_JSON": 1}


def test_avro_inside_of_protobuf_by_its_id(stream: Callable[[str], Stream]) -> None:
    one = stream(
        "payload: {format: avro}\nregistry: {path: s}\n" + TABLES + "\n"
        "envelope: {subject: w-value, type: meta.kind, schema_id: meta.id, payload: text, "
        "encoding: base64}"
    )
    one.registry.register("w-value", WRAPPER)
    number = one.registry.register("paid-value", json.dumps(AVRO), format=Format.AVRO)
    text = base64.b64encode(bare_avro(AVRO, {"id": 7})).decode()
    staged = one.stage(wrapper("paid", text, number), wrapper("paid", "*", number))
    assert one.rows(staged, "silver_paid") == [{"id": 7}]
    assert dict(staged.dead) == {"MISSING_PAYLOAD": 1}


def envelope_schema(*more: str) -> dict[str, Any]:
    fields = [{"name": name, "type": "string"} for name in (*more, "kind")]
    return {
        "type": "record",
        "name": "Wrapper",
        "fields": [*fields, {"name": "body", "type": "bytes"}],
    }


def test_avro_envelopes_are_read_with_the_schema_that_wrote_them(
    stream: Callable[[str], Stream],
) -> None:
    one = stream(
        JSON + "registry: {path: s}\n" + TABLES + "\n"
        "envelope: {format: avro, subject: w-value, type: kind, schema_id: none, payload: body}"
    )

    def written(schema: dict[str, Any], value: dict[str, Any]) -> bytes:
        text = json.dumps(schema)
        number = one.registry.register("w-value", text, format=Format.AVRO)
        done: bytes = avro_serializer(text, schema_id=number)(value)
        return done

    old, new = envelope_schema(), envelope_schema("since")
    nameless = {**old, "fields": [{"name": "kind", "type": "int"}]}
    one.registry.set_compatibility(None, "NONE")
    first = written(old, {"kind": "paid", "body": b'{"id": 1}'})
    assert one.rows(one.stage(first), "silver_paid") == [{"id": 1}]
    second = written(new, {"since": "now", "kind": "paid", "body": b'{"id": 2}'})
    unknown = frame(second[5:], schema_id=99, indexes=None)
    third = written(nameless, {"kind": 7})
    staged = one.stage(first, second, first, unknown, third, b"", b"\x00")
    assert one.rows(staged, "silver_paid") == [{"id": 1}, {"id": 2}, {"id": 1}]
    assert dict(staged.dead) == {
        "UNKNOWN_SCHEMA_ID": 1,
        "MISSING_TYPE": 1,
        "EMPTY_VALUE": 1,
        "WIRE_HEADER_TRUNCATED": 1,
    }


def test_a_message_with_the_registrys_header_is_read_with_its_own_schema(
    stream: Callable[[str], Stream],
) -> None:
    one = stream(JSON + "registry: {path: s}\ntables: {each: '{field:event}'}")
    both = {"type": "object", "properties": {"event": {"type": "string"}, "id": {}}}
    first = {**both, "properties": {**both["properties"], "id": {"type": "integer"}}}
    second = {**both, "properties": {**both["properties"], "id": {"type": "string"}}}
    one.registry.set_compatibility(None, "NONE")
    ids = [
        one.registry.register("paid-value", json.dumps(schema), format=Format.JSON)
        for schema in (first, second)
    ]
    message = b'{"event": "paid", "id": 1}'
    guid = one.registry.guid_of(ids[0])
    staged = one.stage(
        frame(message, schema_id=ids[0], indexes=None),
        frame(message, guid=guid, indexes=None),
        frame(message, schema_id=ids[1], indexes=None),
        message,
    )
    assert [row["id"] for row in one.rows(staged, "paid")] == [1, 1]
    assert dict(staged.dead) == {"PAYLOAD_MISMATCH": 2}


def cloud_event(type_name: str, **more: Any) -> dict[str, Any]:
    return {"specversion": "1.0", "id": "1", "source": "/shop", "type": type_name, **more}


def test_cloud_events_in_both_modes(stream: Callable[[str], Stream]) -> None:
    one = stream(JSON + "envelope: {format: cloudevents}\n" + TABLES)
    whole: Headers = {"content-type": "Application/CloudEvents+json; charset=utf-8"}
    binary: Headers = {"ce_specversion": "1.0", "ce_type": "shop.Paid"}
    staged = one.stage(
        (cloud_event("shop.Paid", data={"id": 1}), whole),
        ({"id": 2}, {**binary, "content-type": "application/json"}),
        cloud_event("shop.Paid", data='{"id": 3}'),
        cloud_event("shop.Paid", data_base64=base64.b64encode(b'{"id": 4}').decode()),
        (cloud_event("shop.Placed", data={"no": 5}), {**whole, "ce_type": "shop.Paid"}),
        (cloud_event("shop.Paid"), whole),
        ({"data": {"id": 6}}, whole),
        ({"id": 7}, {"ce_type": b"\xff"}),
        (b"<xml/>", whole),
        (b"<xml/>", binary),
        ({"id": 8}, {"ce_type": "../../x"}),
    )
    rows = one.rows(staged, "silver_shop_paid")
    assert sorted(row["id"] for row in rows) == [1, 2, 3, 4]
    assert one.rows(staged, "silver_shop_placed") == [{"no": 5}]
    assert dict(staged.dead) == {
        "MISSING_PAYLOAD": 1,
        "MISSING_TYPE": 2,
        "NOT_AN_ENVELOPE": 1,
        "NOT_JSON": 1,
        "TYPE_NAME_UNSAFE_PATH": 1,
    }


def test_context_attributes_of_both_modes_are_kept(stream: Callable[[str], Stream]) -> None:
    metadata = "tables: {each: 'silver_{type}', metadata: [offset, cloudevent]}\n"
    one = stream(JSON + "envelope: {format: cloudevents}\n" + metadata)
    whole: Headers = {"content-type": "application/cloudevents+json"}
    binary: Headers = {
        "ce_specversion": "1.0",
        "ce_type": "paid",
        "ce_id": "b",
        "ce_source": "/s",
        "ce_time": "2024-02-29T01:00:00+01:00",
        "ce_traceparent": "00-1",
        "ce_odd": b"\xff",
        "content-type": "application/json",
        "other": "x",
    }
    # fields of the payload may have the names of attributes, also with an underscore
    event = cloud_event("paid", data={"id": 1, "source": "mine", "_cloudevent": "own"})
    staged = one.stage(
        (event | {"subject": "order 1", "time": "2024-02-29T00:00:00.123456789Z", "n": 5}, whole),
        ({"id": 2, "time": "noon"}, binary),
        (cloud_event("paid", data={"id": 3}, time="yesterday", subject=None, flag=True), whole),
        (cloud_event("paid", data={"id": 4}, time="2024-02-29T00:00:00"), whole),
        (b'{"id":"\\ud800","type":"paid","data":{"id":5},"big":1' + b"0" * 30 + b"}", whole),
    )
    rows = sorted(one.bench.rows(staged, "silver_paid").to_pylist(), key=lambda r: r["_offset"])
    assert [row["id"] for row in rows] == [1, 2, 3, 4, 5]
    assert (rows[0]["source"], rows[0]["field_cloudevent"]) == ("mine", "own")
    events = [row["_cloudevent"] for row in rows]
    leap_day = datetime(2024, 2, 29, tzinfo=UTC)
    assert events[0] == {
        "specversion": "1.0",
        "id": "1",
        "source": "/shop",
        "type": "paid",
        "subject": "order 1",
        "datacontenttype": None,
        "dataschema": None,
        "time": leap_day.replace(microsecond=123456),
        "extensions": [("n", "5")],
    }
    assert (events[1]["id"], events[1]["source"], events[1]["time"]) == ("b", "/s", leap_day)
    assert events[1]["datacontenttype"] == "application/json"
    assert dict(events[1]["extensions"]) == {"traceparent": "00-1", "odd": "\ufffd"}
    assert (events[2]["time"], events[2]["subject"]) == (None, None)
    assert dict(events[2]["extensions"]) == {"time": "yesterday", "flag": "true"}
    # without an offset nobody knows which moment it is
    assert (events[3]["time"], dict(events[3]["extensions"])["time"][:4]) == (None, "2024")
    assert (events[4]["id"], dict(events[4]["extensions"])) == ("?", {"big": "1" + "0" * 30})


@pytest.mark.parametrize(
    ("subject", "fields", "setting"),
    [
        ("text-value", "type: kind, payload: body", "envelope.format"),
        ("w-value", "type: missing, payload: body", "envelope.type"),
        ("w-value", "type: body, payload: kind", "envelope.type"),
        ("w-value", "type: kind.name, payload: body", "envelope.type"),
        ("list-value", "type: kind, payload: body", "envelope.subject"),
        ("w-value", "type: kind, payload: none", "envelope.payload"),
        ("w-value", "type: kind, payload: body, schema_id: id", "envelope.schema_id"),
    ],
)
def test_an_envelope_that_does_not_fit_its_schema_is_refused(
    tmp_path: Path, subject: str, fields: str, setting: str
) -> None:
    schema = "" if "schema_id" in fields else ", schema_id: none"
    envelope = f"envelope: {{format: avro, subject: {subject}, {fields}{schema}}}\n"
    one = Stream(tmp_path, JSON + "registry: {path: s}\n" + envelope + TABLES)
    one.registry.register("w-value", json.dumps(envelope_schema()), format=Format.AVRO)
    several = {"type": "array", "items": envelope_schema()}
    one.registry.register("list-value", json.dumps(several), format=Format.AVRO)
    one.registry.register("text-value", WRAPPER)
    with pytest.raises(ConfigError) as caught:
        one.bench.planner.task_plan()
    assert caught.value.where == setting


@pytest.mark.parametrize(
    "settings",
    [
        JSON + "envelope: {format: json}\n" + TABLES,
        JSON + "envelope: {format: cloudevents, type: type}\n" + TABLES,
        JSON
        + "envelope: {format: json, type: kind}\ntables: {each: '{type}', metadata: [cloudevent]}",
        JSON + "envelope: {format: json, type: a, payload: a}\n" + TABLES,
        JSON + "envelope: {format: json, type: '{header:a b}'}\n" + TABLES,
        JSON + "envelope: {format: json, type: a, encoding: base64}\n" + TABLES,
        JSON + "envelope: {format: json, type: a, subject: s}\n" + TABLES,
        JSON + "envelope: {format: avro, framing: confluent, type: a}\n" + TABLES,
        JSON + "envelope: {format: json, type: a}\ntables: {each: '{field:b}'}",
        JSON + "tables: {each: '{field:a}_{header:b}'}",
        JSON + "tables: {each: '{topic}_{key}'}",
        "payload: {format: avro}\nregistry: {path: s}\ntables: {each: '{field:a}'}",
        "payload: {format: avro}\nregistry: {path: s}\n"
        "envelope: {format: json, type: a, payload: b}\n" + TABLES,
    ],
)
def test_what_cannot_work_is_refused_when_the_file_is_read(settings: str) -> None:
    with pytest.raises(ConfigError):
        load_text(PIPELINE.format(lake="/lake", settings=settings), file="f.yaml", environ={})


@pytest.mark.parametrize(("place", "column"), [("{key}", "key"), ("{header:a}", "headers")])
def test_a_delta_source_must_have_the_column_that_names_types(place: str, column: str) -> None:
    text = PIPELINE.format(lake="/lake", settings=f"{JSON}tables: {{each: '{place}'}}")
    kafka = '{type: kafka, bootstrap_servers: "127.0.0.1:9", topics: [events]}'
    with pytest.raises(ConfigError):
        load_text(text.replace(kafka, "{type: delta, path: t}"), file="f.yaml", environ={})
    with_column = f"{{type: delta, path: t, {column}: c}}"
    assert load_text(text.replace(kafka, with_column), file="f.yaml", environ={})


# Members before and after, blanks anywhere, any JSON in the payload's place.

DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["data", "t", "event", "x", ""]), inner, max_size=3)
    ),
    max_leaves=8,
)
BLANKS = st.text(" \t\n\r", max_size=2)


@settings(max_examples=5 * settings().max_examples)
@given(
    st.dictionaries(st.sampled_from(["x", "y", 'q"', "é"]), DOCUMENTS, max_size=3),
    st.dictionaries(st.text(max_size=3), DOCUMENTS, min_size=1, max_size=2),
    st.text(max_size=6),
    st.randoms(use_true_random=False),
    st.lists(BLANKS, min_size=4, max_size=4),
    st.booleans(),
)
def test_a_payload_is_the_text_that_stands_in_its_place(
    others: dict[str, Any],
    payload: dict[str, Any],
    type_name: str,
    random: Any,
    blanks: list[str],
    ascii_only: bool,
) -> None:
    def text(value: Any) -> str:
        return json.dumps(value, ensure_ascii=ascii_only)

    one, two, three, four = blanks
    wanted = text(payload)
    event = f"{{{one}{text('t')}{two}:{text(type_name)}{three}}}"
    members = [f"{text(name)}{one}:{two}{text(value)}{three}" for name, value in others.items()]
    members += [f'"event":{four}{event}', f'"data"{two}:{one}{wanted}{four}']
    random.shuffle(members)
    message = f"{one}{{{two}{f',{three}'.join(members)}{four}}}{one}"
    plan = EnvelopePlan("json", "none", type_field="event.t", payload_field="data")
    letters: list[Letter] = []
    values = pa.array([message.encode()], pa.binary())
    found = open_messages(values, np.array([5]), letters, plan, max_depth=100)
    assert not letters
    assert found.rows.tolist() == [5] and found.ids is None
    assert found.claims.to_pylist() == [type_name]
    assert found.payloads.to_pylist() == [wanted.encode()]


@settings(max_examples=5 * settings().max_examples)
@given(
    st.binary(max_size=30) | st.text('{}[]":, \\teudata0123456789.-', max_size=30).map(str.encode)
)
def test_nothing_breaks_the_reader(message: bytes) -> None:
    for payload in ("", "data"):
        plan = EnvelopePlan("json", "none", type_field="t", payload_field=payload)
        letters: list[Letter] = []
        values = pa.array([message, b'{"t":"a","data":{}}'], pa.binary())
        found = open_messages(values, np.arange(2), letters, plan, max_depth=100)
        assert len(found.rows) + len(letters) == 2
        assert found.claims[-1].as_py() == "a"


class Overtaken(Names):
    """Another process takes names of the same lake in the very moment before these are written."""

    def __init__(self, lake: Path, *others: str) -> None:
        super().__init__(Entries(str(lake)))
        self._lake, self._others = str(lake), others

    def write(self) -> Any:
        others, self._others = self._others, ()
        fast = Names(Entries(self._lake))
        for name in others:
            proposals = (propose("silver_{type}", type=name),)
            fast.take(WantedName(name, {"type": name}, proposals))
        return super().write()


def test_a_table_whose_name_goes_to_another_process_is_planned_again(
    stream: Callable[[str], Stream], tmp_path: Path
) -> None:
    one = stream(JSON + "tables: {each: 'silver_{field:event}'}")
    second = next(propose("silver_{type}", type="paid").marked())
    one.bench.planner.book.names = Overtaken(tmp_path, "Paid")
    staged = one.stage({"event": "paid", "id": 1}, {"event": "placed", "id": 2})
    assert tables(staged) == sorted([second, "silver_placed"])
    assert one.rows(staged, second) == [{"event": "paid", "id": 1}]
    planned = one.bench.planner.book
    assert "silver_paid" not in planned.tables
    assert {use.table for use in planned.take_pending().uses} == {second, "silver_placed"}


TYPES = ("paid", "placed", "é", 'a"b', "a.b", "(x|y)*", "", "null")
VALUES = st.sampled_from(
    [
        *('"paid"', '"placed"', '"é"', '"p\\u0061id"', '"a\\"b"', '"a.b"', '"(x|y)*"', '""'),
        *("null", "1", "1.5", "-0", "1e400", "01", "true", '"\\x"', '"\x01"', '"', "[1,2]", "{}"),
        *('{"event":"paid"}', '{"event":"placed","event":"paid"}', '"\\",\\"event\\":\\"paid"'),
    ]
)
MEMBERS = st.tuples(st.sampled_from(["id", "event", "meta", "ev\\u0065nt"]), VALUES)


@st.composite
def json_messages(draw: st.DrawFn) -> bytes:
    colon, comma = draw(st.sampled_from([(":", ","), (": ", ", "), (" :", " ,")]))
    members = (f'"{name}"{colon}{value}' for name, value in draw(st.lists(MEMBERS, max_size=4)))
    tail = draw(st.sampled_from([b"", b"", b"", b" ", b"x", b"\xff"]))
    return f"{{{comma.join(members)}}}".encode() + tail


@given(st.lists(json_messages(), min_size=1, max_size=8), st.sampled_from(["event", "meta.event"]))
@settings(max_examples=5 * settings().max_examples)
def test_types_of_familiar_messages_are_those_that_reading_them_finds(
    messages: list[bytes], path: str
) -> None:
    plan = EnvelopePlan("json", "none", type_field=path)
    values, rows = pa.array(messages, pa.binary()), np.arange(len(messages)) * 2
    letters: list[Letter] = []
    read = open_messages(values, rows, letters, plan, max_depth=100)
    shapes = {
        claim: infer([m for m, c in zip(messages, typed(read, rows), strict=True) if c == claim])
        for claim in TYPES
    }
    other: list[Letter] = []
    found = open_messages(
        values, rows, other, plan, None, lambda claim: shapes.get(claim) or {}, max_depth=100
    )
    for message, old, new in zip(messages, typed(read, rows), typed(found, rows), strict=True):
        if old != new:
            # whoever decodes it says the same of it
            with pytest.raises(RefusedError):
                parse(message, max_depth=100)
    assert {letter.row for letter in other} <= {letter.row for letter in letters}
    assert found.payloads.to_pylist() == [messages[row // 2] for row in found.rows.tolist()]
    assert set(found.familiar.tolist()) <= set(found.rows.tolist())


def typed(opened: OpenedEnvelopes, rows: Any) -> list[str | None]:
    claims = dict(zip(opened.rows.tolist(), opened.claims.to_pylist(), strict=True))
    return [claims.get(row) for row in rows.tolist()]


def test_messages_of_the_usual_kind_are_familiar_whatever_their_order() -> None:
    plan = EnvelopePlan("json", "none", type_field="meta.event")
    orders = [
        lambda n: {"id": n, "meta": {"event": "paid", "at": n}, "note": "x"},
        lambda n: {"note": 'a "paid"', "meta": {"at": n, "event": "paid"}, "id": n},
        lambda n: {"meta": {"event": "placed"}},
    ]
    messages = [json.dumps(orders[n % 3](n)).encode() for n in range(60)]
    shapes = {
        "paid": infer([m for n, m in enumerate(messages) if n % 3 < 2]),
        "placed": infer(messages[2::3]),
    }
    stored = {name: json.loads(json.dumps(each, sort_keys=True)) for name, each in shapes.items()}
    values = pa.array(messages, pa.binary())
    found = open_messages(
        values, np.arange(60), [], plan, None, lambda claim: stored[claim], max_depth=100
    )
    assert sorted(found.familiar.tolist()) == list(range(60))
    assert found.claims.to_pylist() == ["paid", "paid", "placed"] * 20
