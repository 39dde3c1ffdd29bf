"""`distributary ui` itself."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from distributary.cli.command_line import main
from distributary.web.serve import bind
from tests.web.lakes import WebLake


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("DISTRIBUTARY_LAKE", raising=False)
    monkeypatch.delenv("DISTRIBUTARY_TOKEN", raising=False)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


def refused(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["ui", "--json", *words])
    document: dict[str, Any] = json.loads(capfd.readouterr().out)
    return code, document["error"]["code"]


def test_a_lake_that_is_not_there_yet_is_no_reason_to_refuse(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with bind("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        # it would have been shown
        assert refused(capfd, "--lake", "nowhere", "--port", port) == (1, "PORT_TAKEN")
        assert refused(capfd, "--port", port) == (1, "PORT_TAKEN")
    assert not Path("nowhere").exists()


def test_other_addresses_need_a_token(
    busy: WebLake, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = ("--lake", str(busy.path), "--port", "0", "--host", "0.0.0.0")
    assert refused(capfd, *there) == (2, "TOKEN_NEEDED")
    monkeypatch.setenv("DISTRIBUTARY_TOKEN", "short")
    assert refused(capfd, *there) == (2, "CONFIG_INVALID")
    Path("token").write_text("\n")
    assert refused(capfd, *there, "--token-file", "token") == (2, "CONFIG_INVALID")
    assert refused(capfd, *there, "--token-file", "gone") == (2, "CONFIG_UNREADABLE")


@pytest.mark.parametrize("address", ["*", "proxy.example", "10.0.0.1/99", ""])
def test_a_proxy_is_named_by_its_address(
    busy: WebLake, capfd: pytest.CaptureFixture[str], address: str
) -> None:
    there = ("--lake", str(busy.path), "--port", "0", "--trusted-proxy", address)
    assert refused(capfd, *there) == (2, "CONFIG_INVALID")


def test_a_port_that_is_taken(busy: WebLake, capfd: pytest.CaptureFixture[str]) -> None:
    with bind("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        assert refused(capfd, "--lake", str(busy.path), "--port", port) == (1, "PORT_TAKEN")
    here = ("--lake", str(busy.path), "--host", "no.such.host.invalid", "--new-token")
    assert refused(capfd, *here) == (1, "PORT_TAKEN")


def test_it_says_where_it_is_and_ends_when_asked(busy: WebLake) -> None:
    words = ("ui", "--json", "--lake", str(busy.path), "--port", "0", "--new-token")
    child = subprocess.Popen(
        [sys.executable, "-m", "distributary", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert child.stdout is not None
    lines: list[str] = []
    while "}" not in lines:
        lines.append(child.stdout.readline().rstrip("\n"))
    told = json.loads("\n".join(lines))
    assert told["token_required"] and told["version"] == 1
    with httpx2.Client(base_url=told["url"], timeout=60) as client:
        assert client.get("/api/overview").status_code == 401
        bearer = {"authorization": f"Bearer {told['token']}"}
        assert client.get("/api/overview", headers=bearer).status_code == 200
        # a page that listens must not keep it alive
        with client.stream("GET", "/api/events", headers=bearer) as events:
            next(events.iter_lines())
            child.send_signal(signal.SIGTERM)
            _, said = child.communicate(timeout=60)
    assert child.returncode == 143
    assert "Traceback" not in said


def test_half_open_requests_do_not_keep_others_out(busy: WebLake) -> None:
    """More of them than the process may have open files."""
    words = ("ui", "--json", "--lake", str(busy.path), "--port", "0")
    limited = ("sh", "-c", 'ulimit -n 256; exec "$@"', "sh")
    child = subprocess.Popen(
        [*limited, sys.executable, "-m", "distributary", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    try:
        assert child.stdout is not None
        lines: list[str] = []
        while "}" not in lines:
            lines.append(child.stdout.readline().rstrip("\n"))
        url = json.loads("\n".join(lines))["url"]
        port = int(url.rstrip("/").rpartition(":")[2])
        with ExitStack() as stack:
            for _ in range(400):
                one = socket.create_connection(("127.0.0.1", port), timeout=60)
                stack.enter_context(one).sendall(b"GET /api/session HTTP/1.1\r\n")
            with httpx2.Client(base_url=url, timeout=60, trust_env=False) as client:
                assert client.get("/api/session").status_code == 200
                assert client.get("/api/overview").status_code == 200
    finally:
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=60)
