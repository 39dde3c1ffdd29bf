"""Tokens for an id and a secret: when they are asked for, and what can go wrong."""

from __future__ import annotations

import base64
import logging
import pickle
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from urllib.parse import parse_qs

import pytest
from pydantic import ValidationError

from distributary.config.registry import RegistryConfig
from distributary.errors import (
    ConfigError,
    DistributaryError,
    ErrorCode,
    RegistryError,
    RegistryUnavailableError,
)
from distributary.registry.http.client import ATTEMPTS
from distributary.registry.http.http_registry import HttpRegistry
from tests.registry.loopback import Asked, Says, Server, no, registry, says, serving

ID, SECRET = "client+1", "secret-canary:1 &ß"
HTML = Says(200, b"<html>sign in</html>")


def given(token: str, **more: Any) -> Says:
    return says({"access_token": token, "token_type": "Bearer", "expires_in": 3600, **more})


@dataclass
class Desk:
    """Gives tokens one after the other, or whatever it is told to say first."""

    first: list[Says] = field(default_factory=list)
    expires_in: Any = 3600
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def __call__(self, asked: Asked) -> Says:
        if self.first:
            return self.first.pop(0)
        return given(f"token-canary-{next(self.numbers)}", expires_in=self.expires_in)


@dataclass
class Door:
    """A registry that lets in whoever has a token that is still good."""

    good: Callable[[str], bool] = lambda _: True
    seen: list[str] = field(default_factory=list)

    def __call__(self, asked: Asked) -> Says:
        token = asked.headers.get("authorization", "").removeprefix("Bearer ")
        self.seen.append(token)
        return says(["a"]) if self.good(token) else no(401, 40101, f"not with {token}")


@contextmanager
def both(desk: Any, door: Any, **settings: Any) -> Iterator[tuple[HttpRegistry, Server, Server]]:
    oauth = {"client_id": ID, "client_secret": SECRET, **settings.pop("oauth", {})}
    with serving(desk) as tokens, serving(door) as server:
        oauth.setdefault("token_url", f"{tokens.url}/oauth2/token")
        with registry(server.url, oauth=oauth, **settings) as reader:
            yield reader, tokens, server


def test_a_token_is_asked_for_as_the_standard_says() -> None:
    settings = {"scope": "read write", "parameters": {"audience": "sr & co"}}
    with both(Desk(), Door(), oauth=settings) as (reader, tokens, server):
        assert reader.subjects() == ("a",)
    (asked,) = tokens.asked
    assert str(asked) == "POST /oauth2/token"
    assert asked.headers["content-type"] == "application/x-www-form-urlencoded"
    assert parse_qs(asked.body.decode()) == {
        "grant_type": ["client_credentials"],
        "scope": ["read write"],
        "audience": ["sr & co"],
    }
    pair = base64.b64decode(asked.headers["authorization"].removeprefix("Basic ")).decode()
    assert pair == "client%2B1:secret-canary%3A1+%26%C3%9F"
    assert server.asked[0].headers["authorization"] == "Bearer token-canary-1"


def test_id_and_secret_in_the_body() -> None:
    url: dict[str, Any] = {"credentials": "body"}
    with both(Desk(), Door(), oauth=url) as (reader, tokens, _):
        reader.subjects()
    form = parse_qs(tokens.asked[0].body.decode())
    assert (form["client_id"], form["client_secret"]) == ([ID], [SECRET])
    assert "authorization" not in tokens.asked[0].headers


def test_the_address_keeps_its_query() -> None:
    with serving(Desk()) as tokens, serving(Door()) as server:
        oauth = {"client_id": "a", "client_secret": "b", "token_url": f"{tokens.url}/t?p=x"}
        with registry(server.url, oauth=oauth) as reader:
            reader.subjects()
        assert tokens.paths == ["POST /t?p=x"]


