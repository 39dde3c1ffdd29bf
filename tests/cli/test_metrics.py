"""`metrics`, and `run --metrics`."""

from __future__ import annotations

import io
import json
from pathlib import Path

from ruamel.yaml import YAML

from distributary.observe.metrics import Metrics
from distributary.observe.metrics_catalogue import CATALOGUE
from distributary.observe.metrics_server import served
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
    with served(Metrics(process=False), "127.0.0.1:0") as url:
        port = url.split(":")[2].split("/")[0]
        taken = cli("run", "games.yaml", "--metrics", port, "--json")
    assert taken.json["error"]["code"] == "PORT_TAKEN"
