"""The page's SQL box: answers, refusals and limits, by hand and in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest

from distributary.web.api import query as box
from tests.web.conftest import TOKEN, Look, Running, Start
from tests.web.lakes import HOSTILE


@pytest.fixture
def page(own: Path, start: Start) -> Running:
    return start(own)


def ask(page: Running, sql: Any, **more: Any) -> httpx2.Response:
    with page.client() as client:
        proof = {"x-csrf-token": client.get("/api/session").json()["csrf"]}
        return client.post("/api/query", json={"sql": sql, **more}, headers=proof)


def test_an_answer(page: Running) -> None:
    found = ask(page, "select count(*) as n, repeat('x', 1000) as long from silver_chess").json()
    (row,) = found["rows"]
    assert (row["n"] > 0, len(row["long"]), found["more"]) == (True, 300, False)
    assert [column["name"] for column in found["columns"]] == ["n", "long"]
    many = ask(page, "from range(100000)").json()
    assert (len(many["rows"]), many["more"]) == (box.MOST_ROWS, True)


def test_an_answer_at_a_cut(page: Running) -> None:
    count = "select count(*) as n from silver_chess"
    whole = ask(page, count).json()["rows"]
    newest = ask(page, count, as_of=" ").json()["rows"]
    assert whole == newest
    for wrong, status in (("yesterday", 400), ("--help", 400), (7, 400), ("x" * 200, 400)):
        assert ask(page, count, as_of=wrong).status_code == status
    assert ask(page, count, as_of="999999").json()["error"]["code"] == "NOT_FOUND"


@pytest.mark.parametrize(
    ("sql", "status", "code"),
    [
        ("select * from nothing_like_it", 404, "NOT_FOUND"),
        ("drop table silver_chess", 400, "QUERY_INVALID"),
        ("--help", 400, "QUERY_INVALID"),
        ("select * from read_text('/etc/passwd')", 400, "QUERY_INVALID"),
        ("select list(i) from range(1000000000) t(i)", 422, "QUERY_STOPPED"),
        ("select repeat('x', 10000000) from range(500)", 422, "QUERY_STOPPED"),
        ("", 400, "CONFIG_INVALID"),
        (7, 400, "CONFIG_INVALID"),
        ("x" * 30_000, 400, "CONFIG_INVALID"),
    ],
)
def test_what_is_refused(page: Running, sql: Any, status: int, code: str) -> None:
    answer = ask(page, sql)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert not {"log", "docs", "page", "context"} & answer.json()["error"].keys()


def test_a_statement_that_does_not_end_is_killed(
    page: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(box, "SECONDS", 0)
    monkeypatch.setattr(box, "_START_SECONDS", 0.2)
    assert ask(page, "select 1").json()["error"]["code"] == "QUERY_STOPPED"
    assert not page.dashboard.queries._running


def test_only_a_few_are_answered_at_a_time(page: Running) -> None:
    for _ in range(box._AT_ONCE):
        assert page.dashboard.queries._free.acquire(blocking=False)
    answer = ask(page, "select 1")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "ACTION_RUNNING")


def test_nobody_asks_from_elsewhere_or_without_the_token(own: Path, start: Start) -> None:
    open_page, shut = start(own), start(own, token=TOKEN)
    sql = {"sql": "select 1"}
    with open_page.client() as client:
        assert client.post("/api/query", json=sql).status_code == 403
        assert client.get("/api/query").status_code == 405
        proof = {"x-csrf-token": client.get("/api/session").json()["csrf"]}
        foreign = {**proof, "origin": "http://evil.example"}
        assert client.post("/api/query", json=sql, headers=foreign).status_code == 403
    with shut.client() as client:
        assert client.post("/api/query", json=sql).status_code == 401
        bearer = {"authorization": f"Bearer {TOKEN}"}
        assert client.post("/api/query", json=sql, headers=bearer).status_code == 200


def test_in_a_browser(page_of_busy: Running, look: Look) -> None:
    shown = look()
    shown.open(page_of_busy.url + "/query?sql=select+1")
    # an address brings a statement along, and does not run it
    assert shown.page.locator("#sql").input_value() == "select 1"
    assert shown.page.locator("#answer").inner_text() == ""
    shown.page.locator("#sql").fill("select move, 1 as one from silver_chess limit 2")
    shown.page.locator("#sql").press("Control+Enter")
    shown.page.wait_for_selector("#answer table")
    assert shown.page.locator("#answer tbody tr").count() == 2
    shown.shoot("query")
    hostile = HOSTILE.replace("'", "''")
    shown.page.locator("#sql").fill(f"select '{hostile}' as \"<b>x</b>\"")
    shown.page.get_by_role("button", name="Run").click()
    shown.page.wait_for_selector("#answer td:has-text('onerror')")
    assert shown.page.locator("#answer img, #answer th b").count() == 0
    shown.page.locator("#sql").fill("select nope")
    shown.page.get_by_role("button", name="Run").click()
    shown.page.wait_for_selector("#answer .problem")
    assert shown.page.title() != "owned"
    assert [each for each in shown.errors if "400" not in each] == []
