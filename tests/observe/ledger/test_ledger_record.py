"""A batch enters the ledger whole and once, whatever happens while it does."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from distributary.errors import DistributaryError, ErrorCode
from distributary.model import layout
from distributary.model.manifest import Counts, SchemaUse, SourceRange, app_id
from distributary.model.table import ChangeKind, ColumnChange
from distributary.observe.ledger import ledger_table
from distributary.observe.ledger.ledger import Ledger
from distributary.observe.ledger.ledger_table import LedgerTable
from distributary.observe.ledger.recording import BATCHES, SCHEMAS, TABLES, BatchTimes

HOSTILE = 'it\'s "<b>"; DROP TABLE x --\\ \u202e %s {0} `'


class Crash(BaseException):
    """The process ends here: no handler of ours may hide it."""


def rating(name="chess"):
    added = ColumnChange(ChangeKind.COLUMN_ADDED, "rating", "", "int", "add")
    return SchemaUse(name, name, 7, "chess-value v3", (added,))


def test_a_batch_is_stored_with_all_its_facts(lake, noon):
    entries = [lake.entry("chess", records=6, schema_ids=(7, 3)), lake.entry("go", records=4)]
    ranges = [SourceRange("wrapper", 0, 5, 17, 12)]
    manifest = lake.manifest(
        4, entries=entries, dead_letters={"BAD_MAGIC": 2}, ranges=ranges, schemas=[rating()]
    )
    lake.settle(manifest, lag_records=70, steps={"stage": 3.5, "publish": 1.0})
    (row,) = lake.ledger.batches()
    assert row.key == ("games", "life1", "stream", 4)
    assert row.counts == Counts(12, 10, 2) and row.counts.balanced
    assert (row.rows, row.files, row.tables, row.bytes) == (10, 2, 2, 200)
    assert (row.lag_records, row.lag_seconds, row.stages) == (70, 1.5, 1)
    assert row.ranges == tuple(ranges) and row.dead_letters == {"BAD_MAGIC": 2}
    assert row.steps == {"plan": 0.0, "stage": 3.5, "manifest": 0.0, "publish": 1.0}
    assert row.seconds == 5.0 and row.finished_at > noon
    chess, go = lake.ledger.batch_tables(row)
    assert (chess.table, chess.records, chess.schema_ids) == ("chess", 6, (3, 7))
    assert (go.outcome, go.version, go.files) == ("published", 4, ("part-2.parquet",))


def test_every_schema_change_is_a_line_of_history(lake):
    quiet = SchemaUse("go", "go", 9, "go-value v1", ())
    lake.settle(lake.manifest(0, schemas=[rating(), quiet]))
    first, second = lake.ledger.schema_history()
    assert (first.text, first.schema, first.schema_id) == ("+ rating int", "chess-value v3", 7)
    assert (second.kind, second.table) == ("seen", "go")
    assert lake.ledger.schema_history("go") == (second,)
    assert lake.ledger.schema_history("go", pipeline="other") == ()


@pytest.mark.parametrize("table", layout.LEDGER_TABLES)
def test_columns_carry_their_comments(lake, table):
    lake.settle(lake.manifest(schemas=[rating()]))
    stored = DeltaTable(layout.ledger_table(lake.path, table)).schema()
    expected = {"batches": BATCHES, "tables": TABLES, "schemas": SCHEMAS}[table]
    assert {f.name: f.metadata["comment"] for f in stored.fields} == {
        f.name: f.metadata[b"comment"].decode() for f in expected
    }


def test_recording_twice_is_recording_once(lake):
    manifest = lake.manifest(3, schemas=[rating()])
    lake.settle(manifest)
    lake.settle(manifest)
    assert len(lake.ledger.batches()) == 1
    assert len(lake.ledger.schema_history()) == 1
    assert lake.ledger.tables()[0].rows == 10


@pytest.mark.parametrize("landed", [False, True], ids=["before the commit", "after the commit"])
@pytest.mark.parametrize("append", [1, 2, 3])
def test_a_crash_in_any_append_is_made_good_by_the_second_call(lake, monkeypatch, append, landed):
    lake.settle(lake.manifest(0, schemas=[rating()]))
    manifest = lake.manifest(1, schemas=[rating()])
    calls = []

    def crashing(self, rows, **mark):
        calls.append(self.path)
        if len(calls) == append and not landed:
            raise Crash
        whole(self, rows, **mark)
        if len(calls) == append:
            raise Crash

    whole = LedgerTable.append_once
    with monkeypatch.context() as patch:
        patch.setattr(LedgerTable, "append_once", crashing)
        with pytest.raises(Crash):
            lake.settle(manifest)
    settled = lake.ledger.settled("games", "life1", "stream", 1)
    assert settled == (manifest.source_hash if append == 3 and landed else None)
    lake.settle(manifest)
    assert [b.batch for b in lake.ledger.batches()] == [0, 1]
    assert len(lake.ledger.schema_history()) == 2
    assert lake.ledger.tables()[0].rows == 20
    assert lake.ledger.totals("games") == Counts(20, 20)


def test_a_file_without_a_commit_is_not_there(lake, monkeypatch):
    lake.settle(lake.manifest(0))

    def die(*args, **kwargs):
        raise Crash

    ledger = lake.ledger
    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", die)
        with pytest.raises(Crash):
            lake.settle(lake.manifest(1), ledger=ledger)
    assert len(lake.ledger.batches()) == 1
    # the same object goes on after a failure
    lake.settle(lake.manifest(1), ledger=ledger)
    assert lake.ledger.tables()[0].rows == 20


def test_two_processes_with_one_batch_store_it_once(lake):
    manifest = lake.manifest(1, schemas=[rating()])
    lake.settle(lake.manifest(0))
    barrier = threading.Barrier(4)

    def settle():
        ledger = lake.ledger
        barrier.wait()
        lake.settle(manifest, ledger=ledger)

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(settle) for _ in range(4)]:
            future.result()
    assert [b.batch for b in lake.ledger.batches()] == [0, 1]
    assert lake.ledger.tables()[0].rows == 20
    assert len(lake.ledger.schema_history()) == 1


def test_pipelines_share_a_ledger_from_its_first_moment(lake):
    names = ["a", "b", "c"]

    def settle(name):
        ledger = lake.ledger
        for batch in range(4):
            lake.settle(lake.manifest(batch, pipeline=name), ledger=ledger)

    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(settle, names))
    assert lake.ledger.pipelines() == ("a", "b", "c")
    assert [lake.ledger.totals(name) for name in names] == [Counts(40, 40)] * 3
    assert [len(lake.ledger.batches(name, last=3)) for name in names] == [3, 3, 3]


def test_lives_and_lanes_do_not_hide_each_other(lake):
    for life, lane in (("life1", "stream"), ("life2", "stream"), ("life2", "replay")):
        lake.settle(lake.manifest(0, life=life, lane=lane))
    assert len(lake.ledger.batches()) == 3
    assert len(lake.ledger.batches(lane="replay")) == 1
    assert lake.ledger.settled("games", "life2", "stream", 0)
    assert lake.ledger.settled("games", "life2", "stream", 1) is None
    assert lake.ledger.settled("games", "life3", "stream", 0) is None


def test_the_newest_batch_of_a_lane_is_known_without_reading_rows(lake, noon, monkeypatch):
    for batch in range(3):
        lake.settle(lake.manifest(batch))
    lake.settle(lake.manifest(0, life="life2", lane="replay"))
    lake.ledger.expire(noon + timedelta(days=1))

    def newest(life, lane="stream"):
        return lake.ledger.newest_settled(app_id("games", life, lane))

    assert (newest("life1"), newest("life2", "replay")) == (2, 0)
    assert (newest("life1", "replay"), newest("life2")) == (-1, -1)
    with monkeypatch.context() as patch:
        patch.setattr(LedgerTable, "read", lambda *args: pytest.fail("rows were read"))
        assert newest("life1") == 2
    # a ledger whose marks were taken away by another engine
    monkeypatch.setattr("deltalake.DeltaTable.transaction_version", lambda *args: None)
    assert (newest("life1"), newest("life2")) == (2, -1)


def test_a_batch_that_does_not_add_up_is_refused(lake):
    manifest = lake.manifest(0, counts=Counts(11, 10))
    with pytest.raises(DistributaryError) as caught:
        lake.settle(manifest)
    assert caught.value.code is ErrorCode.ACCOUNTING_BROKEN
    assert lake.ledger.batches() == ()


def test_a_table_without_an_outcome_is_refused(lake, noon):
    manifest = lake.manifest(0)
    with pytest.raises(DistributaryError) as caught:
        lake.ledger.record(manifest, [], times=BatchTimes(noon), counts=manifest.counts)
    assert caught.value.code is ErrorCode.ACCOUNTING_BROKEN


def test_an_empty_batch_is_a_batch(lake):
    lake.settle(lake.manifest(0, entries=[]))
    assert lake.ledger.batches()[0].counts == Counts()
    assert lake.ledger.tables() == ()


def test_an_empty_lake_reads_as_empty(lake, noon):
    ledger = lake.ledger
    assert ledger.batches() == () and ledger.tables() == () and ledger.parked() == ()
    assert ledger.schema_history("x") == () and ledger.pipelines() == ()
    assert ledger.totals("games") == Counts()
    assert ledger.find_batch("t", 0, 0) == () and len(ledger.read_ranges()) == 0
    assert ledger.settled("games", "life1", "stream", 0) is None
    assert ledger.expire(noon).batches == 0
    ledger.forget("games")


def test_hostile_names_are_only_text(lake):
    use = replace(rating(HOSTILE), label=HOSTILE)
    entry = lake.entry(HOSTILE, type=HOSTILE)
    manifest = lake.manifest(0, pipeline=HOSTILE, entries=[entry], schemas=[use])
    lake.settle(manifest, parked=[HOSTILE])
    lake.settle(lake.manifest(0, pipeline="good"))
    ledger = lake.ledger
    assert ledger.totals(HOSTILE) == Counts(10, 0, 0, 10)
    assert [t.table for t in ledger.tables(HOSTILE)] == [HOSTILE]
    assert [row.table for row in ledger.parked(HOSTILE)] == [HOSTILE]
    assert [row.type for row in ledger.schema_history(HOSTILE)] == [HOSTILE]
    ledger.forget(HOSTILE)
    assert lake.ledger.pipelines() == ("good",)


def test_small_files_are_compacted_and_nothing_is_lost(lake, monkeypatch):
    monkeypatch.setattr(ledger_table, "UPKEEP_EVERY", 5)
    ledger = Ledger(lake.path)
    for batch in range(23):
        lake.settle(lake.manifest(batch), ledger=ledger)
    table = DeltaTable(layout.ledger_table(lake.path, "tables"))
    assert len(table.file_uris()) < 10
    assert [b.batch for b in lake.ledger.batches()] == list(range(23))
    assert lake.ledger.tables()[0].rows == 230


def test_upkeep_that_fails_does_not_fail_the_batch(lake, monkeypatch):
    monkeypatch.setattr(ledger_table, "UPKEEP_EVERY", 1)

    def broken(*args, **kwargs):
        raise OSError("no space left")

    monkeypatch.setattr(DeltaTable, "vacuum", broken)
    lake.settle(lake.manifest(0))
    lake.settle(lake.manifest(1))
    assert len(lake.ledger.batches()) == 2


def test_marks_outlive_the_log_and_the_log_stays_short(lake, monkeypatch):
    short = {"delta.logRetentionDuration": "interval 0 seconds", "delta.checkpointInterval": "4"}
    monkeypatch.setattr(ledger_table, "PROPERTIES", {**ledger_table.PROPERTIES, **short})
    ledger, idle = lake.ledger, lake.ledger
    lake.settle(lake.manifest(0, pipeline="idle"), ledger=idle)
    for batch in range(20):
        lake.settle(lake.manifest(batch), ledger=ledger)
    log = Path(layout.ledger_table(lake.path, "batches"), "_delta_log")
    assert len(list(log.iterdir())) < 12
    for again in (ledger, idle, lake.ledger):
        lake.settle(lake.manifest(19), ledger=again)
        lake.settle(lake.manifest(0, pipeline="idle"), ledger=again)
    assert (len(lake.ledger.batches("games")), len(lake.ledger.batches("idle"))) == (20, 1)
    assert lake.ledger.totals("games") == Counts(200, 200)
