"""The health endpoint: what it answers, and to whom."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import httpx2
import pytest

from distributary.errors import ConfigError, DistributaryError, ErrorCode
from distributary.supervise import server
from distributary.supervise.member import MemberState, MemberStatus, readiness
from distributary.supervise.server import Answers, ListenAddress, serving

HOSTILE = "<img src=x onerror=alert(1)>\n\x1b[31m"
CLIENT = httpx2.Client(trust_env=False)
TOKEN = "a-long-enough-token"


class World:
    """What the endpoint is asked about."""

    def __init__(self) -> None:
        self.live = True
        self.statuses = [MemberStatus(name="games", file="games.yaml", state=MemberState.RUNNING)]

    def answers(self, **more: Any) -> Answers:
        return Answers(
            live=lambda: self.live,
            ready=lambda: readiness(self.statuses),
            status=lambda: {"pipelines": [each.as_dict() for each in self.statuses]},
            **more,
        )


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def address(world: World) -> Iterator[str]:
    with serving(ListenAddress("127.0.0.1", 0), world.answers()) as found:
        yield found


def test_live_follows_the_loop(world: World, address: str) -> None:
    assert CLIENT.get(f"{address}/live").json() == {"version": 1, "live": True}
    world.live = False
    assert CLIENT.get(f"{address}/live").status_code == 503


def test_ready_says_who_is_not_and_why(world: World, address: str) -> None:
    assert CLIENT.get(f"{address}/ready").status_code == 200
    error = DistributaryError("secret words", code=ErrorCode.SOURCE_UNAVAILABLE)
    broken = MemberStatus(name="b", file="b.yaml", state=MemberState.BACKOFF, error=error)
    world.statuses += [broken, MemberStatus(name="c", file="c.yaml", state=MemberState.STARTING)]
    answer = CLIENT.get(f"{address}/ready")
    assert answer.status_code == 503
    assert answer.json()["not_ready"] == {"b": "backoff: SOURCE_UNAVAILABLE", "c": "starting"}


def test_status_has_every_pipeline(world: World, address: str) -> None:
    error = DistributaryError(HOSTILE, code=ErrorCode.BATCH_FAILED)
    world.statuses = [
        MemberStatus(name=f"p{n}", file="f", state=MemberState.FAILED, error=error)
        for n in range(1000)
    ]
    answer = CLIENT.get(f"{address}/status?x=1")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    document = answer.json()
    assert (document["version"], len(document["pipelines"])) == (1, 1000)
    assert document["pipelines"][0]["last_error"]["code"] == "BATCH_FAILED"
    assert "\x1b" not in answer.text


def test_what_is_not_there(address: str) -> None:
    assert CLIENT.get(f"{address}/metrics").status_code == 404
    assert CLIENT.get(f"{address}/{HOSTILE.encode().hex()}").status_code == 404
    assert CLIENT.post(f"{address}/status").status_code == 501


def test_metrics_are_passed_on_as_they_are(world: World) -> None:
    answers = world.answers(metrics=lambda accept: ("text/x", b"distributary_x_total 1\n"))
    with serving(ListenAddress.parse("127.0.0.1:0"), answers) as address:
        answer = CLIENT.get(f"{address}/metrics")
    assert answer.content == b"distributary_x_total 1\n"
    assert answer.headers["content-type"].startswith("text/x")


def test_an_answer_that_fails_is_no_end(world: World) -> None:
    def broken(accept: str) -> tuple[str, bytes]:
        raise ValueError(TOKEN)

    with serving(ListenAddress("127.0.0.1", 0), world.answers(metrics=broken)) as address:
        answer = CLIENT.get(f"{address}/metrics")
        assert (answer.status_code, TOKEN in answer.text) == (500, False)
        assert CLIENT.get(f"{address}/live").status_code == 200


@pytest.mark.parametrize("given", ["", "Bearer", f"Bearer {TOKEN}x", TOKEN, "Bearer é"])
def test_a_wrong_token_is_refused_and_said_nowhere(
    world: World, given: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with serving(ListenAddress("127.0.0.1", 0), world.answers(token=TOKEN)) as address:
        headers = {"Authorization": given.encode()} if given else {}
        for page in ("status", "metrics", "nothing"):
            answer = CLIENT.get(f"{address}/{page}", headers=headers)
            assert answer.status_code == 401
            assert TOKEN not in answer.text
        assert CLIENT.get(f"{address}/live", headers=headers).status_code == 200
        assert CLIENT.get(f"{address}/ready", headers=headers).status_code == 200
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert CLIENT.get(f"{address}/status", headers=right).status_code == 200
    said = capfd.readouterr()
    assert TOKEN not in said.out + said.err
    assert TOKEN not in repr(world.answers(token=TOKEN))


def test_beyond_loopback_a_token_is_needed(world: World) -> None:
    with (
        pytest.raises(ConfigError) as caught,
        serving(ListenAddress("0.0.0.0", 0), world.answers()),
    ):
        pass
    assert caught.value.code is ErrorCode.CONFIG_INVALID


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "[::2]:80", ""])
def test_a_page_cannot_ask_under_another_name(address: str, host: str) -> None:
    answer = CLIENT.get(f"{address}/status", headers={"Host": host})
    assert answer.status_code == (421 if host else 200)


@pytest.mark.parametrize("sent", [b"", b"GET /live HTTP/1.1\r\n"], ids=["silent", "half-open"])
def test_clients_that_say_nothing_do_not_keep_a_probe_out(address: str, sent: bytes) -> None:
    host, port = address.removeprefix("http://").split(":")
    with ExitStack() as stack:
        for _ in range(100):
            silent = stack.enter_context(socket.create_connection((host, int(port)), timeout=60))
            silent.sendall(sent)
        for _ in range(5):
            assert CLIENT.get(f"{address}/live", timeout=60).status_code == 200


def test_a_request_that_never_ends_is_cut_off(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_SILENT_SECONDS", 0.5)
    with serving(ListenAddress("127.0.0.1", 0), world.answers()) as address:
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=60) as slow:
            with suppress(OSError):
                for _ in range(600):
                    slow.sendall(b"G")
                    time.sleep(0.1)
                pytest.fail("it may go on for ever")


def test_a_port_that_is_taken_is_named(address: str, world: World) -> None:
    port = int(address.rpartition(":")[2])
    with (
        pytest.raises(DistributaryError) as caught,
        serving(ListenAddress("127.0.0.1", port), world.answers()),
    ):
        pass
    assert caught.value.code is ErrorCode.PORT_TAKEN


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:80", "127.0.0.1", 80),
        (":0", "127.0.0.1", 0),
        ("9100", "127.0.0.1", 9100),
        ("[::1]:80", "::1", 80),
        ("localhost:1", "localhost", 1),
    ],
)
def test_addresses(text: str, host: str, port: int) -> None:
    found = ListenAddress.parse(text)
    assert (found.host, found.port, found.is_loopback) == (host, port, True)


@pytest.mark.parametrize("text", ["", "host", "host:", "host:x", "::1:80", "h:70000", "h:²"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigError):
        ListenAddress.parse(text)


def test_documents_are_plain_json() -> None:
    status = MemberStatus(name=HOSTILE, file="f")
    assert json.dumps(readiness([status]))
