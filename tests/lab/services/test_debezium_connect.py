"""A real PostgreSQL and the real connector: what is in the topics is what is in the tables."""

from __future__ import annotations

import hashlib
import json
import random
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from distributary.errors import ErrorCode, SetupError
from distributary.model.record import Format, WriterSchema
from distributary.registry.compile.avro_compiler import compile_avro
from distributary_lab.services.services import Services
from tests.decode.debezium_samples import Row, log, raw_table
from tests.services.debezium import (
    LOCK,
    Debezium,
    avro_events,
    ensure_connect,
    flattened,
    json_events,
)
from tests.services.postgres import Postgres
from tests.services.shared import unique
from tests.waiting import eventually

FORMATS = ("framed", "bare", "avro", "flat")
LARGE = 3_000
TABLES = {
    "accounts": "select id, name, balance::text, large, at::text, note from {schema}.accounts",
    "lines": "select order_id, no, qty, note from {schema}.lines",
}


def test_both_halves_of_the_lock_name_the_same_files() -> None:
    lock = ElementTree.parse(LOCK.folder / "ivy.xml")
    named = {(d.get("name", ""), d.get("rev", "")) for d in lock.iter("dependency")}
    assert {each.get("transitive") for each in lock.iter("dependency")} == {"false"}
    files = {f"{name}-{revision}.jar" for name, revision in named}
    connectors = [f"{n}-{r}" for n, r in named if n.startswith("debezium-connector-")]
    jars, archives = ({f"{c}{e}" for c in connectors} for e in (".jar", "-plugin.tar.gz"))
    assert files - jars | archives == set(LOCK.sums)


@pytest.mark.services
def test_the_connector_lies_apart_from_what_runs_it() -> None:
    found = ensure_connect()
    for folder, kind in zip(found.plugins, ("mariadb", "postgres"), strict=True):
        assert [path for path in folder.glob(f"*/debezium-connector-{kind}-*.jar")]
    assert not [path for path in found.jars if path.name.startswith("debezium")]
    wanted = LOCK.sums
    for jar in found.jars[:3]:
        assert hashlib.sha256(jar.read_bytes()).hexdigest() == wanted[jar.name]


@dataclass(frozen=True)
class Followed:
    """A schema of the database, and one connector for each format."""

    schema: str
    connectors: dict[str, str]
    postgres: Postgres
    services: Services

    def log(self, kind: str, table: str) -> list[Row]:
        """What a topic holds by now, decoded."""
        topic = f"{self.connectors[kind]}.{self.schema}.{table}"
        raw = read(self.services.kafka, topic)
        return log(raw, schemas=registered(self.services.registry)) if raw.num_rows else []

    def truth(self, table: str) -> list[Row]:
        """What the table holds."""
        return self.postgres.rows(TABLES[table].format(schema=self.schema))


def read(kafka: str, topic: str) -> pa.Table:
    """A topic from its beginning to its end, which may not be there yet."""
    if topic not in AdminClient({"bootstrap.servers": kafka}).list_topics(timeout=10).topics:
        return raw_table([])
    consumer = Consumer(
        {"bootstrap.servers": kafka, "group.id": "none", "enable.auto.commit": False}
    )
    try:
        first, last = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
        consumer.assign([TopicPartition(topic, 0, first)])
        rows: list[dict[str, Any]] = []
        while left := last - first - len(rows):
            # it would wait for more than there are
            for message in consumer.consume(min(left, 1_000), timeout=10):
                assert message.error() is None
                headers = [{"key": k, "value": v} for k, v in message.headers() or ()]
                rows.append(
                    {
                        "key": message.key(),
                        "value": message.value(),
                        "headers": headers,
                        "offset": message.offset(),
                        "timestamp": message.timestamp()[1] * 1_000,
                    }
                )
    finally:
        consumer.close()
    return raw_table(rows, topic=topic)


