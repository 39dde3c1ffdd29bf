"""The recipes of `Cuts` for readers without Spark, on a `cut.json` that the command printed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from distributary.cli.command_line import main
from tests.docs.pages import DOCS, blocks
from tests.lakes.settled import SettledLake

RECIPES = [b.text for b in blocks(DOCS / "cuts.md") if b.language == "python"]


def test_every_recipe_reads_the_rows_of_the_cut(tmp_path: Path, capsys) -> None:
    lake = SettledLake(tmp_path)
    for _ in range(3):
        lake.batch({"chess": 2})
    assert main(["cuts", "show", "1", "--json", "--lake", str(lake.lake)]) == 0
    (tmp_path / "cut.json").write_text(capsys.readouterr().out)
    recipes = [text for text in RECIPES if not text.startswith("spark.")]
    assert (len(recipes), len(RECIPES)) == (4, 5)
    script = tmp_path / "recipes.py"
    leave = "import os, sys\nsys.stdout.flush()\nos._exit(0)\n"
    script.write_text("\n".join([*recipes, leave]))
    ended = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stdout.split("\n")[:3] == ["4", "4", "[(4,)]"]


def test_the_document_of_the_page_has_the_fields_of_the_command(tmp_path: Path, capsys) -> None:
    lake = SettledLake(tmp_path)
    lake.batch({"chess": 1})
    assert main(["cuts", "show", "--json", "--lake", str(lake.lake)]) == 0
    printed = json.loads(capsys.readouterr().out)
    (shown,) = (json.loads(b.text) for b in blocks(DOCS / "cuts.md") if b.language == "json")
    assert printed.keys() - {"version"} == shown.keys()
    assert printed["tables"][0].keys() == shown["tables"][0].keys()
    assert printed["batches"][0].keys() == shown["batches"][0].keys()
