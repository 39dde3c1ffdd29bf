"""Files of records through a whole pipeline: each file once, columns that come later, bad lines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from distributary.engine.pipeline import Pipeline
from distributary.model.manifest import Counts


def pipeline(root: Path, format_: str, each: str = "silver_{type}", *, more: str = "") -> Pipeline:
    """Return a pipeline over the files below `in`."""
    file = root / "plain.yaml"
    file.write_text(
        f"""
name: plain
source: {{type: files, path: {root}/in, format: {format_}, settle: 0s}}
tables: {{each: "{each}"}}
lake: {{path: {root}/lake}}
{more}
"""
    )
    return Pipeline.load(file)


def write(root: Path, path: str, text: str) -> None:
    """Write a file whose time is long ago."""
    file = root / "in" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    os.utime(file, (1_700_000_000, 1_700_000_000))


def rows(root: Path, table: str) -> list[dict[str, object]]:
    """Return the rows of a table by their ids, without metadata columns."""
    found = DeltaTable(str(root / "lake" / table)).to_pyarrow_table().to_pylist()
    plain = [{k: v for k, v in row.items() if not k.startswith("_")} for row in found]
    return sorted(plain, key=lambda row: str(row["id"]))


def test_each_file_is_read_once_and_columns_come_later(tmp_path: Path, tasks: SparkSession) -> None:
    write(tmp_path, "orders/1.csv", "id,amount\n1,1.5\n2\n3,2.5\n")
    write(tmp_path, "users/1.csv", "id,name\n1,a\n")
    counts = pipeline(tmp_path, "csv").run(spark=tasks).counts
    assert counts == Counts(read=4, written=3, dead_lettered=1)
    write(tmp_path, "orders/2026/2.csv", "id,amount,note\n4,x,n\n5,3,\n6,4,\n")
    counts = pipeline(tmp_path, "csv").run(spark=tasks).counts
    assert counts == Counts(read=3, written=3)
    assert pipeline(tmp_path, "csv").run(spark=tasks).batches == 0
    orders = rows(tmp_path, "silver_orders")
    assert [row["id"] for row in orders] == [1, 3, 4, 5, 6]
    assert [row["amount"] for row in orders] == [1.5, 2.5, None, 3, 4]
    assert [row["amount__string"] for row in orders] == [None, None, "x", None, None]
    assert [row["note"] for row in orders] == [None, None, "n", None, None]
    assert rows(tmp_path, "silver_users") == [{"id": 1, "name": "a"}]
    letters = DeltaTable(str(tmp_path / "lake" / "dead_letters")).to_pyarrow_table().to_pylist()
    assert [(x["error_code"], x["value"]) for x in letters] == [("PAYLOAD_MISMATCH", b"2")]


@pytest.mark.parametrize(("mode", "name"), [("upsert", "newest"), ("dedup", "first")])
def test_a_later_file_has_the_newer_record_of_a_key(
    tmp_path: Path, tasks: SparkSession, mode: str, name: str
) -> None:
    """Whatever the line in it: lines are numbered in each file from the beginning."""
    more = f"keys: [{{key: [id], mode: {mode}}}]"
    write(tmp_path, "users/b.csv", "id,name\n2,b\n3,c\n1,first\n1,second\n")
    pipeline(tmp_path, "csv", more=more).run(spark=tasks)
    write(tmp_path, "users/a.csv", "id,name\n1,third\n1,newest\n")
    pipeline(tmp_path, "csv", more=more).run(spark=tasks)
    assert [row["name"] for row in rows(tmp_path, "silver_users")] == [name, "b", "c"]


@pytest.mark.parametrize(
    ("each", "tables"),
    [("ev_{field:event}", ["ev_login", "ev_logout"]), ("all_events", ["all_events"])],
)
def test_a_field_may_name_the_type_or_one_table_hold_all(
    tmp_path: Path, tasks: SparkSession, each: str, tables: list[str]
) -> None:
    write(tmp_path, "a/1.json", '{"event":"login","id":1}\n{"event":"logout","id":2}\n')
    write(tmp_path, "b/1.json", '[{"event":"login","id":3,"more":true}]')
    counts = pipeline(tmp_path, "json", each).run(spark=tasks).counts
    assert counts == Counts(read=3, written=3)
    found = [row["id"] for table in tables for row in rows(tmp_path, table)]
    assert sorted(map(str, found)) == ["1", "2", "3"]
