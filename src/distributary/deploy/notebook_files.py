"""Notebooks made from a pipeline file: one installs and runs it, one sends simulated records.

A template is plain text: a line that begins with `%%` opens a cell. The same cells run on
Databricks, where widgets hold the parameters, and on Jupyter, where the parameters' cell does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distributary.config.file.document import parse
from distributary.deploy import package
from distributary.deploy.file_targets import Artifact, FileTarget, template
from distributary.deploy.pipeline_file import Installable
from distributary.deploy.targets.target_types import TARGETS, target_entry
from distributary.model.names import printable

NAME = "notebooks"
_REQUIREMENTS = "requirements.txt"
_MARK = "@mark@"
_CELL = re.compile(r"^%% (markdown|code|parameters)\n", re.M)
_PRODUCERS = ("games", "people", "orders", "cdc")


def notebooks_target(pipeline: Installable, *, out: Path | None = None) -> FileTarget:
    """Return the target with the files of `install --target notebooks`."""
    pipeline.refuse_clear_secrets(to="a file beside the notebooks")
    folder = (out or Path(f"{pipeline.name}-notebooks")).absolute()
    targets = [name for name in TARGETS if name != NAME]
    given = [name for name in targets if target_entry(name).settings(pipeline) is not None]
    values = {
        "mark": _MARK,
        "name": pipeline.name,
        "file": f"{pipeline.name}.yaml",
        "requirements": _REQUIREMENTS,
        "wheel": package.WHEEL,
        "target": (given or targets)[0],
        "targets": json.dumps(targets),
        "records_of": _records_of(pipeline),
        "producers": json.dumps(_PRODUCERS),
    }
    cells = {kind: template(f"{kind}.notebook.txt", **values) for kind in ("install", "produce")}
    return FileTarget(
        NAME,
        pipeline.name,
        folder,
        (
            *(
                Artifact(folder / f"{pipeline.name}-{kind}.ipynb", notebook(text), place=_MARK)
                for kind, text in cells.items()
            ),
            Artifact(folder / f"{pipeline.name}.yaml", pipeline.shared_text),
            Artifact(folder / _REQUIREMENTS, package.locked()),
        ),
        ("*.ipynb", "*.yaml", "*.txt"),
        next_steps=(
            package.packing(folder),
            f"open {folder / f'{pipeline.name}-install.ipynb'} in Jupyter, or import the folder "
            "into a workspace of Databricks",
        ),
    )


def notebook(text: str) -> str:
    """Return the cells of a template as a notebook, written as Jupyter itself writes it."""
    _, *parts = _CELL.split(text)
    pairs = zip(parts[::2], parts[1::2], strict=True)
    document = {
        "cells": [_cell(number, kind, body) for number, (kind, body) in enumerate(pairs)],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _cell(number: int, kind: str, body: str) -> dict[str, Any]:
    cell: dict[str, Any] = {
        "cell_type": "markdown" if kind == "markdown" else "code",
        "id": f"cell-{number}",
        # the tag by which programs that run notebooks find the cell whose values they replace
        "metadata": {"tags": ["parameters"]} if kind == "parameters" else {},
        "source": body.strip("\n").splitlines(keepends=True),
    }
    return cell if kind == "markdown" else cell | {"execution_count": None, "outputs": []}


def _records_of(pipeline: Installable) -> str:
    """Return the producer whose records the sections of the file describe."""
    tree: Any = parse(pipeline.text, file=printable(str(pipeline.path)))[0].plain()
    if "cdc" in tree:
        return "cdc"
    if "envelope" in tree:
        return "games"
    payload = tree.get("payload")
    written = payload.get("format") if isinstance(payload, Mapping) else None
    return "orders" if written == "avro" else "people"
