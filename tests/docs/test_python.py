"""The recipes of `Python`, on a lake of three batches; what needs Spark is left out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.docs.pages import DOCS, blocks
from tests.lakes.settled import SettledLake

RECIPES = [b.text for b in blocks(DOCS / "python.md") if b.language == "python"]


def test_every_recipe_gives_what_is_in_the_lake(tmp_path: Path) -> None:
    lake = SettledLake(tmp_path)
    for _ in range(3):
        lake.batch({"chess": 2}, letters=1)
    # pipelines are run by the tests of `Pipeline`
    recipes = [text for text in RECIPES if "spark" not in text and "pipeline" not in text]
    assert (len(recipes), len(RECIPES)) == (5, 8)
    script = tmp_path / "recipes.py"
    leave = "import os, sys\nsys.stdout.flush()\nos._exit(0)\n"
    script.write_text("\n".join([*recipes, leave]))
    ended = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    lines = ended.stdout.splitlines()
    assert lines[0] == "['bronze_events', 'dead_letters', 'silver_chess']"
    assert lines[2] == "6"
    assert lines[4:6] == ["6 9", "[{'n': 2}]"]
    counts = {"inserted": 4, "updated": 0, "deleted": 0}
    assert f"silver_chess {counts}" in lines[6:9]
    assert lines[9:12] == ["['insert', 'insert']", "[(6,)]", "3"]
    assert "silver_chess" in lines[12]
    assert lines[13] == "wrapper/0/1"
