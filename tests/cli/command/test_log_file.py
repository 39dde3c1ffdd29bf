"""The log file of a command."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from distributary.cli.command import log_file as logs
from distributary.cli.command.log_file import LogFile


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


@pytest.fixture
def usual_mask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("usual_mask")
@pytest.mark.parametrize("exists", [False, True])
def test_nobody_else_reads_a_log(exists: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_MOST_BYTES", 20)
    folder = Path(os.environ["XDG_STATE_HOME"], "distributary", "log")
    if exists:
        folder.mkdir(parents=True)
    log = LogFile("run")
    for line in ("a record that failed", "another one", "x"):
        log.write(line)
    assert folder.stat().st_mode & 0o777 == 0o700
    files = [*folder.iterdir()]
    assert len(files) > 0 and {file.stat().st_mode & 0o777 for file in files} == {0o600}
