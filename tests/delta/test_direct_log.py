"""The log that we write ourselves: other writers, other readers, crashes, and old age."""

from __future__ import annotations

import gc
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from distributary.delta import log, log_checkpoint
from distributary.delta.commit import lane_of, pipeline_of
from distributary.delta.log import DataFile, Snapshot
from distributary.delta.log_reading import log_names
from distributary.errors import LakeUnavailableError, PublishError
from distributary.model.table import Column
from distributary.publish.base import CommittedMark, Outcome, Published, TableColumns
from distributary.publish.direct import DirectPublisher
from distributary.store.base import Store, at, local_folder
from tests.publish.conftest import read_with_spark
from tests.publish.staged import (
    COMMENT,
    batch_of,
    columns_like,
    entry_of,
    mark,
    numbers,
    read_everywhere,
    stage,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def publish(publisher: DirectPublisher, folder: Path, batch: int) -> Published:
    return publisher.publish(batch_of(folder, batch, numbers(batch)), mark(batch))


def actions(folder: Path, version: int) -> list[dict[str, Any]]:
    path = folder / "_delta_log" / f"{version:020d}.json"
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def writer_of(folder: Path, version: int) -> str:
    return str(actions(folder, version)[0]["commitInfo"]["engineInfo"])


def values(folder: Path) -> list[int]:
    return sorted(r["n"] for r in read_everywhere(str(folder)))


def test_commits_of_other_writers_are_followed(folder: Path) -> None:
    publisher = DirectPublisher()
    publish(publisher, folder, 0)
    write_deltalake(str(folder), numbers(50), mode="append")
    assert publish(publisher, folder, 1).version == 2
    DeltaTable(str(folder)).delete("n = 50")
    assert publish(publisher, folder, 2).version == 4
    assert values(folder) == [0, 1, 2]


def test_column_added_by_another_writer_is_followed(folder: Path) -> None:
    publisher = DirectPublisher()
    publish(publisher, folder, 0)
    theirs = pa.table({"n": pa.array([1], pa.int32()), "x": ["theirs"]})
    write_deltalake(str(folder), theirs, mode="append", schema_mode="merge")
    publish(publisher, folder, 2)
    rows = {r["n"]: r["x"] for r in read_everywhere(str(folder))}
    assert rows == {0: None, 1: "theirs", 2: None}


def data_files() -> int:
    """Return the number of data files that are in memory."""
    gc.collect()
    return sum(isinstance(one, DataFile) for one in gc.get_objects())


@pytest.mark.parametrize("prepared", [False, True])
def test_files_of_a_table_do_not_stay_in_memory(folder: Path, prepared: bool) -> None:
    publisher = DirectPublisher()
    before = data_files()
    for batch in range(10):
        entry = batch_of(folder, batch, numbers(batch))
        if prepared:
            publisher.prepare([entry], mark(batch))
        assert publisher.publish(entry, mark(batch)).version == batch
        publisher.finish(threads=1)
    assert data_files() == before
    assert values(folder) == list(range(10))


def test_table_that_was_deleted_is_made_again(folder: Path) -> None:
    publisher = DirectPublisher()
    for batch in range(3):
        publish(publisher, folder, batch)
    shutil.rmtree(folder)
    assert publish(publisher, folder, 3).version == 0
    assert values(folder) == [3]


def test_table_that_was_made_again_by_somebody_else_is_looked_at_anew(folder: Path) -> None:
    publisher = DirectPublisher()
    for batch in range(3):
        publish(publisher, folder, batch)
    shutil.rmtree(folder)
    for value in (10, 11, 12, 13):
        write_deltalake(str(folder), numbers(value), mode="append")
    assert publish(publisher, folder, 1).outcome is Outcome.PUBLISHED
    assert values(folder) == [1, 10, 11, 12, 13]


def test_table_with_features_that_we_know_is_ours(folder: Path) -> None:
    publisher = DirectPublisher()
    publish(publisher, folder, 0)
    DeltaTable(str(folder)).alter.add_feature(
        TableFeatures.AppendOnly, allow_protocol_versions_increase=True
    )
    publish(publisher, folder, 1)
    assert writer_of(folder, 2) == "Distributary"
    assert values(folder) == [0, 1]


def test_table_with_other_features_is_left_to_the_library(folder: Path) -> None:
    publisher = DirectPublisher()
    publish(publisher, folder, 0)
    DeltaTable(str(folder)).alter.add_feature(
        TableFeatures.ChangeDataFeed, allow_protocol_versions_increase=True
    )
    publish(publisher, folder, 1)
    publish(publisher, folder, 2)
    assert "delta-rs" in writer_of(folder, 3)
    wider = pa.table({"n": pa.array([3], pa.int64())})
    assert publisher.publish(batch_of(folder, 3, wider), mark(3)).outcome is Outcome.PUBLISHED
    more = pa.table({"n": pa.array([4], pa.int64()), "x": ["new"]})
    assert publisher.publish(batch_of(folder, 4, more), mark(4)).outcome is Outcome.PUBLISHED
    assert publisher.publish(batch_of(folder, 4, more), mark(4)).outcome is Outcome.SKIPPED
    assert values(folder) == [0, 1, 2, 3, 4]
    assert publisher.committed(str(folder), mark(0)) == CommittedMark(4, "source-0")


def test_an_answer_that_the_library_lost(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = DirectPublisher()
    publish(publisher, folder, 0)
    DeltaTable(str(folder)).alter.add_feature(
        TableFeatures.ChangeDataFeed, allow_protocol_versions_increase=True
    )
    real = DeltaTable.create_write_transaction

    def lost(*told: Any, **more: Any) -> None:
        real(*told, **more)
        raise OSError("connection reset")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", lost)
    assert publish(publisher, folder, 1).outcome is Outcome.PUBLISHED
    assert publish(publisher, folder, 1).outcome is Outcome.SKIPPED
    assert values(folder) == [0, 1]


def test_column_that_needs_a_feature_brings_it_along(folder: Path) -> None:
    publisher = DirectPublisher()
    publish(publisher, folder, 0)
    clock = pa.table({"n": pa.array([1], pa.int32()), "at": pa.array([5], pa.timestamp("us"))})
    publisher.publish(batch_of(folder, 1, clock), mark(1))
    protocol = DeltaTable(str(folder)).protocol()
    assert "timestampNtz" in (protocol.writer_features or [])
    assert writer_of(folder, 1) == "Distributary"
    publisher.publish(batch_of(folder, 2, clock), mark(2))
    assert DeltaTable(str(folder)).to_pyarrow_table().num_rows == 3


def test_columns_and_files_change_in_one_commit(folder: Path) -> None:
    publisher = DirectPublisher()
    publish(publisher, folder, 0)
    wider = pa.table({"n": pa.array([2**40], pa.int64()), "x": ["new"]})
    assert publisher.publish(batch_of(folder, 1, wider), mark(1)).version == 1
    kinds = [next(iter(action)) for action in actions(folder, 1)]
    assert kinds == ["commitInfo", "metaData", "txn", "add"]
    before, after = (
        next(a["metaData"] for a in actions(folder, v) if "metaData" in a) for v in (0, 1)
    )
    assert {k: v for k, v in after.items() if k != "schemaString"} == {
        k: v for k, v in before.items() if k != "schemaString"
    }
    assert after["description"] == COMMENT


def test_settings_of_the_table_are_kept(folder: Path) -> None:
    DeltaTable.create(
        str(folder),
        pa.schema([("n", pa.int32())]),
        name="theirs",
        configuration={"delta.logRetentionDuration": "interval 7 days"},
    )
    before = DeltaTable(str(folder)).metadata()
    publisher = DirectPublisher()
    wider = pa.table({"n": pa.array([2**40], pa.int64()), "x": ["new"]})
    publisher.publish(batch_of(folder, 0, wider), mark(0))
    after = DeltaTable(str(folder)).metadata()
    assert str(after) == str(before)


def test_crash_before_the_commit_leaves_the_table_as_it_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = DirectPublisher()
    publish(publisher, folder, 0)

    def no_link(source: str, target: str) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", no_link)
        with pytest.raises(LakeUnavailableError):
            publish(publisher, folder, 1)
    assert sorted(p.name for p in (folder / "_delta_log").iterdir()) == ["0" * 20 + ".json"]
    assert publish(publisher, folder, 1).outcome is Outcome.PUBLISHED
    assert values(folder) == [0, 1]


def test_what_a_killed_writer_left_behind_disturbs_nobody(folder: Path) -> None:
    publisher = DirectPublisher()
    publish(publisher, folder, 0)
    (folder / "_delta_log" / ".00000000000000000001.json.abc.tmp").write_text('{"commitI')
    publish(publisher, folder, 1)
    assert values(folder) == [0, 1]


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only to root")
def test_read_only_folder_is_the_lakes_fault(folder: Path) -> None:
    publisher = DirectPublisher()
    publish(publisher, folder, 0)
    entry = batch_of(folder, 1, numbers(1))
    os.chmod(folder / "_delta_log", 0o500)
    with pytest.raises(LakeUnavailableError):
        publisher.publish(entry, mark(1))


def test_damaged_log_is_told(folder: Path) -> None:
    publisher = DirectPublisher()
    publish(publisher, folder, 0)
    (folder / "_delta_log" / "00000000000000000001.json").write_text('{"commitI')
    with pytest.raises(PublishError):
        publish(publisher, folder, 1)


def test_checkpoints_are_written_and_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_checkpoint, "CHECKPOINT_EVERY", 4)
    monkeypatch.setattr(log_checkpoint, "CLEAN_EVERY", 2)
    publisher = DirectPublisher()
    for batch in range(10):
        publish(publisher, folder, batch)
    assert len(list((folder / "_delta_log").glob("*.checkpoint.parquet"))) in {2, 3}
    assert DirectPublisher().committed(str(folder), mark(9)) == CommittedMark(9, "source-9")
    assert values(folder) == list(range(10))


def test_cleaned_up_log_is_still_understood(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = DirectPublisher()
    for batch in range(6):
        publish(publisher, folder, batch)
    DeltaTable(str(folder)).create_checkpoint()
    for version in range(5):
        (folder / "_delta_log" / f"{version:020d}.json").unlink()
    for asked in (publisher, DirectPublisher()):
        assert asked.committed(str(folder), mark(5)) == CommittedMark(5, "source-5")
        assert asked.committed(str(folder), mark(2)) == CommittedMark(5, None)
    (folder / "_delta_log" / f"{5:020d}.json").unlink()
    assert publish(publisher, folder, 5).outcome is Outcome.SKIPPED
    assert publish(publisher, folder, 6).version == 6
    assert values(folder) == [0, 1, 2, 3, 4, 5, 6]


def test_old_knowledge_is_not_trusted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "TRUSTED_SECONDS", 0)
    loads: list[str] = []
    real = log.load

    def loading(store: Store, *, files: bool) -> Snapshot | None:
        loads.append(store.address)
        return real(store, files=files)

    monkeypatch.setattr(log, "load", loading)
    publisher = DirectPublisher()
    publish(publisher, folder, 0)
    assert loads == [str(folder)]
    publish(publisher, folder, 1)
    assert loads == [str(folder)] * 2
    assert values(folder) == [0, 1]


def test_file_names_are_written_as_addresses(folder: Path) -> None:
    names = ["a b.parquet", "50%25.parquet", "é#?.parquet", "sub folder/x=1+2&3.parquet"]
    files = [stage(folder, numbers(i), name=name) for i, name in enumerate(names)]
    DirectPublisher().publish(entry_of(folder, files, columns_like(numbers())), mark(0))
    table = DeltaTable(str(folder)).to_pyarrow_table()
    assert sorted(table["n"].to_pylist()) == [0, 1, 2, 3]


def test_statistics_are_passed_on_as_they_are(folder: Path) -> None:
    entry = batch_of(folder, 0, numbers(3, 1, None))
    DirectPublisher().publish(entry, mark(0))
    [add] = [a["add"] for a in actions(folder, 0) if "add" in a]
    assert add["stats"] == entry.files[0].stats
    [known] = pa.table(DeltaTable(str(folder)).get_add_actions(flatten=True)).to_pylist()
    assert (known["num_records"], known["min.n"], known["max.n"]) == (3, 1, 3)
    assert known["null_count.n"] == 1


@given(st.text(), st.text(min_size=1), st.sampled_from(["stream", "replay"]))
def test_pipeline_and_lane_are_found_in_the_mark(pipeline: str, life: str, lane: str) -> None:
    app = f"distributary/{pipeline}/{life.replace('/', '-')}/{lane}"
    assert (pipeline_of(app), lane_of(app)) == (pipeline, lane)


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("/lake/chess", "/lake/chess"),
        ("/lake/chess/", "/lake/chess"),
        ("lake/a:b", "lake/a:b"),
        ("file:///lake/a%20b", "/lake/a b"),
        ("file:/lake/chess", "/lake/chess"),
        ("s3://lake/chess", None),
        ("abfss://c@account/chess", None),
    ],
)
def test_which_paths_are_local(path: str, folder: str | None) -> None:
    assert local_folder(path) == folder