def registered(registry: str) -> Callable[[int], WriterSchema]:
    @cache
    def schema(id_: int) -> WriterSchema:
        with urllib.request.urlopen(f"{registry}/schemas/ids/{id_}") as answer:
            compiled = compile_avro(json.load(answer)["schema"])
        return WriterSchema(id_, Format.AVRO, compiled.body, compiled.message)

    return schema


def folded(rows: list[Row]) -> dict[tuple[Any, ...], Row]:
    """The state that changes lead to, in the order of their source, whatever order they came in."""
    state: dict[tuple[Any, ...], Row] = {}
    for row in sorted(rows, key=lambda each: tuple(each["_seq"].values())):
        if row["_op"] == "truncate":
            state.clear()
            continue
        key = tuple(row[name] for name in row["_key"])
        if row["_deleted"]:
            # a change of key takes values along that the database does not send again
            gone = state.pop(key, {})
            moved = json.loads(row["_envelope"]).get("new_key")
            if moved and gone:
                state[("moved", *moved.values())] = gone
            continue
        before = state.pop(("moved", *key), None) or state.get(key, {})
        kept = {name: before.get(name) for name in row["_unchanged"] or ()}
        state[key] = {n: v for n, v in row.items() if not n.startswith("_")} | kept
    return {key: row for key, row in state.items() if key[0] != "moved"}


