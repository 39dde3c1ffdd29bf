from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta

import pytest
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from distributary.config.file.document import Problem
from distributary.config.file.show import as_json, json_schema, rows
from distributary.config.load import Loaded, load_text

ENVIRON = {
    "HOOK": "https://hooks.example/canary-hook",
    "HOOK_SECRET": "canary-secret",
    "SLACK_URL": "https://hooks.slack.example/services/canary-slack",
    "PD_KEY": "canary-routing-key",
    "SMTP_PASSWORD": "canary-password",
}
ALERTS = """\
alerts:
  dashboard_url: http://127.0.0.1:8500
  on:
    failure: true
    parked: true
    dead_letters: {share: 1%, count: 100, within: 5m}
    freshness: 15m
    invariant: true
    schema: true
    table: true
  to:
    - {type: webhook, url: "${env:HOOK}", secret: "${env:HOOK_SECRET}", token: canary-token}
    - {type: slack, url: "${env:SLACK_URL}", name: team}
    - {type: pagerduty, routing_key: "${env:PD_KEY}"}
    - type: email
      host: smtp.example.com
      username: u
      password: "${env:SMTP_PASSWORD}"
      from: a@b.example
      to: [x@y.example, z@y.example]
  at_most: {messages: 20, within: 10m}
"""
Load = Callable[..., Loaded]
Problems = Callable[..., list[Problem]]


def test_everything_that_can_be_said(loaded: Load, minimal: str) -> None:
    alerts = loaded(minimal + ALERTS, environ=ENVIRON).config.alerts
    assert alerts.names == ("webhook-1", "team", "pagerduty-3", "email-4")
    assert alerts.on.dead_letters is not None
    assert alerts.on.dead_letters.share == 0.01
    assert alerts.on.freshness == timedelta(minutes=15)
    assert alerts.to[2].type == "pagerduty"


def test_no_secret_of_a_target_is_shown(loaded: Load, minimal: str) -> None:
    everything = loaded(minimal + ALERTS, environ=ENVIRON)
    shown = {row.key: row for row in rows(everything)}
    assert shown["alerts.to[0].url"].text == "***"
    assert str(shown["alerts.to[0].url"].origin) == "pipeline.yaml:23 (env:HOOK)"
    assert shown["alerts.to[1].name"].text == "team"
    assert shown["alerts.to[3].to"].text == "x@y.example, z@y.example"
    assert shown["alerts.to[3].port"].text == "587"
    text = "".join(f"{row.key} {row.text} {row!r}" for row in shown.values())
    text += json.dumps(as_json(everything)) + repr(everything) + repr(everything.config)
    text += everything.config.model_dump_json()
    assert "canary" not in text
    for secret in [*ENVIRON.values(), "canary-token"]:
        assert everything.mask(f"<{secret}>") == "<***>"


def test_it_is_valid_for_editors(minimal: str) -> None:
    schema = Draft202012Validator(json_schema())
    document = YAML(typ="safe", pure=True).load(minimal + ALERTS)
    schema.validate(document)
    document["alerts"]["to"][0]["banana"] = 1
    assert not schema.is_valid(document)


def test_nothing_has_to_be_said(loaded: Load) -> None:
    alerts = loaded().config.alerts
    assert alerts.to == ()
    assert (alerts.on.failure, alerts.on.parked, alerts.on.invariant) == (True, True, True)
    assert alerts.on.freshness is None


@pytest.mark.parametrize(
    ("text", "share"), [("true", 0.01), ("false", None), ("{share: 0.5}", 0.5), ("{}", 0.01)]
)
def test_a_rate_in_short(loaded: Load, minimal: str, text: str, share: float | None) -> None:
    rate = loaded(f"{minimal}alerts: {{on: {{dead_letters: {text}}}}}\n").config.alerts.on
    assert (rate.dead_letters and rate.dead_letters.share) == share


def test_an_empty_variable_in_a_list_is_not_set(loaded: Load, minimal: str) -> None:
    text = "alerts: {to: [{type: webhook, url: http://h/x, secret: '${env:NONE:-}'}]}\n"
    target = loaded(minimal + text).config.alerts.to[0]
    assert target.type == "webhook"
    assert target.secret is None


