"""The log file of a command."""

from __future__ import annotations

from pathlib import Path

import pytest

from distributary.cli import logs
from distributary.cli.logs import LogFile


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def test_a_log_does_not_grow_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_MOST_BYTES", 1000)
    log = LogFile("ui")
    for number in range(200):
        log.write(f"line {number:03}")
    files = sorted(log.path.parent.iterdir())
    assert sum(file.stat().st_size for file in files) < 2500
    kept = "".join(file.read_text() for file in files[::-1])
    assert [line[-3:] for line in kept.splitlines()][-20:] == [f"{n:03}" for n in range(180, 200)]
