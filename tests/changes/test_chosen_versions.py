"""A history of chosen columns has a version for each change of theirs, however records come."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from distributary.changes.history import merge_history
from distributary.errors import PublishError
from tests.changes.changes import (
    Batches,
    deliveries,
    histories,
    moving_histories,
    rekeyed_histories,
)
from tests.changes.logs import COLUMNS, Event, Row, Shop, event, history_truth, last_commit

CHOSEN = ("region",)


def kept(folder: Path, batches: Batches, chosen: tuple[str, ...] = CHOSEN) -> Shop:
    """Keep a history of some columns, beside a log that has each batch before."""
    shop = Shop(folder)
    log = str(folder / "logged")
    for batch in batches:
        order = replace(
            shop.order(batch), path=str(folder / "orders_history"), log=log, chosen=chosen
        )
        for file in order.files:
            write_deltalake(log, pq.read_table(file), mode="append")
        merge_history(order)
    return shop


def joined_truth(batches: Batches, chosen: tuple[str, ...] = CHOSEN) -> list[Row]:
    """Every version of every row, those joined that differ in no chosen column."""
    emptied = [e.place for batch in batches for e in batch if e.op == "truncate"]
    found: list[Row] = []
    rows = sorted(history_truth(batches, COLUMNS), key=_about)
    for _, own in groupby(rows, key=_about):
        last: Row = {}
        for row in sorted(own, key=lambda row: row["_seq"]):
            between = last and any(last["_seq"] < place < row["_seq"] for place in emptied)
            if last and not between and _state(last, chosen) == _state(row, chosen):
                last |= {name: row[name] for name in ("_valid_to", "_current")}
                last["_last_seq"] = row["_seq"]
            else:
                last = {**row, "_last_seq": row["_seq"]}
                found.append(last)
    return sorted(found, key=lambda row: (row["_seq"], repr(row)))


def _about(row: Row) -> str:
    """Which row of the source a version is about."""
    return repr([(name, row[name]) for name in row["_key"]])


def _state(row: Row, chosen: tuple[str, ...]) -> tuple[Any, ...]:
    return ("gone",) if row["_deleted"] else tuple(row.get(name) for name in chosen)


def versions(shop: Shop) -> list[Row]:
    rows = shop.history()
    for row in rows:
        row["_last_seq"] = tuple(row["_last_seq"].values())
    return sorted(rows, key=lambda row: (row["_seq"], repr(row)))


@st.composite
def with_times(draw: st.DrawFn, events: list[Event]) -> list[Event]:
    """The times of records do not always follow their order."""
    return [replace(e, time=e.place[1] + draw(st.integers(-2, 2))) for e in events]


@given(
    batches=(
        histories(left_out=True).flatmap(with_times)
        | moving_histories().flatmap(with_times)
        | rekeyed_histories()
    ).flatmap(deliveries),
    chosen=st.sampled_from([("region",), ("price",), ("region", "price"), ("absent",)]),
)
def test_any_delivery_gives_the_same_versions(batches: Batches, chosen: tuple[str, ...]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shop = kept(Path(folder), batches, chosen)
        assert versions(shop) == joined_truth(batches, chosen)


def test_a_late_record_parts_a_version_in_two(tmp_path: Path) -> None:
    def order(number: int, region: str) -> Event:
        return event(number, id=1, region=region, price=float(number))

    def seen(shop: Shop) -> list[tuple[Any, ...]]:
        return [
            (row["region"], row["price"], row["_valid_from"].timestamp() * 1000, row["_current"])
            for row in versions(shop)
        ]

    first = [[order(1, "EU")], [order(3, "EU")], [order(5, "EU"), order(6, "US")]]
    assert seen(kept(tmp_path / "a", first)) == [("EU", 1.0, 1, False), ("US", 6.0, 6, True)]
    assert seen(kept(tmp_path / "b", [*first, [order(2, "US")]])) == [
        ("EU", 1.0, 1, False),
        ("US", 2.0, 2, False),
        ("EU", 3.0, 3, False),
        ("US", 6.0, 6, True),
    ]


def test_records_in_order_read_no_log(tmp_path: Path) -> None:
    shop = kept(tmp_path, [[event(1, id=1, region="EU", price=1.0)]])
    order = shop.order([event(2, id=1, region="EU", price=2.0)])
    path = tmp_path / "orders_history"
    merge_history(replace(order, path=str(path), log=str(tmp_path / "no-log"), chosen=CHOSEN))
    (row,) = versions(shop)
    assert (row["price"], row["_last_seq"][1]) == (1.0, 2)
    assert last_commit(path)["operationMetrics"]["numTargetRowsInserted"] in (0, "0")


@pytest.mark.parametrize("chosen", [(), ("price",)])
def test_other_columns_than_those_of_the_history_are_refused(
    chosen: tuple[str, ...], tmp_path: Path
) -> None:
    shop = kept(tmp_path, [[event(1, id=1, region="EU", price=1.0)]])
    path = tmp_path / "orders_history"
    before = DeltaTable(path).version()
    order = replace(shop.order([event(2, id=1)]), path=str(path), chosen=chosen)
    with pytest.raises(PublishError, match="changes of other columns"):
        merge_history(order)
    assert DeltaTable(path).version() == before
