"""The files source as the engine uses it: a frame, a reader, and tasks that read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from distributary.config.sources.files import FilesSourceConfig as Config
from distributary.errors import DivergedError, SourceUnavailableError
from distributary.model.manifest import files_of, source_hash
from distributary.source.base import BatchInput
from distributary.source.files.source import FilesSource
from tests.source.change_files import avro, event, events, faults, named, put, schema, source, uuids
from tests.source.s3_server import BUCKET, KEYS, s3_server

DDL = (
    "key binary, value binary, headers array<struct<key: string, value: binary>>, topic string, "
    "partition int, offset bigint, timestamp timestamp"
)


def collected(spark: SparkSession, batch: BatchInput) -> pa.Table:
    reader = batch.reader
    frame = batch.frame(spark).mapInArrow(lambda batches: reader(batches), DDL)
    return frame.toArrow().sort_by([("partition", "ascending"), ("offset", "ascending")])


def test_a_batch_is_read_by_tasks(spark: SparkSession, tmp_path: Path) -> None:
    wider = schema("note", table="users")
    for number in range(12):
        put(tmp_path / "in", named(number + 10), avro(events(10, start=10 * number)))
    put(tmp_path / "in", named(table="users"), avro([event(1, table="users")], written=wider))
    put(tmp_path / "in", named(table="worse"), b"no Avro")
    one = source(tmp_path / "in", tmp_path / "checkpoint", max_files_per_batch=13)
    end = one.advance(one.first(), one.newest())
    assert end is not None
    assert end["files"] == 13
    batch = one.open(spark, one.first(), end)
    read = collected(spark, batch)
    assert (batch.counted, len(read)) == (False, 121)
    assert batch.records >= 121
    assert uuids(read.slice(0, 120)) == [row["uuid"] for row in events(120)]
    assert read["partition"].to_pylist() == [n for n in range(12) for _ in range(10)] + [12]
    assert len(list((tmp_path / "checkpoint" / "schemas").glob("*.avsc"))) == 2
    assert [files_of(covered) for covered in batch.ranges] == [range(13)]
    last = one.open(spark, end, one.newest())
    assert [value for _, value in faults(collected(spark, last))] == [b"no Avro"]
    assert last.newest_us is not None


def test_the_same_positions_are_the_same_batch(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in", named(1), avro(events(3)))
    before = source(tmp_path / "in", tmp_path / "checkpoint")
    end = before.newest()
    first = before.open(spark, before.first(), end)
    put(tmp_path / "in", named(0), avro(events(3)))
    after = source(tmp_path / "in", tmp_path / "checkpoint")
    after.newest()
    again = after.open(spark, after.first(), end)
    assert source_hash(again.ranges) == source_hash(first.ranges)
    assert collected(spark, again).equals(collected(spark, first))
    assert after.retrace(after.first(), first.ranges)["files"] == end["files"]
    other = source(tmp_path / "in", tmp_path / "other")
    other.newest()
    assert source_hash(other.open(spark, other.first(), end).ranges) != source_hash(first.ranges)


def test_a_batch_of_nothing(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    one = source(tmp_path / "in", tmp_path / "checkpoint")
    assert one.advance(one.first(), one.newest()) is None
    empty = one.open(spark, one.first(), one.first())
    assert (empty.ranges, len(collected(spark, empty))) == ((), 0)
    with pytest.raises(DivergedError):
        one.open(spark, one.first(), {"files": 3})


def test_a_bucket_is_read_by_tasks_until_it_is_gone(spark: SparkSession, tmp_path: Path) -> None:
    bucket: dict[str, Any] = {"discovery": "discovery-bucket", "bucket": f"s3://{BUCKET}/in"}
    config = Config.model_validate({"type": "files", **bucket})
    folders = {"folder": tmp_path / "files", "schemas": tmp_path / "schemas"}
    # with a key of its own it is not kept for other tests: it ends
    with s3_server({**KEYS, "aws_access_key_id": "canary-of-its-own"}) as server:
        server.put(f"in/{named()}", avro(events(7)))
        one = FilesSource(config, **folders, storage_options=server.options)
        batch = one.open(spark, one.first(), one.newest())
        assert len(uuids(collected(spark, batch))) == 7
    with pytest.raises(PySparkException) as caught:
        collected(spark, batch)
    meaning = one.explain(caught.value)
    assert isinstance(meaning, SourceUnavailableError)
    assert meaning.retryable
    assert "canary-secret" not in str(meaning)
    assert one.explain(ValueError("something else")) is None