def test_file_address_and_path_are_one_table(folder: Path) -> None:
    publisher = DirectPublisher()
    entry = batch_of(folder, 0, numbers(1))
    publisher.publish(entry, mark(0))
    assert publisher.current_columns(folder.as_uri()) == TableColumns(columns_like(numbers()))


@pytest.mark.spark
@pytest.mark.sql
def test_spark_reads_what_we_wrote(folder: Path, spark: SparkSession) -> None:
    publisher = DirectPublisher()
    publish(publisher, folder, 0)
    wider = pa.table({"n": pa.array([2**40], pa.int64()), "x": ["new"]})
    columns = (Column("n", pa.int64(), "field n"), Column("x", pa.string(), "field x"))
    publisher.publish(batch_of(folder, 1, wider, columns), mark(1))
    assert read_with_spark(spark)(str(folder)) == [{"n": 0, "x": None}, {"n": 2**40, "x": "new"}]
    history = spark.sql(f"DESCRIBE HISTORY delta.`{folder}`").collect()
    assert [(r.version, r.operation, r.isBlindAppend) for r in history] == [
        (1, "WRITE", True),
        (0, "WRITE", True),
    ]
    spark.sql(f"INSERT INTO delta.`{folder}` VALUES (7, 'spark')")
    assert publish(publisher, folder, 2).version == 3
    assert len(read_with_spark(spark)(str(folder))) == 4


