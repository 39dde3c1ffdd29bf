"""Flattened events in Avro whose deletes are tombstones only, from raw records to rows of a log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distributary.config.load import load_text
from distributary.model.record import RAW, Format
from distributary.stage.job import Staged
from tests.registry.scratch import ScratchRegistry
from tests.stage.conftest import Bench

PIPELINE = """
name: shop
source: {{type: kafka, bootstrap_servers: "127.0.0.1:9", topic_pattern: "shop.*"}}
registry: {{path: {lake}/schemas}}
payload: {{format: avro}}
cdc: {{format: debezium, tombstones: {tombstones}}}
tables: {{each: "{{schema}}_{{table}}"}}
lake: {{path: {lake}}}
"""
TOPIC = "shop.public.orders"
LOG = "public_orders_log"
KEY = [{"name": "id", "type": "int"}, {"name": "part", "type": "string"}]
VALUE = [*KEY, {"name": "note", "type": ["null", "string"], "default": None}]


def avro(name: str, fields: list[dict[str, Any]]) -> str:
    record = {"type": "record", "name": name, "namespace": TOPIC, "fields": fields}
    return json.dumps(record)


def framed(schema_id: int, body: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4) + body


def key_of(number: int) -> bytes:
    return bytes([2 * number]) + b"\x02x"


def raw(records: list[tuple[bytes, bytes | None]], *, start: int = 0) -> list[pa.RecordBatch]:
    rows = [
        {"key": key, "value": value, "topic": TOPIC, "partition": 0, "offset": start + n}
        for n, (key, value) in enumerate(records)
    ]
    table = pa.Table.from_pylist([{**row, "timestamp": 1_000_000} for row in rows], RAW)
    return table.combine_chunks().to_batches()


class Shop:
    """A stage over records of one table."""

    def __init__(self, lake: Path, tombstones: str = "delete") -> None:
        text = PIPELINE.format(lake=lake, tombstones=tombstones)
        config = load_text(text, file="shop.yaml", environ={}).config
        registry = ScratchRegistry()
        self.key = registry.register(f"{TOPIC}-key", avro("Key", KEY), format=Format.AVRO)
        self.value = registry.register(f"{TOPIC}-value", avro("Value", VALUE), format=Format.AVRO)
        self.bench = Bench(lake, registry, config)

    def change(self, number: int, note: str) -> tuple[bytes, bytes]:
        body = key_of(number) + b"\x02" + bytes([2 * len(note)]) + note.encode()
        return framed(self.key, key_of(number)), framed(self.value, body)

    def tombstone(self, number: int) -> tuple[bytes, None]:
        return framed(self.key, key_of(number)), None

    def log(self, staged: Staged) -> list[dict[str, Any]]:
        files = [self.bench.lake / LOG / f.path for f in staged.files.get(LOG, ())]
        return [row for file in files for row in pq.read_table(file).to_pylist()]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_a_tombstone_deletes_the_row_of_its_key(shop: Shop) -> None:
    records = [shop.change(1, "one"), shop.change(2, "two"), shop.tombstone(1)]
    rows = shop.log(shop.bench.stage(raw(records)))
    told = [(r["_op"], r["id"], r["part"], r["note"], r["_key"]) for r in rows]
    assert sorted(told) == [
        ("delete", 1, "x", None, ["id", "part"]),
        ("update", 1, "x", "one", ["id", "part"]),
        ("update", 2, "x", "two", ["id", "part"]),
    ]
    (gone,) = [row for row in rows if row["_op"] == "delete"]
    assert gone["_unchanged"] == ["note"]
    # the order is the topic's
    places = {row["_offset"]: tuple(row["_seq"].values()) for row in rows}
    assert places[0] < places[1] < places[2]


def test_nothing_but_tombstones(shop: Shop) -> None:
    staged = shop.bench.stage(raw([shop.tombstone(3)]))
    (row,) = shop.log(staged)
    assert (row["_op"], row["id"], row["part"]) == ("delete", 3, "x")


def test_tombstones_are_passed_over_unless_they_delete(tmp_path: Path) -> None:
    shop = Shop(tmp_path, "skip")
    staged = shop.bench.stage(raw([shop.change(1, "one"), shop.tombstone(1)]))
    assert [row["_op"] for row in shop.log(staged)] == ["update"]
    assert staged.skipped == 1
