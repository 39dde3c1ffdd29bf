"""The whole way in a browser: a dead letter is replayed by a click, and its row arrives."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect
from pyspark.sql import SparkSession

from distributary.model.manifest import Counts
from distributary_lab.simulate.dice import event, event_subject
from distributary_lab.simulate.game_records import GamesPlan
from distributary_lab.simulate.games import stream_rounds
from tests.lakes.games import Games
from tests.web.conftest import Look, Start


class _Late:
    """A registry that has not heard of one subject yet: its records come first."""

    def __init__(self, games: Games, hidden: str) -> None:
        self._games, self._hidden = games, hidden

    def set_compatibility(self, subject: str | None, level: str) -> None:
        self._games.registry.set_compatibility(subject, level)

    def register(self, subject: str, text: str, **options: object) -> int:
        if subject != self._hidden:
            return self._games.registry.register(subject, text)
        ids = (self._games.root / "schemas" / "ids").glob("*.json")
        return max((int(path.stem) for path in ids), default=0) + 1


@pytest.mark.slow
def test_a_dead_letter_is_replayed_and_its_row_arrives(
    tmp_path: Path, spark: SparkSession, start: Start, look: Look
) -> None:
    games = Games(tmp_path, GamesPlan(games=2, versions=1, records=6))
    known, unknown = games.plan.names
    for one in stream_rounds(games.plan, registry=_Late(games, event_subject(unknown))):
        games.sink.write_arrow(one.arrow())
    counts = games.pipeline().run(spark=spark).counts
    assert counts == Counts(read=12, written=6, dead_lettered=6)
    served = start(games.lake)

    shown = look()
    page = shown.page
    shown.open(served.url)
    expect(page.locator(".equation")).to_contain_text("dead letters 6")
    page.get_by_role("link", name="Tables", exact=True).click()
    page.get_by_role("link", name=f"silver_{known}").click()
    expect(page.locator(".preview tbody tr")).to_have_count(6)

    # another window waits for the table; nobody touches it from here on
    waiting = look()
    waiting.open(f"{served.url}/tables?q={unknown}")
    expect(waiting.page.locator(".empty")).to_contain_text("No table matches")

    games.registry.register(event_subject(unknown), event(unknown, 1, changed=False))
    shown.open(f"{served.url}/pipelines/games")
    expect(page.locator(".hint")).to_contain_text("6 dead letters would decode now")
    page.locator(".hint").get_by_role("button", name="Replay…").click()
    verdict = page.locator("dialog .verdict")
    expect(verdict).to_contain_text(f"6 would decode, into silver_{unknown} 6", timeout=180_000)
    shown.shoot("replay-confirm")
    page.locator("#confirm").click()
    expect(verdict).to_contain_text(f"6 replayed, into silver_{unknown} 6", timeout=180_000)
    page.get_by_role("button", name="Close").click()
    expect(page.locator(".equation").first).to_contain_text("dead letters 0")

    waiting.page.get_by_role("link", name=f"silver_{unknown}").click()
    expect(waiting.page.locator(".preview tbody tr")).to_have_count(6)
    waiting.shoot("replay-arrived")
    assert shown.errors + waiting.errors == []
