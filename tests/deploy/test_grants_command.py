"""`grants plan` and `grants apply`, on a lake and against Unity Catalog's API."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.deploy.conftest import Write
from tests.deploy.workspace import Refused, Workspace
from tests.lakes.written import HOSTILE, make_lake

GRANTS = """\
grants:
  - {{principals: [analysts, "x`; DROP --"], tables: ["silver_*"]}}
  - {{principals: [ana@example.com], types: [chess], privileges: [SELECT, MODIFY]}}
deploy: {{databricks: {{host: "{url}", serverless: true, catalog: main}}}}
"""


@pytest.fixture
def file(write: Write, workspace: Workspace, own_folder: Path) -> Path:
    make_lake(own_folder / "lake", types=("chess", HOSTILE))
    path = write(GRANTS.format(url=workspace.url), lake="./lake")
    # everything is known here
    path.write_text(path.read_text().replace("${env:KAFKA_SECRET}", "canary-kafka"))
    return path


def test_a_plan_shows_the_statements_and_asks_nobody(
    file: Path, cli: Cli, workspace: Workspace
) -> None:
    shown = cli("grants", "plan", file)
    assert shown.code == 0
    assert "+ GRANT SELECT ON TABLE `main`.`games`.`silver_0` TO `x``; DROP --`" in shown.out
    assert "6 grants" in shown.out
    assert "canary" not in shown.out + shown.err
    document = cli("grants", "plan", file, "--json").json
    assert (document["changes"], len(document["statements"])) == (True, 6)
    assert cli("grants", "plan", file, "--check").code == 1
    assert workspace.asked == []


def test_apply_asks_first(file: Path, cli: Cli, workspace: Workspace) -> None:
    refused = cli("grants", "apply", file)
    assert refused.code == 2
    assert "CONFIRMATION_NEEDED" in refused.err
    assert "GRANT SELECT" in refused.err
    assert cli("grants", "apply", file, "--dry-run").code == 0
    assert workspace.asked == []


def test_apply_grants_and_revokes_and_is_then_unchanged(
    file: Path, cli: Cli, workspace: Workspace
) -> None:
    workspace.permissions["main.games.silver_1"] = {"somebody": {"SELECT"}}
    done = cli("grants", "apply", file, "--yes")
    assert (done.code, done.out) == (0, "6 grant done\n")
    assert workspace.permissions == {
        "main.games.silver_0": {
            "analysts": {"SELECT"},
            "x`; DROP --": {"SELECT"},
            "ana@example.com": {"SELECT", "MODIFY"},
        },
        "main.games.silver_1": {
            "somebody": {"SELECT"},
            "analysts": {"SELECT"},
            "x`; DROP --": {"SELECT"},
        },
    }
    workspace.asked.clear()
    again = cli("grants", "apply", file, "--yes")
    assert (again.code, again.out) == (0, "unchanged: 6 rights as the file asks for\n")
    assert workspace.asked == []
    file.write_text(file.read_text().replace("[analysts, ", "["))
    assert cli("grants", "plan", file).out.count("- REVOKE SELECT") == 2
    assert cli("grants", "apply", file, "--yes").code == 0
    assert workspace.permissions["main.games.silver_1"]["analysts"] == set()
    assert workspace.permissions["main.games.silver_1"]["somebody"] == {"SELECT"}
    (sent,) = [b for m, p, b in workspace.asked if m == "PATCH" and p.endswith("silver_1")]
    assert sent == {"changes": [{"principal": "analysts", "remove": ["SELECT"]}]}


def test_new_tables_are_found(file: Path, cli: Cli, own_folder: Path) -> None:
    assert cli("grants", "apply", file, "--yes").code == 0
    assert cli("grants", "plan", file, "--check").code == 0
    file.write_text(file.read_text().replace('["silver_*"]', '["silver_*", dead_letters]'))
    found = cli("grants", "plan", file, "--check", "--json")
    assert found.code == 1
    assert {s["table"][-1] for s in found.json["statements"]} == {"dead_letters"}


def test_a_part_that_fails_is_told_and_completed_later(
    file: Path, cli: Cli, workspace: Workspace
) -> None:
    workspace.tables = {"main.games.silver_0"}
    result = cli("grants", "apply", file, "--yes", "--json")
    assert result.code == 1
    failed = [o for o in result.json["outcomes"] if o["result"] == "failed"]
    assert {o["error"]["code"] for o in failed} == {"GRANT_REFUSED"}
    assert len(failed) == 2 and len(result.json["outcomes"]) == 6
    workspace.tables = None
    assert cli("grants", "apply", file, "--yes").out == "2 grant done\n"


def test_a_workspace_that_does_not_answer(file: Path, cli: Cli, workspace: Workspace) -> None:
    def busy(method: str, path: str) -> None:
        if method == "PATCH":
            raise Refused(500, "INTERNAL_ERROR")

    workspace.before = busy
    assert cli("grants", "apply", file, "--yes").code == 75
    workspace.before = lambda method, path: None
    assert cli("grants", "apply", file, "--yes").code == 0
    assert cli("grants", "plan", file, "--check").code == 0


def test_without_the_right_to_grant(file: Path, cli: Cli, workspace: Workspace) -> None:
    def deny(method: str, path: str) -> None:
        if method == "PATCH":
            raise Refused(403, "PERMISSION_DENIED")

    workspace.before = deny
    result = cli("grants", "apply", file, "--yes")
    assert result.code == 1
    assert "DEPLOY_REFUSED" in result.out
    assert cli("grants", "plan", file, "--json").json["changes"] is True


def test_what_grants_need_is_named(write: Write, cli: Cli, own_folder: Path) -> None:
    make_lake(own_folder / "lake", types=("chess",))
    path = write("grants: [{principals: [a], tables: ['*']}]\n", lake="./lake")
    text = path.read_text().replace("${env:KAFKA_SECRET}", "canary-kafka")
    path.write_text(text)
    wrong = cli("grants", "apply", path, "--yes", "--through", "databricks", "--json")
    assert (wrong.code, wrong.json["error"]["code"]) == (2, "CONFIG_MISSING_KEY")
    path.write_text(text.replace(", database: games", ""))
    wrong = cli("grants", "plan", path, "--json")
    assert (wrong.code, wrong.json["error"]["where"]) == (2, "lake.catalog")
    assert cli("grants", "apply", path, "--through", "hive").code == 2


def test_an_empty_list_revokes_everything_and_nothing_else(
    file: Path, cli: Cli, workspace: Workspace
) -> None:
    cli("grants", "apply", file, "--yes")
    text = file.read_text()
    start, end = text.index("grants:"), text.index("deploy:")
    file.write_text(text[:start] + text[end:])
    assert cli("grants", "apply", file, "--yes").out == "6 revoke done\n"
    assert not [p for held in workspace.permissions.values() for p in held.values() if p]
    assert (
        json.loads((file.parent / "lake/_distributary/grants/games.json").read_text())["rights"]
        == []
    )


def test_unity_gets_privileges_on_the_schema_and_the_catalog(
    file: Path, cli: Cli, workspace: Workspace
) -> None:
    listed = "[SELECT, USE SCHEMA, USE CATALOG]"
    text = file.read_text().replace("[SELECT, MODIFY]", listed)
    file.write_text("\n".join(line for line in text.splitlines() if "analysts" not in line))
    done = cli("grants", "apply", file, "--yes")
    assert done.code == 0, done.err
    assert workspace.permissions == {
        "main": {"ana@example.com": {"USE_CATALOG"}},
        "main.games": {"ana@example.com": {"USE_SCHEMA"}},
        "main.games.silver_0": {"ana@example.com": {"SELECT"}},
    }
