"""Erasures through whole runs: erased records do not come back, whatever sends them again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Never

import pytest
from deltalake import DeltaTable

from distributary.config.lake import Maintain
from distributary.config.runtime import AVAILABLE_NOW
from distributary.delta.removal.erased_records import is_done, names_in
from distributary.engine.kill_points import KILL, ErasePoint
from distributary.engine.loop import StreamRun
from distributary.engine.pipeline import Pipeline
from distributary.engine.progress import erasure as carrying
from distributary.engine.seams import make_source
from distributary.model.manifest import Counts
from distributary.observe.cuts import Cuts
from distributary.observe.erasures import check_erasures
from distributary.observe.verify.coordinates import coordinates
from distributary.observe.verify.row_counts import check_table, written_tables
from distributary.operations import erase as erasing
from distributary.operations.erase import erase, find, where
from distributary.operations.maintain import UpkeepStep, Wishes, jobs_of, maintain
from distributary.operations.repair.reset_clean import plan_reset, remove
from distributary.operations.repair.verify_table import verify_table
from distributary.spark.in_process import in_process
from tests.engine.test_object_store import Store, server, store
from tests.engine.test_shaped_tables import Orders, order

__all__ = ["server", "store"]
UNIFIED = ", unified: gold"


class _Killed(BaseException):
    """Ends an erasure at a step."""


def _no_spark() -> Never:
    raise AssertionError("nothing here needs a JVM")


def counts_of(pipeline: Pipeline) -> Counts:
    """Run a pipeline until its source is empty, with tasks in this process."""
    with pipeline.open(in_process(_no_spark)) as context:
        source = make_source(pipeline.config)
        return StreamRun(context, source, stop=threading.Event()).run(AVAILABLE_NOW).counts


def assert_proven(orders: Orders) -> None:
    lake = str(orders.lake)
    ledger = orders.pipeline(tables=UNIFIED).ledger()
    tables = written_tables(lake, ledger.last_commits(), parked={}, files={})
    with coordinates(ledger, tables) as place:
        for table in tables:
            check = place.check(table, check_table(table))
            assert check.agrees, (check.table, check.findings)
    assert check_erasures(lake, deep=True).agrees


def emails(orders: Orders, table: str) -> set[str]:
    if table == "bronze":
        return {row["payload"].decode() for row in orders.rows(table)}
    return {row["email"] for row in orders.rows(table)}


def test_the_source_cannot_bring_records_back(tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    orders.send(*(order(n, email=f"user{n % 3}@x.org") for n in range(9)))
    pipeline = orders.pipeline(tables=UNIFIED)
    assert counts_of(pipeline) == Counts(read=9, written=9)
    lake = str(orders.lake)
    found, certificate = erase(lake, where("email = 'user1@x.org'"))
    assert (found.rows, len(found.records), certificate["rows"]) == (9, 3, 9)
    for table in ("silver_orders", "gold", "bronze"):
        assert len(orders.rows(table)) == 6
    assert_proven(orders)

    # new records with the value: counted, in no table, and then not in bronze either
    orders.send(order(9, email="user1@x.org"), order(10, email="user2@x.org"))
    assert counts_of(pipeline) == Counts(read=2, written=1, skipped=1)
    assert len(orders.rows()) == len(orders.rows("gold")) == 7
    assert len(orders.rows("bronze")) == 8
    assert check_erasures(lake, deep=True).waiting == 1
    assert_proven(orders)
    maintain(lake, jobs_of(lake), Wishes(Maintain(), [UpkeepStep.EXPIRE]))
    assert len(orders.rows("bronze")) == 7
    assert not any("user1" in text for text in emails(orders, "bronze"))
    assert check_erasures(lake, deep=True).waiting == 0
    assert_proven(orders)

    # all of it is read again: what was erased goes nowhere, not even into bronze
    remove(pipeline, plan_reset(pipeline))
    assert counts_of(orders.pipeline(tables=UNIFIED)) == Counts(read=11, written=7, skipped=4)
    assert "user1@x.org" not in emails(orders, "silver_orders") | emails(orders, "gold")
    assert len(orders.rows("bronze")) == 14
    assert not any("user1" in text for text in emails(orders, "bronze"))
    assert_proven(orders)
    assert find(lake, where("email = 'user1@x.org'"), raw=True).rows == 0


def test_values_in_side_columns_are_erased_and_remembered(tmp_path: Path) -> None:
    """A person's number that came as a text as well is the same value."""
    orders = Orders(tmp_path)
    pipeline = orders.pipeline(tables=UNIFIED)
    for user in (7, "x", "7", 8, None):
        orders.send(order(1, user=user))
        counts_of(pipeline)
    lake = str(orders.lake)
    assert {"user", "user__string"} <= orders.rows()[0].keys()
    for condition, records in (("user = 7", 2), ("user = '7'", 2), ("\"user\" = 'x'", 1)):
        assert len(find(lake, where(condition)).records) == records
    erase(lake, where("user = 7"))
    erase(lake, where("user = 'x'"))
    assert [row["user"] for row in orders.rows()] == [8, None]
    assert len(orders.rows("bronze")) == len(orders.rows("gold")) == 2
    orders.send(*(order(2, user=user) for user in (7, "7", "x", "y")))
    assert counts_of(pipeline) == Counts(read=4, written=1, skipped=3)
    assert_proven(orders)


