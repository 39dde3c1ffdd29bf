"""The page in a real browser. With SCREENSHOTS=1, build/screenshots has what it looked like."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from distributary.engine.progress.claim import Claim
from distributary.errors import SourceUnavailableError
from distributary.model.deadletter import dead_letter_id
from distributary.observe.status.pulse import (
    Backlog,
    HeldRecords,
    Pulse,
    Trouble,
    UnderWay,
    write_failure,
    write_pulse,
)
from distributary.store.base import at
from distributary.web.reading import LakeReader
from tests.changes.logs import NOW, event
from tests.lakes.written_changes import MERGED, ChangeLake
from tests.web.conftest import TOKEN, Look, Running, Start
from tests.web.lakes import HOSTILE, WebLake, busy_lake, letter

ID = dead_letter_id("games", "life", "wrapper", 0, 20)
ADDRESSES = {
    "overview": "/",
    "pipeline": "/pipelines/games",
    "tables": "/tables",
    "table": "/tables/silver_chess",
    "table-hostile": f"/tables/{quote(HOSTILE, safe='')}",
    "batches": "/batches",
    "batch": "/batches/games/19",
    "dead-letters": "/dead-letters",
    "dead-letter": f"/dead-letters/{ID}",
    "schemas": "/schemas",
    "schema": "/schemas/silver_chess",
    "query": "/query",
    "lineage": "/lineage",
    "lineage-filter": "/lineage?q=chess",
    "errors": "/errors",
    "error": "/errors/UNKNOWN_SCHEMA_ID",
    "search": "/search?q=chess",
    "trace": "/search?q=wrapper%2F0%2F20",
}


@pytest.mark.slow
def test_every_address_shows_its_page(page_of_busy: Running, look: Look) -> None:
    shown = look()
    for name, path in ADDRESSES.items():
        shown.open(page_of_busy.url + path)
        shown.shoot(name)
        assert shown.page.locator(".problem").count() == 0, name
        assert shown.page.locator("main img, main script").count() == 0, name
        assert shown.page.title() != "owned"
    shown.page.wait_for_selector("#live[data-state=live]")
    assert shown.errors == []
    # nothing is loaded from anywhere else
    assert shown.hosts == {page_of_busy.url.split("/")[2]}


def test_names_and_records_are_text(page_of_busy: Running, look: Look) -> None:
    shown = look()
    shown.open(page_of_busy.url + ADDRESSES["table-hostile"])
    assert shown.page.locator("h1").inner_text() == HOSTILE
    assert f"{HOSTILE} 0" in shown.page.locator("main").inner_text()
    shown.open(page_of_busy.url + ADDRESSES["dead-letter"])
    words = shown.page.locator("main").inner_text()
    assert "<b>key</b>" in words and f"no schema with id 7 {HOSTILE}" in words
    assert "<script>do|" in shown.page.locator(".hex").inner_text()
    assert shown.page.locator("main img, main script, main dd b").count() == 0
    unknown = "<img src=x onerror=document.title='owned'> no such"
    shown.open(f"{page_of_busy.url}/tables/{quote(unknown, safe='')}")
    assert unknown in shown.page.locator(".problem").inner_text()
    shown.shoot("table-not-found")
    assert "owned" not in shown.page.title().replace(unknown, "")


def test_a_phone_shows_it_without_scrolling_sideways(page_of_busy: Running, look: Look) -> None:
    shown = look(phone=True)
    for name in ("overview", "tables", "table", "dead-letters", "dead-letter"):
        shown.open(page_of_busy.url + ADDRESSES[name])
        shown.shoot(f"phone-{name}")
        assert shown.page.evaluate("document.documentElement.scrollWidth") <= 390, name
    assert shown.errors == []


def test_a_long_name_of_a_type_leaves_the_other_columns_in_sight(
    tmp_path: Path, start: Start, look: Look
) -> None:
    lake = WebLake(tmp_path / "lake")
    lake.settle(0, {"silver_chess": "chess"}, dead={"TYPE_NAME_TOO_LONG": 1})
    lake.letters([letter(20, code="TYPE_NAME_TOO_LONG", type="a" * 300)])
    served = start(lake.path)
    for phone in (False, True):
        shown = look(phone=phone)
        shown.open(f"{served.url}/dead-letters")
        assert shown.page.locator(".claim").first.get_attribute("title") == "a" * 300
        wide = "[...document.querySelectorAll('.scroll, html')]"
        wide += ".filter((each) => each.scrollWidth > each.clientWidth).length"
        assert shown.page.evaluate(wide) == 0
        assert shown.errors == []


def test_dark_and_light_follow_the_system_or_the_button(page_of_busy: Running, look: Look) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    shown = look()
    shown.open(page_of_busy.url)
    light = shown.page.evaluate(ground)
    with shown.in_the_dark():
        shown.shoot("overview-dark")
        assert shown.page.evaluate(ground) != light
        shown.page.locator("#theme").click()
        assert shown.page.evaluate(ground) == light
        shown.page.reload()
        shown.page.wait_for_selector("main .page")
        assert shown.page.evaluate(ground) == light


def test_a_keyboard_reaches_search_links_and_plots(page_of_busy: Running, look: Look) -> None:
    shown = look()
    shown.open(page_of_busy.url)
    page = shown.page
    page.keyboard.press("/")
    page.keyboard.type("silver_chess")
    page.keyboard.press("Enter")
    page.wait_for_selector(".hits a")
    page.locator(".hits a").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".preview")
    expect(page.locator("h1")).to_be_focused()
    plot = page.locator(".plot").first
    plot.focus()
    page.keyboard.press("ArrowLeft")
    assert plot.locator(".tip").is_visible()
    assert "10" in plot.locator(".tip").inner_text()
    page.go_back()
    page.wait_for_selector(".hits a")


def test_a_thousand_tables(wide: WebLake, start: Start, look: Look) -> None:
    served = start(wide.path)
    shown = look()
    page = shown.page
    shown.open(served.url)
    assert page.locator("a.tile").first.locator("b").inner_text() == "1,000"
    shown.shoot("thousand-overview")
    shown.open(f"{served.url}/tables")
    assert page.locator("tbody tr").count() == 50
    shown.shoot("thousand-tables")
    page.locator("#next").click()
    page.wait_for_selector("text=2 of 20")
    page.locator("#only").fill("type_0500")
    expect(page.locator("tbody tr")).to_have_count(1)
    # typing goes on where it was
    expect(page.locator("#only")).to_be_focused()
    page.locator("tbody a").click()
    page.wait_for_selector(".preview tbody tr")
    assert shown.errors == []


def test_several_lakes_have_a_page_each(
    busy: WebLake, wide: WebLake, start: Start, look: Look
) -> None:
    served = start(busy.path, others=(str(wide.path),))
    shown = look()
    page = shown.page
    shown.open(f"{served.url}/tables/silver_chess")
    home = f"{served.url}/lakes/{wide.path.parent.name}-lake"
    page.locator("#lakes").select_option(index=1)
    page.wait_for_url(f"{home}/")
    expect(page.locator("a.tile").first.locator("b")).to_have_text("1,000")
    # links, the search and the way back stay in the lake
    page.locator(".nav a", has_text="Tables").click()
    page.wait_for_url(f"{home}/tables")
    expect(page.locator(".nav a[aria-current]")).to_have_text("Tables")
    expect(page.locator("tbody tr")).to_have_count(50)
    page.locator("#only").fill("type_0500")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.locator("tbody a").click()
    page.wait_for_selector(".preview tbody tr")
    page.go_back()
    expect(page.locator("tbody tr")).to_have_count(1)
    assert page.url.startswith(f"{home}/tables?")
    expect(page.locator("#live")).to_have_text("live")
    shown.shoot("several-lakes")
    assert shown.errors == []


def test_the_page_asks_for_little_and_the_ledger_is_read_once(
    wide: WebLake, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = start(wide.path)
    with served.client() as client:
        assert len(client.get("/api/overview").content) < 20_000
        assert len(client.get("/api/tables").content) < 60_000
    reading = LakeReader(str(wide.path))
    first = reading.health()

    def never() -> None:
        raise AssertionError("read again, though nothing has changed")

    monkeypatch.setattr(reading.ledger, "tables", never)
    assert reading.health() is first
    reading.status()
    monkeypatch.setattr("distributary.web.reading.settled_status", never)
    assert [each.name for each in reading.status().pipelines] == ["games"]


def test_an_empty_lake_says_what_to_do(tmp_path: Path, start: Start, look: Look) -> None:
    served = start(tmp_path)
    shown = look()
    shown.open(served.url)
    assert "distributary demo games" in shown.page.locator(".empty").inner_text()
    shown.shoot("empty")
    for path in ("/tables", "/dead-letters", "/schemas"):
        shown.open(served.url + path)
        assert shown.page.locator(".empty").count() == 1
    # and the first batch shows up by itself
    shown.open(served.url)
    WebLake(tmp_path).settle(0, {"silver_chess": "chess"})
    shown.page.wait_for_selector(".pipeline")
    assert shown.errors == []


def test_a_lake_that_goes_away_is_an_error_with_a_code(own: Path, start: Start, look: Look) -> None:
    served = start(own)
    shown = look()
    shown.open(f"{served.url}/tables")
    away = own.with_name("away")
    shutil.move(own, away)
    shown.page.wait_for_selector(".problem")
    assert "LAKE_UNAVAILABLE" in shown.page.locator(".problem").inner_text()
    shown.shoot("lake-gone")
    shutil.move(away, own)
    shown.page.get_by_role("button", name="Try again").click()
    shown.page.wait_for_selector("tbody tr")
    # the overview keeps what was read before, and says so for as long as it lasts
    shown.open(served.url)
    shown.page.wait_for_selector(".pipeline")
    shutil.move(own, away)
    shown.page.wait_for_selector(".banner.bad:has-text('LAKE_UNAVAILABLE')")
    assert shown.page.locator(".pipeline").count() == 1
    shown.shoot("lake-gone-overview")
    shutil.move(away, own)
    shown.page.wait_for_selector(".banner.bad", state="detached")


def test_a_read_only_lake_is_looked_at_and_left_alone(
    busy: WebLake, start: Start, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    # rights mean nothing to root, who may run the tests
    monkeypatch.setattr(LakeReader, "writable", False)
    served = start(busy.path)
    shown = look()
    shown.open(f"{served.url}/dead-letters")
    assert "read-only" in shown.page.locator(".banner").inner_text()
    assert shown.page.get_by_role("button", name="Replay…").first.is_disabled()


def test_the_token_is_asked_for_once(busy: WebLake, start: Start, look: Look) -> None:
    served = start(busy.path, token=TOKEN)
    shown = look()
    page = shown.page
    shown.open(f"{served.url}/tables/silver_chess")
    shown.shoot("login")
    page.locator("#token").fill("not the token")
    page.get_by_role("main").get_by_role("button", name="Log in").click()
    page.wait_for_selector(".problem")
    page.locator("#token").fill(TOKEN)
    page.get_by_role("main").get_by_role("button", name="Log in").click()
    page.wait_for_selector("h1:has-text('silver_chess')")
    assert page.url.endswith("/tables/silver_chess")
    assert page.evaluate("document.cookie") == ""
    page.locator("#logout").click()
    page.wait_for_selector("#token")


def test_a_link_logs_in_once(busy: WebLake, start: Start, look: Look) -> None:
    served = start(busy.path, token=TOKEN)
    link = f"{served.url}/login#once={served.dashboard.access.new_link()}"
    shown = look()
    shown.page.goto(link)
    shown.page.wait_for_selector(".tiles")
    assert "once" not in shown.page.url
    # as somebody else
    shown.forget()
    shown.open(link)
    shown.page.wait_for_selector(".problem")
    assert "ACCESS_DENIED" in shown.page.locator(".problem").inner_text()
    assert not any("once" in line for line in served.said)


def test_discard_asks_shows_and_does(own: Path, start: Start, look: Look) -> None:
    served = start(own)
    shown = look()
    page = shown.page
    shown.open(f"{served.url}/dead-letters")
    page.locator("tr", has_text="NULL_VALUE").first.get_by_role("button", name="Discard…").click()
    page.locator("#note").fill("sent by a test")
    page.get_by_role("button", name="Preview").click()
    page.wait_for_selector("dialog .verdict:has-text('1 dead letter would be discarded')")
    shown.shoot("discard-confirm")
    page.locator("#confirm").click()
    page.wait_for_selector("dialog .verdict:has-text('1 discarded.')")
    page.get_by_role("button", name="Close").click()
    # the page behind has noticed by itself
    expect(page.locator("main")).not_to_contain_text("NULL_VALUE")
    assert shown.errors == []


def test_the_page_opens_before_there_is_a_lake(tmp_path: Path, start: Start, look: Look) -> None:
    place = tmp_path / "lake"
    served, shown = start(place), look()
    shown.open(f"{served.url}/")
    words = shown.page.locator("main").inner_text()
    assert "distributary demo games" in words and str(place) in words
    for path in ("/tables", "/batches", "/dead-letters", "/schemas"):
        shown.open(served.url + path)
        assert shown.page.locator(".problem").count() == 0, path
    assert not place.exists()
    shown.open(f"{served.url}/")
    WebLake(place).settle(0, {"silver_chess": "chess"})
    expect(shown.page.locator("article.pipeline h3")).to_have_text("games", timeout=30_000)
    assert shown.errors == []


def troubled(lake: WebLake, **changes: object) -> Pulse:
    """What a run says that has lost its broker, and is alive."""
    checkpoint = at(str(lake.path / "_checkpoints" / lake.pipeline))
    error = SourceUnavailableError(
        f"the broker does not answer {HOSTILE}",
        where="127.0.0.1:9092",
        next_step="start it, or correct `source.bootstrap_servers`",
    )
    facts = {name: str(value) for name, value in error.as_dict().items() if name != "context"}
    now = datetime.now(UTC)
    found = Pulse(
        now,
        Trouble(now - timedelta(minutes=3), 25, now + timedelta(seconds=40), facts),
        Backlog(now, 1234, {"wrapper/1": 1000, f"{HOSTILE}/0": 234}),
        UnderWay(20, now - timedelta(seconds=50), "stage", 400),
        (f"WARNING games failed: the broker does not answer {HOSTILE}", "the last line"),
        held=HeldRecords(7654, 2, HOSTILE, now - timedelta(minutes=5)),
    )
    write_pulse(checkpoint, replace(found, **changes))  # type: ignore[arg-type]
    return found


def test_a_pipeline_that_retries_is_seen_everywhere(
    tmp_path: Path, start: Start, look: Look
) -> None:
    lake = busy_lake(tmp_path / "lake")
    claim = Claim.take(at(str(lake.path / "_checkpoints" / "games")), lease=60)
    try:
        troubled(lake)
        served = start(lake.path)
        for phone in (True, False):
            shown = look(phone=phone)
            name = "-phone" if phone else ""
            shown.open(f"{served.url}/")
            shown.shoot(f"retrying{name}")
            words = shown.page.locator("main").inner_text()
            assert "Retrying." in words and "SOURCE_UNAVAILABLE" in words and HOSTILE in words
            shown.open(f"{served.url}/pipelines/games")
            shown.shoot(f"retrying-pipeline{name}")
            words = shown.page.locator("main").inner_text()
            assert "1,234" in words and "25 attempts" in words and "the last line" in words
            assert "#20 of 400 records, step stage" in words
            assert "7,654 records of 2 transactions that did not come completely" in words
            assert shown.page.locator("main img").count() == 0
            assert shown.page.evaluate("document.documentElement.scrollWidth") <= (
                390 if phone else 1400
            )
            shown.open(f"{served.url}/errors/SOURCE_UNAVAILABLE")
            assert "is retrying because of it" in shown.page.locator("main").inner_text()
            assert shown.errors == []
        # all is well again, without a reload
        shown.open(f"{served.url}/pipelines/games")
        troubled(lake, trouble=None)
        expect(shown.page.locator(".title .badge")).to_have_text("running", timeout=30_000)
        assert "Retrying" not in shown.page.locator("main").inner_text()
    finally:
        claim.release()
    troubled(lake)
    expect(shown.page.locator(".title .badge")).to_have_text("stopped", timeout=30_000)
    assert "Retrying" not in shown.page.locator("main").inner_text()


def test_done_stopped_failed_and_crashed_are_told_apart(
    tmp_path: Path, start: Start, look: Look
) -> None:
    lake = busy_lake(tmp_path / "lake")
    checkpoint = at(str(lake.path / "_checkpoints" / "games"))
    Claim.take(checkpoint, lease=60).release()
    error = SourceUnavailableError("the broker does not answer", next_step="start the broker")
    served = start(lake.path)
    shown = look()
    card = shown.page.locator("article.pipeline").first
    for state, tone in (("done", "ok"), ("stopped", "quiet"), ("failed", "bad")):
        write_pulse(checkpoint, Pulse(datetime.now(UTC), ended=state))
        if state == "failed":
            write_failure(checkpoint, error)
        shown.open(f"{served.url}/")
        badge = shown.page.locator("article.pipeline .badge").first
        expect(badge).to_have_text(state, timeout=30_000)
        expect(badge).to_have_class(f"badge {tone}")
        shown.shoot(f"{state}-light")
        with shown.in_the_dark():
            shown.shoot(f"{state}-dark")
        is_red = "down" in (card.get_attribute("class") or "").split()
        assert is_red is (state == "failed")
    assert "SOURCE_UNAVAILABLE" in card.inner_text()
    attention = shown.page.locator(".attention").first.inner_text()
    assert "SOURCE_UNAVAILABLE" in attention and error.next_step in attention
    shown.open(f"{served.url}/pipelines/games")
    shown.shoot("failed-pipeline")
    expect(shown.page.locator(".title .badge")).to_have_text("failed")
    assert shown.errors == []


def test_a_point_of_a_plot_has_its_unit_and_leads_to_its_batch(
    page_of_busy: Running, look: Look
) -> None:
    shown = look()
    shown.open(f"{page_of_busy.url}/pipelines/games")
    plot = shown.page.locator(".plot").first
    plot.focus()
    for _ in range(3):
        plot.press("ArrowLeft")
    assert "records/s" in plot.locator(".tip").inner_text()
    plot.press("Enter")
    expect(shown.page.locator("h1")).to_contain_text("games #17")
    assert shown.errors == []


MS = NOW // 1000


def test_a_table_of_change_data_shows_its_events_by_commit(
    tmp_path: Path, start: Start, look: Look
) -> None:
    shop = ChangeLake(tmp_path)
    rows = range(1, 6)
    shop.batch([event(MS + n, "insert", id=n, region="north", price=1.0 * n) for n in rows])
    shop.batch([event(MS + 10_000, "update", id=2, region="south", price=20.0)])
    shop.batch([event(MS + 20_000, "delete", id=5)])
    served, shown = start(shop.lake), look()
    points = served.get("/api/commits", params={"table": MERGED})["points"]
    assert [point["events"] for point in points] == [5, 1, 1]
    shown.open(f"{served.url}/tables/{MERGED}")
    shown.shoot("change-data")
    commits = shown.page.locator(
        "table.grid", has=shown.page.locator("caption", has_text="Commits")
    )
    assert "insert 5" in commits.inner_text() and "0 B" not in commits.inner_text()
    shown.open(f"{served.url}/")
    shown.shoot("change-data-overview")
    assert shown.errors == []


def test_what_has_ended_fills_its_charts(page_of_busy: Running, look: Look) -> None:
    shown = look()
    shown.open(f"{page_of_busy.url}/?window=all")
    filled = """() => {
        const box = document.querySelector(".plot svg .line").getBBox();
        return (box.x + box.width) / document.querySelector(".plot svg").clientWidth;
    }"""
    assert shown.page.evaluate(filled) > 0.9
    assert shown.errors == []


def test_commands_can_be_pasted_anywhere(page_of_busy: Running, look: Look) -> None:
    shown, lake = look(), page_of_busy.get("/api/overview")["lake"]
    shown.open(f"{page_of_busy.url}/query")
    expect(shown.page.locator(".page")).to_contain_text(f"distributary query --lake {lake}")
    letter = page_of_busy.get("/api/dead-letters")["letters"][0]["id"]
    shown.open(f"{page_of_busy.url}/dead-letters/{letter}")
    expect(shown.page.locator(".page")).to_contain_text(f"dlq show {letter} --lake {lake}")
    assert shown.errors == []
