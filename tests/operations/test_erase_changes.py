"""Erasures of change data: every table of a log loses a key, on a disk and in a bucket."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from distributary.delta.tables import open_table
from distributary.engine.progress import erasure as carrying
from distributary.model import layout
from distributary.model.table import Role
from distributary.observe.erasures import check_erasures
from distributary.operations import erase as erasing
from distributary.operations.erase import erase, find, where
from distributary.operations.repair.reset_clean import plan_reset, remove
from distributary.operations.repair.verify_table import verify_table
from distributary_lab.simulate.cdc.shapes import CdcPlan
from tests.engine.test_object_store import server
from tests.lakes.changes import BucketFeed, Feed
from tests.operations.test_erase_running import _Killed, counts_of
from tests.services.shared import unique
from tests.source.s3_server import BUCKET, S3Server

__all__ = ["server"]
TABLES = "{each: '{database}_{table}', bronze: bronze, unified: unified}"
PLAN = CdcPlan(tables=2, events=60, rows=5, rounds=4)
OF_KEY = ("shop_users", "shop_users_log", "shop_users_history")


def rows_of(lake: str, table: str) -> Counter[str]:
    opened = open_table(layout.place(lake, table))
    assert opened is not None
    return Counter(map(repr, opened.to_pyarrow_table().to_pylist()))


def ids_of(lake: str, table: str) -> Counter[int]:
    opened = open_table(layout.place(lake, table))
    assert opened is not None
    return Counter(opened.to_pyarrow_table()["id"].to_pylist())


def assert_erased(feed: Feed, lake: str, victim: int, before: dict[str, Counter[str]]) -> None:
    """Compare every table of the log with what it was, without the rows of the key."""
    for table, rows in before.items():
        left = rows_of(lake, table)
        assert not left - rows
        assert all(f"'id': {victim}," in row for row in rows - left), table
        assert victim not in ids_of(lake, table)
    pipeline = feed.pipeline(cdc=", history: true", tables=TABLES)
    for known in pipeline.ledger().tables():
        if known.role == Role.MERGED:
            assert verify_table(pipeline, known).verified.agrees, known.table
    assert check_erasures(lake, deep=True).agrees


@pytest.mark.parametrize("kind", ["disk", pytest.param("bucket", marks=pytest.mark.slow)])
def test_a_key_leaves_the_log_the_rows_and_the_history(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if kind == "disk":
        feed, lake = Feed(tmp_path, PLAN), str(tmp_path / "lake")
    else:
        bucket: S3Server = request.getfixturevalue("server")
        lake = f"s3://{BUCKET}/{unique('lake')}"
        feed = BucketFeed(tmp_path, PLAN, server=bucket, address=lake)
    pipeline = feed.pipeline(cdc=", history: true", tables=TABLES)
    for _ in range(3):
        feed.send_round()
        counts_of(pipeline)
    victim, events = ids_of(lake, "shop_users_log").most_common(1)[0]
    assert events > 1
    before = {table: rows_of(lake, table) for table in OF_KEY}
    bronze = sum(rows_of(lake, "bronze").values())
    found = find(lake, where(f"id = {victim}"))
    rows = {table.table.table: table.rows for table in found.tables}
    assert (rows["shop_users_log"], rows["bronze"], rows["unified"]) == (events, events, events)
    _, certificate = erase(lake, where(f"id = {victim}"))
    assert certificate["records"] == events
    assert_erased(feed, lake, victim, before)
    assert sum(rows_of(lake, "bronze").values()) == bronze - events

    # neither later events nor those that the files still have come in
    while feed.send_round() is not None:
        pass
    counts_of(pipeline)
    assert all(victim not in ids_of(lake, table) for table in OF_KEY)
    remove(pipeline, plan_reset(pipeline))
    counts = counts_of(feed.pipeline(cdc=", history: true", tables=TABLES))
    assert counts.balanced and counts.skipped >= events
    assert_erased(feed, lake, victim, {table: rows_of(lake, table) for table in OF_KEY})


@pytest.mark.parametrize("after", range(1, 8, 2))
def test_an_erasure_that_is_killed_is_finished_by_the_next_run(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed, lake = Feed(tmp_path, PLAN), str(tmp_path / "lake")
    pipeline = feed.pipeline(cdc=", history: true", tables=TABLES)
    feed.send_round()
    counts_of(pipeline)
    victim, _ = ids_of(lake, "shop_users_log").most_common(1)[0]
    before = {table: rows_of(lake, table) for table in OF_KEY}
    moments: list[str] = []

    def stop(moment: str, _: int) -> None:
        moments.append(moment)
        if len(moments) == after:
            raise _Killed

    with monkeypatch.context() as patch:
        for module in (carrying, erasing):
            patch.setattr(module, "reached", stop)
        with suppress(_Killed):
            erase(lake, where(f"id = {victim}"))
    assert len(moments) == after
    counts_of(pipeline)
    assert_erased(feed, lake, victim, before)
