"""Crashes, races, memory that ends, files that are put together: merging in one process."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.changes import apply, history, merge_target, tombstones
from distributary.changes.apply import compaction, merge_table
from distributary.changes.events import log_events as reading
from distributary.changes.history import merge_history
from distributary.changes.merge_order import MergeOrder, MergeResult
from distributary.changes.rebuild import rebuild, verify
from distributary.changes.spark_target import needs_spark
from distributary.delta import commit as writing
from distributary.delta import log, log_checkpoint, parquet
from distributary.delta.commit import rewrite_files
from distributary.delta.compact import Sizes, compact
from distributary.delta.log import DataFile, Snapshot, snapshot_of
from distributary.errors import ErrorCode, LakeUnavailableError, PublishError, StagedFileError
from distributary.model.table import Column
from distributary.store.base import at as store_at
from tests.changes.logs import (
    COLUMNS,
    DAY,
    LIFE,
    NOW,
    Crash,
    Event,
    Shop,
    at,
    crash,
    event,
    plain,
    truth,
)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


FIRST = [
    *(event(1, "insert", id=n, region="EU", price=float(n)) for n in range(6)),
    event(6, "insert", id=10),
]
SECOND = [
    event(5, "truncate"),
    event(6, "insert", id=1, region="US"),
    event(7, "delete", id=1),
    event(7, "delete", id=10),
    event(8, "insert", id=2),
    Event((1, 9, 0, 0, 0, 1, ""), values={"id": 2}, unchanged=("region",)),
]

STEPS: list[tuple[Any, str]] = [
    (apply, "read_in_turn"),
    (apply, "plan"),
    (apply, "remember"),
    (tombstones, "write_rows"),
    (tombstones, "rewrite_files"),
    (apply, "rewrite"),
    (apply, "write_rows"),
    (apply, "rewrite_files"),
    (writing, "commit"),
]


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"{step[0].__name__[19:]}.{step[1]}")
def test_a_crash_at_any_step_is_harmless(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, step: tuple[Any, str], late: bool
) -> None:
    merge_table(shop.order(FIRST))
    order = shop.order(SECOND)
    crash(monkeypatch, step, order, late=late)
    for _ in range(2):
        merge_table(order)
        assert shop.rows() == truth([FIRST, SECOND], COLUMNS)
    # what was removed stays so, whenever the crash was
    merge_table(shop.order([event(4, "insert", id=9), event(6, "insert", id=1)]))
    assert shop.rows() == truth([FIRST, SECOND], COLUMNS)
    assert len(shop.tombstones()) == 3


def test_two_writers_take_turns(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    merge_table(shop.order([event(0, "insert", id=0)]))
    batches = [[event(n, "insert", id=n), event(n, id=0)] for n in range(1, 9)]
    orders = [replace(shop.order(b), app_id=f"distributary/p{b[0].place[1]}/l/s") for b in batches]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(merge_table, orders))
    assert plain(shop.rows(), "id") == [(n,) for n in range(9)]
    assert shop.rows()[-1]["_seq"][1] == 8


def test_an_answer_that_was_lost(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    order = shop.order(FIRST)

    real = writing.commit

    def lost(*told: Any) -> None:
        real(*told)
        raise OSError("connection reset")

    with monkeypatch.context() as patch:
        patch.setattr(writing, "commit", lost)
        with pytest.raises(LakeUnavailableError):
            merge_table(order)
    assert merge_table(order).skipped
    assert shop.rows() == truth([FIRST], COLUMNS)


def test_memory_ends_with_the_horizon(shop: Shop) -> None:
    merge_table(shop.order([event(5, "delete", id=1), event(5, "truncate")], horizon=3600))
    later = [event(1, "insert", id=1)]
    merge_table(shop.order(later, horizon=3600, now_us=NOW + 3600 * 1_000_000))
    assert shop.rows() == []
    merge_table(shop.order(later, horizon=3600, now_us=NOW + 3601 * 1_000_000))
    assert plain(shop.rows(), "id") == [(1,)]


def test_tombstones_are_put_together_without_the_forgotten(shop: Shop) -> None:
    merge_table(shop.order([event(1, "insert", id=0)]))
    for day in range(12):
        order = shop.order(
            [event(10 + day, "delete", id=day), event(10 + day, "delete", id=99)],
            now_us=NOW + day * DAY,
            horizon=5 * 24 * 3600,
        )
        merge_table(order)
    found = {row["key"] for row in shop.tombstones()}
    assert '{"id":0}' not in found
    assert {'{"id":99}', '{"id":11}', '{"id":7}'} <= found
    assert len(DeltaTable(order.tombstones).file_uris()) <= 3


def test_a_key_that_is_defined_anew(shop: Shop) -> None:
    """By `id` first, then by `id` and `region`: rows go on under the new key."""
    both = ("id", "region")
    first = [event(1, "insert", id=1, region="FR"), event(2, id=1, region="US", price=2.0)]
    merge_table(shop.order(first))
    second = [
        at(event(10, "insert", id=1, region="EU", price=10.0), key=both),
        at(event(11, "update", id=1, region="US", price=11.0), key=both),
        event(3, "insert", id=2, region="IT"),
    ]
    merge_table(shop.order(second))
    expected = [(1, "EU", 10.0), (1, "US", 11.0), (2, "IT", None)]
    assert plain(shop.rows(), "id", "region", "price") == expected
    # under the old key there was one row 1, and it had gone on from FR to US
    merge_table(shop.order([event(1, "insert", id=1, region="FR")]))
    assert plain(shop.rows(), "id", "region", "price") == expected
    # a row of the old time that nobody overtook is still a row
    merge_table(shop.order([event(4, "insert", id=3, region="EU")]))
    assert plain(shop.rows(), "id", "region") == [(1, "EU"), (1, "US"), (2, "IT"), (3, "EU")]


def test_several_files_are_read_and_only_what_changes_is_written(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply, "MOST_SMALL_FILES", 2**40)
    monkeypatch.setattr(merge_target, "READ_WHOLE", 0)
    batches = [[event(n, "insert", id=10 * n + k) for k in range(5)] for n in range(5)]
    for batch in batches:
        merge_table(shop.order(batch))
    before = set(DeltaTable(shop.folder / "orders").file_uris())
    assert len(before) == 5
    changes = [
        event(9, "update", id=21, region="new"),
        event(9, "delete", id=31),
        Event((1, 9, 0, 0, 0, 1, ""), values={"id": 32, "price": 1.0}, unchanged=("region",)),
        event(9, "insert", id=99),
    ]
    batches.append(changes)
    merge_table(shop.order(changes))
    after = set(DeltaTable(shop.folder / "orders").file_uris())
    assert len(before & after) == 3
    assert shop.rows() == truth(batches, COLUMNS)
    monkeypatch.setattr(apply, "MOST_SMALL_FILES", 4)
    batches.append([event(10, "insert", id=100)])
    merge_table(shop.order(batches[-1]))
    assert len(DeltaTable(shop.folder / "orders").file_uris()) == 1
    assert shop.rows() == truth(batches, COLUMNS)


def test_large_outputs_are_cut(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply, "FILE_BYTES", 2000)
    batch = [event(1, "insert", id=n, region="x" * 50) for n in range(200)]
    merge_table(shop.order(batch))
    assert len(DeltaTable(shop.folder / "orders").file_uris()) > 3
    assert shop.rows() == truth([batch], COLUMNS)


def test_huge_keys(shop: Shop) -> None:
    shop.columns = (Column("id", pa.string()), Column("price", pa.float64()))
    one, other = "x" * 3_000_000 + "1", "x" * 3_000_000 + "2"
    merge_table(shop.order([event(1, "insert", id=one), event(1, "insert", id=other)]))
    merge_table(shop.order([event(2, "delete", id=one), event(2, id=other, price=2.0)]))
    merge_table(shop.order([event(1, "insert", id=one)]))
    assert [(row["id"] == other, row["price"]) for row in shop.rows()] == [(True, 2.0)]


def test_a_key_that_holds_a_map(shop: Shop) -> None:
    shop.columns = (Column("id", pa.map_(pa.string(), pa.int64())), Column("price", pa.float64()))
    merge_table(shop.order([event(1, "insert", id=[("a", 1)]), event(1, "insert", id=[("a", 2)])]))
    merge_table(shop.order([event(2, "delete", id=[("a", 1)])]))
    assert plain(shop.rows(), "id") == [([("a", 2)],)]


def test_nothing_new_is_no_commit(shop: Shop) -> None:
    merge_table(shop.order(FIRST))
    version = shop.version()
    assert merge_table(shop.order(FIRST)).version == version
    assert merge_table(shop.order([])).version == version
    assert shop.version() == version


def test_no_key_no_table(shop: Shop) -> None:
    events = [at(event(1, "insert", id=1), key=key) for key in ((), None, ("nowhere",))]
    assert merge_table(shop.order(events)).version == -1
    assert not (shop.folder / "orders").exists()


def test_times_without_a_zone_are_a_feature_of_the_table(shop: Shop) -> None:
    merge_table(shop.order([event(1, "insert", id=1)]))
    shop.columns = (*COLUMNS, Column("at", pa.timestamp("us")))
    merge_table(shop.order([event(2, "update", id=1, at=5), event(2, "insert", id=2, at=None)]))
    merge_table(shop.order([event(3, "update", id=2, at=7)]))
    protocol = DeltaTable(shop.folder / "orders").protocol()
    assert "timestampNtz" in (protocol.writer_features or ())
    assert [row["at"].microsecond for row in shop.rows()] == [5, 7]


@pytest.mark.parametrize(
    "options",
    [
        {"partition_by": ["region"]},
        {"configuration": {"delta.enableChangeDataFeed": "true"}},
        {"configuration": {"delta.appendOnly": "true"}},
    ],
    ids=["partitions", "feature", "append-only"],
)
def test_tables_for_other_writers_are_refused(shop: Shop, options: dict[str, Any]) -> None:
    rows = pa.table({"id": pa.array([1]), "region": pa.array(["EU"])})
    write_deltalake(shop.folder / "orders", rows, **options)
    order = shop.order([event(1, "insert", id=1)])
    assert needs_spark(order)
    with pytest.raises(PublishError) as caught:
        merge_table(order)
    assert caught.value.code == ErrorCode.COMMIT_FAILED
    assert caught.value.context["reason"] == "features"


def test_a_table_that_somebody_else_made_is_taken_on(shop: Shop) -> None:
    rows = pa.table({"id": pa.array([1, 2]), "region": pa.array(["old", "old"])})
    write_deltalake(shop.folder / "orders", rows)
    merge_table(shop.order([event(1, "update", id=1, region="new")]))
    found = {
        row["id"]: row["region"]
        for row in DeltaTable(shop.folder / "orders").to_pyarrow_table().to_pylist()
    }
    assert found == {1: "new", 2: "old"}


def test_a_table_made_again_behind_us(shop: Shop) -> None:
    merge_table(shop.order([event(5, "insert", id=1)]))
    shutil.rmtree(shop.folder / "orders")
    merge_table(shop.order([event(1, "insert", id=2)]))
    assert plain(shop.rows(), "id") == [(2,)]
    write_deltalake(
        shop.folder / "orders", pa.table({"id": pa.array([7])}), mode="append", schema_mode="merge"
    )
    merge_table(shop.order([event(2, "insert", id=3)]))
    found = DeltaTable(shop.folder / "orders").to_pyarrow_table().column("id").to_pylist()
    assert sorted(found) == [2, 3, 7]


def test_many_commits_are_followed_over_checkpoints(shop: Shop) -> None:
    for number in range(2 * log_checkpoint.OFTEN + 5):
        merge_table(shop.order([event(number, "insert", id=number % 7, price=float(number))]))
    assert list((shop.folder / "orders/_delta_log").glob("*.checkpoint.parquet"))
    assert len(shop.rows()) == 7
    # a process that has seen nothing of it
    log._followed.clear()
    merge_table(shop.order([event(999, "delete", id=0)]))
    assert len(shop.rows()) == 6


def test_values_that_do_not_fit_are_refused(shop: Shop) -> None:
    shop.columns = (Column("id", pa.int32()),)
    merge_table(shop.order([event(1, "insert", id=1)]))
    shop.columns = (Column("id", pa.int64()),)
    with pytest.raises(PublishError) as caught:
        merge_table(shop.order([event(2, "insert", id=2**40)], evolution="none"))
    assert caught.value.context["reason"] == "columns"
    assert plain(shop.rows(), "id") == [(1,)]


def test_from_soft_to_hard_and_back(shop: Shop) -> None:
    batch = [event(1, "insert", id=1), event(1, "insert", id=2)]
    merge_table(shop.order([*batch, event(2, "delete", id=2)], deletes="soft"))
    merge_table(shop.order([event(3, "insert", id=3)], evolution="overwriteSchema"))
    assert plain(shop.rows(), "id") == [(1,), (3,)]
    merge_table(shop.order([event(4, "delete", id=1)], deletes="soft"))
    assert plain(shop.rows(), "id", "_deleted") == [(1, True), (3, None)]


def test_orders_travel(shop: Shop) -> None:
    order = shop.order(FIRST)
    assert pickle.loads(pickle.dumps(order)) == order
    result = merge_table(pickle.loads(pickle.dumps(order)))
    assert pickle.loads(pickle.dumps(result)) == result


def test_a_file_that_is_gone(shop: Shop) -> None:
    order = shop.order(FIRST)
    Path(order.files[0]).unlink()
    with pytest.raises(LakeUnavailableError):
        merge_table(order)


@pytest.mark.parametrize("damage", ["gone", "cut short"])
@pytest.mark.parametrize(("place", "merge"), [(apply, merge_table), (history, merge_history)])
def test_a_file_that_somebody_removes_before_the_commit_is_never_committed(
    shop: Shop,
    monkeypatch: pytest.MonkeyPatch,
    damage: str,
    place: Any,
    merge: Callable[[MergeOrder], MergeResult],
) -> None:
    first, second = shop.order(FIRST), shop.order(SECOND)
    merge(first)
    table = Path(first.path)
    before = DeltaTable(table)

    def vacuumed(folder: str, known: Any, change: Any) -> Snapshot:
        lost = Path(folder) / change.added[0].path
        lost.unlink() if damage == "gone" else lost.write_bytes(lost.read_bytes()[:-1])
        return rewrite_files(folder, known, change)

    with monkeypatch.context() as patch:
        patch.setattr(place, "rewrite_files", vacuumed)
        with pytest.raises(StagedFileError) as caught:
            merge(second)
    assert caught.value.retryable
    # nothing is committed, and what was written for it is not left
    assert DeltaTable(table).version() == before.version()
    assert {p.name for p in table.glob("*.parquet")} == {Path(u).name for u in before.file_uris()}
    merge(second)
    left = [uri for uri in DeltaTable(table).file_uris() if not Path(uri).exists()]
    assert left == []


def test_events_that_memory_should_not_hold_at_once_are_merged_in_turn(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "EVENT_BYTES", 1)
    merge_table(shop.order(FIRST))
    order = shop.order(SECOND, files=3)
    real = apply.MergeTarget
    tried = iter(range(9))

    def dying(*told: Any) -> apply.MergeTarget:
        # with the first part committed
        if next(tried) == 1:
            raise Crash
        return real(*told)

    before = shop.version()
    with monkeypatch.context() as patch:
        patch.setattr(apply, "MergeTarget", dying)
        with pytest.raises(Crash):
            merge_table(order)
    assert shop.version() > before
    # the batch counts as merged with its last part, and not before
    assert DeltaTable(shop.folder / "orders").transaction_version(LIFE) == order.batch - 1
    assert not merge_table(order).skipped
    assert DeltaTable(shop.folder / "orders").transaction_version(LIFE) == order.batch
    assert shop.rows() == truth([FIRST, SECOND], COLUMNS)
    assert merge_table(order).skipped


def test_files_that_cannot_hold_a_key_are_not_opened(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply, "MOST_SMALL_FILES", 2**40)
    batches = [[event(n, "insert", id=10 * n + k) for k in range(5)] for n in range(6)]
    for batch in batches:
        merge_table(shop.order(batch))
    tables = {Path(uri).name for uri in DeltaTable(shop.folder / "orders").file_uris()}
    opened: list[str] = []
    real = Snapshot.read

    def read(self: Snapshot, file: DataFile, *told: Any, **options: Any) -> pa.Table:
        opened.extend([file.path] if file.path in tables else [])
        return real(self, file, *told, **options)

    monkeypatch.setattr(Snapshot, "read", read)
    changes = [event(9, id=31), event(9, "delete", id=33), event(9, "insert", id=99)]
    merge_table(shop.order(changes))
    assert len(set(opened)) == 1
    assert shop.rows() == truth([*batches, changes], COLUMNS)


def test_files_go_on_holding_stretches_of_keys(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inserts in any order, then changes all over the table, and what maintenance does between."""
    monkeypatch.setattr(apply, "FILE_BYTES", 8000)
    ids = [(37 * n) % 1000 for n in range(1000)]
    batches = [[event(1, "insert", id=id_, region="x" * 20) for id_ in ids]]
    batches += [[event(n, id=id_) for id_ in ids[n :: 40 + n]] for n in range(2, 8)]
    batches.append([event(9, "insert", id=id_) for id_ in range(1000, 1100)])
    for batch in batches:
        merge_table(shop.order(batch))
        state = snapshot_of(str(shop.folder / "orders"))
        assert state is not None
        compact(state, compaction(state, Sizes(2**30, 2)))
    state = snapshot_of(str(shop.folder / "orders"))
    assert state is not None
    bounds = sorted(file.bounds("id") for file in state.files.values())
    assert len(bounds) > 5
    assert all(before[1] < after[0] for before, after in pairwise(bounds))
    assert shop.rows() == truth(batches, COLUMNS)


