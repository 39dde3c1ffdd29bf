"""Sums over the ledger: tables, parked and resumed ones, replays, and what expiry leaves."""

from __future__ import annotations

from datetime import timedelta

import pytest
from deltalake import DeltaTable

from distributary.model import layout
from distributary.model.manifest import Counts, SourceRange
from distributary.model.table import Role
from distributary.observe.ledger import ledger_table as module
from distributary.observe.ledger.ledger import Ledger
from distributary.observe.ledger.ledger_table import LedgerTable


def test_a_table_is_summed_over_its_batches(lake, noon):
    for batch in range(3):
        entries = [lake.entry("chess", records=10, schema_ids=(batch,))]
        entries += [lake.entry("go", records=5)] if batch == 1 else []
        lake.settle(lake.manifest(batch, entries=entries))
    chess, go = lake.ledger.tables()
    assert (chess.table, chess.rows, chess.records, chess.bytes) == ("chess", 30, 30, 300)
    assert (chess.batches, chess.columns, chess.version) == (3, 4, 2)
    assert chess.schema_ids == (0, 1, 2)
    assert (chess.first_seen, chess.last_commit) == (noon, noon + timedelta(seconds=20))
    assert chess.freshness(noon + timedelta(seconds=50)) == 30.0
    assert (go.rows, go.role, go.type, go.path) == (5, "each", "go", f"{lake.path}/go")
    assert lake.ledger.tables("other") == ()
    assert lake.ledger.tables(schema_ids=False)[0].schema_ids == ()


def test_what_is_parked_counts_when_it_is_resumed(lake):
    manifests = []
    for batch in range(3):
        entries = [lake.entry("chess", records=6), lake.entry("go", records=4)]
        manifest = lake.manifest(batch, entries=entries)
        manifests.append(lake.settle(manifest, parked=["go"] if batch else []))
    chess, go = lake.ledger.tables()
    assert (chess.rows, chess.parked_batches) == (18, 0)
    assert (go.rows, go.parked_batches, go.parked_records) == (4, 2, 8)
    assert go.error == "disk is full"
    assert lake.ledger.totals("games") == Counts(30, 22, 0, 8)
    lake.resume(manifests[1], "go")
    assert lake.ledger.totals("games") == Counts(30, 26, 0, 4)
    lake.resume(manifests[2], "go")
    assert lake.ledger.totals("games") == Counts(30, 30)
    go = lake.ledger.tables()[1]
    assert (go.rows, go.parked_batches, go.error) == (12, 0, "")
    assert lake.ledger.parked() == ()


def test_resuming_twice_is_resuming_once(lake):
    manifest = lake.settle(lake.manifest(0), parked=["chess"])
    for _ in range(3):
        lake.resume(manifest, "chess")
    assert lake.ledger.tables()[0].rows == 10
    assert lake.ledger.totals("games") == Counts(10, 10)


def test_a_table_that_is_still_parked_is_not_resumed(lake):
    manifest = lake.settle(lake.manifest(0), parked=["chess"])
    lake.resume(manifest, "chess", still_parked=True)
    assert lake.ledger.totals("games") == Counts(10, 0, 0, 10)
    (table,) = lake.ledger.tables()
    assert (table.rows, table.last_commit, table.batches) == (0, None, 0)


def test_a_record_counts_by_its_own_table(lake):
    entries = [lake.entry("chess"), lake.entry("gold", role=Role.UNIFIED)]
    manifest = lake.settle(lake.manifest(0, entries=entries), parked=["chess", "gold"])
    assert lake.ledger.totals("games") == Counts(10, 0, 0, 10)
    lake.resume(manifest, "chess")
    assert lake.ledger.totals("games") == Counts(10, 10)
    assert [row.table for row in lake.ledger.parked()] == ["gold"]
    lake.ledger.expire(lake.ledger.batches()[0].finished_at + timedelta(days=1))
    assert lake.ledger.totals("games") == Counts(10, 10)
    assert [row.table for row in lake.ledger.parked()] == ["gold"]
    lake.resume(manifest, "gold")
    assert lake.ledger.parked() == ()


def test_a_pipeline_name_with_slashes_is_resumed_as_itself(lake):
    manifest = lake.settle(lake.manifest(0, pipeline="a/b/c"), parked=["chess"])
    lake.resume(manifest, "chess")
    assert lake.ledger.totals("a/b/c") == Counts(10, 10)


def test_a_batch_finds_the_record_by_its_range(lake):
    ranges = [SourceRange("a", 0, 5, 9, 4), SourceRange("b", 1, 100, 200, 90)]
    entries = [lake.entry("chess", offsets=(5, 150)), lake.entry("go", offsets=(160, 199))]
    lake.settle(lake.manifest(0, entries=entries, ranges=ranges))
    lake.settle(lake.manifest(1, ranges=[SourceRange("b", 1, 200, 210, 10)]))
    (found,) = lake.ledger.find_batch("b", 1, 150)
    assert found.batch.batch == 0 and [t.table for t in found.tables] == ["chess"]
    assert [f.batch.batch for f in lake.ledger.find_batch("b", 1, 200)] == [1]
    assert lake.ledger.find_batch("a", 0, 9) == ()
    assert lake.ledger.find_batch("b", 0, 150) == ()
    assert sorted(tuple(r.values()) for r in lake.ledger.read_ranges().to_pylist()) == [
        ("a", 0, 5, 9, 4),
        ("b", 1, 100, 210, 100),
    ]


