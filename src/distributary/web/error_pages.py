"""What the error codes mean: the words of docs/errors.md, which travels with the package."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from pathlib import Path

_FILE = "errors.md"
_ANCHOR = re.compile(r'<a id="([A-Z0-9_]+)"></a>')
_CELL = re.compile(r"(?<!\\)\|")


@cache
def meanings() -> dict[str, tuple[str, str]]:
    """By code: what it means, and what to do."""
    found: dict[str, tuple[str, str]] = {}
    for line in _text().splitlines():
        codes = _ANCHOR.findall(line)
        cells = [cell.strip() for cell in _CELL.split(line.strip().strip("|"))]
        if codes and len(cells) >= 2:
            meaning = cells[1] if len(cells) > 2 else f"the record {cells[1]}"
            found |= {code: (meaning, cells[2] if len(cells) > 2 else "") for code in codes}
    return found


def _text() -> str:
    packed = resources.files("distributary.web") / _FILE
    if packed.is_file():
        return packed.read_text("utf-8")
    # an editable install: the page is where it is written
    source = Path(__file__).parents[3] / "docs" / _FILE
    return source.read_text("utf-8") if source.is_file() else ""
