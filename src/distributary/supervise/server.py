"""The health endpoint: `/live`, `/ready`, `/status`, and `/metrics` where there are any."""

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
from distributary.config.document import printable
from distributary.errors import ConfigError, ErrorCode, SetupError
from distributary.observe.log_format import plain
from distributary.supervise.supervisor import Render

# Open connections of a server, bounded: who says nothing makes room for who comes.

Connection = TypeVar("Connection", bound=Hashable)


@dataclass(slots=True)
class _State:
    client: str
    since: float
    waiting: bool = True


class Connections(Generic[Connection]):
    """A newcomer is always let in, so that a probe is answered however many are silent.

    When there are too many, one that waits for a request has to go, else one that is answered: the
    oldest one of the client that has the most. Thread-safe.
    """

    def __init__(
        self, most: int, *, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most, self._seconds, self._clock = most, seconds, clock
        self._lock = threading.Lock()
        # in the order in which they came
        self._open: dict[Connection, _State] = {}

    def arrived(self, one: Connection, client: str) -> Connection | None:
        """Counts a connection; gives the one that has to be closed for it, if there is one."""
        with self._lock:
            before = dict(self._open)
            self._open[one] = _State(client, self._clock())
            if len(before) < self._most:
                return None
            found = {each: state for each, state in before.items() if state.waiting} or before
            share = Counter(state.client for state in found.values())
            most = max(share.values())
            chosen = next(each for each, state in found.items() if share[state.client] == most)
            del self._open[chosen]
            return chosen

    def asked(self, one: Connection) -> None:
        """Its request has come as a whole: the next wait is ours."""
        self._mark(one, waiting=False)

    def answered(self, one: Connection) -> None:
        """It may send another request."""
        self._mark(one, waiting=True)

    def left(self, one: Connection) -> None:
        """It is closed."""
        with self._lock:
            self._open.pop(one, None)

    def overdue(self) -> list[Connection]:
        """Those that should have sent a whole request by now; they are counted no longer."""
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
"""Asked by machines that have no token, and answered with names, states and codes only."""
_SILENT_SECONDS = 10.0
_MOST_AT_ONCE = 32
_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """`127.0.0.1:9100`, `[::1]:0` or a port alone, which means loopback."""
        host, _, port = text.rpartition(":")
        bare = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
        usable = port.isascii() and port.isdecimal() and int(port) < 1 << 16
        if not usable or (":" in bare and not host.startswith("[")):
            raise ConfigError(
                "that is no address to listen at",
                where="--listen",
                evidence=text,
                next_step="write host and port, such as 127.0.0.1:9100; port 0 takes a free one",
            )
        return cls(bare, int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)


@dataclass(frozen=True, slots=True)
class Answers:
    """What there is to say, asked for again each time; there is no page for what is left out."""

    live: Callable[[], bool] | None = None
    ready: Callable[[], dict[str, Any]] | None = None
    status: Callable[[], dict[str, Any]] | None = None
    metrics: Render | None = None
    token: str | None = field(default=None, repr=False)


@contextmanager
def serving(address: Address, answers: Answers, *, option: str = "--listen") -> Iterator[str]:
    """While this lasts, the endpoint answers; gives its address."""
    if not address.is_loopback and not answers.token:
        raise ConfigError(
            "an address that others can reach needs a token",
            where=option,
            evidence=address.host,
            next_step="set DISTRIBUTARY_TOKEN, or listen at 127.0.0.1",
        )
    try:
        server = _Server(address, answers)
    except OSError as error:
        taken = error.errno in (errno.EADDRINUSE, errno.EACCES)
        raise SetupError(
            f"{option} cannot listen there",
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

    def __init__(self, address: Address, answers: Answers) -> None:
        if ":" in address.host:
            self.address_family = socket.AF_INET6
        self.answers, self.is_loopback = answers, address.is_loopback
        self.connections: Connections[socket.socket] = Connections(
            _MOST_AT_ONCE, seconds=_SILENT_SECONDS
        )
        super().__init__((address.host, address.port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Ends one that holds a thread and says nothing, where there are too many."""
        _cut_off(self.connections.arrived(request, client_address[0]))
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """It is over."""
        self.connections.left(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Between two requests: ends those that come too slowly."""
        for each in self.connections.overdue():
            _cut_off(each)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is no news."""


def _cut_off(connection: socket.socket | None) -> None:
    """The thread that reads from it sees its end."""
    if connection is not None:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _SILENT_SECONDS
    server_version, sys_version = "distributary", ""

    def do_GET(self) -> None:
        """One question."""
        self.server.connections.asked(self.connection)
        path, token = self.path.partition("?")[0], self.server.answers.token
        given = self.headers.get("Authorization", "").encode()
        proven = not token or hmac.compare_digest(given, f"Bearer {token}".encode())
        if not self._is_for_us():
            self._json(HTTPStatus.MISDIRECTED_REQUEST, {"error": "another host was asked for"})
        elif path not in _OPEN and not proven:
            self._json(HTTPStatus.UNAUTHORIZED, {"error": "a token is needed"})
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
            self._json(HTTPStatus.NOT_FOUND, {"error": "there is no such page"})

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: who asks for health does it every second, and a token may be in what it says."""

    def _is_for_us(self) -> bool:
        """A page in a browser may ask for a name of its own that leads here: not on loopback."""
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
