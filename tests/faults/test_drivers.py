"""A process of the product, as the harness sees it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tests.faults import drivers
from tests.faults.drivers import Driver


def _program(folder: Path, text: str) -> Path:
    file = folder / "program"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return file


def test_a_run_without_an_event_for_long_is_stuck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drivers, "COMMAND", _program(tmp_path, "echo begun >&2; exec sleep 600"))
    monkeypatch.setattr(drivers, "_SILENCE", 0.5)
    driver = Driver(["run"], log=tmp_path / "001-run")
    outcome = driver.end()
    assert (outcome.code, outcome.was_killed) == ("STUCK", True)
