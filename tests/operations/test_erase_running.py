"""Erasures through whole runs: erased records do not come back, whatever sends them again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Never

from distributary.config.lake import Maintain
from distributary.config.runtime import AVAILABLE_NOW
from distributary.delta.erased import is_done, names_in
from distributary.engine.kill_points import KILL, ErasePoint
from distributary.engine.loop import StreamRun
from distributary.engine.pipeline import Pipeline
from distributary.engine.seams import make_source
from distributary.model.manifest import Counts
from distributary.observe.erasures import check_erasures
from distributary.observe.verify.coordinates import coordinates
from distributary.observe.verify.tables import check_table, written_tables
from distributary.operations.erase import erase, find, where
from distributary.operations.maintain import UpkeepStep, Wishes, jobs_of, maintain
from distributary.operations.repair.reset_clean import plan_reset, remove
from distributary.spark.in_process import in_process
from tests.engine.test_object_store import Store, server, store
from tests.engine.test_shape import Orders, order

__all__ = ["server", "store"]
UNIFIED = ", unified: gold"


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