def test_whom_a_token_is_for_is_said_with_it() -> None:
    settings = {"logical_cluster": "lsrc-1", "identity_pool": "pool-2"}
    with both(Desk(), Door(), **settings) as (reader, tokens, server):
        reader.subjects()
    headers = server.asked[0].headers
    assert headers["target-sr-cluster"] == "lsrc-1"
    assert headers["confluent-identity-pool-id"] == "pool-2"
    assert "target-sr-cluster" not in tokens.asked[0].headers
    with serving(Door()) as server, registry(server.url, token="t", **settings) as reader:
        reader.subjects()
        assert server.asked[0].headers["target-sr-cluster"] == "lsrc-1"


@pytest.mark.parametrize(
    ("expires_in", "asked_at"),
    [(3600, {0, 3545}), ("3600", {0, 3545}), (100, {0, 85}), (3600.5, {0, 3545})],
)
def test_a_token_is_kept_until_shortly_before_its_end(
    expires_in: Any, asked_at: set[float]
) -> None:
    now, times = [0.0], set()
    with both(Desk(expires_in=expires_in), Door(), clock=lambda: now[0]) as (reader, tokens, _):
        for moment in (0, 75, 85, 86) if expires_in == 100 else (0, 10, 3500, 3545, 3546):
            now[0], before = float(moment), len(tokens.asked)
            reader.subjects()
            if len(tokens.asked) > before:
                times.add(moment)
    assert times == asked_at


def test_a_token_without_an_end_is_kept_until_it_is_refused() -> None:
    now = [0.0]
    door = Door()
    with both(Desk(expires_in=None), door, clock=lambda: now[0]) as (reader, tokens, _):
        for _ in range(3):
            reader.subjects()
            now[0] += 10**6
        assert len(tokens.asked) == 1
        door.good = lambda token: token == "token-canary-2"
        assert reader.subjects() == ("a",)
        assert len(tokens.asked) == 2


def test_a_token_that_is_refused_is_asked_for_once_more() -> None:
    door = Door(good=lambda token: token == "token-canary-2")
    with both(Desk(), door) as (reader, tokens, _):
        assert reader.subjects() == ("a",)
        assert door.seen[:2] == ["token-canary-1", "token-canary-2"]
        assert len(tokens.asked) == 2


def test_who_is_refused_with_a_new_token_too_is_not_known() -> None:
    with both(Desk(), Door(good=lambda _: False)) as (reader, tokens, server):
        with pytest.raises(RegistryError) as caught:
            reader.subjects()
        assert caught.value.code is ErrorCode.REGISTRY_AUTH
        assert not caught.value.retryable
        assert len(tokens.asked) == len(server.asked) == 2


@pytest.mark.parametrize(
    "reply",
    [
        says({"error": "invalid_client", "error_description": "unknown"}, 400),
        says({"error": "invalid_client"}, 401),
        says({"error": "invalid_scope"}, 400),
        says({"error": "unauthorized_client"}, 403),
        Says(401, b"<html>no</html>"),
        Says(403),
    ],
)
def test_who_gets_no_token_is_not_known(reply: Says) -> None:
    with both(Desk([reply]), Door()) as (reader, tokens, server):
        with pytest.raises(RegistryError) as caught:
            reader.subjects()
        assert caught.value.code is ErrorCode.REGISTRY_AUTH
        assert not caught.value.retryable
        assert caught.value.where == f"{tokens.url}/oauth2/token"
        assert server.asked == [] and len(tokens.asked) == 1


