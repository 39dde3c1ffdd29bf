from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import logging
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from distributary.config.alerts import Alerts
from distributary.observe.alerts.notice import AlertKind, AlertState, Notice, Severity
from distributary.observe.alerts.targets import AlertTarget, dedup_key, make_targets, message
from distributary_lab.services.processes import free_port
from tests.observe.alerts.scenes import moment, notice
from tests.registry.loopback import Asked, Says, Server, serving
from tests.services.secured import Authority

HOSTILE = "<!channel> <http://evil|click> & *bold* `x` <@U123>"


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(lambda asked: Says(202)) as server:
        yield server


def target(type: str, **settings: Any) -> AlertTarget:
    return make_targets(Alerts.model_validate({"to": [{"type": type, **settings}]}))[0]


def webhook(url: str, **settings: Any) -> AlertTarget:
    return target("webhook", url=f"{url}/hook?key=canary-7f3a", timeout="5s", **settings)


def test_a_webhook_gets_the_whole_notice_signed(server: Server) -> None:
    sent = notice(batch=4, link="http://d/tables/chess")
    hook = webhook(server.url, secret="canary-secret", token="canary-token")
    assert hook.send(sent).delivered
    (asked,) = server.asked
    document = json.loads(asked.body)
    assert document == {
        "version": 1,
        "key": "games/parked/chess",
        "pipeline": "games",
        "kind": "parked",
        "state": "raised",
        "severity": "error",
        "subject": "chess",
        "what": "table chess is parked",
        "where": "table chess",
        "evidence": "disk full",
        "next_step": "distributary resume chess",
        "code": "COMMIT_FAILED",
        "since": "2026-05-01T12:00:00+00:00",
        "at": "2026-05-01T12:00:00+00:00",
        "batch": 4,
        "link": "http://d/tables/chess",
    }
    digest = hmac.new(b"canary-secret", asked.body, hashlib.sha256).hexdigest()
    assert asked.headers["x-distributary-signature"] == f"sha256={digest}"
    assert asked.headers["authorization"] == "Bearer canary-token"
    assert asked.headers["idempotency-key"] == sent.occasion
    assert (asked.method, asked.path) == ("POST", "/hook?key=canary-7f3a")


def test_each_attempt_at_one_message_is_the_same_and_another_message_is_not(server: Server) -> None:
    hook = webhook(server.url)
    for each in (notice(), notice(), notice().resolved(moment(9)), notice(at=50)):
        hook.send(each)
    keys = [asked.headers["idempotency-key"] for asked in server.asked]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3
    assert "x-distributary-signature" not in server.asked[0].headers


@pytest.mark.parametrize("type", ["slack", "webhook"])
def test_content_of_records_cannot_mention_or_link(type: str, server: Server) -> None:
    url = f"{server.url}/services/x"
    hostile = notice(HOSTILE, what=HOSTILE, where=HOSTILE, evidence=HOSTILE, next_step=HOSTILE)
    assert target(type, url=url).send(hostile).delivered
    if type == "slack":
        # what is between < and > is the only thing that Slack would follow
        assert re.findall(rb"<[^>]*>", server.asked[0].body) == []


def test_slack_shows_everything_that_matters() -> None:
    told = message(notice(link="http://d/tables/a%7Cb?x=1&y=<2>"))
    text = json.dumps(told)
    for part in ("games", "table chess is parked", "disk full", "distributary resume chess"):
        assert part in text
    assert "<http://d/tables/a%7Cb?x=1&amp;y=%3C2%3E|Open the dashboard>" in text
    assert told["text"].startswith("[error] games: ")
    over = json.dumps(message(notice().resolved(moment(5))))
    assert "[resolved]" in over
    assert "distributary resume" not in over


def test_slack_is_never_sent_more_than_it_takes() -> None:
    told = message(notice(what="&" * 5000, evidence="x" * 5000))
    assert max(len(e.get("text", "")) for e in told["blocks"][1]["elements"]) <= 2000


def test_pagerduty_triggers_and_resolves_one_incident(server: Server) -> None:
    duty = target("pagerduty", routing_key="canary-key", url=server.url)
    raised = notice(link="http://d/tables/chess")
    assert duty.one_by_one
    assert duty.send(raised).delivered
    assert duty.send(raised.resolved(moment(60))).delivered
    begun, over = (json.loads(asked.body) for asked in server.asked)
    assert server.paths == ["POST /v2/enqueue", "POST /v2/enqueue"]
    assert (begun["event_action"], over["event_action"]) == ("trigger", "resolve")
    assert begun["dedup_key"] == over["dedup_key"] == "games/parked/chess"
    assert begun["routing_key"] == "canary-key"
    assert begun["payload"]["severity"] == "error"
    assert begun["payload"]["summary"] == "[error] games: table chess is parked"
    assert begun["payload"]["custom_details"]["next_step"] == "distributary resume chess"
    assert begun["links"][0]["href"] == "http://d/tables/chess"


