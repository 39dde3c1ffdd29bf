from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from distributary.config.alerts import Alerts
from distributary.observe.alerts.targets import AlertTarget, make_targets
from distributary_lab.services.processes import free_port
from tests.observe.alerts.mailbox import PASSWORD, USER, mail_server
from tests.observe.alerts.scenes import moment, notice
from tests.services.secured import Authority

SENDER = "distributary@lake.example"


def mail(port: int, **settings: Any) -> AlertTarget:
    given = {"tls": "none", "host": "127.0.0.1", "timeout": "10s"} | settings
    given |= {"type": "email", "port": port, "from": SENDER, "to": ["a@x.example", "b@x.example"]}
    return make_targets(Alerts.model_validate({"to": [given]}))[0]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def context(authority: Authority) -> ssl.SSLContext:
    pair = authority.issue("server")
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(pair.certificate, pair.key)
    return made


def test_the_beginning_and_the_end_of_an_alert_are_one_thread() -> None:
    raised = notice(link="http://d/tables/chess")
    with mail_server() as box:
        target = mail(box.port)
        assert target.send(raised).delivered
        assert target.send(raised.resolved(moment(60))).delivered
    begun, over = box.mails
    assert begun["Subject"] == "[error] games: table chess is parked"
    assert over["Subject"] == "[resolved] games: table chess is parked"
    assert over["References"] == over["In-Reply-To"] == begun["Message-ID"]
    assert over["Message-ID"] != begun["Message-ID"]
    assert begun["References"] is None
    assert begun["From"] == SENDER
    assert begun["To"] == "a@x.example, b@x.example"
    assert begun["Auto-Submitted"] == "auto-generated"
    assert box.recipients[0] == ["a@x.example", "b@x.example"]
    text = begun.get_content()
    for part in ("table chess", "disk full", "distributary resume chess", "http://d/tables/chess"):
        assert part in text
    assert "distributary resume" not in over.get_content()


@pytest.mark.parametrize(
    "text",
    [
        "x\r\nBcc: everybody@evil.example\r\n\r\nforged",
        "x\nSubject: forged",
        "\u2028Bcc: everybody@evil.example",
        "\x00\x0b\x0c\x85",
        "日本語 " * 200,
        "a\ud800b",
        "=?utf-8?q?=0ABcc:_everybody@evil.example?=",
    ],
)
def test_no_text_becomes_a_header(text: str) -> None:
    with mail_server() as box:
        hostile = notice(text, what=text, where=text, evidence=text, pipeline=text)
        assert mail(box.port).send(hostile).delivered
    (got,) = box.mails
    known = {"subject", "from", "to", "date", "message-id", "auto-submitted", "x-distributary-key"}
    known |= {"content-type", "content-transfer-encoding", "mime-version", "x-peer", "x-mailfrom"}
    assert {name.lower() for name in got} <= known | {"x-rcptto"}
    assert len(got.get_all("subject", [])) == 1
    assert box.recipients == [["a@x.example", "b@x.example"]]


def test_starttls_with_a_password(authority: Authority) -> None:
    ca = str(authority.certificate)
    with mail_server(starttls=context(authority), auth=True) as box:
        signed = {"tls": "starttls", "username": USER, "ca_location": ca}
        assert mail(box.port, password=PASSWORD, **signed).send(notice()).delivered
        wrong = mail(box.port, password="canary-wrong", **signed).send(notice())
        untrusted = mail(box.port, tls="starttls").send(notice())
        nobody = mail(box.port, tls="starttls", ca_location=ca).send(notice())
    assert box.signed_in == [USER]
    assert len(box.mails) == 1
    assert (wrong.delivered, wrong.again) == (False, False)
    assert "canary" not in wrong.why
    assert not untrusted.delivered
    assert not nobody.delivered


def test_tls_from_the_beginning(authority: Authority) -> None:
    with mail_server(tls=context(authority)) as box:
        target = mail(box.port, tls="tls", ca_location=str(authority.certificate))
        assert target.send(notice()).delivered
    assert len(box.mails) == 1


def test_a_server_without_starttls_gets_nothing_in_clear() -> None:
    with mail_server() as box:
        outcome = mail(box.port, tls="starttls").send(notice())
    assert (outcome.delivered, outcome.again) == (False, False)
    assert box.mails == []


@pytest.mark.parametrize(
    ("answer", "again"), [("451 try later", True), ("552 too large canary", False)]
)
def test_what_an_answer_means(answer: str, again: bool) -> None:
    with mail_server() as box:
        box.answer = lambda count: answer
        outcome = mail(box.port).send(notice())
    assert (outcome.delivered, outcome.again) == (False, again)
    assert "canary" not in outcome.why


def test_one_recipient_that_is_refused_does_not_cost_the_others_their_mail() -> None:
    with mail_server() as box:
        box.rcpt = lambda address: "550 no" if address.startswith("a@") else "250 OK"
        outcome = mail(box.port).send(notice())
        assert outcome.delivered
        assert outcome.why
        box.rcpt = lambda address: "450 busy"
        none = mail(box.port).send(notice())
    assert box.recipients == [["b@x.example"]]
    assert (none.delivered, none.again) == (False, True)


def test_nobody_there() -> None:
    outcome = mail(free_port(but=set())).send(notice())
    assert (outcome.delivered, outcome.again) == (False, True)