@pytest.mark.parametrize(
    "reply",
    [
        HTML,
        Says(200),
        Says(200, b"\xff\xfe"),
        Says(200, b"[" * 100_000),
        says([]),
        says({}),
        says({"access_token": ""}),
        says({"access_token": 7}),
        says({"access_token": None}),
        says({"access_token": "two\nlines"}),
        says({"access_token": "with space"}),
        says({"access_token": "ä"}),
        given("x", token_type="mac"),
        given("x", expires_in=-1),
        given("x", expires_in="soon"),
        given("x", expires_in=[1]),
        Says(200, b'{"access_token": "x", "expires_in": 1e999}'),
        Says(200, b'{"access_token": "x", "expires_in": NaN}'),
    ],
)
def test_an_answer_that_is_no_token_is_garbage_and_may_pass(reply: Says) -> None:
    waits: list[float] = []
    with both(Desk([reply] * 2), Door(), waits=waits) as (reader, tokens, server):
        assert reader.subjects() == ("a",)
        assert len(tokens.asked) == 3 == len(waits) + 1
        assert len(server.asked) == 1
    with both(Desk([reply] * 99), Door()) as (reader, tokens, server):
        with pytest.raises(RegistryUnavailableError) as caught:
            reader.subjects()
        assert caught.value.code is ErrorCode.REGISTRY_GARBAGE
        assert caught.value.where == f"{tokens.url}/oauth2/token"
        assert server.asked == [] and len(tokens.asked) == ATTEMPTS


@pytest.mark.parametrize(
    "reply",
    [
        Says(500),
        Says(503, b"<html>", {"retry-after": "7"}),
        Says(429),
        Says(408),
        says({"error": "temporarily_unavailable"}, 400),
    ],
)
def test_a_token_endpoint_that_is_busy_is_asked_again(reply: Says) -> None:
    waits: list[float] = []
    with both(Desk([reply]), Door(), waits=waits) as (reader, tokens, _):
        assert reader.subjects() == ("a",)
        assert len(tokens.asked) == 2
    assert "retry-after" not in reply.headers or waits[0] >= 7
    with both(Desk([reply] * 99), Door(), attempts=2) as (reader, tokens, server):
        with pytest.raises(RegistryUnavailableError) as caught:
            reader.subjects()
        assert caught.value.code is ErrorCode.REGISTRY_UNAVAILABLE and caught.value.retryable
        assert server.asked == []


@pytest.mark.parametrize("reply", [Says(404), Says(400, b"<html>"), Says(302), Says(405)])
def test_where_nobody_gives_tokens(reply: Says) -> None:
    with both(Desk([reply]), Door()) as (reader, tokens, _):
        with pytest.raises(ConfigError):
            reader.subjects()
        assert len(tokens.asked) == 1


def test_an_endpoint_that_gave_tokens_before_is_only_away() -> None:
    now = [0.0]
    desk = Desk()
    with both(desk, Door(), attempts=2, clock=lambda: now[0]) as (reader, _, _server):
        reader.subjects()
        now[0], desk.first = 5000.0, [Says(404)] * 2
        with pytest.raises(RegistryUnavailableError):
            reader.subjects()
        assert reader.subjects() == ("a",)


def test_before_its_end_an_old_token_will_do() -> None:
    now = [0.0]
    desk = Desk()
    with both(desk, Door(), attempts=1, clock=lambda: now[0]) as (reader, tokens, _):
        reader.subjects()
        now[0], desk.first = 3590.0, [Says(503)] * 9
        assert reader.subjects() == ("a",)
        asked = len(tokens.asked)
        now[0] = 3601.0
        with pytest.raises(RegistryUnavailableError):
            reader.subjects()
        assert len(tokens.asked) == asked + 1


@pytest.mark.parametrize("reply", [Says(hang=True), Says(drip=b" ")])
def test_a_token_endpoint_that_never_ends_is_given_up(reply: Says) -> None:
    settings: dict[str, Any] = {"timeout": "300ms", "attempts": 1}
    with both(Desk([reply]), Door(), **settings) as (reader, _, server):
        with pytest.raises(RegistryUnavailableError) as caught:
            reader.subjects()
        assert "token" in caught.value.what and server.asked == []


