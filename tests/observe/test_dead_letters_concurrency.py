"""Marks and appends at the same time: every mark lands, no letter is lost or doubled."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.delta import tables
from distributary.errors import DistributaryError, ErrorCode
from distributary.model.deadletter import dead_letter_id
from distributary.observe.deadletters import DeadLetters


def discard_all(path: str, names: list[str], note: str) -> int:
    return DeadLetters(path).discard(names, note=note)


def test_a_pipeline_appends_while_letters_are_marked(lake):
    path = lake.dead_letters([{"offset": n} for n in range(40)])
    names = [dead_letter_id("games", "life", "wrapper", 0, n) for n in range(40)]

    def append():
        for batch in range(1, 16):
            lake.dead_letters([{"offset": 100 + batch, "batch": batch}])

    def mark(part):
        return sum(DeadLetters(path).discard([name], note="x") for name in part)

    with ThreadPoolExecutor(3) as pool:
        appending = pool.submit(append)
        marked = [pool.submit(mark, names[0:8]), pool.submit(mark, names[8:16])]
        assert [future.result() for future in marked] == [8, 8]
        appending.result()
    letters = DeadLetters(path)
    assert letters.count_by_status() == {"open": 39, "replayed": 0, "discarded": 16}
    assert len(letters.select(status=None)) == 55


def test_two_processes_mark_the_same_letters_once(lake):
    path = lake.dead_letters([{"offset": n} for n in range(30)])
    names = [dead_letter_id("games", "life", "wrapper", 0, n) for n in range(30)]
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(1) as pool:
        elsewhere = pool.apply_async(discard_all, (path, names, "elsewhere"))
        here = sum(discard_all(path, [name], "here") for name in names[:10])
        assert here + elsewhere.get() == 30
    notes = DeadLetters(path).select(status="discarded")["note"].to_pylist()
    assert (len(notes), notes.count("here")) == (30, here)


def test_an_append_of_a_newer_batch_is_no_conflict(lake, monkeypatch):
    path = lake.dead_letters([{"offset": 1, "batch": 1}])
    whole = DeltaTable.merge
    tries = []

    def overtaken(self, *args, **kwargs):
        tries.append(1)
        merge = whole(self, *args, **kwargs)
        lake.dead_letters([{"offset": 50, "batch": 2}])
        return merge

    monkeypatch.setattr(DeltaTable, "merge", overtaken)
    assert (
        DeadLetters(path).discard([dead_letter_id("games", "life", "wrapper", 0, 1)], note="x") == 1
    )
    assert len(tries) == 1


def test_an_append_to_the_same_batch_is_tried_again(lake, monkeypatch):
    path = lake.dead_letters([{"offset": 1, "batch": 1}])
    whole = DeltaTable.merge
    tries = []

    def overtaken(self, *args, **kwargs):
        tries.append(1)
        merge = whole(self, *args, **kwargs)
        if len(tries) == 1:
            lake.dead_letters([{"offset": 50, "batch": 1}])
        return merge

    monkeypatch.setattr(DeltaTable, "merge", overtaken)
    assert (
        DeadLetters(path).discard([dead_letter_id("games", "life", "wrapper", 0, 1)], note="x") == 1
    )
    assert len(tries) == 2
    assert DeadLetters(path).count_by_status() == {"open": 1, "replayed": 0, "discarded": 1}


def test_a_table_that_never_rests_is_an_error_with_a_code(lake, monkeypatch):
    path = lake.dead_letters([{"offset": 1, "batch": 1}])
    whole = DeltaTable.merge

    def overtaken(self, *args, **kwargs):
        merge = whole(self, *args, **kwargs)
        lake.dead_letters([{"offset": 50, "batch": 1}])
        return merge

    monkeypatch.setattr(DeltaTable, "merge", overtaken)
    monkeypatch.setattr(tables, "CONFLICT_ATTEMPTS", 2)
    with pytest.raises(DistributaryError) as caught:
        DeadLetters(path).discard([dead_letter_id("games", "life", "wrapper", 0, 1)], note="x")
    assert caught.value.code is ErrorCode.COMMIT_FAILED


def test_an_unreadable_table_is_an_error_with_a_code(lake):
    path = lake.dead_letters([{"offset": 1}])
    for file in DeltaTable(path).file_uris():
        with open(file.removeprefix("file://"), "wb") as broken:
            broken.write(b"not parquet")
    with pytest.raises(DistributaryError) as caught:
        DeadLetters(path).select()
    assert caught.value.code is ErrorCode.DATA_FILE_DAMAGED


def test_appending_is_possible_after_marks(lake):
    path = lake.dead_letters([{"offset": 1}])
    DeadLetters(path).discard([dead_letter_id("games", "life", "wrapper", 0, 1)], note="x")
    rows = DeadLetters(path).select(status=None)
    write_deltalake(path, rows, mode="append")
    assert DeltaTable(path).count() == 2
