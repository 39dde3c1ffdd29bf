"""The figures are those that the scripts draw, and the layers are those of the code."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from tests.docs.pages import PAGES
from tools.drawing import STYLE, Drawing
from tools.figures import FIGURES, FOLDER, pictures
from tools.layers import PICTURE, ROOT, draw, layers

SVG = "{http://www.w3.org/2000/svg}"
DRAWN = pictures()


@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_is_that_of_its_script(name: str) -> None:
    assert (FOLDER / name).read_text("utf-8") == DRAWN[name], "`make figures` draws it again"


@pytest.mark.parametrize("name", DRAWN)
def test_everything_is_inside_of_a_figure_and_has_a_colour_in_the_dark(name: str) -> None:
    root = ElementTree.fromstring(DRAWN[name])
    width, height = (float(size) for size in root.attrib["viewBox"].split()[2:])
    for element in root.iter():
        assert 0 <= float(element.get("x", 0)) + float(element.get("width", 0)) <= width
        assert 0 <= float(element.get("y", 0)) + float(element.get("height", 0)) <= height
    dark = STYLE.partition("prefers-color-scheme: dark")[2]
    light = re.findall(r"^([.\w][\w., ]*) {.*(?:fill|stroke): #", STYLE, re.MULTILINE)
    assert [kind for kind in light if f"  {kind} {{" not in dark] == []


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_on_a_page(name: str) -> None:
    assert any(f"assets/{name}.svg)" in page.read_text("utf-8") for page in PAGES)


@pytest.mark.parametrize("part", ["box", "legend"])
def test_a_text_that_is_too_long_is_refused(part: str) -> None:
    drawing = Drawing("a figure", 400, 100)
    with pytest.raises(ValueError, match="too long"):
        if part == "box":
            drawing.box(0, 0, 80, 40, "a text of thirty letters or so")
        else:
            drawing.legend(20, ["a sentence that does not fit into half of such a figure"])


def test_every_folder_is_in_the_picture_of_the_layers() -> None:
    assert DRAWN[PICTURE.name] == draw()
    texts = {element.text for element in ElementTree.fromstring(draw()).iter(f"{SVG}text")}
    folders = {path.parent.name for path in (ROOT / "src" / "distributary").glob("*/__init__.py")}
    assert folders <= texts and {name for row in layers() for name in row} <= texts
    assert "distributary_lab" in texts
