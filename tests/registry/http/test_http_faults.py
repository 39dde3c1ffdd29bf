"""What a registry, or whatever answers in its place, can do wrong, and what each is taken for."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from distributary.errors import (
    ConfigError,
    ErrorCode,
    RegistryError,
    RegistryUnavailableError,
    SchemaNotFoundError,
)
from distributary.registry.http.client import ATTEMPTS
from tests.registry.loopback import Asked, Says, Script, by_path, no, registry, says, serving

HTML = b"<html><body>It works!</body></html>"
AT_ONCE: dict[str, Any] = {"timeout": "300ms", "attempts": 1}


def in_turn(*replies: Says) -> Script:
    """One reply after the other, the last one for ever."""
    waiting = list(replies)
    return lambda _: waiting.pop(0) if len(waiting) > 1 else waiting[0]


def refused_port() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"certainly",
        HTML,
        b"\xff\xfe",
        b"[]",
        b'{"schema": 5}',
        b'{"schema": null}',
        b'{"schemaType": "PROTOBUF"}',
        b'{"schema": "x", "references": {}}',
        b'{"schema": "x", "references": [{"name": "a"}]}',
        b'{"schema": "x"',
        b"[" * 100_000,
        b'{"error_code": 40403, "message": "with a status of 200"}',
    ],
)
def test_an_answer_of_another_shape_is_garbage_and_no_missing_schema(body: bytes) -> None:
    waits: list[float] = []
    with serving(lambda _: Says(200, body)) as server, registry(server.url, waits=waits) as reader:
        with pytest.raises(RegistryUnavailableError) as caught:
            reader.by_id(1)
        assert caught.value.code is ErrorCode.REGISTRY_GARBAGE
        assert len(server.asked) == ATTEMPTS == len(waits) + 1


@pytest.mark.parametrize(
    ("ask", "body"),
    [
        (lambda r: r.subjects(), b'{"a": 1}'),
        (lambda r: r.subjects(), b"[1]"),
        (lambda r: r.versions("a"), b'["1"]'),
        (lambda r: r.versions("a"), b"[0]"),
        (lambda r: r.latest("a"), b'{"schema": "x", "id": "1", "version": 1}'),
        (lambda r: r.latest("a"), b'{"schema": "x", "id": 1}'),
        (lambda r: r.latest("a"), b'{"schema": "x", "id": 4294967296, "version": 1}'),
        (lambda r: r.compatibility("a"), b'{"compatibilityLevel": "SOMEWHAT"}'),
        (lambda r: r.check("a", "x"), b'{"is_compatible": "yes"}'),
        (lambda r: r.register("a", "x"), b'{"id": null}'),
    ],
)
def test_every_question_has_its_shape(ask: Callable[..., object], body: bytes) -> None:
    with serving(lambda _: Says(200, body)) as server, registry(server.url, attempts=1) as reader:
        with pytest.raises(RegistryUnavailableError) as caught:
            ask(reader)
        assert caught.value.code is ErrorCode.REGISTRY_GARBAGE


def test_an_answer_without_end_is_cut_off() -> None:
    reply = Says(200, b" " * 65536, endless=True)
    with serving(lambda _: reply) as server, registry(server.url, most_bytes=10**6) as reader:
        with pytest.raises(RegistryUnavailableError) as caught:
            reader.by_id(1)
        assert caught.value.code is ErrorCode.REGISTRY_GARBAGE
        assert len(server.asked) == 1


@pytest.mark.parametrize(
    "reply",
    [Says(hang=True), Says(drip=b" "), Says(drip=b"X-A: b\r\n")],
    ids=["hangs", "drips its body", "drips its headers"],
)
def test_a_server_that_never_ends_is_given_up(reply: Says) -> None:
    with serving(lambda _: reply) as server, registry(server.url, **AT_ONCE) as reader:
        with pytest.raises(RegistryUnavailableError) as caught:
            reader.by_id(1)
        assert caught.value.code is ErrorCode.REGISTRY_UNAVAILABLE


def test_a_server_that_breaks_off() -> None:
    reply = Says(200, b"[", {"content-length": "50", "connection": "close"})
    with serving(lambda _: reply) as server, registry(server.url, attempts=2) as reader:
        with pytest.raises(RegistryUnavailableError):
            reader.by_id(1)


def test_nobody_listens() -> None:
    waits: list[float] = []
    with registry(refused_port(), waits=waits) as reader, pytest.raises(RegistryUnavailableError):
        reader.by_id(1)
    assert len(waits) == ATTEMPTS - 1
    assert all(0 <= wait <= 5 for wait in waits)


def test_a_host_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with registry("http://registry.test") as reader, pytest.raises(RegistryUnavailableError) as e:
        reader.subjects()
    assert "host" in e.value.what


def test_a_host_that_cannot_exist() -> None:
    with registry(f"http://{'x' * 64}.test") as reader, pytest.raises(RegistryUnavailableError):
        reader.subjects()


@pytest.mark.parametrize("status", [401, 403, 407])
@pytest.mark.parametrize("body", [b"", HTML, b'{"error_code": 40301, "message": "denied"}'])
def test_credentials_that_are_not_accepted(status: int, body: bytes) -> None:
    with serving(lambda _: Says(status, body)) as server, registry(server.url) as reader:
        with pytest.raises(RegistryError) as caught:
            reader.by_id(1)
        assert caught.value.code is ErrorCode.REGISTRY_AUTH
        assert not isinstance(caught.value, SchemaNotFoundError | RegistryUnavailableError)
        assert len(server.asked) == 1


@pytest.mark.parametrize("code", [40401, 40402, 40403, 40404, 40406])
def test_only_the_registry_itself_can_say_that_something_is_missing(code: int) -> None:
    with serving(lambda _: no(404, code)) as server, registry(server.url) as reader:
        for ask in (reader.by_id, reader.text):
            with pytest.raises(SchemaNotFoundError):
                ask(1)
        with pytest.raises(SchemaNotFoundError):
            reader.latest("chess-value")
        with pytest.raises(SchemaNotFoundError):
            reader.version("chess-value", 7)
        assert reader.versions("chess-value") == ()
        assert len(server.asked) == 5


STRANGERS = [
    Says(404, HTML),
    Says(404, b""),
    no(404, 404, "HTTP 404 Not Found"),
    says({"detail": "NotFoundException", "status": 404}, 404),
    Says(400, HTML),
    Says(405, b""),
    Says(501, b""),
    Says(302, b"", {"location": "https://login.test/?next=registry"}),
]


@pytest.mark.parametrize(
    "reply", STRANGERS, ids=lambda reply: f"{reply.status} {reply.body[:12]!r}"
)
def test_an_address_without_a_registry_is_a_mistake_in_the_file(reply: Says) -> None:
    waits: list[float] = []
    with serving(lambda _: reply) as server, registry(server.url, waits=waits) as reader:
        with pytest.raises(ConfigError):
            reader.by_id(1)
        assert (len(server.asked), waits) == (1, [])


@pytest.mark.parametrize(
    "reply", STRANGERS, ids=lambda reply: f"{reply.status} {reply.body[:12]!r}"
)
def test_an_address_that_had_a_registry_is_being_restarted(reply: Says) -> None:
    with serving(in_turn(says([]), reply)) as server, registry(server.url) as reader:
        reader.subjects()
        with pytest.raises(RegistryUnavailableError) as caught:
            reader.by_id(1)
        assert caught.value.code is ErrorCode.REGISTRY_GARBAGE
        assert len(server.asked) == 1 + ATTEMPTS


def test_other_refusals_are_neither_a_missing_schema_nor_an_outage() -> None:
    with serving(lambda _: no(422, 42205, "read-only")) as server, registry(server.url) as reader:
        for ask in (lambda: reader.by_id(1), lambda: reader.register("a", "x")):
            with pytest.raises(RegistryError) as caught:
                ask()
            assert type(caught.value) is RegistryError
            assert caught.value.code is ErrorCode.REGISTRY_REFUSED


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_busy_server_is_asked_again(status: int) -> None:
    waits: list[float] = []
    script = in_turn(no(status, 50001), Says(status, HTML), says(["a"]))
    with serving(script) as server, registry(server.url, waits=waits) as reader:
        assert reader.subjects() == ("a",)
        assert len(server.asked) == 3 == len(waits) + 1


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_that_stays_busy_is_given_up(status: int) -> None:
    with serving(lambda _: Says(status, HTML)) as server, registry(server.url) as reader:
        with pytest.raises(RegistryUnavailableError) as caught:
            reader.by_id(1)
        assert caught.value.code is ErrorCode.REGISTRY_UNAVAILABLE
        assert len(server.asked) == ATTEMPTS


@pytest.mark.parametrize("wish", ["7", " 7 ", "a date"])
def test_a_server_that_says_how_long_to_wait_is_obeyed(wish: str) -> None:
    waits: list[float] = []
    if wish == "a date":
        wish = format_datetime(datetime.now(UTC) + timedelta(seconds=28))
    script = in_turn(Says(429, b"", {"retry-after": wish}), says(["a"]))
    with serving(script) as server, registry(server.url, waits=waits) as reader:
        assert reader.subjects() == ("a",)
    # longer than the first wait of our own would have been
    assert len(waits) == 1 and waits[0] > 1


@pytest.mark.parametrize("wish", ["soon", "-5", "", "Wed, 21 Oct 2015 07:28:00 GMT"])
def test_a_wish_that_asks_for_nothing(wish: str) -> None:
    waits: list[float] = []
    script = in_turn(Says(503, b"", {"retry-after": wish}), says(["a"]))
    with serving(script) as server, registry(server.url, waits=waits) as reader:
        assert reader.subjects() == ("a",)
    assert len(waits) == 1 and waits[0] < 1


def test_a_server_that_wants_to_be_left_alone_for_long_is() -> None:
    waits: list[float] = []
    reply = Says(429, b"", {"retry-after": "3600"})
    with serving(lambda _: reply) as server, registry(server.url, waits=waits) as reader:
        with pytest.raises(RegistryUnavailableError):
            reader.subjects()
        assert (len(server.asked), waits) == (1, [])


@pytest.mark.parametrize(
    "reply", [Says(503, b""), Says(404, HTML), Says(200, HTML), Says(429, b""), Says(hang=True)]
)
def test_the_next_address_is_asked_and_stays_the_first(reply: Says) -> None:
    waits: list[float] = []
    with (
        serving(lambda _: reply) as bad,
        serving(lambda _: says(["a"])) as good,
        registry(bad.url, good.url, waits=waits, timeout="500ms") as reader,
    ):
        assert reader.subjects() == reader.subjects() == ("a",)
        assert (len(bad.asked), len(good.asked), waits) == (1, 2, [])


def test_it_goes_back_when_the_second_address_falls_silent() -> None:
    first = in_turn(Says(503, b""), says(["first"]))
    second = in_turn(says(["second"]), Says(503, b""))
    with serving(first) as one, serving(second) as two, registry(one.url, two.url) as reader:
        assert reader.subjects() == ("second",)
        assert reader.subjects() == ("first",)


def test_when_all_addresses_fail_each_is_named() -> None:
    with serving(lambda _: Says(404, HTML)) as server:
        nobody = refused_port()
        with registry(nobody, server.url, attempts=2) as reader:
            with pytest.raises(RegistryUnavailableError) as caught:
                reader.subjects()
            assert nobody in caught.value.where and server.url in caught.value.where
            assert len(server.asked) == 2


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_nobody_is_asked_whom_the_file_does_not_name(status: int) -> None:
    with serving(lambda _: says(["stolen"])) as other:
        reply = Says(status, b"", {"location": f"{other.url}/subjects"})
        with serving(lambda _: reply) as server:
            with registry(server.url, username="u", password="p") as reader:
                with pytest.raises(ConfigError):
                    reader.subjects()
            assert server.paths == ["GET /subjects"]
        assert other.asked == []


def test_a_proxy_is_not_asked_the_way_to_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, refused_port())
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with serving(lambda _: says([])) as server:
        for host in ("127.0.0.1", "localhost"):
            with registry(server.url.replace("127.0.0.1", host)) as reader:
                assert reader.subjects() == ()


def test_other_machines_are_reached_by_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for = "http://registry.test/subjects"

    def answer(asked: Asked) -> Says:
        return says(["by proxy"]) if str(asked) == f"GET {asked_for}" else Says(500)

    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with serving(answer) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        with registry("http://registry.test") as reader:
            assert reader.subjects() == ("by proxy",)


def test_a_proxy_that_cannot_be_used_is_named_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ALL_PROXY", "gopher://me:proxy-pass@127.0.0.1:1")
    with pytest.raises(ConfigError) as caught:
        registry("http://registry.test")
    assert "proxy-pass" not in str(caught.value)


def test_questions_from_many_threads_find_their_own_answers() -> None:
    from concurrent.futures import ThreadPoolExecutor

    def answer(asked: Asked) -> Says:
        return says([int(asked.path.split("/")[2].removeprefix("s"))])

    with serving(answer) as server, registry(server.url) as reader:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda n: reader.versions(f"s{n}"), range(1, 60)))
    assert found == [(n,) for n in range(1, 60)]


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    with serving(by_path({})) as server, registry(server.url) as reader:
        with contextlib.suppress(ConfigError):
            reader.subjects()
        server.script = lambda _: Says(503, b"")
        with contextlib.suppress(RegistryUnavailableError):
            reader.subjects()
    assert capfd.readouterr().out == ""
