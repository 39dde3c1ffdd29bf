"""Spark with Iceberg's runtime reads mirrors by their paths, and by their names at a server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from distributary.catalog.mirror_catalog import MirrorCatalog
from distributary.config.lake import LakeConfig
from distributary.delta.log import load
from distributary.iceberg.earlier_tables import EarlierTable
from distributary.iceberg.mirror import Mirror
from tests.iceberg.earlier import as_earlier
from tests.iceberg.tables import DeltaTable, mirror_of
from tests.services.iceberg import rest_catalog, spark_runtime

pytestmark = [pytest.mark.spark, pytest.mark.services, pytest.mark.slow]

_READER = """
import json, sys
from pyspark.sql import SparkSession

jar, address, *places = sys.argv[1:]
builder = SparkSession.builder.master("local[1]").config("spark.jars", jar)
catalog = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "rest", ".uri": address}
for name, value in catalog.items():
    builder = builder.config(f"spark.sql.catalog.lake{name}", value)
builder = builder.config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
for place in places:
    named = place.startswith("lake.")
    rows = spark.table(place) if named else spark.read.format("iceberg").load(place)
    names = sorted(rows.columns)
    whole = rows.select(names).toJSON(use_unicode=True).collect()
    few = rows.where("a >= 2").count()
    print(json.dumps({"names": names, "rows": [json.loads(r) for r in whole], "few": few}))
spark.stop()
"""


def adopted(folder: Path, address: str) -> DeltaTable:
    """Return a table of an earlier version that goes on, with its name at a server."""
    table = DeltaTable(folder / "chess")
    table.make(4)
    table.append(3)
    iceberg = {"type": "rest", "uri": address, "namespace": "games"}
    lake = LakeConfig.model_validate({"path": str(folder), "iceberg": iceberg})
    as_earlier(table.folder, lake)
    catalog = MirrorCatalog(lake)
    pointer = catalog.pointer("chess", table.store)
    EarlierTable.of(table.store, pointer).adopt()
    table.state = load(table.store)
    Mirror(table.store, pointer).sync()
    table.add_column()
    table.append(2)
    table.delete_rows(0, 0)
    Mirror(table.store, pointer).sync()
    catalog.close()
    return table


def test_spark_reads_mirrors(tmp_path: Path) -> None:
    plain = DeltaTable(tmp_path / "plain")
    parts = DeltaTable(tmp_path / "parts", partition_by=["a"])
    for table in (plain, parts):
        table.make(4)
        mirror = mirror_of(table)
        mirror.sync()
        table.append(3)
        mirror.sync()
        table.add_column()
        table.append(5)
        table.delete_rows(0, 0)
        mirror.sync()
        table.rewrite(1, 6)
        table.compact()
        mirror.sync()
    plain.widen()
    plain.append(2)
    mirror_of(plain).sync()
    places = [f"{table.folder}/_iceberg" for table in (plain, parts)]
    with rest_catalog(tmp_path) as address:
        tables = (plain, parts, adopted(tmp_path, address))
        command = [sys.executable, "-c", _READER, str(spark_runtime()), address]
        command += [*places, "lake.games.chess"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for table, answer in zip(tables, answers, strict=True):
        have = table.rows()
        names = sorted(table.types)
        assert answer["names"] == names
        seen = [tuple(row.get(name) for name in names) for row in answer["rows"]]
        assert sorted(map(_plain, seen), key=repr) == sorted(map(_plain, have), key=repr)
        at = names.index("a")
        assert answer["few"] == sum(row[at] is not None and row[at] >= 2 for row in have)


def _plain(row: tuple[object, ...]) -> str:
    return json.dumps(row, default=str, sort_keys=True)
