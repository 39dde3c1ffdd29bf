"""Rows that leave a file by a deletion vector: every reader sees the same table, come what may."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from distributary.changes import apply, merge_target, tombstones
from distributary.changes.apply import merge_table
from distributary.changes.rebuild import rebuild, verify
from distributary.changes.spark_target import needs_spark
from distributary.delta import commit as writing
from distributary.delta import log, vectors
from distributary.delta.compact import Sizes, compact, planned
from distributary.delta.log import Snapshot, load
from distributary.delta.log_checkpoint import write_checkpoint
from distributary.delta.removal.vacuum import Keepers, vacuum
from distributary.errors import PublishError
from distributary.store import base
from distributary.store.base import at, introduce
from tests.changes.logs import COLUMNS, Event, Row, Shop, crash, event, truth
from tests.services.shared import unique
from tests.source.s3_server import BUCKET, s3_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST = [event(1, "insert", id=n, region="EU", price=float(n)) for n in range(200)]
UPDATES = [event(2, "update", id=n, region="US", price=-1.0) for n in range(0, 200, 9)]
DELETES = [event(3, "delete", id=n) for n in range(4, 200, 21)]
AGAIN = [event(4, "update", id=n, region="XX", price=-2.0) for n in range(2, 200, 13)]


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So that two dozen rows are a large file."""
    monkeypatch.setattr(apply, "FILE_BYTES", 1500)
    monkeypatch.setattr(merge_target, "READ_WHOLE", 0)
    yield


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path, settings={"deletes_as": "vectors"})


def merged(shop: Shop, *batches: list[Event]) -> list[Row]:
    """The rows that the table should have then."""
    for batch in batches:
        merge_table(shop.order(batch))
    return truth(batches, COLUMNS)


def state_of(shop: Shop) -> Snapshot:
    found = load(at(shop.folder / "orders"))
    assert found is not None
    return found


def lost(shop: Shop) -> int:
    return sum(file.lost for file in state_of(shop).files.values())


def ids(rows: list[Row]) -> list[int]:
    return sorted(row["id"] for row in rows)


def our_ids(shop: Shop) -> list[int]:
    rows = state_of(shop).rows(pa.schema([("id", pa.int64())]))
    return sorted(rows.column("id").to_pylist())


def vector_files(shop: Shop) -> list[Path]:
    return sorted((shop.folder / "orders").glob("deletion_vector_*.bin"))


def old_process() -> None:
    """What a process that has seen nothing yet knows."""
    log._followed.clear()
    vectors._kept.clear()


def test_large_files_stay_and_all_readers_agree(shop: Shop) -> None:
    merge_table(shop.order(FIRST))
    assert state_of(shop).protocol["minReaderVersion"] == 1
    before = set(state_of(shop).files)
    merge_table(shop.order(UPDATES))
    assert before <= set(state_of(shop).files)
    assert lost(shop) == len(UPDATES)
    assert len(vector_files(shop)) == 1
    expected = truth([FIRST, UPDATES], COLUMNS)
    assert shop.rows() == expected
    assert our_ids(shop) == ids(expected)
    path = str(shop.folder / "orders")
    frame = pl.scan_delta(path)
    assert sorted(frame.select("id").collect()["id"].to_list()) == ids(expected)
    assert frame.filter(pl.col("region") == "EU").select(pl.len()).collect().item() == sum(
        row["region"] == "EU" for row in expected
    )
    counted = QueryBuilder().register("t", DeltaTable(path)).execute("select count(*) n from t")
    assert pa.table(counted).to_pylist() == [{"n": len(expected)}]


def test_a_table_with_vectors_is_merged_further_by_either_setting(shop: Shop) -> None:
    expected = merged(shop, FIRST, UPDATES, DELETES, AGAIN)
    assert lost(shop) > 0
    assert shop.rows() == expected
    assert not needs_spark(shop.order([]))
    more = [event(5, "update", id=n, region="YY") for n in range(0, 200, 7)]
    merge_table(shop.order(more, deletes_as="rewrite"))
    assert shop.rows() == truth([FIRST, UPDATES, DELETES, AGAIN, more], COLUMNS)


