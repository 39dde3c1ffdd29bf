"""PostgreSQL, the real connector, Kafka, the engine: the lake's tables are the database's."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from distributary.model.manifest import Counts
from distributary.observe.status.pulse import read_pulse
from distributary_lab.services.services import Services
from tests.lakes.debezium import Shop
from tests.services.debezium import Debezium, avro_events, flattened, json_events
from tests.services.postgres import Postgres

NOW = "available_now"
BARE = {**json_events(schemas=False), "decimal.handling.mode": "string"}
"""Without a schema nobody knows that some bytes are a number."""
NOISE = {"heartbeat.interval.ms": "300", "provide.transaction.metadata": "true"}


def read(shop: Shop, tasks: SparkSession) -> Counts:
    """Everything that has happened, into the lake."""
    shop.arrived()
    counts = shop.pipeline().run(trigger=NOW, spark=tasks).counts
    assert counts.balanced, counts
    assert not shop.letters(), shop.letters()[0]
    return counts


def test_hundreds_of_changes_with_ddl_among_them(
    services: Services, postgres: Postgres, debezium: Debezium, tmp_path: Path, tasks: SparkSession
) -> None:
    shop = Shop(services, postgres, debezium, tmp_path)
    shop.change(1, 100)
    shop.follow(BARE | NOISE)
    counts = Counts()
    for seed in range(2, 4):
        shop.change(seed, 500)
        if seed % 2:
            shop.add_column("orders", f"note{seed}", "text")
            shop.add_column("lines", f"weight{seed}", "int")
            shop.change(seed + 100, 250)
            shop.execute(f"update orders set note{seed} = 'n' || id where id % 3 = 0")
            shop.execute(f"update lines set weight{seed} = qty where order_id % 3 = 0")
        counts += read(shop, tasks)
        assert shop.assert_true() > 30
    assert counts.written > 500
    log = shop.rows("orders_log")
    assert {row["_op"] for row in log} == {"read", "insert", "update", "delete"}
    assert {row["_seq"]["half"] for row in log} == {0, 1}
    assert any(row["_op"] == "update" and row["_unchanged"] == ["big"] for row in log)
    # tombstones behind deletes, heartbeats, beginnings and ends of transactions
    assert counts.skipped > 300


@pytest.mark.parametrize(
    "kind", [pytest.param("json with schemas", marks=pytest.mark.slow), "avro"]
)
def test_the_same_where_events_have_a_schema(
    kind: str,
    services: Services,
    postgres: Postgres,
    debezium: Debezium,
    tmp_path: Path,
    tasks: SparkSession,
) -> None:
    is_avro = kind == "avro"
    payload = "{format: avro}" if is_avro else "{format: json}"
    # behind deletes with an envelope tombstones say nothing new
    cdc = ", tombstones: delete"
    shop = Shop(services, postgres, debezium, tmp_path, payload=payload, cdc=cdc)
    shop.change(11, 60)
    settings = avro_events(services.registry) if is_avro else json_events(schemas=True)
    shop.follow(settings | NOISE)
    shop.change(12, 150)
    counts = read(shop, tasks)
    shop.assert_true()
    shop.add_column("orders", "note", "text")
    shop.change(13, 100)
    shop.execute("update orders set note = 'n' || id where id % 3 = 0")
    shop.execute("truncate cleared; insert into cleared values (7)")
    began = datetime.now(UTC)
    counts += read(shop, tasks)
    assert shop.assert_true() > 30
    assert counts.skipped > 20
    # the connector was heard, and by nothing but its heartbeats
    pulse = read_pulse(shop.pipeline().checkpoint.address)
    assert pulse is not None and set(pulse.heartbeats) == {f"__debezium-heartbeat.{shop.name}"}
    (beat,) = pulse.heartbeats.values()
    assert abs(beat.at - began) < timedelta(minutes=2)
    assert [row["id"] for row in shop.rows("cleared")] == [7]


@pytest.mark.parametrize(
    "kind", ["json", pytest.param("json with schemas", marks=pytest.mark.slow), "avro"]
)
def test_flattened_events_that_delete_by_tombstones_only(
    kind: str,
    services: Services,
    postgres: Postgres,
    debezium: Debezium,
    tmp_path: Path,
    tasks: SparkSession,
) -> None:
    is_avro = kind == "avro"
    payload = "{format: avro}" if is_avro else "{format: json}"
    shop = Shop(services, postgres, debezium, tmp_path, payload=payload, cdc=", tombstones: delete")
    settings = avro_events(services.registry) if is_avro else json_events(schemas=kind != "json")
    shop.execute("insert into papers select n, 'p', n from generate_series(1, 20) n")
    shop.follow(settings | flattened(deletes="tombstone"))
    shop.execute("insert into lines select n, 1, n from generate_series(1, 20) n")
    read(shop, tasks)
    shop.execute("delete from lines where order_id % 2 = 0; delete from papers where id < 5")
    # nothing but tombstones of these tables in a run that has not seen their rows
    read(shop, tasks)
    assert sorted(row["order_id"] for row in shop.rows("lines")) == [*range(1, 20, 2)]
    assert sorted(row["id"] for row in shop.rows("papers")) == [*range(5, 21)]
