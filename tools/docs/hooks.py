"""What mkdocs calls while it builds the site: adds pages, fixes links."""

from __future__ import annotations

from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools.docs.repository import OUTSIDE, PICTURES, ROOT, pipes_in_code, relinked


def generated() -> dict[str, str]:
    """Return the pages that stand outside of `docs/`, by their place in the site."""
    return {place: (ROOT / file).read_text("utf-8") for file, place in OUTSIDE.items()}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and pictures that stand outside of `docs/`."""
    pictures = {place: (ROOT / file).read_bytes() for file, place in PICTURES.items()}
    for place, content in (generated() | pictures).items():
        files.append(File.generated(config, place, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Return a page, written for a repository, with the links and tables of the site."""
    return pipes_in_code(relinked(markdown, page=page.file.src_uri))
