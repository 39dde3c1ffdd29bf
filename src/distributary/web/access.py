"""Access to the dashboard: a token, sessions, links that work once, and limits on guessing."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import secrets
import socket
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from distributary.config.base import LOOPBACK_NAMES, is_loopback
from distributary.errors import DistributaryError, ErrorCode
from distributary.model.cache import Cache
from distributary.web.answers import refuse

SESSION_SECONDS = 12 * 3600.0
LINK_SECONDS = 600.0
WRONG_ALLOWED = 10
"""The number of wrong tokens per minute from one address; from all addresses, ten times as many."""
_MINUTE = 60.0
_MOST_KEPT = 10_000
_ALL_CLIENTS = ""


class Access:
    """The token, sessions and links of a dashboard, held as hashes only.

    Neither the token nor a session's id can be read out of it.
    """

    def __init__(self, token: str | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._token = None if token is None else _digest(token)
        self._clock = clock
        self._lock = threading.Lock()
        self._key = secrets.token_bytes(32)
        self._sessions: Cache[float] = Cache(_MOST_KEPT)
        self._links: Cache[float] = Cache(_MOST_KEPT)
        self._wrong: OrderedDict[str, deque[float]] = OrderedDict()

    @property
    def required(self) -> bool:
        """Return whether a token is required."""
        return self._token is not None

    def blocked(self, client: str) -> bool:
        """Return whether an address has sent too many wrong tokens lately."""
        with self._lock:
            return self._lately(client) >= WRONG_ALLOWED or (
                self._lately(_ALL_CLIENTS) >= 10 * WRONG_ALLOWED
            )

    def accepts(self, token: str, *, client: str) -> bool:
        """Return whether `token` is right; a wrong one is counted for the address."""
        right = self._token is not None and hmac.compare_digest(_digest(token), self._token)
        if not right:
            self._note_wrong(client)
        return right

    def redeem(self, link: str, *, client: str) -> bool:
        """Return whether `link` is unused and valid; it cannot be used again."""
        end = self._links.take(_digest(link))
        right = end is not None and self._clock() < end
        if not right:
            self._note_wrong(client)
        return right

    def new_link(self) -> str:
        """Return a link that can be exchanged for a session once, for a short time."""
        return self._issue(self._links, LINK_SECONDS)

    def new_session(self) -> str:
        """Return the id of a new session, for a cookie."""
        return self._issue(self._sessions, SESSION_SECONDS)

    def knows(self, session: str | None) -> bool:
        """Return whether a session is open."""
        if not session:
            return False
        end = self._sessions.find(_digest(session))
        return end is not None and self._clock() < end

    def end(self, session: str | None) -> None:
        """Close a session."""
        self._sessions.keep(_digest(session or ""), None)

    def csrf(self, session: str | None) -> str:
        """Return the token that only the dashboard's own pages of a session have."""
        text = (session or "").encode()
        return hmac.new(self._key, b"csrf:" + text, hashlib.sha256).hexdigest()

    def proves(self, given: str | None, session: str | None) -> bool:
        """Return whether a request comes from one of the dashboard's own pages."""
        return hmac.compare_digest((given or "").encode(), self.csrf(session).encode())

    def _issue(self, kept: Cache[float], seconds: float) -> str:
        made = secrets.token_urlsafe(32)
        kept.keep(_digest(made), self._clock() + seconds)
        return made

    def _note_wrong(self, client: str) -> None:
        with self._lock:
            for who in (client, _ALL_CLIENTS):
                self._wrong.setdefault(who, deque(maxlen=10 * WRONG_ALLOWED)).append(self._clock())
                self._wrong.move_to_end(who)
            while len(self._wrong) > _MOST_KEPT:
                self._wrong.popitem(last=False)

    def _lately(self, client: str) -> int:
        return sum(self._clock() - at <= _MINUTE for at in self._wrong.get(client, ()))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


# The host names of the dashboard: a request under a foreign name is an attack.