def test_a_file_that_lost_half_of_its_rows_is_written_again(shop: Shop) -> None:
    merge_table(shop.order(FIRST))
    most = [event(2, "update", id=n, region="US") for n in range(200) if n % 5]
    before = set(state_of(shop).files)
    merge_table(shop.order(most))
    assert not before & set(state_of(shop).files)
    assert lost(shop) == 0
    assert shop.rows() == truth([FIRST, most], COLUMNS)


def test_bounds_of_a_file_with_a_vector_are_not_said_to_be_exact(shop: Shop) -> None:
    merged(shop, FIRST, UPDATES, DELETES)
    told = [file for file in state_of(shop).files.values() if file.vector]
    assert told
    for file in told:
        assert file.statistics()["tightBounds"] is False
        assert file.statistics()["numRecords"] == file.written == (file.rows or 0) + file.lost


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"numRecords":3}', {"numRecords": 3, "tightBounds": False}),
        ('{"numRecords":3,"tightBounds":true}', {"numRecords": 3, "tightBounds": False}),
        (
            '{"numRecords":3,"maxValues":{"d":1.10,"tightBounds":true},"tightBounds":true}',
            {"numRecords": 3, "maxValues": {"d": 1.1, "tightBounds": True}, "tightBounds": False},
        ),
        (
            '{"tightBounds":true,"numRecords":3,"maxValues":{"a":1}}',
            {"numRecords": 3, "tightBounds": False},
        ),
        (
            '{"numRecords":3,"maxValues":{"d":12345678901234567890.12}}',
            {"numRecords": 3, "maxValues": {"d": 12345678901234567890.12}, "tightBounds": False},
        ),
    ],
)
def test_statistics_of_other_writers_keep_their_digits(text: str, expected: dict[str, Any]) -> None:
    wide = writing._wide(log.DataFile("a", "a", 1, stats=text))
    assert json.loads(wide) == expected
    assert "1.10" in wide or "1.10" not in text
    assert "12345678901234567890.12" in wide or "12345678901234567890.12" not in text


STEPS: list[tuple[Any, str]] = [
    (apply, "remember"),
    (tombstones, "rewrite_files"),
    (apply, "rewrite"),
    (apply, "write_vectors"),
    (apply, "write_rows"),
    (apply, "rewrite_files"),
    (writing, "commit"),
]


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"{step[0].__name__[19:]}.{step[1]}")
def test_a_crash_at_any_step_is_harmless(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, step: tuple[Any, str], late: bool
) -> None:
    merged(shop, FIRST, UPDATES)
    # updates and deletes: every step has something to do
    third = [*DELETES, *AGAIN]
    order = shop.order(third)
    crash(monkeypatch, step, order, late=late)
    old_process()
    merge_table(order)
    expected = truth([FIRST, UPDATES, third], COLUMNS)
    assert shop.rows() == expected
    assert our_ids(shop) == ids(expected)
    assert merge_table(order).skipped
    # what the crash has left is nobody's
    for path in vector_files(shop):
        os.utime(path, (0, 0))
    vacuum(at(shop.folder / "orders"), lambda state: timedelta(0), Keepers())
    live = {file.vector.path for file in state_of(shop).files.values() if file.vector}
    assert {path.name for path in vector_files(shop)} == live
    assert shop.rows() == expected


def test_a_checkpoint_keeps_vectors_and_forgets_none_of_before(shop: Shop) -> None:
    expected = merged(shop, FIRST, UPDATES)
    write_checkpoint(state_of(shop))
    merge_table(shop.order(DELETES))
    merge_table(shop.order(AGAIN))
    expected = truth([FIRST, UPDATES, DELETES, AGAIN], COLUMNS)
    write_checkpoint(state_of(shop), vacuum=True)
    folder = shop.folder / "orders"
    for commit in sorted((folder / "_delta_log").glob("*.json"))[:-1]:
        commit.unlink()
    old_process()
    state = state_of(shop)
    assert state.checkpoint == state.version
    assert our_ids(shop) == ids(expected)
    assert shop.rows() == expected
    # vectors that others took the place of are still there for readers of before, and known
    replaced = {path.name for path in vector_files(shop)} & set(state.removed)
    assert replaced
    assert len(vector_files(shop)) > len({f.vector.path for f in state.files.values() if f.vector})
    vacuum(at(folder), lambda state: timedelta(0), Keepers())
    live = {file.vector.path for file in state.files.values() if file.vector}
    assert {path.name for path in vector_files(shop)} == live
    assert shop.rows() == expected