def test_a_variable_can_hold_all_targets(loaded: Load) -> None:
    environ = {"DISTRIBUTARY_ALERTS__TO": "[{type: slack, url: http://127.0.0.1:1/x}]"}
    assert loaded(environ=environ).config.alerts.names == ("slack-1",)


@pytest.mark.parametrize(
    ("written", "path", "code"),
    [
        ("to: [{type: webhook}]", "alerts.to[0].url", "CONFIG_MISSING_KEY"),
        ("to: [{type: pigeon}]", "alerts.to[0].type", "CONFIG_INVALID"),
        ("to: [{url: http://h}]", "alerts.to[0].type", "CONFIG_MISSING_KEY"),
        ("to: [{type: slack, url: http://h, chanel: x}]", "alerts.to[0].chanel", "UNKNOWN"),
        ("to: [{type: slack, url: 'ftp://h'}]", "alerts.to[0].url", "CONFIG_INVALID"),
        ("to: [{type: slack, url: canary-x}]", "alerts.to[0].url", "CONFIG_INVALID"),
        ("to: {type: slack, url: http://h}", "alerts.to", "CONFIG_INVALID"),
        ("to: [slack]", "alerts.to[0]", "CONFIG_INVALID"),
        (
            "to: [{type: slack, url: http://h, name: a}, {type: slack, url: http://h, name: a}]",
            "alerts.to",
            "CONFIG_INVALID",
        ),
        (
            'to: [{type: pagerduty, routing_key: "a\\nb"}]',
            "alerts.to[0].routing_key",
            "CONFIG_INVALID",
        ),
        ("on: {freshness: 10s}", "alerts.on.freshness", "CONFIG_INVALID"),
        ("on: {silent_source: 10s}", "alerts.on.silent_source", "CONFIG_INVALID"),
        ("on: {held_log: 0}", "alerts.on.held_log", "CONFIG_INVALID"),
        ("on: {held_log: 10GiB}", "alerts.on.held_log", "CONFIG_INVALID"),
        ("on: {dead_letters: {share: 0}}", "alerts.on.dead_letters.share", "CONFIG_INVALID"),
        ("on: {dead_letters: {share: 101%}}", "alerts.on.dead_letters.share", "CONFIG_INVALID"),
        ("on: {failures: true}", "alerts.on.failures", "UNKNOWN"),
        ("at_most: {messages: 0}", "alerts.at_most.messages", "CONFIG_INVALID"),
    ],
)
def test_what_is_refused(
    problems_of: Problems, minimal: str, written: str, path: str, code: str
) -> None:
    found = problems_of(f"{minimal}alerts:\n  {written}\n")
    assert [problem.path for problem in found] == [path]
    assert code in str(found[0].code)
    assert "canary" not in str(found)


MAIL = "{type: email, host: h, from: a@b.example, to: [c@d.example]"


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (f"{MAIL}, username: u}}", "alerts.to[0].username"),
        (f"{MAIL}, tls: none, username: u, password: secret}}", "alerts.to[0].tls"),
        (MAIL.replace("c@d.example", "nobody") + "}", "alerts.to[0].to[0]"),
        (MAIL.replace("c@d.example", "c@d.example\\nBcc: e@f.example") + "}", "alerts.to[0].to[0]"),
        (MAIL.replace("[c@d.example]", "[]") + "}", "alerts.to[0].to"),
        (MAIL.replace("a@b.example", "'<a@b.example>, x@y.example'") + "}", "alerts.to[0].from"),
    ],
)
def test_mail_that_cannot_be_sent(
    problems_of: Problems, minimal: str, target: str, path: str
) -> None:
    found = problems_of(f"{minimal}alerts: {{to: [{target}]}}\n")
    assert [problem.path for problem in found] == [path]


def test_tables_cannot_be_fresher_than_the_trigger(problems_of: Problems, minimal: str) -> None:
    text = f"{minimal}trigger: every 20m\nalerts: {{on: {{freshness: 15m}}}}\n"
    assert [problem.path for problem in problems_of(text)] == ["alerts.on.freshness"]
    assert load_text(text.replace("20m", "10m"), environ={})
