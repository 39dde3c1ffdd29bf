"""Opens the site from its folder in a browser without a network, searches, and says what it saw."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright


def search(program: str, site: Path, query: str) -> dict[str, list[str]]:
    """Addresses that were found; those that were asked for elsewhere; what went wrong."""
    asked: list[str] = []
    errors: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_context(offline=True).new_page()
        page.set_default_timeout(60_000)
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto((site / "concepts" / "stage.html").as_uri())
        box = page.locator(".md-search__input")
        box.click()
        box.press_sequentially(query)
        results = page.locator("a.md-search-result__link")
        results.first.wait_for()
        found = [link.get_attribute("href") or "" for link in results.all()]
        browser.close()
    elsewhere = [url for url in asked if not url.startswith(("file:", "data:", "about:"))]
    return {"found": found, "asked": elsewhere, "errors": errors}


if __name__ == "__main__":
    print(json.dumps(search(sys.argv[1], Path(sys.argv[2]), sys.argv[3])))
