"""Which table a message belongs to, and messages that belong to none."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.decode.change.debezium.message_kinds import (
    KINDS,
    MessageKind,
    look,
    schema_claim,
    schema_kind,
    split_connect,
    topic_claim,
)
from distributary.errors import DecodeError
from tests.decode.debezium_samples import avro_schema, connect_schema, messages, topics


def kind_of(topic: str, value: bytes) -> MessageKind:
    looked = look(pa.array([topic]), pa.array([value], pa.binary()))
    return KINDS[int(looked.kinds[0])]


def expected(topic: str) -> MessageKind:
    if topic.startswith("__debezium-heartbeat"):
        return MessageKind.HEARTBEAT
    last = topic.rpartition(".")[2]
    return {"transaction": MessageKind.TRANSACTION, "message": MessageKind.MESSAGE}.get(
        last, MessageKind.CHANGE
    )


@pytest.mark.parametrize("topic", topics())
def test_every_message_of_a_real_connector(topic: str) -> None:
    raw = messages(topic)
    values = raw.column("value").combine_chunks()
    family = topic.removeprefix("__debezium-heartbeat.").partition(".")[0]
    if family in ("av", "fa"):
        ids = {int.from_bytes(value[1:5]) for value in values.drop_null().to_pylist()}
        assert {schema_kind(avro_schema(id_)) for id_ in ids} == {expected(topic)}
        return
    frames = split_connect(values)
    assert {schema_kind(connect_schema(s)) for s in frames.schemas} <= {expected(topic)}
    looked = look(raw.column("topic").combine_chunks(), frames.payloads)
    kinds = {KINDS[code] for code in looked.kinds}
    assert kinds - {MessageKind.TOMBSTONE} == {expected(topic)}
    claims = {
        claim
        for claim, kind in zip(looked.claims.to_pylist(), looked.kinds, strict=True)
        if KINDS[kind] is not MessageKind.TOMBSTONE
    }
    table = topic.rpartition(".")[2]
    # `ft` has nothing in its events that would tell the database
    database = "" if family == "ft" else "postgres"
    names = json.dumps([database, "shop", table], separators=(",", ":"))
    assert claims == ({names} if expected(topic) is MessageKind.CHANGE else {None})


def event(**source: Any) -> bytes:
    return json.dumps({"op": "c", "after": {"id": 1}, "source": source}).encode()


def claims(*values: bytes | None, topic: str = "p.s.t") -> list[str | None]:
    found = look(pa.array([topic] * len(values), pa.string()), pa.array(values, pa.binary()))
    claims_: list[str | None] = found.claims.to_pylist()
    return claims_


def test_names_come_from_the_source_not_from_the_topic() -> None:
    assert claims(
        event(connector="mysql", db="shop", table="orders"),
        event(connector="sqlserver", db="shop", schema="dbo", table="orders"),
        event(connector="mongodb", db="shop", collection="orders"),
        event(connector="postgresql", db="d", schema='a"b', table="ö.x"),
        topic="everything",
    ) == [
        '["shop","","orders"]',
        '["shop","dbo","orders"]',
        '["shop","","orders"]',
        '["d","a\\"b","ö.x"]',
    ]


def test_names_of_flattened_events() -> None:
    assert claims(
        b'{"id":1,"__table":"orders","__source_db":"shop","__source_schema":"s"}',
        b'{"id":1,"__db":"shop","__table":"orders"}',
        b'{"id":1}',
        topic="p.public.fallback",
    ) == ['["shop","s","orders"]', '["shop","","orders"]', '["","public","fallback"]']


@pytest.mark.parametrize(
    ("topic", "connector", "claim"),
    [
        ("p.public.orders", "", '["","public","orders"]'),
        ("p.shop.dbo.orders", "sqlserver", '["shop","dbo","orders"]'),
        ("p.shop.orders", "mysql", '["shop","","orders"]'),
        ("p.orders", "", '["","","orders"]'),
        ("orders", "", '["","","orders"]'),
        ("p.s.", "", None),
    ],
)
def test_names_of_topics(topic: str, connector: str, claim: str | None) -> None:
    assert topic_claim(topic, connector) == claim


def test_names_by_a_schema() -> None:
    schema = next(
        avro_schema(int.from_bytes(value[1:5]))
        for value in messages("av.shop.items").column("value").to_pylist()
        if value
    )
    assert schema_claim(schema, "p.shop.items") == '["","shop","items"]'


def test_rows_that_look_like_something_else() -> None:
    assert kind_of("p.s.transaction", b'{"status":"BEGIN","id":7}') is MessageKind.CHANGE
    assert kind_of("p.s.t", b'{"op":"m","source":"web"}') is MessageKind.CHANGE
    assert kind_of("p.s.t", b'{"op":7,"source":{"connector":1}}') is MessageKind.CHANGE
    assert kind_of("p.s.t", b'{"ts_ms":1,"id":2}') is MessageKind.CHANGE


def test_a_statement_that_changed_a_schema() -> None:
    value = {
        "source": {"connector": "mysql", "db": "shop", "table": "orders"},
        "ts_ms": 1,
        "databaseName": "shop",
        "schemaName": None,
        "ddl": "ALTER TABLE orders ADD x int",
        "tableChanges": [],
    }
    assert kind_of("p", json.dumps(value).encode()) is MessageKind.SCHEMA_CHANGE
    name = {"type": "struct", "fields": [], "name": "io.debezium.connector.mysql.SchemaChangeValue"}
    assert schema_kind(connect_schema(json.dumps(name).encode())) is MessageKind.SCHEMA_CHANGE


def test_the_history_of_schemas_that_a_connector_keeps_for_itself() -> None:
    value = {"source": {"server": "p"}, "position": {}, "databaseName": "shop", "ddl": "DROP ..."}
    assert kind_of("schema-changes.shop", json.dumps(value).encode()) is MessageKind.SCHEMA_CHANGE
    assert kind_of("p.s.t", b'{"id":1,"note":"\\"databaseName\\""}') is MessageKind.CHANGE
    assert kind_of("p.s.t", b'{"databaseName":"row","id":1}') is MessageKind.CHANGE


@pytest.mark.parametrize("value", [b"\xff", b"{", b"7", b"[]", b'{"a":1,"a":2}', b"{}\n{}"])
def test_what_is_no_event_is_left_to_the_decoder(value: bytes) -> None:
    assert kind_of("p.s.t", value) is MessageKind.CHANGE
    good = event(connector="postgresql", db="d", schema="s", table="t")
    assert claims(*[good] * 70, value, None) == ['["d","s","t"]'] * 70 + ['["","s","t"]'] * 2


@given(
    st.lists(
        st.sampled_from([None, b"{", b"null", event(connector="x", table="t"), b"{}"]), max_size=8
    )
)
def test_every_message_has_an_answer(values: list[bytes | None]) -> None:
    alone = {value: claims(value)[0] for value in set(values)}
    assert claims(*values) == [alone[value] for value in values]


def test_a_schema_that_is_none() -> None:
    for text in (b"{", b"7", b'{"type":7}', b'{"type":"array"}'):
        with pytest.raises(DecodeError):
            schema_kind(connect_schema(text))
