"""Rows that were read beside the stream: what comes behind them, late or from another server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
from deltalake import write_deltalake

from distributary.changes.apply import merge_table
from distributary.changes.events.incarnations import incarnations_of
from distributary.changes.history import merge_history
from distributary.changes.merge_order import Arrival
from distributary.changes.rebuild import rebuild
from distributary.model.change import READ_TIE
from distributary.model.table import Role
from tests.changes.logs import Event, Shop, plain

AT = 1_700_000_000_000


def bring(shop: Shop, event: Event, arrival: Arrival) -> None:
    log = str(shop.folder / "items_log")
    order = shop.order([event], arrival=arrival, log=log)
    for file in order.files:
        write_deltalake(log, pq.read_table(file), mode="append")
    merge_table(order)


def change(file: int, at: int, price: float, *, seconds: int, offset: int, id_: int = 1) -> Event:
    values = {"id": id_, "region": "EU", "price": price}
    time = AT + seconds * 1000
    tie = f"{offset:019}"
    return Event(
        (1, 0, file, at, 0, 1, tie), values=values, time=time, offset=offset, hash=offset + 1
    )


def read(file: int, at: int, price: float, *, seconds: int) -> Event:
    values = {"id": 1, "region": "EU", "price": price}
    place = (1, 0, file, at, 0, 1, READ_TIE)
    return Event(place, "read", values, time=AT + seconds * 1000, offset=0, hash=-1)


def prices(shop: Shop) -> list[tuple[object, ...]]:
    return plain(shop.rows(), "id", "price")


def test_a_change_that_was_late_is_no_sign_of_another_server(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    bring(shop, change(5, 100, 1.0, seconds=0, offset=0), "partitions")
    bring(shop, read(5, 200, 7.0, seconds=60), "unknown")
    # made a second before the snapshot, it arrives after what was read there
    bring(shop, change(5, 150, 2.0, seconds=59, offset=1), "partitions")
    assert prices(shop) == [(1, 7.0)]
    assert not incarnations_of(str(shop.folder / "orders")).starts
    bring(shop, change(5, 250, 3.0, seconds=61, offset=2), "partitions")
    assert prices(shop) == [(1, 3.0)]


def test_a_server_that_takes_over_behind_what_was_read_wins(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    bring(shop, change(5, 100, 1.0, seconds=0, offset=0), "partitions")
    bring(shop, read(5, 200, 7.0, seconds=60), "unknown")
    bring(shop, change(1, 10, 4.0, seconds=600, offset=1), "partitions")
    assert prices(shop) == [(1, 4.0)]
    assert len(incarnations_of(str(shop.folder / "orders")).starts) == 1
    # the log says the same, whoever asks it again
    log = str(shop.folder / "items_log")
    rebuild(log, shop.order([], arrival="partitions", log=log))
    assert prices(shop) == [(1, 4.0)]


def test_a_history_has_what_was_read_as_a_version(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    events = [
        change(5, 100, 1.0, seconds=0, offset=0),
        read(5, 200, 7.0, seconds=60),
        change(5, 250, 3.0, seconds=61, offset=2),
    ]
    for event in events:
        order = shop.order([event], arrival="unknown")
        merge_table(order)
        merge_history(replace(order, path=str(tmp_path / "orders_history"), role=Role.HISTORY))
    assert plain(shop.history(), "price", "_op", "_current") == [
        (1.0, "update", False),
        (3.0, "update", True),
        (7.0, "read", False),
    ]
