"""The notebooks of a pipeline, cell by cell, as Jupyter and as Databricks run them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from distributary.deploy.file_targets import FileTarget, open_target, read_mark
from distributary.deploy.notebook_files import notebook
from distributary.deploy.pipeline_file import read_for_install
from distributary.deploy.targets.target_types import TARGETS
from tests.cli.conftest import Cli
from tests.deploy.conftest import Write
from tests.deploy.workspace import Workspace

GAMES = """\
name: games
source: {type: delta, path: ./wrapper, value: payload_bytes, timestamp: produced_at}
registry: {path: ./schemas}
envelope:
  {format: protobuf, subject: wrapper-value, type: game_name, schema_id: schema_id,
    payload: payload}
payload: {format: protobuf}
tables: {each: "silver_{type}"}
lake: {path: ./lake}
"""
CHANGES = """\
name: shop
source: {type: files, path: ./changes, format: avro}
cdc: {format: datastream}
tables: {each: "{table}"}
lake: {path: ./lake}
"""


class Widgets:
    """The widgets of a notebook on Databricks: a chosen value, or the default."""

    def __init__(self, chosen: Mapping[str, str]) -> None:
        self.chosen, self.made = chosen, dict[str, list[str]]()
        self._values: dict[str, str] = {}

    def text(self, name: str, default: str, label: str) -> None:
        self.dropdown(name, default, [], label)

    def dropdown(self, name: str, default: str, choices: list[str], label: str) -> None:
        assert default in (choices or [default])
        self.made[name] = choices
        self._values[name] = self.chosen.get(name, default)

    def get(self, name: str) -> str:
        return self._values[name]


class Dbutils:
    def __init__(self, **chosen: str) -> None:
        self.widgets = Widgets(chosen)


def cells(path: Path) -> Iterator[tuple[str, str]]:
    for cell in json.loads(path.read_text())["cells"]:
        yield "parameters" if cell["metadata"] else cell["cell_type"], "".join(cell["source"])


def run(path: Path, *, dbutils: Dbutils | None = None, **parameters: str) -> dict[str, Any]:
    """Run all cells; parameters are set behind their cell, as papermill does."""
    names: dict[str, Any] = {} if dbutils is None else {"dbutils": dbutils}
    for kind, source in cells(path):
        if kind != "markdown":
            exec(compile(source, path.name, "exec"), names)
        if kind == "parameters":
            assert parameters.keys() <= names.keys()
            names |= parameters
    return names


def written(folder: Path, text: str, name: str) -> FileTarget:
    file = folder / "given.yaml"
    file.write_text(text)
    target = open_target("notebooks", read_for_install(file), out=folder)
    assert isinstance(target, FileTarget)
    target.apply(target.plan())
    assert (folder / f"{name}.yaml").is_file()
    return target


def test_records_are_sent_to_the_table_that_the_pipeline_reads(own_folder: Path) -> None:
    written(own_folder, GAMES, "games")
    run(own_folder / "games-produce.ipynb", options="--games 2 --versions 1 --records 3")
    table = DeltaTable("wrapper").to_pyarrow_table()
    assert table.num_rows == 6 and "payload_bytes" in table.column_names
    assert list(Path("schemas").iterdir())
    chosen = Dbutils(options="--games 1 --versions 1 --records 1", seed="7")
    run(own_folder / "games-produce.ipynb", dbutils=chosen)
    assert DeltaTable("wrapper").to_pyarrow_table().num_rows == 7
    assert chosen.widgets.made.keys() == {"pipeline_file", "records_of", "seed", "options"}
    with pytest.raises(RuntimeError, match="exit code 2"):
        run(own_folder / "games-produce.ipynb", options="--games none")


def test_changes_are_written_to_the_folder_that_the_pipeline_reads(own_folder: Path) -> None:
    written(own_folder, CHANGES, "shop")
    run(own_folder / "shop-produce.ipynb", options="--events 5 --rounds 1")
    assert list(Path("changes").rglob("*.avro"))


def test_an_action_installs_and_removes(own_folder: Path) -> None:
    written(own_folder, GAMES, "games")
    path, dags = own_folder / "games-install.ipynb", own_folder / "dags"
    run(path, target="airflow")
    assert not dags.exists()
    run(path, target="airflow", action="install")
    assert (dags / "distributary_games.py").is_file()
    run(path, target="airflow", action="uninstall")
    assert not (dags / "distributary_games.py").exists()
    with pytest.raises(ValueError, match="action must be"):
        run(path, action="reset")


def test_a_run_and_its_tables_are_shown(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(own_folder, GAMES, "games")
    commands: list[list[str]] = []
    monkeypatch.setattr("distributary.cli.main", lambda words: commands.append([*words]))
    run(own_folder / "games-install.ipynb", action="run here")
    run(own_folder / "games-install.ipynb", action="show tables")
    tables = ["tables", "--lake", str(own_folder / "lake")]
    assert commands == [["run", "games.yaml", "--available-now"], tables, tables]


def test_on_databricks_widgets_choose_and_a_job_is_made_and_started(
    write: Write, cli: Cli, workspace: Workspace, own_folder: Path
) -> None:
    deploy = f"deploy: {{databricks: {{host: '{workspace.url}', cluster: {{id: abc}}}}}}\n"
    file = write(deploy)
    assert cli("install", file, "--target", "notebooks", "--out", own_folder).code == 1
    assert cli("install", file, "--target", "notebooks", "--out", own_folder / "out").code == 0
    path = own_folder / "out" / "games-install.ipynb"
    here = str(own_folder / "out" / "games.yaml")
    chosen = Dbutils(action="install and start", pipeline_file=here)
    run(path, dbutils=chosen)
    assert len(workspace.jobs) == 1 and workspace.requests("/run-now")
    # the section of the file decides which target is shown first
    assert dict(cells(path))["parameters"].splitlines()[1] == 'target = "databricks"'
    assert chosen.widgets.made["target"] == [name for name in TARGETS if name != "notebooks"]
    assert "${env:KAFKA_SECRET}" in Path(here).read_text()


def test_a_notebook_that_jupyter_has_saved_is_known_again(own_folder: Path) -> None:
    target = written(own_folder, GAMES, "games")
    path = own_folder / "games-install.ipynb"
    document = json.loads(path.read_text())
    assert path.read_text() == json.dumps(document, indent=1, sort_keys=True) + "\n"
    mark = read_mark(path.read_text())
    assert mark is not None and mark.intact and mark.pipeline == "games"
    document["cells"][-1]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ["x"]}]
    path.write_text(json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    assert [str(step.action) for step in target.plan() if step.changes] == ["edited"]


def test_cells_have_what_the_format_demands() -> None:
    document = json.loads(notebook("%% markdown\n# A\n\nb\n%% parameters\na = 1\n%% code\nb = 2\n"))
    first, second, third = document["cells"]
    assert document.keys() == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert first.keys() == {"cell_type", "id", "metadata", "source"}
    assert first["source"] == ["# A\n", "\n", "b"]
    assert second["metadata"] == {"tags": ["parameters"]}
    assert third["source"] == ["b = 2"] and third["outputs"] == []
    assert len({cell["id"] for cell in document["cells"]}) == 3
