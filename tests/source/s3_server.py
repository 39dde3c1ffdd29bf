"""A real S3 server on loopback, which ends with the process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pyarrow.fs as pa_fs

from tests.waiting import eventually, is_listening

KEYS = {"aws_access_key_id": "canary-key", "aws_secret_access_key": "canary-secret"}
BUCKET = "changes"
_SERVE = """
import os, sys, threading
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
application, writing = DomainDispatcherApplication(create_backend_app), threading.Lock()
def serve(environ, start_response):
    if f"Credential={os.environ['SERVED_KEY']}/" not in environ.get("HTTP_AUTHORIZATION", ""):
        start_response("403 Forbidden", [("Content-Type", "application/xml")])
        return [b"<Error><Code>InvalidAccessKeyId</Code><Message>who?</Message></Error>"]
    if environ["REQUEST_METHOD"] != "PUT":
        return application(environ, start_response)
    with writing:
        return application(environ, start_response)
run_simple("127.0.0.1", int(sys.argv[1]), serve, threaded=True)
"""
"""Moto looks and then writes: only one at a time makes a conditional put what it is in S3. And it
lets everybody in: whose key it is, is looked at here."""


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


@contextmanager
def s3_server(
    keys: Mapping[str, str] = MappingProxyType(KEYS), bucket: str = BUCKET
) -> Iterator[S3Server]:
    """A server with one bucket, which lets in whoever has its key."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", _SERVE, str(port)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "SERVED_KEY": keys["aws_access_key_id"]},
    )
    try:
        eventually(lambda: is_listening(port), seconds=60)
        server = S3Server(port, keys, bucket)
        server.files.create_dir(bucket)
        yield server
    finally:
        process.terminate()
        process.wait()