def test_old_tables_write_checkpoints_less_often_but_never_rarely() -> None:
    assert log_checkpoint.checkpoint_interval(0, 50) == 50
    for version in range(0, 50_000, 997):
        every = log_checkpoint.checkpoint_interval(version, 50)
        # a reader replays at most a twentieth of the log beyond its newest checkpoint
        assert every == 50 or every * 20 <= version
        assert every * 40 > version


@pytest.mark.spark
@pytest.mark.sql
@pytest.mark.slow
def test_spark_reads_our_checkpoints(folder: Path, spark: SparkSession) -> None:
    publisher = DirectPublisher()
    for batch in range(4):
        publish(publisher, folder, batch)
    seen = log.load(at(folder))
    assert seen is not None
    log_checkpoint.write_checkpoint(seen)
    for version in range(4):
        (folder / "_delta_log" / f"{version:020d}.json").unlink()
    publish(publisher, folder, 4)
    assert [row["n"] for row in read_with_spark(spark)(str(folder))] == list(range(5))
    # and Spark's own checkpoints keep what we say of our files
    spark.sql(f"ALTER TABLE delta.`{folder}` SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    spark.sql(f"INSERT INTO delta.`{folder}` SELECT n + 100 AS n FROM delta.`{folder}` LIMIT 1")
    newest = log_names(at(folder)).checkpoint
    assert newest > 4
    found = log.load(at(folder), version=newest)
    assert found is not None
    sums = [file.checksum for file in found.files.values()]
    assert (len(sums), sums.count(None)) == (6, 1)