def test_pagerduty_is_not_woken_by_what_just_happened(server: Server) -> None:
    happened = notice(state=AlertState.INFO, kind=AlertKind.TABLE, severity=Severity.INFO)
    assert target("pagerduty", routing_key="k" * 8, url=server.url).send(happened).delivered
    assert server.paths == ["POST /v2/change/enqueue"]
    assert "event_action" not in json.loads(server.asked[0].body)


def test_long_keys_stay_apart() -> None:
    one, other = dedup_key("a" * 300), dedup_key("a" * 301)
    assert len(one) == len(other) == 255
    assert one != other
    assert dedup_key("short") == "short"


@pytest.mark.parametrize(
    ("says", "again", "wait"),
    [
        (Says(500), True, 0.0),
        (Says(503, headers={"retry-after": "7"}), True, 7.0),
        (Says(429, headers={"retry-after": "9999999999999"}), True, 3600.0),
        (Says(429, headers={"retry-after": "soon"}), True, 0.0),
        (Says(429, headers={"retry-after": "Mon, 01 Jan 2001 00:00:00 GMT"}), True, 0.0),
        (Says(404), False, 0.0),
        (Says(301, headers={"location": "http://127.0.0.1:1/"}), False, 0.0),
        (Says(400, body=b"\x00canary\xff" * 1000), False, 0.0),
    ],
)
def test_what_an_answer_means(says: Says, again: bool, wait: float) -> None:
    with serving(lambda asked: says) as server:
        outcome = webhook(server.url).send(notice())
    assert (outcome.delivered, outcome.again, outcome.wait) == (False, again, wait)
    assert "canary" not in outcome.why


def test_a_target_that_hangs_is_given_up_in_time() -> None:
    with serving(lambda asked: Says(hang=True)) as server:
        outcome = target("webhook", url=server.url, timeout="300ms").send(notice())
    assert (outcome.delivered, outcome.again) == (False, True)


def test_a_status_line_that_drips_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ended = threading.Event()

        def drip() -> None:
            connection, _ = listening.accept()
            with connection, suppress(OSError):
                for byte in itertools.chain(b"HTTP/1.1 200 ", itertools.repeat(ord("O"))):
                    connection.send(bytes([byte]))
                    if ended.wait(0.05):
                        return

        thread = threading.Thread(target=drip)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        outcome = target("webhook", url=url, timeout="300ms").send(notice())
        ended.set()
        thread.join()
    assert (outcome.delivered, outcome.again) == (False, True)


@pytest.mark.parametrize("says", [Says(body=b"x" * 1000, endless=True), Says(drip=b"x")])
def test_an_answer_without_end_is_not_read(says: Says) -> None:
    with serving(lambda asked: says) as server:
        assert webhook(server.url).send(notice()).delivered


def test_nobody_there_and_nobody_to_trust(tmp_path: Path) -> None:
    port = free_port(but=set())
    outcome = webhook(f"http://127.0.0.1:{port}").send(notice())
    assert (outcome.delivered, outcome.again) == (False, True)
    missing = webhook("https://127.0.0.1:1", ca_location=str(tmp_path / "none.pem"))
    outcome = missing.send(notice())
    assert (outcome.delivered, outcome.again) == (False, False)


def test_certificates_are_checked(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pair.certificate, pair.key)
    with serving(lambda asked: Says(200), tls) as server:
        assert not webhook(server.url).send(notice()).delivered
        trusting = webhook(server.url, ca_location=str(authority.certificate))
        assert trusting.send(notice()).delivered


def test_nothing_secret_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    answers = iter([Says(500), Says(404), Says(200)])

    def script(asked: Asked) -> Says:
        return next(answers)

    with serving(script) as server:
        hook = webhook(server.url, secret="canary-secret", token="canary-token")
        why = [hook.send(notice()).why for _ in range(3)]
    assert "canary" not in caplog.text + str(why)
    assert "canary" not in repr(hook.__dict__)


def test_lone_surrogates_are_no_obstacle(server: Server) -> None:
    strange = Notice(**{**_parts(notice()), "evidence": "a\ud800b"})
    for type in ("webhook", "slack"):
        assert target(type, url=server.url).send(strange).delivered
    assert target("pagerduty", routing_key="k" * 8, url=server.url).send(strange).delivered


def _parts(one: Notice) -> dict[str, Any]:
    return {name: getattr(one, name) for name in Notice.__dataclass_fields__}
