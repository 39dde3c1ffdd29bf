"""Commits of a table's log that tests edit by hand."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from distributary.delta.damage import TAG


def edit_commit(path: Path, edit: Callable[[str], str]) -> None:
    """Change the text of a commit, which then has no checksum."""
    text = re.sub(rf'"{TAG}":"[0-9a-f]{{8}}",', "", path.read_text(), count=1)
    path.write_text(edit(text))