def shown(rows: list[Row], names: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Some columns of rows as text, in any order."""
    return sorted(tuple(str(row.get(name))[:40] for name in names) for row in rows)


def changes(schema: str, seed: int, count: int, ids: range) -> str:
    """SQL that makes random changes, several to a transaction."""
    dice = random.Random(seed)
    lines: list[str] = []
    for _ in range(count):
        id_, other = dice.choice(ids), dice.choice(ids)
        large = f"repeat('{dice.choice('abc')}', {LARGE})"
        lines.append(
            dice.choice(
                [
                    f"insert into {schema}.accounts (id, name, balance, large, at) values ({id_},"
                    f" 'n{dice.random()}', {dice.randint(-(10**9), 10**9) / 100}, {large},"
                    " '2024-02-29 12:00:00+01') on conflict do nothing",
                    f"update {schema}.accounts set balance = balance + 1 where id = {id_}",
                    f"update {schema}.accounts set large = {large} where id = {id_}",
                    f"update {schema}.accounts set id = {other} where id = {id_} and not exists"
                    f" (select 1 from {schema}.accounts where id = {other})",
                    f"delete from {schema}.accounts where id = {id_}",
                    f"insert into {schema}.lines (order_id, no, qty) values ({id_}, {other},"
                    f" {dice.randint(0, 9)}) on conflict (order_id, no) do update"
                    " set qty = excluded.qty",
                    f"delete from {schema}.lines where order_id = {id_}",
                ]
            )
        )
    cuts = [lines[i : i + 7] for i in range(0, len(lines), 7)]
    return "\n".join(f"begin; {'; '.join(each)}; commit;" for each in cuts)


@pytest.fixture(scope="module")
def followed(services: Services, postgres: Postgres, debezium: Debezium) -> Followed:
    """Random changes with DDL among them, and a worker that is killed in between."""
    schema = unique("shop").replace("-", "_")
    postgres.execute(
        f"create schema {schema};"
        f"create table {schema}.accounts (id int primary key, name text not null,"
        " balance numeric(12,2), large text, at timestamptz);"
        f"alter table {schema}.accounts alter large set storage external;"
        f"create table {schema}.lines (order_id int, no int, qty int, primary key (order_id, no));"
        f"create table {schema}.cleared (id int primary key);"
        f"insert into {schema}.cleared values (1);"
    )
    ids = range(1, 40)
    postgres.execute(changes(schema, 1, 60, ids))
    shapes = {
        "framed": json_events(schemas=True),
        "bare": json_events(schemas=False),
        "avro": avro_events(services.registry),
        "flat": json_events(schemas=True) | flattened("op", "lsn"),
    }
    connectors = {kind: unique(kind) for kind in shapes}
    for kind, settings in shapes.items():
        debezium.follow(postgres, connectors[kind], schemas=schema, settings=settings)
    postgres.execute(changes(schema, 2, 150, ids))
    postgres.execute(
        f"alter table {schema}.accounts add column note text;"
        f"update {schema}.accounts set note = 'n' || id where id % 3 = 0;"
        f"alter table {schema}.lines add column note text, add column dropped int;"
    )
    postgres.execute(changes(schema, 3, 100, ids))
    for name in connectors.values():
        eventually(lambda name=name: debezium.follows(name), seconds=60)  # type: ignore[misc]
    debezium.restart()
    postgres.execute(f"alter table {schema}.lines drop column dropped;")
    postgres.execute(changes(schema, 4, 100, ids))
    postgres.execute(
        f"truncate {schema}.cleared; insert into {schema}.cleared values (2);"
        f"create table {schema}.made (id int primary key); insert into {schema}.made values (1);"
    )
    found = Followed(schema, connectors, postgres, services)
    for kind in FORMATS:
        # the last thing that happened
        eventually(lambda kind=kind: bool(found.log(kind, "made")), seconds=60)  # type: ignore[misc]
    return found


@pytest.mark.parametrize("kind", FORMATS)
def test_topics_lead_to_the_rows_of_the_tables(followed: Followed, kind: str) -> None:
    # without a schema nobody knows that some bytes are a number
    money = () if kind == "bare" else ("balance",)
    for table, names in (
        ("accounts", ("id", "name", "large", "note", *money)),
        ("lines", ("order_id", "no", "qty", "note")),
    ):
        rows = followed.log(kind, table)
        state = list(folded(rows).values())
        assert len(state) > 3
        assert shown(state, names) == shown(followed.truth(table), names)
        assert {"read", "insert", "update", "delete"} == {row["_op"] for row in rows}
    moments = {str(row["at"]) for row in folded(followed.log("avro", "accounts")).values()}
    assert moments == {"2024-02-29 11:00:00+00:00"}


@pytest.mark.parametrize("kind", ["framed", "bare", "avro"])
def test_a_truncate_arrives(followed: Followed, kind: str) -> None:
    rows = followed.log(kind, "cleared")
    assert [row["_op"] for row in rows][-2:] == ["truncate", "insert"]
    assert [row["id"] for row in folded(rows).values()] == [2]


def test_changes_of_key_and_values_that_were_not_sent_are_among_them(followed: Followed) -> None:
    rows = followed.log("avro", "accounts")
    assert {row["_seq"]["half"] for row in rows} == {0, 1}
    assert any(row["_unchanged"] == ["large"] and row["_op"] == "update" for row in rows)
    moved = [row for row in rows if "old_key" in json.loads(row["_envelope"])]
    assert any(row["_unchanged"] == ["large"] for row in moved)


def test_settings_that_are_wrong(debezium: Debezium, postgres: Postgres) -> None:
    with pytest.raises(SetupError) as caught:
        debezium.follow(
            postgres, unique("bad"), schemas="nothing", settings={"plugin.name": "no-such-thing"}
        )
    assert caught.value.code is ErrorCode.SERVICE_FAILED
    assert postgres.password not in str(caught.value)


def test_a_connector_that_is_forgotten_leaves_no_slot(
    debezium: Debezium, postgres: Postgres
) -> None:
    schema, name = unique("gone").replace("-", "_"), unique("gone")
    postgres.execute(f"create schema {schema}; create table {schema}.t (id int primary key);")
    query = f"select 1 from pg_replication_slots where slot_name = '{name.replace('-', '_')}'"
    debezium.follow(postgres, name, schemas=schema)
    assert postgres.rows(query)
    debezium.forget(name)
    eventually(lambda: not postgres.rows(query), seconds=30)
