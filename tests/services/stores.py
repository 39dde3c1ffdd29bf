"""Object stores that are real servers: S3 by versitygw, Azure by its own emulator.

For Google there is none: fake-gcs-server (1.56) refuses the uploads of `obstore`, which speaks XML.

Each is a program that a machine may have on its PATH. Where it does not, the tests that need it are
skipped, unless `FETCH_STORES=1` says that Go and npm may fetch it into `build/tools`: no lock names
what they bring along, so nobody gets it unasked.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

import pytest

from distributary_lab.services.processes import free_port
from tests.waiting import eventually, is_listening

BUCKET = "changes"
_TOOLS = Path(__file__).parents[2] / "build" / "tools"
_VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
_AZURITE = "azurite@3.35.0"
_ACCOUNT = "devstoreaccount1"
_KEY = base64.b64encode(b"a key that only tests know").decode()


@dataclass(frozen=True, slots=True)
class StoreServer:
    """A bucket, and how to reach it."""

    address: str
    options: dict[str, str]
    port: int


@contextmanager
def versitygw(folder: Path) -> Iterator[StoreServer]:
    """S3 over a folder: a bucket is a folder in it, an object a file."""
    program = _by_go("versitygw", _VERSITYGW)
    (folder / "root" / BUCKET).mkdir(parents=True)
    (folder / "sidecar").mkdir()
    port, keys = free_port(but=set()), ("canary-key", "canary-secret")
    command = [str(program), "--quiet", "--port", f"127.0.0.1:{port}", "--keep-alive"]
    # not every file system of a test machine has extended attributes
    command += ["posix", "--sidecar", str(folder / "sidecar"), str(folder / "root")]
    environ = {"ROOT_ACCESS_KEY": keys[0], "ROOT_SECRET_KEY": keys[1]}
    options = {
        "aws_access_key_id": keys[0],
        "aws_secret_access_key": keys[1],
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "aws_allow_http": "true",
    }
    with _running(command, port, environ):
        yield StoreServer(f"s3://{BUCKET}", options, port)


@contextmanager
def azurite(folder: Path) -> Iterator[StoreServer]:
    """Azure's own emulator of its blobs."""
    program = _by_npm("azurite-blob", _AZURITE)
    port = free_port(but=set())
    command = [str(program), "--silent", "--skipApiVersionCheck", "--location", str(folder)]
    command += ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--disableTelemetry"]
    endpoint = f"http://127.0.0.1:{port}/{_ACCOUNT}"
    with _running(command, port, {"AZURITE_ACCOUNTS": f"{_ACCOUNT}:{_KEY}"}):
        _make_container(port)
        options = {
            "azure_storage_account_name": _ACCOUNT,
            "azure_storage_account_key": _KEY,
            "azure_storage_endpoint": endpoint,
        }
        yield StoreServer(f"az://{BUCKET}", options, port)


def _by_go(name: str, package: str) -> Path:
    there = _TOOLS / "bin"
    command = ["go", "install", package]
    return _fetched(name, there / name, "go", command, {"GOBIN": str(there)})


def _by_npm(name: str, package: str) -> Path:
    command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(_TOOLS), package]
    return _fetched(name, _TOOLS / "node_modules" / ".bin" / name, "npm", command, {})


def _fetched(
    name: str, place: Path, tool: str, command: Sequence[str], environ: dict[str, str]
) -> Path:
    found = shutil.which(name)
    if found is not None:
        return Path(found)
    if not place.exists():
        if not os.environ.get("FETCH_STORES"):
            pytest.skip(f"{name} is not installed; FETCH_STORES=1 fetches it with {tool}")
        if shutil.which(tool) is None:
            pytest.skip(f"{name} is not installed, and there is no {tool} to fetch it with")
        _TOOLS.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            command, env={**os.environ, **environ}, capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(
                f"{name} is not installed, and {tool} cannot fetch it: {done.stderr[-300:]}"
            )
    return place


@contextmanager
def _running(command: Sequence[str], port: int, environ: dict[str, str]) -> Iterator[None]:
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **environ},
    )
    try:
        eventually(lambda: process.poll() is not None or is_listening(port), seconds=60)
        assert process.poll() is None, f"{command[0]} ended with {process.returncode}"
        yield
    finally:
        process.terminate()
        process.wait()


def _make_container(port: int) -> None:
    """Azure wants its requests signed, also the one that makes a container."""
    moment, path = formatdate(usegmt=True), f"/{_ACCOUNT}/{BUCKET}"
    named = f"x-ms-date:{moment}\nx-ms-version:2021-08-06\n"
    text = f"PUT\n\n\n\n\n\n\n\n\n\n\n\n{named}/{_ACCOUNT}{path}\nrestype:container"
    digest = hmac.new(base64.b64decode(_KEY), text.encode(), hashlib.sha256).digest()
    signed = f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}"
    headers = {"x-ms-date": moment, "x-ms-version": "2021-08-06", "Authorization": signed}
    _ask("PUT", f"http://127.0.0.1:{port}{path}?restype=container", b"", headers)


def _ask(method: str, url: str, data: bytes, headers: dict[str, str] | None = None) -> None:
    request = urllib.request.Request(url, data, headers or {}, method=method)
    request.add_header("Content-Type", "")
    urllib.request.urlopen(request, timeout=30).close()


SERVERS: dict[str, Callable[[Path], AbstractContextManager[StoreServer]]] = {
    "versitygw": versitygw,
    "azurite": azurite,
}
