from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.registry.loopback import Says, serving

FILE = """\
name: small
source: {type: kafka, bootstrap_servers: "127.0.0.1:9092", topics: [events]}
payload: {format: json}
tables: {each: "{topic}"}
lake: {path: ./lake}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(FILE)
    return path


def test_each_target_gets_a_message(cli: Cli, file: Path) -> None:
    with serving(lambda asked: Says(500 if "bad" in asked.path else 202)) as server:
        file.write_text(
            f"{FILE}alerts:\n  to:\n"
            f"    - {{type: webhook, url: '{server.url}/canary-hook'}}\n"
            f"    - {{type: slack, url: '{server.url}/canary-slack', name: team}}\n"
            f"    - {{type: pagerduty, url: '{server.url}', routing_key: canary-key}}\n"
        )
        result = cli("alerts", "test", file)
        assert result.code == 0, result.err
        assert [line.split()[1] for line in result.out.splitlines()] == [
            "webhook-1",
            "team",
            "pagerduty-3",
        ]
        actions = [json.loads(a.body).get("event_action") for a in server.asked]
        assert sorted(filter(None, actions)) == ["resolve", "trigger"]
        only = cli("alerts", "test", file, "--to", "team", "--json").json
        assert [t["name"] for t in only["targets"]] == ["team"]
        assert only["targets"][0]["delivered"] is True
        before = len(server.asked)
        dry = cli("alerts", "test", file, "--dry-run", "--json")
        assert (dry.code, len(dry.json["targets"]), len(server.asked)) == (0, 3, before)
        file.write_text(file.read_text().replace("canary-hook", "bad-canary"))
        bad = cli("alerts", "test", file, "--json")
    assert bad.code == 1
    assert [t["delivered"] for t in bad.json["targets"]] == [False, True, True]
    assert "canary" not in result.out + result.err + bad.out + bad.err + dry.out


def test_no_target_is_no_success(cli: Cli, file: Path) -> None:
    assert cli("alerts", "test", file).code == 1
    dry = cli("alerts", "test", file, "--dry-run")
    assert dry.code == 0
    assert dry.out
    unknown = cli("alerts", "test", file, "--to", "nobody", "--json")
    assert unknown.json["error"]["code"] == "NOT_FOUND"
