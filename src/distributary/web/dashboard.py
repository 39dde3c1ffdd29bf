"""The dashboard, assembled from its parts."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import chain, count
from typing import cast

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from distributary.errors import DistributaryError, ErrorCode
from distributary.web.access import Access, Guard, Hosts, Tell, is_api
from distributary.web.answers import not_found, refuse, routes_of
from distributary.web.api import letters, lineage, login, messages, pipelines, search, tables
from distributary.web.api.query import Queries
from distributary.web.jobs import Jobs
from distributary.web.reading import LakeReader

# The settings of a dashboard.


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one dashboard."""

    lake: str
    """The lake at `/`."""
    others: tuple[str, ...] = ()
    """Further lakes; each has the same page below `/lakes/NAME/`."""
    file: str | None = None
    """The pipeline file of `--file`: it is trusted, whatever the lake contains."""
    host: str = "127.0.0.1"
    port: int = 0
    token: str | None = field(default=None, repr=False)
    """The token that every client needs; None means that no token is required."""
    names: tuple[str, ...] = ()
    """Host names of the page besides those of this machine."""
    proxies: tuple[str, ...] = ()
    """Addresses and networks of trusted proxies, whose headers name the client and TLS."""


# Server-sent events about changes; the page then requests the new data itself.

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_TICK_SECONDS = 0.25
_BEAT_SECONDS = 15.0
_MOST_LISTENERS = 100
_RETRY_SECONDS = "60"
_BELOW = re.compile(r"/lakes/([^/]+)(?=/|$)")


class LiveUpdates:
    """Sends an event to every open page when a stamp has changed."""

    def __init__(self, stamp: Callable[[], dict[str, str]]) -> None:
        self._stamp = stamp
        self._listeners = 0
        self.closing = False
        """Set when the server ends: open streams would keep it alive."""

    async def open(self, request: Request) -> Response:
        """Answer `/api/events` with a stream."""
        if self._listeners >= _MOST_LISTENERS:
            # the page then polls every few seconds instead
            full = DistributaryError(
                "too many pages are open",
                code=ErrorCode.ACCESS_DENIED,
                next_step="close some of them; this page reloads its data periodically instead",
            )
            answer = refuse(full, status=429)
            answer.headers["retry-after"] = _RETRY_SECONDS
            return answer
        self._listeners += 1
        return _Stream(self._events(), on_end=self._ended)

    def _ended(self) -> None:
        self._listeners -= 1

    async def _events(self) -> AsyncIterator[bytes]:
        before: dict[str, str] = {}
        quiet = 0.0
        yield b"retry: 2000\n\n"
        while not self.closing:
            now = await run_in_threadpool(self._look)
            if now != before:
                changed = [name for name, stamp in now.items() if before.get(name) != stamp]
                name = "changed" if before else "hello"
                yield f"event: {name}\ndata: {json.dumps(changed)}\n\n".encode()
                before, quiet = now, 0.0
            elif quiet >= _BEAT_SECONDS:
                yield b": still here\n\n"
                quiet = 0.0
            for _ in range(int(_LOOK_SECONDS / _TICK_SECONDS)):
                if not self.closing:
                    await asyncio.sleep(_TICK_SECONDS)
            quiet += _LOOK_SECONDS

    def _look(self) -> dict[str, str]:
        try:
            stamps = self._stamp().items()
            return {name: hashlib.sha256(stamp.encode()).hexdigest() for name, stamp in stamps}
        except DistributaryError as error:
            return {"lake": str(error.code)}
        except Exception as error:
            _log.error("the lake could not be read", exc_info=error)
            return {"lake": "unreadable"}


class _Stream(StreamingResponse):
    """A stream of events that is counted from its acceptance to its end."""

    def __init__(self, events: AsyncIterator[bytes], *, on_end: Callable[[], None]) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one listening page."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


@dataclass(frozen=True, slots=True)
class Dashboard:
    """The page over a lake, with the parts that must be closed with it."""

    app: ASGIApp
    access: Access
    jobs: Jobs
    queries: Queries
    live: LiveUpdates
    lake: LakeReader
    others: tuple[Dashboard, ...] = ()
    """The pages over the other lakes."""

    def warm_up(self) -> None:
        """Read the data of the first page in the background."""

        def read() -> None:
            # a request reports the error
            with suppress(DistributaryError):
                self.lake.health()

        threading.Thread(target=read, name="warm-up", daemon=True).start()

    def end_streams(self) -> None:
        """End open streams, which would keep the server alive."""
        for each in (self, *self.others):
            each.live.closing = True

    def close(self) -> None:
        """Close open streams, then end running commands."""
        self.end_streams()
        for each in (self, *self.others):
            each.queries.close()
            each.jobs.close()


