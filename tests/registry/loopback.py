"""A server on this machine that says what a test wants it to say: a real one cannot misbehave."""

from __future__ import annotations

import json
import re
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from distributary.config.registry import RegistryConfig
from distributary.registry.http.http_registry import HttpRegistry


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    """As it came over the wire, with its query."""
    headers: dict[str, str]
    body: bytes

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))

    def __str__(self) -> str:
        """Without the words by which the first page of a listing is asked for."""
        plain = re.sub(r"([?&])offset=0&limit=1000$", "", self.path)
        return f"{self.method} {plain}"


@dataclass(frozen=True)
class Says:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    hang: bool = False
    """Nothing at all until the server ends."""
    drip: bytes = b""
    """This again and again, a few times a second, instead of an answer."""
    endless: bool = False
    """The body without end, as fast as it is taken."""


def says(content: Any, status: int = 200, **headers: str) -> Says:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Says(status, json.dumps(content).encode(), named)


def no(status: int, code: int, message: str = "no") -> Says:
    return says({"error_code": code, "message": message}, status)


Script = Callable[[Asked], Says]


class Server:
    """Listings have one page, unless the script speaks for all of them."""

    def __init__(
        self, script: Script, tls: ssl.SSLContext | None = None, *, paged: bool = False
    ) -> None:
        self.asked: list[Asked] = []
        self.script = script
        self.paged = paged
        self.ended = threading.Event()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._http.daemon_threads = True
        self._http.handle_error = lambda *_: None  # type: ignore[method-assign]
        if tls is not None:
            # the handshake is the handler's matter: one bad client must not stop the others
            self._http.socket = tls.wrap_socket(
                self._http.socket, server_side=True, do_handshake_on_connect=False
            )
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        self._thread.start()

    @property
    def paths(self) -> list[str]:
        return [str(asked) for asked in self.asked]

    def close(self) -> None:
        self.ended.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@contextmanager
def serving(
    script: Script, tls: ssl.SSLContext | None = None, *, paged: bool = False
) -> Iterator[Server]:
    server = Server(script, tls, paged=paged)
    try:
        yield server
    finally:
        server.close()


def by_path(answers: dict[str, Any]) -> Script:
    """Answers by `GET /path?query`; Confluent's words for a path that does not exist otherwise."""

    def script(asked: Asked) -> Says:
        found = {"GET /schemas/types": ["PROTOBUF"], **answers}.get(str(asked))
        if found is None:
            return no(404, 404, "HTTP 404 Not Found")
        return found if isinstance(found, Says) else says(found)

    return script


def registry(*urls: str, waits: list[float] | None = None, **settings: Any) -> HttpRegistry:
    """A client that writes down how long it would have waited."""
    own = {k: settings.pop(k) for k in ("attempts", "most_bytes", "clock") if k in settings}
    config = RegistryConfig(urls=urls, **settings)
    return HttpRegistry(config, sleep=(waits if waits is not None else []).append, **own)


def _handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _answer(self) -> None:
            length = int(self.headers.get("content-length", 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = Asked(self.command, self.path, headers, self.rfile.read(length))
            if not server.paged and asked.query.get("offset", "0") != "0":
                self._send(says([]))
                return
            server.asked.append(asked)
            reply = server.script(asked)
            if reply.hang:
                server.ended.wait()
                self.close_connection = True
            elif reply.drip:
                self._drip(reply.drip)
            else:
                self._send(reply)

        do_GET = do_POST = do_PUT = do_DELETE = _answer

        def _send(self, reply: Says) -> None:
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            length = 2**40 if reply.endless else len(reply.body)
            self.send_header("content-length", str(length))
            self.end_headers()
            self.wfile.write(reply.body)
            while reply.endless and not server.ended.is_set():
                self.wfile.write(reply.body)

        def _drip(self, drop: bytes) -> None:
            start = b"HTTP/1.1 200 OK\r\n"
            self.wfile.write(start if b":" in drop else start + b"Content-Length: 9999\r\n\r\n")
            while not server.ended.wait(0.05):
                self.wfile.write(drop)

        def log_message(self, *_: object) -> None:
            pass

    return Handler