def test_a_column_that_partitions_a_table_is_searched_like_any_other(tmp_path: Path) -> None:
    """Its values are in the log of the table, and not in its files."""
    orders = Orders(tmp_path)
    pipeline = orders.pipeline(tables=f"{UNIFIED}, partition_by: [tenant]")
    some = [order(n, tenant="abc"[n % 3], user=n % 2) for n in range(6)]
    orders.send(*some)
    counts_of(pipeline)
    lake = str(orders.lake)
    erase(lake, where("tenant = 'a' AND \"user\" = 1"))
    assert orders.values("id") == [(0,), (1,), (2,), (4,), (5,)]
    found, _ = erase(lake, where("tenant = 'b'"))
    assert len(found.records) == 2
    assert orders.values("id") == [(0,), (2,), (5,)]
    assert len(orders.rows("bronze")) == len(orders.rows("gold")) == 3
    orders.send(*some)
    assert counts_of(pipeline) == Counts(read=6, written=3, skipped=3)
    assert {row["tenant"] for row in orders.rows()} == {"a", "c"}
    assert_proven(orders)


def test_an_array_whose_item_has_the_value_is_no_row_at_all(tmp_path: Path) -> None:
    """Rows of one record go together: its bytes hold the value."""
    orders = Orders(tmp_path)
    items = ["a", "b"]
    orders.send({"id": 1, "items": items}, {"id": 2, "items": items[1:]})
    shape = {"tables": "silver_*", "explode": "items", "rename": {"items": "sku"}}
    pipeline = orders.pipeline(shape)
    assert counts_of(pipeline) == Counts(read=2, written=2)
    found, _ = erase(str(orders.lake), where("sku = 'a'"))
    assert len(found.records) == 1 and orders.values("id", "sku") == [(2, "b")]
    orders.send({"id": 3, "items": items}, {"id": 4, "items": items[1:]})
    assert counts_of(pipeline) == Counts(read=2, written=1, skipped=1)
    assert orders.values("id", "sku") == [(2, "b"), (4, "b")]