def test_no_token_endpoint_at_all() -> None:
    settings: dict[str, Any] = {"attempts": 2, "oauth": {"token_url": "http://127.0.0.1:9/token"}}
    with both(Desk(), Door(), **settings) as (reader, _, server):
        with pytest.raises(RegistryUnavailableError) as caught:
            reader.subjects()
        assert caught.value.where == "http://127.0.0.1:9/token" and server.asked == []


def test_one_thread_asks_and_all_get_the_token() -> None:
    begin = threading.Barrier(8)

    def ask(reader: HttpRegistry) -> tuple[str, ...]:
        begin.wait()
        return reader.subjects()

    # the first two tokens end as soon as they are given out
    door = Door(good=lambda token: token == "token-canary-2")
    with both(Desk(), door) as (reader, tokens, _):
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(ask, [reader] * 8))
        assert found == [("a",)] * 8
        assert len(tokens.asked) == 2


def test_no_secret_is_ever_shown(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    escaped, parameter = "secret-canary%3A1+%26%C3%9F", "parameter-canary"
    pair = base64.b64encode(f"client%2B1:{escaped}".encode()).decode()

    def repeats(asked: Asked) -> str:
        return f"{asked.headers.get('authorization')} {asked.body.decode()} {SECRET} {escaped}"

    forms: list[Callable[[Asked], Says]] = [
        lambda asked: says({"error": "invalid_client", "error_description": repeats(asked)}, 400),
        lambda asked: says({"error": repeats(asked)}, 503),
        lambda asked: says({"access_token": repeats(asked)}),
        lambda asked: Says(302, b"", {"location": f"http://x/{escaped}"}),
        Desk(),
    ]
    seen: list[str] = []
    for form in forms:
        settings = {"parameters": {"assertion": parameter}, "credentials": "body"}
        for oauth in ({}, settings):
            with both(form, Door(good=lambda _: False), oauth=oauth, attempts=2) as (reader, *_):
                try:
                    reader.subjects()
                except DistributaryError as error:
                    seen += [str(error), repr(vars(error)), str(pickle.dumps(error))]
                    seen += traceback.format_exception(error)
                seen += [repr(reader), repr(vars(reader._client._tokens))]
    printed = capfd.readouterr()
    shown = "\n".join([*seen, caplog.text, printed.out, printed.err])
    told = (SECRET, escaped, pair, parameter, "token-canary")
    assert [secret for secret in told if secret in shown] == []


@pytest.mark.parametrize(
    "settings",
    [
        {"oauth": {"client_id": "a", "client_secret": "b"}},
        {"oauth": {"token_url": "ftp://x", "client_id": "a", "client_secret": "b"}},
        {"oauth": {"token_url": "http://u:p@x", "client_id": "a", "client_secret": "b"}},
        {"oauth": {"token_url": "http://x", "client_id": "a", "client_secret": " "}},
        {"logical_cluster": "lsrc-1"},
        {"logical_cluster": "é", "token": "t"},
        {"identity_pool": "a\r\nX: 1", "token": "t"},
    ],
)
def test_settings_that_cannot_work(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RegistryConfig(url="http://a", **settings)


@pytest.mark.parametrize("name", ["grant_type", "client_secret", "scope", "", "a\nb"])
def test_parameters_that_cannot_be_set(name: str) -> None:
    oauth = {"token_url": "http://x", "client_id": "a", "client_secret": "b"}
    with pytest.raises(ValidationError):
        RegistryConfig(url="http://a", oauth={**oauth, "parameters": {name: "x"}})


@pytest.mark.parametrize("other", [{"token": "t"}, {"username": "u", "password": "p"}])
def test_one_way_to_sign_in(other: dict[str, str]) -> None:
    oauth = {"token_url": "http://x", "client_id": "a", "client_secret": "b"}
    with pytest.raises(ValidationError):
        RegistryConfig(url="http://a", oauth=oauth, **other)
    with pytest.raises(ValidationError):
        RegistryConfig(path="./schemas", oauth=oauth)
