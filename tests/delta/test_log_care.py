"""Checkpoints and old commits: what is kept can be read, by everybody."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from distributary.delta.commit import mend_lost_commit
from distributary.delta.log import Snapshot, follow, load
from distributary.delta.log_checkpoint import care_for_log
from distributary.delta.log_reading import BrokenLogError, log_names
from distributary.publish.base import CommittedMark
from distributary.publish.direct import DirectPublisher
from distributary.store.base import at
from tests.publish.conftest import read_with_spark
from tests.publish.staged import batch_of, mark, numbers, read_everywhere

DAY = timedelta(days=1).total_seconds()


def publish(folder: Path, batches: range, publisher: DirectPublisher | None = None) -> None:
    known = publisher or DirectPublisher()
    for batch in batches:
        known.publish(batch_of(folder, batch, numbers(batch)), mark(batch))


def state_of(folder: Path) -> Snapshot:
    found = load(at(folder))
    assert found is not None
    return found


def age(folder: Path, days: float, *, below: int = 10**9) -> None:
    for path in (folder / "_delta_log").iterdir():
        if path.name[0] != "_" and int(path.name[:20]) < below:
            os.utime(path, (time.time() - days * DAY,) * 2)


def commits(folder: Path) -> list[int]:
    names = log_names(at(folder))
    return list(names.commits)


def test_checkpoint_is_written_when_it_is_due(folder: Path) -> None:
    publish(folder, range(6))
    assert care_for_log(state_of(folder), every=7).checkpoint is None
    assert care_for_log(state_of(folder), every=6, dry_run=True).checkpoint == 5
    assert state_of(folder).checkpoint == -1
    assert care_for_log(state_of(folder), every=6).checkpoint == 5
    assert state_of(folder).checkpoint == 5
    assert care_for_log(state_of(folder), every=6).checkpoint is None


def test_table_reads_the_same_from_its_checkpoint(folder: Path) -> None:
    publish(folder, range(6))
    rows, files = read_everywhere(str(folder)), state_of(folder).files
    care_for_log(state_of(folder), every=1)
    for version in range(5):
        (folder / "_delta_log" / f"{version:020d}.json").unlink()
    assert read_everywhere(str(folder)) == rows
    assert state_of(folder).files == files
    assert DirectPublisher().committed(str(folder), mark(5)) == CommittedMark(5, "source-5")


def test_expired_commits_go_and_the_pipeline_goes_on(folder: Path) -> None:
    publisher = DirectPublisher()
    publish(folder, range(6), publisher)
    care_for_log(state_of(folder), every=1)
    publish(folder, range(6, 8), publisher)
    age(folder, 40, below=7)
    assert care_for_log(state_of(folder), every=100, dry_run=True).removed == 5
    assert care_for_log(state_of(folder), every=100).removed == 5
    assert commits(folder) == [5, 6, 7]
    for known in (publisher, DirectPublisher()):
        # the mark is known, the commit that carried it is not
        assert known.committed(str(folder), mark(2)) == CommittedMark(7, None)
        assert known.committed(str(folder), mark(6)) == CommittedMark(7, "source-6")
    publish(folder, range(8, 9), publisher)
    assert [row["n"] for row in read_everywhere(str(folder))] == list(range(9))


def test_every_version_within_the_retention_can_be_read(folder: Path) -> None:
    publish(folder, range(4))
    care_for_log(state_of(folder), every=1)
    publish(folder, range(4, 8))
    care_for_log(state_of(folder), every=1)
    age(folder, 40, below=6)
    care_for_log(state_of(folder), every=100)
    assert commits(folder) == [3, 4, 5, 6, 7]
    assert DeltaTable(folder, version=6).to_pyarrow_table().num_rows == 7


def test_commits_that_a_reader_needs_stay(folder: Path) -> None:
    publish(folder, range(4))
    care_for_log(state_of(folder), every=1)
    publish(folder, range(4, 8))
    care_for_log(state_of(folder), every=1)
    age(folder, 40)
    assert care_for_log(state_of(folder), every=100, keep_from=2).removed == 0
    assert care_for_log(state_of(folder), every=100, keep_from=5).removed == 3
    assert care_for_log(state_of(folder), every=100).removed == 5
    assert commits(folder) == [7]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("delta.enableExpiredLogCleanup", "false"),
        ("delta.logRetentionDuration", "interval 50 days"),
    ],
)
def test_what_the_table_says_goes_first(folder: Path, name: str, value: str) -> None:
    publish(folder, range(4))
    DeltaTable(folder).alter.set_table_properties({name: value}, raise_if_not_exists=False)
    care_for_log(state_of(folder), every=1)
    age(folder, 40)
    assert care_for_log(state_of(folder), every=100).removed == 0


def test_young_commits_stay_whatever_the_table_says(folder: Path) -> None:
    publish(folder, range(4))
    about = {"delta.logRetentionDuration": "interval 0 seconds"}
    DeltaTable(folder).alter.set_table_properties(about)
    assert care_for_log(state_of(folder), every=1).removed == 0


def test_interval_of_the_table_goes_first(folder: Path) -> None:
    publish(folder, range(4))
    DeltaTable(folder).alter.set_table_properties({"delta.checkpointInterval": "3"})
    assert care_for_log(state_of(folder), every=100).checkpoint == 4


def test_broken_log_is_told(folder: Path) -> None:
    publish(folder, range(4))
    (folder / "_delta_log" / f"{1:020d}.json").unlink()
    with pytest.raises(BrokenLogError):
        load(at(folder))
    assert load(at(folder / "nothing")) is None


@pytest.mark.parametrize("version", [1, 2])
def test_an_emptied_commit_inside_a_log_is_a_broken_log(folder: Path, version: int) -> None:
    publish(folder, range(4))
    seen = load(at(folder), version=version - 1)
    (folder / "_delta_log" / f"{version:020d}.json").write_bytes(b"")
    with pytest.raises(BrokenLogError):
        load(at(folder))
    assert seen is not None
    with pytest.raises(BrokenLogError):
        follow(seen)


def test_a_log_that_ends_with_an_emptied_commit_is_mended_for_what_comes_next(
    folder: Path,
) -> None:
    publish(folder, range(4))
    before = load(at(folder), version=2)
    (folder / "_delta_log" / f"{3:020d}.json").write_bytes(b"")
    found = load(at(folder))
    assert before is not None
    assert found is not None
    assert (found.version, found.files) == (3, before.files)
    mend_lost_commit(at(folder))
    publish(folder, range(4, 6))
    after = load(at(folder))
    assert after is not None
    assert after.files.keys() > before.files.keys()


@pytest.mark.spark
@pytest.mark.parametrize("kind", [pytest.param("json", marks=pytest.mark.slow), "parquet"])
@pytest.mark.sql
def test_a_checkpoint_of_the_second_kind_is_read_and_followed_by_one_of_the_first(
    folder: Path, spark: SparkSession, kind: str
) -> None:
    """What the table consists of is in files beside the checkpoint, and older commits are gone."""
    form = "spark.databricks.delta.checkpointV2.topLevelFileFormat"
    publish(folder, range(4))
    spark.conf.set(form, kind)
    try:
        spark.sql(
            f"ALTER TABLE delta.`{folder}` SET TBLPROPERTIES "
            "('delta.checkpointPolicy' = 'v2', 'delta.checkpointInterval' = '1')"
        )
        spark.range(4, 5).selectExpr("int(id) n").write.format("delta").mode("append").save(
            str(folder)
        )
    finally:
        spark.conf.unset(form)
    newest = state_of(folder).checkpoint
    (held,) = log_names(at(folder)).checkpoints[newest]
    assert held.name.endswith(f".{kind}")
    assert any((folder / "_delta_log" / "_sidecars").iterdir())
    for version in commits(folder)[:newest]:
        (folder / "_delta_log" / f"{version:020d}.json").unlink()
    columns = pa.schema([("n", pa.int32())])
    assert sorted(state_of(folder).rows(columns)["n"].to_pylist()) == [0, 1, 2, 3, 4]
    # its marks are in the checkpoint too: batches 2 and 3 were there
    publish(folder, range(2, 6))
    found = state_of(folder)
    assert found.checkpoint == found.version
    (folder / held.name).unlink()
    for version in commits(folder)[:-1]:
        (folder / "_delta_log" / f"{version:020d}.json").unlink()
    rows = [{"n": n} for n in (0, 1, 2, 3, 4, 4, 5)]
    assert read_with_spark(spark)(str(folder)) == rows
    assert sorted(state_of(folder).rows(columns)["n"].to_pylist()) == [row["n"] for row in rows]
