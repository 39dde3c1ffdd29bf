"""Versions of a schema in one table: rows do not depend on the batches that they came in."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from distributary import Pipeline
from distributary.model.record import Format
from distributary.registry.folder import FileRegistry
from tests.registry.frames import frame

ID, COLOR = {"name": "id", "type": "int"}, {"name": "color", "type": "string"}
DAY = {"name": "day", "type": {"type": "int", "logicalType": "date"}, "default": 0}
COLOUR = COLOR | {"name": "colour", "aliases": ["color"], "default": "none"}
VERSIONS = [[ID, COLOR], [ID, COLOR, DAY], [ID, COLOUR]]


class Orders:
    """A Delta table of Avro records, and the pipeline that reads it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        registry = FileRegistry(root / "schemas", durable=False)
        schemas = [{"type": "record", "name": "Item", "fields": fields} for fields in VERSIONS]
        self.schemas = [
            (fastavro.parse_schema(s), registry.register("o", json.dumps(s), format=Format.AVRO))
            for s in schemas
        ]
        self.file = root / "orders.yaml"
        self.file.write_text(
            f"""
name: orders
source: {{type: delta, path: {root}/orders}}
registry: {{path: {root}/schemas}}
payload: {{format: avro, framing: confluent}}
tables: {{each: items, metadata: [schema_id]}}
lake: {{path: {root}/lake}}
"""
        )

    def send(self, records: Sequence[tuple[int, int]]) -> None:
        """Append records, each a version and a number."""
        values = []
        for version, number in records:
            parsed, schema_id = self.schemas[version]
            datum = {"id": number, "color": "red", "day": 1, "colour": "blue"}
            out = io.BytesIO()
            fastavro.schemaless_writer(out, parsed, datum)
            values.append(frame(out.getvalue(), schema_id=schema_id, indexes=None))
        rows = pa.table({"value": pa.array(values, pa.binary())})
        write_deltalake(str(self.root / "orders"), rows, mode="append")

    def rows(self) -> list[dict[str, Any]]:
        table = DeltaTable(str(self.root / "lake" / "items")).to_pyarrow_table()
        return sorted(table.to_pylist(), key=lambda row: row["id"])


def test_one_batch_and_many_in_another_order_give_the_same_rows(
    tmp_path: Path, tasks: SparkSession
) -> None:
    records = [(0, 1), (1, 2), (2, 3), (0, 4), (1, 5)]
    tables = []
    for name, batches in {
        "one": [records],
        "many": [[(0, 1)], [(1, 2), (0, 4)], [(2, 3), (1, 5)]],
        "back": [[(2, 3)], [(1, 5), (1, 2)], [(0, 4), (0, 1)]],
    }.items():
        (tmp_path / name).mkdir()
        orders = Orders(tmp_path / name)
        for batch in batches:
            orders.send(batch)
            Pipeline.load(orders.file).run(spark=tasks)
        tables.append(orders.rows())
    assert tables[0] == tables[1] == tables[2]
    by_id = {row["id"]: row for row in tables[0]}
    assert [by_id[n]["day"] is None for n in (1, 2, 3, 4, 5)] == [True, False, True, True, False]
    assert [by_id[n]["colour"] for n in (1, 2, 3)] == [None, None, "blue"]
    assert [by_id[n]["color"] for n in (1, 2, 3)] == ["red", "red", None]
