"""A declarative pipeline in a workspace: its definition, its files, the tables that it defines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from distributary import pipelines
from distributary.deploy.file_targets import template
from distributary.registry.folder import FileRegistry
from distributary_lab.simulate.base import DeltaSink, deliver
from distributary_lab.simulate.game_records import GamesPlan
from distributary_lab.simulate.games import stream_rounds
from tests.cli.conftest import Cli
from tests.deploy.workspace import USER, Workspace

FOLDER = f"/Users/{USER}/.distributary/lakeflow/games"
LINE = ("--target", "lakeflow")
GAMES = """\
name: games
source: {{type: delta, path: "{table}", value: wrapper}}
registry: {{path: "{schemas}"}}
envelope:
  {{format: protobuf, subject: wrapper-value, type: game_name, schema_id: schema_id,
    payload: payload}}
payload: {{format: protobuf}}
tables: {{each: "silver_{{type}}"}}
lake: {{path: "s3://bucket/lake"}}
"""
DEPLOY = """\
deploy:
  lakeflow:
    host: {url}
    catalog: main
    schema: games
    run_as: data-team@example.com
    notify_on_failure: [data-team@example.com]
    tags: {{team: data}}
"""


@pytest.fixture
def write(own_folder: Path, workspace: Workspace) -> Callable[..., Path]:
    def make(more: str = "", *, text: str = GAMES) -> Path:
        file = own_folder / "games.yaml"
        text = text.format(table="/Volumes/main/x/wrapper", schemas="/Volumes/main/x/schemas")
        file.write_text(text + DEPLOY.format(url=workspace.url) + more)
        return file

    return make


def test_one_pipeline_is_made_changed_started_and_removed(
    write: Callable[..., Path], cli: Cli, workspace: Workspace
) -> None:
    made = cli("install", write(), *LINE, "--run")
    assert made.code == 0, made.err
    ((key, spec),) = workspace.pipelines.items()
    assert f"started: {workspace.url}/pipelines/{key}/updates/u1" in made.out
    assert (spec["name"], spec["catalog"], spec["schema"]) == ("games", "main", "games")
    assert (spec["serverless"], spec["continuous"], spec["development"]) == (True, False, False)
    assert spec["libraries"] == [{"file": {"path": f"/Workspace{FOLDER}/tables.py"}}]
    assert spec["configuration"] == {"distributary.pipeline_file": f"/Workspace{FOLDER}/games.yaml"}
    dependency = f"-r /Workspace{FOLDER}/requirements.txt"
    assert spec["environment"] == {"dependencies": [dependency]}
    assert spec["run_as"] == {"user_name": "data-team@example.com"}
    assert spec["notifications"][0]["email_recipients"] == ["data-team@example.com"]
    assert spec["tags"]["team"] == "data"
    assert "decoded" in workspace.files[f"{FOLDER}/tables.py"]

    assert cli("install", write(), *LINE).out == "unchanged: pipeline games on lakeflow\n"
    more = "    continuous: true\n    development: true\n    node_type: i3.xlarge\n    workers: 2\n"
    assert cli("install", write(more), *LINE).code == 0
    ((again, spec),) = workspace.pipelines.items()
    assert (again, spec["continuous"], spec["development"]) == (key, True, True)
    assert spec["clusters"] == [{"label": "default", "node_type_id": "i3.xlarge", "num_workers": 2}]
    assert cli("install", write("    pipeline_name: other\n"), *LINE).code == 0
    assert [it["name"] for it in workspace.pipelines.values()] == ["other"]

    assert cli("uninstall", write(), *LINE, "--yes").code == 0
    assert not workspace.pipelines and not workspace.files


def test_a_pipeline_of_others_is_never_changed(
    write: Callable[..., Path], cli: Cli, workspace: Workspace
) -> None:
    workspace.pipelines["abc"] = {"name": "games", "continuous": False}
    result = cli("install", write(), *LINE, "--force", "--json")
    assert (result.code, result.json["error"]["code"]) == (1, "DEPLOY_CONFLICT")
    assert workspace.pipelines == {"abc": {"name": "games", "continuous": False}}
    # a wildcard in a name finds more than was meant
    workspace.pipelines = {"abc": {"name": "axb"}}
    assert cli("install", write("    pipeline_name: a_b\n"), *LINE).code == 0
    assert sorted(it["name"] for it in workspace.pipelines.values()) == ["a_b", "axb"]


def test_an_edit_in_the_workspace_is_kept_until_forced(
    write: Callable[..., Path], cli: Cli, workspace: Workspace
) -> None:
    cli("install", write(), *LINE)
    (spec,) = workspace.pipelines.values()
    spec["continuous"] = True
    assert cli("install", write(), *LINE, "--json").json["error"]["code"] == "DEPLOY_CONFLICT"
    assert cli("install", write(), *LINE, "--force").code == 0
    assert [it["continuous"] for it in workspace.pipelines.values()] == [False]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("lake: ", "keys: [{{tables: [silver_a], key: [id]}}]\nlake: "), "keys"),
        (("s3://bucket/lake", "${{env:NOT_SET_HERE}}"), "variables"),
    ],
)
def test_a_file_without_known_columns_is_refused(
    change: tuple[str, str],
    why: str,
    write: Callable[..., Path],
    cli: Cli,
    workspace: Workspace,
) -> None:
    result = cli("install", write(text=GAMES.replace(*change)), *LINE, "--json")
    assert result.json["error"]["code"] == "DEPLOY_UNFIT", result.out
    assert why in result.json["error"]["evidence"]
    assert not workspace.files


def test_one_pipeline_has_no_shards_and_no_folder_here(
    write: Callable[..., Path], cli: Cli
) -> None:
    for words in (("--shards", 2), ("--out", "x"), ("--as", "terraform")):
        assert cli("install", write(), *LINE, *words).code == 2


@contextmanager
def defining(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Callable[[], Any]]]:
    """What Databricks does with a file of definitions: its decorator notes functions by name."""
    tables: dict[str, Callable[[], Any]] = {}

    def table(function: Any = None, *, name: str | None = None) -> Any:
        def note(function: Any) -> Any:
            tables[name or function.__name__] = function
            return function

        return note if function is None else note(function)

    module = ModuleType("pyspark.pipelines")
    module.table = table  # type: ignore[attr-defined]
    import pyspark

    monkeypatch.setitem(sys.modules, "pyspark.pipelines", module)
    monkeypatch.setattr(pyspark, "pipelines", module, raising=False)
    yield tables


def test_the_installed_definitions_make_a_table_of_each_type(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = FileRegistry(own_folder / "schemas", durable=False)
    plan = GamesPlan(games=2, versions=1, records=1)
    deliver(stream_rounds(plan, registry=registry), sink=DeltaSink(own_folder / "wrapper"))
    file = own_folder / "games.yaml"
    text = GAMES.replace("s3://bucket/lake", "./lake")
    file.write_text(text.format(table="./wrapper", schemas="./schemas"))
    conf = {"distributary.pipeline_file": str(file)}
    from pyspark.sql import SparkSession

    monkeypatch.setattr(SparkSession, "active", lambda: SimpleNamespace(conf=conf))
    asked: list[str] = []
    monkeypatch.setattr(pipelines, "decoded", lambda spark, file, type: asked.append(type))
    with defining(monkeypatch) as tables:
        exec(compile(template("tables.py.txt"), "tables.py", "exec"), {"__name__": "tables"})
    assert set(tables) == {"dead_letters", *(f"silver_{name}" for name in plan.names)}
    for name in plan.names:
        tables[f"silver_{name}"]()
    assert asked == list(plan.names)
