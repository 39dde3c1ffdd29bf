"""Tables from their logs: as of a moment, while others look on, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.changes import apply
from distributary.changes import rebuild as rebuilding
from distributary.changes import rebuild as verifying
from distributary.changes.apply import merge_table
from distributary.changes.rebuild import rebuild, verify
from distributary.delta.commit import rewrite_files
from distributary.delta.log import Snapshot
from distributary.delta.tables import OvertakenError
from distributary.errors import ErrorCode, PublishError
from distributary.model.table import Column
from tests.changes.logs import COLUMNS, Event, Shop, crash, event, plain, truth

BATCHES = [
    [event(1, "insert", id=1, region="EU", price=1.0), event(2, "insert", id=2, price=2.0)],
    [event(3, id=1, region="US", price=3.0), event(4, "delete", id=2)],
    [event(5, "insert", id=3, price=float("nan")), event(6, "insert", id=4)],
]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    shop = Shop(tmp_path)
    for batch in BATCHES:
        merge_table(shop.order(batch))
    return shop


def spoil(shop: Shop, **changes: Any) -> None:
    """Somebody writes to the merged table what no event says."""
    table = DeltaTable(shop.folder / "orders").to_pyarrow_table()
    rows = [row | changes.get(f"id{row['id']}", {}) for row in table.to_pylist()]
    rows = [row for row in rows if row["region"] != "gone"]
    rows += changes.get("more", [])
    spoiled = pa.Table.from_pylist(rows, table.schema)
    write_deltalake(shop.folder / "orders", spoiled, mode="overwrite")


def test_a_table_that_agrees(shop: Shop) -> None:
    log = shop.publish_log()
    found = verify(log, shop.order([]))
    assert found.agrees
    assert (found.expected, found.found, found.differences) == (3, 3, ())


def test_what_differs_is_told(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "_MEMORY", 1)
    log = shop.publish_log()
    one = shop.rows()[0]
    seq = dict(zip(("phase", "ts", "a", "b", "c", "half", "tie"), one["_seq"], strict=True))
    extra = {**one, "_seq": seq, "id": 77}
    spoil(shop, id1={"price": 99.0}, id4={"region": "gone"}, more=[extra, extra])
    found = verify(log, shop.order([]))
    assert not found.agrees
    assert (found.missing, found.extra, found.different) == (1, 2, 1)
    told = {(d.key, d.column, d.expected, d.found) for d in found.differences}
    assert told == {
        ('{"id":4}', "", "a row", None),
        ('{"id":77}', "", None, "a row"),
        ('{"id":1}', "price", "3.0", "99.0"),
    }
    rebuild(log, shop.order([]))
    assert verify(log, shop.order([])).agrees


def test_a_rebuilt_table_is_one_commit_further(shop: Shop) -> None:
    log = shop.publish_log()
    spoil(shop, id1={"price": 99.0})
    version = shop.version()
    assert rebuild(log, shop.order([])) == (version + 1, 3)
    assert shop.version() == version + 1
    assert plain(shop.rows(), "id", "region") == plain(truth(BATCHES, COLUMNS), "id", "region")
    # what the log had removed stays so
    merge_table(shop.order([event(3, "insert", id=2)]))
    assert plain(shop.rows(), "id") == [(1,), (3,), (4,)]


def test_as_of_a_moment(shop: Shop) -> None:
    log = shop.publish_log()
    rebuild(log, shop.order([]), as_of_us=3000)
    assert plain(shop.rows(), "id", "region") == [(1, "US"), (2, None)]
    assert verify(log, shop.order([]), as_of_us=3000).agrees
    assert not verify(log, shop.order([])).agrees
    rebuild(log, shop.order([]))
    assert plain(shop.rows(), "id") == [(1,), (3,), (4,)]


def test_a_table_that_is_not_there_is_made(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    orders = [shop.order(batch) for batch in BATCHES]
    log = shop.publish_log()
    missing = verify(log, orders[0])
    assert (missing.expected, missing.found, missing.missing) == (3, 0, 3)
    assert rebuild(log, orders[0])[0] == 0
    assert plain(shop.rows(), "id") == [(1,), (3,), (4,)]
    # the batches of the log come by once more
    for order in orders:
        merge_table(order)
    assert verify(log, orders[0]).agrees


def test_whoever_commits_meanwhile_is_not_lost(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    log = shop.publish_log()
    calls: list[tuple[Any, ...]] = []

    def overtaken(*args: Any) -> Snapshot:
        calls.append(args)
        if len(calls) == 1:
            raise OvertakenError("somebody was faster")
        return rewrite_files(*args)

    monkeypatch.setattr(rebuilding, "rewrite_files", overtaken)
    rebuild(log, shop.order([]))
    assert len(calls) == 2
    assert verify(log, shop.order([])).agrees


def test_a_crash_leaves_the_old_table(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    log = shop.publish_log()
    before = plain(shop.rows(), "id", "region", "_seq")

    def crash(*args: Any) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rebuilding, "rewrite_files", crash)
        with pytest.raises(KeyboardInterrupt):
            rebuild(log, shop.order([]))
    assert plain(shop.rows(), "id", "region", "_seq") == before
    assert verify(log, shop.order([])).agrees


def test_what_a_rebuild_forgets_is_remembered_by_a_batch_that_goes_on(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = shop.publish_log()
    order = shop.order([event(9, "delete", id=4)])
    crash(monkeypatch, (apply, "rewrite"), order, late=False)
    rebuild(log, shop.order([]), as_of_us=6000)
    assert plain(shop.rows(), "id") == [(1,), (3,), (4,)]
    merge_table(order)
    merge_table(shop.order([event(8, id=4)]))
    assert plain(shop.rows(), "id") == [(1,), (3,)]


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_a_crash_forgets_nothing_that_is_gone(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """The row 2 is gone today, and was there at the moment; for the row 5 it is the other way."""
    merge_table(shop.order([event(2, "delete", id=5)]))
    merge_table(shop.order([event(7, "insert", id=5)]))
    log = shop.publish_log()

    def crash(*args: Any) -> Snapshot:
        if late:
            rewrite_files(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rebuilding, "rewrite_files", crash)
        with pytest.raises(KeyboardInterrupt):
            rebuild(log, shop.order([]), as_of_us=3000)
    # an older change of a row that is gone
    gone = 5 if late else 2
    merge_table(shop.order([event(1, id=gone)]))
    assert gone not in {row["id"] for row in shop.rows()}
    rebuild(log, shop.order([]), as_of_us=3000)
    assert {row["key"] for row in shop.tombstones()} == {'{"id":5}'}
    assert plain(shop.rows(), "id") == [(1,), (2,)]


def test_there_is_no_log(shop: Shop) -> None:
    for act in (rebuild, verify):
        with pytest.raises(PublishError) as caught:
            act(str(shop.folder / "nowhere"), shop.order([]))
        assert caught.value.code == ErrorCode.NOT_FOUND


def test_columns_that_came_later_and_nested_values(tmp_path: Path) -> None:
    shop = Shop(tmp_path, columns=(Column("id", pa.int32()),))
    merge_table(shop.order([event(1, "insert", id=1), event(1, "insert", id=2)]))
    nested = pa.struct([pa.field("a", pa.list_(pa.float64()))])
    shop.columns = (Column("id", pa.int64()), Column("s", nested), Column("_file", pa.string()))
    merge_table(shop.order([event(2, id=2, s={"a": [1.5, None]}, _file="x")]))
    changed = Event((1, 3, 0, 0, 0, 1, ""), values={"id": 2, "_file": "y"}, unchanged=("s",))
    merge_table(shop.order([changed]))
    log = shop.publish_log()
    assert verify(log, shop.order([])).agrees
    rebuild(log, shop.order([]))
    assert verify(log, shop.order([])).agrees
    assert plain(shop.rows(), "id", "s", "_file") == [
        (1, None, None),
        (2, {"a": [1.5, None]}, "y"),
    ]
    pq.read_table(DeltaTable(shop.folder / "orders").file_uris()[0])
