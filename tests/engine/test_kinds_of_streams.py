"""Streams of other shapes: no envelope, and types that change."""

from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from distributary.engine.pipeline import Pipeline
from distributary.model.manifest import Counts
from distributary.registry.folder import FileRegistry
from distributary_lab.simulate.base import DeltaSink, SinkMessage, deliver
from distributary_lab.simulate.games import PeoplePlan, stream_people
from tests.registry.frames import frame


def people_file(root: Path, tables: str = "{each: unified_gold}") -> Path:
    path = root / "people.yaml"
    path.write_text(
        f"""
name: people
source: {{type: delta, path: {root}/lake/people, value: value}}
registry: {{path: {root}/schemas}}
payload: {{format: protobuf, framing: confluent}}
tables: {tables}
lake: {{path: {root}/lake}}
"""
    )
    return path


def people_sink(root: Path) -> DeltaSink:
    return DeltaSink(str(root / "lake" / "people"), value_column="value", type_column=None)


def test_one_topic_many_versions_one_growing_table(tmp_path: Path, tasks: SparkSession) -> None:
    registry = FileRegistry(tmp_path / "schemas", durable=False)
    people = stream_people(PeoplePlan(versions=4, records=5), registry=registry)
    deliver(people, sink=people_sink(tmp_path))
    summary = Pipeline.load(people_file(tmp_path)).run(spark=tasks)
    assert summary.counts == Counts(read=20, written=20)
    table = DeltaTable(str(tmp_path / "lake" / "unified_gold"))
    names = [f.name for f in table.schema().fields]
    assert [n for n in names if n.startswith("measure")] == [f"measure{i}" for i in range(4)]
    assert table.count() == 20


def test_a_column_that_grows_is_widened_and_one_that_changes_gets_a_side_column(
    tmp_path: Path, spark: SparkSession
) -> None:
    registry = FileRegistry(tmp_path / "schemas", durable=False)
    registry.set_compatibility("people-value", "NONE")
    sink = people_sink(tmp_path)
    types = ("int32", "int64", "string")
    values = (b"\x08\x07", b"\x08\x80\x80\x80\x80\x80\x20", b"\x0a\x02hi")
    for kind, payload in zip(types, values, strict=True):
        text = f'syntax = "proto3"; message Person {{ {kind} score = 1; }}'
        value = frame(payload, schema_id=registry.register("people-value", text))
        sink.write([SinkMessage(None, value, (), 0, None)])
    assert Pipeline.load(people_file(tmp_path)).run(spark=spark).counts.written == 3
    rows = DeltaTable(str(tmp_path / "lake" / "unified_gold")).to_pyarrow_table().to_pylist()
    assert sorted((r["score"] or 0, r["score__string"]) for r in rows) == [
        (0, "hi"),
        (7, None),
        (2**40, None),
    ]
    history = Pipeline.load(people_file(tmp_path)).ledger().schema_history("unified_gold")
    assert [h.text for h in history if h.kind == "column_widened"] == ["~ score int to bigint"]
    read = spark.read.format("delta").load(str(tmp_path / "lake" / "unified_gold"))
    assert dict(read.dtypes)["score"] == "bigint"
    assert read.count() == 3
