"""Whatever the order in which events come, a history tells what was when."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from distributary.changes.history import merge_history
from tests.changes.changes import (
    Batches,
    deliveries,
    histories,
    moving_histories,
    rekeyed_histories,
)
from tests.changes.logs import COLUMNS, Event, Shop, history_truth


def kept(folder: Path, batches: Batches) -> Shop:
    shop = Shop(folder)
    for batch in batches:
        merge_history(replace(shop.order(batch), path=str(folder / "orders_history")))
    return shop


@st.composite
def with_times(draw: st.DrawFn, events: list[Event]) -> list[Event]:
    """The times of a source do not always follow its order."""
    return [replace(e, time=e.place[1] + draw(st.integers(-2, 2))) for e in events]


@given(batches=histories(left_out=True).flatmap(with_times).flatmap(deliveries))
def test_any_delivery_gives_the_same_history(batches: Batches) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert kept(Path(folder), batches).history() == history_truth(batches, COLUMNS)


@given(batches=rekeyed_histories().flatmap(deliveries))
def test_a_key_may_be_defined_anew(batches: Batches) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert kept(Path(folder), batches).history() == history_truth(batches, COLUMNS)


@given(batches=moving_histories().flatmap(with_times).flatmap(deliveries))
def test_values_move_with_their_row_to_another_key(batches: Batches) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert kept(Path(folder), batches).history() == history_truth(batches, COLUMNS)