@pytest.fixture
def history(lake):
    """Twelve batches: dead letters, a replay, one table parked twice and resumed once."""
    for batch in range(12):
        entries = [lake.entry("chess", records=6, schema_ids=(batch % 2,)), lake.entry("go")]
        entries[1] = lake.entry("go", records=4)
        manifest = lake.manifest(batch, entries=entries, dead_letters={"BAD_MAGIC": 2})
        lake.settle(manifest, parked=["go"] if batch in (2, 3) else [])
        if batch == 2:
            resumed = manifest
    lake.resume(resumed, "go")
    replay = lake.manifest(0, lane="replay", counts=Counts(20, 10, 10))
    lake.settle(replay, at=lake.ledger.batches()[5].finished_at)
    return lake


def _facts(lake):
    tables = lake.ledger.tables()
    return (lake.ledger.totals("games"), tables, lake.ledger.parked())


def test_expiry_keeps_every_sum(history, noon):
    before = _facts(history)
    assert before[0] == Counts(144, 126, 14, 4)
    expired = history.ledger.expire(noon + timedelta(seconds=85))
    assert expired.batches == 10
    assert _facts(history) == before
    # once for the stream, once for replays, the parked one, and three that are younger
    rows = history.ledger.batches()
    assert sorted((b.lane, b.batch, b.batches) for b in rows) == [
        ("replay", 0, 1),
        ("stream", 3, 1),
        ("stream", 8, 8),
        ("stream", 9, 1),
        ("stream", 10, 1),
        ("stream", 11, 1),
    ]
    history.ledger.expire(noon + timedelta(days=1))
    assert _facts(history) == before
    assert len(history.ledger.batches()) == 3


def test_a_parked_table_can_be_resumed_after_expiry(history, noon):
    history.ledger.expire(noon + timedelta(days=1))
    (waiting,) = history.ledger.parked()
    assert waiting.files and waiting.batch == 3
    manifest = history.manifest(3, entries=[history.entry("go", records=4)])
    history.resume(manifest, "go")
    assert history.ledger.totals("games") == Counts(144, 130, 14)
    history.ledger.expire(noon + timedelta(days=9000))
    assert history.ledger.totals("games") == Counts(144, 130, 14)
    assert sorted((b.lane, b.batches) for b in history.ledger.batches()) == [
        ("replay", 1),
        ("stream", 12),
    ]


def test_a_crash_in_the_middle_of_expiry_changes_no_sum(history, noon, monkeypatch):
    before = _facts(history)
    calls = []

    def once(self, *args):
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        whole(self, *args)

    whole = LedgerTable.replace_before
    with monkeypatch.context() as patch:
        patch.setattr(LedgerTable, "replace_before", once)
        with pytest.raises(KeyboardInterrupt):
            history.ledger.expire(noon + timedelta(days=1))
    assert _facts(history) == before
    history.ledger.expire(noon + timedelta(days=1))
    assert _facts(history) == before


def test_rows_that_arrive_during_expiry_are_not_lost(history, noon, monkeypatch):
    late = iter([20, 21])
    whole = module.write_deltalake

    def overtaken(*args, **kwargs):
        for batch in late:
            history.settle(history.manifest(batch, pipeline="late"), at=noon)
            break
        whole(*args, **kwargs)

    before = _facts(history)[0]
    monkeypatch.setattr(module, "write_deltalake", overtaken)
    expired = history.ledger.expire(noon + timedelta(days=1))
    assert history.ledger.totals("games") == before
    assert history.ledger.totals("late") == Counts(20, 20)
    assert [t.rows for t in history.ledger.tables("late")] == [20]
    assert expired.batches == 15


def test_expiry_forgets_no_mark(history, noon):
    history.ledger.expire(noon + timedelta(days=1))
    before = _facts(history)
    for batch in (0, 11):
        history.settle(history.manifest(batch))
    assert _facts(history) == before
    assert history.ledger.settled("games", "life1", "stream", 11)


def test_expired_batches_still_know_their_ranges(history, noon):
    history.ledger.expire(noon + timedelta(seconds=85))
    found = history.ledger.find_batch("wrapper", 0, 15)
    assert [(f.batch.batch, f.batch.batches) for f in found] == [(8, 8)]
    history.ledger.expire(noon + timedelta(days=1))
    (found,) = history.ledger.find_batch("wrapper", 0, 15)
    assert found.batch.ranges == (SourceRange("wrapper", 0, 0, 120, 110),)


def test_expiry_leaves_a_running_pipeline_alone(lake, noon):
    ledger = Ledger(lake.path)
    lake.settle(lake.manifest(0), ledger=ledger)
    other = Ledger(lake.path)
    lake.settle(lake.manifest(1), ledger=ledger)
    other.expire(noon + timedelta(seconds=5))
    lake.settle(lake.manifest(2), ledger=ledger)
    assert [b.batch for b in lake.ledger.batches()] == [0, 1, 2]
    table = DeltaTable(layout.ledger_table(lake.path, "batches"))
    assert table.transaction_version("distributary/games/life1/stream") == 2


def test_a_forgotten_pipeline_leaves_the_others(lake):
    for name in ("games", "it's"):
        lake.settle(lake.manifest(0, pipeline=name))
    lake.ledger.forget("it's")
    assert lake.ledger.pipelines() == ("games",)
    assert lake.ledger.totals("it's") == Counts()
    assert [t.pipeline for t in lake.ledger.tables()] == ["games"]
