"""The oracle sees what is lost, doubled and foreign: it is the judge, so it is tried first."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from tests.faults.oracle import (
    Book,
    Change,
    Kind,
    Lake,
    current_rows,
    forgive_missing,
    judge,
    make_id,
)

IDS = [make_id(10, number) for number in range(6)]
FIRST = IDS[0]
Columns = Mapping[str, Sequence[object]]


def _lake(root: Path, silver: list[str], *, bronze: list[str] | None = None) -> Lake:
    _write(root / "silver_chess", {"id": silver, "n": [int(known[-8:-1]) for known in silver]})
    payloads = [f"..{known}..".encode() for known in bronze or []]
    if payloads:
        _write(root / "bronze_events", {"payload": payloads})
    return Lake(str(root))


def _write(path: Path, columns: Columns) -> None:
    write_deltalake(str(path), pa.table(columns), mode="append")


def _found(book: Book, lake: Lake) -> list[tuple[Kind, str, int]]:
    return [(f.kind, f.layer, f.count) for f in judge(book, lake)]


def test_nothing_is_found_where_every_id_is_there_once(tmp_path: Path) -> None:
    book = Book(due=set(IDS), layers=frozenset({"bronze"}))
    assert _found(book, _lake(tmp_path, IDS, bronze=IDS)) == []


@pytest.mark.parametrize(
    ("silver", "found"),
    [
        (IDS[1:], (Kind.LOST, "silver", 1)),
        ([*IDS, FIRST], (Kind.DOUBLE, "silver", 1)),
        ([*IDS, make_id(11, 0)], (Kind.ALIEN, "silver", 1)),
    ],
    ids=["lost", "double", "alien"],
)
def test_what_is_wrong_is_told_by_its_name(
    tmp_path: Path, silver: list[str], found: tuple[Kind, str, int]
) -> None:
    assert _found(Book(due=set(IDS)), _lake(tmp_path, silver)) == [found]


def test_each_layer_is_judged_by_itself(tmp_path: Path) -> None:
    book = Book(due=set(IDS), layers=frozenset({"bronze"}))
    lake = _lake(tmp_path, IDS, bronze=[*IDS[2:], IDS[3]])
    assert _found(book, lake) == [(Kind.LOST, "bronze", 2), (Kind.DOUBLE, "bronze", 1)]


def test_a_dead_letter_is_a_place_and_its_id_is_its_own(tmp_path: Path) -> None:
    letters: Columns = {
        "pipeline": ["p"] * 2,
        "id": ["a"] * 2,
        "value": [i.encode() for i in IDS[:2]],
    }
    _write(tmp_path / "dead_letters", letters)
    lake = _lake(tmp_path, IDS[2:])
    book = Book(due=set(IDS), bad=set(IDS[:2]))
    assert _found(book, lake) == [(Kind.DOUBLE, "ids of dead letters", 1)]


def test_what_is_parked_is_not_lost(tmp_path: Path) -> None:
    folder = tmp_path / "_distributary" / "pipelines" / "games" / "parked" / "silver_chess" / "0"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"id": IDS[:2]}), folder / "part.parquet")
    (folder / "entry.json").write_text(json.dumps({"entry": {"files": [{"path": "part.parquet"}]}}))
    assert _found(Book(due=set(IDS)), _lake(tmp_path, IDS[2:])) == []


def test_a_parked_batch_that_cannot_be_read_does_not_wait(tmp_path: Path) -> None:
    folder = tmp_path / "_distributary" / "pipelines" / "games" / "parked" / "silver_chess" / "0"
    folder.mkdir(parents=True)
    (folder / "entry.json").write_text("{")
    assert _found(Book(due=set(IDS)), _lake(tmp_path, IDS[1:])) == [(Kind.LOST, "silver", 1)]


def test_a_value_that_was_not_fed_is_found(tmp_path: Path) -> None:
    _write(tmp_path / "silver_chess", {"id": IDS, "n": [0, 1, 2, 3, 4, 99]})
    assert _found(Book(due=set(IDS)), Lake(str(tmp_path))) == [(Kind.WRONG, "silver_chess", 1)]


def test_a_good_record_is_no_dead_letter(tmp_path: Path) -> None:
    letters: Columns = {"pipeline": ["p"], "id": ["a"], "value": [FIRST.encode()]}
    _write(tmp_path / "dead_letters", letters)
    lake = _lake(tmp_path, IDS[1:])
    assert _found(Book(due=set(IDS)), lake) == [(Kind.WRONG, "dead_letters", 1)]
    assert _found(Book(due=set(IDS), misread=True), lake) == []


def test_what_a_message_has_announced_as_lost_may_be_missing(tmp_path: Path) -> None:
    book = Book(due=set(IDS))
    book.forgive("silver", [FIRST])
    assert _found(book, _lake(tmp_path / "without", IDS[1:])) == []
    assert _found(book, _lake(tmp_path / "with", IDS)) == []


def test_of_a_table_that_is_taken_as_it_is_later_changes_are_judged(tmp_path: Path) -> None:
    changes = [Change(i, "orders", key, (1, key), False) for key, i in enumerate(IDS)]
    book = Book(due=set(IDS), changes=changes[:4])
    _write(tmp_path / "shop_orders", {"id": [0, 9, 4, 4], "eid": [IDS[0], "x", IDS[4], IDS[4]]})
    lake = Lake(str(tmp_path))
    forgive_missing(book, lake, "shop_orders")
    assert _found(book, lake) == []
    book.changes += changes[4:]
    wrong = [(Kind.LOST, "shop_orders", 1), (Kind.DOUBLE, "shop_orders", 1)]
    assert _found(book, lake) == wrong


def test_what_neither_source_nor_table_has_is_not_due() -> None:
    book = Book(due=set(IDS))
    book.source_holds({IDS[0], IDS[1]}, there={IDS[2]})
    assert (book.due, book.free) == (set(IDS[:3]), set(IDS[3:]))
    book.source_holds({IDS[5]}, there=set(IDS[:3]))
    assert (book.due, book.free) == ({*IDS[:3], IDS[5]}, {IDS[3], IDS[4]})


def test_records_of_another_source_may_be_dead_letters() -> None:
    book = Book(due=set(IDS[:3]))
    book.source_holds(set(IDS[3:]), there=set())
    assert (book.due, book.free, book.bad) == (set(IDS[3:]), set(IDS[:3]), set(IDS[3:]))


def test_what_a_person_removed_must_not_come_back(tmp_path: Path) -> None:
    book = Book(due=set(IDS))
    book.take_away("silver", [FIRST])
    assert _found(book, _lake(tmp_path / "gone", IDS[1:])) == []
    assert _found(book, _lake(tmp_path / "back", IDS)) == [(Kind.ALIEN, "silver", 1)]
    # unless the source is read again from before
    book.read_again()
    for rows in ("gone", "back"):
        assert _found(book, _lake(tmp_path / f"{rows}_again", IDS[rows == "gone" :])) == []


def test_a_batch_that_was_settled_twice_is_found_in_the_ledger(tmp_path: Path) -> None:
    row: Columns = {"pipeline": ["p"], "life": ["l"], "lane": ["stream"], "batch": [4]}
    for _ in range(2):
        _write(tmp_path / "_distributary" / "ledger" / "batches", row)
    assert _found(Book(due=set(IDS)), _lake(tmp_path, IDS)) == [(Kind.DOUBLE, "ledger", 1)]


def test_a_ledger_that_cannot_be_read_is_found(tmp_path: Path) -> None:
    batches = tmp_path / "_distributary" / "ledger" / "batches"
    _write(batches, {"pipeline": ["p"], "life": ["l"], "lane": ["stream"], "batch": [4]})
    (file,) = batches.glob("*.parquet")
    file.write_bytes(b"PAR1" + bytes(100))
    assert _found(Book(due=set(IDS)), _lake(tmp_path, IDS)) == [(Kind.BROKEN, "ledger", 1)]


def test_the_rows_of_now_are_computed_from_the_order_of_the_source() -> None:
    late, early, deleted = (
        Change(IDS[0], "orders", 1, (5, 9), False),
        Change(IDS[1], "orders", 1, (5, 8), True),
        Change(IDS[2], "orders", 2, (6, 0), True),
    )
    assert current_rows([late, early, deleted]) == {"orders": {1: IDS[0]}}


def test_a_table_of_change_data_must_be_what_the_source_is(tmp_path: Path) -> None:
    changes = [Change(i, "orders", key, (1, key), False) for key, i in enumerate(IDS)]
    book = Book(due=set(IDS), changes=changes, layers=frozenset({"log"}))
    _write(tmp_path / "shop_orders_log", {"eid": IDS})
    _write(tmp_path / "shop_orders", {"id": [0, 1, 2, 3, 4, 4, 9], "eid": [*IDS[:5], *IDS[4:]]})
    assert _found(book, Lake(str(tmp_path))) == [
        (Kind.LOST, "shop_orders", 1),
        (Kind.DOUBLE, "shop_orders", 1),
        (Kind.ALIEN, "shop_orders", 1),
    ]
