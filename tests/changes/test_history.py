"""Histories: what was when, and how often it is written."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from distributary.changes import history
from distributary.changes.history import merge_history
from distributary.changes.merge_order import MergeOrder, MergeResult
from distributary.delta import log_checkpoint
from distributary.errors import PublishError
from distributary.model.table import Column
from tests.changes.logs import COLUMNS, Event, Row, Shop, at, event, history_truth, last_commit


def ms(number: int) -> datetime:
    return datetime.fromtimestamp(number / 1000, UTC)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def order_of(shop: Shop, events: list[Event], **settings: Any) -> MergeOrder:
    path = str(shop.folder / "orders_history")
    return replace(shop.order(events, **settings), path=path, table="orders_history")


def keep(shop: Shop, events: list[Event], **settings: Any) -> MergeResult:
    return merge_history(order_of(shop, events, **settings))


def intervals(rows: list[Row], id_: int) -> list[tuple[Any, ...]]:
    names = ("_valid_from", "_valid_to", "_current", "_deleted")
    return [tuple(row[name] for name in names) for row in rows if row["id"] == id_]


def test_versions_follow_each_other(shop: Shop) -> None:
    keep(shop, [event(1, "insert", id=1), event(5, "insert", id=2)])
    keep(shop, [event(4, id=1), event(8, "delete", id=1)])
    told = last_commit(shop.folder / "orders_history")["operationMetrics"]
    assert (told["numTargetRowsInserted"], told["numTargetRowsUpdated"]) == ("2", "1")
    assert intervals(shop.history(), 1) == [
        (ms(1), ms(4), False, False),
        (ms(4), ms(8), False, False),
        (ms(8), None, False, True),
    ]
    assert intervals(shop.history(), 2) == [(ms(5), None, True, False)]


def test_a_late_event_splits_an_interval(shop: Shop) -> None:
    keep(shop, [event(1, "insert", id=1), event(9, id=1)])
    keep(shop, [event(4, id=1)])
    assert intervals(shop.history(), 1) == [
        (ms(1), ms(4), False, False),
        (ms(4), ms(9), False, False),
        (ms(9), None, True, False),
    ]


def test_a_backfilled_row_never_overlaps_a_change(shop: Shop) -> None:
    backfill = Event((0, 100, 0, 0, 0, 1, ""), "read", {"id": 1}, time=100)
    keep(shop, [event(50, id=1)])
    keep(shop, [backfill])
    assert intervals(shop.history(), 1) == [
        (ms(50), ms(50), False, False),
        (ms(50), None, True, False),
    ]


def test_once_is_enough(shop: Shop) -> None:
    events = [event(1, "insert", id=1), event(2, id=1), event(3, "truncate")]
    order = order_of(shop, events)
    merge_history(order)
    version = DeltaTable(order.path).version()
    assert merge_history(order).skipped
    keep(shop, events)
    assert DeltaTable(order.path).version() == version
    assert shop.history() == history_truth([events], COLUMNS)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("step", ["write_versions", "rewrite_files"])
def test_a_crash_is_harmless(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, step: str, late: bool
) -> None:
    batches = [[event(1, "insert", id=1)], [event(2, id=1), event(3, "insert", id=2)]]
    keep(shop, batches[0])
    order = order_of(shop, batches[1])
    real = getattr(history, step)

    def crashing(*args: Any, **options: Any) -> Any:
        if late:
            real(*args, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(history, step, crashing)
        with pytest.raises(KeyboardInterrupt):
            merge_history(order)
    merge_history(order)
    assert shop.history() == history_truth(batches, COLUMNS)


def test_new_events_leave_closed_files_alone(shop: Shop) -> None:
    keep(shop, [event(1, "insert", id=n) for n in range(5)])
    keep(shop, [event(2, id=n) for n in range(5)])
    before = {Path(uri).name for uri in DeltaTable(shop.folder / "orders_history").file_uris()}
    keep(shop, [event(3, id=1), event(3, "insert", id=9)])
    after = {Path(uri).name for uri in DeltaTable(shop.folder / "orders_history").file_uris()}
    closed = {name for name in before if name.startswith("closed-")}
    assert closed and closed <= after
    for number in range(4, 12):
        keep(shop, [event(number, id=1)])
    assert len(DeltaTable(shop.folder / "orders_history").file_uris()) < 8
    assert len(intervals(shop.history(), 1)) == 11


def test_histories_only_grow(shop: Shop) -> None:
    keep(shop, [event(1, "insert", id=1, price=1.0)], evolution="overwriteSchema")
    shop.columns = (COLUMNS[0], Column("more", pa.string()))
    keep(shop, [event(2, id=1, more="x")], evolution="overwriteSchema")
    assert [(row["price"], row["more"]) for row in shop.history()] == [(1.0, None), (None, "x")]


def test_events_without_a_key_have_no_history(shop: Shop) -> None:
    assert keep(shop, [at(event(1, "insert", id=1), key=())]).version == -1


def test_a_column_with_the_name_of_one_of_ours_is_refused(shop: Shop) -> None:
    shop.columns = (*COLUMNS, Column("_CURRENT", pa.string()))
    with pytest.raises(PublishError) as caught:
        keep(shop, [event(1, "insert", id=1)])
    assert caught.value.context["reason"] == "columns"


def test_a_long_history_is_followed_over_checkpoints(shop: Shop) -> None:
    events = [event(number, id=1) for number in range(log_checkpoint.OFTEN + 8)]
    for each in events:
        keep(shop, [each])
    assert shop.history() == history_truth([events], COLUMNS)
