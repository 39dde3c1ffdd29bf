"""The site as it is built: strictly, whole, and without anything from another host."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from distributary.errors import ErrorCode
from tests.docs.pages import DOCS, ROOT

LOADED = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src"}
"""What a browser fetches without being asked, and where it is said."""


@dataclass
class Html(HTMLParser):
    """What a page links to, loads, and can be linked at."""

    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors.update(given[name] for name in ("id", "name") if name in given)
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if address := given.get(LOADED.get(tag, "")):
            self.loads.append(address)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        # not quietly: mkdocs would count no warning, and strict would mean nothing
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Html]:
    found = {}
    for path in sorted(site.rglob("*.html")):
        page = Html()
        page.feed(path.read_text("utf-8"))
        found[path] = page
    return found


def test_every_page_of_the_folder_is_built(site: Path) -> None:
    for page in DOCS.rglob("*.md"):
        assert (site / page.relative_to(DOCS).with_suffix(".html")).is_file(), page
    assert json.loads((site / "reference" / "pipeline.schema.json").read_text("utf-8"))["$schema"]


def test_every_link_leads_somewhere(site: Path, pages: dict[Path, Html]) -> None:
    broken = []
    for path, page in pages.items():
        # the page for what is not found is shown at any address
        for link in [] if path.name == "404.html" else page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                broken.append((path.name, link))
            elif parts.fragment and target in pages:
                # the top of a page is one without being named
                known = pages[target].anchors | {"__top"}
                broken += [] if unquote(parts.fragment) in known else [(path.name, link)]
    assert broken == []


def test_every_error_code_has_its_place(site: Path, pages: dict[Path, Html]) -> None:
    anchors = pages[site / "errors.html"].anchors
    assert [code for code in ErrorCode if code not in anchors] == []


def test_nothing_is_loaded_from_another_host(site: Path, pages: dict[Path, Html]) -> None:
    foreign = {
        (path.name, address)
        for path, page in pages.items()
        for address in page.loads
        if urlsplit(address).netloc
    }
    assert foreign == set()
    styles = "".join(path.read_text("utf-8") for path in site.rglob("*.css"))
    assert "url(http" not in styles
    assert "@import" not in styles


def test_search_knows_the_pages(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
    places = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {"quick-start.html", "reference/commands.html", "errors.html"} <= places


def test_search_works_from_a_folder_without_a_network(site: Path) -> None:
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    if program is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    # in a process of its own: the tests of the dashboard may have a browser open in this one
    looked = subprocess.run(
        [sys.executable, "-m", "tests.docs.browse", program, str(site), "UNKNOWN_SCHEMA_ID"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert looked.returncode == 0, looked.stderr
    seen = json.loads(looked.stdout)
    assert any("dead-letters.html" in link for link in seen["found"])
    assert seen["asked"] == []
    assert seen["errors"] == []
