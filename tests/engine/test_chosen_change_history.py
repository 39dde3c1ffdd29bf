"""A history of chosen columns of change data is that of all columns, with its versions joined."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from distributary.config.file.document import PipelineFileError
from distributary_lab.simulate.cdc.shapes import CHAOS, CdcPlan
from tests.lakes.changes import Feed
from tests.operations.test_erase_running import counts_of

PLAN = CdcPlan(tables=2, events=60, rows=5, rounds=4, features=CHAOS)
CHOSEN = "active"


def place(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row["_seq"].values())


def history(root: Path, more: str) -> Feed:
    root.mkdir()
    feed = Feed(root, PLAN)
    while feed.send_round() is not None:
        counts_of(feed.pipeline(cdc=f", history: true{more}"))
    return feed


def brief(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    names = ("id", CHOSEN, "_valid_from", "_valid_to", "_current", "_deleted")
    return sorted((tuple(row[name] for name in names) for row in rows), key=repr)


def test_versions_are_those_of_all_events_joined(tmp_path: Path) -> None:
    every = history(tmp_path / "all", "").rows("shop_users_history")
    feed = history(tmp_path / "some", f", history_columns: {{'*_users': [{CHOSEN}]}}")
    joined: list[dict[str, Any]] = []
    for _, own in groupby(sorted(every, key=lambda row: repr(row["id"])), lambda row: row["id"]):
        last: dict[str, Any] = {}
        for row in sorted(own, key=place):
            state = ("gone",) if row["_deleted"] else (row[CHOSEN],)
            # a row that a truncate had removed begins anew
            if last and last["state"] == state and last["_valid_to"] == row["_valid_from"]:
                last |= {name: row[name] for name in ("_valid_to", "_current")}
            else:
                last = {**row, "state": state}
                joined.append(last)
    found = feed.rows("shop_users_history")
    assert len(found) < len(every)
    assert brief(found) == brief(joined)
    # the other table has every version
    assert brief_of(feed) == brief_of(Feed(tmp_path / "all", PLAN))


def brief_of(feed: Feed) -> list[str]:
    return sorted(str((row["id"], place(row))) for row in feed.rows("shop_orders_history"))


@pytest.mark.parametrize("more", ["", ", history: true, log: false"])
def test_a_history_of_some_columns_needs_history_and_log(more: str, tmp_path: Path) -> None:
    with pytest.raises(PipelineFileError, match=r"cdc\.history_columns"):
        Feed(tmp_path, PLAN).pipeline(cdc=f"{more}, history_columns: {{'*': [id]}}")
