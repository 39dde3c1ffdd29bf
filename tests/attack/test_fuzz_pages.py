"""Every address of the dashboard, by every method, with anything for its parameters."""

from __future__ import annotations

import random
from urllib.parse import quote

import httpx2
import pytest

from distributary.errors import ErrorCode
from tests.web.conftest import Running, busy, own_logs, page_of_busy

__all__ = ["busy", "own_logs", "page_of_busy"]

pytestmark = pytest.mark.slow
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "GETT")
HOSTILE = (
    *("", " ", "0", "-1", "1e9", "9" * 30, "NaN", "true", "null", "[]", "games", "silver_chess"),
    *("../../../etc/passwd", "..%2f..%2fetc%2fpasswd", "/etc/passwd", "a\x00b", "\ud7ff", "𐀀"),
    *("<script>alert(1)</script>", "' or 1=1 --", "${env:HOME}", "%", "%%", "%zz", "a" * 5000),
    *("x\r\nSet-Cookie: a=b", "games/0", "games/-1", "games/9999999999999999999", "*", "(a+)+$"),
)
NAMES = (
    *("q", "table", "pipeline", "limit", "page", "size", "sort", "order", "type", "code", "status"),
    *("from", "to", "since", "until", "lane", "life", "id", "hours", "range", "role", "health"),
)


PATHS = (
    *("/", "/tables", "/static/{x}", "/{x}", "/api/{x}", "/api/overview", "/api/pipelines/{x}"),
    *("/api/series", "/api/healing", "/api/errors", "/api/errors/{x}", "/api/schemas"),
    *("/api/schemas/{x}", "/api/search", "/api/jobs", "/api/jobs/{x}", "/api/tables"),
    *("/api/tables/{x}", "/api/preview", "/api/commits", "/api/dead-letters", "/api/login"),
    *("/api/dead-letters/{x}", "/api/session", "/api/logout", "/api/links", "/api/batches"),
    *("/api/batches/{x}/{x}", "/favicon.ico"),
)
BODIES = (b"", b"{}", b"[]", b"null", b'{"action": "x"}', b'{"token": 1}', b"\xff", b"[" * 50_000)
TYPES = ("application/json", "text/plain", "application/x-www-form-urlencoded", "multipart/x", "")


def filled(path: str, dice: random.Random) -> str:
    while "{" in path:
        before, _, rest = path.partition("{")
        _, _, after = rest.partition("}")
        word = dice.choice(HOSTILE).encode("utf-8", "replace")
        path = before + quote(word, safe="/%" if dice.random() < 0.3 else "") + after
    return path


def asked(client: httpx2.Client, page: Running, dice: random.Random) -> httpx2.Response:
    words = [
        f"{dice.choice(NAMES)}={quote(dice.choice(HOSTILE).encode('utf-8', 'replace'))}"
        for _ in range(dice.randrange(4))
    ]
    path = f"{filled(dice.choice(PATHS), dice)}?{'&'.join(words)}"
    method = "GET" if dice.random() < 0.5 else dice.choice(METHODS)
    own = dice.random() < 0.5
    headers = {"Content-Type": dice.choice(TYPES)} | ({"Origin": page.url} if own else {})
    body = dice.choice(BODIES) if method not in ("GET", "HEAD") else None
    return client.request(method, page.url + path, content=body, headers=headers)


def test_requests(page_of_busy: Running, dice: random.Random) -> None:
    answered = 0
    with httpx2.Client(timeout=60) as client:
        for _ in range(300):
            try:
                answer = asked(client, page_of_busy, dice)
            except (httpx2.InvalidURL, httpx2.LocalProtocolError):
                # what cannot even be sent
                continue
            answered += 1
            assert answer.status_code < 500 or answer.status_code == 501, (
                str(answer.request.url)[:300],
                answer.text,
            )
            assert "Set-Cookie" not in answer.headers or "/api/log" in str(answer.request.url)
            assert "root:x:" not in answer.text
            assert "html" not in answer.headers.get("content-type", "") or (
                "<script>alert" not in answer.text
            )
            told = answer.headers.get("content-type") == "application/json" and answer.content
            if answer.status_code >= 400 and told:
                assert ErrorCode(answer.json()["error"]["code"]) is not ErrorCode.INTERNAL
        assert client.get(f"{page_of_busy.url}/api/overview").status_code == 200
    assert answered > 200
