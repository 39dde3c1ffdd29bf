"""The page in a real browser. What it looked like is in build/screenshots afterwards."""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from distributary.model.deadletter import dead_letter_id
from distributary.web.reading import Reading
from tests.web.conftest import TOKEN, Look, Running, Start
from tests.web.lakes import HOSTILE, WebLake, letter

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
    "errors": "/errors",
    "error": "/errors/UNKNOWN_SCHEMA_ID",
    "search": "/search?q=chess",
    "trace": "/search?q=wrapper%2F0%2F20",
}


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
    light, dark = look(), look(dark=True)
    light.open(page_of_busy.url)
    dark.open(page_of_busy.url)
    dark.shoot("overview-dark")
    by_system = light.page.evaluate(ground), dark.page.evaluate(ground)
    assert by_system[0] != by_system[1]
    dark.page.locator("#theme").click()
    assert dark.page.evaluate(ground) == by_system[0]
    dark.page.reload()
    dark.page.wait_for_selector("main .page")
    assert dark.page.evaluate(ground) == by_system[0]


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


def test_the_page_asks_for_little_and_the_ledger_is_read_once(
    wide: WebLake, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = start(wide.path)
    with served.client() as client:
        assert len(client.get("/api/overview").content) < 20_000
        assert len(client.get("/api/tables").content) < 60_000
    reading = Reading(str(wide.path))
    first = reading.health()

    def never() -> None:
        raise AssertionError("read again, though nothing has changed")

    monkeypatch.setattr(reading.ledger, "tables", never)
    assert reading.health() is first
    assert reading.status() is reading.status()


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


def test_a_read_only_lake_is_looked_at_and_left_alone(
    busy: WebLake, start: Start, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    # rights mean nothing to root, who may run the tests
    monkeypatch.setattr(Reading, "writable", False)
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
    first, second = look(), look()
    first.page.goto(link)
    first.page.wait_for_selector(".tiles")
    assert "once" not in first.page.url
    second.open(link)
    second.page.wait_for_selector(".problem")
    assert "ACCESS_DENIED" in second.page.locator(".problem").inner_text()
    assert not any("once" in line for line in served.said)


def test_discard_asks_shows_and_does(own: Path, start: Start, look: Look) -> None:
    served = start(own)
    shown = look()
    page = shown.page
    shown.open(f"{served.url}/dead-letters")
    page.locator("tr", has_text="NULL_VALUE").first.get_by_role("button", name="Discard…").click()
    page.locator("#note").fill("sent by a test")
    page.get_by_role("button", name="Show what would happen").click()
    page.wait_for_selector("dialog .verdict:has-text('1 dead letter would be discarded')")
    shown.shoot("discard-confirm")
    page.locator("#confirm").click()
    page.wait_for_selector("dialog .verdict:has-text('1 discarded.')")
    page.get_by_role("button", name="Close").click()
    # the page behind has noticed by itself
    expect(page.locator("main")).not_to_contain_text("NULL_VALUE")
    assert shown.errors == []
