"""The recipes of `Read your tables`: Spark, pandas, Polars and DuckDB on a lake of a run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.docs.pages import DOCS, blocks

RECIPES = [b.text for b in blocks(DOCS / "howto" / "read.md") if b.language == "python"]
FILE = """
name: orders
source: {{type: delta, path: {folder}/source}}
payload: {{format: json}}
tables: {{each: orders}}
lake: {{path: {folder}/lake}}
"""


@pytest.mark.slow
@pytest.mark.spark
def test_every_recipe_gives_the_rows_of_a_run(tmp_path: Path) -> None:
    values = [b'{"id": %d, "who": "ana"}' % n for n in range(7)]
    write_deltalake(str(tmp_path / "source"), pa.table({"value": values}))
    (tmp_path / "orders.yaml").write_text(FILE.format(folder=tmp_path))
    assert len(RECIPES) == 4
    # a process of its own: the session is the one that the run has left, and no other
    script = tmp_path / "recipes.py"
    script.write_text("\n".join([f"lake = {str(tmp_path / 'lake')!r}", *RECIPES]))
    ended = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    said = ended.stdout
    # Spark counts, pandas groups, Polars filters, DuckDB groups
    assert "|       7|" in said
    assert "ana    7" in said
    assert "shape: (3, 2)" in said
    assert "[('ana', 7)]" in said
