"""Stands before everything: whose request it is, from which page, and what browsers may do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from distributary.errors import DistributaryError, ErrorCode
from distributary.web.access import Access
from distributary.web.answers import refuse
from distributary.web.hosts import Hosts, same_origin

CSRF_HEADER = "x-csrf-token"
_SAFE = frozenset({"GET", "HEAD"})
_OPEN = frozenset({"/api/session", "/api/login"})
"""What has to work before anybody has said who they are."""
_TOO_MANY = 429
SLOW_SECONDS = 1.0
"""How long whoever guesses waits for an answer."""

_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}

Tell = Callable[[str], None]


def is_api(path: str) -> bool:
    """Whether an address is about data, not about the page that shows it."""
    return path.startswith("/api/")


class Guard:
    """Lets through what may pass, and puts the headers on every answer."""

    def __init__(self, app: ASGIApp, *, access: Access, hosts: Hosts, cookie: str, tell: Tell):
        self._app = app
        self._access = access
        self._hosts = hosts
        self._cookie = cookie
        self._tell = tell

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        about_data = is_api(request.url.path)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                if about_data:
                    headers["cache-control"] = "no-store"
                # neither what stands after the question mark nor any header
                path = scope.get("raw_path", b"").split(b"?")[0].decode("ascii", "replace")
                self._tell(f"{request.method} {path} {message['status']}")
            await send(message)

        refused = self._refuse(request, about_data=about_data)
        if refused is not None and refused.status_code == _TOO_MANY:
            await asyncio.sleep(SLOW_SECONDS)
        await (refused or self._app)(scope, receive, send_with_headers)

    def _refuse(self, request: Request, *, about_data: bool) -> Response | None:
        if not self._hosts.knows(request.headers.get("host", "")):
            return _denied("the dashboard is not known by this name", _NAMES, status=421)
        if not about_data:
            return None if request.method in _SAFE else _denied("nothing to send here", "", 405)
        return self._unknown(request) or self._from_elsewhere(request)

    def _unknown(self, request: Request) -> Response | None:
        """Refuses whoever has neither the token nor a session."""
        bearer = _bearer(request)
        if not self._access.required or request.url.path in _OPEN:
            return None
        if bearer is not None:
            client = client_of(request)
            guessing = self._access.blocked(client)
            known = self._access.accepts(bearer, client=client)
            if guessing and not known:
                return too_often()
        else:
            known = self._access.knows(request.cookies.get(self._cookie))
        return None if known else _denied("this dashboard asks for a token", _TOKEN, 401)

    def _from_elsewhere(self, request: Request) -> Response | None:
        """Refuses what a page of somebody else makes a browser do."""
        headers = request.headers
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        foreign = site not in (None, "same-origin", "none")
        foreign |= origin is not None and not same_origin(origin, headers.get("host", ""))
        if foreign:
            return _denied("another site's page asked for this", "open the dashboard itself", 403)
        # a browser never adds a bearer's token by itself
        if request.method in _SAFE or (self._access.required and _bearer(request) is not None):
            return None
        if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return _denied("only JSON is taken", "send application/json", 415)
        session = request.cookies.get(self._cookie)
        if not self._access.proves(headers.get(CSRF_HEADER), session):
            return _denied("the request does not come from a page of ours", _RELOAD, 403)
        return None


_NAMES = "use its address, or name it at the start: --allow-host NAME"
_TOKEN = "log in with the token, or send it: Authorization: Bearer TOKEN"  # noqa: S105
_RELOAD = "load the page again, or send the token: Authorization: Bearer TOKEN"


def client_of(request: Request) -> str:
    """The address that a request comes from."""
    return request.client.host if request.client else ""


def too_often() -> Response:
    """The answer to a wrong token after many others; a right one is always let in."""
    denied = _denied("too many wrong tokens", "wait a minute", _TOO_MANY)
    denied.headers["retry-after"] = "60"
    return denied


def _bearer(request: Request) -> str | None:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else None


def _denied(what: str, next_step: str, status: int) -> Response:
    error = DistributaryError(what, code=ErrorCode.ACCESS_DENIED, next_step=next_step)
    answer = refuse(error, status=status)
    if status == 401:
        answer.headers["www-authenticate"] = "Bearer"
    return answer
