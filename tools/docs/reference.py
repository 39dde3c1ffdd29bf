"""Writes the reference pages of `docs/reference` from the code: `make reference`."""

from __future__ import annotations

import json

from distributary.config.file.show import json_schema
from tools.docs import commands, errors, ledger, metrics, python, settings
from tools.docs.repository import ROOT

FOLDER = ROOT / "docs" / "reference"
_SCHEMA_NOTE = """
## For editors

[`pipeline.schema.json`](pipeline.schema.json) is the same as a JSON Schema; `distributary validate
--print-schema` prints it. With `# yaml-language-server: $schema=pipeline.schema.json` as the first
line of a pipeline file, editors complete and explain its keys.
"""
_MARK = "<!-- Made from the code by `make reference`: changes by hand are lost. -->"


def pages() -> dict[str, str]:
    """Return the content of each file in the folder, by name."""
    markdown = {
        "settings.md": settings.page() + _SCHEMA_NOTE,
        "commands.md": commands.page(),
        "metrics.md": metrics.page(),
        "errors.md": errors.page(),
        "ledger.md": ledger.page(),
        "python.md": python.page(),
    }
    return {
        **{name: _marked(text) for name, text in markdown.items()},
        "pipeline.schema.json": json.dumps(json_schema(), indent=2) + "\n",
    }


def _marked(text: str) -> str:
    """Return a page with the mark of its origin below the title."""
    title, _, rest = text.partition("\n\n")
    return f"{title}\n\n{_MARK}\n\n{rest}"


def write() -> None:
    """Write all files, and remove files that are no longer made."""
    FOLDER.mkdir(exist_ok=True)
    made = pages()
    for path in FOLDER.iterdir():
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text, "utf-8")


if __name__ == "__main__":
    write()
