"""What a sample of records is taken for, and the file that follows; no broker is asked."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.config.load import load_text
from distributary.config.pipeline_config import PipelineConfig
from distributary.errors import DistributaryError, ErrorCode
from distributary.model.record import Format
from distributary.operations.discovery import (
    Finding,
    discover,
    discover_files,
    document,
    pipeline_text,
)
from distributary.source.source_sample import Sample, SampledRecord
from tests.decode.packer import pack
from tests.registry.frames import frame
from tests.registry.scratch import ScratchRegistry

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [{"name": "id", "type": "long"}, {"name": "customer", "type": "string"}],
}
WRAPPER = """
syntax = "proto3";
message Wrapper { string kind = 1; int32 schema = 2; bytes content = 3; string trace = 4; }
"""
MOVE = 'syntax = "proto3"; message Move { string text = 1; int64 number = 2; }'
HOSTILE = "<b>x</b>\n: - {a}\u2028#'\";drop table x;--\x1b[31m"


def sample(values: Iterable[bytes | None], topic: str = "orders", **parts: Any) -> Sample:
    records = tuple(SampledRecord(parts.get("key", b"k"), value) for value in values)
    return Sample(topic, records, f"{len(records)} records")


def loaded(findings: Sequence[Finding], **sections: Any) -> PipelineConfig:
    """The file that findings lead to, as `validate` would read it."""
    given = {
        "source": {"type": "kafka", "bootstrap_servers": "h:1", "topics": ["orders"]},
        "registry": {"path": "./schemas"},
        "lake": {"path": "./lake"},
        **sections,
    }
    settings = document(given, "orders", findings)
    text = pipeline_text(settings, findings, looked_at="a sample", schema="s.json")
    assert text.isprintable() or all(line.isprintable() for line in text.split("\n"))
    return load_text(text).config


def texts(*events: Any) -> list[bytes]:
    return [json.dumps(event).encode() for event in events]


def avro(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes(found + bytes([number]))


def text_field(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2]) + varint(len(value)) + value


def wrapped(schema_id: int, type_: str = "chess") -> bytes:
    move = text_field(1, b"e4") + b"\x10\x07"
    parts = text_field(1, type_.encode()), b"\x10" + varint(schema_id), text_field(3, move)
    return b"".join(parts) + text_field(4, b"abc")


def unclear(records: Sample, registry: ScratchRegistry | None = None) -> DistributaryError:
    with pytest.raises(DistributaryError) as caught:
        discover(records, registry)
    assert caught.value.code is ErrorCode.SOURCE_UNCLEAR
    assert caught.value.where and caught.value.evidence and caught.value.next_step
    return caught.value


def test_plain_json_needs_no_registry() -> None:
    values = texts(*({"id": n, "who": "a" if n % 2 else "b"} for n in range(9)))
    config = loaded(discover(sample(values), ScratchRegistry()))
    assert (config.registry, config.records.format, config.tables.each) == (None, "json", "{topic}")


def test_json_whose_subject_is_known_is_held_to_it() -> None:
    registry = ScratchRegistry()
    registry.register("orders-value", '{"type": "object"}', format=Format.JSON)
    assert loaded(discover(sample(texts({"id": 1})), registry)).registry is not None


def test_avro_with_the_registrys_header() -> None:
    registry = ScratchRegistry()
    known = registry.register("orders-value", json.dumps(ORDER), format=Format.AVRO)
    values = [
        frame(avro(ORDER, {"id": n, "customer": "x"}), schema_id=known, indexes=None)
        for n in range(5)
    ]
    config = loaded(discover(sample(values), registry))
    assert (config.records.format, config.records.framing) == ("avro", "confluent")
    # without the registry somebody has to be told that there is one
    assert "--registry" in unclear(sample(values)).next_step


def test_several_records_on_one_topic_become_several_tables() -> None:
    registry = ScratchRegistry()
    other = {**ORDER, "name": "Refund"}
    ids = [
        registry.register(f"orders-{s['name']}", json.dumps(s), format=Format.AVRO)
        for s in (ORDER, other)
    ]
    values = [
        frame(avro(ORDER, {"id": 1, "customer": "x"}), schema_id=i, indexes=None) for i in ids
    ]
    assert loaded(discover(sample(values), registry)).tables.each == "{record}"


def test_bare_avro_by_the_topics_own_subject_only() -> None:
    registry = ScratchRegistry()
    registry.register("orders-value", json.dumps(ORDER), format=Format.AVRO)
    values = [avro(ORDER, {"id": n + 1, "customer": "somebody"}) for n in range(5)]
    config = loaded(discover(sample(values), registry))
    assert (config.records.format, config.records.framing) == ("avro", "none")
    unclear(sample(values, "payments"), registry)


@pytest.mark.parametrize("framed", [(True,), (False,), (True, False)])
def test_wrapped_protobuf_by_ids_that_the_registry_knows(framed: tuple[bool, ...]) -> None:
    registry = ScratchRegistry()
    wrapper = registry.register("wrapper-value", WRAPPER)
    move = registry.register("chess-value", MOVE)
    bare = [wrapped(move, type_) for type_ in ("chess", "go", "chess")]
    values = [
        frame(value, schema_id=wrapper) if framed[n % len(framed)] else value
        for n, value in enumerate(bare * 3)
    ]
    config = loaded(discover(sample(values, "events"), registry))
    envelope = config.envelope
    assert envelope is not None
    fields = (envelope.type, envelope.schema_id, envelope.payload, envelope.subject)
    assert fields == ("kind", "schema", "content", "wrapper-value")
    assert (config.records.format, config.tables.each) == ("protobuf", "silver_{type}")


def test_bytes_that_only_look_like_an_envelope_are_none() -> None:
    registry = ScratchRegistry()
    registry.register("wrapper-value", WRAPPER)
    unclear(sample([wrapped(4711)] * 5, "events"), registry)


def debezium(**source: Any) -> dict[str, Any]:
    told = {"connector": "postgresql", "db": "shop", "schema": "public", "table": "orders"}
    return {"before": None, "after": {"id": 1}, "op": "c", "ts_ms": 1, "source": told | source}


@pytest.mark.parametrize("with_schema", [True, False])
def test_debezium_in_json(with_schema: bool) -> None:
    event = {"schema": {}, "payload": debezium()} if with_schema else debezium()
    config = loaded(discover(sample([*texts(event) * 3, None]), None))
    assert config.cdc is not None
    assert (config.cdc.format, config.tables.each) == ("debezium", "{schema}_{table}")
    findings = discover(sample(texts(event), "shop.public.orders"), None)
    assert any(r"topic_pattern shop\..*" in each.what for each in findings)
    mysql = debezium(connector="mysql", schema=None)
    assert loaded(discover(sample(texts(mysql)), None)).tables.each == "{database}_{table}"


def test_debezium_in_avro() -> None:
    row = {"type": "record", "name": "Value", "fields": [{"name": "id", "type": "int"}]}
    parts = [{"name": name, "type": "string"} for name in ("connector", "schema", "table")]
    source = {"type": "record", "name": "Source", "fields": parts}
    fields = {"before": ["null", row], "after": ["null", "Value"], "source": source, "op": "string"}
    envelope = {
        "type": "record",
        "name": "Envelope",
        "namespace": "shop.public.orders",
        "fields": [{"name": name, "type": type_} for name, type_ in fields.items()],
    }
    registry = ScratchRegistry()
    known = registry.register("orders-value", json.dumps(envelope), format=Format.AVRO)
    told = {"connector": "postgresql", "schema": "public", "table": "orders"}
    event = {"before": None, "after": {"id": 1}, "source": told, "op": "c"}
    value = frame(avro(envelope, event), schema_id=known, indexes=None)
    config = loaded(discover(sample([value] * 3), registry))
    assert config.cdc is not None
    assert (config.records.format, config.tables.each) == ("avro", "{schema}_{table}")


def test_debezium_flattened() -> None:
    config = loaded(discover(sample(texts({"id": 1, "__op": "u", "__deleted": "false"})), None))
    assert config.cdc is not None
    assert config.tables.each == "{table}"


def test_cloud_events_have_a_table_for_each_type() -> None:
    event = {"specversion": "1.0", "id": "1", "source": "/s", "type": "shop.created", "data": {}}
    findings = discover(sample(texts(event)), None)
    assert any("CloudEvents" in each.what and "shop.created" in each.what for each in findings)
    config = loaded(findings)
    assert config.envelope is not None
    assert (config.envelope.format, config.tables.each) == ("cloudevents", "{type}")
    assert {"cloudevent", "offset"} <= {*config.tables.metadata}
    headers = (("ce_type", b"shop.created"), ("ce_specversion", b"1.0"))
    binary = Sample("orders", (SampledRecord(None, b'{"id": 1}', headers),), "one")
    findings = discover(binary, None)
    assert any("ce_type" in each.what for each in findings)
    assert "cloudevent" in loaded(findings).tables.metadata
    # data that is no object has no columns: the event itself is the row
    bare = discover(sample(texts(event | {"data": "text"})), None)
    assert "{field:type}" in str([each.settings for each in bare])


@pytest.mark.parametrize("name", ["event", "type", "@type"])
def test_a_field_that_names_the_type_makes_a_table_for_each(name: str) -> None:
    findings = discover(sample(texts({name: "placed", "id": 1}, {name: "paid", "id": 2})), None)
    assert any("paid" in each.what and "placed" in each.what for each in findings)
    config = loaded(findings)
    assert config.tables.each == "{type}"
    assert config.envelope is not None
    # one that is always the same tells nothing apart
    alike = discover(sample(texts({name: "placed", "id": 1}, {name: "placed", "id": 2})), None)
    assert loaded(alike).tables.each == "{topic}"


def test_cloud_events_of_binary_mode_may_be_of_any_format() -> None:
    registry = ScratchRegistry()
    known = registry.register("orders-value", json.dumps(ORDER), format=Format.AVRO)
    value = frame(avro(ORDER, {"id": 1, "customer": "a"}), schema_id=known, indexes=None)
    headers = (("ce_type", b"shop.placed"), ("ce_id", b"1"))
    records = (SampledRecord(None, value, headers),) * 9 + (SampledRecord(None, value),)
    findings = discover(Sample("orders", records, "ten"), registry)
    config = loaded(findings)
    assert config.envelope is not None and config.envelope.format == "cloudevents"
    assert config.records.format == "avro" and "cloudevent" in config.tables.metadata
    assert any("1 of 10 sampled records" in each.what for each in findings)


def test_a_few_bad_records_do_not_hide_what_names_the_types() -> None:
    good = [{"event": f"e{n % 12}", "kind": "web", "id": n} for n in range(194)]
    bad = [b"not json", b'{"id": 1}', b'{"event": 5}', b"[1]", b'{"event": null}', b"\xff"]
    findings = discover(sample([*texts(*good), *bad]), None)
    assert loaded(findings).tables.each == "{type}"
    assert any("6 of 200 sampled records" in each.what for each in findings)
    assert any("12 types" in each.what and "event" in each.what for each in findings)
    # and what else could have named them
    assert any("kind (1 value in 194 of 197" in each.what for each in findings)


def test_fields_that_name_no_types_are_told_when_there_is_one_table() -> None:
    many = [{"type": f"t{n}"} for n in range(100)]
    half = [{"event": "a"}, {"event": "b"}, {"id": 1}, {"id": 2}]
    for events, name in ((many, "type (100 values"), (half, "event (2 values in 2 of 4")):
        findings = discover(sample(texts(*events)), None)
        assert loaded(findings).tables.each == "{topic}"
        assert any(name in each.what for each in findings)
    silent = discover(sample(texts({"id": 1}, {"id": 2})), None)
    assert not any("considered" in each.what for each in silent)


def test_records_without_a_value_are_skipped_and_others_are_counted() -> None:
    findings = discover(sample([*texts(*[{"id": 1}] * 8), b"\xff\xfe", None]), None)
    assert loaded(findings).source.tombstones == "skip"
    assert any("1 of 9 sampled records" in each.what for each in findings)


def test_an_empty_topic_by_what_its_subject_announces() -> None:
    registry = ScratchRegistry()
    unclear(sample([]), registry)
    registry.register("orders-value", json.dumps(ORDER), format=Format.AVRO)
    assert loaded(discover(sample([]), registry)).records.format == "avro"


def test_change_files_of_datastream() -> None:
    claims = [b'["shop","","orders"]', b'["shop","","users"]']
    found = Sample(
        "cdc", tuple(SampledRecord(c, b"x") for c in claims), "2 events", {"format": "avro"}
    )
    source = {"type": "files", "path": "./in", "format": "avro"}
    config = loaded(discover_files(found), source=source)
    assert config.tables.each == "{database}_{table}"
    with pytest.raises(DistributaryError) as caught:
        discover_files(Sample("x", (), "1 event", faults=("CSV: line 1",)))
    assert caught.value.code is ErrorCode.SOURCE_UNCLEAR


@pytest.mark.parametrize("format_", ["json", "csv", "parquet", "avro"])
def test_files_of_records(format_: str) -> None:
    records = (
        SampledRecord(None, b"{}", topic=f"orders/1.{format_}"),
        SampledRecord(None, b"{}", topic=f"users/2026/1.{format_}"),
    )
    found = Sample("in", records, "2 records", {"format": format_})
    findings = discover_files(found)
    assert "orders, users" in findings[0].what
    config = loaded(findings, source={"type": "files", "path": "./in", "format": format_})
    assert (config.cdc, config.tables.each) == (None, "{type}")


def test_files_of_several_types_in_one_folder() -> None:
    lines = texts(*({"event": f"t{n % 12}", "n": n} for n in range(194))) + [b"odd"] * 6
    found = Sample("in", (), "200 records", {"format": "json"})

    def by(values: Sequence[bytes]) -> tuple[Finding, ...]:
        records = tuple(SampledRecord(None, value, topic="1.json") for value in values)
        return discover_files(replace(found, records=records))

    source = {"type": "files", "path": "./in", "format": "json"}
    settings = document({"source": source}, "in", by(lines))
    assert settings["tables"] == {"each": "{field:event}"}
    assert by(lines)[-1].what.startswith("6 of 200")
    alike = document({"source": source}, "in", by(texts(*[{"event": "one"}] * 20)))
    assert alike["tables"] == {"each": "{type}"}


@pytest.mark.parametrize("name", [HOSTILE, "${env:HOME}", "*a &b !c", "yes", "x" * 5000])
def test_names_from_outside_stay_in_comments(name: str) -> None:
    values = texts({name: 1, "type": name}, {name: 2, "type": "other"})
    assert loaded(discover(sample(values), None)).tables.each == "{type}"
    assert loaded(discover(sample(texts(debezium(table=name, db=name))), None)).cdc is not None


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.lists(st.none() | st.binary(max_size=40) | JSON.map(lambda v: json.dumps(v).encode())))
def test_any_bytes_give_a_valid_file_or_a_clear_word(values: list[bytes | None]) -> None:
    registry = ScratchRegistry()
    registry.register("wrapper-value", WRAPPER)
    registry.register("orders-value", json.dumps(ORDER), format=Format.AVRO)
    try:
        findings = discover(sample(values), registry)
    except DistributaryError as error:
        assert error.code is ErrorCode.SOURCE_UNCLEAR
    else:
        loaded(findings)


def test_messagepack_is_recognized_and_its_types_are_named() -> None:
    kinds = ["login", "logout", "login", "buy"]
    values = [pack({"event": kind, "at": n, "raw": b"\xff"}) for n, kind in enumerate(kinds)]
    findings = discover(sample([*values, *values, b"\xc1"], topic="t"), None)
    config = loaded(findings)
    assert config.payload is not None and config.payload.format == "msgpack"
    assert config.envelope is not None and config.envelope.format == "msgpack"
    assert any("1 of 9" in finding.what for finding in findings)


@pytest.mark.parametrize("value", [b"\x80", pack("text"), pack([{"a": 1}]), b"\x01", b"\xc0"])
def test_bytes_that_are_no_map_of_messagepack_stay_unclear(value: bytes) -> None:
    assert unclear(sample([value] * 5)).code is ErrorCode.SOURCE_UNCLEAR
