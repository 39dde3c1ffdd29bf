"""Heartbeats of Debezium connectors: passed over and counted, and their newest time kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from distributary.config.load import load_text
from distributary.model.record import RAW, Format
from distributary.stage.job import Staged
from tests.registry.scratch import ScratchRegistry
from tests.stage.conftest import Bench

PIPELINE = """
name: shop
source: {{type: kafka, bootstrap_servers: "127.0.0.1:9", topic_pattern: ".*"}}
registry: {{path: {lake}/schemas}}
payload: {{format: {format}}}
cdc: {{format: debezium}}
tables: {{each: "{{schema}}_{{table}}"}}
lake: {{path: {lake}}}
"""
BEATS = "__debezium-heartbeat.shop"
CHANGE = {
    "op": "c",
    "after": {"id": 1},
    "source": {"connector": "postgresql", "db": "d", "schema": "public", "table": "orders"},
}
HEARTBEAT = {
    "type": "record",
    "name": "Heartbeat",
    "namespace": "io.debezium.connector.common",
    "fields": [{"name": "ts_ms", "type": "long"}],
}
CONNECT = {
    "type": "struct",
    "name": "io.debezium.connector.common.Heartbeat",
    "fields": [{"type": "int64", "optional": False, "field": "ts_ms"}],
}


def raw(*records: tuple[str, bytes, int | None]) -> list[pa.RecordBatch]:
    """Records of a task: topic, value and the time in seconds."""
    rows = [
        {
            "key": b'{"serverName":"shop"}',
            "value": value,
            "topic": topic,
            "partition": 0,
            "offset": offset,
            "timestamp": None if seconds is None else seconds * 1_000_000,
        }
        for offset, (topic, value, seconds) in enumerate(records)
    ]
    return pa.Table.from_pylist(rows, RAW).combine_chunks().to_batches()


def beat(seconds: int, **more: Any) -> bytes:
    return json.dumps({"ts_ms": seconds * 1000, **more}, separators=(",", ":")).encode()


def bench_of(lake: Path, format: str) -> Bench:
    text = PIPELINE.format(lake=lake, format=format)
    config = load_text(text, file="shop.yaml", environ={}).config
    return Bench(lake, ScratchRegistry(), config)


def newest(bench: Bench, staged: Staged) -> dict[str, int]:
    found = staged.newest_heartbeats(bench.planner.task_plan())
    return {topic: moment // 1_000_000 for topic, moment in found.items()}


@pytest.mark.parametrize("schemas", [False, True])
def test_heartbeats_in_json(tmp_path: Path, schemas: bool) -> None:
    def framed(value: bytes) -> bytes:
        schema = json.dumps(CONNECT, separators=(",", ":")).encode()
        return b'{"schema":' + schema + b',"payload":' + value + b"}" if schemas else value

    bench = bench_of(tmp_path, "json")
    staged = bench.stage(
        raw((BEATS, framed(beat(101)), 101), (BEATS, framed(beat(103)), 103)),
        raw((BEATS, framed(beat(102)), 102), ("__debezium-heartbeat.bank", framed(beat(7)), 7)),
    )
    assert (staged.seen, staged.skipped, staged.dead.total()) == (4, 4, 0)
    assert newest(bench, staged) == {BEATS: 103, "__debezium-heartbeat.bank": 7}
    assert not staged.files


def test_heartbeats_in_a_topic_with_another_prefix_are_known_by_what_they_are(
    tmp_path: Path,
) -> None:
    bench = bench_of(tmp_path, "json")
    staged = bench.stage(raw(("beats.shop", beat(50), 50)))
    assert (staged.skipped, newest(bench, staged)) == (1, {"beats.shop": 50})


def test_a_heartbeat_without_a_time_says_nothing(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, "json")
    staged = bench.stage(raw((BEATS, beat(50), None)))
    assert (staged.skipped, newest(bench, staged)) == (1, {})


def test_changes_and_other_messages_are_no_heartbeats(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, "json")
    end = b'{"status":"END","id":"571","event_count":1,"data_collections":[],"ts_ms":5}'
    staged = bench.stage(
        raw(("shop.public.orders", json.dumps(CHANGE).encode(), 5), ("shop.transaction", end, 6))
    )
    assert (staged.skipped, newest(bench, staged)) == (1, {})


def test_heartbeats_in_avro(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, "avro")
    number = bench.registry.register(f"{BEATS}-value", json.dumps(HEARTBEAT), format=Format.AVRO)
    value = b"\0" + number.to_bytes(4) + b"\xd0\x0f"
    staged = bench.stage(raw((BEATS, value, 30), (BEATS, value, 40)), raw((BEATS, value, 20)))
    assert (staged.seen, staged.skipped, staged.dead.total()) == (3, 3, 0)
    assert newest(bench, staged) == {BEATS: 40}
    assert not staged.files
