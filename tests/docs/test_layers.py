"""The picture of ARCHITECTURE.md is drawn from the code as it is."""

from __future__ import annotations

from xml.etree import ElementTree

from tools.layers import PICTURE, ROOT, draw, layers

SVG = "{http://www.w3.org/2000/svg}"


def test_the_picture_is_that_of_the_code() -> None:
    assert PICTURE.read_text("utf-8") == draw(), "`make layers` draws it again"


def test_every_folder_is_in_the_picture() -> None:
    texts = {element.text for element in ElementTree.fromstring(draw()).iter(f"{SVG}text")}
    folders = {path.parent.name for path in (ROOT / "src" / "distributary").glob("*/__init__.py")}
    assert folders <= texts and {name for row in layers() for name in row} <= texts
    assert "distributary_lab" in texts
