"""Draws the picture of ARCHITECTURE.md: the layers that import-linter holds, with their folders."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tools.drawing import Drawing

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "assets" / "layers.svg"
_SOURCE = ROOT / "src"
_CORE, _LAB = "distributary", "distributary_lab"
_WIDTH, _LEFT, _GAP = 960, 40, 8
_BOX, _ROW = 38, 46


def layers() -> list[tuple[str, ...]]:
    """Return the rows of the contract, from the top; neighbours do not import each other."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    rows = next(each["layers"] for each in contracts if each.get("containers") == [_CORE])
    return [tuple(name.strip("() ") for name in row.split("|")) for row in rows]


def folders_in(name: str) -> list[str]:
    """Return the subfolders of a folder that are packages."""
    root = _SOURCE / name
    names = [path.parent.relative_to(root) for path in sorted(root.rglob("__init__.py"))]
    return [name.as_posix() for name in names if len(name.parts) == 1]


def draw() -> str:
    """Return the picture as SVG, readable on light and dark pages."""
    rows = [[(name, folders_in(f"{_CORE}/{name}")) for name in row] for row in layers()]
    title = "The folders of Distributary in layers: imports go down only"
    picture = Drawing(title, _WIDTH, (len(rows) + 1) * _ROW + _GAP)
    picture.arrow((18, _GAP), (18, picture.height - _GAP))
    _draw_row(picture, 0, [(_LAB, folders_in(_LAB))], kind="lab")
    for number, row in enumerate(rows, 1):
        _draw_row(picture, number, row)
    return picture.svg()


def _draw_row(
    picture: Drawing, number: int, boxes: list[tuple[str, list[str]]], *, kind: str = ""
) -> None:
    """Draw a layer: a box for each of its folders, side by side."""
    width = (_WIDTH - _LEFT - len(boxes) * _GAP) / len(boxes)
    for place, (name, below) in enumerate(boxes):
        x, y = _LEFT + place * (width + _GAP), _GAP + number * _ROW
        texts = [name, " · ".join(below)] if below else [name]
        picture.box(x, y, width, _BOX, *texts, kind=kind)
