"""Where a row of change data came from: the events of its key, in the order of the source."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from distributary.errors import DistributaryError, ErrorCode
from distributary.observe.row_events import RowStory, trace_key
from tests.changes.logs import event
from tests.lakes.written_changes import LOG, MERGED, ChangeLake


@pytest.fixture
def shop(tmp_path: Path) -> ChangeLake:
    shop = ChangeLake(tmp_path)
    shop.batch(
        [
            event(3, "update", id=1, region="north", price=3.0),
            event(1, "insert", id=1, region="north", price=1.0),
            event(1, "insert", id=2, region="south", price=9.0),
        ]
    )
    return shop


def stories(shop: ChangeLake, *conditions: tuple[str, str]) -> tuple[RowStory, ...]:
    tables = {t.table: t for t in shop.ledger.tables()}
    return trace_key(str(shop.lake), tables[MERGED], tables[LOG], conditions)


def test_events_are_in_the_order_of_the_source_with_what_each_changed(shop: ChangeLake) -> None:
    shop.batch([event(2, "update", id=1, region="west", price=1.0)])
    (story,) = stories(shop, ("", "1"))
    assert story.key == {"id": 1}
    assert [(e.op, e.batch) for e in story.events] == [("insert", 0), ("update", 1), ("update", 0)]
    assert [dict(e.changed) for e in story.events] == [
        {"id": 1, "price": 1.0, "region": "north"},
        {"region": "west"},
        {"price": 3.0, "region": "north"},
    ]
    assert [e.current for e in story.events] == [False, False, True]
    assert story.row is not None and story.row["price"] == 3.0
    assert str(story.events[0].source) == "orders/0/1"


def test_a_row_that_is_gone_still_has_its_story(shop: ChangeLake) -> None:
    shop.batch([event(5, "delete", id=2)])
    (story,) = stories(shop, ("id", "2"))
    assert story.row is None
    assert [(e.op, e.deleted) for e in story.events] == [("insert", False), ("delete", True)]


def test_a_truncate_is_part_of_every_story(shop: ChangeLake) -> None:
    shop.batch([replace(event(6, "truncate"), key=()), event(7, "insert", id=1, price=7.0)])
    (story,) = stories(shop, ("id", "1"))
    assert [e.op for e in story.events] == ["insert", "update", "truncate", "insert"]
    assert dict(story.events[-1].changed) == {"id": 1, "price": 7.0}


def test_rows_are_found_by_what_they_once_were(shop: ChangeLake) -> None:
    shop.batch([event(8, "update", id=1, region="south", price=3.0)])
    assert {story.key["id"] for story in stories(shop, ("region", "south"))} == {1, 2}
    assert {story.key["id"] for story in stories(shop, ("Region", "north"))} == {1}
    assert stories(shop, ("region", "east")) == ()


def test_what_an_event_leaves_out_did_not_change(shop: ChangeLake) -> None:
    left_out = replace(event(9, "update", id=2, price=1.5), unchanged=("region",))
    shop.batch([left_out])
    (story,) = stories(shop, ("id", "2"))
    assert dict(story.events[-1].changed) == {"price": 1.5}


@pytest.mark.parametrize("asked", [(("", "1"), ("", "2")), (("colour", "red"),), (("id", "x"),)])
def test_a_question_that_does_not_fit_is_refused(
    shop: ChangeLake, asked: tuple[tuple[str, str], ...]
) -> None:
    with pytest.raises(DistributaryError) as caught:
        stories(shop, *asked)
    assert caught.value.code in (ErrorCode.CONFIG_INVALID, ErrorCode.NOT_FOUND)
