"""A pipeline of change data that goes on: tables and columns appear under it, and are fixed."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from distributary.engine.loop import RunSummary
from distributary.engine.pipeline import Pipeline
from distributary.model.table import Role
from distributary.observe.events import BatchSettled, Event, TableParked
from distributary.operations.repair.resume_table import resume
from distributary.publish.base import Outcome
from distributary_lab.simulate.cdc.shapes import CdcPlan, Feature
from tests.lakes.changes import Feed
from tests.operations.repair.test_change_mending import unwritable
from tests.waiting import eventually

PLAN = CdcPlan(
    tables=3,
    events=120,
    rows=3,
    rounds=4,
    features=frozenset(
        {Feature.KEY_CHANGES, Feature.NEW_TABLES, Feature.NEW_COLUMNS, Feature.LATE_FILES}
    ),
)


@contextmanager
def _running(
    pipeline: Pipeline, spark: SparkSession
) -> Iterator[tuple[list[Event], list[RunSummary]]]:
    events: list[Event] = []
    summary: list[RunSummary] = []
    pipeline.bus.subscribe(events.append)
    runner = threading.Thread(
        target=lambda: summary.append(pipeline.run(trigger="continuous", spark=spark))
    )
    runner.start()
    try:
        yield events, summary
    finally:
        pipeline.stop.set()
        runner.join(timeout=120)


def _until_current(feed: Feed, events: list[Event]) -> None:
    """Wait until every event that was sent is settled."""

    def read() -> int:
        return sum(e.counts.read for e in events if isinstance(e, BatchSettled))

    eventually(lambda: read() >= feed.stream.sent().events, seconds=120)


def test_new_tables_and_columns_appear_without_a_restart_and_a_table_is_mended(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    # else the run may be the first to fix it
    monkeypatch.setattr("distributary.engine.requests.FIRST_WAIT", 3600.0)
    feed = Feed(tmp_path, PLAN)
    feed.send_round()
    with _running(feed.pipeline(), spark) as (events, summary):
        _until_current(feed, events)
        feed.assert_true()
        before = feed.tables(Role.MERGED)
        with unwritable(feed.lake / "shop_users"):
            feed.send_round()
            _until_current(feed, events)
            assert {e.table for e in events if isinstance(e, TableParked)} == {"shop_users"}
        feed.send_all()
        _until_current(feed, events)
        # the owner does it, between two batches
        done = resume(feed.pipeline(), "shop_users")
        assert {r.outcome for r in done} == {Outcome.PUBLISHED}
        feed.assert_true()
    sent = feed.stream.sent()
    assert sent.new_columns
    assert set(sent.new_tables) == feed.tables(Role.MERGED).keys() - before.keys()
    assert summary[0].stopped == "stopped"
    assert summary[0].counts.read == sent.events
    # the same query from the first to the last batch, and in the next run
    assert feed.pipeline().run(spark=spark).query_id == summary[0].query_id
