"""Tombstones that were put back to an older copy: no deleted row comes back."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from distributary.changes.apply import merge_table
from distributary.changes.merge_order import MergeOrder, TombstonesBehindError
from distributary.changes.rebuild import merge_in_order
from distributary.changes.tombstones import take_as_they_are
from distributary.delta.log import snapshot_of
from tests.changes.logs import LIFE, Shop, event, plain
from tests.lakes.commits import edit_commit

ROWS = [event(1, "insert", id=number) for number in range(4)]
LATE = [event(2, id=2), event(2, id=3)]
"""Of rows that were deleted at a later place."""


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """A table from which row 1 was deleted, then row 2."""
    shop = Shop(tmp_path)
    merge_table(shop.order(ROWS))
    merge_table(shop.order([event(5, "delete", id=1)]))
    shutil.copytree(_folder(shop), tmp_path / "copy")
    merge_table(shop.order([event(6, "delete", id=2)]))
    return shop


def _folder(shop: Shop) -> Path:
    return shop.folder / "_distributary/tombstones/orders"


def _put_back(shop: Shop) -> None:
    shutil.rmtree(_folder(shop))
    shutil.copytree(shop.folder / "copy", _folder(shop))


def _remove(shop: Shop) -> None:
    shutil.rmtree(_folder(shop))


def _take_another(shop: Shop) -> None:
    """Put the tombstones of another table there, which has more of them."""
    other = Shop(shop.folder / "other")
    for number in range(5):
        merge_table(other.order([event(number, "delete", id=90 + number)]))
    shutil.rmtree(_folder(shop))
    shutil.copytree(_folder(other), _folder(shop))


SPOILT = pytest.mark.parametrize("spoil", [_put_back, _remove, _take_another])


@SPOILT
def test_older_tombstones_are_made_again_from_the_log(
    shop: Shop, spoil: Callable[[Shop], None]
) -> None:
    spoil(shop)
    late = shop.order([*LATE, event(3, "delete", id=3)])
    log = shop.publish_log()
    for _ in range(2):
        merge_in_order(_with_log(late, log))
        assert plain(shop.rows(), "id") == [(0,)]
    again = shop.order(LATE)
    merge_in_order(_with_log(again, log))
    assert plain(shop.rows(), "id") == [(0,)]


@SPOILT
def test_without_a_log_older_tombstones_are_refused_until_a_person_takes_them(
    shop: Shop, spoil: Callable[[Shop], None]
) -> None:
    shutil.copytree(_folder(shop), shop.folder / "newest")
    spoil(shop)
    late = shop.order(LATE[:1])
    for _ in range(2):
        with pytest.raises(TombstonesBehindError):
            merge_in_order(late)
    shutil.rmtree(_folder(shop), ignore_errors=True)
    shutil.copytree(shop.folder / "newest", _folder(shop))
    merge_in_order(late)
    assert plain(shop.rows(), "id") == [(0,), (3,)]
    spoil(shop)
    take_as_they_are(late.path, late.tombstones, table="orders")
    merge_in_order(shop.order(LATE[:1]))
    assert plain(shop.rows(), "id") == [(0,), (2,), (3,)]


def test_a_delete_of_a_row_that_never_was_is_not_forgotten(shop: Shop) -> None:
    shutil.rmtree(shop.folder / "copy")
    shutil.copytree(_folder(shop), shop.folder / "copy")
    merge_table(shop.order([event(9, "delete", id=7)]))
    _put_back(shop)
    with pytest.raises(TombstonesBehindError):
        merge_table(shop.order([event(8, "insert", id=7)]))


def _without_marks(commit: str) -> str:
    lines = commit.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith('{"txn"') or LIFE in line)


def test_a_table_of_before_there_were_marks_of_tombstones_is_merged(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    merge_table(shop.order(ROWS))
    merge_table(shop.order([event(5, "delete", id=1)]))
    for commit in (tmp_path / "orders/_delta_log").glob("*.json"):
        edit_commit(commit, _without_marks)
    _remove(shop)
    merge_table(shop.order([event(6, "delete", id=2)]))
    assert plain(shop.rows(), "id") == [(0,), (3,)]
    _remove(shop)
    with pytest.raises(TombstonesBehindError):
        merge_table(shop.order(LATE))


def test_marks_are_written_only_where_tombstones_have_changed(shop: Shop) -> None:
    merge_table(shop.order([event(7, id=3)]))
    path = str(shop.folder / "orders")
    table, tombstones = snapshot_of(path), snapshot_of(str(_folder(shop)))
    assert table is not None
    assert tombstones is not None
    assert [n for app, n in table.marks.items() if app != LIFE] == [tombstones.version + 1]
    newest = shop.folder / f"orders/_delta_log/{table.version:020d}.json"
    assert newest.read_text().count('{"txn"') == 1


def _with_log(order: MergeOrder, log: str) -> MergeOrder:
    return replace(order, log=log)
