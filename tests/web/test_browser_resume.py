"""The whole way in a browser: a parked table is resumed by a click, and its rows arrive."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest
from deltalake import DeltaTable
from playwright.sync_api import expect
from pyspark.sql import SparkSession

from distributary.model.manifest import Counts
from distributary.operations.repair.resume_table import waiting
from distributary_lab.simulate.game_records import GamesPlan
from tests.lakes.games import Games
from tests.operations.repair.test_change_mending import unwritable
from tests.web.conftest import Look, Looking, Running, Start

MOST_MILLISECONDS = 180_000


@pytest.mark.slow
def test_a_parked_table_is_resumed_and_its_rows_arrive(
    tmp_path: Path, spark: SparkSession, start: Start, look: Look
) -> None:
    games = Games(tmp_path, GamesPlan(games=2, versions=3, records=5))
    games.send_round()
    assert games.pipeline().run(spark=spark).counts == Counts(read=10, written=10)
    victim, other = games.tables()
    served = start(games.lake)
    shown, watching = look(), look()
    page, overview = shown.page, watching.page

    with unwritable(games.lake / victim):
        for _ in range(2):
            games.send_round()
            counts = games.pipeline().run(spark=spark).counts
            assert counts == Counts(read=10, written=5, parked=5)

        # another window watches; nobody touches it from here on
        watching.open(served.url)
        expect(overview.locator(".attention")).to_contain_text(
            f"{victim} 10 records in 2 batches wait"
        )
        expect(overview.locator(".attention")).not_to_contain_text(other)
        expect(overview.locator(".equation")).to_contain_text("parked 10")
        watching.shoot("resume-needed")

        # the table still cannot be written: that is what the page says, and nothing is lost
        shown.open(f"{served.url}/tables/{victim}")
        expect(page.locator("main .banner")).to_contain_text("10 records in 2 batches wait")
        # the cause, not that the second batch waits for the first
        expect(page.locator("main .banner")).to_contain_text("LAKE_UNAVAILABLE")
        expect(page.locator(".preview tbody tr")).to_have_count(5)
        _resume(shown, batches=2)
        expect(page.locator("dialog .verdict")).to_contain_text(
            "Still parked: LAKE_UNAVAILABLE", timeout=MOST_MILLISECONDS
        )
        expect(page.locator("dialog .badge")).to_have_text("parked")
        shown.shoot("resume-still-parked")
        page.get_by_role("button", name="Close").click()
        expect(page.locator("main .banner")).to_contain_text("10 records in 2 batches wait")
        assert [p.mark.batch for p in waiting(games.pipeline())] == [1, 2]

    # a click too many asks and does no more than one
    _resume(shown, batches=2, clicks=2)
    expect(page.locator("dialog .verdict")).to_contain_text(
        "2 of 2 batches with 10 records published.", timeout=MOST_MILLISECONDS
    )
    page.get_by_role("button", name="Close").click()
    expect(page.locator("dialog")).to_have_count(0)
    expect(page.locator(".preview tbody tr")).to_have_count(15)
    expect(page.locator("main .banner")).to_have_count(0)
    expect(page.get_by_role("button", name="Resume…")).to_have_count(0)
    expect(page.locator("main .badge").first).to_have_text("healthy")
    shown.shoot("resume-arrived")
    assert _jobs(served) == [True, False, True, False]

    expect(overview.locator(".attention")).to_have_count(0)
    expect(overview.locator(".equation")).to_contain_text("parked 0")
    assert shown.errors + watching.errors == []

    assert waiting(games.pipeline()) == []
    games.assert_each_record_once()
    assert games.pipeline().ledger().totals("games") == Counts(read=30, written=30)
    # in order: each commit brought what one batch had, the older one first
    rounds = [sorted(offsets) for offsets in _commits(games.lake / victim)]
    assert [len(offsets) for offsets in rounds] == [5, 5, 5]
    assert list(chain(*rounds)) == sorted(chain(*rounds))


def _resume(shown: Looking, *, batches: int, clicks: int = 1) -> None:
    """Presses the button of the page, and the one that says yes once it is known to what."""
    page = shown.page
    page.get_by_role("button", name="Resume…").click(click_count=clicks)
    would = f"{batches} batches with 10 records would be published."
    expect(page.locator("dialog .verdict")).to_have_text(would, timeout=MOST_MILLISECONDS)
    shown.shoot("resume-confirm")
    page.locator("#confirm").click(click_count=clicks)


def _jobs(served: Running) -> list[bool]:
    """Which jobs there were, the oldest first: True for a trial."""
    jobs = served.get("/api/jobs")["jobs"][::-1]
    assert {(job["wish"]["action"], job["state"]) for job in jobs} == {("resume", "done")}
    return [job["dry_run"] for job in jobs]


def _commits(path: Path) -> list[list[int]]:
    """The offsets that each commit brought."""
    known: list[int] = []
    found = []
    for version in range(DeltaTable(path).version() + 1):
        now = DeltaTable(path, version=version).to_pyarrow_table(columns=["_offset"])["_offset"]
        new = set(now.to_pylist()) - set(known)
        assert len(now) == len(known) + len(new)
        if new:
            found.append(list(new))
        known += new
    return found