def test_old_vectors_go_with_a_checkpoint_and_shared_files_stay(shop: Shop) -> None:
    merged(shop, FIRST, UPDATES, DELETES)
    state = state_of(shop)
    shared = [file.vector.path for file in state.files.values() if file.vector]
    assert len(shared) > len(set(shared))
    at_once = {"delta.deletedFileRetentionDuration": "interval 0 seconds"}
    writing.commit(state.store, state, writing.Change("SET", properties=at_once))
    write_checkpoint(state_of(shop), vacuum=True)
    assert {path.name for path in vector_files(shop)} == set(shared)
    assert shop.rows() == truth([FIRST, UPDATES, DELETES], COLUMNS)


def test_maintenance_writes_hollow_files_again(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [FIRST, [event(2, "delete", id=n) for n in range(200) if n % 5 < 2]]
    expected = merged(shop, *batches)
    assert lost(shop) == 80
    sizes = Sizes(1, 2)
    plan = planned(state_of(shop), sizes)
    assert plan is not None and plan.rows == 120
    _, done = compact(state_of(shop), sizes)
    assert done is not None and done.rows == 120
    assert lost(shop) == 0
    assert planned(state_of(shop), sizes) is None
    assert shop.rows() == expected


def test_a_compaction_leaves_a_file_alone_of_which_more_rows_went_meanwhile(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [FIRST, [event(2, "delete", id=n) for n in range(200) if n % 5 < 2]]
    merged(shop, *batches)
    before = state_of(shop)
    merge_table(shop.order([event(3, "delete", id=2)]))
    _, done = compact(before, Sizes(1, 2))
    assert done is not None and done.left
    expected = truth([*batches, [event(3, "delete", id=2)]], COLUMNS)
    assert our_ids(shop) == ids(expected)


def test_small_files_with_vectors_are_put_together(shop: Shop) -> None:
    expected = merged(shop, FIRST, UPDATES, DELETES, AGAIN)
    _, done = compact(state_of(shop), Sizes(2**20, 2))
    assert done is not None and done.files_after < done.files_before
    assert shop.rows() == expected


def test_a_table_is_rebuilt_and_verified(shop: Shop) -> None:
    expected = merged(shop, FIRST, UPDATES, DELETES)
    log_path = shop.publish_log()
    order = shop.order([])
    found = verify(log_path, order)
    assert found.agrees and found.found == len(expected)
    rebuild(log_path, order)
    assert lost(shop) == 0
    assert shop.rows() == expected


def test_rows_are_counted_without_those_that_are_gone(shop: Shop) -> None:
    expected = merged(shop, FIRST, UPDATES, DELETES)
    state = state_of(shop)
    assert state.count == len(expected)
    vectors = {file.vector.path for file in state.files.values() if file.vector}
    assert {p.name for p in vector_files(shop)} >= vectors > set()


def test_a_vector_that_is_broken_or_gone_stops_the_merge(shop: Shop) -> None:
    merged(shop, FIRST, UPDATES)
    (path,) = vector_files(shop)
    whole = path.read_bytes()
    version = state_of(shop).version
    for data in (whole[:-1] + b"\0", whole[: len(whole) // 2], b"", None):
        path.unlink() if data is None else path.write_bytes(data)
        old_process()
        with pytest.raises(PublishError):
            merge_table(shop.order(DELETES))
        assert state_of(shop).version == version
    path.write_bytes(whole)
    merge_table(shop.order(DELETES))
    assert shop.rows() == truth([FIRST, UPDATES, DELETES], COLUMNS)


def test_a_log_with_vectors_is_not_replayed(shop: Shop) -> None:
    """Its files are read by themselves, which would bring rows back that somebody deleted."""
    merged(shop, FIRST, UPDATES)
    state = state_of(shop)
    with pytest.raises(PublishError):
        state.refuse_unreadable("orders")
    with pytest.raises(PublishError):
        state.addresses()


def test_many_batches_of_any_kind(shop: Shop) -> None:
    generator = random.Random(7)
    batches = [FIRST]
    for number in range(2, 14):
        chosen = generator.sample(range(220), 25)
        kinds = generator.choices(["update", "delete", "insert"], k=25)
        batches.append(
            [
                event(number, op, id=n, price=float(number))
                for n, op in zip(chosen, kinds, strict=True)
            ]
        )
    expected = merged(shop, *batches)
    assert shop.rows() == expected
    other = Shop(shop.folder / "other")
    assert merged(other, *batches) == expected == other.rows()
    assert not list((other.folder / "orders").glob("*.bin"))


def test_the_same_in_a_bucket(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_OPTIONS", {})
    with s3_server() as server:
        introduce(f"s3://{BUCKET}", server.options)
        path = f"s3://{BUCKET}/{unique('orders')}"
        places = {"path": path, "tombstones": f"{path}_tombstones"}
        batches = [FIRST, UPDATES, DELETES, AGAIN]
        for batch in batches:
            merge_table(replace(shop.order(batch), **places))
        state = load(at(path))
        assert state is not None
        assert any(file.vector for file in state.files.values())
        write_checkpoint(state, vacuum=True)
        old_process()
        again = load(at(path))
        assert again is not None and again.checkpoint == again.version
        table = DeltaTable(path, storage_options=server.options)
        found = sorted(pa.table(table.scan(columns=["id"])).column("id").to_pylist())
        rows = again.rows(pa.schema([("id", pa.int64())]))
        assert found == sorted(rows.column("id").to_pylist()) == ids(truth(batches, COLUMNS))
        vacuum(at(path), lambda state: timedelta(0), Keepers())
        live = {file.vector.path for file in again.files.values() if file.vector}
        assert {f.name for f in at(path).files() if f.name.endswith(".bin")} == live


@pytest.mark.spark
@pytest.mark.sql
@pytest.mark.slow
def test_spark_reads_ours_and_we_read_what_spark_deletes(shop: Shop, spark: SparkSession) -> None:
    expected = merged(shop, FIRST, UPDATES, DELETES)
    path = f"{shop.folder}/orders"
    frame = spark.read.format("delta").load(path)
    assert sorted(row.id for row in frame.select("id").collect()) == ids(expected)
    assert frame.count() == len(expected)
    assert frame.agg({"id": "min"}).first()[0] == min(ids(expected))
    write_checkpoint(state_of(shop))
    # vectors of its own, with more of them than one container of a bitmap
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id % 10 = 3")
    left = [row for row in expected if row["id"] % 10 != 3]
    assert our_ids(shop) == ids(left)
    assert lost(shop) > len(UPDATES)
    merge_table(shop.order(AGAIN))
    # rows that Spark has deleted come back by a newer event, those of the source do not
    again = truth([FIRST, UPDATES, DELETES, AGAIN], COLUMNS)
    both = {row["id"] for row in again if row["id"] % 10 != 3 or row["region"] == "XX"}
    assert our_ids(shop) == sorted(both)
    spark.sql(f"OPTIMIZE delta.`{path}`")
    after = spark.read.format("delta").load(path).select("id").collect()
    assert sorted(row.id for row in after) == sorted(both)
    # a checkpoint of Spark's, and one of ours on top of it
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id % 10 = 7")
    assert load(at(path)).checkpoint >= 0  # type: ignore[union-attr]
    old_process()
    left_ids = sorted(n for n in both if n % 10 != 7)
    assert our_ids(shop) == left_ids
    merge_table(shop.order([event(9, "insert", id=1000)]))
    write_checkpoint(state_of(shop))
    old_process()
    assert our_ids(shop) == [*left_ids, 1000]
    assert spark.read.format("delta").load(path).count() == len(left_ids) + 1
