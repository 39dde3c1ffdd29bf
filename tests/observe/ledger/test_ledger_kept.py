"""The sums that the ledger keeps: readers read what came since then, and miss nothing."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from distributary.delta.compact import BusyError
from distributary.model import layout
from distributary.model.manifest import Counts, app_id
from distributary.model.table import Role
from distributary.observe.ledger import ledger as module
from distributary.observe.ledger import ledger_table
from distributary.observe.ledger.ledger import Ledger
from distributary.observe.ledger.ledger_table import LedgerTable
from distributary.observe.ledger.recording import Accepted
from distributary.store import base
from distributary.store.base import introduce
from tests.services.shared import unique
from tests.source.s3_server import BUCKET, s3_server

EVERY = 4


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_table, "UPKEEP_EVERY", EVERY)


def answers(path: str) -> dict[str, Any]:
    # each table is opened once, and not for each answer
    ledger = Ledger(path).hold()
    found = {
        "tables": ledger.tables(),
        "places": ledger.places(),
        "letters": ledger.dead_letters(),
        "commits": sorted(ledger.last_commits(), key=str),
        "rules": ledger.rules(),
        "use": sorted(map(str, ledger.schema_use().to_pylist())),
        "parked": ledger.parked(),
        "pipelines": ledger.pipelines(),
        "ranges": sorted(map(str, ledger.read_ranges().to_pylist())),
        "covered": sorted(map(str, ledger.covered().to_pylist())),
        "found": [each.batch.key for each in ledger.find_batch("wrapper", 0, 15)],
        "newest": ledger.newest_settled(app_id("games", "life1")),
    }
    for name in ledger.pipelines():
        found[f"totals {name}"] = ledger.totals(name)
        found[f"last {name}"] = ledger.batches(name, last=3)
        found[f"stream {name}"] = ledger.batches(name, lane="stream", last=2)
    return found


def all_rows_read(path: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The same answers from all rows, without any sums."""
    with monkeypatch.context() as patch:
        patch.setattr(LedgerTable, "_uncovered", lambda self, version: (None, version.files))
        return answers(path)


def place(lake: Any, name: str = "tables") -> str:
    return layout.ledger_table(lake.path, name)


def uncovered(lake: Any, name: str = "tables") -> int | None:
    """How many files a reader of the sums has to read; None: there are no sums of use."""
    store: LedgerTable = getattr(lake.ledger, f"_{name}")
    version = store._open()
    assert version is not None
    kept, fresh = store._uncovered(version)
    return None if kept is None or fresh is None else len(fresh.files)


def settle(lake: Any, first: int, last: int, ledger: Ledger | None = None) -> None:
    for batch in range(first, last):
        entries = [lake.entry("chess", schema_ids=(batch % 3,)), lake.entry("go", records=5)]
        lake.settle(lake.manifest(batch, entries=entries), ledger=ledger)


def test_answers_are_those_of_all_rows_after_every_step(lake, monkeypatch):
    same = lambda: answers(lake.path) == all_rows_read(lake.path, monkeypatch)  # noqa: E731
    waiting = []
    for batch in range(4 * EVERY):
        entries = [
            lake.entry("chess", schema_ids=(batch % 3, 9) if batch % 5 == 0 else (1,)),
            lake.entry("go", records=4),
            lake.entry("letters", records=0, role=Role.DEAD_LETTERS),
        ]
        manifest = lake.manifest(batch, entries=entries)
        parks = 2 <= batch % 8 <= 4
        lake.settle(manifest, parked=["go"] if parks else [])
        waiting += [manifest] if parks else []
        if batch % 8 == 6:
            lake.resume(waiting.pop(0), "go")
        if batch == 9:
            other = lake.manifest(0, pipeline="other", life="life7", entries=[lake.entry("chess")])
            lake.settle(other)
            lake.settle(lake.manifest(0, lane="replay", counts=Counts(4, 4), entries=entries[1:2]))
        if batch == 10:
            commit = next(c for c in lake.ledger.last_commits() if c.table == "chess")
            lake.ledger.accept([Accepted(commit, batch=batch, rows=-3, version=batch)])
        assert same()
    assert uncovered(lake) is not None
    lake.ledger.expire(lake.ledger.batches()[7].finished_at)
    assert same()
    assert uncovered(lake) is not None
    lake.ledger.forget("other")
    assert same()
    assert "other" not in lake.ledger.pipelines()


