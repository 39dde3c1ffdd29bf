"""What mkdocs calls while it builds the site: adds pages, fixes links."""

from __future__ import annotations

import json
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from distributary.config.show import json_schema
from tools.docs import commands, errors, ledger, metrics, settings
from tools.docs.repository import OUTSIDE, PICTURES, ROOT, pipes_in_code, relinked

_SCHEMA_NOTE = """
## For editors

[`pipeline.schema.json`](pipeline.schema.json) is the same as a JSON Schema; `distributary validate
--print-schema` prints it. With `# yaml-language-server: $schema=pipeline.schema.json` as the first
line of a pipeline file, editors complete and explain its keys.
"""


def generated() -> dict[str, str]:
    """Pages and files that nobody writes by hand."""
    return {
        "reference/settings.md": settings.page() + _SCHEMA_NOTE,
        "reference/commands.md": commands.page(),
        "reference/metrics.md": metrics.page(),
        "reference/errors.md": errors.page(),
        "reference/ledger.md": ledger.page(),
        "reference/pipeline.schema.json": json.dumps(json_schema(), indent=2),
        **{place: (ROOT / file).read_text("utf-8") for file, place in OUTSIDE.items()},
    }


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The generated pages join those of the folder."""
    pictures = {place: (ROOT / file).read_bytes() for file, place in PICTURES.items()}
    for place, content in (generated() | pictures).items():
        files.append(File.generated(config, place, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Every page is made for a repository first: its links and tables become the site's."""
    return pipes_in_code(relinked(markdown, page=page.file.src_uri))
