"""What the server lets through, asked over real HTTP."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

import distributary.web.dashboard
from distributary.web.access import WRONG_ALLOWED
from tests.web.conftest import TOKEN, Running, Start
from tests.web.lakes import WebLake

TRIAL = {"action": "discard", "pipeline": "games", "reason": "NULL_VALUE", "note": "x"}


@pytest.fixture
def closed(busy: WebLake, start: Start) -> Running:
    """A dashboard that asks for a token."""
    return start(busy.path, token=TOKEN)


def csrf(client: httpx2.Client) -> dict[str, str]:
    return {"x-csrf-token": client.get("/api/session").json()["csrf"]}


def test_every_answer_has_the_headers(page_of_busy: Running) -> None:
    with page_of_busy.client() as client:
        for path in ("/", "/tables/x", "/static/main.js", "/api/overview", "/api/nothing", "/no"):
            headers = client.get(path).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer"
            assert "server" not in headers
        assert client.get("/api/overview").headers["cache-control"] == "no-store"


def test_a_foreign_name_is_refused(page_of_busy: Running) -> None:
    with page_of_busy.client() as client:
        answer = client.get("/api/overview", headers={"host": "evil.example"})
        assert answer.status_code == 421
        assert answer.json()["error"]["code"] == "ACCESS_DENIED"
        assert client.get("/", headers={"host": "evil.example"}).status_code == 421


def test_files_come_from_the_package_only(page_of_busy: Running) -> None:
    with page_of_busy.client() as client:
        for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static//etc/passwd"):
            assert client.get(path).status_code == 404
        first = client.get("/static/app.css")
        again = client.get("/static/app.css", headers={"if-none-match": first.headers["etag"]})
        assert (first.status_code, again.status_code) == (200, 304)


def test_the_page_names_all_of_its_scripts(page_of_busy: Running) -> None:
    """A browser that finds them one in another asks many times over."""
    static = Path(distributary.web.dashboard.__file__).parent / "static"
    scripts = {str(p.relative_to(static)) for p in static.rglob("*.js")}
    with page_of_busy.client() as client:
        text = client.get("/").text
    assert {name for name in scripts if f'"/static/{name}"' not in text} == set()
    # the policy forbids them, so that one would be dead
    assert "<script>" not in text and " style=" not in text and " onclick" not in text


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"x-csrf-token": "0" * 64},
    ],
)
def test_what_another_site_could_send_is_refused(
    page_of_busy: Running, headers: dict[str, str]
) -> None:
    with page_of_busy.client() as client:
        mine = csrf(client) if "x-csrf-token" not in headers and headers else {}
        answer = client.post("/api/jobs", json=TRIAL, headers=mine | headers)
    assert answer.status_code == 403
    assert page_of_busy.dashboard.jobs.every() == []


def test_a_form_of_another_site_is_no_json(page_of_busy: Running) -> None:
    with page_of_busy.client() as client:
        plain = {"content-type": "text/plain"} | csrf(client)
        assert client.post("/api/jobs", content="{}", headers=plain).status_code == 415
        assert client.post("/", json={}).status_code == 405
        huge = client.post("/api/jobs", json={"note": "x" * 70_000}, headers=csrf(client))
        assert huge.status_code == 400
        deep = "[" * 30_000
        kind = {"content-type": "application/json"} | csrf(client)
        assert client.post("/api/jobs", content=deep, headers=kind).status_code == 400


def test_reading_from_another_site_is_refused(page_of_busy: Running) -> None:
    with page_of_busy.client() as client:
        there = {"sec-fetch-site": "cross-site"}
        assert client.get("/api/overview", headers=there).status_code == 403
        # a link to a page is fine: there is nothing in the page itself
        assert client.get("/tables", headers=there).status_code == 200


def test_no_token_and_a_wrong_token_get_nothing(closed: Running) -> None:
    paths = ["/api/overview", "/api/tables", "/api/events", "/api/jobs", "/api/search?q=x"]
    with closed.client() as client:
        for path in paths:
            answer = client.get(path)
            assert answer.status_code == 401
            assert "silver" not in answer.text
        wrong = {"authorization": "Bearer nearly right"}
        assert client.get("/api/overview", headers=wrong).status_code == 401
        assert client.get("/tables").status_code == 200
        assert not client.get("/api/session").json()["logged_in"]


def test_the_token_opens_and_a_session_stays(closed: Running) -> None:
    with closed.client() as client:
        bearer = {"authorization": f"Bearer {TOKEN}"}
        assert client.get("/api/overview", headers=bearer).status_code == 200
        assert client.get("/api/overview").status_code == 401
        answer = client.post("/api/login", json={"token": TOKEN}, headers=csrf(client))
        assert answer.status_code == 200
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie and "samesite=strict" in cookie
        assert TOKEN not in cookie
        assert client.get("/api/overview").status_code == 200
        assert client.post("/api/logout", json={}, headers=csrf(client)).status_code == 200
        assert client.get("/api/overview").status_code == 401


def test_a_session_does_not_act_for_other_pages(closed: Running) -> None:
    with closed.client() as client:
        before = csrf(client)
        client.post("/api/login", json={"token": TOKEN}, headers=before)
        # the proof of the time before the login is worth nothing now
        assert client.post("/api/logout", json={}, headers=before).status_code == 403
        assert client.post("/api/logout", json={}).status_code == 403
        assert client.post("/api/logout", json={}, headers=csrf(client)).status_code == 200


def test_a_link_lets_in_once(closed: Running) -> None:
    bearer = {"authorization": f"Bearer {TOKEN}"}
    with closed.client() as client:
        path = client.post("/api/links", json={}, headers=bearer).json()["path"]
        page, once = path.split("#once=")
        assert page == "/login"
    with closed.client() as client:
        assert client.post("/api/login", json={"once": once}, headers=csrf(client)).is_success
        assert client.get("/api/overview").status_code == 200
    with closed.client() as client:
        again = client.post("/api/login", json={"once": once}, headers=csrf(client))
        assert again.status_code == 401
        assert again.json()["error"]["code"] == "ACCESS_DENIED"
        # the beginning of a link is no token, and the token is no link
        assert client.post("/api/login", json={"once": TOKEN}, headers=csrf(client)).is_error
        assert client.post("/api/login", json={"token": None}, headers=csrf(client)).is_error


def test_guessing_ends_soon(closed: Running) -> None:
    with closed.client() as client:
        for _ in range(WRONG_ALLOWED):
            wrong = client.post("/api/login", json={"token": "guess"}, headers=csrf(client))
            assert wrong.status_code == 401
        bearer = {"authorization": "Bearer guess"}
        for last in (
            client.post("/api/login", json={"token": "guess"}, headers=csrf(client)),
            client.get("/api/overview", headers=bearer),
        ):
            assert last.status_code == 429
            assert last.headers["retry-after"] == "60"


def test_guesses_of_others_do_not_keep_out_who_has_the_token(closed: Running) -> None:
    with closed.client() as client:
        for _ in range(WRONG_ALLOWED + 1):
            client.post("/api/login", json={"token": "guess"}, headers=csrf(client))
        bearer = {"authorization": f"Bearer {TOKEN}"}
        assert client.get("/api/overview", headers=bearer).status_code == 200
        path = client.post("/api/links", json={}, headers=bearer).json()["path"]
        once = {"once": path.partition("#once=")[2]}
        assert client.post("/api/login", json=once, headers=csrf(client)).is_success
    with closed.client() as client:
        right = client.post("/api/login", json={"token": TOKEN}, headers=csrf(client))
        assert right.status_code == 200


def guesses(page: Running, address: str, times: int) -> list[int]:
    with page.client(headers={"x-forwarded-for": address}) as client:
        wrong = {"authorization": "Bearer guess"}
        return [client.get("/api/overview", headers=wrong).status_code for _ in range(times)]


def test_behind_a_proxy_every_client_has_its_own_address(busy: WebLake, start: Start) -> None:
    page = start(busy.path, token=TOKEN, proxies=("127.0.0.0/8",))
    assert guesses(page, "203.0.113.1", WRONG_ALLOWED + 1)[-2:] == [401, 429]
    assert guesses(page, "203.0.113.2", 1) == [401]
    # what a client says of itself comes before what the proxy says of it
    assert guesses(page, "198.51.100.9, 203.0.113.1", 1) == [429]
    secure = login_cookie(page, {"x-forwarded-proto": "https"})
    assert "secure" in secure and "secure" not in login_cookie(page, {})


def test_who_is_no_proxy_cannot_say_who_it_is(busy: WebLake, start: Start) -> None:
    for proxies in ((), ("192.0.2.1",)):
        page = start(busy.path, token=TOKEN, proxies=proxies)
        assert guesses(page, "203.0.113.1", WRONG_ALLOWED)[-1] == 401
        assert guesses(page, "203.0.113.2", 1) == [429]
        assert "secure" not in login_cookie(page, {"x-forwarded-proto": "https"})


def login_cookie(page: Running, headers: dict[str, str]) -> list[str]:
    """What is said of the cookie of a login."""
    with page.client(headers=headers) as client:
        answer = client.post("/api/login", json={"token": TOKEN}, headers=csrf(client))
    return [part.strip() for part in answer.headers["set-cookie"].lower().split(";")]


def test_nothing_secret_is_said(
    closed: Running, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with closed.client() as client:
        client.get(f"/api/overview?token={TOKEN}")
        client.get("/api/overview", headers={"authorization": f"Bearer {TOKEN}"})
        client.post("/api/login", json={"token": "wrong secret"}, headers=csrf(client))
        client.post("/api/login", json={"token": TOKEN}, headers=csrf(client))
        client.get("/tables/a%0Ab")
    assert "GET /api/overview 401" in closed.said
    assert closed.said[-1].startswith("GET /tables/a%0Ab ")
    out, err = capfd.readouterr()
    everything = "\n".join([*closed.said, out, err, caplog.text])
    assert TOKEN not in everything and "wrong secret" not in everything
    assert TOKEN.replace(" ", "%20") not in everything


def test_one_login_opens_all_lakes_and_strangers_see_no_names(
    busy: WebLake, wide: WebLake, start: Start
) -> None:
    served = start(busy.path, others=(str(wide.path), str(wide.path)), token=TOKEN)
    with served.client() as client:
        assert client.get(f"/lakes/{wide.path.parent.name}-lake/api/overview").status_code == 401
        session = client.get("/api/session").json()
        assert session["lakes"] == []
        proof = {"x-csrf-token": session["csrf"]}
        assert client.post("/api/login", json={"token": TOKEN}, headers=proof).status_code == 200
        names = [each["name"] for each in client.get("/api/session").json()["lakes"]]
        home = wide.path.parent.name
        assert names == [f"{busy.path.parent.name}-lake", f"{home}-lake", f"{home}-lake-2"]
        assert client.get("/api/tables").json()["total"] != 1_000
        for name in names[1:]:
            assert client.get(f"/lakes/{name}/api/tables").json()["total"] == 1_000
        other = names[1]
        # the page of each lake is the same one, and no other name is a lake
        assert client.get(f"/lakes/{other}/tables").text == client.get("/").text
        assert client.get(f"/lakes/{other}").status_code == 200
        assert client.get("/lakes/nothing/api/tables").status_code == 404
        assert client.get(f"/lakes/{other}/lakes/{names[2]}/api/tables").status_code == 404
