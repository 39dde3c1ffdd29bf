"""The health endpoint: `/live`, `/ready`, `/status`, and `/metrics` if there are any."""

from __future__ import annotations

import errno
import hmac
import json
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Generic, TypeVar

from distributary.config.base import is_loopback
from distributary.errors import ConfigError, ErrorCode, SetupError
from distributary.model.names import printable
from distributary.observe.log_format import plain
from distributary.supervise.supervisor import Render

# A bounded set of open connections: an idle one is closed for a new one.

Connection = TypeVar("Connection", bound=Hashable)


@dataclass(slots=True)
class _State:
    client: str
    since: float
    waiting: bool = True


class Connections(Generic[Connection]):
    """The open connections of a server.

    A new connection is always accepted, so that probes are answered.

    When there are too many, an idle connection is closed, or else one whose request is being
    answered: the oldest one of the client that has the most. Thread-safe.
    """

    def __init__(
        self, most: int, *, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most, self._seconds, self._clock = most, seconds, clock
        self._lock = threading.Lock()
        # in order of arrival
        self._open: dict[Connection, _State] = {}

    def arrived(self, one: Connection, client: str) -> Connection | None:
        """Add a connection, and return the one to close for it, if there is one."""
        with self._lock:
            before = dict(self._open)
            self._open[one] = _State(client, self._clock())
            if len(before) < self._most:
                return None
            candidates = {
                connection: state for connection, state in before.items() if state.waiting
            } or before
            share = Counter(state.client for state in candidates.values())
            most = max(share.values())
            chosen = next(
                connection
                for connection, state in candidates.items()
                if share[state.client] == most
            )
            del self._open[chosen]
            return chosen

    def asked(self, one: Connection) -> None:
        """Note that the connection's request is complete: it no longer counts as idle."""
        self._mark(one, waiting=False)

    def answered(self, one: Connection) -> None:
        """Note that the connection's request was answered: it may send another one."""
        self._mark(one, waiting=True)

    def left(self, one: Connection) -> None:
        """Remove a closed connection."""
        with self._lock:
            self._open.pop(one, None)

    def overdue(self) -> list[Connection]:
        """Remove and return the connections that have not sent a complete request in time."""
        with self._lock:
            end = self._clock() - self._seconds
            late = [one for one, state in self._open.items() if state.waiting and state.since < end]
            for one in late:
                del self._open[one]
            return late

    def _mark(self, one: Connection, *, waiting: bool) -> None:
        with self._lock:
            state = self._open.get(one)
            if state is not None and state.waiting is not waiting:
                state.waiting, state.since = waiting, self._clock()


_log = logging.getLogger(__name__)

_OPEN = frozenset({"/live", "/ready"})
"""Pages for probes without a token; they show names, states and codes only."""
_SILENT_SECONDS = 10.0
_MOST_AT_ONCE = 32
_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """A host and port to listen at."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> ListenAddress:
        """Parse `127.0.0.1:9100`, `[::1]:0`, or a port alone, which means loopback."""
        host, _, port = text.rpartition(":")
        bare = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
        usable = port.isascii() and port.isdecimal() and int(port) < 1 << 16
        if not usable or (":" in bare and not host.startswith("[")):
            raise ConfigError(
                "the address to listen on is not valid",
                where="--listen",
                evidence=text,
                next_step="write host and port, such as 127.0.0.1:9100; port 0 takes a free port",
            )
        return cls(bare, int(port))

    @property
    def is_loopback(self) -> bool:
        """Return whether only this machine can reach the address."""
        return is_loopback(self.host)


@dataclass(frozen=True, slots=True)
class Answers:
    """The functions that compute each page's content on request.

    A page without one does not exist.
    """

    live: Callable[[], bool] | None = None
    ready: Callable[[], dict[str, Any]] | None = None
    status: Callable[[], dict[str, Any]] | None = None
    metrics: Render | None = None
    token: str | None = field(default=None, repr=False)


@contextmanager
def serving(address: ListenAddress, answers: Answers, *, option: str = "--listen") -> Iterator[str]:
    """Serve the endpoint while the context lasts; yields its address."""
    if not address.is_loopback and not answers.token:
        raise ConfigError(
            "an address that other machines can reach needs a token",
            where=option,
            evidence=address.host,
            next_step="set DISTRIBUTARY_TOKEN, or listen on 127.0.0.1",
        )
    try:
        server = _Server(address, answers)
    except OSError as error:
        taken = error.errno in (errno.EADDRINUSE, errno.EACCES)
        raise SetupError(
            f"{option} cannot listen on this address",
            code=ErrorCode.PORT_TAKEN if taken else ErrorCode.CONFIG_INVALID,
            where=f"{address.host}:{address.port}",
            evidence=error.strerror or str(error),
            next_step="choose another port, or an address of this machine",
        ) from error
    thread = threading.Thread(
        target=server.serve_forever, args=(_POLL_SECONDS,), name="health", daemon=True
    )
    thread.start()
    try:
        host = f"[{address.host}]" if ":" in address.host else address.host
        yield f"http://{host}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: ListenAddress, answers: Answers) -> None:
        if ":" in address.host:
            self.address_family = socket.AF_INET6
        self.answers, self.is_loopback = answers, address.is_loopback
        self.connections: Connections[socket.socket] = Connections(
            _MOST_AT_ONCE, seconds=_SILENT_SECONDS
        )
        super().__init__((address.host, address.port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle a connection in a thread; if there are too many, close an idle one."""
        _cut_off(self.connections.arrived(request, client_address[0]))
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Remove the connection from the open ones, and close it."""
        self.connections.left(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Close connections whose requests arrive too slowly."""
        for connection in self.connections.overdue():
            _cut_off(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error of a client that has disconnected."""


def _cut_off(connection: socket.socket | None) -> None:
    """Shut a connection down; the thread that reads from it sees its end."""
    if connection is not None:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _SILENT_SECONDS
    server_version, sys_version = "distributary", ""

    def do_GET(self) -> None:
        """Answer one request."""
        self.server.connections.asked(self.connection)
        path, token = self.path.partition("?")[0], self.server.answers.token
        given = self.headers.get("Authorization", "").encode()
        proven = not token or hmac.compare_digest(given, f"Bearer {token}".encode())
        if not self._is_for_us():
            self._json(HTTPStatus.MISDIRECTED_REQUEST, {"error": "the request is for another host"})
        elif path not in _OPEN and not proven:
            self._json(HTTPStatus.UNAUTHORIZED, {"error": "a token is required"})
        else:
            try:
                self._answer(path, self.server.answers)
            except OSError:
                raise
            except Exception:
                _log.warning("%s could not be answered", printable(path), exc_info=True)
                self._json(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": "a defect; see the log"})

    def _answer(self, path: str, answers: Answers) -> None:
        if path == "/live" and answers.live is not None:
            live = answers.live()
            self._json(_ok(live), {"live": live})
        elif path == "/ready" and answers.ready is not None:
            ready = answers.ready()
            self._json(_ok(ready["ready"]), ready)
        elif path == "/status" and answers.status is not None:
            self._json(HTTPStatus.OK, answers.status())
        elif path == "/metrics" and answers.metrics is not None:
            kind, body = answers.metrics(self.headers.get("Accept", ""))
            self._send(HTTPStatus.OK, kind, body)
        else:
            self._json(HTTPStatus.NOT_FOUND, {"error": "no such page"})

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: probes come every second, and a request may contain a token."""

    def _is_for_us(self) -> bool:
        """Return whether the request names this host.

        On loopback, a web page could send requests under a name of its own that resolves to this
        machine.
        """
        if not self.server.is_loopback:
            return True
        host = self.headers.get("Host", "")
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        return is_loopback(name or "localhost")

    def _json(self, status: HTTPStatus, document: dict[str, Any]) -> None:
        body = json.dumps({"version": 1} | plain(document)).encode()
        self._send(status, "application/json", body)

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        self.wfile.write(body)


def _ok(well: bool) -> HTTPStatus:
    return HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