@pytest.mark.parametrize("name", ["tables", "batches"])
def test_readers_read_a_few_files_however_many_batches_there_are(lake, name):
    most = 0
    for batch in range(10 * EVERY):
        settle(lake, batch, batch + 1)
        if batch >= EVERY:
            left = uncovered(lake, name)
            assert left is not None
            most = max(most, left)
    assert most <= EVERY
    table = DeltaTable(place(lake, name))
    # what was put together stays together: a handful of files
    assert len(table.file_uris()) <= 2 * EVERY
    assert len([*Path(place(lake, name), "_sums").iterdir()]) <= 10 * EVERY


def test_a_lake_of_before_is_summed_up_by_its_next_run(lake, monkeypatch):
    with monkeypatch.context() as before:
        before.setattr(LedgerTable, "_upkeep", lambda self: None)
        settle(lake, 0, 2 * EVERY)
    assert uncovered(lake) is None
    old = answers(lake.path)
    assert old == all_rows_read(lake.path, monkeypatch)
    # not a version at which it would be done anyway
    settle(lake, 2 * EVERY, 2 * EVERY + 1, ledger=Ledger(lake.path))
    assert uncovered(lake) == 0
    assert answers(lake.path) == all_rows_read(lake.path, monkeypatch)


def test_maintenance_sums_up_a_lake_of_before(lake, monkeypatch):
    with monkeypatch.context() as before:
        before.setattr(LedgerTable, "_upkeep", lambda self: None)
        settle(lake, 0, 2 * EVERY)
    old = answers(lake.path)
    lake.ledger.tidy()
    assert (uncovered(lake), uncovered(lake, "batches")) == (0, 0)
    assert answers(lake.path) == old
    version = DeltaTable(place(lake)).version()
    lake.ledger.tidy()
    # with nothing new there is nothing to do
    assert DeltaTable(place(lake)).version() == version


@pytest.mark.parametrize("damage", ["gone", "cut", "other"])
def test_without_its_sums_a_ledger_is_read_as_a_whole(lake, monkeypatch, damage):
    settle(lake, 0, 3 * EVERY)
    before = answers(lake.path)
    for file in Path(place(lake), "_sums").iterdir():
        if damage == "gone":
            file.unlink()
        else:
            file.write_bytes(file.read_bytes()[:50] if damage == "cut" else b"what is this")
    assert uncovered(lake) is None
    assert answers(lake.path) == before
    settle(lake, 3 * EVERY, 5 * EVERY)
    assert uncovered(lake) is not None
    assert answers(lake.path) == all_rows_read(lake.path, monkeypatch)


def test_a_crash_between_sums_and_commit_changes_nothing(lake, monkeypatch):
    settle(lake, 0, 2 * EVERY)

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ledger_table, "exchange_all", crash)
        with pytest.raises(KeyboardInterrupt):
            settle(lake, 2 * EVERY, 4 * EVERY)
    assert answers(lake.path) == all_rows_read(lake.path, monkeypatch)
    settle(lake, 2 * EVERY, 5 * EVERY)
    assert lake.ledger.totals("games") == Counts(15 * 5 * EVERY, 15 * 5 * EVERY)
    assert answers(lake.path) == all_rows_read(lake.path, monkeypatch)


def test_one_that_comes_second_leaves_the_ledger_to_the_first(lake, monkeypatch):
    settle(lake, 0, 2 * EVERY)

    def late(*_: object) -> None:
        raise BusyError

    with monkeypatch.context() as patch:
        patch.setattr(ledger_table, "exchange_all", late)
        settle(lake, 2 * EVERY, 4 * EVERY)
    assert answers(lake.path) == all_rows_read(lake.path, monkeypatch)


