"""The page itself: a few files that come with the package, kept in memory."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_KINDS = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_SHELL = "index.html"
PAGES = (
    *("/", "/login", "/search", "/tables", "/tables/{name:path}", "/pipelines/{name:path}"),
    *("/batches", "/batches/{pipeline:path}/{number:int}", "/dead-letters", "/dead-letters/{id}"),
    *("/schemas", "/schemas/{table:path}", "/errors", "/errors/{code}", "/query"),
)
"""Every address of the page; which of them it is, the browser finds out."""


@dataclass(frozen=True, slots=True)
class Asset:
    """One file."""

    body: bytes
    kind: str
    etag: str


class Assets:
    """All files by their path below `/static/`; nothing else is ever served."""

    def __init__(self) -> None:
        self._files = dict(_walk(resources.files("distributary.web") / "static", ""))

    def routes(self) -> list[Route]:
        """The addresses of the page and of its files."""
        return [
            Route("/static/{path:path}", self._static),
            Route("/favicon.ico", lambda request: _serve(request, self._files["icon.svg"])),
            *(Route(path, self._page) for path in PAGES),
        ]

    def not_found(self) -> Response:
        """The page, which says so itself."""
        page = self._files[_SHELL]
        return Response(page.body, status_code=404, media_type=page.kind)

    def _page(self, request: Request) -> Response:
        return _serve(request, self._files[_SHELL])

    def _static(self, request: Request) -> Response:
        found = self._files.get(request.path_params["path"])
        return Response(status_code=404) if found is None else _serve(request, found)


def _serve(request: Request, asset: Asset) -> Response:
    # asked for again each time, and answered with nothing while it is the same
    headers = {"etag": asset.etag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == asset.etag:
        return Response(status_code=304, headers=headers)
    return Response(asset.body, media_type=asset.kind, headers=headers)


def _walk(folder: Traversable, below: str) -> list[tuple[str, Asset]]:
    found = []
    for each in folder.iterdir():
        if each.is_dir():
            found += _walk(each, f"{below}{each.name}/")
        elif (kind := _KINDS.get(each.name.rpartition(".")[2])) is not None:
            body = each.read_bytes()
            etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            found.append((below + each.name, Asset(body, kind, etag)))
    return found


# What the error codes mean: the words of docs/errors.md, which travels with the package.

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
