"""Pages that stand outside of `docs/`, and links between them and those inside."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

OUTSIDE = {
    "README.md": "project/readme.md",
    "ARCHITECTURE.md": "project/architecture.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "benchmarks/README.md": "project/benchmarks.md",
}
"""Files of the repository, and where the site has them."""

PICTURES = {"benchmarks/results/latest.png": "project/benchmarks.png"}
"""The same for what is no text."""

_INSIDE = "docs/"
_PLACES = OUTSIDE | PICTURES
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
_CODE = re.compile(r"(`+)(.+?)\1")


def origin(page: str) -> str:
    """Which file of the repository a page of the site is."""
    return next((file for file, place in OUTSIDE.items() if place == page), _INSIDE + page)


def relinked(markdown: str, *, page: str) -> str:
    """The text of a page with links that lead to pages of the site.

    A file that is no page keeps its words and loses its link; what does not exist keeps its link,
    which the strict build refuses.
    """

    def replace(found: re.Match[str]) -> str:
        words, (path, hash_, anchor) = found[1], found[2].partition("#")
        if not path or "://" in path or path.startswith(("mailto:", "/")):
            return found[0]
        file = posixpath.normpath(posixpath.join(posixpath.dirname(origin(page)), path))
        place = _PLACES.get(file, file.removeprefix(_INSIDE))
        if place == file:
            return words if (ROOT / file).exists() else found[0]
        link = posixpath.relpath(place, posixpath.dirname(page) or ".")
        return f"[{words}]({link}{hash_}{anchor})"

    return _LINK.sub(replace, markdown)


def pipes_in_code(markdown: str) -> str:
    r"""Tables as Python's Markdown reads them.

    On GitHub a `|` in code in a table must be escaped; here the escape would be shown.
    """

    def plain(line: str) -> str:
        return _CODE.sub(lambda code: code[0].replace("\\|", "|"), line)

    lines = markdown.split("\n")
    return "\n".join(plain(line) if line.startswith("|") else line for line in lines)
