"""Maxwell, Canal and AWS DMS: their events become logs and tables of current rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyarrow.csv import write_csv
from pyspark.sql import SparkSession

from distributary.engine.pipeline import Pipeline
from distributary.model.table import Role
from distributary.operations.repair.verify_table import verify_table
from distributary_lab.services.services import Services
from tests.services.shared import unique
from tests.topics import Topics


def rows(path: Path, *names: str) -> list[tuple[Any, ...]]:
    found = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    return sorted(tuple(row[name] for name in names) for row in found)


def letters(lake: Path) -> Counter[str]:
    path = lake / "dead_letters"
    return Counter(code for (code,) in rows(path, "error_code")) if path.exists() else Counter()


def on_kafka(services: Services, root: Path, topic: str, format_: str) -> Pipeline:
    path = root / f"{format_}.yaml"
    path.write_text(
        f"""
name: {topic}
source: {{type: kafka, bootstrap_servers: "{services.kafka}", topics: [{topic}]}}
payload: {{format: json}}
cdc: {{format: {format_}}}
tables: {{each: "{{table}}"}}
lake: {{path: {root / format_}}}
"""
    )
    return Pipeline.load(path)


def assert_agrees(pipeline: Pipeline) -> None:
    """A table is what its log says."""
    merged = [t for t in pipeline.ledger().tables(pipeline.config.name) if t.role == Role.MERGED]
    assert merged and all(verify_table(pipeline, table).verified.agrees for table in merged)


def maxwell(type_: str, row: Any, place: int, **more: Any) -> bytes:
    event = {"database": "shop", "table": "orders", "type": type_, "ts": 1_700_000_000 + place}
    event |= {"position": f"binlog.000001:{place}", "xid": place, "commit": True}
    return json.dumps(event | {"data": row} | more).encode()


def canal(type_: str, data: Any, **more: Any) -> bytes:
    message = {"database": "shop", "table": "orders", "type": type_, "isDdl": False, "id": 1}
    message |= {"es": 1_700_000_000_000, "ts": 1_700_000_000_001, "data": data, "old": None}
    message |= {"mysqlType": {"id": "int", "name": "varchar(9)"}, "pkNames": ["id"]}
    return json.dumps(message | more).encode()


STORIES = {
    "maxwell": [
        [
            maxwell("bootstrap-start", {}, 0),
            maxwell("bootstrap-insert", {"id": 1, "name": "old"}, 1),
            maxwell("bootstrap-complete", {}, 1),
            maxwell("insert", {"id": 1, "name": "a"}, 1),
            maxwell("insert", {"id": 2, "name": "b"}, 2),
            maxwell("update", {"id": 3, "name": "b"}, 3, old={"id": 2}),
            maxwell("table-alter", {}, 4),
            b"{",
        ],
        [
            # a writer that was started again sends some once more
            maxwell("insert", {"id": 2, "name": "b"}, 2),
            maxwell("update", {"id": 3, "name": "b"}, 3, old={"id": 2}),
            maxwell("update", {"id": 3, "name": "c", "size": 7}, 5, old={"name": "b"}),
            maxwell("delete", {"id": 1, "name": "a"}, 6),
        ],
    ],
    "canal": [
        [
            canal("INSERT", [{"id": "1", "name": "a"}, {"id": "2", "name": "b"}]),
            canal("UPDATE", [{"id": "3", "name": "b"}], old=[{"id": "2"}]),
            canal("ALTER", None, isDdl=True, sql="alter table orders add size int"),
            b"{",
        ],
        [
            canal(
                "UPDATE",
                [{"id": "3", "name": "c", "size": "7"}],
                old=[{"name": "b", "size": None}],
                mysqlType={"id": "int", "name": "varchar(9)", "size": "int"},
            ),
            canal("DELETE", [{"id": "1", "name": "a"}]),
        ],
    ],
}
SKIPPED = {"maxwell": 3 + 2, "canal": 1}
"""What is about no row, and copies."""


@pytest.mark.parametrize("format_", STORIES)
def test_a_stream_of_a_writer(
    format_: str, services: Services, tmp_path: Path, tasks: SparkSession
) -> None:
    topics = Topics(services.kafka)
    topic = topics.create(unique("w").replace("-", "_"))
    lake, skipped = tmp_path / format_, 0
    keys = json.dumps({"database": "shop", "table": "orders", "pk.id": 0}).encode()
    for batch in STORIES[format_]:
        topics.send(topic, batch, keys=[keys] * len(batch))
        counts = on_kafka(services, tmp_path, topic, format_).run(spark=tasks).counts
        assert counts.balanced and counts.read == len(batch), counts
        skipped += counts.skipped
    assert rows(lake / "orders", "id", "name", "size") == [(3, "c", 7)]
    assert skipped == SKIPPED[format_]
    assert letters(lake) == {"NOT_JSON": 1}
    ops = Counter(op for (op,) in rows(lake / "orders_log", "_op"))
    reads = {"read": 1} if format_ == "maxwell" else {}
    assert ops == {"insert": 2, "update": 2, "delete": 2} | reads
    assert_agrees(on_kafka(services, tmp_path, topic, format_))


TYPES = pa.schema(
    [
        ("Op", pa.string()),
        ("id", pa.int32()),
        ("name", pa.string()),
        ("price", pa.decimal128(9, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us")),
    ]
)
PRICE, DAY, AT = Decimal("1.50"), date(2024, 1, 31), datetime(2024, 1, 31, 10)


def files_of(root: Path, format_: str, files: Mapping[str, Sequence[tuple[Any, ...]]]) -> None:
    """Write files of rows of operation, id and name; without an operation, there is no column."""
    for name, changes in files.items():
        path = root / "dms/shop/orders" / f"{name}.{format_}"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows_ = [(*change, PRICE, DAY, AT) for change in changes]
        table = pa.table(dict(zip(TYPES.names, zip(*rows_, strict=True), strict=True)), TYPES)
        if changes[0][0] is None:
            table = table.drop_columns("Op")
        if format_ == "csv":
            texts = pa.table({n: table[n].cast(pa.string()) for n in table.column_names})
            write_csv(texts, path)
        else:
            pq.write_table(table, path)


@pytest.mark.parametrize("format_", ["parquet", "csv"])
def test_files_of_dms(format_: str, tmp_path: Path, tasks: SparkSession) -> None:
    path = tmp_path / "dms.yaml"
    path.write_text(
        f"""
