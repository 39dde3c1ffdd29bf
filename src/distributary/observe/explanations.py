"""What codes and words mean: the pages of the documentation that travel with the package."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from pathlib import Path

_ANCHOR = re.compile(r'<a id="([A-Z0-9_]+)"></a>')
_CELL = re.compile(r"(?<!\\)\|")
_HEADINGS = frozenset({"word", "code"})


@cache
def meanings() -> dict[str, tuple[str, str]]:
    """By error code: what it means, and what to do."""
    found: dict[str, tuple[str, str]] = {}
    for line in _page("errors.md"):
        codes, cells = _ANCHOR.findall(line), _cells(line)
        if codes and len(cells) >= 2:
            meaning = cells[1] if len(cells) > 2 else f"the record {cells[1]}"
            found |= {code: (meaning, cells[2] if len(cells) > 2 else "") for code in codes}
    return found


@cache
def glossary() -> dict[str, str]:
    """By word: what it means."""
    rows = [_cells(line) for line in _page("glossary.md") if line.startswith("| ")]
    return {row[0]: row[1] for row in rows if len(row) == 2 and row[0] not in _HEADINGS}


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in _CELL.split(line.strip().strip("|"))]


def _page(name: str) -> list[str]:
    packed = resources.files("distributary.observe") / name
    if packed.is_file():
        return packed.read_text("utf-8").splitlines()
    # an editable install: the page is where it is written
    source = Path(__file__).parents[3] / "docs" / name
    return source.read_text("utf-8").splitlines() if source.is_file() else []
