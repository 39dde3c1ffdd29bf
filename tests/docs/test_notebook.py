"""The notebook of the examples, cell by cell, in a folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"
SHOW = """
import ast
import json
import sys


def run(cell, names):
    body = ast.parse(cell)
    last = body.body.pop() if body.body and isinstance(body.body[-1], ast.Expr) else None
    exec(compile(body, "cell", "exec"), names)
    if last is None:
        return
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    html = getattr(value, "_repr_html_", None)
    if value is not None:
        print("shown:", html() if html else repr(value))


names = {}
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] == "code":
        run("".join(cell["source"]), names)
"""


@pytest.mark.slow
@pytest.mark.spark
def test_every_cell_runs_and_shows_what_the_text_says(tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text(SHOW)
    commands = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run(
        [sys.executable, "show.py", str(NOTEBOOK)],
        cwd=tmp_path,
        env=os.environ | {"PATH": commands},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    printed = ended.stdout
    assert "read 63 = written 60 + dead letters 3 + parked 0" in printed
    assert "0 read 3 = written 3" in printed
    assert "1 read 3 = written 3" in printed
    assert "'gift': True" in printed
    assert "orders {'inserted': 3, 'updated': 0, 'deleted': 0}" in printed
    shown = [line for line in printed.splitlines() if line.startswith("shown:")]
    assert any("run of games" in line for line in shown)
    assert any("<td>silver_" in line for line in shown)
    assert any("3 dead letters" in line for line in shown)


def test_the_notebook_holds_no_output() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert all(not cell.get("outputs") for cell in cells)