def test_killed_erasures_are_finished_by_the_next_run(tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    orders.send(*(order(n, email=f"user{n % 2}@x.org") for n in range(6)))
    pipeline = orders.pipeline(tables=UNIFIED)
    counts_of(pipeline)
    lake = str(orders.lake)
    code = f"from distributary.operations.erase import erase, where; erase({lake!r}, where({{}}))"
    for user, moment in enumerate((f"{ErasePoint.AFTER_TABLE}:1", ErasePoint.BEFORE_CERTIFICATE)):
        condition = f"email = 'user{user}@x.org'"
        died = subprocess.run(
            [sys.executable, "-c", code.format(repr(condition))],
            env=os.environ | {KILL: moment},
            check=False,
            capture_output=True,
        )
        assert died.returncode == -signal.SIGKILL, died.stderr
        unfinished = [name for name in names_in(lake) if not is_done(lake, name)]
        assert len(unfinished) == 1
        assert not check_erasures(lake, deep=True).agrees
        counts_of(pipeline)
        assert is_done(lake, unfinished[0])
        for table in ("silver_orders", "gold", "bronze"):
            assert len(orders.rows(table)) == (3, 0)[user]
        assert_proven(orders)


KEYED = """keys: [{key: [id], order: [n], history: true, delete_when: "op = 'D'"}]
aggregates:
  - {tables: [silver_orders], name: gold_mails, group_by: [email], columns: {c: "count(*)"}}
"""


def event(key: int, number: int, email: str, op: str = "U") -> dict[str, Any]:
    return {"id": key, "n": number, "email": f"{email}@x.org", "op": op}


def keyed_rows(orders: Orders, table: str) -> list[tuple[Any, ...]]:
    rows = DeltaTable(str(orders.lake / table)).to_pyarrow_table().to_pylist()
    return sorted(tuple(row[n] for n in ("id", "n", "email", "op")) for row in rows)


def assert_left(orders: Orders, pipeline: Pipeline, left: list[dict[str, Any]]) -> None:
    """Compare every layer with the events that are left, and let `verify` compare as well."""
    events = sorted((e["id"], e["n"], e["email"], e["op"]) for e in left)
    for table in ("silver_orders_log", "silver_orders_history", "gold"):
        assert keyed_rows(orders, table) == events
    assert len(orders.rows("bronze")) == len(events)
    newest = {key: row for key, *row in events}
    rows = [(key, *row) for key, row in sorted(newest.items()) if row[-1] != "D"]
    assert keyed_rows(orders, "silver_orders") == rows
    (known,) = (t for t in pipeline.ledger().tables() if t.table == "silver_orders")
    assert verify_table(pipeline, known).verified.agrees
    assert_proven(orders)


EVENTS = [
    event(1, 1, "ada"),
    event(1, 2, "bob"),
    event(2, 1, "bob"),
    event(3, 1, "ada"),
    event(3, 5, "ada", "D"),
    event(4, 1, "cy"),
    event(4, 2, "cy", "D"),
]


def test_all_events_of_a_key_go_with_its_row_and_versions(tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    pipeline = orders.pipeline(tables=UNIFIED, extra=KEYED)
    for number in range(0, len(EVENTS), 2):
        orders.send(*EVENTS[number : number + 2])
        counts_of(pipeline)
    lake = str(orders.lake)
    left = [e for e in EVENTS if e["id"] in (2, 4)]
    found = find(lake, where("email = 'ada@x.org'"))
    assert len(found.records) == 4 and not found.refused
    # the row of key 1 has another email by now: its first event names the person
    rows = {t.table.table: t.rows for t in found.tables}
    assert (rows["silver_orders"], rows["silver_orders_history"]) == (1, 4)
    erase(lake, where("email = 'ada@x.org'"))
    assert_left(orders, pipeline, left)
    # what `query` and the page read has no group of the person any more either
    cuts = Cuts(lake)
    for table in ("gold_mails", "silver_orders", "silver_orders_history"):
        seen = cuts.table(cuts.find(), table)
        assert seen.version == DeltaTable(str(orders.lake / table)).version(), table
    folder = tmp_path / "lake/_distributary/tombstones/silver_orders"
    keys = DeltaTable(str(folder)).to_pyarrow_table()["key"].to_pylist()
    assert keys and not any('"id":3' in key for key in keys)

    # neither an older event nor a new one with the value comes in; others of the key do
    orders.send(event(1, 9, "ada"), event(3, 4, "ada"), event(5, 1, "dan"))
    assert counts_of(pipeline) == Counts(read=3, written=1, skipped=2)
    maintain(lake, jobs_of(lake), Wishes(Maintain(), [UpkeepStep.EXPIRE]))
    left.append(event(5, 1, "dan"))
    assert_left(orders, pipeline, left)
    remove(pipeline, plan_reset(pipeline))
    counts = counts_of(orders.pipeline(tables=UNIFIED, extra=KEYED))
    assert counts.skipped == 6 + len(left) and counts.balanced
    assert keyed_rows(orders, "silver_orders") == [
        (2, 1, "bob@x.org", "U"),
        (5, 1, "dan@x.org", "U"),
    ]


ITEMS = (
    {"explode": "items"},
    {
        "set": {
            "id": "CAST(items->>'id' AS INT)",
            "n": "CAST(items->>'n' AS INT)",
            "email": "items->>'email'",
            "op": "items->>'op'",
        },
        "drop": ["items"],
    },
)


def test_a_record_with_rows_of_several_keys_takes_all_of_them(tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    for events in (
        [event(1, 1, "ada"), event(2, 1, "bob")],
        [event(2, 2, "cy"), event(4, 1, "cy")],
        [event(3, 1, "cy")],
    ):
        orders.send({"items": events})
    pipeline = orders.pipeline(*ITEMS, tables=UNIFIED, extra=KEYED)
    counts_of(pipeline)
    found, _ = erase(str(orders.lake), where("email = 'ada@x.org'"))
    assert len(found.records) == 2
    assert_left(orders, pipeline, [event(3, 1, "cy")])


@pytest.mark.parametrize("after", range(9))
def test_killed_anywhere_the_tables_of_a_log_are_finished(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = Orders(tmp_path)
    orders.send(*EVENTS)
    pipeline = orders.pipeline(tables=UNIFIED, extra=KEYED)
    counts_of(pipeline)
    moments: list[str] = []

    def stop(moment: str, _: int) -> None:
        moments.append(moment)
        if len(moments) == after + 1:
            raise _Killed

    with monkeypatch.context() as patch:
        for module in (carrying, erasing):
            patch.setattr(module, "reached", stop)
        with suppress(_Killed):
            erase(str(orders.lake), where("email = 'ada@x.org'"))
    assert len(moments) == min(after + 1, 8)
    assert counts_of(pipeline) == Counts()
    assert_left(orders, pipeline, [e for e in EVENTS if e["id"] in (2, 4)])


def test_in_a_bucket(store: Store) -> None:
    store.games.send_round()
    counts_of(store.pipeline())
    table = store.tables()[0]
    victim = store.rows(table)[0]["_offset"]
    before = {name: len(store.rows(name)) for name in ("bronze_events", table)}
    found, certificate = erase(store.address, where(f"_offset = {victim}"))
    assert len(found.records) == 1 and certificate["rows"] == found.rows >= 2
    for name, rows in before.items():
        assert len(store.rows(name)) == rows - 1
    pipeline = store.pipeline()
    remove(pipeline, plan_reset(pipeline))
    counts = counts_of(store.pipeline())
    assert counts.skipped == 1 and counts.balanced
    assert victim not in [row["_offset"] for row in store.rows(table)]
    assert check_erasures(store.address, deep=True).agrees
