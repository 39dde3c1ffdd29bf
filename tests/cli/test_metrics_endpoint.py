"""`metrics`, and `run --metrics`."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from distributary.observe.metrics import CATALOGUE
from distributary.supervise.server import Answers, ListenAddress, serving
from tests.cli.conftest import Cli

PIPELINE = """
name: games
source: {type: delta, path: ./wrapper}
payload: {format: json}
tables: {each: "{topic}"}
lake: {path: ./lake}
"""


def test_all_metrics_are_listed(cli: Cli) -> None:
    shown = cli("metrics")
    assert shown.code == 0
    assert all(metric.name in shown.out for metric in CATALOGUE)
    listed = cli("metrics", "--json").json
    assert listed["version"] == 1
    assert [m["name"] for m in listed["metrics"]] == [m.name for m in CATALOGUE]


def test_the_dashboard_is_printed_as_it_is(cli: Cli) -> None:
    printed = json.loads(cli("metrics", "--grafana").out)
    assert printed["title"] == "Distributary"
    assert cli("metrics", "--grafana", "--json").json["dashboard"] == printed


def test_the_rules_are_printed_as_they_are(cli: Cli) -> None:
    printed = YAML(typ="safe", pure=True).load(io.StringIO(cli("metrics", "--rules").out))
    assert [group["name"] for group in printed["groups"]] == ["distributary"]
    assert cli("metrics", "--rules", "--json").json["rules"].startswith("# ")


def test_both_at_once_are_refused(cli: Cli) -> None:
    assert cli("metrics", "--rules", "--grafana").code == 2


def test_a_run_refuses_an_address_before_spark_starts(cli: Cli, own_folder: Path) -> None:
    (own_folder / "games.yaml").write_text(PIPELINE)
    refused = cli("run", "games.yaml", "--metrics", "nowhere", "--json")
    assert refused.code == 2
    assert refused.json["error"]["code"] == "CONFIG_INVALID"
    with serving(ListenAddress("127.0.0.1", 0), Answers()) as url:
        port = url.rpartition(":")[2]
        taken = cli("run", "games.yaml", "--metrics", port, "--json")
    assert taken.json["error"]["code"] == "PORT_TAKEN"


def test_an_address_that_others_reach_needs_a_token_also_for_a_run(
    cli: Cli, own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISTRIBUTARY_TOKEN", raising=False)
    (own_folder / "games.yaml").write_text(PIPELINE)
    told = cli("run", "games.yaml", "--metrics", "0.0.0.0:0", "--json")
    assert (told.code, told.json["error"]["code"]) == (2, "CONFIG_INVALID")
    (own_folder / "games.yaml").write_text(PIPELINE + "metrics: {listen: '0.0.0.0:0'}\n")
    assert cli("run", "games.yaml", "--json").json["error"]["code"] == "CONFIG_INVALID"