def test_a_file_that_alone_is_written_again_becomes_two_and_no_more(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [[event(1, "insert", id=n, region="x" * 20) for n in range(400)]]
    merge_table(shop.order(batches[0]))
    monkeypatch.setattr(pa, "cpu_count", lambda: 2)
    (file,) = (shop.folder / "orders").glob("*.parquet")
    monkeypatch.setattr(apply, "FILE_BYTES", pq.read_table(file).nbytes * 3 // 4)
    files = []
    for number in range(2, 6):
        batches.append([event(number, id=n) for n in range(200, 400, 3)])
        merge_table(shop.order(batches[-1]))
        state = snapshot_of(str(shop.folder / "orders"))
        assert state is not None
        files.append(sorted(file.bounds("id") for file in state.files.values()))
    assert [len(each) for each in files] == [2, 2, 2, 2]
    assert files[0][0][1] < files[0][1][0]
    assert shop.rows() == truth(batches, COLUMNS)


def test_a_file_that_is_larger_than_memory_is_merged_in_pieces(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [[event(1, "insert", id=n, region=f"r{n}") for n in range(500)]]
    merge_table(shop.order(batches[0]))
    monkeypatch.setattr(merge_target, "READ_WHOLE", 0)
    monkeypatch.setattr(log, "LARGE_FILE", 0)
    monkeypatch.setattr(parquet, "_PIECE_ROWS", 64)
    for number, deletes in ((2, "hard"), (3, "soft")):
        batches.append([event(number, id=n) for n in range(0, 500, 7)])
        batches[-1] += [event(number, "insert", id=number * 1000)]
        merge_table(shop.order(batches[-1], deletes=deletes))
    found = [{**row, "_deleted": bool(row["_deleted"])} for row in shop.rows()]
    assert found == truth(batches, COLUMNS, soft=True)


def test_one_place_one_event(shop: Shop) -> None:
    """Of events at one and the same place the last of the first batch counts, then and later."""
    place = (1, 5, 0, 0, 0, 1, "a")
    first = [at(event(place, id=1, price=float(n)), offset=n, hash=n) for n in (1, 3, 2)]
    second = [
        at(event(place, id=1, price=9.0), offset=9),
        at(event(place, "delete", id=1), offset=10),
        event((1, 5, 0, 0, 0, 1, "b"), "delete", id=2),
    ]
    third = [event((1, 5, 0, 0, 0, 1, "b"), "insert", id=2)]
    for batch in (first, second, third):
        merge_table(shop.order(batch))
    assert plain(shop.rows(), "id", "price") == [(1, 3.0)]
    log = shop.publish_log()
    assert verify(log, shop.order([])).agrees
    rebuild(log, shop.order([]))
    assert plain(shop.rows(), "id", "price") == [(1, 3.0)]


def test_files_that_were_replaced_do_not_stay_for_ever(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        writing, "RETENTION", {"delta.deletedFileRetentionDuration": "interval 0 hours"}
    )
    monkeypatch.setattr(log_checkpoint, "OFTEN", 3)
    for number in range(9):
        merge_table(shop.order([event(number, id=1)]))
    assert len(list((shop.folder / "orders").glob("*.parquet"))) < 5
    assert [row["_seq"][1] for row in shop.rows()] == [8]


@pytest.mark.parametrize("days", [0, 8])
def test_a_batch_that_goes_on_later_is_remembered_from_then_on(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    merge_table(shop.order([event(1, "insert", id=1), event(1, "insert", id=2)]))
    order = shop.order([event(9, "delete", id=1)], horizon=7 * 24 * 3600)
    crash(monkeypatch, (apply, "rewrite"), order, late=False)
    now = NOW + days * DAY
    merge_table(replace(order, now_us=now))
    assert len(shop.tombstones()) == (2 if days else 1)
    merge_table(shop.order([event(5, id=1)], horizon=7 * 24 * 3600, now_us=now))
    assert plain(shop.rows(), "id") == [(2,)]


def test_who_follows_a_table_does_not_carry_along_what_was_taken_out(shop: Shop) -> None:
    carried: list[int] = []
    for number in range(30):
        order = shop.order([event(number, id=1)])
        merge_table(order)
        state = snapshot_of(order.path)
        assert state is not None
        carried.append(len(state.removed))
    # as many as of the commit at which the table was loaded, at most
    assert max(carried) <= 1
    loaded = log.load(store_at(order.path))
    assert loaded is not None and len(loaded.removed) == 29