class Hosts:
    """The host names of one dashboard.

    In an attack by DNS rebinding, a foreign name suddenly resolves to our address, and the browser
    sends that name as `Host`. An address cannot be rebound, so addresses are always accepted.
    """

    def __init__(self, host: str, names: tuple[str, ...] = ()) -> None:
        self._only_here = is_loopback(host)
        own = () if self._only_here else (socket.gethostname(), socket.getfqdn(), host)
        self._names = {name.lower().rstrip(".") for name in (*LOOPBACK_NAMES, *own, *names)}

    def knows(self, header: str) -> bool:
        """Return whether a `Host` header names this dashboard."""
        name = name_of(header)
        if name is None:
            return False
        address = _address(name)
        if address is not None:
            return address.is_loopback or not self._only_here
        return name.lower().rstrip(".") in self._names


def name_of(header: str) -> str | None:
    """Return the host in `host:port`, without port and brackets."""
    try:
        parts = urlsplit(f"//{header}")
        _ = parts.port
    except ValueError:
        return None
    return parts.hostname if parts.netloc == header and parts.username is None else None


def same_origin(origin: str, host: str) -> bool:
    """Return whether an `Origin` header belongs to the page served under this `Host`."""
    try:
        return urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


# The checks before every request: its user, its page, and the headers for browsers.

CSRF_HEADER = "x-csrf-token"
_SAFE = frozenset({"GET", "HEAD"})
_OPEN = frozenset({"/api/session", "/api/login"})
"""The addresses that work without a login."""
_TOO_MANY = 429
SLOW_SECONDS = 1.0
"""The delay of the answer to a client that guesses tokens."""

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
    """Return whether an address serves data, not the page that shows it."""
    return path.startswith("/api/")


class Guard:
    """The middleware that refuses forbidden requests and adds the headers to every answer."""

    def __init__(self, app: ASGIApp, *, access: Access, hosts: Hosts, cookie: str, tell: Tell):
        self._app = app
        self._access = access
        self._hosts = hosts
        self._cookie = cookie
        self._tell = tell

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
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
                # without the query and the headers, which may contain secrets
                path = scope.get("raw_path", b"").split(b"?")[0].decode("ascii", "replace")
                self._tell(f"{request.method} {path} {message['status']}")
            await send(message)

        refused = self._refuse(request, about_data=about_data)
        if refused is not None and refused.status_code == _TOO_MANY:
            await asyncio.sleep(SLOW_SECONDS)
        await (refused or self._app)(scope, receive, send_with_headers)

    def _refuse(self, request: Request, *, about_data: bool) -> Response | None:
        if not self._hosts.knows(request.headers.get("host", "")):
            step = "use its address, or start it with --allow-host NAME"
            return _denied("the dashboard does not accept this host name", step, status=421)
        if not about_data:
            return (
                None
                if request.method in _SAFE
                else _denied("this address accepts no data", "", 405)
            )
        return self._unknown(request) or self._from_elsewhere(request)

    def _unknown(self, request: Request) -> Response | None:
        """Return the refusal of a client with neither the token nor a session."""
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
        step = "log in with the token, or send it: Authorization: Bearer TOKEN"
        return None if known else _denied("this dashboard requires a token", step, 401)

    def _from_elsewhere(self, request: Request) -> Response | None:
        """Return the refusal of a request that another site's page makes a browser send."""
        headers = request.headers
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        foreign = site not in (None, "same-origin", "none")
        foreign |= origin is not None and not same_origin(origin, headers.get("host", ""))
        if foreign:
            return _denied(
                "the request comes from another site's page", "open the dashboard itself", 403
            )
        # a browser never adds a bearer token by itself
        if request.method in _SAFE or (self._access.required and _bearer(request) is not None):
            return None
        if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return _denied("only JSON is accepted", "send application/json", 415)
        session = request.cookies.get(self._cookie)
        if not self._access.proves(headers.get(CSRF_HEADER), session):
            step = "load the page again, or send the token: Authorization: Bearer TOKEN"
            return _denied("the request does not come from the dashboard's own page", step, 403)
        return None


def client_of(request: Request) -> str:
    """Return the address that a request comes from."""
    return request.client.host if request.client else ""


def too_often() -> Response:
    """Return the answer to a wrong token after many others; the right token is always accepted."""
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
