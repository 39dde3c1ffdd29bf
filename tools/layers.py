"""Draws the picture of ARCHITECTURE.md: the layers that import-linter holds, with their folders."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "assets" / "layers.svg"
_SOURCE = ROOT / "src"
_CORE, _LAB = "distributary", "distributary_lab"
_WIDTH, _LEFT, _GAP = 960, 40, 8
_BOX, _ROW = 38, 46
_STYLE = """\
text { font: 13px ui-sans-serif, system-ui, sans-serif; fill: #1f2328; text-anchor: middle }
.below { font-size: 10.5px; fill: #59636e }
rect { fill: #eef4fb; stroke: #5b8bbf }
.lab rect { fill: #fdf4e3; stroke: #c08a2d }
path { stroke: #59636e; fill: none; stroke-width: 1.5 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .below { fill: #9da7b3 }
  rect { fill: #14243a; stroke: #4f7fb3 }
  .lab rect { fill: #33270f; stroke: #b98a3a }
  path { stroke: #9da7b3 }
}"""


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
    rows = layers()
    height = (len(rows) + 1) * _ROW + _GAP
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
            "<title>The folders of Distributary in layers: imports go down only</title>",
            f"<style>\n{_STYLE}\n</style>",
            f'<path d="M18 {_GAP} V{height - _GAP} M12 {height - 16} l6 8 6-8"/>',
            *_row(0, [(_LAB, folders_in(_LAB))], kind="lab"),
            *(
                line
                for number, row in enumerate(rows, 1)
                for line in _row(number, [(n, folders_in(f"{_CORE}/{n}")) for n in row])
            ),
            "</svg>\n",
        ]
    )


def _row(number: int, boxes: list[tuple[str, list[str]]], *, kind: str = "") -> Iterator[str]:
    """Draw a layer: a box for each of its folders, side by side."""
    width = (_WIDTH - _LEFT - len(boxes) * _GAP) / len(boxes)
    yield f'<g class="{kind}">' if kind else "<g>"
    for place, (name, below) in enumerate(boxes):
        x, y = _LEFT + place * (width + _GAP), _GAP + number * _ROW
        middle = x + width / 2
        yield f'<rect x="{x:.0f}" y="{y}" width="{width:.0f}" height="{_BOX}" rx="5"/>'
        at = y + (17 if below else 24)
        yield f'<text x="{middle:.0f}" y="{at}">{escape(name)}</text>'
        if below:
            text = escape(" · ".join(below))
            yield f'<text class="below" x="{middle:.0f}" y="{y + 31}">{text}</text>'
    yield "</g>"


if __name__ == "__main__":
    PICTURE.write_text(draw(), "utf-8")
