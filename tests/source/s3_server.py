"""A real S3 server on loopback, which ends with the process."""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import httpx2
import pyarrow.fs as pa_fs

from tests.waiting import eventually, is_listening

KEYS = {"aws_access_key_id": "canary-key", "aws_secret_access_key": "canary-secret"}
BUCKET = "changes"
_SERVE = """
import os, sys, threading
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, run_simple
any_service, s3 = DomainDispatcherApplication(create_backend_app), create_backend_app("s3")
writing = threading.Lock()
class Handler(WSGIRequestHandler):
    def log_request(self, *_):
        pass
def serve(environ, start_response):
    who = environ.get("HTTP_AUTHORIZATION", "")
    if environ["PATH_INFO"] == "/moto-api/reset":
        return any_service(environ, start_response)
    if f"Credential={os.environ['SERVED_KEY']}/" not in who:
        start_response("403 Forbidden", [("Content-Type", "application/xml")])
        return [b"<Error><Code>InvalidAccessKeyId</Code><Message>who?</Message></Error>"]
    application = s3 if "/s3/aws4_request" in who else any_service
    if environ["REQUEST_METHOD"] != "PUT":
        return application(environ, start_response)
    with writing:
        return application(environ, start_response)
run_simple("127.0.0.1", int(sys.argv[1]), serve, threaded=True, request_handler=Handler)
"""
"""Moto looks and then writes: only one at a time makes a conditional put what it is in S3. It lets
everybody in: whose key it is, is looked at here. And to learn which service is meant it looks
through its own files, at each request, which takes as long as to answer it."""


@dataclass(frozen=True, slots=True)
class S3Server:
    """Where it is, and who may use it."""

    port: int
    keys: Mapping[str, str] = field(default_factory=lambda: KEYS)
    bucket: str = BUCKET

    @property
    def options(self) -> dict[str, str]:
        endpoint = f"http://127.0.0.1:{self.port}"
        return {**self.keys, "AWS_ENDPOINT_URL": endpoint, "aws_allow_http": "true"}

    @property
    def files(self) -> Any:
        return pa_fs.S3FileSystem(
            access_key=self.keys["aws_access_key_id"],
            secret_key=self.keys["aws_secret_access_key"],
            endpoint_override=f"127.0.0.1:{self.port}",
            scheme="http",
            region="us-east-1",
            allow_bucket_creation=True,
        )

    def put(self, path: str, data: bytes) -> None:
        with self.files.open_output_stream(f"{self.bucket}/{path}") as stream:
            stream.write(data)


_FREE: list[tuple[subprocess.Popen[bytes], int]] = []
"""Servers that nobody uses, with their ports: the next test gets one of them, emptied."""


@contextmanager
def s3_server(
    keys: Mapping[str, str] = MappingProxyType(KEYS), bucket: str = BUCKET
) -> Iterator[S3Server]:
    """A server with one bucket, which lets in whoever has its key."""
    usual = keys == KEYS
    process, port = _FREE.pop() if usual and _FREE else _started(keys["aws_access_key_id"])
    try:
        server = S3Server(port, keys, bucket)
        server.files.create_dir(bucket)
        yield server
        if usual and process.poll() is None:
            # a new one costs a second, most of it at its first request
            httpx2.post(f"http://127.0.0.1:{port}/moto-api/reset").raise_for_status()
            _FREE.append((process, port))
    finally:
        if (process, port) not in _FREE:
            _end(process)


def _started(key: str) -> tuple[subprocess.Popen[bytes], int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVE, str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "SERVED_KEY": key},
    )
    atexit.register(_end, process)
    eventually(lambda: is_listening(port), seconds=60)
    return process, port


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait()
