"""Change data in the ledger and in `status`: kinds of events, the newest one, lag, true rows."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.model import layout
from distributary.model.change import OP_COLUMNS, ChangeFacts
from distributary.model.facts import EventsCounted
from distributary.model.manifest import entry_from_dict, entry_to_dict
from distributary.observe.ledger.ledger import Ledger
from distributary.observe.ledger.recording import TABLES
from distributary.observe.status.health import with_measures
from distributary.observe.status.status import status
from distributary.publish.base import Outcome, Published
from distributary.stage.task_outputs import count_events
from tests.changes.logs import NOW, event
from tests.lakes.written_changes import BEGUN, LOG, MERGED, ChangeLake

MS = NOW // 1000


@pytest.fixture
def shop(tmp_path: Path) -> ChangeLake:
    return ChangeLake(tmp_path)


def at(seconds: int) -> int:
    """A time of the source, in milliseconds."""
    return MS + 1000 * seconds


def test_events_are_counted_by_kind_and_the_newest_is_kept(shop: ChangeLake) -> None:
    shop.batch([event(at(1), "insert", id=1), event(at(30), "update", id=1)])
    # late ones come after newer ones
    shop.batch([event(at(2), "read", id=2), event(at(3), "delete", id=1)])
    merged, log = shop.ledger.tables()
    kinds = {"insert": 1, "update": 1, "delete": 1, "read": 1, "truncate": 0}
    assert (log.table, log.changes, merged.changes) == (LOG, kinds, kinds)
    assert log.last_event == merged.last_event == BEGUN + timedelta(seconds=30)
    assert merged.last_event_at == BEGUN + timedelta(seconds=60)


def test_a_parked_table_is_as_old_as_its_last_merged_event(shop: ChangeLake) -> None:
    shop.batch([event(at(1), "insert", id=1)])
    waits = shop.batch([event(at(70), "update", id=1)], parked=True)
    (one,) = status(str(shop.lake)).pipelines
    assert one.changes is not None
    (table,) = one.changes.shown
    assert (table.table, table.log, table.rows, table.events) == (MERGED, LOG, 1, 2)
    assert table.last_event == BEGUN + timedelta(seconds=1)
    # the last batch was settled two minutes after the beginning
    assert (table.parked_events, table.lag_seconds) == (1, 119.0)
    assert one.changes.changes["update"] == 1

    entry = next(e for e in waits.tables if e.table.name == MERGED)
    result = Published(MERGED, Outcome.PUBLISHED, version=9)
    shop.ledger.record_resumed(waits.app_id, entry, result, batch=1)
    (table,) = _tables(shop)
    assert (table.parked_events, table.last_event) == (0, BEGUN + timedelta(seconds=70))


def test_rows_of_a_merged_table_are_its_own_and_not_a_sum(shop: ChangeLake) -> None:
    shop.batch([event(at(n), "insert", id=n) for n in range(5)])
    shop.batch([event(at(10 + n), "delete", id=n) for n in range(3)])
    found = {t.table: t for t in with_measures(str(shop.lake), shop.ledger.tables())}
    assert (found[MERGED].rows, found[LOG].rows) == (2, 8)
    assert found[MERGED].bytes > 0
    (table,) = _tables(shop)
    assert (table.rows, table.events) == (2, 8)
    ranked = {item.table.table: item.table.rows for item in _status(shop).tables.shown}
    assert ranked == {MERGED: 2, LOG: 8}


def test_a_table_without_rows_or_key_is_not_there(shop: ChangeLake) -> None:
    shop.batch([replace(event(at(1), "insert", id=1), key=None)])
    (table,) = _tables(shop)
    assert (table.rows, table.events) == (None, 1)


def test_records_that_are_no_changes_have_no_such_part(lake) -> None:
    lake.settle(lake.manifest(0))
    (one,) = status(lake.path).pipelines
    assert one.changes is None
    assert lake.ledger.tables()[0].changes == {}


def test_sums_of_old_batches_keep_kinds_and_the_newest_event(shop: ChangeLake) -> None:
    for number in range(3):
        shop.batch([event(at(number), "insert", id=number)])
    before = shop.ledger.tables()
    assert shop.ledger.expire(BEGUN + timedelta(days=1)).tables == 6
    after = shop.ledger.tables()
    assert [t.changes for t in after] == [t.changes for t in before]
    assert [t.last_event for t in after] == [t.last_event for t in before]


def test_a_ledger_from_before_is_read_and_then_written_with_the_new_columns(lake) -> None:
    """As an earlier version left it: without the columns about changes."""
    lake.settle(lake.manifest(0))
    path = layout.ledger_table(lake.path, "tables")
    old = [f.name for f in TABLES if f.name not in {*OP_COLUMNS.values(), "last_event"}]
    rows = DeltaTable(path).to_pyarrow_table().select(old)
    write_deltalake(path, rows, mode="overwrite", schema_mode="overwrite")
    (chess,) = Ledger(lake.path).tables()
    assert (chess.rows, chess.changes, chess.last_event) == (10, {}, None)
    assert len(Ledger(lake.path).batch_tables(Ledger(lake.path).batches()[0])) == 1

    # the process of the present version begins after that of the earlier one
    lake.settle(lake.manifest(1), ledger=Ledger(lake.path))
    assert set(TABLES.names) <= {f.name for f in DeltaTable(path).schema().fields}
    (chess,) = Ledger(lake.path).tables()
    assert chess.rows == 20


def test_facts_add_up_and_survive_the_manifest(shop: ChangeLake) -> None:
    one, other = ChangeFacts({"insert": 2}, 5), ChangeFacts({"insert": 1, "delete": 4}, None)
    assert one + other == ChangeFacts({"insert": 3, "delete": 4}, 5)
    manifest = shop.batch([event(at(1), "insert", id=1)])
    for entry in manifest.tables:
        assert entry_from_dict(entry_to_dict(entry)).events == entry.events
    # a manifest from before
    document = entry_to_dict(manifest.tables[0])
    del document["events"]
    assert entry_from_dict(document).events is None


def test_the_stage_counts_what_it_writes() -> None:
    rows = pa.table(
        {
            "_op": ["insert", "delete", "insert"],
            "_source_ts": pa.array([3, 7, None], pa.timestamp("us", "UTC")),
        }
    )
    counted = count_events("a_log", rows)
    assert counted == EventsCounted("a_log", ChangeFacts({"insert": 2, "delete": 1}, 7))


def _status(shop: ChangeLake):
    (one,) = status(str(shop.lake)).pipelines
    return one


def _tables(shop: ChangeLake):
    changes = _status(shop).changes
    assert changes is not None
    return changes.shown
