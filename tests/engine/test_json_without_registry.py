"""JSON that comes without any schema: what it looks like is its schema, and grows with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from distributary import Pipeline
from distributary.model.manifest import Counts
from distributary.operations.plan.trial_registry import preview


class Lines:
    """A Delta table of JSON records, and the pipeline that reads it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lake = root / "lake"
        self.file = root / "events.yaml"
        self.file.write_text(
            f"""
name: events
source: {{type: delta, path: {root}/events, topic: events}}
payload: {{format: json}}
tables: {{each: "silver_{{topic}}"}}
lake: {{path: {self.lake}}}
"""
        )

    def send(self, *records: Any) -> None:
        values = [r if isinstance(r, bytes) else json.dumps(r).encode() for r in records]
        table = pa.table({"value": pa.array(values, pa.binary())})
        write_deltalake(str(self.root / "events"), table, mode="append")

    def rows(self) -> list[dict[str, Any]]:
        table = DeltaTable(str(self.lake / "silver_events")).to_pyarrow_table()
        return sorted(table.to_pylist(), key=lambda row: row["_offset"])

    def columns(self) -> list[str]:
        names = DeltaTable(str(self.lake / "silver_events")).to_pyarrow_table().column_names
        return [name for name in names if not name.startswith("_")]


def test_records_without_a_schema_get_columns_by_what_they_hold(
    tmp_path: Path, tasks: SparkSession
) -> None:
    lines = Lines(tmp_path)
    lines.send({"id": 1, "name": "Zoë", "tags": ["a"]}, {"id": 2, "at": {"x": 1.5}}, b"{broken")
    assert Pipeline.load(lines.file).run(spark=tasks).counts == Counts(3, 2, 1)
    assert set(lines.columns()) == {"id", "name", "tags", "at"}
    assert [row["name"] for row in lines.rows()] == ["Zoë", None]
    assert lines.rows()[1]["at"] == {"x": 1.5}


def test_a_table_that_somebody_has_made_gets_the_metadata_columns(
    tmp_path: Path, tasks: SparkSession
) -> None:
    lines = Lines(tmp_path)
    write_deltalake(str(lines.lake / "silver_events"), pa.table({"id": [7], "_OFFSET": ["mine"]}))
    lines.send({"id": 1}, {"id": 2})
    Pipeline.load(lines.file).run(spark=tasks)
    table = DeltaTable(str(lines.lake / "silver_events")).to_pyarrow_table()
    assert {"_partition", "_timestamp"} <= set(table.column_names)
    assert sorted(table["id"].to_pylist()) == [1, 2, 7]
    # names that differ by case only are one column, whose type stays
    assert [name.lower() for name in table.column_names].count("_offset") == 1


def test_a_new_key_is_a_new_column_in_the_batch_where_it_appears(
    tmp_path: Path, tasks: SparkSession
) -> None:
    lines = Lines(tmp_path)
    lines.send({"id": 1})
    Pipeline.load(lines.file).run(spark=tasks)
    lines.send({"id": 2, "colour": "red"}, {"id": 3})
    Pipeline.load(lines.file).run(spark=tasks)
    assert [(r["id"], r["colour"]) for r in lines.rows()] == [(1, None), (2, "red"), (3, None)]
    assert len({r["_schema_id"] for r in lines.rows()}) == 2


def test_a_look_at_what_would_happen_leaves_no_trace(tmp_path: Path) -> None:
    lines = Lines(tmp_path)
    lines.send({"id": 1, "name": "a"})
    found = preview(Pipeline.load(lines.file))
    assert ("silver_events", True, 1) in [(t.name, t.new, t.records) for t in found.tables]
    assert not list(tmp_path.glob("lake/**/inferred/**/*.json"))


BAD = [b"not json", b'{"id": NaN}', b'{"id": 1, "id": 2}', b"[1]"]


def test_all_dead_letters_of_what_was_looked_at_are_foreseen(
    tmp_path: Path, tasks: SparkSession
) -> None:
    lines = Lines(tmp_path)
    lines.send(*({"id": n} for n in range(16)), *BAD)
    found = preview(Pipeline.load(lines.file))
    assert (found.records, found.waiting) == (20, 20)
    assert [t.records for t in found.tables if t.name == "silver_events"] == [16]
    counts = Pipeline.load(lines.file).run(spark=tasks).counts
    assert counts == Counts(20, 16, sum(found.dead_letters.values()))


def test_a_look_at_one_batch_knows_how_much_there_is(tmp_path: Path) -> None:
    lines = Lines(tmp_path)
    lines.send(*({"id": n} for n in range(40)))
    lines.send(*({"id": n} for n in range(10)), *BAD)
    settings = lines.file.read_text()
    lines.file.write_text(
        settings.replace("topic: events", "topic: events, max_records_per_batch: 20")
    )
    found = preview(Pipeline.load(lines.file))
    assert (found.records, found.waiting, found.dead_letters) == (20, 54, {})
