"""A table rebuilt from its log is the table that was merged batch by batch."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributary.changes import rebuild as replay
from distributary.changes.apply import merge_table
from distributary.changes.rebuild import rebuild, verify
from tests.changes.changes import (
    Batches,
    deliveries,
    histories,
    moving_histories,
    rekeyed_histories,
    shuffled_in_batches,
)
from tests.changes.logs import COLUMNS, Shop, truth

ANY_BATCHES = st.one_of(
    histories().flatmap(deliveries),
    histories(left_out=True).flatmap(shuffled_in_batches),
    rekeyed_histories().flatmap(deliveries),
    moving_histories().flatmap(shuffled_in_batches),
)


@pytest.fixture(autouse=True, params=[3, 1_000_000], ids=["small-chunks", "one-chunk"])
def chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "CHUNK_ROWS", request.param)


@given(batches=ANY_BATCHES, deletes=st.sampled_from(["hard", "soft"]))
@settings(max_examples=settings().max_examples // 2)
def test_merged_rebuilt_and_verified_agree(batches: Batches, deletes: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shop = Shop(Path(folder), settings={"deletes": deletes})
        for batch in batches:
            merge_table(shop.order(batch))
        log, order = shop.publish_log(), shop.order([])
        checked = verify(log, order)
        assert checked.agrees, checked.differences
        assert checked.expected == checked.found == len(shop.rows())
        rebuild(log, order)
        assert shop.rows() == truth(batches, COLUMNS, soft=deletes == "soft")
        assert verify(log, order).agrees
