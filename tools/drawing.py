"""Draws boxes, arrows and numbers as SVG that is readable on light and on dark pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

STYLE = """\
text { font: 13px ui-sans-serif, system-ui, sans-serif; fill: #1f2328; text-anchor: middle }
.start { text-anchor: start }
.below { font-size: 11.5px; fill: #59636e }
.head { font-weight: 600 }
.code { font: 11.5px ui-monospace, monospace }
rect { fill: #eef4fb; stroke: #5b8bbf }
.page { fill: #ffffff; stroke: none }
.group { fill: #f6f8fa; stroke: #c7d0d9 }
.lab, .lake { fill: #fdf4e3; stroke: #c08a2d }
.good { fill: #e9f6ec; stroke: #4f9a63 }
path { stroke: #59636e; fill: none; stroke-width: 1.5 }
.dashed { stroke-dasharray: 5 4 }
circle { fill: #0b6e6e; stroke: none }
.number { font-size: 11.5px; font-weight: 600; fill: #ffffff }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .below { fill: #9da7b3 }
  rect { fill: #14243a; stroke: #4f7fb3 }
  .page { fill: #0d1117 }
  .group { fill: #161b22; stroke: #3d444d }
  .lab, .lake { fill: #33270f; stroke: #b98a3a }
  .good { fill: #12301c; stroke: #4f9a63 }
  path { stroke: #9da7b3 }
  circle { fill: #2aa198 }
  .number { fill: #04211f }
}"""
"""The colours; a picture has a ground of its own, because a page may be dark where the system is
light."""
LETTER = 0.54
"""The width of a letter on average, as a share of the size of the font."""
_LINE = 16
_RADIUS = 9.5


@dataclass(slots=True)
class Drawing:
    """The parts of a picture, in the order in which they are drawn."""

    title: str
    width: int
    height: int
    parts: list[str] = field(default_factory=list)

    def box(
        self, x: float, y: float, width: float, height: float, *texts: str, kind: str = ""
    ) -> None:
        """Draw a box with a heading and lines below it, in its middle."""
        self.frame(x, y, width, height, kind=kind)
        sizes = [13.0] + [11.5] * (len(texts) - 1)
        for text, size in zip(texts, sizes, strict=False):
            if len(text) * size * LETTER > width - 6:
                raise ValueError(f"{self.title}: too long for its box: {text!r}")
        first = y + height / 2 - (len(texts) - 1) * _LINE / 2 + 4.5
        for number, text in enumerate(texts):
            kind_of_text = "below" if number else "head"
            self.text(x + width / 2, first + number * _LINE, text, kind=kind_of_text)

    def group(self, x: float, y: float, width: float, height: float, title: str) -> None:
        """Draw a frame around what is drawn later, with a heading at its top."""
        self.frame(x, y, width, height, kind="group")
        self.text(x + width / 2, y + 20, title, kind="head")

    def frame(self, x: float, y: float, width: float, height: float, *, kind: str = "") -> None:
        """Draw a box without a text."""
        self.parts.append(
            f'<rect{_class(kind)} x="{x:.0f}" y="{y:.0f}" width="{width:.0f}"'
            f' height="{height:.0f}" rx="5"/>'
        )

    def text(self, x: float, y: float, text: str, *, kind: str = "") -> None:
        """Draw a line of text; its middle is at x, or its begin with the kind `start`."""
        self.parts.append(f'<text{_class(kind)} x="{x:.0f}" y="{y:.0f}">{escape(text)}</text>')

    def arrow(self, *points: tuple[float, float], kind: str = "") -> None:
        """Draw a line through the points, with a head at the last one."""
        (x0, y0), (x1, y1) = points[-2:]
        if x0 == x1:
            back = 6 if y1 > y0 else -6
            head = f"M{x1 - 5:.0f} {y1 - back:.0f} L{x1:.0f} {y1:.0f} L{x1 + 5:.0f} {y1 - back:.0f}"
        else:
            back = 6 if x1 > x0 else -6
            head = f"M{x1 - back:.0f} {y1 - 5:.0f} L{x1:.0f} {y1:.0f} L{x1 - back:.0f} {y1 + 5:.0f}"
        self.line(*points, kind=kind)
        self.parts.append(f'<path d="{head}"/>')

    def line(self, *points: tuple[float, float], kind: str = "") -> None:
        """Draw a line through the points."""
        steps = " L".join(f"{x:.0f} {y:.0f}" for x, y in points)
        self.parts.append(f'<path{_class(kind)} d="M{steps}"/>')

    def number(self, x: float, y: float, number: int) -> None:
        """Draw a number in a circle."""
        self.parts.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="{_RADIUS}"/>')
        self.text(x, y + 4, str(number), kind="number")

    def legend(self, y: float, sentences: Sequence[str], *, columns: int = 2) -> None:
        """Draw what each number means, from 1 on, in columns."""
        rows = -(-len(sentences) // columns)
        wide = (self.width - 24) / columns
        for index, sentence in enumerate(sentences):
            if len(sentence) * 11.5 * LETTER > wide - 34:
                raise ValueError(f"{self.title}: too long for the legend: {sentence!r}")
            column, row = divmod(index, rows)
            x, at = 24 + column * wide, y + row * 24
            self.number(x, at, index + 1)
            self.text(x + 18, at + 4, sentence, kind="start below")

    def svg(self) -> str:
        """Return the picture as a document."""
        return "\n".join([*self._head(), *self.parts, "</svg>\n"])

    def _head(self) -> Iterable[str]:
        size = f"0 0 {self.width} {self.height}"
        yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" role="img">'
        yield f"<title>{escape(self.title)}</title>"
        yield f"<style>\n{STYLE}\n</style>"
        yield f'<rect class="page" width="{self.width}" height="{self.height}"/>'


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
