"""The page itself: a few files that come with the package, kept in memory."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

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
