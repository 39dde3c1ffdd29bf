"""Whatever the order in which events come, a table is what the source had."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from distributary.changes.apply import merge_table
from tests.changes.changes import (
    Batches,
    deliveries,
    histories,
    moving_histories,
    rekeyed_histories,
    shuffled_in_batches,
)
from tests.changes.logs import COLUMNS, Shop, truth


def merged(folder: Path, batches: Batches, *, deletes: str) -> Shop:
    shop = Shop(folder, settings={"deletes": deletes})
    for batch in batches:
        merge_table(shop.order(batch))
    return shop


@given(batches=histories().flatmap(deliveries), deletes=st.sampled_from(["hard", "soft"]))
@settings(max_examples=40)
def test_any_delivery_gives_the_rows_of_the_source(batches: Batches, deletes: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shop = merged(Path(folder), batches, deletes=deletes)
        assert shop.rows() == truth(batches, COLUMNS, soft=deletes == "soft")


@given(
    batches=histories(left_out=True).flatmap(shuffled_in_batches),
    deletes=st.sampled_from(["hard", "soft"]),
)
@settings(max_examples=40)
def test_columns_left_out_keep_the_value_before(batches: Batches, deletes: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shop = merged(Path(folder), batches, deletes=deletes)
        assert shop.rows() == truth(batches, COLUMNS, soft=deletes == "soft")


@given(batches=rekeyed_histories().flatmap(deliveries), deletes=st.sampled_from(["hard", "soft"]))
@settings(max_examples=50)
def test_a_key_may_be_defined_anew(batches: Batches, deletes: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shop = merged(Path(folder), batches, deletes=deletes)
        assert shop.rows() == truth(batches, COLUMNS, soft=deletes == "soft")


@given(
    batches=moving_histories().flatmap(shuffled_in_batches),
    deletes=st.sampled_from(["hard", "soft"]),
)
@settings(max_examples=60)
def test_values_move_with_their_row_to_another_key(batches: Batches, deletes: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shop = merged(Path(folder), batches, deletes=deletes)
        assert shop.rows() == truth(batches, COLUMNS, soft=deletes == "soft")
