"""The example project, run as people run it; the schema grows in the middle of an update."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from distributary.registry.folder import FileRegistry
from distributary_lab.simulate.base import DeltaSink, deliver
from distributary_lab.simulate.game_records import GamesPlan
from distributary_lab.simulate.games import stream_rounds

EXAMPLE = Path(__file__).parents[2] / "examples" / "declarative"
GAME = GamesPlan(games=1).names[0]
# somebody registers a version and sends records of it, after the columns were fixed
MEANWHILE = """
from pathlib import Path
from distributary.registry.folder import FileRegistry
from distributary_lab.simulate.base import DeltaSink, deliver
from distributary_lab.simulate.game_records import GamesPlan
from distributary_lab.simulate.games import stream_rounds

if not Path("done-once").exists():
    Path("done-once").touch()
    later = GamesPlan(games=1, versions=1, start_version=2, records=5)
    rounds = stream_rounds(later, registry=FileRegistry(Path("schemas")))
    deliver(rounds, sink=DeltaSink("wrapper"))
"""


def table(project: Path, name: str) -> pa.Table:
    found = DeltaTable(project / "spark-warehouse" / "games.db" / name)
    return pa.table(found.to_pyarrow_table())


def command(folder: Path, *words: object) -> dict[str, Any]:
    """What a command prints that is typed in a folder."""
    line = (sys.executable, "-P", "-m", "distributary", *map(str, words), "--json")
    ended = subprocess.run(line, cwd=folder, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    document: dict[str, Any] = json.loads(ended.stdout)
    return document


def run(project: Path) -> dict[str, Any]:
    return command(project.parent, "pipelines", "run", project.name, "--master", "local[2]")


@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.slow
def test_the_example_runs_and_runs_again_by_itself_when_the_schema_grows(tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(EXAMPLE, project)
    plan = GamesPlan(games=1, versions=1, records=5, bad=3)
    registry = FileRegistry(project / "schemas", durable=False)
    deliver(stream_rounds(plan, registry=registry), sink=DeltaSink(project / "wrapper"))

    assert run(project)["updates"] == 1
    assert table(project, f"silver_{GAME}").num_rows == 5
    assert table(project, "dead_letters").num_rows == 3
    assert sum(table(project, "reasons")["records"].to_pylist()) == 3

    definitions = project / "transformations" / "games.py"
    definitions.write_text(definitions.read_text() + MEANWHILE)
    assert run(project)["updates"] == 2
    rows = table(project, f"silver_{GAME}")
    assert rows.num_rows == 10
    # the simulator numbers its records: each is there, and once
    assert len(set(rows[f"col_{GAME}_0"].to_pylist())) == 10
    assert rows[f"col_{GAME}_1"].null_count == 5
    assert table(project, "dead_letters").num_rows == 3
    assert not list(project.glob(".spark-pipeline.*"))
