"""`dev up`, `dev status` and `dev down` as they are typed, with a real broker and registry."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from distributary.cli.command_line import main
from distributary_lab.services.processes import HOST, free_port, running


@dataclass(frozen=True)
class Dev:
    """The commands, for one folder."""

    folder: Path
    capture: pytest.CaptureFixture[str]

    def __call__(self, *words: object) -> subprocess.CompletedProcess[str]:
        """Run a command in this process, which is much cheaper."""
        line = self._line(words)
        self.capture.readouterr()
        code = main(line)
        said = self.capture.readouterr()
        return subprocess.CompletedProcess(line, code, said.out, said.err)

    def alone(self, *words: object) -> subprocess.CompletedProcess[str]:
        """Run a command in a process of its own, which services outlive."""
        command = [sys.executable, "-m", "distributary", *self._line(words)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def json(self, *words: object) -> tuple[int, Any]:
        ended = self(*words, "--json")
        return ended.returncode, json.loads(ended.stdout)

    def _line(self, words: Sequence[object]) -> list[str]:
        return ["dev", *map(str, words), "--folder", str(self.folder)]


@pytest.fixture
def dev(folder: Path, capfd: pytest.CaptureFixture[str]) -> Dev:
    return Dev(folder, capfd)


def test_nothing_is_running(dev: Dev) -> None:
    ended = dev("status")
    assert ended.returncode == 1
    assert ended.stdout.count("down") == 2
    code, status = dev.json("status")
    assert (code, status["ok"]) == (1, False)
    assert status["kafka"]["state"] == status["registry"]["state"] == "down"
    assert status["kafka"]["pid"] is None
    code, down = dev.json("down", "--wipe")
    assert (code, down["stopped"], down["removed"]) == (0, [], [])
    assert not dev.folder.exists()


def test_a_port_that_does_not_exist(dev: Dev) -> None:
    code, answer = dev.json("up", "--kafka-port", 70_000)
    assert (code, answer["error"]["code"]) == (2, "CONFIG_INVALID")


@pytest.mark.services
def test_up_status_down(dev: Dev) -> None:
    kafka = free_port(but=set())
    registry = free_port(but={kafka})
    addresses: dict[str, Any] = {
        "version": 1,
        "kafka": f"{HOST}:{kafka}",
        "registry": f"http://{HOST}:{registry}/apis/ccompat/v7",
    }
    ended = dev.alone("up", "--kafka-port", kafka, "--registry-port", registry, "--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == addresses
    assert f"{HOST}:{kafka}" in ended.stderr
    before = {name: each.pid for name, each in running(dev.folder).items()}

    second = dev("up")
    assert second.returncode == 0
    assert "already running" in second.stderr
    assert all(addresses[name] in second.stdout for name in ("kafka", "registry"))

    code, status = dev.json("status")
    assert (code, status["ok"], status["folder"]) == (0, True, str(dev.folder))
    for name, pid in before.items():
        assert status[name]["state"] == "up"
        assert (status[name]["pid"], status[name]["address"]) == (pid, addresses[name])
        assert status[name]["since"].endswith("Z")

    os.kill(before["registry"], signal.SIGKILL)
    code, status = dev.json("status")
    assert (code, status["kafka"]["state"], status["registry"]["state"]) == (1, "up", "down")
    assert json.loads(dev.alone("up", "--json").stdout) == addresses
    after = {name: each.pid for name, each in running(dev.folder).items()}
    assert after["kafka"] == before["kafka"]

    code, tried = dev.json("down", "--wipe", "--dry-run")
    assert (code, tried["stopped"]) == (0, ["kafka", "registry"])
    assert str(dev.folder / "kafka") in tried["removed"]
    assert dev.json("status")[0] == 0
    assert dev.json("down")[1]["stopped"] == ["kafka", "registry"]
    assert running(dev.folder) == {}
    assert not any(map(psutil.pid_exists, after.values()))
    assert (dev.folder / "kafka" / "data" / "meta.properties").exists()
    assert dev("down", "--wipe").returncode == 0
    assert not dev.folder.exists()
