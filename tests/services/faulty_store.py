"""A proxy before an S3 server that does what stores and networks do on a bad day.

What happens to a request depends on a seed, on what is asked, and on how often it was asked before:
the same run meets the same faults, in whatever order its threads come.
"""

from __future__ import annotations

import http.client
import json
import random
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_HOP_BY_HOP = ("connection", "transfer-encoding", "content-length", "keep-alive")
_MET = "/-/met"
_MADE_UP = re.compile("[0-9a-f]{8,}(-[0-9a-f]+)*")
_MOST_IN_A_ROW = 3
_ERROR = "<?xml version='1.0'?><Error><Code>{}</Code><Message>a fault</Message></Error>"


@dataclass
class Faults:
    """Shares of the requests to which something happens, from 0 to 1."""

    seed: int = 0
    slow: float = 0.0
    """Answered after a while."""
    slow_down: float = 0.0
    """Refused with 503, not done."""
    lost: float = 0.0
    """Done, and answered with 500."""
    own_412: float = 0.0
    """A conditional put that is done, and answered with 412: somebody on the way tried twice."""
    expired: Sequence[int] = (0, 0)
    """The requests between these numbers are refused with 403, as with an old token."""
    met: Counter[str] = field(default_factory=Counter)
    """What has happened."""
    _asked: Counter[str] = field(default_factory=Counter)
    _in_a_row: Counter[str] = field(default_factory=Counter)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def of(self, method: str, path: str, *, conditional: bool) -> str:
        """What happens to a request."""
        with self._turn:
            number = self._asked.total()
            # parts of names that are made up again in each run say nothing
            key = f"{method} {_MADE_UP.sub('*', path)}"
            self._asked[key] += 1
            kind = self._kind(f"{self.seed} {key} {self._asked[key]}", number, conditional)
            # a store that never does anything is away, which is another matter
            row = f"{method} {path}"
            self._in_a_row[row] = 0 if kind in ("good", "slow") else self._in_a_row[row] + 1
            if kind != "expired" and self._in_a_row[row] > _MOST_IN_A_ROW:
                self._in_a_row[row], kind = 0, "good"
            self.met[kind] += 1
            return kind

    def _kind(self, key: str, number: int, conditional: bool) -> str:
        if self.expired[0] <= number < self.expired[1]:
            return "expired"
        dice = random.Random(key)
        if conditional and dice.random() < self.own_412:
            return "own_412"
        for kind in ("slow", "slow_down", "lost"):
            if dice.random() < getattr(self, kind):
                return kind
        return "good"


@dataclass(frozen=True)
class FaultyStore:
    """Where the proxy is."""

    port: int

    def before(self, options: dict[str, str]) -> dict[str, str]:
        """The options of the server, by way of the proxy."""
        return options | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}"}

    def met(self) -> Counter[str]:
        """What has happened so far."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{_MET}", timeout=30) as answer:
            return Counter(json.load(answer))


@contextmanager
def faulty_store(upstream: int, **faults: Any) -> Iterator[FaultyStore]:
    """A proxy before the server at a port of this machine; the faults are those of `Faults`."""
    # a process of its own: deltalake waits for some answers without letting other threads run
    command = [sys.executable, __file__, str(upstream), json.dumps(faults)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield FaultyStore(int(process.stdout.readline()))
        finally:
            process.terminate()


def _serve(upstream: int, faults: Faults) -> None:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *_: object) -> None:
            return

        def _pass(self) -> None:
            if self.path == _MET:
                return self._answer(200, json.dumps(faults.met).encode())
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            conditional = any(self.headers.get(name) for name in ("If-None-Match", "If-Match"))
            conditional = conditional and self.command == "PUT"
            kind = faults.of(self.command, self.path, conditional=conditional)
            if kind == "slow_down":
                return self._refuse(503, "SlowDown")
            if kind == "expired":
                return self._refuse(403, "ExpiredToken")
            if kind == "slow":
                time.sleep(0.1)
            upper = http.client.HTTPConnection("127.0.0.1", upstream, timeout=60)
            try:
                # the host that was signed is sent on, so that the signature stays right
                upper.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    if name.lower() not in ("connection", "keep-alive"):
                        upper.putheader(name, value)
                upper.endheaders(body)
                answer = upper.getresponse()
                content = answer.read()
            finally:
                upper.close()
            if kind == "lost" and answer.status < 300:
                return self._refuse(500, "InternalError")
            if kind == "own_412" and answer.status < 300:
                return self._refuse(412, "PreconditionFailed")
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _HOP_BY_HOP:
                    self.send_header(name, value)
            length = answer.getheader("Content-Length") if self.command == "HEAD" else None
            self.send_header("Content-Length", length or str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _refuse(self, status: int, code: str) -> None:
            content = _ERROR.format(code).encode() if self.command != "HEAD" else b""
            self._answer(status, content)

        def _answer(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    _serve(int(sys.argv[1]), Faults(**json.loads(sys.argv[2])))