def make_dashboard(settings: Settings, *, tell: Tell = lambda line: None) -> Dashboard:
    """Build everything but the server; `tell` gets one line for each request."""
    # one login for all lakes
    access = Access(settings.token)
    first, *names = _names((settings.lake, *settings.others))
    addresses = {first: "/", **{name: f"/lakes/{name}/" for name in names}}
    page = _page_of(settings, access, addresses, tell)
    others = {
        name: _page_of(replace(settings, lake=lake, file=None), access, addresses, tell)
        for name, lake in zip(names, settings.others, strict=True)
    }
    app = _ByLake(page.app, {name: each.app for name, each in others.items()})
    # without a trusted proxy, no header may name the client
    proxied = ProxyHeadersMiddleware(app, list(settings.proxies))  # type: ignore[arg-type]
    whole = cast(ASGIApp, proxied) if settings.proxies else app
    return replace(page, app=whole, others=tuple(others.values()))


def _names(lakes: Sequence[str]) -> list[str]:
    """Return a name for each lake: the last part of its path, with the part before it if needed."""
    parts = [[part for part in re.split(r"[^A-Za-z0-9._-]+", lake) if part] for lake in lakes]
    last = Counter(part[-1] for part in parts if part)
    names: list[str] = []
    for part in parts:
        wanted = "-".join(part[-1:] if part and last[part[-1]] == 1 else part[-2:]) or "lake"
        numbered = (f"{wanted}-{number}" for number in count(2))
        names.append(next(name for name in chain([wanted], numbered) if name not in names))
    return names


class _ByLake:
    """Hands a request to the page of its lake, which sees its address without the prefix."""

    def __init__(self, first: ASGIApp, others: Mapping[str, ASGIApp]) -> None:
        self._first, self._others = first, others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        app = self._first
        if scope["type"] == "http" and (match := _BELOW.match(scope["path"])):
            app = self._others.get(match[1], app)
            if app is not self._first:
                scope = {**scope, "path": scope["path"][match.end() :] or "/"}
        await app(scope, receive, send)


def _page_of(
    settings: Settings, access: Access, addresses: Mapping[str, str], tell: Tell
) -> Dashboard:
    """Build the page over one lake."""
    lake = LakeReader(settings.lake, file=settings.file)
    jobs = Jobs(lake=settings.lake, file=settings.file)
    queries = Queries(lake=settings.lake, file=settings.file)
    live = LiveUpdates(lambda: {"lake": lake.stamp(), "jobs": str(jobs.changes)})
    # cookies belong to hosts, not ports: two dashboards on one machine must not share one
    cookie = f"distributary_{settings.port}"
    page = Assets()
    routes = [
        *login.routes(access, cookie=cookie, lakes=addresses),
        Route("/api/events", live.open),
        *login.job_routes(lake, jobs),
        *queries.routes(),
        *routes_of(pipelines.reads(lake)),
        *routes_of(tables.reads(lake)),
        *routes_of(letters.reads(lake)),
        *routes_of(messages.reads(lake)),
        *routes_of(lineage.reads(lake)),
        *routes_of(search.reads(lake)),
        *page.routes(),
    ]

    async def nothing(request: Request, error: Exception) -> Response:
        if not is_api(request.url.path):
            return page.not_found()
        what, step = "there is no such address", "begin at /"
        return refuse(not_found(what, request.url.path, next_step=step))

    guarded = Guard(
        Starlette(routes=routes, exception_handlers={404: nothing}),
        access=access,
        hosts=Hosts(settings.host, settings.names),
        cookie=cookie,
        tell=tell,
    )
    return Dashboard(guarded, access, jobs, queries, live, lake)


# The page itself: a few files of the package, held in memory.

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
    *("/messages/{pipeline:path}", "/lineage"),
)
"""Every address of the page; the script in the browser distinguishes them."""


@dataclass(frozen=True, slots=True)
class Asset:
    """One file of the page."""

    body: bytes
    kind: str
    etag: str


class Assets:
    """All files by their path below `/static/`; no other file is served."""

    def __init__(self) -> None:
        self._files = dict(_walk(resources.files("distributary.web") / "static", ""))

    def routes(self) -> list[Route]:
        """Return the addresses of the page and of its files."""
        return [
            Route("/static/{path:path}", self._static),
            Route("/favicon.ico", lambda request: _serve(request, self._files["icon.svg"])),
            *(Route(path, self._page) for path in PAGES),
        ]

    def not_found(self) -> Response:
        """Return the page, which shows the error itself."""
        page = self._files[_SHELL]
        return Response(page.body, status_code=404, media_type=page.kind)

    def _page(self, request: Request) -> Response:
        return _serve(request, self._files[_SHELL])

    def _static(self, request: Request) -> Response:
        asset = self._files.get(request.path_params["path"])
        return Response(status_code=404) if asset is None else _serve(request, asset)


def _serve(request: Request, asset: Asset) -> Response:
    # revalidated each time, and answered without content if it is unchanged
    headers = {"etag": asset.etag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == asset.etag:
        return Response(status_code=304, headers=headers)
    return Response(asset.body, media_type=asset.kind, headers=headers)


def _walk(folder: Traversable, below: str) -> list[tuple[str, Asset]]:
    assets = []
    for entry in folder.iterdir():
        if entry.is_dir():
            assets += _walk(entry, f"{below}{entry.name}/")
        elif (kind := _KINDS.get(entry.name.rpartition(".")[2])) is not None:
            body = entry.read_bytes()
            etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            assets.append((below + entry.name, Asset(body, kind, etag)))
    return assets
