"""Small aggregate tables that are written together: the same groups as one by one."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.changes import small_aggregates
from distributary.changes.aggregate_tables import (
    AggregateOrder,
    merge_aggregates,
    verify_aggregates,
)
from distributary.changes.merge_order import MergeResult
from distributary.changes.small_aggregates import merge_together
from distributary.delta import commit
from distributary.delta.commit import Draft
from distributary.delta.log import snapshot_of
from tests.changes.test_aggregate_tables import COLUMNS, Lake, Row, act, expected, plain, steps

PLAYER: dict[str, Any] = {"group_by": ["player"], "columns": {"games": "count(*)"}}


def lakes_in(root: Path, count: int, **more: Any) -> list[Lake]:
    found = []
    for number in range(count):
        folder = root / f"{number}"
        folder.mkdir()
        found.append(Lake(folder, **more))
    return found


def orders_of(lakes: Iterable[Lake]) -> list[AggregateOrder]:
    return [replace(lake.order(), table=f"gold_{n}") for n, lake in enumerate(lakes)]


def follow(lakes: list[Lake]) -> dict[str, MergeResult]:
    """Bring all aggregate tables up to date; return the results of those written together."""
    for lake in lakes:
        lake.batch += 1
    done = merge_together(orders_of(lakes))
    for order in orders_of(lakes):
        if order.table not in done:
            merge_aggregates(order)
    return done


def games(lake: Lake) -> dict[str | None, int]:
    state = snapshot_of(lake.path)
    assert state is not None
    rows = state.rows(small_schema(lake)).to_pylist()
    return {row["player"]: row["games"] for row in rows}


def small_schema(lake: Lake) -> Any:
    from distributary.shape.aggregate_columns import aggregates_of

    return aggregates_of(lake.rule, COLUMNS, skips_deleted=False).schema


def row(player: str | None = "ann", **more: Any) -> Row:
    return dict.fromkeys((c.name for c in COLUMNS), None) | {"player": player} | more


@pytest.mark.parametrize("many", [1, 1_000], ids=["synced together", "one by one"])
@given(
    done=st.lists(st.tuples(st.integers(0, 2), steps.map(lambda found: found[:2])), max_size=5),
    dice=st.randoms(use_true_random=False),
)
def test_groups_are_what_plain_python_says(
    tmp_path_factory: pytest.TempPathFactory,
    many: int,
    done: list[tuple[int, list[tuple[str, list[Row], random.Random]]]],
    dice: random.Random,
) -> None:
    lakes = lakes_in(tmp_path_factory.mktemp("lakes"), 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit, "_MANY", many)
        for number, some in done:
            for step, rows, chance in some:
                act(lakes[number], step, rows, chance)
            if dice.random() < 0.7:
                follow(lakes)
        follow(lakes)
        # what is up to date stays as it is
        versions = [getattr(snapshot_of(lake.path), "version", -1) for lake in lakes]
        results = merge_together(orders_of(lakes)).values()
        assert [r.version for r in results if r.version >= 0] == [v for v in versions if v >= 0]
    for lake in lakes:
        assert plain(lake.groups()) == plain(expected(lake.rows))
        found = verify_aggregates(lake.order())
        assert found is None or found.agrees


def test_new_rows_of_all_tables_are_added_by_one_statement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables with other rules or column types have a statement of their own."""
    lakes = [*lakes_in(tmp_path, 3, **PLAYER), Lake(tmp_path)]
    for lake in lakes:
        lake.change(add=[row(), row(None)])
    follow(lakes)
    for lake in lakes[:2]:
        lake.change(add=[row(), row("bob")])
        lake.change(add=[row()])
    lakes[3].change(add=[row("bob")])
    sizes = []
    grouped = small_aggregates._grouped

    def counted(additions: Any) -> Any:
        sizes.append(len(additions))
        return grouped(additions)

    monkeypatch.setattr(small_aggregates, "_grouped", counted)
    done = follow(lakes)
    assert sizes == [2, 1]
    assert {t: r.skipped for t, r in done.items()} == {
        "gold_0": False,
        "gold_1": False,
        "gold_2": True,
        "gold_3": False,
    }
    assert [games(lake) for lake in lakes[:3]] == [
        {"ann": 3, "bob": 1, None: 1},
        {"ann": 3, "bob": 1, None: 1},
        {"ann": 1, None: 1},
    ]


def test_a_table_that_fails_does_not_keep_others_from_their_rows(tmp_path: Path) -> None:
    """A sum that is too large, a file that is gone, another writer: they are tried alone."""
    much: dict[str, Any] = {
        "group_by": ["player"],
        "columns": {"games": "count(*)", "much": "sum(CAST(score AS DECIMAL(38, 19)))"},
    }
    lakes = lakes_in(tmp_path, 3, **much)
    for lake in lakes:
        lake.change(add=[row(score=1)])
    follow(lakes)
    for lake in lakes:
        lake.change(add=[row(score=1)])
    for _ in range(5):
        lakes[0].change(add=[row(score=2**63 - 1) for _ in range(4)])
    for lake in lakes:
        lake.batch += 1
    assert merge_together(orders_of(lakes)) == {}
    assert merge_together(orders_of(lakes)[1:]).keys() == {"gold_1", "gold_2"}
    lakes[1].change(add=[row()])
    lakes[2].change(add=[row()])
    (Path(lakes[1].source) / [*lakes[1].files][-1]).unlink()
    assert merge_together(orders_of(lakes)[1:]).keys() == {"gold_2"}


def test_no_table_names_a_file_whose_upload_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uploads of several tables wait together, and one that failed names none of them."""
    lakes = lakes_in(tmp_path, 2, **PLAYER)
    for lake in lakes:
        lake.change(add=[row()])
    follow(lakes)
    for lake in lakes:
        lake.change(add=[row()])

    def failed() -> None:
        raise OSError("an upload failed")

    with monkeypatch.context() as patch:
        patch.setattr(small_aggregates.UPLOADS, "finish", failed)
        assert merge_together(orders_of(lakes)) == {}
    assert [games(lake) for lake in lakes] == [{"ann": 1}] * 2
    follow(lakes)
    assert [games(lake) for lake in lakes] == [{"ann": 2}] * 2


@pytest.mark.parametrize("killed", [0, 1, 2])
def test_a_crash_between_two_commits_is_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: int
) -> None:
    class Killed(BaseException):
        """Ends the process in a test."""

    monkeypatch.setattr(commit, "_MANY", 1)
    lakes = lakes_in(tmp_path, 3, **PLAYER)
    for lake in lakes:
        lake.change(add=[row()])
    follow(lakes)
    for lake in lakes:
        lake.change(add=[row(), row("bob")])
    names, draft = [], Draft.commit

    def dies(self: Draft) -> Any:
        if len(names) == killed:
            raise Killed
        names.append(self)
        return draft(self)

    with monkeypatch.context() as patch:
        patch.setattr(Draft, "commit", dies)
        with pytest.raises(Killed):
            follow(lakes)
    follow(lakes)
    assert [games(lake) for lake in lakes] == [{"ann": 2, "bob": 1}] * 3


def test_a_commit_that_comes_first_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "_MANY", 1)
    (lake,) = lakes_in(tmp_path, 1, **PLAYER)
    lake.change(add=[row()])
    follow([lake])
    lake.change(add=[row()])
    draft = Draft.commit

    def overtaken(self: Draft) -> Any:
        merge_aggregates(lake.order())
        return draft(self)

    monkeypatch.setattr(Draft, "commit", overtaken)
    assert follow([lake]) == {}
    assert games(lake) == {"ann": 2}