def test_what_others_compact_is_read_as_a_whole_and_summed_again(lake, monkeypatch):
    settle(lake, 0, 2 * EVERY + 1)
    DeltaTable(place(lake)).optimize.compact()
    assert uncovered(lake) is None
    assert answers(lake.path) == all_rows_read(lake.path, monkeypatch)
    settle(lake, 2 * EVERY + 1, 4 * EVERY)
    assert uncovered(lake) is not None
    assert answers(lake.path) == all_rows_read(lake.path, monkeypatch)


def test_vacuum_leaves_the_sums_alone(lake):
    settle(lake, 0, 2 * EVERY)
    table = DeltaTable(place(lake))
    gone = table.vacuum(0, dry_run=False, full=True, enforce_retention_duration=False)
    assert gone and not any("_sums" in path for path in gone)
    assert uncovered(lake) is not None


def test_sums_that_no_reader_needs_any_more_are_removed(lake, monkeypatch):
    monkeypatch.setattr(ledger_table, "_SUMS_KEPT_NS", 0)
    settle(lake, 0, 6 * EVERY)
    assert len([*Path(place(lake), "_sums").iterdir()]) == 1
    assert uncovered(lake) is not None


def test_a_reader_that_holds_a_version_sees_its_sums(lake):
    settle(lake, 0, 2 * EVERY)
    held = Ledger(lake.path).hold()
    before = held.tables()
    settle(lake, 2 * EVERY, 4 * EVERY)
    assert held.tables() == before
    assert held.totals("games") == Counts(15 * 2 * EVERY, 15 * 2 * EVERY)
    assert lake.ledger.tables() != before


def test_a_record_is_found_in_any_block(lake, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 3)
    monkeypatch.setattr("distributary.observe.ledger.sums.BLOCK", 3)
    settle(lake, 0, 10)
    for batch in (0, 2, 3, 9):
        (found,) = lake.ledger.find_batch("wrapper", 0, batch * 10 + 4)
        assert found.batch.batch == batch
    assert lake.ledger.find_batch("wrapper", 0, 100) == ()
    lake.ledger.expire(lake.ledger.batches()[5].finished_at + timedelta(seconds=1))
    (found,) = lake.ledger.find_batch("wrapper", 0, 14)
    assert (found.batch.batch, found.batch.batches) == (5, 6)


def test_a_log_that_is_shortened_at_every_commit_stands_in_nobodys_way(lake, monkeypatch):
    short = {"delta.logRetentionDuration": "interval 0 seconds", "delta.checkpointInterval": "1"}
    monkeypatch.setattr(ledger_table, "PROPERTIES", {**ledger_table.PROPERTIES, **short})
    for batch in range(3 * EVERY):
        # each time by another process, which looks at the sums at its first commit
        settle(lake, batch, batch + 1, ledger=Ledger(lake.path))
    assert answers(lake.path) == all_rows_read(lake.path, monkeypatch)


def test_a_reader_opens_a_version_again_whose_log_was_shortened(lake, monkeypatch):
    settle(lake, 0, 2 * EVERY)
    real, failures = DeltaTable.transaction_version, [DeltaError("File not found")]

    def once(self: DeltaTable, app: str) -> int | None:
        if failures:
            raise failures.pop()
        return real(self, app)

    monkeypatch.setattr(DeltaTable, "transaction_version", once)
    assert lake.ledger.totals("games") == Counts(15 * 2 * EVERY, 15 * 2 * EVERY)
    assert not failures


def test_sums_are_kept_in_a_bucket_too(lake, monkeypatch):
    monkeypatch.setattr(base, "_OPTIONS", {})
    with s3_server() as server:
        lake.path = f"s3://{BUCKET}/{unique('ledger')}"
        introduce(lake.path, server.options)
        settle(lake, 0, 2 * EVERY + 1)
        left = uncovered(lake)
        assert left is not None and left <= EVERY
        assert answers(lake.path) == all_rows_read(lake.path, monkeypatch)
        assert lake.ledger.totals("games") == Counts(15 * (2 * EVERY + 1), 15 * (2 * EVERY + 1))