name: dms
source: {{type: files, layout: dms, path: {tmp_path / "dms"}, format: {format_}, settle: 0s}}
cdc: {{format: dms, dms: {{keys: {{"shop.*": [id]}}}}}}
tables: {{each: "{{schema}}_{{table}}"}}
lake: {{path: {tmp_path / "lake"}}}
"""
    )
    load = {"LOAD00000001": [(None, 1, "old"), (None, 2, "two"), (None, 3, "three")]}
    files_of(tmp_path, format_, load)
    assert Pipeline.load(path).run(spark=tasks).counts.written == 3
    changes = {
        "20240131-101500124": [("D", 2, "two")],
        "20240131-101500123": [("U", 1, "new"), ("U", 2, "x"), ("I", 4, "four")],
    }
    files_of(tmp_path, format_, changes)
    (tmp_path / "dms/shop/orders" / f"20240131-101500125.{format_}").write_bytes(b"PAR1\xff")
    counts = Pipeline.load(path).run(spark=tasks).counts
    assert counts.balanced and (counts.written, counts.dead_lettered) == (4, 1)
    lake = tmp_path / "lake"
    names = ("id", "name", "price", "day", "at")
    found = rows(lake / "shop_orders", *names)
    if format_ == "parquet":
        more = (PRICE, DAY, AT.replace(tzinfo=UTC))
        assert found == [(1, "new", *more), (3, "three", *more), (4, "four", *more)]
    else:
        # CSV has no types
        assert [row[:3] for row in found] == [
            ("1", "new", "1.50"),
            ("3", "three", "1.50"),
            ("4", "four", "1.50"),
        ]
    assert rows(lake / "shop_orders_log", "_op")[0] == ("delete",)
    assert_agrees(Pipeline.load(path))
