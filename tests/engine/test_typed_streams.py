"""Kafka and Delta streams whose records name their type themselves, from the source to tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from distributary import Pipeline
from distributary.cli.command_line import application
from distributary.engine.progress.removal import dead_letters_of
from distributary.model.manifest import Counts
from distributary.operations.plan.trial_registry import preview
from distributary.operations.replay import replay
from tests.services.secured import SecuredServices
from tests.services.shared import unique
from tests.topics import Topics

CLOUD = [("content-type", b"application/cloudevents+json")]


class Events:
    """A topic of JSON, and the pipeline that reads it."""

    def __init__(self, services: SecuredServices, root: Path) -> None:
        self.topics = Topics(services.kafka)
        self.topic = self.topics.create(unique("events"))
        self.servers, self.root, self.lake = services.kafka, root, root / "lake"

    def pipeline(self, settings: str) -> Pipeline:
        file = self.root / "events.yaml"
        file.write_text(
            f"""
name: events
source: {{type: kafka, bootstrap_servers: "{self.servers}", topics: [{self.topic}]}}
payload: {{format: json}}
{settings}
lake: {{path: {self.lake}}}
"""
        )
        return Pipeline.load(file)

    def send(self, *records: Any, **more: Any) -> None:
        values = [r if isinstance(r, bytes) else json.dumps(r).encode() for r in records]
        self.topics.send(self.topic, values, **more)

    def ids(self, table: str) -> list[int]:
        found = DeltaTable(str(self.lake / table)).to_pyarrow_table()
        return sorted(found["id"].to_pylist())


@pytest.fixture
def events(services: SecuredServices, tmp_path: Path) -> Events:
    return Events(services, tmp_path)


@pytest.mark.parametrize("exchange", ["disk", "spark"])
def test_a_field_tells_types_apart_and_a_refused_one_is_replayed(
    events: Events, spark: SparkSession, exchange: str
) -> None:
    tables = f"tables: {{each: 'silver_{{field:event}}'}}\nrun: {{exchange: {exchange}}}"
    few = f"{tables}\nevolution: {{max_new_tables_per_batch: 1}}"
    events.send({"event": "paid", "id": 1}, {"event": "Order.Placed", "id": 2}, {"id": 3})
    found = preview(events.pipeline(tables))
    assert {t.name for t in found.tables if t.new} >= {"silver_paid", "silver_order_placed"}
    assert events.pipeline(few).run(spark=spark).counts == Counts(3, 1, 2)
    assert events.ids("silver_paid") == [1]
    pipeline = events.pipeline(tables)
    letters = dead_letters_of(pipeline)
    with pipeline.open(spark, lane="replay") as context:
        replay(context, letters, letters.select(reason="TOO_MANY_TYPES"))
    assert events.ids("silver_order_placed") == [2]
    assert [one.code for one in letters.reasons()] == ["MISSING_TYPE"]
    traced = CliRunner().invoke(
        application(), ["trace", f"{events.topic}/0/0", "--lake", str(events.lake), "--json"]
    )
    assert traced.exit_code == 0 and "silver_paid" in traced.output


def test_cloud_events_of_both_modes_share_their_tables(events: Events, tasks: SparkSession) -> None:
    whole = {"specversion": "1.0", "id": "a", "source": "/s", "type": "shop.paid"}
    events.send({**whole, "data": {"id": 1}}, headers=CLOUD)
    binary = [("ce_type", b"shop.paid"), ("ce_id", b"b"), ("content-type", b"application/json")]
    events.send({"id": 2}, headers=binary)
    events.send({"id": 3}, headers=[("ce_type", b"../../etc"), ("ce_id", b"c")])
    tables = "tables: {each: '{type}', metadata: [offset, cloudevent]}"
    pipeline = events.pipeline(f"envelope: {{format: cloudevents}}\n{tables}")
    assert pipeline.run(spark=tasks).counts == Counts(3, 2, 1)
    assert events.ids("shop_paid") == [1, 2]
    rows = DeltaTable(str(events.lake / "shop_paid")).to_pyarrow_table().to_pylist()
    told = {row["id"]: row["_cloudevent"] for row in rows}
    assert (told[1]["id"], told[1]["source"], told[2]["id"]) == ("a", "/s", "b")


def test_headers_and_keys_of_kafka_name_types(events: Events, tasks: SparkSession) -> None:
    events.send({"id": 1}, keys=[b"paid"], headers=[("kind", b"placed")])
    by_key = events.pipeline("tables: {each: 'key_{key}'}")
    assert by_key.run(spark=tasks).counts == Counts(1, 1, 0)
    assert events.ids("key_paid") == [1]
    by_header = events.pipeline("tables: {each: 'header_{header:kind}'}")
    events.send({"id": 2}, keys=[b"paid"], headers=[("kind", b"placed")])
    assert by_header.run(spark=tasks).counts == Counts(1, 1, 0)
    assert events.ids("header_placed") == [2]


def test_a_delta_table_with_headers_and_keys(tmp_path: Path, tasks: SparkSession) -> None:
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    table = pa.table(
        {
            "value": pa.array([b'{"id": 1}', b'{"id": 2}', b'{"id": 3}'], pa.binary()),
            "key": pa.array([b"k", b"k", b"k"], pa.binary()),
            "headers": pa.array(
                [[{"key": "kind", "value": b"paid"}], [{"key": "kind", "value": None}], None],
                pa.list_(header),
            ),
        }
    )
    write_deltalake(str(tmp_path / "events"), table)
    file = tmp_path / "events.yaml"
    file.write_text(
        f"""
name: events
source: {{type: delta, path: {tmp_path}/events, key: key, headers: headers}}
payload: {{format: json}}
tables: {{each: '{{header:kind}}'}}
lake: {{path: {tmp_path}/lake}}
"""
    )
    assert Pipeline.load(file).run(spark=tasks).counts == Counts(3, 1, 2)
    rows = DeltaTable(str(tmp_path / "lake" / "paid")).to_pyarrow_table().to_pylist()
    assert [row["id"] for row in rows] == [1]
