"""`pipelines run`: what it refuses, when it runs an update again, and what it says in the end."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

GREW = {"code": "SCHEMA_GREW", "what": "it grew", "retryable": True}
# fails as often as the file says, each time with what the supervisor is to hear
CHILD = """
import json, os, pathlib, sys
left = pathlib.Path("left.json")
errors = json.loads(left.read_text())
print("an update", file=sys.stderr)
pathlib.Path("words.json").write_text(json.dumps(sys.argv[1:]))
pathlib.Path("remote.txt").write_text(os.environ.get("SPARK_REMOTE", ""))
if errors:
    left.write_text(json.dumps(errors[1:]))
    print(json.dumps({"version": 1, "error": errors[0]}))
    sys.exit(errors[0]["exit"])
print(json.dumps({"version": 1, "stopped": "done"}))
"""


@pytest.fixture
def project(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = own_folder / "project"
    folder.mkdir()
    (folder / "spark-pipeline.yml").write_text("name: games\nstorage: kept\n")
    (own_folder / "child.py").write_text(CHILD)
    update = (sys.executable, "-I", "-S", str(own_folder / "child.py"))
    monkeypatch.setattr("distributary.cli.run._UPDATE", update)
    monkeypatch.setattr(
        "distributary.supervise.member.pause", lambda policy, failures, *, chance: 0.01
    )
    return folder


def fail_with(project: Path, *errors: dict[str, object]) -> None:
    (project.parent / "left.json").write_text(json.dumps(errors))


def test_an_update_is_run_again_until_the_schema_stops_growing(project: Path, cli: Cli) -> None:
    fail_with(project, {**GREW, "exit": 75}, {**GREW, "exit": 75})
    result = cli("pipelines", "run", project, "--json")
    document = json.loads(result.out)
    assert result.code == 0
    assert (document["state"], document["updates"], document["error"]) == ("done", 3, None)


def test_there_is_a_limit(project: Path, cli: Cli) -> None:
    fail_with(project, *[{**GREW, "exit": 75}] * 9)
    result = cli("pipelines", "run", project, "--json", "--max-restarts", 1)
    document = json.loads(result.out)
    assert (result.code, document["updates"]) == (1, 2)
    assert document["error"]["code"] == "SCHEMA_GREW"


def test_what_needs_a_person_is_not_tried_again(project: Path, cli: Cli) -> None:
    fail_with(project, {"code": "CONFIG_INVALID", "what": "wrong", "exit": 2})
    result = cli("pipelines", "run", project, "--json")
    assert (result.code, json.loads(result.out)["updates"]) == (2, 1)


def test_a_dry_run_is_tried_once(project: Path, cli: Cli) -> None:
    fail_with(project, *[{**GREW, "exit": 75}] * 9)
    result = cli("pipelines", "run", project, "--json", "--dry-run")
    assert (result.code, json.loads(result.out)["updates"]) == (1, 1)


def test_the_address_of_a_server_is_on_no_command_line(
    project: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_with(project)
    monkeypatch.setenv("SPARK_REMOTE", "sc://host:1/;token=canary-token")
    assert cli("pipelines", "run", project).code == 0
    assert "canary-token" not in (project.parent / "words.json").read_text()
    assert (project.parent / "remote.txt").read_text() == "sc://host:1/;token=canary-token"


def test_a_continuous_run_has_a_pause_between_updates(project: Path, cli: Cli) -> None:
    fail_with(project)
    words = ("pipelines", "run", project, "--continuous", "--json")
    result = cli(*words, "--pause", "1m")
    # the process counts its updates itself
    assert (result.code, json.loads(result.out)["updates"]) == (0, None)
    passed = json.loads((project.parent / "words.json").read_text())
    assert passed[passed.index("--pause") + 1] == "60.0"
    assert cli(*words, "--dry-run").code == 2


@pytest.mark.parametrize("flags", [("--max-restarts", "some"), ("--grace", "soon")])
def test_flags_that_mean_nothing_are_refused(
    project: Path, cli: Cli, flags: tuple[str, str]
) -> None:
    assert cli("pipelines", "run", project, *flags).code == 2


def test_a_folder_that_is_no_project_is_refused(own_folder: Path, cli: Cli) -> None:
    result = cli("pipelines", "run", own_folder, "--json")
    assert result.code == 2
    assert json.loads(result.out)["error"]["code"] == "NOT_FOUND"
