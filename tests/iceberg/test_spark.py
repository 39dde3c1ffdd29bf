"""Spark with Iceberg's runtime reads mirrors by their paths."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.iceberg.tables import DeltaTable, mirror_of
from tests.services.iceberg import spark_runtime

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_READER = """
import json, sys
from pyspark.sql import SparkSession

jar, *folders = sys.argv[1:]
builder = SparkSession.builder.master("local[1]").config("spark.jars", jar)
builder = builder.config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
for folder in folders:
    rows = spark.read.format("iceberg").load(folder)
    names = sorted(rows.columns)
    whole = rows.select(names).toJSON(use_unicode=True).collect()
    few = rows.where("a >= 2").count()
    print(json.dumps({"names": names, "rows": [json.loads(r) for r in whole], "few": few}))
spark.stop()
"""


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
    tables = (plain, parts)
    command = [sys.executable, "-c", _READER, str(spark_runtime())]
    command += [f"{table.folder}/_iceberg" for table in tables]
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
